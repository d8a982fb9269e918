"""FusedLayer: a decoder layer of the plain kind on a CPU, as few passes over its rows as there can be.

transformers' code for such a layer is a dozen modules and thirty small operations around four matrix products; with
one row each takes microseconds of starting and the products little more. Here are the products and one compiled
function between each two of them.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from core.layout import RaggedLayout, Segment
from core.models.attention import IMPLEMENTATION, RaggedContext, plain_backend, refuse_unknown
from core.models.attention_paged import PagedAttention
from core.models.fused_linear import FusedPart
from core.models.kv_cache import KVCache, kv_shape
from core.models.layer_kernels import WIDTH, layer_kernels
from core.models.packed_linear import PackedLinear
from core.models.row_kernels import row_kernels
from core.models.row_norm import RowNorm

_OURS = ("ragged", "position_embeddings")  # of what a layer is called with, what is taken up here
_ROWS = 5
_NEAR = 0.01
"""Of a result's norm, by which two ways to compute it may differ: rounding alone makes less of 8-bit products, where a
last bit may move an activation to the next step, and whatever a layer does besides makes more."""


@dataclass(frozen=True, slots=True)
class _Attends:
    """How a layer calls attention: its cache layer, and what scores are multiplied with, windowed and capped by."""

    layer: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(slots=True)
class _Observed:
    """Attention that notes how it was called, and with which query [rows, heads, dim]."""

    attention: PagedAttention
    calls: list[tuple[float, int | None, float | None]] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        self.calls.append((scale, window, softcap))
        self.queries.append(query)
        return self.attention(query, keys, values, scale, window, softcap)


class FusedLayer(nn.Module):
    """Stands in for a decoder layer, which it keeps for forwards whose attention is another than PagedAttention."""

    def __init__(self, layer: Any, attends: _Attends) -> None:
        super().__init__()
        self.layer = layer
        self._attends = attends
        attention, mlp = layer.self_attn, layer.mlp
        # In a tuple, whose modules are not registered a second time.
        self._parts = (
            layer.input_layernorm,
            attention.q_proj.linear,
            attention.o_proj,
            layer.post_attention_layernorm,
            mlp.gate_proj.linear,
            mlp.down_proj,
        )
        self._head_norms: tuple[RowNorm, RowNorm] | None = None
        if hasattr(attention, "q_norm"):
            self._head_norms = (attention.q_norm, attention.k_norm)
        self._dim = attention.head_dim
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._between = mlp.down_proj.in_features

    def forward(self, hidden_states: Tensor, *args: Any, **others: Any) -> Tensor:
        """[1, rows, hidden] -> the same shape, as transformers' layers are called."""
        ragged = others.get("ragged")
        if args or ragged is None or not isinstance(ragged.attention, PagedAttention | _Observed):
            plain: Tensor = self.layer(hidden_states, *args, **others)
            return plain
        input_norm, qkv, output, norm, gate_up, down = self._parts
        refuse_unknown({name: value for name, value in others.items() if name not in _OURS})
        x, kernels = hidden_states[0].contiguous(), layer_kernels()
        if x.dtype != torch.float32:
            raise TypeError(f"fused layers take float32, not {x.dtype}")
        rows, n = x.shape
        total, normed = torch.empty_like(x), torch.empty_like(x)
        gated = torch.empty(rows, self._between, dtype=torch.float32)
        here, there = total.data_ptr(), normed.data_ptr()
        weight = input_norm.weight.data_ptr()
        row_kernels().rms_norm(x.data_ptr(), weight, there, input_norm.eps, rows=rows, n=n)
        mixed = output.forward(self._attention(qkv.forward(normed), others["position_embeddings"], ragged))
        weight = norm.weight.data_ptr()
        kernels.add_norm(x.data_ptr(), mixed.data_ptr(), weight, here, there, norm.eps, rows=rows, n=n)
        both = gate_up.forward(normed)
        kernels.gate(both.data_ptr(), gated.data_ptr(), rows=rows, n=self._between)
        out: Tensor = down.forward(gated)
        return out.add_(total).unsqueeze(0)

    def _attention(self, product: Tensor, angles: tuple[Tensor, Tensor], ragged: RaggedContext) -> Tensor:
        """product: queries, keys and values of each row side by side -> [rows, heads * dim]."""
        rows, n = product.shape
        dim, attends = self._dim, self._attends
        cos, sin = angles[0].contiguous(), angles[1].contiguous()
        if not cos.dtype == sin.dtype == product.dtype == torch.float32 or cos.shape[-2:] != (rows, dim):
            raise ValueError(f"angles {cos.dtype} {tuple(cos.shape)} for {rows} rows with heads of {dim}")
        keys, values = ragged.cache.layer(attends.layer)
        q_norm, k_norm, eps = 0, 0, 0.0
        if self._head_norms is not None:
            q, k = self._head_norms
            q_norm, k_norm, eps = q.weight.data_ptr(), k.weight.data_ptr(), q.eps
        layer_kernels().place_heads(
            product.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            q_norm,
            k_norm,
            keys.data_ptr(),
            values.data_ptr(),
            ragged.slots.data_ptr(),
            self._heads,
            self._kv_heads,
            dim,
            self._head_norms is not None,
            eps,
            rows=rows,
            n=n,
        )
        query = product[:, : self._heads * dim].view(rows, self._heads, dim)
        mixed = ragged.attention(query, keys, values, attends.scale, attends.window, attends.softcap)
        return mixed.view(rows, -1)


