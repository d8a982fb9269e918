"""Choosing tokens: one rule for every row, on the target's logits and on a draft's alike.

`choose` edits the rows (core/penalties.py, core/masking.py), then takes the argmax at temperature 0 and otherwise the
winner of the exponential race (core/race.py) among the tokens that the filters leave
(core/filters.py). A row's token is a function of the row, its request and its position, never of the
rest of the batch: whatever sums over a row does so row by row, and everything else is exact.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from core.device_copy import to_device
from core.filters import argmax, block_maxima, prunes
from core.masking import mask_logits
from core.noise import NoiseCache, Race
from core.penalties import RowGroup, edit_logits
from core.race import race_everything, race_filtered, race_pruned, race_survivors

__all__ = ["Choices", "RowGroup", "choose"]


@dataclass(frozen=True, slots=True)
class Choices:
    """tokens: the chosen token of every row of logits, int64 [R], on the logits' device; rows that no
    group covers hold nothing meaningful."""

    tokens: Tensor

    def of(self, group: RowGroup) -> list[int]:
        return [int(token) for token in self.tokens[group.rows].tolist()]


def choose(logits: Tensor, groups: Items[RowGroup], noise: NoiseCache) -> Choices:
    """Choose a token for every row of every group.

    logits: float32 [R, V], contiguous; penalties, bias and masks are applied to it in place. noise: this
    round's, shared by all calls whose races must agree.
    """
    for group in groups:
        edit_logits(logits, group)
    mask_logits(logits, groups)
    maxima = block_maxima(logits) if prunes(logits) else None
    sampled = [group for group in groups if not group.sequence.request.sampling.greedy]
    if len(sampled) < len(groups):
        tokens = argmax(logits, maxima)
    else:
        tokens = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    if sampled:
        _race(logits, maxima, sampled, tokens, noise)
    return Choices(tokens)


def _race(logits: Tensor, maxima: Tensor | None, groups: list[RowGroup], tokens: Tensor, noise: NoiseCache) -> None:
    """Put the winners of the groups' rows into tokens, int64 [R]."""
    entries = [
        (row, (group.sequence.request.sampling, position))
        for group in groups
        for row, position in enumerate(group.positions, group.start)
    ]
    noise.draw([race for _, race in entries], logits.shape[1], logits.device)  # in one go, for all that follows
    if maxima is None:
        _race_together(logits, entries, tokens, noise)
    else:
        _race_apart(logits, maxima, entries, tokens, noise)


def _race_together(logits: Tensor, entries: list[tuple[int, Race]], tokens: Tensor, noise: NoiseCache) -> None:
    """On a device, where every call costs more than what it does: rows by how they race, whosever they are."""
    free = [entry for entry in entries if not entry[1][0].has_filters]
    selected = [entry for entry in entries if entry[1][0].top_k]
    ranked = [entry for entry in entries if entry[1][0].has_filters and not entry[1][0].top_k]
    for some, race in ((free, race_everything), (selected, race_filtered), (ranked, race_filtered)):
        if some:
            rows = to_device([row for row, _ in some], torch.int64, logits.device)
            tokens[rows] = race(logits, rows, [race for _, race in some], noise)


def _race_apart(
    logits: Tensor, maxima: Tensor, entries: list[tuple[int, Race]], tokens: Tensor, noise: NoiseCache
) -> None:
    """On the CPU: few tokens of each row."""
    free = [entry for entry in entries if not entry[1][0].has_filters]
    if free:
        rows = torch.tensor([row for row, _ in free])
        tokens[rows] = race_pruned(logits, maxima, rows, [race for _, race in free], noise)
    for row, race in entries:
        if race[0].has_filters:
            one = slice(row, row + 1)
            tokens[one] = race_survivors(logits[one], maxima[one], race, noise)
