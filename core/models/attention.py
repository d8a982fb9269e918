"""Ragged paged attention, plugged into transformers through its AttentionInterface.

A forward carries rows of many sequences side by side as one batch of one; every attention layer calls
`_attend`, which stores the rows' keys and values in the block cache and hands the queries to the
backend. What a layer needs beyond its tensors travels as the forward's keyword argument `ragged`, so
that two runners never share state. Index tensors and masks are made once per forward, not per layer.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from core.layout import RaggedLayout
from core.models.attention_batched import MOST_KEYS, prepare_sdpa, prepare_uniform_sdpa
from core.models.attention_flash import BLOCK_MULTIPLE, flash_obstacle, prepare_flash, prepare_uniform_flash
from core.models.attention_paged import paged_obstacle, prepare_paged
from core.models.kv_cache import KVCache
from core.models.uniform_batch import UniformBatch

log = logging.getLogger(__name__)

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
    """A backend: how to make it for a forward, and where it works.

    obstacle: why it cannot serve a model of this activation dtype and head dimension (None: unknown) on
    this device, worded to follow the backend's name; None if it can. block_size: what the block size must
    be a multiple of; None if any will do. uniform: how to make it for a rectangle, by work on the device alone, so
    that it can be recorded in a CUDA graph; None if it cannot. uniform_keys: most keys such a rectangle may have, all
    sequences together; None if any number will do. reads_beyond: whether on a CPU it reads what a row does not see,
    under a mask that hides any number but a NaN.
    """

    name: str
    prepare: Callable[[RaggedLayout, torch.dtype, torch.device], AttentionBackend]
    obstacle: Callable[[torch.device, torch.dtype, int | None], str | None] = lambda device, dtype, head_dim: None
    block_size: int | None = None
    uniform: Callable[[UniformBatch, torch.dtype], AttentionBackend] | None = None
    uniform_keys: int | None = None
    reads_beyond: bool = False

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int | None) -> None:
        """ValueError, in a sentence for people, if it cannot serve such a model."""
        obstacle = self.obstacle(device, dtype, head_dim)
        if obstacle is not None:
            raise ValueError(f"attention backend {self.name} {obstacle}")


@dataclass(frozen=True, slots=True)
class RaggedContext:
    """One forward's companions of the flat batch. slots: int64 [rows], where each row's KV goes."""

    attention: AttentionBackend
    cache: KVCache
    slots: Tensor


BACKENDS: dict[str, BackendSpec] = {
    spec.name: spec
    for spec in (
        BackendSpec("sdpa", prepare_sdpa, uniform=prepare_uniform_sdpa, uniform_keys=MOST_KEYS, reads_beyond=True),
        BackendSpec("flash_attn", prepare_flash, flash_obstacle, BLOCK_MULTIPLE, uniform=prepare_uniform_flash),
        BackendSpec("paged_cpu", prepare_paged, paged_obstacle),
    )
}


def backend_named(name: str) -> BackendSpec:
    """ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"unknown attention backend {name!r}; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def plain_backend(device: torch.device, dtype: torch.dtype, head_dim: int | None, recorded: bool = False) -> str:
    """The name of the fastest that serves such a model without a package of its own or a block size; recorded: one
    that can be recorded."""
    paged = not recorded and BACKENDS["paged_cpu"].obstacle(device, dtype, head_dim) is None
    return "paged_cpu" if paged else "sdpa"


def choose_backend(device: torch.device, dtype: torch.dtype, wanted: str = "auto", head_dim: int | None = None) -> str:
    """The name in BACKENDS of the fastest attention for a model on this device with activations and KV of
    this dtype, or the wanted one. ValueError, in a sentence for people, if that cannot work there."""
    if wanted != "auto":
        backend_named(wanted).check(device, dtype, head_dim)
        return wanted
    obstacle = BACKENDS["flash_attn"].obstacle(device, dtype, head_dim)
    if obstacle is None:
        return "flash_attn"
    if device.type == "cuda":
        log.warning(
            "attention through torch's own kernels, which copy the keys they read in every layer: slower with long "
            "texts than flash-attn, which %s",
            obstacle,
        )
    return plain_backend(device, dtype, head_dim)


def common_block_size(backends: Iterable[str], default: int = 16) -> int:
    """Positions per KV block that suit all these backends: runners that share a pool share its block size."""
    sizes = [size for name in backends if (size := BACKENDS[name].block_size) is not None]
    return math.lcm(*sizes) if sizes else default


# What layers pass beside their tensors that changes nothing here, and the only value that may stand there:
# position ids were used by the rotary embedding already, rows see what stands before them as a matter of
# course, nothing is dropped out at inference, and the cache is ours.
_HARMLESS = {
    "dropout": 0.0,
    "is_causal": True,
    "use_cache": False,
    "output_attentions": False,
    "output_router_logits": False,
}


def refuse_unknown(arguments: dict[str, Any]) -> None:
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
    refuse_unknown({"attention_mask": attention_mask, **others})
    layer: int = module.layer_idx  # type: ignore[assignment]
    ragged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), ragged.slots)
    keys, values = ragged.cache.layer(layer)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = ragged.attention(query[0].transpose(0, 1), keys, values, scale, sliding_window, softcap)
    return out.unsqueeze(0), None


# Nothing is registered as this implementation's masks: transformers then makes none, where it would otherwise ask
# the device, in every forward, whether the positions show several sequences. The backends know the layout.
AttentionInterface.register(IMPLEMENTATION, _attend)
