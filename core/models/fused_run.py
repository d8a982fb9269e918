"""FusedRun: consecutive decoder layers as one call of a compiled function (run_kernel.py).

Between two of a layer's kernels the interpreter needs some microseconds, in which nothing is read from memory; with
one row and a hundred layers' parts that is a tenth of a forward, and a fourth of a small draft model's.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.models import run_kernel
from core.models.attention import RaggedContext
from core.models.attention_paged import Kind, PagedAttention, Prepared
from core.models.compiling import compiled
from core.models.int8_bytes import ALONE, SHORT
from core.models.int8_kernel import ProductCall, scratch_bytes
from core.models.kv_cache import KVCache
from core.models.packed_linear import PackedLinear
from core.models.rendezvous import give_way_address
from core.models.row_norm import RowNorm
from core.models.run_call import LAYOUT, LayerParts, RunCall
from core.models.team import TeamFunction, team_size_address


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What is the same in all layers of a run."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    between: int
    head_norms: bool


@dataclass(frozen=True, slots=True)
class RunLayer:
    """A layer of a run. index: of its cache. attends: scale, window, soft cap. products: of queries, keys and values;
    of the attention's output; of gate and up; down. norms: before each half. head_norms: of queries and keys."""

    index: int
    attends: tuple[float, int | None, float | None]
    products: tuple[PackedLinear, PackedLinear, PackedLinear, PackedLinear]
    norms: tuple[RowNorm, RowNorm]
    head_norms: tuple[RowNorm, RowNorm] | None


class BetweenLayersError(RuntimeError):
    """A model does something to the rows between layers that were fused to one."""


class FusedRun:
    """Consecutive layers of one shape. The first of them to be called runs them all, the others return what it made.
    One thread at a time."""

    def __init__(self, shape: LayerShape, layers: Sequence[RunLayer], calls: Sequence[Sequence[ProductCall]]) -> None:
        """calls: of each layer's products."""
        self.shape, self._layers, self._calls = shape, layers, calls
        self._parts = (LayerParts * len(layers))()
        for part, layer, (qkv, output, gate_up, down) in zip(self._parts, layers, calls, strict=True):
            part.qkv, part.output = ctypes.addressof(qkv), ctypes.addressof(output)
            part.gate_up, part.down = ctypes.addressof(gate_up), ctypes.addressof(down)
            part.enough = layer.products[0].enough
            first, second = layer.norms
            part.input_norm, part.input_eps = first.weight.data_ptr(), first.eps
            part.norm, part.eps = second.weight.data_ptr(), second.eps
            if layer.head_norms is not None:
                q, k = layer.head_norms
                part.q_norm, part.k_norm, part.head_eps = q.weight.data_ptr(), k.weight.data_ptr(), q.eps
        self._products = sum(p.in_features * p.out_features for layer in layers for p in layer.products)
        self._widest = max(p.in_features for layer in layers for p in layer.products)
        self._cache: KVCache | None = None
        self._made: Tensor | None = None
        self._angles: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, shape: LayerShape, layers: Sequence[RunLayer]) -> "FusedRun | None":
        """None if some product is of another kind than the compiled function multiplies, or threads could not tell how
        many of them there are, and so for how many to wait."""
        if not team_size_address():
            return None
        calls = [[_call(product) for product in layer.products] for layer in layers]
        if not all(call is not None for layer in calls for call in layer):
            return None
        return cls(shape, layers, calls)  # type: ignore[arg-type]

    def __call__(self, place: int, x: Tensor, angles: tuple[Tensor, Tensor], ragged: RaggedContext) -> Tensor:
        """The layer at that place of the run is called with the rows, [1, rows, hidden]; what it returns.

        BetweenLayersError if it gets something else than the layer before it returned, or other angles than that got.
        """
        if place == 0:
            self._made, self._angles = self._run(x, angles, ragged), angles
        elif x is not self._made or angles is not self._angles:
            raise BetweenLayersError("something happens between a model's layers that were fused to one")
        made = x if self._made is None else self._made
        if place == len(self._layers) - 1:
            self._made = self._angles = None
        return made

    def _run(self, x: Tensor, angles: tuple[Tensor, Tensor], ragged: RaggedContext) -> Tensor:
        made = x.clone(memory_format=torch.contiguous_format)
        rows, shape = made.shape[1], self.shape
        cos, sin = (angle.contiguous() for angle in angles)
        if not cos.dtype == sin.dtype == made.dtype == torch.float32 or cos.shape[-2:] != (rows, shape.dim):
            raise ValueError(f"angles {cos.dtype} {tuple(cos.shape)} for {rows} rows with heads of {shape.dim}")
        self._set_attention(ragged)
        threads = torch.get_num_threads() if rows * self._products >= ALONE * len(self._layers) else 1
        work = _Work(self.shape, rows, threads, self._widest)
        call = work.call
        call.team_size, call.give_way = team_size_address(), give_way_address()
        call.parts, call.layers = ctypes.addressof(self._parts), len(self._layers)
        call.x, call.cos, call.sin = made.data_ptr(), cos.data_ptr(), sin.data_ptr()
        call.slots = ragged.slots.data_ptr()
        _kernel()(ctypes.addressof(call), threads, rows * self._products <= SHORT)
        if not call.joined:
            raise RuntimeError("numba kept code of another state of run_call.py: empty core/models/__pycache__")
        return made

    def _set_attention(self, ragged: RaggedContext) -> None:
        """Tell the layers' parts of the forward's attention, which keeps what they point to, and of the cache."""
        attention, cache = ragged.attention, ragged.cache
        assert isinstance(attention, PagedAttention)
        if cache is not self._cache:
            for part, layer in zip(self._parts, self._layers, strict=True):
                keys, values = cache.layer(layer.index)
                if not keys.dtype == values.dtype == torch.float32:
                    raise TypeError(f"paged attention takes float32, not {keys.dtype}")
                part.keys, part.values = keys.data_ptr(), values.data_ptr()
            self._cache = cache
        blocks = cache.layer(self._layers[0].index)[0].shape[0]
        kinds: dict[tuple[float, int | None, float | None], Prepared] = {}
        for part, layer in zip(self._parts, self._layers, strict=True):
            prepared = kinds.get(layer.attends)
            if prepared is None:
                kind: Kind = (self.shape.heads, self.shape.kv_heads, self.shape.dim, *layer.attends)
                prepared = kinds[layer.attends] = attention.prepared(kind, blocks)
            part.attention = prepared.address


