"""How few patterns cover how many rejections: CSD's reason to count pairs at all."""

import numpy as np
from numpy.typing import NDArray

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the patterns, the most frequent first


def coverage(counts: NDArray[np.int64], shares: tuple[float, ...] = SHARES) -> list[tuple[float, float]]:
    """(share of patterns, share of rejections) points; the papers' point is (0.2, 0.69). counts: int64 [N]; none, no
    points."""
    if not counts.size:
        return []
    summed = np.cumsum(np.sort(counts)[::-1])
    return [(share, float(summed[max(1, round(share * counts.size)) - 1] / summed[-1])) for share in shares]


def known_often(counts: NDArray[np.int64], least: int) -> tuple[int, float]:
    """Patterns that occur at least so often, and the share of all rejections that are of them: what csd may loosen at
    that frequency_threshold, gates aside."""
    often = counts[counts >= least]
    return int(often.size), float(often.sum() / counts.sum()) if counts.size else 0.0
