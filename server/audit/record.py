"""AnswerRecord: what is kept of a loose answer until it is replayed."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from core.provenance import FinishReason
from core.sequence import CommittedToken, GenerationRequest
from server.audit.ending import StopFactory
from server.audit.reconverge import RUN

_BIAS_BYTES = 100  # of one entry of a logit bias


@dataclass(slots=True)
class AnswerRecord:
    """request: as submitted, less its prompt. new_stop: makes the answer's stop condition afresh; held: bytes that it
    holds on to. prompt, tokens: ids, the delivered ones. loosened: their positions in the answer. stopped: it ended by
    itself, rather than at its limit."""

    request: GenerationRequest
    new_stop: StopFactory
    held: int = 0
    prompt: "array[int]" = field(init=False)
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    loosened: "array[int]" = field(default_factory=lambda: array("i"))
    stopped: bool = False

    def __post_init__(self) -> None:
        self.prompt = array("i", self.request.prompt)
        self.request = replace(self.request, prompt=())

    def push(self, tokens: Iterable[CommittedToken]) -> None:
        """Take what a round delivered."""
        for token in tokens:
            if token.provenance.loosened:
                self.loosened.append(len(self.tokens))
            self.tokens.append(token.token_id)

    def finish(self, reason: FinishReason) -> None:
        self.stopped = reason is FinishReason.STOP

    @property
    def size(self) -> int:
        """Bytes, about."""
        ids = len(self.prompt) + len(self.tokens) + len(self.loosened)
        return ids * self.tokens.itemsize + len(self.request.sampling.logit_bias) * _BIAS_BYTES + self.held

    def known(self, position: int) -> tuple[int, ...]:
        """Prompt and answer before a position of the answer."""
        return (*self.prompt, *self.tokens[:position])

    def judgeable(self, within: int, max_context: int) -> list[int]:
        """Loosened positions whose delivered text reaches far enough to say whether the target comes back, and whose
        replay fits into the context. Chosen by position alone: to count those near a cut only if the target came
        back in time would flatter the share."""
        span = within + RUN
        return [
            position
            for position in self.loosened
            if (self.stopped or len(self.tokens) - position >= span)
            and len(self.prompt) + position + span <= max_context
        ]


def obstacle(request: GenerationRequest, constrained: bool) -> str | None:
    """Why an answer cannot be replayed from its middle as a request of its own: drawn answers have no greedy
    continuation to compare with, penalties count what stands before, and a grammar would have to be advanced."""
    if not request.sampling.greedy:
        return "sampled"
    if constrained:
        return "constrained"
    return "penalties" if request.sampling.has_penalties else None
