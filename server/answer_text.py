"""AnswerText: one sequence's delivered tokens as text, cut and released exactly as they may be shown.

Bytes pass two gates on their way out. The first keeps back what may still become a stop string, the second
what may still become a character:

    tokens -> bytes -> [may begin a stop string] -> [may be half a character] -> text

A token that completes a stop string may end the answer, or, before min_tokens, may not; the engine says which when
the answer finishes, and until then its bytes stay behind the first gate.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from core.provenance import FinishReason
from core.sequence import CommittedToken
from server.text.detokenizer import Detokenizer
from server.text.stop_strings import Scope, StopAutomaton, StopCursor
from server.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """A token to be listed in logprobs. text_offset: characters of the answer before it."""

    token: CommittedToken
    text_offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be shown now: text, and the tokens whose text has been shown in full by the end of it."""

    text: str
    tokens: tuple[AnswerToken, ...]


class AnswerText:
    """Fed with every delivered token of one sequence, in order. keep_tokens: whether pieces list tokens. show_stop:
    whether the stop string that ends the answer is shown, so that the text is cut behind it. scope: what of the
    answer stop strings act on; the engine must have one like it."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        stops: StopAutomaton | None,
        keep_tokens: bool,
        show_stop: bool = False,
        scope: Scope | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._cursor = StopCursor(stops, scope) if stops is not None else None
        self._keep_tokens = keep_tokens
        self._show_stop = show_stop
        self._held = bytearray()  # behind the first gate
        self._seen = 0  # bytes of all tokens
        self._shown = Detokenizer()
        # Offsets count the characters of all tokens, also of those that are still held back.
        self._offsets = Detokenizer()
        self._characters = 0
        self._waiting: deque[tuple[int, AnswerToken]] = deque()  # (end in bytes, token)

    def push(self, tokens: Iterable[CommittedToken]) -> Piece:
        for token in tokens:
            data = self._token_bytes[token.token_id]
            if self._cursor is not None:
                self._cursor.feed(data)
            self._held += data
            self._seen += len(data)
            if self._keep_tokens:
                self._waiting.append((self._seen, AnswerToken(token, self._characters)))
                self._characters += len(self._offsets.feed(data))
        return self._release(self._safe())

    def finish(self, reason: FinishReason) -> Piece:
        """The rest. Text is cut where a stop string begins (or ends, if it is shown) if that is what ended the
        answer; its tokens stay listed, as they were generated."""
        match = self._cursor.match if self._cursor is not None else None
        cut = match is not None and reason is FinishReason.STOP
        text = self._take(match[self._show_stop] if match is not None and cut else self._seen)
        text += self._shown.close(more_follows=cut)
        tokens = tuple(token for _, token in self._waiting)
        self._waiting.clear()
        return Piece(text, tokens)

    def _safe(self) -> int:
        """How far, in bytes, the answer is certain to be shown."""
        if self._cursor is None:
            return self._seen
        match = self._cursor.match
        safe = self._seen if self._show_stop else self._seen - self._cursor.held
        return safe if match is None else min(safe, match[self._show_stop])

    def _take(self, end: int) -> str:
        """Let the first gate open up to byte `end` of the answer."""
        count = max(0, end - (self._seen - len(self._held)))
        data = bytes(self._held[:count])
        del self._held[:count]
        return self._shown.feed(data)

    def _release(self, end: int) -> Piece:
        text = self._take(end)
        tokens: list[AnswerToken] = []
        while self._waiting and self._waiting[0][0] <= end:
            tokens.append(self._waiting.popleft()[1])
        return Piece(text, tuple(tokens))
