"""How sure a model is of the tokens it chose: the probability of each under the distribution it was taken from."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from core.device_copy import to_device
from core.filters import block_maxima, log_mass, prunes, scale, survivors, survivors_of_rows
from core.penalties import RowGroup
from core.race import SCORES_AT_ONCE
from core.sampling_params import SamplingParams

_Measure = Callable[[Tensor, Tensor, Sequence[SamplingParams]], Tensor]


def chosen_probabilities(logits: Tensor, groups: Iterable[RowGroup], tokens: Tensor) -> Tensor:
    """Probability of the chosen token of every row of the groups, float64 [R] on the logits' device; 1 elsewhere.

    logits: float32 [R, V], as `choose` has edited them; tokens: int64 [R], what it chose. At temperature 0 the
    distribution is the softmax, above it what temperature and filters make of it. A row without any gives 0. A row's
    figure is the same in any company. Nothing waits for the device.
    """
    found = torch.ones(logits.shape[0], dtype=torch.float64, device=logits.device)
    rows = [(row, g.sequence.request.sampling) for g in groups for row in range(g.start, g.start + g.count)]
    step = max(1, SCORES_AT_ONCE // logits.shape[1])
    for kind in (_greedy, _free, _filtered):
        mine = [entry for entry in rows if _kind(entry[1]) is kind]
        for begin in range(0, len(mine), step):
            part = mine[begin : begin + step]
            index = to_device([row for row, _ in part], torch.int64, logits.device)
            found[index] = kind(logits[index], tokens[index].unsqueeze(1), [params for _, params in part])
    return found.nan_to_num_(0.0)


def _kind(params: SamplingParams) -> _Measure:
    if params.greedy:
        return _greedy
    return _filtered if params.has_filters else _free


def _greedy(rows: Tensor, tokens: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    return log_mass(rows).neg_().exp_().double()


def _free(rows: Tensor, tokens: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    temperatures = to_device([one.temperature for one in params], torch.float64, rows.device).unsqueeze(1)
    scaled = scale(rows, rows.amax(-1, keepdim=True).double(), temperatures)
    return (scaled.gather(1, tokens).squeeze(1) - log_mass(scaled)).exp_()


def _filtered(rows: Tensor, tokens: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    if not prunes(rows):
        left = survivors_of_rows(rows, params)
        return _share(left.ids, left.scaled.exp() * left.alive, tokens)
    found = []
    for index, one in enumerate(params):
        row = rows[index : index + 1]
        left = survivors(row, block_maxima(row), one, one.temperature)
        found.append(_share(left.ids, left.scaled.exp() * left.alive, tokens[index : index + 1]))
    return torch.cat(found)


def _share(ids: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
    """The token's part of each row's weights: ids and weights [n, M], tokens [n, 1]."""
    return (weights * (ids == tokens)).sum(-1) / weights.sum(-1)
