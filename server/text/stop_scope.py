"""StopScope: which bytes of an answer are words for the user. Stop strings act on those alone, not on what the model
thinks, nor on a call's markup and arguments.

Only a marker makes a call known from its first byte on; a call that nothing announces counts as words.
"""

from server.text.reasoning import ReasoningTags
from server.text.stop_strings import StopAutomaton
from server.text.tool_calls import CallParser
from server.text.tool_spans import START, SpanRules

_BLANKS = b" \t\r\n"


class StopScope:
    """One answer's. Agrees with ReasoningSplitter and, where calls are well formed, with CallParser.

    opened: whether the answer begins inside the reasoning.
    """

    def __init__(self, form: type[CallParser] | None, reasoning: ReasoningTags | None, opened: bool) -> None:
        self._calls = SpanRules.of(form, None, bare=False) if form is not None else None
        self._call = START
        self._markers = form.markers if form is not None else ()
        self._opening = reasoning.opening.encode() if reasoning is not None and not opened else b""
        self._start = b""  # as long as it may become the opening tag
        self._closing = StopAutomaton([reasoning.closing.encode()]) if reasoning is not None else None
        self._thinking = opened and reasoning is not None
        self._node = 0  # of the closing tag's automaton

    @property
    def hidden(self) -> bool:
        """Whether the next byte belongs to markup."""
        return self._thinking or self._call.inside

    def passes(self, data: bytes) -> bool:
        """Whether these bytes are words and change nothing, so that they need not be taken one by one."""
        calls, call = self._calls, self._call
        if self._opening or self.hidden:
            return False
        return calls is None or (not call.node and calls.automaton.first_bytes.isdisjoint(data))

    def step(self, byte: int) -> int:
        """Take the next byte. How many bytes, it among them, turn out to be a tag that opens markup; mostly 0."""
        if self._thinking:
            self._think(byte)
            return 0
        if self._opening and (tag := self._begin(byte)):
            return tag
        if self._calls is None:
            return 0
        hidden = self._call.inside
        self._call = self._calls.advance(self._call, bytes((byte,)))
        return max(map(len, self._markers)) if self._call.inside and not hidden else 0

    def _think(self, byte: int) -> None:
        assert self._closing is not None
        self._node = self._closing.step(self._node, byte)
        if self._closing.match[self._node]:
            self._thinking = False

    def _begin(self, byte: int) -> int:
        opening = self._opening
        self._start = (self._start + bytes((byte,))).lstrip(_BLANKS)
        if self._start == opening or not opening.startswith(self._start):
            self._thinking = self._start == opening
            self._opening = b""
        return len(opening) if self._thinking else 0
