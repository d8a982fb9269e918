"""PackedExperts: a mixture of experts whose matrices are packed for the CPU, each expert like any linear layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class PackedExperts(nn.Module):
    """Stands in for transformers' experts: each row goes through the experts its router chose.

    A row's terms are added up in the order of its own choices, so company changes nothing.
    """

    def __init__(self, experts: Any, tensors: dict[str, Tensor], pack: Callable[[Tensor, None], nn.Module]) -> None:
        """experts: what it replaces, on the meta device; says how gate and value are combined.
        tensors: gate_up_proj [experts, 2 * inner, hidden] and down_proj [experts, hidden, inner]."""
        super().__init__()
        self._combine: Callable[[Tensor], Tensor] = experts._apply_gate
        self._up = nn.ModuleList(pack(weight, None) for weight in tensors["gate_up_proj"])
        self._down = nn.ModuleList(pack(weight, None) for weight in tensors["down_proj"])

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states: [rows, hidden]; top_k_index and top_k_weights: [rows, k]. The same shape as hidden_states."""
        terms = hidden_states.new_zeros(*top_k_index.shape, hidden_states.shape[-1])
        for expert in sorted(set(top_k_index.flatten().tolist())):
            rows, choice = torch.where(top_k_index == expert)
            inner = self._combine(self._up[expert](hidden_states[rows]))
            terms[rows, choice] = self._down[expert](inner) * top_k_weights[rows, choice, None]
        return terms.sum(dim=1)


def packable(module: nn.Module) -> bool:
    """Whether these are experts PackedExperts can stand in for: gated, [out, in], without biases."""
    return (
        getattr(module, "has_gate", False)
        and not module.is_transposed
        and not module.has_bias
        and not module.has_post_expert_norm
        and {name for name, _ in module.named_parameters(recurse=False)} == {"gate_up_proj", "down_proj"}
    )
