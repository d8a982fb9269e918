"""The n-gram index against a brute-force search of the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ngram_index import NgramIndex


def slow_propose(tokens: list[int], extra: list[int], max_tokens: int, max_ngram: int) -> list[int]:
    whole = tokens + extra
    for size in range(min(max_ngram, len(whole)), 0, -1):
        suffix = whole[-size:]
        # Latest first; an occurrence needs a known token behind it.
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == suffix:
                return tokens[start + size : start + size + max_tokens]
    return []


def index_of(tokens: list[int], max_ngram: int = 4) -> NgramIndex:
    index = NgramIndex(max_ngram)
    index.extend(tokens)
    return index


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one() -> None:
    assert index_of([1, 2, 3, 8, 9, 3, 7, 1, 2, 3]).propose([], 2) == [8, 9]


def test_of_equal_suffixes_the_most_recent_occurrence_wins() -> None:
    assert index_of([1, 2, 5, 1, 2, 6, 1, 2]).propose([], 1) == [6]


def test_the_current_suffix_is_no_match_for_itself() -> None:
    assert index_of([1, 2, 3]).propose([], 5) == []
    assert index_of([]).propose([], 5) == []
    assert index_of([7]).propose([], 5) == []


def test_an_occurrence_at_the_end_has_nothing_to_propose_and_an_earlier_one_serves() -> None:
    assert index_of([3, 4, 1, 3]).propose([3], 2) == [4, 1]
    assert index_of([1, 2, 3]).propose([3], 2) == []


def test_overlapping_occurrences() -> None:
    assert index_of([5, 5, 5, 5]).propose([], 8) == [5]
    assert index_of([5] * 7).propose([], 8) == [5]
    assert index_of([1, 2] * 4).propose([], 8) == [1, 2]


def test_unverified_drafts_are_in_the_suffix_but_not_in_the_text() -> None:
    index = index_of([1, 2, 3, 4, 9, 1])
    assert index.propose([2], 2) == [3, 4]
    assert index.propose([2, 3, 4], 3) == [9, 1]
    assert index.propose([8, 8], 3) == [], "8 8 is only among the drafts"
    assert len(index) == 6


def test_proposals_are_cut_at_max_tokens_and_at_the_end_of_the_text() -> None:
    index = index_of([1, 2, 3, 4, 1])
    assert index.propose([], 2) == [2, 3]
    assert index.propose([], 99) == [2, 3, 4, 1]
    assert index.propose([], 0) == []
    assert index.propose([], -1) == []


def test_max_ngram_bounds_the_suffix() -> None:
    text = [1, 2, 3, 8, 9, 2, 3, 7, 1, 2, 3]
    assert index_of(text, max_ngram=3).propose([], 1) == [8]
    assert index_of(text, max_ngram=2).propose([], 1) == [7]
    with pytest.raises(ValueError, match="at least 1"):
        NgramIndex(0)


def test_a_proposal_is_a_copy() -> None:
    index = index_of([1, 2, 1])
    index.propose([], 2).append(99)
    assert index.propose([], 9) == [2, 1]


@given(
    tokens=st.lists(st.integers(0, 3), max_size=60),
    extra=st.lists(st.integers(0, 3), max_size=7),
    max_tokens=st.integers(0, 12),
    max_ngram=st.integers(1, 6),
)
def test_equals_brute_force(tokens: list[int], extra: list[int], max_tokens: int, max_ngram: int) -> None:
    assert index_of(tokens, max_ngram).propose(extra, max_tokens) == slow_propose(tokens, extra, max_tokens, max_ngram)


@given(tokens=st.lists(st.integers(0, 2), max_size=40), extra=st.lists(st.integers(0, 2), max_size=3))
def test_equals_brute_force_after_every_append(tokens: list[int], extra: list[int]) -> None:
    index = NgramIndex()
    for end, token in enumerate(tokens):
        index.append(token)
        assert index.propose(extra, 5) == slow_propose(tokens[: end + 1], extra, 5, 4)
    assert len(index) == len(tokens)


@given(
    st.lists(st.integers(0, 4), max_size=40),
    st.lists(st.one_of(st.integers(0, 4), st.just("catch up")), max_size=30),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_a_text_taken_in_at_once_is_found_whole_while_it_is_entered_piece_by_piece(
    first: list[int], then: list[int | str], extra: list[int], max_ngram: int, piece: int
) -> None:
    index, tokens = NgramIndex(max_ngram), list(first)
    index.begin_with(first)
    assert index.behind == len(first)
    for event in then:
        if isinstance(event, int):
            index.append(event)
            tokens.append(event)
        else:
            index.catch_up(piece)
        assert index.propose(extra, 4) == slow_propose(tokens, extra, 4, max_ngram)
    assert index.behind == max(0, len(first) - piece * then.count("catch up"))


def test_only_an_empty_index_takes_in_a_text_at_once() -> None:
    with pytest.raises(ValueError, match="already"):
        index_of([1]).begin_with([2])
