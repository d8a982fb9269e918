"""Log-probabilities as /v1/completions lists them: parallel arrays, a token an entry, the prompt's first if echoed.

Long ones take tens of milliseconds to build; whoever builds them of a whole answer does so off the event loop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.sequence import TokenLogprobs
from server.answer_text import AnswerToken
from server.text.detokenizer import Detokenizer
from server.text.token_bytes import TokenBytes
from server.token_origin import verification


@dataclass(slots=True)
class LegacyLogprobs:
    """Arrays under construction. Each entry of top_logprobs holds the most likely tokens and the token itself."""

    table: TokenBytes
    with_provenance: bool
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)
    provenance: list[str | None] = field(default_factory=list)
    verification: list[dict[str, Any] | None] = field(default_factory=list)

    def add_prompt(
        self, token_ids: Iterable[int], offsets: Iterable[int], logprobs: Iterable[TokenLogprobs | None]
    ) -> None:
        """logprobs: None for the first token of a prompt, which nothing precedes."""
        for token_id, offset, known in zip(token_ids, offsets, logprobs, strict=True):
            self._add(token_id, offset, known)
            self.provenance.append(None)
            self.verification.append(None)

    def add_answer(self, listed: Iterable[AnswerToken], echoed: int) -> None:
        """echoed: characters of the prompt in front of the answer."""
        for entry in listed:
            token = entry.token
            self._add(token.token_id, echoed + entry.text_offset, token.logprobs)
            self.provenance.append(token.provenance.value)
            self.verification.append(verification(token, self.table))

    def _add(self, token_id: int, offset: int, known: TokenLogprobs | None) -> None:
        label = self.table.label
        name = label(token_id)
        self.tokens.append(name)
        self.text_offset.append(offset)
        self.token_logprobs.append(None if known is None else known.logprob)
        top = None
        if known is not None:
            top = {label(other): logprob for other, logprob in known.top} | {name: known.logprob}
        self.top_logprobs.append(top)

    def report(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
        if self.with_provenance:
            arrays["provenance"] = self.provenance
            arrays["verification"] = self.verification
        return arrays


def prompt_offsets(token_ids: Sequence[int], text: str, table: TokenBytes, spelled: bool) -> list[int]:
    """Where each token of a prompt begins in its text, in characters.

    spelled: whether control tokens stand in the text by their names, as they do where a client wrote it. What the
    tokenizer puts in front by itself (BOS, SentencePiece's space) is not in the text: `surplus`.
    """
    decoder = Detokenizer()
    begins: list[int] = []
    count = 0
    for token_id in token_ids:
        begins.append(count)
        count += len(decoder.feed(table[token_id] or (table.label(token_id).encode() if spelled else b"")))
    surplus = max(0, count + len(decoder.close(more_follows=True)) - len(text))
    return [min(max(0, begin - surplus), len(text)) for begin in begins]
