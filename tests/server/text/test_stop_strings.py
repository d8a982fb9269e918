"""Stop strings against the slow obvious search: decode everything so far after every token, look for every string."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.stop_strings import StopAutomaton, StopCursor, StopStrings
from server.text.token_bytes import TokenBytes

letters = st.sampled_from(["a", "b", "é"])
words = st.lists(letters, min_size=1, max_size=4).map(lambda parts: "".join(parts).encode())
tokens = st.lists(st.lists(st.sampled_from(list("abé".encode())), max_size=5).map(bytes), max_size=12)


def slow_match(stops: list[bytes], data: bytes, known: int) -> tuple[int, int] | None:
    """Of all occurrences that end behind byte `known`: the smallest end, then the longest."""
    found = [
        (end, -len(stop), end - len(stop))
        for stop in stops
        for end in range(max(known + 1, len(stop)), len(data) + 1)
        if data[end - len(stop) : end] == stop
    ]
    if not found:
        return None
    end, _, start = min(found)
    return start, end


def slow_held(stops: list[bytes], data: bytes) -> int:
    return max((n for stop in stops for n in range(1, len(stop) + 1) if data.endswith(stop[:n])), default=0)


@given(st.lists(words, min_size=1, max_size=5), tokens)
def test_matches_and_held_bytes_are_those_of_the_slow_search(stops: list[bytes], pieces: list[bytes]) -> None:
    cursor, data = StopCursor(StopAutomaton(stops)), b""
    for piece in pieces:
        known, data = len(data), data + piece
        assert cursor.feed(piece) == (slow_match(stops, data, known) is not None)
        assert cursor.match == slow_match(stops, data, known)
        assert cursor.held == slow_held(stops, data)
        assert cursor.position == len(data)


@pytest.mark.parametrize(
    ("stops", "pieces", "match"),
    [
        (["end"], ["the e", "n", "d of"], (4, 7)),  # across tokens
        (["xyz", "ab"], ["a", "bxyz"], (0, 2)),  # the first to be complete wins inside one token
        (["b", "ab"], ["x", "ab"], (1, 3)),  # at the same end the longest does
        (["aab"], ["aaa", "b"], (1, 4)),  # the prefix slides
        (["\n\n"], ["one\n", "\ntwo"], (3, 5)),
        (["界"], ["世", "界"], (3, 6)),  # bytes, not characters
    ],
)
def test_examples(stops: list[str], pieces: list[str], match: tuple[int, int]) -> None:
    cursor = StopCursor(StopAutomaton(stop.encode() for stop in stops))
    assert [cursor.feed(piece.encode()) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert cursor.match == match


def test_a_condition_pushes_token_ids() -> None:
    condition = StopStrings(StopAutomaton([b"stop"]), TokenBytes([b"st", b"op", b""]))
    assert [condition.push(token) for token in (0, 2, 0, 1)] == [False, False, False, True]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopAutomaton([b"a", b""])


def test_work_does_not_grow_with_the_answer() -> None:
    """A search over all text so far would take minutes here."""
    cursor = StopCursor(StopAutomaton([b"a" * 500 + b"b", b"a" * 400 + b"c"]))
    start = time.perf_counter()
    for _ in range(50_000):
        cursor.feed(b"aaaa")
    assert time.perf_counter() - start < 5
    assert cursor.held == 500
