"""Ranking a row's tokens, and which of them top-k, top-p and min-p let through.

All three filters keep the best tokens of a row, so with the tokens ranked (highest logit first, ties by
lowest id) what survives is a prefix, and a filter is a number: how many are kept. The filters act in
the order temperature, top-k, top-p (over what top-k left, renormalised), min-p (relative to the best).

On the CPU a row is never sorted as a whole if that can be helped. `block_maxima` reads it once, the
maximum of every 64 ids; the 3 (or 50, or 64) best blocks contain the 3 best tokens, so everything else
looks at a few hundred numbers. Where that does not suffice for top-p, a histogram of the row's mass
tells how deep to go. On other devices all rows are ranked together, whatever their requests, by one
stable sort, or with top-k by one selection: that needs no word with the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.device_copy import to_device
from core.noise import BLOCK
from core.sampling_params import SamplingParams

_FIRST_LOOK = 64
_BINS_PER_NAT, _NUM_BINS = 8, 1024
_ULPS = 1e-9  # more than sums of a row in another order can differ by
_LANE = torch.arange(BLOCK)


def prunes(logits: Tensor) -> bool:
    """Whether to look at few tokens row by row, asking which, or at all of them together, asking nothing."""
    return logits.device.type == "cpu"


def block_maxima(logits: Tensor) -> Tensor:
    """The maximum of every 64 consecutive columns, the last block perhaps short: [..., ceil(V / 64)]."""
    vocab = logits.shape[-1]
    whole = vocab // BLOCK
    maxima = logits[..., : whole * BLOCK].view(*logits.shape[:-1], whole, BLOCK).amax(-1)
    if vocab % BLOCK:
        maxima = torch.cat([maxima, logits[..., whole * BLOCK :].amax(-1, keepdim=True)], -1)
    return maxima


def block_columns(blocks: Tensor, vocab: int) -> Tensor:
    """The token ids of each of the given blocks, int64 [b, 64]; a short last block repeats the last id."""
    return (blocks.unsqueeze(1) * BLOCK + _LANE.to(blocks.device)).clamp_(max=vocab - 1)


def argmax(logits: Tensor, maxima: Tensor | None) -> Tensor:
    """The best token of every row, ties by lowest id, int64 [R]. With block maxima the row is not read again."""
    if maxima is None:
        return logits.argmax(-1)
    columns = block_columns(maxima.argmax(-1), logits.shape[1])
    inside = logits.gather(1, columns).argmax(-1, keepdim=True)
    return columns.gather(1, inside).squeeze(1)


def leaders(row: Tensor, maxima: Tensor, at_least: int) -> tuple[Tensor, Tensor]:
    """Ids and logits of the row's best tokens, ranked: at_least of them (or all there are), and with the
    last one everything that equals it; but where a mask leaves fewer, those it leaves."""
    if at_least >= len(maxima):
        values, ids = row.sort(descending=True, stable=True)
        return ids, values
    floor = maxima.topk(at_least).values[-1]
    if floor.isneginf() and maxima.max() > floor:  # lest a grammar's short list come with all that it forbids
        floor = row[row > floor].amin()
    # "not below" rather than "at or above": a row of NaN then comes out whole instead of empty.
    ids = ((maxima < floor).logical_not_().nonzero() * BLOCK + _LANE).flatten()
    ids = ids[ids < len(row)]
    ids = ids[(row[ids] < floor).logical_not_()]
    return _ranked(ids, row[ids])


def _ranked(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    values, order = values.sort(descending=True, stable=True)  # ids ascend, so stable ranks ties by id
    return ids[order], values


@dataclass(frozen=True, slots=True)
class Survivors:
    """What the filters leave of n rows, in one padded table; a row's survivors are its first `kept` entries.

    ids: int64 [n, M]. scaled: (logit - the row's maximum) / temperature, float64 [n, M], at most 0.
    kept: int64 [n], at least 1.
    """

    ids: Tensor
    scaled: Tensor
    kept: Tensor

    @property
    def alive(self) -> Tensor:
        """Which entries survive, bool [n, M]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.kept[:, None]

    def contains(self, token_ids: Tensor) -> Tensor:
        """Whether each row's token (int64 [n]) survives, bool [n]."""
        return ((self.ids == token_ids[:, None]) & self.alive).any(-1)


def survivors(rows: Tensor, maxima: Tensor | None, params: SamplingParams, temperature: float) -> Survivors:
    """Survivors of n rows [n, V], or with block maxima [1, V / 64] of the one row on the CPU."""
    if maxima is None:
        return survivors_of_rows(rows, [replace(params, temperature=temperature)] * len(rows))
    return _survivors_of_row(rows[0], maxima[0], params, temperature)


def survivors_of_rows(logits: Tensor, params: Sequence[SamplingParams]) -> Survivors:
    """Survivors of n rows [n, V], each under its own filters and temperature (which is not 0); never waits for the
    device. The table is as wide as the largest top-k, or the vocabulary if a row has none.

    A row's total is the end of its running sum, in which neighbours' wider tables change nothing.
    """
    vocab = logits.shape[1]
    bounds = [min(one.top_k or vocab, vocab) for one in params]
    numbers = [[one.temperature, bound, one.top_p, one.min_p] for one, bound in zip(params, bounds, strict=True)]
    table = to_device(numbers, torch.float64, logits.device)
    temperature, top_k, top_p, min_p = table.unsqueeze(-1).unbind(1)
    ids, values = ranked_rows(logits, max(bounds))
    scaled = scale(values, values[:, :1].double(), temperature)
    weights = scaled.exp()
    weights.masked_fill_(torch.arange(weights.shape[1], device=logits.device) >= top_k, 0.0)
    mass = weights.cumsum(-1)
    reached_after = (mass < top_p * mass[:, -1:]).sum(-1, keepdim=True) + 1
    kept = torch.where(top_p < 1.0, torch.minimum(reached_after, top_k), top_k)
    kept = torch.minimum(kept, (weights >= min_p).sum(-1, keepdim=True))
    return Survivors(ids, scaled, kept.squeeze(1).long().clamp_(min=1))


def ranked_rows(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Ids and logits of each row's best tokens, ranked, both [n, width]; without waiting for the device.

    `topk` alone leaves open which of equal tokens it takes. So it ranks integers, no two of which are equal: the
    logit's bits, turned so that they order as the numbers do, and behind them the id, lowest first.
    """
    vocab = logits.shape[1]
    if width >= vocab:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return ids, values
    bits = (logits + 0.0).view(torch.int32)  # adding makes +0 of -0, its equal
    ordered = bits.bitwise_xor((bits >> 31).bitwise_and_(0x7FFFFFFF)).long().bitwise_left_shift_(32)
    ids = ordered.add_(torch.arange(vocab - 1, -1, -1, device=logits.device)).topk(width).indices
    return ids, logits.gather(1, ids)


def _survivors_of_row(row: Tensor, maxima: Tensor, params: SamplingParams, temperature: float) -> Survivors:
    """By ranking no more of one row [V] than its filters need."""
    top = maxima.max().double()
    ids, values = leaders(row, maxima, params.top_k or _FIRST_LOOK)
    scaled = scale(values, top, temperature)
    weights = scaled.exp()
    total = weights.sum()
    if not params.top_k and len(ids) < len(row):
        reaches = params.min_p > 0.0 and bool(weights[-1] < params.min_p)
        if params.top_p < 1.0 or not reaches:
            everything = scale(row, top, temperature)
            mass = everything.exp()
            total = mass.sum()
            reaches |= params.top_p < 1.0 and not bool(weights.sum() < params.top_p * total * (1 + _ULPS))
            if not reaches:
                ids = _surviving(everything, mass, total, params)
                return Survivors(ids[None], everything[ids][None], torch.tensor([len(ids)]))
    kept = _count_kept(weights, total, params)
    return Survivors(ids[None], scaled[None], kept.reshape(1))


def scale(logits: Tensor, top: Tensor, temperature: float | Tensor) -> Tensor:
    """(logits - top) / temperature in float64. The maximum is taken off first, so that no temperature
    overflows it; a row of -inf alone stays -inf instead of turning into NaN."""
    return logits.double().sub_(torch.where(top.isneginf(), 0.0, top)).div_(temperature)


def _surviving(scaled: Tensor, mass: Tensor, total: Tensor, params: SamplingParams) -> Tensor:
    """The ids, ascending, that top-p and min-p leave of a whole row [V], ranking only where top-p cuts.

    A histogram of the mass over the scaled logits tells the bin in which the sum from the top reaches p;
    better bins survive whole, and of that one the best tokens needed.
    """
    keep = torch.ones_like(scaled, dtype=torch.bool)
    if params.top_p < 1.0:
        bins = (scaled * -_BINS_PER_NAT).clamp_(max=_NUM_BINS - 1).long()  # bin i: from -i / 8 down to -(i + 1) / 8
        sums = bins.bincount(mass, _NUM_BINS).cumsum(0)
        cut = min(int((sums < params.top_p * total).sum()), _NUM_BINS - 1)
        above = float(sums[cut - 1]) if cut else 0.0
        inside = (bins == cut).nonzero().flatten()
        ranked, _ = _ranked(inside, scaled[inside])
        needed = int((mass[ranked].cumsum(0) + above < params.top_p * total).sum()) + 1
        keep = bins < cut
        keep[ranked[:needed]] = True
    if params.min_p > 0.0:
        keep &= (mass < params.min_p).logical_not_()
    return keep.nonzero().flatten()


def _count_kept(weights: Tensor, total: Tensor, params: SamplingParams) -> Tensor:
    """How many of the ranked weights [..., M] survive, int64 [...]; total: the row's whole mass [...]."""
    if params.top_k:
        weights = weights[..., : params.top_k]
        total = weights.sum(-1)
    kept = torch.full_like(total, weights.shape[-1], dtype=torch.int64)
    if params.top_p < 1.0:
        reached_after = (weights.cumsum(-1) < (params.top_p * total).unsqueeze(-1)).sum(-1) + 1
        kept = torch.minimum(kept, reached_after)
    if params.min_p > 0.0:
        kept = torch.minimum(kept, (weights >= params.min_p).sum(-1))
    return kept.clamp_(min=1)


def log_mass(logits: Tensor) -> Tensor:
    """log-sum-exp of each row less its maximum, [..., V] -> [...]; the same for a row in any company, which
    torch.logsumexp is not (it splits single rows over threads)."""
    return logits.log_softmax(-1).amax(-1).neg_()
