"""Ranking one row's best tokens and counting which of them top-k, top-p and min-p let through, on the CPU.

In numpy: a row's few hundred candidates take it a microsecond an operation, torch several.

A row is never sorted as a whole if that can be helped. With the maximum of every 64 ids known (`block_maxima`), the 3
(or 50, or 64) best blocks contain the 3 best tokens. The whole row's mass, which top-p is a part of, is summed in
single precision; only where its error could decide, or the leaders do not reach p, it is summed in double and a
histogram of it tells how deep to go.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from core.noise import BLOCK
from core.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

_FIRST_LOOK = 64
_BINS_PER_NAT, _NUM_BINS = 8, 1024
_LANE = np.arange(BLOCK)
# 87 nats down, where the weight underflows, its exponent is wrong by 1.6e-5 at most; sums of 64 by 4e-6, exp by 1e-6.
_ROUGHNESS = 5e-5


class Kept(NamedTuple):
    """What the filters leave of one row, at least one token. ids: int64 [n]; scaled: (logit - the row's maximum) /
    temperature, float64 [n]."""

    ids: Ids
    scaled: Floats


def ranked_leaders(row: Floats, maxima: Floats, at_least: int) -> tuple[Ids, Floats]:
    """Ids and logits of the row's best tokens, ranked: at_least of them (or all there are), and with the last one
    everything that equals it; but where a mask leaves fewer, those it leaves. row: [V]; maxima: [ceil(V / 64)]."""
    if at_least >= len(maxima):
        return _ranked(np.arange(len(row)), row)
    floor = np.partition(maxima, len(maxima) - at_least)[len(maxima) - at_least]
    if np.isneginf(floor) and maxima.max() > floor:  # lest a grammar's short list come with all that it forbids
        floor = row[row > floor].min()
    # "not below" rather than "at or above": a row of NaN then comes out whole instead of empty.
    ids = (np.flatnonzero(~(maxima < floor))[:, None] * BLOCK + _LANE).ravel()
    ids = ids[: np.searchsorted(ids, len(row))]
    values = row[ids]
    reached = ~(values < floor)
    return _ranked(ids[reached], values[reached])


def survivors_of_row(row: Floats, maxima: Floats, params: SamplingParams, temperature: float) -> Kept:
    """By ranking no more of one row, float32 [V] with block maxima [ceil(V / 64)], than its filters need."""
    top = maxima.max()
    ids, values = ranked_leaders(row, maxima, params.top_k or _FIRST_LOOK)
    scaled = _scale(values, top, temperature)
    weights = np.exp(scaled)
    if params.top_k or len(ids) == len(row):
        weights = weights[: params.top_k or None]
        kept: int | None = _count(weights, float(weights.sum()), params)
    else:
        kept = _count_leaders(row, top, temperature, weights, params)
    if kept is not None:
        return Kept(ids[:kept], scaled[:kept])
    everything = _scale(row, top, temperature)
    ids = _all_surviving(everything, params)
    return Kept(ids, everything[ids])


def _ranked(ids: Ids, values: Floats) -> tuple[Ids, Floats]:
    order = np.argsort(-values, kind="stable")  # ids ascend, so stable ranks ties by id
    return ids[order], values[order]


def _scale(logits: Floats, top: Any, temperature: float) -> Floats:
    """As filters.scale: float64, the maximum first."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (logits.astype(np.float64) - (0.0 if np.isneginf(top) else float(top))) / temperature


def _count_leaders(row: Floats, top: Any, temperature: float, weights: Floats, params: SamplingParams) -> int | None:
    """How many of a row's leaders survive top-p and min-p; None if tokens behind them may, or if the row's mass would
    have to be known more exactly. weights: of the leaders, ranked."""
    reaches = bool(weights[-1] < params.min_p)
    if params.top_p == 1.0:
        return _count(weights, 0.0, params) if reaches else None
    mass = _rough_mass(row, top, temperature)
    if not math.isfinite(mass):
        return None
    low, high = mass * (1 - _ROUGHNESS), mass * (1 + _ROUGHNESS)
    if not (reaches or weights.sum() >= params.top_p * high):
        return None
    fewest, most = _count(weights, low, params), _count(weights, high, params)
    return fewest if fewest == most else None


def _rough_mass(row: Floats, top: Any, temperature: float) -> float:
    """Sum of exp((logit - top) / temperature) over a row [V], with a relative error below _ROUGHNESS. NaN for a row
    that holds one or nothing above -inf, and at temperatures so low that single precision lacks their inverse."""
    with np.errstate(all="ignore"):
        weights = row - top
        if temperature != 1.0:
            weights *= np.float32(1.0 / temperature)
        np.exp(weights, out=weights)
        whole = len(row) // BLOCK * BLOCK
        by_lane = np.add.reduce(weights[:whole].reshape(BLOCK, -1), 0)
        return float(by_lane.sum(dtype=np.float64)) + float(weights[whole:].sum(dtype=np.float64))


def _count(weights: Floats, mass: float, params: SamplingParams) -> int:
    """How many of the ranked weights survive top-p of this mass, and min-p."""
    kept = len(weights)
    if params.top_p < 1.0:
        kept = min(kept, int(np.count_nonzero(weights.cumsum() < params.top_p * mass)) + 1)
    if params.min_p > 0.0:
        kept = min(kept, int(np.count_nonzero(weights >= params.min_p)))
    return max(kept, 1)


def _all_surviving(scaled: Floats, params: SamplingParams) -> Ids:
    """The ids, ascending, that top-p and min-p leave of a whole row [V], ranking only where top-p cuts.

    A histogram of the mass over the scaled logits tells the bin in which the sum from the top reaches p;
    better bins survive whole, and of that one the best tokens needed.
    """
    mass = np.exp(scaled)
    keep, wanted = np.ones(len(scaled), dtype=np.bool_), params.top_p * mass.sum()
    if params.top_p < 1.0:
        # Bin i: from -i / 8 down to -(i + 1) / 8; what is no number counts as best, as it does in a sort.
        bins = np.nan_to_num(np.minimum(scaled * -_BINS_PER_NAT, _NUM_BINS - 1), nan=0.0).astype(np.int64)
        sums = np.bincount(bins, mass, _NUM_BINS).cumsum()
        cut = min(int(np.count_nonzero(sums < wanted)), _NUM_BINS - 1)
        above = float(sums[cut - 1]) if cut else 0.0
        inside = np.flatnonzero(bins == cut)
        ranked, _ = _ranked(inside, scaled[inside])
        needed = int(np.count_nonzero(mass[ranked].cumsum() + above < wanted)) + 1
        keep = bins < cut
        keep[ranked[:needed]] = True
    if params.min_p > 0.0:
        keep &= ~(mass < params.min_p)
    return np.flatnonzero(keep)
