"""Linear layers with 8-bit weights, one scale per output channel, and integer products.

Every activation row is quantised by its own scale: rows never see each other (a scale over the whole batch
would let neighbours change an answer). It is quantised to 7 bits, because two products of a 7-bit unsigned and
an 8-bit signed number fit the 16-bit lanes of AVX2's multiply-add (2 * 127 * 127 = 32258 < 32768), which would
saturate with 8 bits.

Int8SplitLinear adds a second row of 7 bits for what the first one's rounding lost. Worked example, a row whose
largest value is 63, so that its scale is 1:

    row     63.0   2.3    -7.75
    coarse  63     2      -8        rounded
    fine    0      38     32        what that lost, at most half a step: (row - coarse) * 126 rounded, +-63
    stands for  63, 2 + 38/126 = 2.3016, -8 + 32/126 = -7.7460

Both rows go through one call of the kernel, which reads the weights once: nearly 14 bits for the price of twice
the rows, and what remains is the weights' own rounding.
"""

import math
import warnings

import torch
from torch import Tensor, nn

from core.models.fbgemm import packing

_HALF_RANGE = 63.0  # a row's largest value becomes +-63 around the zero point
_ZERO_POINT = 64
_FINE_STEPS = 126.0  # of a fine row in one step of its coarse row
_TINY = torch.finfo(torch.float32).tiny


class _Int8Weights(nn.Module):
    """W, packed as int8 per output channel, and b in float32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in], bias: [out]; any float dtype."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # A copy of the bias: what is kept must not be a view into a file.
        self.register_buffer("bias", None if bias is None else bias.to(torch.float32, copy=True), persistent=False)
        weight = weight.float()
        low, high = weight.aminmax(dim=1)  # a copy of all magnitudes would be the largest thing that loading holds
        scales = torch.maximum(high, low.neg()).clamp_min_(_TINY).div_(127).double()
        with warnings.catch_warnings(), packing:
            # The quantised tensor lives only until it is packed; the packed kernel is what we are after.
            warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
            quantised = torch.quantize_per_channel(
                weight, scales, torch.zeros_like(scales, dtype=torch.long), 0, torch.qint8
            )
            self._packed = torch.ops.quantized.linear_prepack(quantised, None)

    def _multiply(self, rows: Tensor) -> Tensor:
        """rows [n, in] of -63 .. 63, rounded by the kernel -> their products with W, float32 [n, out]."""
        products: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, 1.0, _ZERO_POINT, self._packed
        )
        return products

    def _finish(self, products: Tensor, scale: Tensor, shape: torch.Size) -> Tensor:
        """products [n, out] times scale [n, 1] plus b, as [*shape[:-1], out]."""
        y = products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)
        return y.view(*shape[:-1], self.out_features)


class Int8Linear(_Int8Weights):
    """y = x W^T + b; x float32 [..., in] quantised to 7 bits."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        scale = _scales(rows)
        return self._finish(self._multiply(rows / scale), scale, x.shape)


class Int8SplitLinear(_Int8Weights):
    """y = x W^T + b; x float32 [..., in] split into a coarse and a fine row of 7 bits each."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        count, scale = rows.shape[0], _scales(rows)
        both = rows.new_empty(2 * count, self.in_features)
        coarse, fine = both[:count], both[count:]
        torch.div(rows, scale, out=fine)
        torch.round(fine, out=coarse)  # here, not by the kernel: both rows must mean the same coarse value
        fine.sub_(coarse).mul_(_FINE_STEPS)
        products = self._multiply(both)
        whole = torch.add(products[:count], products[count:], alpha=1 / _FINE_STEPS)
        return self._finish(whole, scale, x.shape)


def _scales(rows: Tensor) -> Tensor:
    """What one step of each row stands for, [n, 1]."""
    return torch.linalg.vector_norm(rows, math.inf, dim=1, keepdim=True).div_(_HALF_RANGE).clamp_min_(_TINY)
