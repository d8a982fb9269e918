"""FbgemmProduct: quantised rows times 8-bit weights by FBGEMM, where the machine lacks what BytesProduct needs."""

import functools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from core.models.fbgemm import packing
from core.models.row_kernels import row_kernels

WIDE, NARROW = 127, 63  # a quantised row's largest value becomes plus or minus so much
_PIECE = 1 << 15  # numbers: torch would share out more among threads, of which each layer being packed has one


class FbgemmProduct:
    """The weights of a layer, packed, and what multiplies rows with them."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """parts: matrices [out, in] of any float dtype, one below the other."""
        self.out_features, self.in_features = sum(len(part) for part in parts), parts[0].shape[1]
        self._packed = _pack(_quantised(parts))

    def __call__(self, rows: Tensor, reach: int, enough: float, bias: Tensor | None) -> Tensor:
        """rows: float32 [n, in], contiguous. float32 [n, out]. reach, enough: as in packed_int8.py."""
        count, n, kernels = len(rows), self.in_features, row_kernels()
        steps, fine = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.int32)
        whole = torch.empty(2 * count if enough else count, n, dtype=torch.float32)
        places = rows.data_ptr(), whole.data_ptr(), steps.data_ptr(), fine.data_ptr()
        kernels.quantise(*places, reach, enough, rows=count, n=n)
        refined = sum(fine.tolist()) if enough else 0
        if refined:
            kernels.refine(*places, reach, rows=count, n=n)
        y = _multiply(whole[: count + refined], reach, self._packed)
        biased = (0, False) if bias is None else (bias.data_ptr(), True)
        kernels.finish(y.data_ptr(), *places[2:], *biased, reach, rows=count, n=self.out_features)
        return y[:count]

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """The weights as whole numbers, int8 [out, in], and what 1 of each output stands for, float32 [out]."""
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return weight.int_repr(), weight.q_per_channel_scales().float()


@functools.cache
def exact_reach() -> int:
    """The largest number that quantised rows may hold on this machine with exact products: 127 or 63.

    Tried rather than read from the processor's name: which kernel multiplies is the library's own choice.
    """
    signs = torch.ones(3, 256)
    signs[1] = -1
    signs[2, ::2] = -1
    exact = signs @ signs.T * (127 * WIDE)
    ones = torch.ones(3, dtype=torch.float64)
    packed = _pack(torch.quantize_per_channel(signs * 127, ones, torch.zeros(3, dtype=torch.long), 0, torch.qint8))
    return WIDE if torch.equal(_multiply(signs * WIDE, WIDE, packed), exact) else NARROW


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
