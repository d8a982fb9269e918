"""Judging rows for loose verifiers: how undecided the target is, how close the draft comes, and whether the
request's own filters would have let the draft through.

Top-3 entropy is FLy's gate (ICLR 2026), the logit gap CSD's (ACL 2026); both see the row as edited, so
that penalties, bias and masks count. Only a maximum, a gather and a log-sum-exp read the whole row,
except where the request has filters or asks for the full entropy.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from core.filters import Survivors, leaders, log_mass, scale, survivors
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams, HybridParams


def judge(rows: Tensor, maxima: Tensor | None, drafts: Tensor, request: GenerationRequest) -> Tensor:
    """(entropy, gap, survives) of n edited rows, float64 [n, 3].

    rows: float32 [n, V]; drafts: int64 [n]. maxima: block maxima [1, V / 64] where rows are judged one
    at a time (CPU), None where they are judged together without asking the host.
    entropy: NaN unless the verifier looks at it; of the full softmax at temperature 0, otherwise of the
    distribution that the token is drawn from. gap: -inf for a masked draft, or one this vocabulary lacks.
    survives: 1 if top-k, top-p and min-p keep the draft, judged at temperature 1 for greedy requests:
    what the user filtered out must not come in through a loosened row.
    """
    sampling, vocab = request.sampling, rows.shape[1]
    top = rows.amax(-1).double()
    gap = rows.gather(1, drafts.clamp(max=vocab - 1).unsqueeze(1)).squeeze(1).double() - top
    gap = gap.masked_fill(drafts >= vocab, -torch.inf)
    left = survivors(rows, maxima, sampling, sampling.temperature or 1.0) if sampling.has_filters else None
    survives = torch.ones_like(gap) if left is None else left.contains(drafts).double()
    if isinstance(request.verifier, FlyParams | HybridParams):
        drawn_from = None if sampling.greedy else left
        entropy = _entropy(rows, maxima, drawn_from, sampling.temperature or 1.0, request.verifier.entropy)
    else:
        entropy = torch.full_like(gap, torch.nan)
    return torch.stack([entropy, gap, survives], 1)


def _entropy(
    rows: Tensor, maxima: Tensor | None, left: Survivors | None, temperature: float, kind: Literal["top3", "full"]
) -> Tensor:
    """Entropy of n rows, float64 [n]; of `left` where filters cut the distribution."""
    if left is not None:
        weights = left.scaled.exp().masked_fill_(~left.alive, 0.0)
        p = weights / weights.sum(-1, keepdim=True)
        p = p if kind == "full" else p.topk(min(3, p.shape[1])).values
    elif kind == "full":
        p = scale(rows, rows.amax(-1, keepdim=True).double(), temperature).softmax(-1)
    else:
        p = _top3(rows, maxima, temperature)
    nats: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return nats / math.log(rows.shape[1]) if kind == "full" else nats


def _top3(rows: Tensor, maxima: Tensor | None, temperature: float) -> Tensor:
    """The 3 largest probabilities of each row's softmax at a temperature, float64 [n, 3]."""
    width = min(3, rows.shape[1])
    best = rows.topk(width).values if maxima is None else leaders(rows[0], maxima[0], width)[1][None, :width]
    top = best[:, :1].double()
    # At temperature 1 the float32 row itself will do: a third of the time for an error of 1e-6.
    mass = log_mass(rows if temperature == 1.0 else scale(rows, top, temperature))
    return (scale(best, top, temperature) - mass.unsqueeze(1)).exp()
