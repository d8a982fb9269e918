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

import functools
import math
import warnings
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from core.models.fbgemm import packing
from core.models.row_kernels import row_kernels

_PIECE = 1 << 15  # numbers: torch would share out more among threads, of which each layer being packed has one
_WIDE, _NARROW = 127, 63  # a quantised row's largest value becomes plus or minus so much
_LARGEST_SUM = (1 << 31) - 1  # the kernels' sums have 32 bits


@functools.cache
def exact_reach() -> int:
    """The largest number that quantised rows may hold on this machine with exact products: 127 or 63.

    Tried rather than read from the processor's name: which kernel multiplies is the library's own choice.
    """
    signs = torch.ones(3, 256)
    signs[1] = -1
    signs[2, ::2] = -1
    exact = signs @ signs.T * (127 * _WIDE)
    ones = torch.ones(3, dtype=torch.float64)
    packed = _pack(torch.quantize_per_channel(signs * 127, ones, torch.zeros(3, dtype=torch.long), 0, torch.qint8))
    return _WIDE if torch.equal(_multiply(signs * _WIDE, _WIDE, packed), exact) else _NARROW


def _reach(features: int) -> int:
    """The largest number in a layer's quantised rows of so many."""
    fits = (2 * _WIDE + 1) * 127 * features <= _LARGEST_SUM  # the kernel's rows are unsigned: up to twice the reach
    return exact_reach() if fits else _NARROW


def _quantised(parts: Sequence[Tensor]) -> Tensor:
    """Weights [out, in], any float dtype, one below the other -> a quantised tensor, by a scale for each row.

    A few rows at a time, so that no more of the weights than a cache holds is ever there in float32, and straight into
    their place: every further copy of a layer would be memory to be cleared first.
    """
    out, n = sum(len(part) for part in parts), parts[0].shape[1]
    quantised = _quantised_tensor(torch.empty(out, dtype=torch.float64), n)
    scales = torch.empty(out, dtype=torch.float32)
    numbers, item = quantised.data_ptr(), scales.element_size()
    piece, done = torch.empty(max(1, _PIECE // n), n, dtype=torch.float32), 0
    for part in parts:
        for rows in part.split(len(piece)):  # type: ignore[no-untyped-call]
            piece[: len(rows)].copy_(rows)
            places = numbers + done * n, scales.data_ptr() + done * item
            row_kernels().quantise_weights(piece.data_ptr(), *places, rows=len(rows), n=n)
            done += len(rows)
    quantised.q_per_channel_scales().copy_(scales)
    return quantised


def _quantised_tensor(scales: Tensor, n: int) -> Tensor:
    """int8 [out, n], not filled. scales: float64 [out], which it holds."""
    with warnings.catch_warnings():
        # It lives only until it is packed; the packed kernel is what we are after.
        warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
        zeros = torch.zeros(len(scales), dtype=torch.long)
        return torch._empty_per_channel_affine_quantized(
            (len(scales), n), scales=scales, zero_points=zeros, axis=0, dtype=torch.qint8
        )


def _pack(quantised: Tensor) -> torch.ScriptObject:
    """int8 [out, in] with a scale for each row -> what the kernel reads instead."""
    with packing:
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantised, None)
        return packed


def _multiply(rows: Tensor, reach: int, packed: torch.ScriptObject) -> Tensor:
    """rows [n, in], whole numbers within +-reach -> their products with the weights, float32 [n, out]."""
    zero_point = reach + 1  # makes them unsigned
    products: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
        rows, 1.0, zero_point, packed
    )
    return products


class _Int8Weights(nn.Module):
    """y = x W^T + b; W packed as int8 per output channel, b float32, x float32 [..., in] quantised row by row.

    enough: a row whose numbers' mean square, in steps, is less than this gets a fine row.
    """

    enough: ClassVar[float]
    bias: Tensor | None

    def __init__(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None) -> None:
        """weight: [out, in], perhaps as several matrices one below the other; bias: [out]; any float dtype."""
        super().__init__()
        parts = [weight] if isinstance(weight, Tensor) else weight
        self.out_features, self.in_features = sum(len(part) for part in parts), parts[0].shape[1]
        # A copy of the bias: what is kept must not be a view into a file.
        self.register_buffer("bias", None if bias is None else bias.to(torch.float32, copy=True), persistent=False)
        self._packed = _pack(_quantised(parts))
        self._reach = _reach(self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        count, reach, kernels = rows.shape[0], self._reach, row_kernels()
        steps, fine = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.int32)
        whole = torch.empty(2 * count if self.enough else count, self.in_features, dtype=torch.float32)
        places = rows.data_ptr(), whole.data_ptr(), steps.data_ptr(), fine.data_ptr()
        kernels.quantise(*places, reach, self.enough, rows=count, n=self.in_features)
        refined = sum(fine.tolist()) if self.enough else 0
        if refined:
            kernels.refine(*places, reach, rows=count, n=self.in_features)
        y = _multiply(whole[: count + refined], reach, self._packed)
        kernels.finish(y.data_ptr(), *places[2:], *self._bias(), reach, rows=count, n=self.out_features)
        return y[:count].view(*x.shape[:-1], self.out_features)

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


class Int8Linear(_Int8Weights):
    """Coarse rows alone."""

    enough = 0.0


class Int8MixedLinear(_Int8Weights):
    """A fine row for each row whose rounding, some 0.3 steps, is more than a thirtieth of its numbers."""

    enough = 8.0**2


class Int8SplitLinear(_Int8Weights):
    """A fine row for every row."""

    enough = math.inf
