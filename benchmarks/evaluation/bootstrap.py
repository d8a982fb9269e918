"""How sure a recovery is: a paired bootstrap over items.

An item that is drawn brings its scores under both the setting and `off`, so what makes items hard for both cancels.
Several tasks are resampled each by itself, so that their shares stay as they are.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DRAWS, _SEED, _AT_ONCE = 10_000, 0, 500
Pairs = NDArray[np.float64]  # [items, 2]: an item's score under the setting and under off, means over seeds


def recovery(tasks: Sequence[Pairs]) -> float | None:
    """All of the setting's score over all of off's; None if off has none."""
    mine, its = _sums(tasks)
    return mine / its if its > 0 else None


def interval(
    tasks: Sequence[Pairs], share: float = 0.95, draws: int = _DRAWS, seed: int = _SEED
) -> tuple[float, float] | None:
    """The percentile interval of `recovery` that holds such a share of the draws; the same for the same items. Draws in
    which off has no score say nothing. None if none says anything."""
    random = np.random.default_rng(seed)
    found = [_drawn(tasks, min(_AT_ONCE, draws - done), random) for done in range(0, draws, _AT_ONCE)]
    sums = np.concatenate(found)
    sums = sums[sums[:, 1] > 0]
    if not len(sums):
        return None
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def _drawn(tasks: Sequence[Pairs], draws: int, random: np.random.Generator) -> NDArray[np.float64]:
    """[draws, 2]: the sums of so many resamples."""
    sums = np.zeros((draws, 2))
    for pairs in tasks:
        sums += pairs[random.integers(0, len(pairs), (draws, len(pairs)))].sum(axis=1)
    return sums


def _sums(tasks: Sequence[Pairs]) -> tuple[float, float]:
    mine, its = np.concatenate(tasks).sum(axis=0)
    return float(mine), float(its)