class _Work:
    """A forward's call with the memory between its stages."""

    def __init__(self, shape: LayerShape, rows: int, threads: int, widest: int) -> None:
        def floats(columns: int) -> Tensor:
            return torch.empty(rows, columns, dtype=torch.float32)

        hidden, attended = shape.hidden, shape.heads * shape.dim
        self._kept = (
            floats(hidden),
            floats(attended + 2 * shape.kv_heads * shape.dim),
            floats(attended),
            floats(hidden),
            floats(2 * shape.between),
            floats(shape.between),
            torch.empty(2 * rows, widest, dtype=torch.uint8),
            floats(1),
            torch.empty(rows, dtype=torch.int32),
            torch.empty(threads * scratch_bytes(rows), dtype=torch.uint8),
        )
        names = ("normed", "product", "mixed", "projected", "both", "gated", "numbers", "steps", "fine", "scratch")
        self.call = RunCall(
            layout=LAYOUT,
            rows=rows,
            hidden=hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            dim=shape.dim,
            between=shape.between,
            head_norms=shape.head_norms,
            **{name: tensor.data_ptr() for name, tensor in zip(names, self._kept, strict=True)},
        )


def _call(product: PackedLinear) -> ProductCall | None:
    described = getattr(product, "product_call", None)
    return None if described is None else described()


@functools.cache
def _kernel() -> TeamFunction:
    """Compiled for this machine: at once where it lies in numba's cache, else within seconds."""
    sources = run_kernel.SOURCE_FILES, run_kernel.SOURCES
    return TeamFunction(compiled(run_kernel.SIGNATURE, run_kernel.run_layers, sources))
