"""Candidates: the tokens that the target ranks highest in a row, for drafting by token recycling."""

import math
from collections.abc import Sequence as Items
from typing import NamedTuple

import torch
from torch import Tensor

from core.filters import block_maxima, leaders, prunes, ranked_rows

NUM_CANDIDATES = 8


class Candidates(NamedTuple):
    """Of one row, best first (ties by lowest id). logits: as edited (penalties, bias, masks), less the best one."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]


def top_tokens(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and logits of each row's likeliest tokens, ranked, both [n, count]; count: at most V."""
    if not prunes(rows):
        return ranked_rows(rows, count)
    ids, values = rows.new_zeros(len(rows), count).long(), rows.new_full((len(rows), count), float("-inf"))
    for index, (row, maxima) in enumerate(zip(rows, block_maxima(rows), strict=True)):
        best, logits = leaders(row, maxima, count)  # fewer where a mask leaves fewer
        left = min(count, len(best))
        ids[index, :left], values[index, :left] = best[:left], logits[:left]
    return ids, values


def pack_candidates(rows: Tensor) -> Tensor:
    """The candidates of n edited rows [n, V] as one table for the copy to the host: ids, then logits less the best,
    float64 [n, 2 * min(NUM_CANDIDATES, V)]."""
    ids, values = top_tokens(rows, min(NUM_CANDIDATES, rows.shape[1]))
    values = values.double()
    return torch.cat([ids.double(), values - values[:, :1]], 1)


def unpack_candidates(table: Items[Items[float]]) -> list[Candidates]:
    """One Candidates a row, without what a mask forbids; of a row of NaN none."""
    found = []
    for row in table:
        half = len(row) // 2
        kept = [(int(token), logit) for token, logit in zip(row[:half], row[half:], strict=True) if logit > -math.inf]
        found.append(Candidates(tuple(token for token, _ in kept), tuple(logit for _, logit in kept)))
    return found
