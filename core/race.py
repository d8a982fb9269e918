"""The exponential race: argmax of log p(v) - log E(v), three ways to the same winner.

The winner is an exact sample of the row's processed distribution p. log p may be taken without its
normalising constant, which moves no argmax, so nothing here sums over a row. Scores are float64.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.device_copy import to_device
from core.filters import Survivors, block_columns, scale, survivors, survivors_of_rows
from core.noise import NoiseCache, Race, RaceNoise
from core.sampling_params import SamplingParams

SCORES_AT_ONCE = 1 << 22  # of whole rows on a device: some 40 bytes each while they race, 100 where they are sorted


def race_pruned(logits: Tensor, maxima: Tensor, rows: Tensor, races: Sequence[Race], noise: NoiseCache) -> Tensor:
    """The winners of n unfiltered races, int64 [n], on the CPU: argmax of log p(v) - log E(v) over all tokens.

    rows: int64 [n], which rows of logits [R, V] and of their block maxima [R, V / 64]. A block of 64 ids
    is looked into only if its best logit, joined with its least E, could beat the best score known. On
    average these are at most 64 blocks, whatever the distribution, and the winner is the same.
    """
    vocab, lines = logits.shape[1], torch.arange(len(races))
    noises = noise.draw(races, vocab, logits.device)
    temperatures = torch.tensor([params.temperature for params, _ in races], dtype=torch.float64).unsqueeze(1)
    maxima = maxima[rows]
    tops = maxima.amax(-1, keepdim=True).double()
    bounds = scale(maxima, tops, temperatures).add_(noises.bound)

    def look_into(line: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids and scores of the given blocks of the given races, both [s, 64]."""
        ids = block_columns(block, vocab)
        scores = scale(logits[rows[line].unsqueeze(1), ids], tops[line], temperatures[line])
        return ids, scores.add_(noises.neg_log_exponential(line, ids))

    best = look_into(lines, bounds.argmax(-1))[1].amax(-1, keepdim=True)
    # A logarithm may differ by an ulp between a bound and a score, hence the slack; "not below" keeps
    # every block of a row of NaN, so that even it has a winner.
    line, block = (bounds < best - 1e-9 * (1.0 + best.abs())).logical_not_().nonzero(as_tuple=True)
    ids, scores = look_into(line, block)
    inside = scores.argmax(-1, keepdim=True)
    winners: dict[int, tuple[float, int]] = {}
    candidates = zip(line.tolist(), scores.gather(1, inside).tolist(), ids.gather(1, inside).tolist(), strict=True)
    for race, [score], [token] in candidates:
        if race not in winners or score > winners[race][0]:
            winners[race] = score, token
    return torch.tensor([winners[race][1] for race in range(len(races))])


def race_everything(logits: Tensor, rows: Tensor, races: Sequence[Race], noise: NoiseCache) -> Tensor:
    """The same winners as `race_pruned` by scoring every token, without a word between device and host."""

    def winners(values: Tensor, params: Sequence[SamplingParams], noises: RaceNoise) -> Tensor:
        temperatures = to_device([one.temperature for one in params], torch.float64, values.device).unsqueeze(1)
        scores = scale(values, values.amax(-1, keepdim=True).double(), temperatures)
        lines = torch.arange(len(params), device=values.device)
        ids = torch.arange(values.shape[1], device=values.device).unsqueeze(0)
        return scores.add_(noises.neg_log_exponential(lines, ids)).argmax(-1)

    return _in_parts(logits, rows, races, noise, winners)


def race_filtered(logits: Tensor, rows: Tensor, races: Sequence[Race], noise: NoiseCache) -> Tensor:
    """The winners of n races, int64 [n], each among what its own filters leave (`survivors_of_rows`), without a
    word between device and host. Races with top-k should come apart from those without: the widest counts for all."""

    def winners(values: Tensor, params: Sequence[SamplingParams], noises: RaceNoise) -> Tensor:
        return _best_of(survivors_of_rows(values, params), noises)

    return _in_parts(logits, rows, races, noise, winners)


def _in_parts(
    logits: Tensor,
    rows: Tensor,
    races: Sequence[Race],
    noise: NoiseCache,
    winners: Callable[[Tensor, Sequence[SamplingParams], RaceNoise], Tensor],
) -> Tensor:
    """The winners of a few rows at a time, which bounds the memory this takes and changes nothing else."""
    noises = noise.draw(races, logits.shape[1], logits.device)
    params, step = [params for params, _ in races], max(1, SCORES_AT_ONCE // logits.shape[1])
    parts = [
        winners(logits[rows[begin : begin + step]], params[begin : begin + step], noises.rows(begin, begin + step))
        for begin in range(0, len(races), step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def race_survivors(row: Tensor, maxima: Tensor, race: Race, noise: NoiseCache) -> Tensor:
    """The winner, int64 [1], of one row [1, V] with block maxima [1, V / 64] on the CPU, among what the filters
    leave (`survivors`)."""
    params, _ = race
    left = survivors(row, maxima, params, params.temperature)
    return _best_of(left, noise.draw([race], row.shape[1], row.device))


def _best_of(left: Survivors, noises: RaceNoise) -> Tensor:
    lines = torch.arange(len(left.ids), device=left.ids.device)
    scores = left.scaled + noises.neg_log_exponential(lines, left.ids)
    scores.masked_fill_(~left.alive, -torch.inf)
    return left.ids.gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
