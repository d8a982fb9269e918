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

import numpy as np
from numpy.typing import NDArray


class LookupMatch(NamedTuple):
    """tokens: what followed. length: of the suffix that was found, in tokens; 0 where none was."""

    tokens: list[int]
    length: int


class NgramIndex:
    """Append is O(max_ngram), lookup too; memory is at most max_ngram entries per token.

    A text that arrives all at once is taken in at once and entered from its end backwards, piece by piece
    (`catch_up`); what is not entered yet is searched through instead, so that the same is found at every moment.
    """

    def __init__(self, max_ngram: int = 4) -> None:
        """max_ngram: longest n-gram looked up, in tokens; ValueError below 1."""
        if max_ngram < 1:
            raise ValueError(f"max_ngram must be at least 1, got {max_ngram}")
        self.max_ngram = max_ngram
        self._tokens: list[int] = []
        # Tuples rather than packed integers: their hash has no linear structure, which a prompt could
        # be written to exploit. One table suffices, since n-grams of different lengths differ.
        self._latest: dict[tuple[int, ...], int] = {}
        self._behind = 0  # followers before this position are not entered yet
        self._text: NDArray[np.int64] | None = None  # all that was taken in at once, while any of it is behind

    def __len__(self) -> int:
        """Tokens taken in so far."""
        return len(self._tokens)

    @property
    def behind(self) -> int:
        """Tokens taken in but not entered."""
        return self._behind

    @property
    def entered(self) -> int:
        return len(self._tokens) - self._behind

    def append(self, token: int) -> None:
        """Take the next verified token. It is the follower that the n-grams ending before it waited for."""
        self.extend((token,))

    def extend(self, tokens: Iterable[int]) -> None:
        latest, known, longest = self._latest, self._tokens, self.max_ngram
        for token in tokens:
            end, recent = len(known), tuple(known[-longest:])
            while recent:
                latest[recent] = end
                recent = recent[1:]
            known.append(token)

    def begin_with(self, tokens: Sequence[int]) -> None:
        """Take in a whole text, 30,000 tokens in about a millisecond; `catch_up` enters it. ValueError unless it is
        the first."""
        if self._tokens:
            raise ValueError("the index has a text already")
        self._tokens.extend(tokens)
        self._behind = len(self._tokens)
        self._text = np.array(self._tokens, dtype=np.int64)

    def catch_up(self, count: int) -> None:
        """Enter the last `count` of the tokens that are behind; 1,000 take about a millisecond."""
        for end in range(self._behind - 1, max(0, self._behind - count) - 1, -1):
            recent = tuple(self._tokens[max(0, end - self.max_ngram) : end])
            for start in range(len(recent)):
                self._latest.setdefault(recent[start:], end)
        self._behind = max(0, self._behind - count)
        if not self._behind:
            self._text = None

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
        suffix = tuple(self._tokens[-self.max_ngram :])
        if suffix_extra:
            suffix = (*suffix, *suffix_extra[-self.max_ngram :])[-self.max_ngram :]
        while suffix:
            follower = self._latest.get(suffix)
            if follower is None and self._behind:
                follower = self._search(suffix)
            if follower is not None:
                return LookupMatch(self._tokens[follower : follower + max_tokens], len(suffix))
            suffix = suffix[1:]
        return LookupMatch([], 0)

    def _search(self, ngram: tuple[int, ...]) -> int | None:
        """The position behind the latest occurrence of the n-gram whose follower is among those not entered."""
        text, last = self._text, self._behind - len(ngram)  # the latest start whose follower is behind
        if text is None or last < 1:
            return None
        starts = np.flatnonzero(text[:last] == ngram[0])
        for offset, token in enumerate(ngram[1:], 1):
            starts = starts[text[starts + offset] == token]
        return int(starts[-1]) + len(ngram) if len(starts) else None
