"""Ragged paged attention, plugged into transformers through its AttentionInterface.

A forward carries rows of many sequences side by side as one batch of one; every attention layer calls
`_attend`, which stores the rows' keys and values in the block cache and hands the queries to the
backend. What a layer needs beyond its tensors travels as the forward's keyword argument `ragged`, so
that two runners never share state. Index tensors and masks are made once per forward, not per layer.

SDPA backend, worked example: block size 4, a segment with context 6 and three rows in blocks [2, 5, 9].
Its rows stand at positions 6, 7, 8 and see keys 0..6, 0..7, 0..8 of the slots 8-11, 20-23, 36:

    mask   0 0 0 0 0 0 0 - -        (0 visible, - minus infinity)
           0 0 0 0 0 0 0 0 -
           0 0 0 0 0 0 0 0 0

With a sliding window of 4 a row sees its own position and the three before: keys from position 3 on
are read at all (row 6 needs 3..6), and the mask hides the lower left corner too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from core.layout import RaggedLayout, Segment
from core.models.kv_cache import KVCache

IMPLEMENTATION = "slipstream_ragged"

# Up to so many rows the query heads that share a key head are folded into the rows, which reads keys once
# per key head; longer chunks would pay for a mask `group` times as large, and are bound by arithmetic anyway.
_FOLD_ROWS = 32


class AttentionBackend(Protocol):
    """Attention of one forward's rows over the block cache; made once per forward.

    query: [rows, heads, head_dim] of the whole flat batch; keys, values: one layer's cache
    [blocks, block_size, kv_heads, head_dim], the rows' own already written. Returns query's shape.
    window: a row sees that many positions, its own included; None for all. A row's result depends on
    its own segment alone.
    """

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """How to make a backend for a forward, and the block size its kernels demand (None: any)."""

    prepare: Callable[[RaggedLayout, torch.dtype, torch.device], AttentionBackend]
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class RaggedContext:
    """One forward's companions of the flat batch. slots: int64 [rows], where each row's KV goes."""

    attention: AttentionBackend
    cache: KVCache
    slots: Tensor


@dataclass(frozen=True, slots=True)
class _Read:
    """How one segment's keys are read: flat cache positions as a slice where its blocks lie side by side,
    else as block ids (int64 [n]) and the slice of their concatenation; and the additive mask, None if
    every row sees every key read."""

    blocks: Tensor | None
    span: slice
    mask: Tensor | None


@dataclass(slots=True)
class SdpaAttention:
    """torch's scaled_dot_product_attention, segment by segment: any device, no padding, no cross-talk."""

    layout: RaggedLayout
    dtype: torch.dtype
    device: torch.device
    _reads: dict[tuple[int | None, int], list[_Read]] = field(default_factory=dict)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        heads, kv_heads = query.shape[1], keys.shape[2]
        reads = self._reads_for(window, heads // kv_heads)
        starts = self.layout.query_starts
        if len(reads) == 1:
            return _attend_segment(query, keys, values, reads[0], scale)
        out = torch.empty_like(query)
        for index, read in enumerate(reads):
            rows = slice(starts[index], starts[index + 1])
            out[rows] = _attend_segment(query[rows], keys, values, read, scale)
        return out

    def _reads_for(self, window: int | None, group: int) -> list[_Read]:
        """Layers of one model share these; a model has at most two kinds of layers (full, windowed)."""
        key = (window, group)
        if key not in self._reads:
            self._reads[key] = [self._read(segment, window, group) for segment in self.layout.segments]
        return self._reads[key]

    def _read(self, segment: Segment, window: int | None, group: int) -> _Read:
        size, rows = self.layout.block_size, len(segment.tokens)
        end = segment.context + rows
        begin = 0 if window is None else max(0, segment.context - window + 1)
        first = begin // size
        blocks = segment.blocks[first : -(-end // size)]
        offset = first * size  # the first position of the blocks read
        mask = _mask(segment.context, rows, begin, end, window, self.dtype, self.device)
        if mask is not None and rows <= _FOLD_ROWS:
            mask = mask.repeat_interleave(group, dim=0)
        if blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            shift = blocks[0] * size - offset
            return _Read(None, slice(begin + shift, end + shift), mask)
        ids = torch.tensor(blocks, dtype=torch.long, device=self.device)
        return _Read(ids, slice(begin - offset, end - offset), mask)


def _mask(
    context: int, rows: int, begin: int, end: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Additive [rows, end - begin]: 0 where visible, minus infinity elsewhere; None if all is visible."""
    if rows == 1:
        return None  # the last position sees all that `begin` left
    positions = torch.arange(context, end, device=device).unsqueeze(1)
    keys = torch.arange(begin, end, device=device)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.zeros(rows, end - begin, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _attend_segment(query: Tensor, keys: Tensor, values: Tensor, read: _Read, scale: float) -> Tensor:
    """query [rows, heads, dim] -> the same shape."""
    rows, heads, dim = query.shape
    kv_heads = keys.shape[2]
    if read.blocks is not None:
        keys, values = keys.index_select(0, read.blocks), values.index_select(0, read.blocks)
    # [keys, kv_heads, dim] -> [1, kv_heads, keys, dim], a view
    k = keys.flatten(0, 1)[read.span].transpose(0, 1).unsqueeze(0)
    v = values.flatten(0, 1)[read.span].transpose(0, 1).unsqueeze(0)
    if rows > _FOLD_ROWS:
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0), k, v, attn_mask=read.mask, scale=scale, enable_gqa=heads != kv_heads
        )
        return out[0].transpose(0, 1)
    # Row r's query heads h*group .. h*group+group-1 share key head h: they become rows r*group .. of it.
    folded = query.view(rows, kv_heads, -1, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim)
    out = functional.scaled_dot_product_attention(folded, k, v, attn_mask=read.mask, scale=scale)
    return out.view(kv_heads, rows, -1, dim).transpose(0, 1).reshape(rows, heads, dim)


BACKENDS: dict[str, BackendSpec] = {"sdpa": BackendSpec(SdpaAttention)}


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    ragged: RaggedContext,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention call: query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim]
    -> [1, rows, heads, dim]. What lands in `_` (dropout, position ids) has no meaning at inference here."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    ragged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), ragged.slots)
    keys, values = ragged.cache.layer(layer)
    out = ragged.attention(query[0].transpose(0, 1), keys, values, scaling, sliding_window)
    return out.unsqueeze(0), None


def _no_mask(**_: Any) -> None:
    """The backend makes its own masks from the layout."""


AttentionInterface.register(IMPLEMENTATION, _attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
