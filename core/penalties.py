"""Penalties, logit bias and min_tokens: what changes a row's logits before a token is chosen.

Every row of a verify block is edited as if the drafts before it had been delivered, and nothing is
remembered: counts move at commit alone, so a rejected draft leaves no trace. Only the columns of
tokens that occurred are read and written; the rest of the row is never touched.

Order, as engines have it: repetition penalty, then frequency and presence, then bias, then masks (which
nothing may undo). The arithmetic is float64, rounded once to the row's float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.device_copy import to_device
from core.sequence import Sequence

_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of logits that belong to one sequence: start .. start + count - 1.

    They are the last `count` of the len(drafts) + 1 rows of the block tokens + drafts, so the last one
    always follows every draft. With 100 tokens and drafts [x, y]: count 3 (a target's verify block) is
    the rows for positions 100, 101, 102, preceded by [], [x], [x, y]; count 1 (a draft model's third
    step) is the row for position 102 alone.
    """

    sequence: Sequence
    start: int
    drafts: list[int]
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.drafts) + 1:
            raise ValueError(f"{self.count} rows cannot end a block of {len(self.drafts)} drafts")

    @property
    def offset(self) -> int:
        """How many drafts precede the group's first row."""
        return len(self.drafts) + 1 - self.count

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.count)

    @property
    def positions(self) -> range:
        """Absolute positions the rows predict."""
        first = len(self.sequence.tokens) + self.offset
        return range(first, first + self.count)


def barred_rows(group: RowGroup) -> int:
    """How many of the group's leading rows come before min_tokens are out, and so may not end the answer."""
    out = group.sequence.output_len + group.offset
    return max(0, min(group.count, group.sequence.request.sampling.min_tokens - out))


def edits(group: RowGroup) -> bool:
    """Whether `edit_logits` or a grammar changes anything in the group's rows."""
    sampling = group.sequence.request.sampling
    if sampling.has_penalties or sampling.logit_bias or group.sequence.grammar is not None:
        return True
    return barred_rows(group) > 0


def edit_logits(logits: Tensor, group: RowGroup) -> None:
    """Apply the group's penalties, bias and min_tokens in place to its rows of logits, float32 [R, V].

    Token ids beyond the row's vocabulary (a draft's may be smaller) are ignored.
    """
    if not edits(group):
        return
    sampling, rows = group.sequence.request.sampling, logits[group.rows]
    if sampling.has_penalties:
        _penalise(rows, group)
    if sampling.logit_bias:
        _add_bias(rows, group)
    masked = barred_rows(group)
    if masked and group.sequence.grammar is None:  # a grammar bars them itself, unless nothing else is left
        ends = [token for token in group.sequence.request.end_token_ids if token < logits.shape[1]]
        rows[:masked].index_fill_(1, to_device(ends, torch.int64, logits.device), -torch.inf)


def _penalise(rows: Tensor, group: RowGroup) -> None:
    """Penalise the prompt's columns, the output's and the drafts', each computed from the untouched rows.

    A token that occurs in several counts as in the last of them, which is written last and knows it all.
    The first two cost no Python per token; only the drafts' counts differ between the rows.
    """
    sequence, (device, vocab) = group.sequence, (rows.device, rows.shape[1])
    prompt_ids = sequence.columns.prompt(device, vocab)
    edited = [(prompt_ids, _repeated(rows, prompt_ids, group))]
    if sequence.output_counts:
        ids, counts = sequence.columns.output(sequence.output_counts, sequence.output_len, device, vocab)
        edited.append((ids, _counted(rows, ids, counts, counts > 0, group)))
    drafts = [token for token in dict.fromkeys(group.drafts) if token < vocab]
    if drafts:
        ids, counts, seen = _draft_columns(group, drafts, device)
        edited.append((ids, _counted(rows, ids, counts, seen, group)))
    for ids, values in edited:
        rows.index_copy_(1, ids, _rounded(values))


def _repeated(rows: Tensor, ids: Tensor, group: RowGroup) -> Tensor:
    """The columns `ids` under the repetition penalty, float64 [rows, m]."""
    penalty = group.sequence.request.sampling.repetition_penalty
    values = rows.index_select(1, ids).double()
    return torch.where(values > 0, values / penalty, values * penalty)


def _counted(rows: Tensor, ids: Tensor, counts: Tensor, seen: Tensor, group: RowGroup) -> Tensor:
    """The columns `ids` under all penalties, float64 [rows, m]. counts: in output and drafts; seen: there or in the
    prompt; both [m] or [rows, m]."""
    sampling = group.sequence.request.sampling
    values = torch.where(seen, _repeated(rows, ids, group), rows.index_select(1, ids).double())
    return values.sub_(sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0).double())


def _draft_columns(group: RowGroup, drafts: list[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of these drafts, int64 [m], and for each row how often each occurred in output and drafts before it,
    float64 [rows, m], and whether it did in prompt, output or those drafts, bool [rows, m]; in one copy."""
    sequence, column = group.sequence, {token: index for index, token in enumerate(drafts)}
    table = torch.tensor([drafts, [sequence.output_counts[token] for token in drafts]], dtype=torch.float64)
    counts = table[1].repeat(group.count, 1)
    for index, token in enumerate(group.drafts):  # precedes the rows from index + 1 on, seen from the block's start
        if token in column:
            counts[max(0, index + 1 - group.offset) :, column[token]] += 1
    in_prompt = torch.tensor([token in sequence.columns.prompt_tokens for token in drafts])
    packed = torch.cat([table[:1], counts, ((counts > 0) | in_prompt).double()])
    packed = packed if device.type == "cpu" else to_device(packed.numpy(), torch.float64, device)
    return packed[0].long(), packed[1 : 1 + group.count], packed[1 + group.count :] > 0


def _add_bias(rows: Tensor, group: RowGroup) -> None:
    bias = {t: b for t, b in group.sequence.request.sampling.logit_bias.items() if t < rows.shape[1]}
    ids = to_device(list(bias), torch.int64, rows.device)
    added = to_device(list(bias.values()), torch.float64, rows.device)
    rows.index_copy_(1, ids, _rounded(rows.index_select(1, ids).double() + added))


def _rounded(values: Tensor) -> Tensor:
    """Float64 to float32; an overflow upwards would make a row's maximum infinite, its distribution undefined."""
    return values.clamp_(max=_FLOAT32_MAX).float()
