"""FusedLayer: a decoder layer of the plain kind on a CPU, as few passes over its rows as there can be.

transformers' code for such a layer is a dozen modules and thirty small operations around four matrix products; with
one row each takes microseconds of starting and the products little more. Here are the products and one compiled
function between each two of them.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from core.models.attention import RaggedContext, refuse_unknown
from core.models.attention_paged import PagedAttention
from core.models.fused_run import FusedRun, LayerShape, RunLayer
from core.models.layer_kernels import layer_kernels
from core.models.row_kernels import row_kernels
from core.models.row_norm import RowNorm

_OURS = ("ragged", "position_embeddings")  # of what a layer is called with, what is taken up here


@dataclass(frozen=True, slots=True)
class Attends:
    """How a layer calls attention: its cache layer, and what scores are multiplied with, windowed and capped by."""

    layer: int
    scale: float
    window: int | None
    softcap: float | None


@dataclass(slots=True)
class Observed:
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

    def __init__(self, layer: Any, attends: Attends) -> None:
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
        self._run: tuple[FusedRun, int] | None = None

    @property
    def shape(self) -> LayerShape:
        hidden = self._parts[0].weight.numel()
        return LayerShape(hidden, self._heads, self._kv_heads, self._dim, self._between, self._head_norms is not None)

    @property
    def as_run_layer(self) -> RunLayer:
        input_norm, qkv, output, norm, gate_up, down = self._parts
        attends = self._attends
        return RunLayer(
            attends.layer,
            (attends.scale, attends.window, attends.softcap),
            (qkv, output, gate_up, down),
            (input_norm, norm),
            self._head_norms,
        )

    def join(self, run: FusedRun | None, place: int = 0) -> None:
        """Be the layer at that place of a run; None: of none."""
        self._run = None if run is None else (run, place)

    def forward(self, hidden_states: Tensor, *args: Any, **others: Any) -> Tensor:
        """[1, rows, hidden] -> the same shape, as transformers' layers are called."""
        ragged = others.get("ragged")
        if args or ragged is None or not isinstance(ragged.attention, PagedAttention | Observed):
            plain: Tensor = self.layer(hidden_states, *args, **others)
            return plain
        input_norm, qkv, output, norm, gate_up, down = self._parts
        refuse_unknown({name: value for name, value in others.items() if name not in _OURS})
        if hidden_states.dtype != torch.float32:
            raise TypeError(f"fused layers take float32, not {hidden_states.dtype}")
        if self._run is not None and isinstance(ragged.attention, PagedAttention):
            run, place = self._run
            return run(place, hidden_states, others["position_embeddings"], ragged)
        x, kernels = hidden_states[0].contiguous(), layer_kernels()
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
