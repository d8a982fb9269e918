"""Which decoder layers run fused (fused_layer.py), and which of these as one call (fused_run.py).

Judged by a layer's parts, and then by what both ways make of random rows all over the context: what computes something
else is left alone.
"""

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from core.layout import RaggedLayout, Segment
from core.models.attention import IMPLEMENTATION, RaggedContext, plain_backend
from core.models.attention_paged import PagedAttention
from core.models.fused_layer import Attends, FusedLayer, Observed
from core.models.fused_linear import FusedPart
from core.models.fused_run import BetweenLayersError, FusedRun
from core.models.kv_cache import KVCache, kv_shape
from core.models.layer_kernels import WIDTH
from core.models.packed_linear import PackedLinear
from core.models.row_norm import RowNorm

_ROWS = 5
_NEAR = 0.01
"""Of a result's norm, by which two ways to compute it may differ: rounding alone makes less of 8-bit products, where a
last bit may move an activation to the next step, and whatever a layer does besides makes more."""


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
    _join(model, [layer for layer in layers if isinstance(layer, FusedLayer)])
    return replaced


def _join(model: Any, layers: list[FusedLayer]) -> None:
    """Make consecutive layers runs, where the model as a whole then computes what it did."""
    if not layers:
        return
    # Consecutive: by how far a layer's number is ahead of its place among the fused ones.
    ahead = {id(layer): layer.as_run_layer.index - place for place, layer in enumerate(layers)}
    groups = [list(group) for _, group in groupby(layers, lambda layer: (ahead[id(layer)], layer.shape))]
    before = _whole(model)
    for group in groups:
        run = FusedRun.of(group[0].shape, [layer.as_run_layer for layer in group])
        for place, layer in enumerate(group):
            layer.join(run, place)
    try:
        near = (_whole(model) - before).norm() <= _NEAR * before.norm()
    except BetweenLayersError:
        near = False
    if not near:
        for layer in layers:
            layer.join(None)


def _whole(model: Any) -> Tensor:
    """The last hidden state of a few rows."""
    positions = _positions(model)
    attention, cache, slots = _paged(model)
    out: Tensor = model.base_model(
        input_ids=torch.arange(_ROWS).unsqueeze(0),
        position_ids=positions,
        use_cache=False,
        ragged=RaggedContext(attention, cache, slots),
    ).last_hidden_state
    return out


def _positions(model: Any) -> Tensor:
    """Over the whole context: some models do something else from a position on (Ministral scales its queries)."""
    furthest = getattr(model.config, "max_position_embeddings", 1 << 16) - 1
    return torch.linspace(0, furthest, _ROWS).long().unsqueeze(0)


def _paged(model: Any) -> tuple[PagedAttention, KVCache, Tensor]:
    layout = RaggedLayout.build([Segment((0,) * _ROWS, 0, (0,), 0)], _ROWS)
    return PagedAttention(layout), KVCache(model.config, 1, _ROWS, torch.float32, "cpu"), torch.arange(_ROWS)


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
    positions = _positions(model)
    try:
        angles = model.base_model.rotary_emb(x, positions)
        attention, expected, cache = _run(model, layer, x, positions, angles)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # a layer that is called in another way, or keeps other keys
    if len(attention.calls) != 1 or angles[0].shape[-1] != layer.self_attn.head_dim:
        return None
    fused = FusedLayer(layer, Attends(layer.self_attn.layer_idx, *attention.calls[0]))
    observed, got, own_cache = _run(model, fused, x, positions, angles)
    # Without the rows themselves, beside which what a layer adds to them may be small.
    pairs = [(got - x, expected - x), (observed.queries[0], attention.queries[0])]
    pairs += zip(own_cache.layer(layer.self_attn.layer_idx), cache.layer(layer.self_attn.layer_idx), strict=True)
    near = all(a.shape == b.shape and (a - b).norm() <= _NEAR * b.norm() for a, b in pairs)
    return fused if near else None


def _run(
    model: Any, layer: Any, x: Tensor, positions: Tensor, angles: tuple[Tensor, Tensor]
) -> tuple[Observed, Tensor, KVCache]:
    paged, cache, slots = _paged(model)
    attention = Observed(paged)
    out = layer(
        x,
        attention_mask=None,
        position_ids=positions,
        use_cache=False,
        position_embeddings=angles,
        ragged=RaggedContext(attention, cache, slots),
    )
    return attention, out, cache
