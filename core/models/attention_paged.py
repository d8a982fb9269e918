"""Backend for float32 models on a CPU: one compiled call a layer for all sequences (`attention_kernel.py`).

Keys are read where they lie, through the block tables. What is the same in all layers, the chunks of rows and the
tables, is laid out once per forward.
"""

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features
from torch import Tensor

from core.layout import RaggedLayout
from core.models.attention_call import DIM_MULTIPLE, LANES, LAYOUT, AttentionCall, scratch_size
from core.models.attention_kernel import SIGNATURE, SOURCE_FILES, SOURCES, attend
from core.models.compiling import compiled
from core.models.team import TeamFunction

_EVERYTHING = 1 << 62  # positions: no window
_SHARED = 1 << 17  # products of a query's and a key's numbers from which on threads share the work: ten microseconds
_SHORT = 1 << 22  # up to so many it takes a fraction of a millisecond, for which the interpreter is kept


def paged_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int | None) -> str | None:
    """Why it cannot serve such a model, worded to follow the backend's name; None if it can."""
    if device.type != "cpu":
        return "needs a CPU"
    if dtype != torch.float32:
        return f"needs float32 activations, not {str(dtype).removeprefix('torch.')}"
    if head_dim is not None and head_dim % DIM_MULTIPLE:
        return f"needs a head dimension that is a multiple of {DIM_MULTIPLE}, not {head_dim}"
    return None


@dataclass(slots=True)
class PagedAttention:
    """One forward's attention. A row's result is the same to the bit whatever stands beside it."""

    layout: RaggedLayout
    _plans: dict[int, "_Plan"] = field(default_factory=dict)
    _calls: dict["Kind", "Prepared"] = field(default_factory=dict)

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """TypeError for another dtype: the kernel takes addresses and would not know. RuntimeError if it was compiled
        for another AttentionCall."""
        if not query.dtype == keys.dtype == values.dtype == torch.float32:
            raise TypeError(f"paged attention takes float32, not {query.dtype} with {keys.dtype}")
        if query.stride(2) != 1:
            query = query.contiguous()
        rows, heads, dim = query.shape
        out = torch.empty(rows, heads, dim, dtype=torch.float32)
        prepared = self.prepared((heads, keys.shape[2], dim, scale, window, softcap), keys.shape[0])
        call = prepared.call
        call.claimed = call.joined = 0
        call.query, call.out = query.data_ptr(), out.data_ptr()
        call.query_row, call.query_head, _ = query.stride()
        call.keys, call.values = keys.data_ptr(), values.data_ptr()
        _kernel()(prepared.address, prepared.threads, prepared.short)
        if call.claimed < call.items:
            raise RuntimeError("numba kept code of another state of attention_call.py: empty core/models/__pycache__")
        return out

    def prepared(self, kind: "Kind", num_blocks: int) -> "Prepared":
        """Made once for all layers of a kind: with one row the interpreter's own work shows. ValueError for a block
        that is not there, which the kernel would read all the same."""
        if (known := self._calls.get(kind)) is not None:
            return known
        heads, kv_heads, dim, scale, window, softcap = kind
        group = heads // kv_heads
        plan = self._plans.get(group) or self._plans.setdefault(group, _Plan.of(self.layout, group))
        if not 0 <= plan.tables.min() <= plan.tables.max() < num_blocks:
            raise ValueError(f"blocks {plan.tables.min()} to {plan.tables.max()}, the cache has {num_blocks}")
        products, items = plan.pairs * heads * dim, len(plan.chunks) * kv_heads
        threads = min(items, torch.get_num_threads()) if products >= _SHARED else 1
        size = scratch_size(plan.most_pairs, dim)
        scratch = torch.empty(torch.get_num_threads() * size, dtype=torch.float32)
        call = AttentionCall(
            layout=LAYOUT,
            items=items,
            chunks=plan.chunks.ctypes.data,
            tables=plan.tables.ctypes.data,
            scratch=scratch.data_ptr(),
            scratch_size=size,
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
            block_size=self.layout.block_size,
            window=_EVERYTHING if window is None else window,
            wide=_wide(),
            scale=scale,
            softcap=softcap or 0.0,
        )
        prepared = Prepared(call, ctypes.addressof(call), threads, products <= _SHORT, plan, scratch)
        self._calls[kind] = prepared
        return prepared


Kind = tuple[int, int, int, float, int | None, float | None]
"""Heads, key heads, head dimension, scale, window, soft cap."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call but for its tensors. plan, scratch: what it points to."""

    call: AttentionCall
    address: int
    threads: int
    short: bool
    plan: "_Plan"
    scratch: Tensor


@dataclass(frozen=True, slots=True)
class _Plan:
    """chunks: int64 [chunks, CHUNK_FIELDS]: first row, rows, first position, where its block table begins in tables.
    most_pairs: (row, query head) pairs that share a key head in one chunk, at most. pairs: of rows and keys."""

    chunks: np.ndarray[Any, np.dtype[np.int64]]
    tables: np.ndarray[Any, np.dtype[np.int64]]
    most_pairs: int
    pairs: int

    @classmethod
    def of(cls, layout: RaggedLayout, group: int) -> "_Plan":
        """The chunks that see most keys first: whoever is done early then finds a small one to take."""
        most_rows = max(1, LANES // group)
        chunks: list[tuple[int, int, int, int]] = []
        tables: list[int] = []
        pairs = 0
        for segment, row in zip(layout.segments, layout.query_starts, strict=False):
            count = len(segment.tokens)
            for begin in range(0, count, most_rows):
                rows = min(most_rows, count - begin)
                chunks.append((row + begin, rows, segment.context + begin, len(tables)))
                pairs += rows * (segment.context + begin + rows)
            tables += segment.blocks[: -(-(segment.context + count) // layout.block_size)]
        chunks.sort(key=lambda chunk: chunk[1] * (chunk[1] + chunk[2]), reverse=True)
        return cls(
            np.array(chunks, dtype=np.int64),
            np.array(tables, dtype=np.int64),
            max(chunk[1] for chunk in chunks) * group,
            pairs,
        )


def prepare_paged(layout: RaggedLayout, dtype: torch.dtype, device: torch.device) -> PagedAttention:
    return PagedAttention(layout)


@functools.cache
def _kernel() -> TeamFunction:
    return TeamFunction(compiled(SIGNATURE, attend, (SOURCE_FILES, SOURCES)))


@functools.cache
def _wide() -> bool:
    """Whether registers hold sixteen numbers: else vectors of eight leave more of them free."""
    return bool(get_host_cpu_features().get("avx512f"))
