"""Batched SDPA: attention of many short segments in a few calls of torch's own kernels, on any device.

Segments of similar length form a group; a group's keys are gathered into one padded batch [sequences, keys], and one
masked call serves them all. Which segments share a group is a matter of cost: joining one pads keys, opening another
launches kernels. Long pieces of prompts, bound by arithmetic, go alone (`attention_sdpa.py`).

Nobody sees padding: a padded key repeats the segment's own last key (never a slot that may hold anything) under a
mask of minus infinity, so its weight is exactly 0; a padded row repeats the segment's own first row and is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from core.device_copy import to_device
from core.layout import RaggedLayout, Segment
from core.models.attention_sdpa import SdpaAttention, capped_attention
from core.models.uniform_batch import UniformBatch, UniformShape

LONGEST_ROWS = 32
"""Segments with more rows go alone: they would pad their neighbours' rows."""

MOST_KEYS = 1 << 16
"""Positions a group gathers at most, unless one segment alone has more: what is gathered takes memory of its own."""

_GROUP_COST = 4096  # opening a group costs as much as reading so many keys, about: a dozen kernels to launch
_ALIGNED = 16  # keys of a group are a multiple of it, which CUDA's kernels want of a mask's rows


@dataclass(slots=True)
class UniformAttention:
    """SDPA of a rectangle of rows over the block cache; query is [sequences * rows, heads, head_dim], in its order.
    A call may be recorded in a CUDA graph: whatever it needs it computes on the device."""

    batch: UniformBatch
    dtype: torch.dtype
    _reads: dict[tuple[int | None, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        heads, dim = query.shape[1:]
        kv_heads, rows = keys.shape[2], self.batch.num_rows
        slots, mask = self._read(window, heads // kv_heads)
        count = self.batch.ends.shape[0]
        # [sequences, keys, kv_heads, dim] -> [sequences, kv_heads, keys, dim], a view
        k, v = (
            kept.flatten(0, 1).index_select(0, slots).view(count, -1, kv_heads, dim).transpose(1, 2)
            for kept in (keys, values)
        )
        # The query heads that share a key head become rows of it, so that its keys are read once.
        q = query.reshape(count, rows, kv_heads, -1, dim).transpose(1, 2).reshape(count, kv_heads, -1, dim)
        if softcap is not None:
            out = capped_attention(q, k, v, mask, scale, softcap)
        else:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.view(count, kv_heads, rows, -1, dim).transpose(1, 2).reshape(count * rows, heads, dim)

    def _read(self, window: int | None, group: int) -> tuple[Tensor, Tensor]:
        """Flat cache positions [sequences * keys] to read, and the additive mask [sequences, 1, rows * group, keys].
        Layers of one kind share them."""
        key = (window, group)
        if key not in self._reads:
            self._reads[key] = self._make_read(window, group)
        return self._reads[key]

    def _make_read(self, window: int | None, group: int) -> tuple[Tensor, Tensor]:
        batch, size = self.batch, self.batch.block_size
        width = _aligned(batch.num_keys)
        keys = torch.arange(width, device=batch.ends.device).unsqueeze(0)
        if window is not None:
            # Read from what a segment's first row sees on.
            keys = keys[:, : _aligned(window - 1 + batch.num_rows)]
            keys = keys + (batch.positions[:, :1] - (window - 1)).clamp_(min=0)
        there = keys.minimum(batch.ends.unsqueeze(1) - 1)
        slots = batch.table.gather(1, there // size) * size + there % size
        own = batch.positions.unsqueeze(2)
        hidden = keys.unsqueeze(1) > own
        if window is not None:
            hidden |= keys.unsqueeze(1) <= own - window
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device)
        mask = mask.masked_fill_(hidden, float("-inf")).repeat_interleave(group, dim=1)
        return slots.flatten(), mask.unsqueeze(1)


@dataclass(slots=True)
class BatchedSdpa:
    """One forward's groups and long segments. groups: each one's flat query rows (int64 [sequences * rows]) and
    attention; alone: each long segment's rows and attention. order: where in their results each row of the flat
    batch is found (int64 [rows])."""

    groups: list[tuple[Tensor, UniformAttention]]
    alone: list[tuple[slice, SdpaAttention]]
    order: Tensor

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        parts = [
            attention(query.index_select(0, rows), keys, values, scale, window, softcap)
            for rows, attention in self.groups
        ]
        parts += [attention(query[rows], keys, values, scale, window, softcap) for rows, attention in self.alone]
        return torch.cat(parts).index_select(0, self.order)


Prepared = BatchedSdpa | UniformAttention | SdpaAttention


def prepare_sdpa(layout: RaggedLayout, dtype: torch.dtype, device: torch.device) -> Prepared:
    """Batched on a device that launches kernels; on a CPU segment by segment, which reads keys where they lie and
    was as fast or faster with two to sixteen sequences."""
    return SdpaAttention(layout, dtype, device) if device.type == "cpu" else prepare_batched(layout, dtype, device)


def prepare_uniform_sdpa(batch: UniformBatch, dtype: torch.dtype) -> UniformAttention:
    return UniformAttention(batch, dtype)


def prepare_batched(layout: RaggedLayout, dtype: torch.dtype, device: torch.device) -> Prepared:
    """Index tensors of a layout, in one copy to the device; segment by segment where nothing can be shared."""
    counts = [len(segment.tokens) for segment in layout.segments]
    short = [index for index, count in enumerate(counts) if count <= LONGEST_ROWS]
    if len(short) < 2:
        return SdpaAttention(layout, dtype, device)
    plans = [_Plan.of(layout, sorted(members)) for members in group_segments(layout.segments, short)]
    long = [index for index, count in enumerate(counts) if count > LONGEST_ROWS]
    rows = [row for plan in plans for row in plan.rows] + [row for index in long for row in _rows_of(layout, index)]
    places = {row: place for place, row in enumerate(rows)}  # of its last, since padding stands before what it repeats
    order = [places[row] for row in range(layout.num_rows)]
    packed = [value for plan in plans for value in (*plan.rows, *plan.values)]
    there = to_device(packed + order, torch.int64, device)
    groups, at = [], 0
    for plan in plans:
        values = there[at + len(plan.rows) :][: len(plan.values)]
        batch = plan.shape.batch(values, layout.block_size, plan.num_keys)
        groups.append((there[at : at + len(plan.rows)], UniformAttention(batch, dtype)))
        at += len(plan.rows) + len(plan.values)
    if len(groups) == 1 and not long and rows == list(range(layout.num_rows)):
        return groups[0][1]  # as many rows of each: the flat batch is the rectangle
    return BatchedSdpa(groups, [_alone(layout, index, dtype, device) for index in long], there[at:])


@dataclass(frozen=True, slots=True)
class _Plan:
    """A group before it reaches the device. rows: flat query row of each of the rectangle's."""

    shape: UniformShape
    num_keys: int
    rows: list[int]
    values: list[int]

    @classmethod
    def of(cls, layout: RaggedLayout, members: Sequence[int]) -> "_Plan":
        segments = [layout.segments[index] for index in members]
        width, num_keys = max(len(segment.tokens) for segment in segments), max(map(_end, segments))
        shape = UniformShape(len(segments), width, -(-num_keys // layout.block_size))
        rows = []
        for flat in (_rows_of(layout, index) for index in members):
            rows += [flat.start] * (width - len(flat)) + list(flat)
        return cls(shape, num_keys, rows, shape.values(segments, layout.block_size))


def _alone(layout: RaggedLayout, index: int, dtype: torch.dtype, device: torch.device) -> tuple[slice, SdpaAttention]:
    rows, only = _rows_of(layout, index), RaggedLayout.build([layout.segments[index]], layout.block_size)
    return slice(rows.start, rows.stop), SdpaAttention(only, dtype, device)


def _rows_of(layout: RaggedLayout, index: int) -> range:
    return range(layout.query_starts[index], layout.query_starts[index + 1])


def group_segments(segments: Sequence[Segment], chosen: Sequence[int]) -> Iterator[list[int]]:
    """The chosen segments' indices in groups, the shortest first: no group pads more keys than a group of its own
    would cost, nor gathers more than MOST_KEYS."""
    group: list[int] = []
    there = 0
    for index in sorted(chosen, key=lambda index: _end(segments[index])):
        end = _end(segments[index])
        padded = end * (len(group) + 1)
        if group and (padded - there - end > _GROUP_COST or padded > MOST_KEYS):
            yield group
            group, there = [], 0
        group.append(index)
        there += end
    yield group


def _end(segment: Segment) -> int:
    return segment.context + len(segment.tokens)


def _aligned(keys: int) -> int:
    return -(-keys // _ALIGNED) * _ALIGNED
