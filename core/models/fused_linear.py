"""Sibling linear layers that read the very same tensor, packed as one matrix and multiplied once.

A layer's query, key and value projections, and its gate and up projections, are several small products where one
would do: each call costs the kernel's start, and with 8-bit weights the quantising of its input besides. The model's
code keeps calling them one by one; what stands in for each returns its columns of a product that the first to be
called has made.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from core.models.packed_linear import PackedLinear

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which transformers' models call linear layers with one and the same tensor."""

LayerTensors = dict[str, Tensor]
"""A linear layer's weight [out, in] and, if it has one, bias [out]; any float dtype."""


class _SharedProduct:
    """The latest input's product with all columns, kept until every part has been read once.

    A part that asks for another tensor, or for its columns a second time, has the product made anew: the answer
    is right in any order, only slower. One thread at a time, like the model it is part of.
    """

    def __init__(self, linear: PackedLinear, parts: int) -> None:
        self._linear = linear
        self._all_parts = (1 << parts) - 1
        self._unread = 0
        self._input: Tensor | None = None  # held, so that no other tensor can be taken for it
        self._product: Tensor | None = None

    def of(self, x: Tensor, part: int) -> Tensor:
        """All columns for x, [..., sum of out]."""
        bit = 1 << part
        product = self._product
        if product is None or x is not self._input or not self._unread & bit:
            self._product = product = self._linear(x)
            self._input, self._unread = x, self._all_parts
        self._unread ^= bit
        if not self._unread:
            self._input = self._product = None
        return product


class FusedPart(nn.Module):
    """Stands in for one of the siblings: x [..., in] -> its columns [..., out], a view."""

    def __init__(self, linear: PackedLinear, shared: _SharedProduct, part: int, columns: range) -> None:
        super().__init__()
        self.linear = linear  # the same module in all its siblings
        self.in_features, self.out_features = linear.in_features, len(columns)
        self._shared, self._part = shared, part
        self._begin = columns.start

    def forward(self, x: Tensor) -> Tensor:
        return self._shared.of(x, self._part).narrow(-1, self._begin, self.out_features)


def fuse(layers: Sequence[LayerTensors], pack: type[PackedLinear]) -> list[FusedPart]:
    """Stand-ins for linear layers of one input size, in order.

    Layers without a bias get zeros where a sibling has one.
    """
    sizes = [layer["weight"].shape[0] for layer in layers]
    bias = torch.zeros(sum(sizes)) if any("bias" in layer for layer in layers) else None
    begins = [sum(sizes[:part]) for part in range(len(sizes))]
    for layer, begin, size in zip(layers, begins, sizes, strict=True):
        if bias is not None and "bias" in layer:
            bias[begin : begin + size].copy_(layer["bias"])
    linear = pack([layer["weight"] for layer in layers], bias)
    shared = _SharedProduct(linear, len(layers))
    return [
        FusedPart(linear, shared, part, range(begin, begin + size))
        for part, (begin, size) in enumerate(zip(begins, sizes, strict=True))
    ]


def siblings(model: nn.Module) -> list[tuple[str, ...]]:
    """The groups of linear layers, by their names in the model, that can be fused."""
    groups = []
    for parent_name, parent in model.named_modules():
        prefix = f"{parent_name}." if parent_name else ""
        for names in SIBLINGS:
            children = [getattr(parent, name, None) for name in names]
            layers = [child for child in children if type(child) is nn.Linear]
            if len(layers) == len(names) and len({layer.in_features for layer in layers}) == 1:
                groups.append(tuple(prefix + name for name in names))
    return groups
