"""Log-probabilities to report: the raw log-softmax of the target's rows, whatever was edited or sampled.

They are computed in float32 sums (error about 1e-6) and travel to the host in the evidence's one copy.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from core.device_copy import to_device
from core.filters import block_maxima, leaders, log_mass, prunes, ranked_rows


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Of one row: the draft's (None in the bonus row), the choice's, and the likeliest tokens', best first
    (ties by lowest id)."""

    draft: float | None
    choice: float
    top: tuple[tuple[int, float], ...]


def pack_logprobs(rows: Tensor, drafts: Items[int], choices: Tensor, num_top: int) -> Tensor:
    """What RowLogprobs of n rows hold, as one table for one copy to the host.

    rows: raw logits, float32 [n, V]; drafts: at most n, of the leading rows; choices: int64 [n].
    Returns float64 [n, 2 + 2 * min(num_top, V)]: draft (NaN where none), choice, ids, their values.
    """
    vocab = rows.shape[1]
    best = rows.amax(-1, keepdim=True).double()
    # Row by row on the CPU: a scratch table as large as the logits would cost more in page faults.
    mass = torch.stack([log_mass(row) for row in rows]) if prunes(rows) else log_mass(rows)
    mass = mass.double().unsqueeze(1)
    padded = to_device([*drafts, *[vocab] * (len(rows) - len(drafts))], torch.int64, rows.device)
    asked = torch.stack([padded.clamp(max=vocab - 1), choices], 1)
    columns = [rows.gather(1, asked).double() - best - mass]
    columns[0][:, 0].masked_fill_(padded >= vocab, torch.nan)
    if num_top:
        ids, values = _top(rows, min(num_top, vocab))
        columns += [ids.double(), values.double() - best - mass]
    return torch.cat(columns, 1)


def _top(rows: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """Ids and logits of each row's likeliest tokens, ranked, both [n, num_top]."""
    if not prunes(rows):
        return ranked_rows(rows, num_top)
    found = [leaders(row, maxima, num_top) for row, maxima in zip(rows, block_maxima(rows), strict=True)]
    return torch.stack([ids[:num_top] for ids, _ in found]), torch.stack([values[:num_top] for _, values in found])


def unpack_logprobs(table: list[list[float]]) -> list[RowLogprobs]:
    """`pack_logprobs`' table, on the host, as one RowLogprobs per row."""
    out = []
    for draft, choice, *top in table:
        half = len(top) // 2
        pairs = tuple((int(token), value) for token, value in zip(top[:half], top[half:], strict=True))
        out.append(RowLogprobs(None if draft != draft else draft, choice, pairs))
    return out
