"""KVCache, the tensors that blocks index; and, for its users, the pool that hands the blocks out."""

import math
import mmap
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from core.models.block_pool import BlockPool, IntegrityError, OutOfBlocks

__all__ = ["BlockPool", "IntegrityError", "KVCache", "OutOfBlocks", "kv_shape"]


class KVCache:
    """One model's keys and values, [num_blocks, block_size, kv_heads, head_dim] per layer.

    Zeros, for what nobody has written may be read and masked, which no NaN would survive; on a CPU the system hands
    out the memory as blocks are first written.
    """

    def __init__(
        self,
        config: Any,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        finite: bool = False,
    ) -> None:
        """finite: what is no finite number is stored as 0, for attention that reads beyond a sequence's own positions,
        into rolled back ones and other sequences' blocks, under a mask that would hide any number but these. Whoever
        computed them has them in its own row's query, too, and in its logits."""
        heads, head_dim = kv_shape(config)
        shape = (num_blocks, block_size, heads, head_dim)
        self.dtype = dtype
        self._finite = finite
        self._layers = [
            (_zeros(shape, dtype, device), _zeros(shape, dtype, device)) for _ in range(config.num_hidden_layers)
        ]

    def write(self, layer_idx: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store rows: key and value [rows, kv_heads, head_dim] at slots (int64 [rows], block * size + offset)."""
        keys, values = self._layers[layer_idx]
        if self._finite:
            key, value = (rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for rows in (key, value))
        keys.flatten(0, 1).index_copy_(0, slots, key)
        values.flatten(0, 1).index_copy_(0, slots, value)

    def layer(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, the tensors themselves."""
        return self._layers[layer_idx]

    @staticmethod
    def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
        """Bytes one position takes in all layers, keys and values."""
        heads, head_dim = kv_shape(config)
        return 2 * int(config.num_hidden_layers) * heads * head_dim * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str | torch.device) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch would write its zeros, and so would any allocator over memory that was used before: only a fresh mapping is
    # zero without being touched.
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # where memory may not be promised beyond what there is
        raise MemoryError(f"no {size} bytes for a layer's KV cache: {error}") from error
    if (advice := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def kv_shape(config: Any) -> tuple[int, int]:
    """(key/value heads, head dimension)."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads), int(head_dim)
