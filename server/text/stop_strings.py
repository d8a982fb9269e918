"""Stop strings over token bytes: one pass, constant work per byte, however many strings there are.

An Aho-Corasick automaton is built once per request. Its state after some bytes is the longest suffix of them that
begins a stop string, which answers both questions: does a stop string end here (commit asks, on the worker thread),
and how many trailing bytes may still become one and must not be sent yet (streaming asks, on the event loop).
Which string wins: the one that ends first; of those ending at the same byte, the longest.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from server.text.token_bytes import TokenBytes


class StopAutomaton:
    """Immutable once built, so that any number of cursors, on any thread, can walk it.

    Worked example, stops "ab" and "b": states 0 = "", 1 = "a", 2 = "ab", 3 = "b"; fail links 2 -> 3, others -> 0;
    longest match ending at a state: 2 -> 2 bytes ("ab"), 3 -> 1 byte ("b").
    """

    def __init__(self, stops: Iterable[bytes]) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.depth = [0]
        self.match = [0]  # bytes of the longest stop string that ends at the state, 0 for none
        for stop in stops:
            if not stop:
                raise ValueError("a stop string must not be empty")
            self._insert(stop)
        self.fail = self._link()
        self.first_bytes = frozenset(self.edges[0])

    def _insert(self, stop: bytes) -> None:
        state = 0
        for byte in stop:
            following = self.edges[state].get(byte)
            if following is None:
                following = len(self.edges)
                self.edges[state][byte] = following
                self.edges.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = following
        self.match[state] = len(stop)

    def _link(self) -> list[int]:
        fail = [0] * len(self.edges)
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            # Parents first: the state behind the fail link is shorter, so its own match is final by now.
            self.match[state] = self.match[state] or self.match[fail[state]]
            for byte, child in self.edges[state].items():
                back = fail[state]
                while back and byte not in self.edges[back]:
                    back = fail[back]
                fail[child] = self.edges[back].get(byte, 0)
                queue.append(child)
        return fail

    def step(self, state: int, byte: int) -> int:
        edges = self.edges
        while byte not in edges[state]:
            if not state:
                return 0
            state = self.fail[state]
        return edges[state][byte]


class Scope(Protocol):
    """Which bytes stop strings act on; stateful, one object for each walk. See stop_scope.py."""

    @property
    def hidden(self) -> bool: ...
    def passes(self, data: bytes) -> bool: ...
    def step(self, byte: int) -> int: ...


class StopCursor:
    """One walk through an answer. `match`: (start, end) of a stop string that ends inside the newest piece, as
    byte offsets from the start of the answer, or None. scope: None for all of the answer."""

    def __init__(self, automaton: StopAutomaton, scope: Scope | None = None) -> None:
        self._automaton = automaton
        self._scope = scope
        self._state = 0
        self.position = 0  # bytes seen
        self.match: tuple[int, int] | None = None

    def feed(self, data: bytes) -> bool:
        """Take the next piece; True if a stop string ends inside it. Goes on after a match: one that came before
        min_tokens does not end the answer."""
        automaton, scope, state = self._automaton, self._scope, self._state
        self.match = None
        if not state and automaton.first_bytes.isdisjoint(data) and (scope is None or scope.passes(data)):
            self.position += len(data)  # most tokens of most answers
            return False
        for offset, byte in enumerate(data, start=self.position + 1):
            if scope is not None and self._hides(scope, byte, offset):
                state = 0
                continue
            state = automaton.step(state, byte)
            if self.match is None and automaton.match[state]:
                self.match = (offset - automaton.match[state], offset)
        self._state = state
        self.position += len(data)
        return self.match is not None

    def _hides(self, scope: Scope, byte: int, offset: int) -> bool:
        """Whether a byte belongs to markup. The tag that opens it does so too, in hindsight."""
        hidden = scope.hidden
        tag = scope.step(byte)
        if tag and self.match is not None and self.match[1] > offset - tag:
            self.match = None
        return hidden or tag > 0

    @property
    def held(self) -> int:
        """How many trailing bytes may still be the beginning of a stop string."""
        return self._automaton.depth[self._state]


class StopStrings:
    """core.sequence.StopCondition over the bytes of the delivered tokens; used by the thread that commits."""

    def __init__(self, automaton: StopAutomaton, token_bytes: TokenBytes, scope: Scope | None = None) -> None:
        self._cursor = StopCursor(automaton, scope)
        self._token_bytes = token_bytes

    def push(self, token_id: int) -> bool:
        return self._cursor.feed(self._token_bytes[token_id])
