"""The kinds of packed weights linear layers may hold on a CPU, and the half-precision one.

At one to a few rows a layer costs the time to read its weights, so half the bytes are twice the speed; with more
rows the products count, which are cheapest between integers (core/models/packed_int8.py).
"""

import functools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from core.models.fbgemm import packing
from core.models.packed_int8 import Int8Linear, Int8MixedLinear, Int8SplitLinear

WeightKind = Literal["float32", "bfloat16", "fp16", "int8_split", "int8_mixed", "int8"]


class Fp16Linear(nn.Module):
    """y = x W^T + b; W float16, x and y float32 [..., in] -> [..., out]; products in float32."""

    def __init__(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None) -> None:
        """weight: [out, in], perhaps as several matrices one below the other; bias: [out]; any float dtype.
        Finite values beyond half precision saturate."""
        super().__init__()
        weight = weight if isinstance(weight, Tensor) else torch.cat(list(weight))
        self.out_features, self.in_features = weight.shape
        # A copy of the bias: what is kept must not be a view into a file.
        bias = None if bias is None else bias.to(torch.float32, copy=True)
        with packing:
            self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16.default(x, self._packed)
        return y


PackedLinear = Fp16Linear | Int8SplitLinear | Int8MixedLinear | Int8Linear

PACKED: dict[str, type[PackedLinear]] = {
    "fp16": Fp16Linear,
    "int8_split": Int8SplitLinear,
    "int8_mixed": Int8MixedLinear,
    "int8": Int8Linear,
}


@functools.cache
def packing_available() -> bool:
    """Whether this machine's torch has the packed kernels (FBGEMM: x86 with AVX2)."""
    try:
        probe = torch.eye(4)
        for layer in PACKED.values():
            layer(probe, None)(probe)
    except (RuntimeError, AttributeError):
        return False
    return True
