"""TokenStore: a frozen collection of texts, asked what followed the longest suffix of another text in them.

REST (He et al. 2023) keeps its datastore as a suffix array. Here the array is of contexts: every place of the texts
that has a follower, sorted by the tokens before it read backwards, the nearest first. A suffix is then looked up in one
walk, token by token from its end, each of which narrows the range of places that agree with it.

    text       5 6 7 | 9 6 7 8 | 6 7 8
    places     behind: 5, 9, 5 6, 6, 9 6, 6 7 (of the second text), 6 7 (of the third)
    find       .. 1 6 7: all places whose context ends in 7, then in 6 7, two of them; none in 1 6 7
    followers  8 and 8, then nothing: proposes 8

The sort goes `max_match` tokens deep, for that is how far a suffix is looked up, by doubling: contexts sorted by their
nearest n tokens are sorted by 2n if ties go by the rank of what lies n tokens before.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.ngram_index import LookupMatch

MAX_MATCH = 16  # tokens of the longest suffix looked up
LEAST_MATCH = 2  # a single token says too little
MOST_PLACES = 256  # whose followers are counted, where more agree: evenly drawn from all

_END = -1  # before, between and behind the texts; no token, so nothing matches across


class _Places(NamedTuple):
    """Which entries of the sorted places agree with a suffix of `length` tokens: begin .. end - 1."""

    begin: int
    end: int
    length: int


class TokenStore:
    """Building sorts 1,000,000 tokens in about a second; finding takes some 0.1 ms. 8 bytes a token, for good."""

    def __init__(self, texts: Iterable[Sequence[int] | NDArray[np.int32]], max_match: int = MAX_MATCH) -> None:
        """max_match: longest suffix looked up; ValueError below LEAST_MATCH. A negative id ends a text."""
        if max_match < LEAST_MATCH:
            raise ValueError(f"max_match must be at least {LEAST_MATCH}, got {max_match}")
        self.max_match = max_match
        parts = [np.array([_END], dtype=np.int32)]
        for text in texts:
            parts += [np.asarray(text, dtype=np.int32), parts[0]]
        self._text = np.concatenate(parts)
        np.maximum(self._text, _END, out=self._text)
        self._places = _sorted_places(self._text, max_match)
        ends = self._text[self._places]
        self._starts = np.searchsorted(ends, np.arange(int(ends.max(initial=_END)) + 2))
        self._tokens, self._order = self._text.data, self._places.data  # read faster, one by one

    def __len__(self) -> int:
        """Tokens of all texts."""
        return int((self._text >= 0).sum())

    @cached_property
    def digest(self) -> str:
        """Of the texts: equal for equal ones in the same order, on any machine."""
        return hashlib.sha256(self._text.astype("<i4", copy=False).tobytes()).hexdigest()[:24]

    def find(self, suffix: Sequence[int], count: int) -> LookupMatch:
        """What most often follows the longest suffix that stands in the texts, at most `count` tokens; nothing for
        one shorter than LEAST_MATCH.

        Token by token: the most frequent follower of all places that agree so far (ties by lowest id), of which those
        that went on otherwise leave.
        """
        found = self._longest(suffix)
        if count < 1 or found.length < LEAST_MATCH:
            return LookupMatch([], 0)
        size = found.end - found.begin
        chosen = np.arange(size) if size <= MOST_PLACES else np.arange(MOST_PLACES) * size // MOST_PLACES
        places = self._places[found.begin + chosen].astype(np.int64)
        tokens: list[int] = []
        while len(tokens) < count:
            places += 1
            followers = self._text[places]
            if len(places) == 1:
                return LookupMatch(tokens + self._until_end(int(places[0]), count - len(tokens)), found.length)
            there = followers >= 0
            if not there.any():
                break
            values, counts = np.unique(followers[there], return_counts=True)
            best = int(values[counts.argmax()])
            tokens.append(best)
            places = places[followers == best]
        return LookupMatch(tokens, found.length)

    def _until_end(self, place: int, count: int) -> list[int]:
        """The tokens from this place on, at most `count`, up to the end of its text."""
        tokens: list[int] = self._text[place : place + count].tolist()
        return tokens[: tokens.index(_END)] if _END in tokens else tokens

    def _longest(self, suffix: Sequence[int]) -> _Places:
        begin, end, length = 0, len(self._places), 0
        tokens, order = self._tokens, self._order
        while length < min(self.max_match, len(suffix)):
            token = suffix[-1 - length]
            if length == 0:
                if not 0 <= token < len(self._starts) - 1:
                    break
                left, right = int(self._starts[token]), int(self._starts[token + 1])
            else:
                back = length

                def before(place: int, back: int = back) -> int:
                    return tokens[order[place] - back]

                left = bisect_left(range(len(order)), token, begin, end, key=before)
                right = bisect_right(range(len(order)), token, left, end, key=before)
            if left == right:
                break
            begin, end, length = left, right, length + 1
        return _Places(begin, end, length)


def _sorted_places(text: NDArray[np.int32], depth: int) -> NDArray[np.int32]:
    """Positions of tokens that have a follower, sorted by the `depth` tokens that end there, the nearest first."""
    rank = text.astype(np.int64) + 1
    known = 1
    order = np.argsort(rank, kind="stable")
    while known < depth:
        before = np.zeros_like(rank)
        before[known:] = rank[:-known]
        keys = rank * (int(rank.max()) + 1) + before
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        rank = np.empty_like(rank)
        rank[order] = np.cumsum(np.append(False, ranked[1:] != ranked[:-1]))
        known *= 2
    order = order[(text[order] >= 0) & (text[np.minimum(order + 1, len(text) - 1)] >= 0)]
    return order.astype(np.int32)
