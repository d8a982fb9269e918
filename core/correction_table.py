"""The correction memory's table of (draft token, target token) -> count, as values that never change.

A pair is one int64 key, draft token in the upper half, target token in the lower. Most of a table lies
in two parallel sorted arrays (16 bytes a pair, look-up by bisection in about 1 us); what a few rounds
added lies in a small dict beside them, so that a merge at a round boundary does not copy millions of
pairs. Frozen values make a snapshot free: whoever holds one keeps seeing the table it was taken from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TOKEN_LIMIT = 1 << 31  # token ids lie below it, so that keys are non-negative int64
RECENT_LIMIT = 4096  # pairs beside the arrays before they are folded into them


def pair_key(draft_token: int, target_token: int) -> int:
    """Key of one pair. ValueError for ids outside [0, 2^31)."""
    if not (0 <= draft_token < TOKEN_LIMIT and 0 <= target_token < TOKEN_LIMIT):
        raise ValueError(f"token ids must be in [0, 2^31), got ({draft_token}, {target_token})")
    return draft_token << 32 | target_token


def _no_pairs() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class MemorySnapshot:
    """One proposer's table, frozen.

    keys: int64 [N], strictly ascending. occurrences: int64 [N], all positive. recent: key -> count to
    add to that of the arrays. calibrated_samples, calibrated_tokens: the prompts and the delivered
    tokens behind the counts. A default one is empty.
    """

    keys: NDArray[np.int64] = field(default_factory=_no_pairs, repr=False)
    occurrences: NDArray[np.int64] = field(default_factory=_no_pairs, repr=False)
    recent: Mapping[int, int] = field(default_factory=dict, repr=False)
    calibrated_samples: int = 0
    calibrated_tokens: int = 0

    def count(self, draft_token: int, target_token: int) -> int:
        """How often the target was seen to reject draft_token for target_token; 0 if never."""
        key = draft_token << 32 | target_token
        found = self.recent.get(key, 0) if self.recent else 0
        index = int(self.keys.searchsorted(key))
        if index < self.keys.size and self.keys[index] == key:
            found += int(self.occurrences[index])
        return found

    @property
    def num_pairs(self) -> int:
        """Distinct pairs held."""
        recent = np.fromiter(self.recent.keys(), dtype=np.int64, count=len(self.recent))
        return int(
            self.keys.size
            + recent.size
            - np.count_nonzero(self.keys.searchsorted(recent, "right") - self.keys.searchsorted(recent))
        )

    def add(self, pairs: Mapping[int, int], samples: int, tokens: int, cap: int) -> "MemorySnapshot":
        """The table with `pairs` (key -> count), samples and tokens added.

        Folds once RECENT_LIMIT pairs (or `cap`, if less) lie beside the arrays, and only then trims to
        `cap`: trimming a full table for every new pair would cost a pass over all of it each round.
        """
        recent = dict(self.recent)
        for key, count in pairs.items():
            recent[key] = recent.get(key, 0) + count
        samples, tokens = self.calibrated_samples + samples, self.calibrated_tokens + tokens
        table = MemorySnapshot(self.keys, self.occurrences, recent, samples, tokens)
        return table.fold(cap) if len(recent) > min(RECENT_LIMIT, cap) else table

    def fold(self, cap: int | None = None) -> "MemorySnapshot":
        """The same table with everything in the arrays, and at most `cap` pairs (None: all of them).

        Beyond the cap the least frequent leave first; of equally frequent ones the larger key leaves.
        """
        new_keys = np.fromiter(self.recent.keys(), dtype=np.int64, count=len(self.recent))
        new_counts = np.fromiter(self.recent.values(), dtype=np.int64, count=len(self.recent))
        keys, counts = sum_pairs([(self.keys, self.occurrences), (new_keys, new_counts)])
        if cap is not None and keys.size > cap:
            least = np.partition(counts, keys.size - cap)[keys.size - cap]  # the cap-th largest count
            kept = counts > least
            # Keys ascend, so the first of those that tie with it are the smaller ones.
            kept[np.flatnonzero(counts == least)[: cap - np.count_nonzero(kept)]] = True
            keys, counts = keys[kept], counts[kept]
        return MemorySnapshot(freeze(keys), freeze(counts), {}, self.calibrated_samples, self.calibrated_tokens)

    def at_least(self, least: int) -> "MemorySnapshot":
        """Without the pairs that occur less often."""
        folded = self.fold()
        often = folded.occurrences >= least
        keys, counts = freeze(folded.keys[often]), freeze(folded.occurrences[often])
        return MemorySnapshot(keys, counts, {}, self.calibrated_samples, self.calibrated_tokens)

    def merge(self, other: "MemorySnapshot", cap: int) -> "MemorySnapshot":
        """Both tables' counts, samples and tokens summed, then folded."""
        mine, theirs = self.fold(), other.fold()
        keys, counts = sum_pairs([(mine.keys, mine.occurrences), (theirs.keys, theirs.occurrences)])
        samples = self.calibrated_samples + other.calibrated_samples
        tokens = self.calibrated_tokens + other.calibrated_tokens
        return MemorySnapshot(keys, counts, {}, samples, tokens).fold(cap)


def sum_pairs(
    tables: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge (keys, counts) tables: keys ascending and unique, counts of equal keys summed."""
    parts = list(tables)
    keys = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    order = np.argsort(keys, kind="stable")  # radix-like on runs that are sorted already
    keys, counts = keys[order], counts[order]
    if keys.size == 0:
        return keys, counts
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.add.reduceat(counts, starts)


def freeze(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """The array, made read-only."""
    array.setflags(write=False)
    return array
