"""SDPA backend: ragged paged attention by torch's own kernels, segment by segment, on any device.

Worked example: block size 4, a segment with context 6 and three rows in blocks [2, 5, 9]. Its rows stand
at positions 6, 7, 8 and see keys 0..6, 0..7, 0..8 of the slots 8-11, 20-23, 36:

    mask   0 0 0 0 0 0 0 - -        (0 visible, - minus infinity)
           0 0 0 0 0 0 0 0 -
           0 0 0 0 0 0 0 0 0

With a sliding window of 4 a row sees its own position and the three before: keys from position 3 on
are read at all (row 6 needs 3..6), and the mask hides the lower left corner too.

On a CPU a row's result is the same to the bit in whatever shape of forward it is computed. Its kernels take
rows and keys several at a time and compute what is left over in another order, so where they end would show in
the last bits. Rows are filled up, and keys read beyond the last one with the mask over the rest, to where the
order is the same for all (`_read_end`); the cache holds nothing there that a mask could not hide. Activations
quantised to 8 bits would not forgive those last bits: one that rounds the other way makes a difference that later
layers multiply, until two shapes of the same text agree in the rough only.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from core.device_copy import to_device
from core.layout import RaggedLayout, Segment

# Up to so many rows the query heads that share a key head are folded into the rows, which reads keys once
# per key head; longer chunks would pay for a mask `group` times as large, and are bound by arithmetic anyway.
_FOLD_ROWS = 32

# The widest vector of floats, AVX-512's; and the rows that matrix kernels take together.
_KEY_LANES, _ROW_LANES = 16, 4

# torch's kernel takes keys in pieces of 512; the product inside adds up to 192 of a piece in one go, up to 384 in two
# equal parts, more in parts of 192 and the rest. Lengths between would each have an order of their own.
_PIECE, _ONE_GO, _TWO_GOES = 512, 192, 384


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
    """torch's scaled_dot_product_attention per segment: no padding, no cross-talk. With a soft cap, which
    those kernels lack, the same in plain float32 arithmetic."""

    layout: RaggedLayout
    dtype: torch.dtype
    device: torch.device
    _reads: dict[tuple[int | None, int], list[_Read]] = field(default_factory=dict)

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        heads, kv_heads = query.shape[1], keys.shape[2]
        reads = self._reads_for(window, heads // kv_heads, keys.shape[0])
        starts = self.layout.query_starts
        if len(reads) == 1:
            return _attend_segment(query, keys, values, reads[0], scale, softcap)
        out = torch.empty_like(query)
        for index, read in enumerate(reads):
            rows = slice(starts[index], starts[index + 1])
            out[rows] = _attend_segment(query[rows], keys, values, read, scale, softcap)
        return out

    def _reads_for(self, window: int | None, group: int, num_blocks: int) -> list[_Read]:
        """Layers of one model share these; a model has at most two kinds of layers (full, windowed)."""
        key = (window, group)
        if key not in self._reads:
            self._reads[key] = [self._read(segment, window, group, num_blocks) for segment in self.layout.segments]
        return self._reads[key]

    def _read(self, segment: Segment, window: int | None, group: int, num_blocks: int) -> _Read:
        size, rows = self.layout.block_size, len(segment.tokens)
        known = segment.context + rows
        begin = 0 if window is None else max(0, segment.context - window + 1) // _KEY_LANES * _KEY_LANES
        end = _read_end(known) if self.device.type == "cpu" else known  # elsewhere a NaN may stand behind it
        first = begin // size
        blocks = segment.blocks[first : -(-known // size)]
        offset = first * size  # the first position of the blocks read
        mask = _mask(segment.context, rows, begin, end, window, self.dtype, self.device)
        if mask is not None:
            mask = _filled_up(mask.repeat_interleave(group, dim=0) if rows <= _FOLD_ROWS else mask)
        shift = blocks[0] * size - offset
        # What lies behind the known keys is hidden, so anybody's blocks may stand there.
        if end + shift <= num_blocks * size and blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            return _Read(None, slice(begin + shift, end + shift), mask)
        blocks += blocks[-1:] * (-(-end // size) - first - len(blocks))
        ids = to_device(blocks, torch.int64, self.device)
        return _Read(ids, slice(begin - offset, end - offset), mask)


def _read_end(known: int) -> int:
    """Up to which position keys are read of which so many are known: 5 -> 16, 200 -> 384, 520 -> 528, 800 -> 896."""
    pieces, rest = divmod(known, _PIECE)
    rest = -(-rest // _KEY_LANES) * _KEY_LANES
    return pieces * _PIECE + (_TWO_GOES if _ONE_GO < rest < _TWO_GOES else rest)


def _mask(
    context: int, rows: int, begin: int, end: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Additive [rows, end - begin]: 0 where visible, minus infinity elsewhere; None if all is visible."""
    if rows == 1 and end == context + 1 and (window is None or begin == max(0, context - window + 1)):
        return None
    positions = torch.arange(context, context + rows, device=device).unsqueeze(1)
    keys = torch.arange(begin, end, device=device)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.zeros(rows, end - begin, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _attend_segment(
    query: Tensor, keys: Tensor, values: Tensor, read: _Read, scale: float, softcap: float | None
) -> Tensor:
    """query [rows, heads, dim] -> the same shape."""
    rows, heads, dim = query.shape
    kv_heads = keys.shape[2]
    if read.blocks is not None:
        keys, values = keys.index_select(0, read.blocks), values.index_select(0, read.blocks)
    # [keys, kv_heads, dim] -> [1, kv_heads, keys, dim], a view
    k = keys.flatten(0, 1)[read.span].transpose(0, 1).unsqueeze(0)
    v = values.flatten(0, 1)[read.span].transpose(0, 1).unsqueeze(0)
    if rows > _FOLD_ROWS:
        q = _filled_up(query.transpose(0, 1).unsqueeze(0))
        if softcap is not None or query.device.type != "cpu":
            # Copies of the key heads, since CUDA's kernels take either a mask or shared heads, and what takes both
            # there keeps all scores in memory.
            k, v = (shared.repeat_interleave(heads // kv_heads, dim=1) for shared in (k, v))
        if softcap is not None:
            return capped_attention(q, k, v, read.mask, scale, softcap)[0, :, :rows].transpose(0, 1)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=read.mask, scale=scale, enable_gqa=heads != k.shape[1]
        )
        return out[0, :, :rows].transpose(0, 1)
    # Row r's query heads h*group .. h*group+group-1 share key head h: they become rows r*group .. of it.
    folded = _filled_up(query.view(rows, kv_heads, -1, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim))
    if softcap is not None:
        out = capped_attention(folded, k, v, read.mask, scale, softcap)
    else:
        out = functional.scaled_dot_product_attention(folded, k, v, attn_mask=read.mask, scale=scale)
    group = heads // kv_heads
    return out[0, :, : rows * group].reshape(kv_heads, rows, group, dim).transpose(0, 1).reshape(rows, heads, dim)


def _filled_up(rows: Tensor) -> Tensor:
    """[..., rows, columns] with zeros behind the rows up to a multiple of _ROW_LANES: of a mask, all is visible."""
    lacking = -rows.shape[-2] % _ROW_LANES
    return functional.pad(rows, (0, 0, 0, lacking)) if lacking else rows


def capped_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention whose scores s become softcap * tanh(s / softcap) before the mask: [1, heads, rows, dim]."""
    scores = torch.matmul(query.float(), keys.float().transpose(-1, -2)).mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    return torch.matmul(scores.softmax(-1), values.float()).to(query.dtype)
