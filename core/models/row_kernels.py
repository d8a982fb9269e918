"""What layers do to rows of float32 on a CPU beside the matrix products, each in one pass over the row.

torch would take ten calls for the same, of microseconds each and a hundred layers a forward, and walk through the
memory ten times. numba compiles these functions to vectorised machine code once and keeps it on disk; they are
called by address, past its own dispatcher. Every row is treated alone, so that dividing rows among threads changes
nothing.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types

from core.models.compiling import compiled

_MAGNITUDE = np.int32(0x7FFFFFFF)  # of a float32's bits, all but the sign
_TINY = np.finfo(np.float32).tiny
_ROUNDER = np.float32(3 << 22)  # added and taken away again it leaves a float32 below 2**22 rounded, halves to even
_WEIGHT_RANGE, _LEAST_WEIGHT = np.float32(127), np.float32(-128)
_ONE, _ZERO = np.float32(1), np.float32(0)

_SHARED_SIZE = 1 << 20  # numbers from which on threads share the rows


@njit
def top_magnitude(row, steps, r):  # type: ignore[no-untyped-def]
    """The row's largest magnitude, left in steps[r]. NaN if the row has one: magnitudes are compared by their bits,
    which a machine can do for many at once and in which NaN is the largest."""
    bits = row.view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude > top:
            top = magnitude
    steps.view(np.int32)[r] = top
    return steps[r]


@njit
def _marked_before(fine, row):  # type: ignore[no-untyped-def]
    """How many rows before this one are marked."""
    count = 0
    for r in range(row):
        count += fine[r]
    return count


def _quantise(x, out, steps, fine, reach, enough, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> the first rows of out [.., n], whole numbers within +-reach; steps [rows]: what one of them stands
    for, NaN if the row has one; fine int32 [rows]: 1 if the row needs a second one for what its rounding lost, because
    the mean square of its numbers is less than `enough`, else 0."""
    x, out, steps, fine = carray(x, (rows, n)), carray(out, (rows, n)), carray(steps, (rows,)), carray(fine, (rows,))
    for r in range(begin, end):
        step = top_magnitude(x[r], steps, r) / np.float32(reach)
        steps[r] = step = _TINY if step < _TINY else step
        inverse = _ONE / step
        for i in range(n):
            out[r, i] = (x[r, i] * inverse + _ROUNDER) - _ROUNDER
        square = np.int64(0)  # of whole numbers, so that no order of adding them up makes a difference
        for i in range(n):
            number = np.int32(out[r, i])
            square += number * number
        fine[r] = square < enough * n


