"""Linear layers with 8-bit weights, one scale per output channel, and integer products.

Every activation row is quantised by its own scale: rows never see each other (a scale over the whole batch
would let neighbours change an answer). It has 8 bits where the machine adds up such products exactly (AVX-512 VNNI
does, in 32 bits), and 7 elsewhere: two products of a 7-bit unsigned and an 8-bit signed number fit the 16-bit lanes
of AVX2's multiply-add (2 * 127 * 127 = 32258 < 32768), which would saturate with 8 bits.

A row can have a second, fine one for what its rounding lost. Worked example, a row whose largest value is 127, so
that its scale is 1:

    row     127.0  2.3    -7.75
    coarse  127    2      -8        rounded
    fine    0      76     64        what that lost, at most half a step: (row - coarse) * 254 rounded, +-127
    stands for  127, 2 + 76/254 = 2.2992, -8 + 64/254 = -7.7480

Both rows go through one call of the kernel, which reads the weights once: nearly 16 bits for the price of twice
the rows, and what remains is the weights' own rounding. Int8Linear has no fine rows and Int8SplitLinear one for every
row. Int8MixedLinear has them for the rows that need them: a row with a few values far above the rest leaves the rest
few steps, of which rounding is a large part. The question is put to each row's own numbers, so the answer, too, is the
same in any company.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from core.models.int8_bytes import BytesProduct, takes
from core.models.int8_fbgemm import NARROW, WIDE, FbgemmProduct, exact_reach
from core.models.int8_kernel import ProductCall

_LARGEST_SUM = (1 << 31) - 1  # the kernels' sums have 32 bits


def _reach(features: int, own: bool) -> int:
    """The largest number in a layer's quantised rows of so many. own: BytesProduct multiplies."""
    fits = (2 * WIDE + 1) * 127 * features <= _LARGEST_SUM  # the kernels' rows are unsigned: up to twice the reach
    if not fits:
        return NARROW
    return WIDE if own else exact_reach()


class _Int8Weights(nn.Module):
    """y = x W^T + b; W packed as int8 per output channel, b float32, x float32 [..., in] quantised row by row.

    enough: a row whose numbers' mean square, in steps, is less than this gets a fine row.
    """

    enough: ClassVar[float]
    bias: Tensor | None
    _product: BytesProduct | FbgemmProduct

    def __init__(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None) -> None:
        """weight: [out, in], perhaps as several matrices one below the other; bias: [out]; any float dtype."""
        super().__init__()
        parts = [weight] if isinstance(weight, Tensor) else weight
        self.out_features, self.in_features = sum(len(part) for part in parts), parts[0].shape[1]
        # A copy of the bias: what is kept must not be a view into a file.
        self.register_buffer("bias", None if bias is None else bias.to(torch.float32, copy=True), persistent=False)
        own = takes(self.in_features)
        self._product = BytesProduct(parts) if own else FbgemmProduct(parts)
        self._reach = _reach(self.in_features, own)

    def forward(self, x: Tensor) -> Tensor:
        y = self._product(self._rows(x), self._reach, self.enough, self._whole_bias())
        return y.view(*x.shape[:-1], self.out_features)

    def product_call(self) -> ProductCall | None:
        """What BytesProduct's compiled functions are told of the layer, which must outlive it; None if another
        multiplies."""
        if not isinstance(self._product, BytesProduct):
            return None
        return self._product.call(self._reach, self._whole_bias())

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """The weights as whole numbers, int8 [out, in], and what 1 of each output stands for, float32 [out]."""
        return self._product.unpacked()

    def _whole_bias(self) -> Tensor | None:
        """Kernels take its address too; a converted module has another one. TypeError if it is not float32."""
        if self.bias is not None and self.bias.dtype != torch.float32:
            raise TypeError(f"packed layers keep a float32 bias, not {self.bias.dtype}")
        return self.bias

    def _rows(self, x: Tensor) -> Tensor:
        """x [..., in] as contiguous rows [n, in]; TypeError, ValueError for what is no such x, since kernels take
        addresses and would not know."""
        if x.dtype != torch.float32:
            raise TypeError(f"packed layers take float32 activations, not {x.dtype}")
        if x.shape[-1] != self.in_features:
            raise ValueError(f"rows of {x.shape[-1]} numbers, a layer for {self.in_features}")
        return x.reshape(-1, self.in_features).contiguous()


class Int8Linear(_Int8Weights):
    """Coarse rows alone."""

    enough = 0.0


class Int8MixedLinear(_Int8Weights):
    """A fine row for each row whose rounding, some 0.3 steps, is more than a thirtieth of its numbers."""

    enough = 8.0**2


class Int8SplitLinear(_Int8Weights):
    """A fine row for every row."""

    enough = math.inf
