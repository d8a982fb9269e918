"""Tokens as TGI lists them: id, text, logprob, and whether it is a special one, whose text is its name."""

from collections.abc import Iterable
from typing import Any

from core.sequence import TokenLogprobs
from server.answer_text import AnswerToken
from server.text.detokenizer import Detokenizer
from server.text.token_bytes import TokenBytes
from server.token_origin import origin


class TokenLister:
    """Lists one answer's tokens, in order. Their texts, special ones' aside, add up to the answer's text: a character
    of several tokens stands at its last one, and a token in which a stop string ends is cut there."""

    def __init__(self, table: TokenBytes, with_provenance: bool) -> None:
        self._table = table
        self._with_provenance = with_provenance
        self._decoder = Detokenizer()
        self._characters = 0

    def entry(self, listed: AnswerToken, whole_text: str | None = None) -> dict[str, Any]:
        """whole_text: of the answer, with its last token."""
        token = listed.token
        data = self._table[token.token_id]
        text = self._decoder.feed(data) if data else self._table.name(token.token_id)
        if data and whole_text is not None:
            text = whole_text[self._characters :]
        if data:
            self._characters += len(text)
        logprob = 0.0 if token.logprobs is None else token.logprobs.logprob
        entry: dict[str, Any] = {"id": token.token_id, "text": text, "logprob": logprob, "special": not data}
        if self._with_provenance:
            entry |= origin(token, self._table)
        return entry


def alternatives(listed: AnswerToken, table: TokenBytes) -> list[dict[str, Any]]:
    """The most likely tokens in its place, best first."""
    top = () if listed.token.logprobs is None else listed.token.logprobs.top
    return [
        {"id": token_id, "text": text_of(token_id, table), "logprob": logprob, "special": not table[token_id]}
        for token_id, logprob in top
    ]


def prefill(token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs | None], table: TokenBytes) -> list[Any]:
    """A prompt's tokens; the first has no logprob."""
    return [
        {"id": token_id, "text": text_of(token_id, table), "logprob": None if known is None else known.logprob}
        for token_id, known in zip(token_ids, logprobs, strict=True)
    ]


def text_of(token_id: int, table: TokenBytes) -> str:
    """A token's text by itself; U+FFFD for a part of a character."""
    data = table[token_id]
    return data.decode(errors="replace") if data else table.name(token_id)
