"""Judging rows for loose verifiers: how undecided the target is, how close the draft comes, and whether the
request's own filters would have let the draft through.

Top-3 entropy is FLy's gate (ICLR 2026), the logit gap CSD's (ACL 2026), the draft's probability beside the whole
row's entropy that of typical acceptance (Medusa, 2024); all see the row as edited, so that penalties, bias
and masks count. Only a maximum, a gather and a log-sum-exp read the whole row, except where the request has
filters or asks for the full entropy.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from core.filters import Survivors, leaders, log_mass, scale, survivors
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams, HybridParams, TypicalParams


def judge(rows: Tensor, maxima: Tensor | None, drafts: Tensor, request: GenerationRequest) -> Tensor:
    """(entropy, probability, gap, survives) of n edited rows, float64 [n, 4].

    rows: float32 [n, V]; drafts: int64 [n]. maxima: block maxima [1, V / 64] where rows are judged one
    at a time (CPU), None where they are judged together without asking the host.
    entropy, probability (the draft's): NaN unless the verifier looks at them; of the full softmax at temperature 0,
    otherwise of the distribution that the token is drawn from. gap: -inf for a masked draft, or one this vocabulary
    lacks. survives: 1 if top-k, top-p and min-p keep the draft, judged at temperature 1 for greedy requests:
    what the user filtered out must not come in through a loosened row.
    """
    sampling, verifier, vocab = request.sampling, request.verifier, rows.shape[1]
    top = rows.amax(-1).double()
    gap = rows.gather(1, drafts.clamp(max=vocab - 1).unsqueeze(1)).squeeze(1).double() - top
    gap = gap.masked_fill(drafts >= vocab, -torch.inf)
    left = survivors(rows, maxima, sampling, sampling.temperature or 1.0) if sampling.has_filters else None
    survives = torch.ones_like(gap) if left is None else left.contains(drafts).double()
    entropy = probability = torch.full_like(gap, torch.nan)
    drawn_from, temperature = None if sampling.greedy else left, sampling.temperature or 1.0
    if isinstance(verifier, FlyParams | HybridParams):
        entropy = _entropy(rows, maxima, drawn_from, temperature, verifier.entropy)
    elif isinstance(verifier, TypicalParams):
        p = _distribution(rows, drawn_from, temperature)
        entropy = _nats(p)
        probability = _share(p, drawn_from, drafts)
    return torch.stack([entropy, probability, gap, survives], 1)


def _entropy(
    rows: Tensor, maxima: Tensor | None, left: Survivors | None, temperature: float, kind: Literal["top3", "full"]
) -> Tensor:
    """Entropy of n rows, float64 [n]; of `left` where filters cut the distribution."""
    if kind == "full":
        return _nats(_distribution(rows, left, temperature)) / math.log(rows.shape[1])
    if left is None:
        return _nats(_top3(rows, maxima, temperature))
    p = _distribution(rows, left, temperature)
    return _nats(p.topk(min(3, p.shape[1])).values)


def _nats(p: Tensor) -> Tensor:
    """-sum p ln p of each row of probabilities, which need not be whole distributions: [n, M] -> [n]."""
    nats: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return nats


def _distribution(rows: Tensor, left: Survivors | None, temperature: float) -> Tensor:
    """n rows' probabilities, float64: by id [n, V], or where filters cut them, in the order of `left` [n, M]."""
    if left is None:
        return scale(rows, rows.amax(-1, keepdim=True).double(), temperature).softmax(-1)
    weights = left.scaled.exp().masked_fill_(~left.alive, 0.0)
    return weights / weights.sum(-1, keepdim=True)


def _share(p: Tensor, left: Survivors | None, drafts: Tensor) -> Tensor:
    """The drafts' part of `_distribution`, float64 [n]; 0 for one that the filters or this vocabulary lack."""
    if left is not None:
        return (p * (left.ids == drafts.unsqueeze(1))).sum(-1)
    share = p.gather(1, drafts.clamp(max=p.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return share.masked_fill_(drafts >= p.shape[1], 0.0)


def _top3(rows: Tensor, maxima: Tensor | None, temperature: float) -> Tensor:
    """The 3 largest probabilities of each row's softmax at a temperature, float64 [n, 3]."""
    width = min(3, rows.shape[1])
    best = rows.topk(width).values if maxima is None else leaders(rows[0], maxima[0], width)[1][None, :width]
    top = best[:, :1].double()
    # At temperature 1 the float32 row itself will do: a third of the time for an error of 1e-6.
    mass = log_mass(rows if temperature == 1.0 else scale(rows, top, temperature))
    return (scale(best, top, temperature) - mass.unsqueeze(1)).exp()
