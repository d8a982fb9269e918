"""How one request wants its next token chosen: a frozen value, shared by target and draft."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one sequence. Ranges are checked by the server's schemas.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    repetition_penalty counts prompt and output, presence and frequency penalties the output alone.
    logit_bias: token id -> added to the logit (-100 bans in practice). seed: 64 bits, always set; a
    request without one gets a fresh one when it is submitted. choice_index tells the n choices of one
    request apart. min_tokens: end tokens are masked until so many tokens are out.
    logprobs: None for none; otherwise how many alternatives to report beside the token's own.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    choice_index: int = 0
    min_tokens: int = 0
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def has_filters(self) -> bool:
        """Whether top-k, top-p or min-p can remove a token."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
