"""flash_attn backend: every segment's attention in one kernel of the flash-attn package, on CUDA in half precision.

The kernel reads keys and values straight from the block cache. Worked example, block size 256, two segments:

    segment  context  rows  blocks         cu_seqlens_q (0, 1, 4)      where each one's query rows begin
    A        300      1     [7, 2]         cu_seqlens_k (0, 301, 310)  running sum of context + rows
    B        6        3     [5]            block_table  [[7, 2], [5, 0]], the 0 is never read

Its causal mask is aligned to the bottom right: the last row of a segment sees all its keys, the row before
one less. So is its window, (left, right): positions before and after a row's own that it sees.

A batch of decode rows alone may be split over the keys, in as many pieces as fill the device, and so differ
from the same rows in a mixed batch in the last bits, as matrix products of another shape do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from core.device_copy import to_device
from core.layout import RaggedLayout
from core.models.flash_version import FLASH_VERSIONS, flash_version
from core.models.uniform_batch import UniformBatch

BLOCK_MULTIPLE = 256  # of the kernel's pages
_MAX_HEAD_DIM = 256
_CAPABILITY = (8, 0)  # Ampere

VarlenFunction = Callable[..., Tensor]
"""flash_attn_varlen_func, of flash-attn 2.8."""


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """One forward's index tensors, int32 on the device: row_starts and key_starts [segments + 1], table
    [segments, most blocks]; and the largest numbers of rows and of keys a segment has."""

    varlen: VarlenFunction
    row_starts: Tensor
    key_starts: Tensor
    table: Tensor
    most_rows: int
    most_keys: int

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        return self.varlen(
            query,
            keys,
            values,
            self.row_starts,
            self.key_starts,
            self.most_rows,
            self.most_keys,
            softmax_scale=scale,
            causal=True,
            # Not (-1, 0) without a window, though it means the same: the kernel's fast path for decode rows
            # takes only (-1, -1).
            window_size=(-1, -1) if window is None else (window - 1, 0),
            softcap=0.0 if softcap is None else softcap,
            block_table=self.table,
        )


def prepare_flash(
    layout: RaggedLayout, dtype: torch.dtype, device: torch.device, varlen: VarlenFunction | None = None
) -> FlashAttention:
    """Index tensors of a layout, in one copy to the device. varlen: flash_attn_varlen_func or a stand-in for it."""
    row_starts, key_starts, tables = list(layout.query_starts), [0], []
    for segment in layout.segments:
        end = segment.context + len(segment.tokens)
        key_starts.append(key_starts[-1] + end)
        tables.append(segment.blocks[: -(-end // layout.block_size)])
    width = max(map(len, tables))
    padded = [block for table in tables for block in (*table, *[0] * (width - len(table)))]
    count = len(row_starts)
    packed = to_device([*row_starts, *key_starts, *padded], torch.int32, device)
    return FlashAttention(
        varlen=varlen or _installed(),
        row_starts=packed[:count],
        key_starts=packed[count : 2 * count],
        table=packed[2 * count :].view(len(tables), width),
        most_rows=max(len(segment.tokens) for segment in layout.segments),
        most_keys=max(segment.context + len(segment.tokens) for segment in layout.segments),
    )


def prepare_uniform_flash(
    batch: UniformBatch, dtype: torch.dtype, varlen: VarlenFunction | None = None
) -> FlashAttention:
    """Index tensors of a rectangle, made on the device, so that this can be recorded. The kernel lets every row of a
    segment see the keys up to its place from the right, which is a real row's own position; what padding rows see
    matters to nobody, and where that is nothing they become 0."""
    rows, device = batch.num_rows, batch.ends.device
    starts = torch.arange(0, (len(batch.ends) + 1) * rows, rows, dtype=torch.int32, device=device)
    key_starts = torch.cat([batch.ends.new_zeros(1), batch.ends.cumsum(0)]).to(torch.int32)
    return FlashAttention(
        varlen=varlen or _installed(),
        row_starts=starts,
        key_starts=key_starts,
        table=batch.table.to(torch.int32),
        most_rows=rows,
        most_keys=batch.num_keys,
    )


def flash_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int | None) -> str | None:
    """Why flash-attn cannot serve such a model there, to follow its name in a sentence; None if it can."""
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"needs bfloat16 or fp16 weights, not {str(dtype).removeprefix('torch.')}"
    if head_dim is not None and (head_dim > _MAX_HEAD_DIM or head_dim % 8):
        return f"needs head dimensions that are multiples of 8 up to {_MAX_HEAD_DIM}, not {head_dim}"
    if not torch.cuda.is_available():
        return "needs a CUDA device, and torch sees none"
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        return f"needs a device of compute capability 8.0 or higher, not {capability[0]}.{capability[1]}"
    if flash_version() is None:
        return f"needs the flash-attn package, {FLASH_VERSIONS}"
    try:
        _installed()
    except Exception as error:  # a build for another torch or CUDA fails with whatever its loader says
        return f"needs the flash-attn package, which cannot be imported: {error}"
    return None


@cache
def _installed() -> VarlenFunction:
    """The package's function. Imported late: it is an optional extra, and takes CUDA to load."""
    from flash_attn import flash_attn_varlen_func

    function: VarlenFunction = flash_attn_varlen_func
    return function