@torch.inference_mode()
def fuse_layers(model: Any) -> int:
    """Put FusedLayer in the place of every decoder layer that computes what it computes: judged by its parts, then by
    what both make of random rows. How many."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList) or plain_backend(*_kind(model)) != "paged_cpu":
        return 0
    model.set_attn_implementation(IMPLEMENTATION)
    replaced = 0
    for index, layer in enumerate(layers):
        if _has_the_parts(layer) and (fused := _same(model, layer)) is not None:
            layers[index] = fused
            replaced += 1
    return replaced


def _kind(model: Any) -> tuple[torch.device, torch.dtype, int]:
    return torch.device("cpu"), torch.float32, kv_shape(model.config)[1]


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _has_the_parts(layer: Any) -> bool:
    if _children(layer) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    heads = [attention.q_norm, attention.k_norm] if _children(attention) >= {"q_norm", "k_norm"} else []
    own = {"q_norm", "k_norm"} if heads else set()
    if _children(attention) != {"q_proj", "k_proj", "v_proj", "o_proj"} | own:
        return False
    if _children(mlp) - {"act_fn"} != {"gate_proj", "up_proj", "down_proj"}:
        return False
    products = [attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]
    dim = getattr(attention, "head_dim", 0)
    return (
        all(isinstance(part, FusedPart) and part.linear is group[0].linear for group in products for part in group)
        and all(isinstance(part, PackedLinear) for part in (attention.o_proj, mlp.down_proj))
        and all(isinstance(norm, RowNorm) for norm in norms + heads)
        and all(norm.weight.numel() == dim and norm.eps == heads[0].eps for norm in heads)
        and dim > 0
        and dim % (2 * WIDTH) == 0
        and mlp.gate_proj.out_features == mlp.down_proj.in_features
        and mlp.down_proj.in_features % WIDTH == 0
    )


def _same(model: Any, layer: Any) -> FusedLayer | None:
    """What stands in for the layer; None where that would compute something else."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _ROWS, layer.input_layernorm.weight.numel(), generator=generator)
    # Over the whole context: some models do something else from a position on (Ministral scales its queries).
    furthest = getattr(model.config, "max_position_embeddings", 1 << 16) - 1
    positions = torch.linspace(0, furthest, _ROWS).long().unsqueeze(0)
    try:
        angles = model.base_model.rotary_emb(x, positions)
        attention, expected, cache = _run(model, layer, x, positions, angles)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # a layer that is called in another way, or keeps other keys
    if len(attention.calls) != 1 or angles[0].shape[-1] != layer.self_attn.head_dim:
        return None
    fused = FusedLayer(layer, _Attends(layer.self_attn.layer_idx, *attention.calls[0]))
    observed, got, own_cache = _run(model, fused, x, positions, angles)
    # Without the rows themselves, beside which what a layer adds to them may be small.
    pairs = [(got - x, expected - x), (observed.queries[0], attention.queries[0])]
    pairs += zip(own_cache.layer(layer.self_attn.layer_idx), cache.layer(layer.self_attn.layer_idx), strict=True)
    near = all(a.shape == b.shape and (a - b).norm() <= _NEAR * b.norm() for a, b in pairs)
    return fused if near else None


def _run(
    model: Any, layer: Any, x: Tensor, positions: Tensor, angles: tuple[Tensor, Tensor]
) -> tuple[_Observed, Tensor, KVCache]:
    layout = RaggedLayout.build([Segment((0,) * _ROWS, 0, (0,), 0)], _ROWS)
    attention = _Observed(PagedAttention(layout))
    cache = KVCache(model.config, 1, _ROWS, torch.float32, "cpu")
    out = layer(
        x,
        attention_mask=None,
        position_ids=positions,
        use_cache=False,
        position_embeddings=angles,
        ragged=RaggedContext(attention, cache, torch.arange(_ROWS)),
    )
    return attention, out, cache
