"""BytesProduct: quantised rows times 8-bit weights by the machine's own dot products of bytes (byte_dots.py).

A panel of 64 outputs lies in memory as the inner loop reads it, one line after another, and stays in the second-level
cache while all rows are multiplied with it: so weights are read from memory once, however many rows there are. What
follows a product, scales and bias and the two halves of a split row, is done on the panel's sums before the next one
is read. Threads take panels one by one; which of them takes which changes nothing.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.models import int8_kernel
from core.models.byte_dots import COLUMNS, GROUP, available
from core.models.compiling import compiled
from core.models.int8_kernel import ProductCall, scratch_bytes
from core.models.row_kernels import RowKernel, row_kernels
from core.models.team import TeamFunction

SHORT = 1 << 24
"""Products of a call that takes a fraction of a millisecond."""

ALONE = 1 << 17
"""Products of one that is over before other threads would have begun."""


class BytesProduct:
    """The weights of a layer, packed, and what multiplies rows with them."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """parts: matrices [out, in] of any float dtype, one below the other; `in` a multiple of GROUP."""
        out, n = sum(len(part) for part in parts), parts[0].shape[1]
        self.out_features, self.in_features = out, n
        panels = -(-out // COLUMNS)
        self._weights = torch.empty(panels, n // GROUP, COLUMNS, GROUP, dtype=torch.int8)
        if out % COLUMNS:
            self._weights[-1].zero_()
        self._scales, self._sums = torch.empty(out, dtype=torch.float32), torch.empty(out, dtype=torch.int32)
        self._pack(parts)

    def _pack(self, parts: Sequence[Tensor]) -> None:
        """A panel at a time, so that no more of the weights than a cache holds is ever there in float32."""
        n, done = self.in_features, 0
        floats, numbers = torch.empty(COLUMNS, n), torch.empty(COLUMNS, n, dtype=torch.int8)
        pieces = [piece for part in parts for piece in part.split(COLUMNS)]  # type: ignore[no-untyped-call]
        for piece in pieces:
            taken = 0
            while taken < len(piece):  # a piece may lie across two panels
                panel, first = divmod(done, COLUMNS)
                count = min(len(piece) - taken, COLUMNS - first)
                floats[:count].copy_(piece[taken : taken + count])
                scales, sums = self._scales[done:], self._sums[done:]
                places = numbers.data_ptr(), scales.data_ptr()
                row_kernels().quantise_weights(floats.data_ptr(), *places, rows=count, n=n)
                panel_at = self._weights[panel].data_ptr() + first * GROUP
                _kernels().place(numbers.data_ptr(), panel_at, sums.data_ptr(), rows=count, n=n)
                done, taken = done + count, taken + count

    def __call__(self, rows: Tensor, reach: int, enough: float, bias: Tensor | None) -> Tensor:
        """rows: float32 [n, in], contiguous. float32 [n, out]. reach, enough: as in packed_int8.py."""
        count, n, kernels = len(rows), self.in_features, _kernels()
        out = torch.empty(count, self.out_features, dtype=torch.float32)
        if not count:
            return out
        steps, fine = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.int32)
        numbers = torch.empty(2 * count if enough else count, n, dtype=torch.uint8)
        places = numbers.data_ptr(), steps.data_ptr(), fine.data_ptr()
        kernels.quantise(rows.data_ptr(), *places, reach, enough, rows=count, n=n)
        products = count * n * self.out_features
        threads = torch.get_num_threads() if products >= ALONE else 1
        scratch = torch.empty(threads * scratch_bytes(count), dtype=torch.uint8)
        call = self.call(reach, bias)
        call.numbers, call.steps, call.fine = places
        call.out, call.scratch, call.rows = out.data_ptr(), scratch.data_ptr(), count
        kernels.multiply(ctypes.addressof(call), threads, products <= SHORT)
        return out

    def call(self, reach: int, bias: Tensor | None) -> ProductCall:
        """What the compiled function is told, but for the rows. It holds addresses of the weights and the bias."""
        return ProductCall(
            weights=self._weights.data_ptr(),
            scales=self._scales.data_ptr(),
            sums=self._sums.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            columns=self.out_features,
            groups=self.in_features // GROUP,
            reach=reach,
        )

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """The weights as whole numbers, int8 [out, in], and what 1 of each output stands for, float32 [out]."""
        panels = self._weights.permute(0, 2, 1, 3).reshape(-1, self.in_features)
        return panels[: self.out_features].clone(), self._scales.clone()


def takes(in_features: int) -> bool:
    """Whether this machine has what it needs, for rows of so many numbers."""
    return available() and in_features % GROUP == 0


@dataclass(frozen=True, slots=True)
class _Kernels:
    quantise: RowKernel
    place: RowKernel
    multiply: TeamFunction


@functools.cache
def _kernels() -> _Kernels:
    """Compiled for this machine: at once where they lie in numba's cache, else within seconds."""
    sources = int8_kernel.SOURCE_FILES, int8_kernel.SOURCES
    return _Kernels(
        quantise=RowKernel(int8_kernel.quantise, "pypwif", sources),
        place=RowKernel(int8_kernel.place, "bbw", sources),
        multiply=TeamFunction(compiled(int8_kernel.SIGNATURE, int8_kernel.multiply, sources)),
    )
