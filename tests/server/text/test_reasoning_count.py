"""Counting the tokens of the reasoning, held against where it ends in the text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.text.answer_parts import Reasoning
from server.text.reasoning import THINK_TAGS, ReasoningSplitter
from server.text.reasoning_count import ReasoningCounter

TAGS = THINK_TAGS[0]
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "é"]), max_size=12)


def count(tokens: list[bytes], opened: bool) -> int:
    counter = ReasoningCounter(TAGS, opened)
    for token in tokens:
        counter.push(token)
    return counter.tokens


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[left:right] for left, right in pairwise(edges)]


@given(PIECES, st.lists(st.integers(0, 100), max_size=20), st.booleans())
def test_tokens_count_up_to_the_one_that_closes_the_reasoning(
    pieces: list[str], places: list[int], opened: bool
) -> None:
    data = "".join(pieces).encode()
    tokens = cut(data, places)
    begins = 0 if opened else data.find(TAGS.opening.encode())
    if (not opened and data[:begins].strip()) or begins < 0:
        assert count(tokens, opened) == 0
        return
    start = begins if opened else begins + len(TAGS.opening)
    found = data.find(TAGS.closing.encode(), start)
    end = len(data) if found < 0 else found + len(TAGS.closing)
    read, expected = 0, 0
    while expected < len(tokens) and (found < 0 or read < end):
        read += len(tokens[expected])
        expected += 1
    assert count(tokens, opened) == expected


@given(PIECES, st.booleans())
def test_an_answer_without_reasoning_counts_none(pieces: list[str], opened: bool) -> None:
    splitter = ReasoningSplitter(TAGS, opened)
    text = "".join(pieces)
    parts = splitter.feed(text) + splitter.finish()
    if any(isinstance(part, Reasoning) for part in parts):
        assert count([piece.encode() for piece in pieces], opened) > 0


def test_tags_and_thoughts_count_and_the_answer_does_not() -> None:
    tokens = [b"<think>", b"a", b"b", b"</think>", b"\n\n", b"yes"]
    assert [count(tokens[:end], False) for end in range(7)] == [0, 1, 2, 3, 4, 4, 4]
    assert count(tokens[1:], True) == 3
    assert count([b" ", *tokens], False) == 5
    assert count([b"no <think>", b"a"], False) == 0
    assert count([b"<thi", b"s"], False) == 0
