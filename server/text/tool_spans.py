"""CallSpans: follows an answer's tokens and tells where a tool call is written, so that no call is ever loosened.

Positions are protected inside a call, and where a draft or the target's own token would begin or continue a tag that
opens or closes one: whether a call is made, and what it says, is then always the target's own decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from server.text.reasoning import ReasoningTags
from server.text.stop_strings import StopAutomaton
from server.text.token_bytes import TokenBytes
from server.text.tool_calls import CallParser

_BLANKS = b" \t\r\n"


class _State(NamedTuple):
    node: int  # of the automaton: what part of a tag the text ends with
    inside: bool
    fresh: bool  # nothing but blanks or a fence so far, so that a brace would begin an unannounced call
    fence: bool  # whether it is a fence
    quoted: bool = False  # inside a string of the call, where a closing tag is a word like any other
    escaped: bool = False  # behind a backslash there
    stuck: bool = False  # unclear what is quoted: the rest counts as a call


START = _State(0, False, True, False)


@dataclass(frozen=True, slots=True)
class SpanRules:
    """What opens and closes a call in one form.

    automaton: over all tags. opening, closing: its nodes at the end of a tag that opens a call, or closes one; any
    other tag ends the reasoning, behind which the answer proper begins. bare: see `of`.
    """

    automaton: StopAutomaton
    opening: frozenset[int]
    closing: frozenset[int]
    bare: bool

    @classmethod
    def of(cls, form: type[CallParser], reasoning: ReasoningTags | None, bare: bool = True) -> "SpanRules":
        """bare: whether calls that nothing announces count, where the form has them."""
        kinds = (form.markers, (form.closing,) if form.closing else (), (reasoning.closing,) if reasoning else ())
        automaton = StopAutomaton(tag.encode() for tags in kinds for tag in tags)
        opening, closing, _ = (frozenset(_walk(automaton, tag.encode()) for tag in tags) for tags in kinds)
        return cls(automaton, opening, closing, bare and form.bare)

    def advance(self, state: _State, data: bytes) -> _State:
        node, inside, fresh, fence, quoted, escaped, stuck = state
        if stuck or (not (node or inside or fresh) and self.automaton.first_bytes.isdisjoint(data)):
            return state
        for byte in data:
            node = self.automaton.step(node, byte)
            if fresh and byte not in _BLANKS:
                inside = inside or (self.bare and byte == ord("{"))
                fence = fresh = self.bare and (byte == ord("`") or (fence and byte in b"json"))
            if inside:
                quoted ^= byte == ord('"') and not escaped
                escaped = quoted and byte == ord("\\") and not escaped
            if not self.automaton.match[node]:
                continue
            if node not in self.closing:
                # The call's own word, or the beginning of what is read from here on, where other quotes count.
                stuck = stuck or quoted
                fresh = fresh if node in self.opening else not inside
                inside = inside or node in self.opening
            elif not quoted:
                # The next call may be as unannounced as this one may have been.
                fresh, inside = self.bare and inside, False
            node = 0
        return _State(node, inside or stuck, fresh, fence, quoted, escaped, stuck)


def _walk(automaton: StopAutomaton, tag: bytes) -> int:
    node = 0
    for byte in tag:
        node = automaton.step(node, byte)
    return node


class CallSpans:
    """core.spans.SpanTracker over the bytes of the delivered tokens, tags included."""

    def __init__(self, rules: SpanRules, token_bytes: TokenBytes) -> None:
        self._rules = rules
        self._token_bytes = token_bytes
        self._state = START

    def push(self, token_id: int) -> None:
        self._state = self._rules.advance(self._state, self._token_bytes[token_id])

    def protected(self, drafts: Sequence[int], choices: Sequence[int]) -> list[bool]:
        flags: list[bool] = []
        state = self._state
        for draft, choice in zip(drafts, choices, strict=False):
            drafted = self._rules.advance(state, self._token_bytes[draft])
            chosen = drafted if choice == draft else self._rules.advance(state, self._token_bytes[choice])
            flags.append(self._busy(state) or self._busy(drafted) or self._busy(chosen))
            state = drafted
        return flags

    def _busy(self, state: _State) -> bool:
        """Inside a call, or at what may become its beginning or its end."""
        return state.inside or state.fence or self._rules.automaton.depth[state.node] > 0