def _refine(x, out, steps, fine, reach, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """What rounding took from those rows of x [rows, n] that `fine` marks -> rows of out [rows + marked, n] behind the
    first ones, in their order: whole numbers within +-reach, of which 2 * reach make a step of the row."""
    x, steps, fine = carray(x, (rows, n)), carray(steps, (rows,)), carray(fine, (rows,))
    out = carray(out, (2 * rows, n))
    finer = np.float32(2 * reach)
    place = rows + _marked_before(fine, begin)
    for r in range(begin, end):
        if not fine[r]:
            continue
        inverse = _ONE / steps[r]
        for i in range(n):
            out[place, i] = ((x[r, i] * inverse - out[r, i]) * finer + _ROUNDER) - _ROUNDER
        place += 1


def _quantise_weights(x, out, scales, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> out int8, the largest of a row +-127; scales [rows]: what 1 stands for. The same numbers as
    torch's quantize_per_channel gives, also for rows so small that the inverse of their scale is infinite."""
    x, out, scales = carray(x, (rows, n)), carray(out, (rows, n)), carray(scales, (rows,))
    for r in range(begin, end):
        top = max(top_magnitude(x[r], scales, r), _TINY)
        scales[r] = top / _WEIGHT_RANGE
        inverse = _ONE / scales[r]
        for i in range(n):
            value = x[r, i] * inverse
            value = _ZERO if value != value else min(max(value, _LEAST_WEIGHT), _WEIGHT_RANGE)
            out[r, i] = np.int8((value + _ROUNDER) - _ROUNDER)


def _finish(products, steps, fine, bias, biased, reach, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """The first rows of products [rows + marked, n] become (coarse + fine / (2 * reach)) * steps + bias; the rows that
    `fine` marks have their fine products behind those. bias [n], read only if biased."""
    products, steps, fine = carray(products, (2 * rows, n)), carray(steps, (rows,)), carray(fine, (rows,))
    bias = carray(bias, (n,))
    place = rows + _marked_before(fine, begin)
    for r in range(begin, end):
        step, fine_step = steps[r], steps[r] / np.float32(2 * reach)
        if fine[r]:
            for i in range(n):
                whole = products[r, i] * step + products[place, i] * fine_step
                products[r, i] = whole + (bias[i] if biased else _ZERO)
            place += 1
        else:
            for i in range(n):
                products[r, i] = products[r, i] * step + (bias[i] if biased else _ZERO)


def rms_norm(x, weight, out, eps, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """out [rows, n] = x / sqrt(mean of x squared + eps) * weight [n]."""
    x, weight, out = carray(x, (rows, n)), carray(weight, (n,)), carray(out, (rows, n))
    for r in range(begin, end):
        total = _ZERO
        for i in range(n):
            total += x[r, i] * x[r, i]
        factor = _ONE / np.sqrt(total / np.float32(n) + np.float32(eps))
        for i in range(n):
            out[r, i] = (x[r, i] * factor) * weight[i]


class RowKernel:
    """A function of rows, compiled; to be called with addresses of tensors and with numbers in its order, up to
    `rows`, and the rows' number and size."""

    def __init__(
        self,
        function: Callable[..., None],
        arguments: str,
        sources: tuple[Sequence[str], str] = ((), ""),
        **options: Any,
    ) -> None:
        """arguments: p for a tensor of float32, b for one of int8, y for one of uint8, w for one of int32, l for one of
        int64, i for a whole number, f for a float. sources: as in `compiled`."""
        tensors = {"p": types.float32, "b": types.int8, "y": types.uint8, "w": types.int32, "l": types.int64}
        numba_types = {"i": types.intp, "f": types.float64} | {a: types.CPointer(t) for a, t in tensors.items()}
        c_types: dict[str, Any] = dict.fromkeys(tensors, ctypes.c_void_p)
        c_types |= {"i": ctypes.c_ssize_t, "f": ctypes.c_double}
        signature = types.void(*(numba_types[a] for a in arguments), *[types.intp] * 4)
        shape = [c_types[a] for a in arguments] + [ctypes.c_ssize_t] * 4
        self._compiled = compiled(signature, function, sources, **options)  # owns the code
        address = self._compiled.address
        self._alone = ctypes.PYFUNCTYPE(None, *shape)(address)  # so short that handing over the GIL costs more
        self._shared = ctypes.CFUNCTYPE(None, *shape)(address)

    def __call__(self, *arguments: float, rows: int, n: int) -> None:
        """arguments: a tensor's data_ptr for each p, b, y, w and l; the tensors contiguous."""
        if rows * n < _SHARED_SIZE:
            self._alone(*arguments, rows, n, 0, rows)
            return
        count = min(rows, torch.get_num_threads())
        ends = [rows * part // count for part in range(count + 1)]
        shares = [_threads().submit(self._shared, *arguments, rows, n, begin, end) for begin, end in pairwise(ends[1:])]
        self._shared(*arguments, rows, n, 0, ends[1])
        for share in shares:
            share.result()


@dataclass(frozen=True, slots=True)
class RowKernels:
    quantise_weights: RowKernel
    quantise: RowKernel
    refine: RowKernel
    finish: RowKernel
    rms_norm: RowKernel


@functools.cache
def row_kernels() -> RowKernels:
    """Compiled for this machine: at once where they lie in numba's cache, else within seconds."""
    return RowKernels(
        quantise_weights=RowKernel(_quantise_weights, "pbp"),
        quantise=RowKernel(_quantise, "pppwif"),
        refine=RowKernel(_refine, "pppwi"),
        finish=RowKernel(_finish, "ppwpii"),
        # The sum is taken in as many lanes as the machine has, the same way for every row.
        rms_norm=RowKernel(rms_norm, "pppf", fastmath={"reassoc"}),
    )


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1), thread_name_prefix="rows")
