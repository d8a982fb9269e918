"""Ragged paged attention, plugged into transformers through its AttentionInterface.

A forward carries rows of many sequences side by side as one batch of one; every attention layer calls
`_attend`, which stores the rows' keys and values in the block cache and hands the queries to the
backend. What a layer needs beyond its tensors travels as the forward's keyword argument `ragged`, so
that two runners never share state. Index tensors and masks are made once per forward, not per layer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from core.layout import RaggedLayout
from core.models.attention_sdpa import SdpaAttention
from core.models.kv_cache import KVCache

IMPLEMENTATION = "slipstream_ragged"


class AttentionBackend(Protocol):
    """Attention of one forward's rows over the block cache; made once per forward.

    query: [rows, heads, head_dim] of the whole flat batch; keys, values: one layer's cache
    [blocks, block_size, kv_heads, head_dim], the rows' own already written. Returns query's shape.
    window: a row sees that many positions, its own included; None for all. softcap: scores s become
    softcap * tanh(s / softcap); None for none. A row's result depends on its own segment alone.
    """

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """How to make a backend for a forward, and what the block size must be a multiple of (None: any size)."""

    prepare: Callable[[RaggedLayout, torch.dtype, torch.device], AttentionBackend]
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class RaggedContext:
    """One forward's companions of the flat batch. slots: int64 [rows], where each row's KV goes."""

    attention: AttentionBackend
    cache: KVCache
    slots: Tensor


BACKENDS: dict[str, BackendSpec] = {"sdpa": BackendSpec(SdpaAttention)}


def choose_backend(device: torch.device, dtype: torch.dtype, wanted: str = "auto") -> str:
    """The name in BACKENDS of the fastest attention for a model on this device with activations and KV of
    this dtype, or the wanted one. ValueError, in a sentence for people, if that cannot work there."""
    if wanted == "auto":
        return "sdpa"
    if wanted not in BACKENDS:
        raise ValueError(f"unknown attention backend {wanted!r}; known are auto, {', '.join(BACKENDS)}")
    return wanted


def common_block_size(backends: Iterable[str], default: int = 16) -> int:
    """Positions per KV block that suit all these backends: runners that share a pool share its block size."""
    sizes = [size for name in backends if (size := BACKENDS[name].block_size) is not None]
    return max(sizes, default=default)


# What layers pass beside their tensors that changes nothing here, and the only value that may stand there:
# position ids were used by the rotary embedding already, rows see what stands before them as a matter of
# course, nothing is dropped out at inference, and the cache is ours.
_HARMLESS = {"dropout": 0.0, "is_causal": True, "use_cache": False, "output_attentions": False}


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    """ValueError for an argument that might change the result: an ignored one would be a wrong answer."""
    for name, value in arguments.items():
        if value is None or name == "position_ids":
            continue
        if name not in _HARMLESS or isinstance(value, Tensor) or value != _HARMLESS[name]:
            shown = "a tensor" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"this model's attention needs {name} = {shown}, which is not supported here")


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None,
    ragged: RaggedContext,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention call: query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim]
    -> [1, rows, heads, dim]. ValueError for what it does not know how to honour (attention sinks, biases)."""
    _refuse_unknown(others)
    layer: int = module.layer_idx  # type: ignore[assignment]
    ragged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), ragged.slots)
    keys, values = ragged.cache.layer(layer)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = ragged.attention(query[0].transpose(0, 1), keys, values, scale, sliding_window, softcap)
    return out.unsqueeze(0), None


def _no_mask(**_: Any) -> None:
    """The backend makes its own masks from the layout."""


AttentionInterface.register(IMPLEMENTATION, _attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
