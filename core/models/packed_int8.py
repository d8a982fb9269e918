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

import warnings

import torch
from torch import Tensor, nn

from core.models.fbgemm import packing
from core.models.row_kernels import row_kernels

_PIECE = 1 << 15  # numbers: torch would share out more among threads, of which each layer being packed has one
_ZERO_POINT = 64  # makes the numbers of a quantised row, within +-63, unsigned ones of 7 bits


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in], any float dtype -> int8 of the same shape, and float32 [out], what 1 of a row stands for.

    A few rows at a time, so that no more of the weights than a cache holds is ever there in float32.
    """
    out, n = weight.shape
    numbers, scales = torch.empty(out, n, dtype=torch.int8), torch.empty(out)
    piece = torch.empty(max(1, _PIECE // n), n)
    for begin in range(0, out, len(piece)):
        rows = weight[begin : begin + len(piece)]
        piece[: len(rows)].copy_(rows)
        places = numbers[begin].data_ptr(), scales[begin].data_ptr()
        row_kernels().quantise_weights(piece.data_ptr(), *places, rows=len(rows), n=n)
    return numbers, scales


class _Int8Weights(nn.Module):
    """W, packed as int8 per output channel, and b in float32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in], bias: [out]; any float dtype."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # A copy of the bias: what is kept must not be a view into a file.
        self.register_buffer("bias", None if bias is None else bias.to(torch.float32, copy=True), persistent=False)
        numbers, scales = _quantised(weight)
        with warnings.catch_warnings(), packing:
            # The quantised tensor lives only until it is packed; the packed kernel is what we are after.
            warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
            quantised = torch._make_per_channel_quantized_tensor(
                numbers, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0
            )
            self._packed = torch.ops.quantized.linear_prepack(quantised, None)

    def _rows(self, x: Tensor) -> Tensor:
        """x [..., in] as contiguous rows [n, in]; TypeError, ValueError for what is no such x, since kernels take
        addresses and would not know."""
        if x.dtype != torch.float32:
            raise TypeError(f"packed layers take float32 activations, not {x.dtype}")
        if x.shape[-1] != self.in_features:
            raise ValueError(f"rows of {x.shape[-1]} numbers, a layer for {self.in_features}")
        return x.reshape(-1, self.in_features).contiguous()

    def _bias(self) -> tuple[int, bool]:
        """Its address, and whether there is one; asked for at every call, since a copied or converted module has
        another."""
        return (0, False) if self.bias is None else (self.bias.data_ptr(), True)

    def _multiply(self, rows: Tensor) -> Tensor:
        """rows [n, in], whole numbers within +-63 -> their products with W, float32 [n, out]."""
        products: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            rows, 1.0, _ZERO_POINT, self._packed
        )
        return products


class Int8Linear(_Int8Weights):
    """y = x W^T + b; x float32 [..., in] quantised to 7 bits."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        count = rows.shape[0]
        steps, quantised = torch.empty(count), torch.empty_like(rows)
        kernels = row_kernels()
        kernels.quantise(rows.data_ptr(), quantised.data_ptr(), steps.data_ptr(), rows=count, n=self.in_features)
        y = self._multiply(quantised)
        kernels.finish(y.data_ptr(), steps.data_ptr(), *self._bias(), rows=count, n=self.out_features)
        return y.view(*x.shape[:-1], self.out_features)


class Int8SplitLinear(_Int8Weights):
    """y = x W^T + b; x float32 [..., in] split into a coarse and a fine row of 7 bits each."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        count = rows.shape[0]
        steps, both = torch.empty(count), torch.empty(2 * count, self.in_features)
        kernels = row_kernels()
        kernels.split(rows.data_ptr(), both.data_ptr(), steps.data_ptr(), rows=count, n=self.in_features)
        y = self._multiply(both)
        kernels.finish_split(y.data_ptr(), steps.data_ptr(), *self._bias(), rows=count, n=self.out_features)
        return y[:count].view(*x.shape[:-1], self.out_features)
