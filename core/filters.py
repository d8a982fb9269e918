"""Ranking a row's tokens, and which of them top-k, top-p and min-p let through.

All three filters keep the best tokens of a row, so with the tokens ranked (highest logit first, ties by
lowest id) what survives is a prefix, and a filter is a number: how many are kept. The filters act in
the order temperature, top-k, top-p (over what top-k left, renormalised), min-p (relative to the best).

On the CPU a row at a time is looked at, and as little of it as the filters need (core/row_filters.py). On other
devices all rows are ranked together, whatever their requests, by one stable sort, or with top-k by one selection:
that needs no word with the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.device_copy import to_device
from core.noise import BLOCK
from core.row_filters import ranked_leaders, survivors_of_row
from core.sampling_params import SamplingParams

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
    last one everything that equals it; but where a mask leaves fewer, those it leaves. On the CPU."""
    ids, values = ranked_leaders(row.numpy(), maxima.numpy(), at_least)
    return torch.from_numpy(ids), torch.from_numpy(values)


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
    ids, scaled = survivors_of_row(rows[0].numpy(), maxima[0].numpy(), params, temperature)
    return Survivors(torch.from_numpy(ids)[None], torch.from_numpy(scaled)[None], torch.tensor([len(ids)]))


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


def scale(logits: Tensor, top: Tensor, temperature: float | Tensor) -> Tensor:
    """(logits - top) / temperature in float64. The maximum is taken off first, so that no temperature
    overflows it; a row of -inf alone stays -inf instead of turning into NaN."""
    return logits.double().sub_(torch.where(top.isneginf(), 0.0, top)).div_(temperature)


def log_mass(logits: Tensor) -> Tensor:
    """log-sum-exp of each row less its maximum, [..., V] -> [...]; the same for a row in any company, which
    torch.logsumexp is not (it splits single rows over threads)."""
    return logits.log_softmax(-1).amax(-1).neg_()
