"""An incremental n-gram index over a growing text: where did this suffix stand before, and what followed?

For every n-gram up to `max_ngram` tokens it keeps the position behind its latest occurrence. An n-gram
is entered once its follower is known, so that the text's current end is never a match for itself and
every match has something to propose.

    tokens   5 6 7 5 6          max_ngram 2
    latest   (5,): 4 (6,): 2 (7,): 3 (5,6): 2 (6,7): 3 (7,5): 4
    propose([], 3)    suffix (5,6) was followed from position 2: [7, 5, 6]
    propose([9], 3)   neither (6,9) nor (9,) is known: []
    propose([7], 3)   suffix (6,7) was followed from position 3: [5, 6]
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class LookupMatch(NamedTuple):
    """tokens: what followed. length: of the suffix that was found, in tokens; 0 where none was."""

    tokens: list[int]
    length: int


class NgramIndex:
    """Append is O(max_ngram), lookup too; memory is at most max_ngram entries per token."""

    def __init__(self, max_ngram: int = 4) -> None:
        """max_ngram: longest n-gram looked up, in tokens; ValueError below 1."""
        if max_ngram < 1:
            raise ValueError(f"max_ngram must be at least 1, got {max_ngram}")
        self.max_ngram = max_ngram
        self._tokens: list[int] = []
        # Tuples rather than packed integers: their hash has no linear structure, which a prompt could
        # be written to exploit. One table suffices, since n-grams of different lengths differ.
        self._latest: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        """Tokens taken in so far."""
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Take the next verified token. It is the follower that the n-grams ending before it waited for."""
        end = len(self._tokens)
        recent = tuple(self._tokens[-self.max_ngram :])
        for start in range(len(recent)):
            self._latest[recent[start:]] = end
        self._tokens.append(token)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.append(token)

    def propose(self, suffix_extra: Sequence[int], max_tokens: int) -> list[int]:
        """The tokens of `find`."""
        return self.find(suffix_extra, max_tokens).tokens

    def find(self, suffix_extra: Sequence[int], max_tokens: int) -> LookupMatch:
        """What followed the latest earlier occurrence of the longest known suffix of tokens + suffix_extra.

        suffix_extra: drafts not yet verified; they are part of the suffix, not of the text searched.
        Finds at most max_tokens tokens, fewer where the known text ends, none without a match.
        """
        if max_tokens < 1:
            return LookupMatch([], 0)
        extra = tuple(suffix_extra[-self.max_ngram :])
        suffix = (*self._tokens[-self.max_ngram :], *extra)[-self.max_ngram :]
        for start in range(len(suffix)):
            follower = self._latest.get(suffix[start:])
            if follower is not None:
                return LookupMatch(self._tokens[follower : follower + max_tokens], len(suffix) - start)
        return LookupMatch([], 0)
