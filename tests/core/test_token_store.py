"""What most often followed the longest suffix, in texts that do not change."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ngram_index import LookupMatch
from core.token_store import LEAST_MATCH, MOST_PLACES, TokenStore
from tests.tiny import random_prompt

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=25), max_size=6)


def slowly(texts: list[list[int]], suffix: list[int], count: int, max_match: int) -> LookupMatch:
    for size in range(min(max_match, len(suffix)), LEAST_MATCH - 1, -1):
        behind = [
            text[start + size :]
            for text in texts
            for start in range(len(text) - size)
            if text[start : start + size] == suffix[-size:]
        ]
        if behind:
            tokens: list[int] = []
            while len(tokens) < count and any(len(rest) > len(tokens) for rest in behind):
                votes = Counter(rest[len(tokens)] for rest in behind if len(rest) > len(tokens))
                best = min(votes, key=lambda token: (-votes[token], token))
                behind = [rest for rest in behind if len(rest) > len(tokens) and rest[len(tokens)] == best]
                tokens.append(best)
            return LookupMatch(tokens, size)
    return LookupMatch([], 0)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=12), st.integers(1, 6), st.integers(2, 9))
def test_it_finds_what_looking_through_all_texts_finds(
    texts: list[list[int]], suffix: list[int], count: int, max_match: int
) -> None:
    store = TokenStore(texts, max_match)
    assert store.find(suffix, count) == slowly(texts, suffix, count, max_match)
    assert len(store) == sum(map(len, texts))


@given(TEXTS, st.data())
def test_a_suffix_out_of_its_texts_is_found_as_long_as_it_is(texts: list[list[int]], data: st.DataObject) -> None:
    longest = max(texts, key=len, default=[])
    if len(longest) > LEAST_MATCH:
        end = data.draw(st.integers(LEAST_MATCH, len(longest) - 1))
        start = data.draw(st.integers(0, end - LEAST_MATCH))
        found = TokenStore(texts).find(longest[start:end], 3)
        assert found.length == min(end - start, 16)
        assert found.tokens


def test_nothing_matches_or_goes_on_across_texts() -> None:
    store = TokenStore([[1, 2, 3], [4, 5, 6, 7]])
    assert store.find([3, 4], 5) == LookupMatch([], 0)
    assert store.find([1, 2], 5) == LookupMatch([3], 2)
    assert store.find([3, 4, 5], 5) == LookupMatch([6, 7], 2)


def test_a_negative_id_ends_a_text() -> None:
    store = TokenStore([np.array([1, 2, 3, -7, 4, 5, 6], dtype=np.int32)])
    assert store.find([2, 3], 5) == store.find([3, 4], 5) == LookupMatch([], 0)
    assert store.find([4, 5], 5) == LookupMatch([6], 2)


def test_of_very_many_places_a_fair_part_is_asked() -> None:
    texts = [[1, 2, 3 + (place % 4 == 0)] for place in range(40 * MOST_PLACES)]
    assert TokenStore(texts).find([1, 2], 1) == LookupMatch([3], 2)


def test_long_texts_that_repeat_themselves_are_sorted_far_enough() -> None:
    text = [1] * 3000
    assert TokenStore([text]).find([1] * 20, 4) == LookupMatch([1] * 4, 16)
    long = random_prompt(3000, seed=1)
    assert TokenStore([long * 2]).find(long[:40], 30) == LookupMatch(long[40:70], 16)


def test_an_empty_store_and_hopeless_limits_find_nothing() -> None:
    assert TokenStore([]).find([1, 2, 3], 4) == TokenStore([[5]]).find([5, 5], 4) == LookupMatch([], 0)
    assert TokenStore([[1, 2, 3]]).find([1, 2], 0) == TokenStore([[1, 2, 3]]).find([], 3) == LookupMatch([], 0)
    with pytest.raises(ValueError, match="max_match must be at least 2, got 1"):
        TokenStore([], 1)


def test_its_digest_is_the_texts() -> None:
    texts = [[5, 6, 7], [9, 6, 7, 8]]
    same = [np.array([5, 6, 7], dtype=np.int32), [9, 6, 7, 8]]
    assert TokenStore(texts).digest == TokenStore(same).digest
    others = ([[5, 6, 7], [9, 6, 7]], [[5, 6, 7, 9], [6, 7, 8]], [[9, 6, 7, 8], [5, 6, 7]], [])
    assert len({TokenStore(each).digest for each in (texts, *others)}) == 5
