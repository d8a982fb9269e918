"""What layers do to rows of float32 on a CPU beside the matrix products, each in one pass over the row.

torch would take ten calls for the same, of microseconds each and a hundred layers a forward, and walk through the
memory ten times. numba compiles these functions to vectorised machine code once and keeps it on disk; they are
called by address, past its own dispatcher. Every row is treated alone, so that dividing rows among threads changes
nothing.
"""

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types

HALF_RANGE = 63  # a quantised row's largest value becomes +-63
FINE_STEPS = 126  # of a fine row in one step of its coarse row

_MAGNITUDE = np.int32(0x7FFFFFFF)  # of a float32's bits, all but the sign
_TINY = np.finfo(np.float32).tiny
_ROUNDER = np.float32(3 << 22)  # added and taken away again it leaves a float32 below 2**22 rounded, halves to even
_HALF_RANGE = np.float32(HALF_RANGE)
_FINE_STEPS = np.float32(FINE_STEPS)
_WEIGHT_RANGE, _LEAST_WEIGHT = np.float32(127), np.float32(-128)
_ONE, _ZERO = np.float32(1), np.float32(0)

_SHARED_SIZE = 1 << 20  # numbers from which on threads share the rows


@njit
def _top(row, steps, r):  # type: ignore[no-untyped-def]
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
def _measure(row, steps, r):  # type: ignore[no-untyped-def]
    """steps[r] = what one step of a quantised row stands for; NaN if the row has one."""
    step = _top(row, steps, r) / _HALF_RANGE
    steps[r] = _TINY if step < _TINY else step


def _quantise(x, out, steps, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> out: whole numbers within +-63; steps [rows]: what one of them stands for."""
    x, out, steps = carray(x, (rows, n)), carray(out, (rows, n)), carray(steps, (rows,))
    for r in range(begin, end):
        _measure(x[r], steps, r)
        inverse = _ONE / steps[r]
        for i in range(n):
            out[r, i] = (x[r, i] * inverse + _ROUNDER) - _ROUNDER


def _split(x, both, steps, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> both [2 * rows, n], whole numbers within +-63: the coarse rows, then the fine ones."""
    x, both, steps = carray(x, (rows, n)), carray(both, (2 * rows, n)), carray(steps, (rows,))
    for r in range(begin, end):
        _measure(x[r], steps, r)
        inverse = _ONE / steps[r]
        for i in range(n):
            value = x[r, i] * inverse
            coarse = (value + _ROUNDER) - _ROUNDER
            both[r, i] = coarse
            both[rows + r, i] = ((value - coarse) * _FINE_STEPS + _ROUNDER) - _ROUNDER


def _quantise_weights(x, out, scales, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> out int8, the largest of a row +-127; scales [rows]: what 1 stands for. The same numbers as
    torch's quantize_per_channel gives, also for rows so small that the inverse of their scale is infinite."""
    x, out, scales = carray(x, (rows, n)), carray(out, (rows, n)), carray(scales, (rows,))
    for r in range(begin, end):
        top = max(_top(x[r], scales, r), _TINY)
        scales[r] = top / _WEIGHT_RANGE
        inverse = _ONE / scales[r]
        for i in range(n):
            value = x[r, i] * inverse
            value = _ZERO if value != value else min(max(value, _LEAST_WEIGHT), _WEIGHT_RANGE)
            out[r, i] = np.int8((value + _ROUNDER) - _ROUNDER)


def _finish(products, steps, bias, biased, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """products [rows, n] become products * steps + bias; bias [n], read only if biased."""
    products, steps, bias = carray(products, (rows, n)), carray(steps, (rows,)), carray(bias, (n,))
    for r in range(begin, end):
        step = steps[r]
        for i in range(n):
            products[r, i] = products[r, i] * step + (bias[i] if biased else _ZERO)


def _finish_split(products, steps, bias, biased, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """Of products [2 * rows, n] the first half becomes (coarse + fine / 126) * steps + bias."""
    products, steps, bias = carray(products, (2 * rows, n)), carray(steps, (rows,)), carray(bias, (n,))
    for r in range(begin, end):
        step, fine_step = steps[r], steps[r] / _FINE_STEPS
        for i in range(n):
            whole = products[r, i] * step + products[rows + r, i] * fine_step
            products[r, i] = whole + (bias[i] if biased else _ZERO)


def _rms_norm(x, weight, out, eps, rows, n, begin, end):  # type: ignore[no-untyped-def]
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
    """One of the functions above, compiled; to be called with tensors and numbers in its order, up to `biased`
    or `eps`, and the rows' number and size."""

    def __init__(self, function: Callable[..., None], arguments: str, **options: Any) -> None:
        """arguments: p for a tensor of float32, b for one of int8, i for a whole number, f for a float."""
        floats, bytes_ = types.CPointer(types.float32), types.CPointer(types.int8)
        numba_types = {"p": floats, "b": bytes_, "i": types.intp, "f": types.float64}
        c_types = {"p": ctypes.c_void_p, "b": ctypes.c_void_p, "i": ctypes.c_ssize_t, "f": ctypes.c_double}
        signature = types.void(*(numba_types[a] for a in arguments), *[types.intp] * 4)
        try:
            compiled = cfunc(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder to keep it in, or no room there
            compiled = cfunc(signature, **options)(function)
        shape = [c_types[a] for a in arguments] + [ctypes.c_ssize_t] * 4
        self._compiled = compiled  # owns the code
        self._alone = ctypes.PYFUNCTYPE(None, *shape)(compiled.address)  # so short that handing over the GIL costs more
        self._shared = ctypes.CFUNCTYPE(None, *shape)(compiled.address)

    def __call__(self, *arguments: float, rows: int, n: int) -> None:
        """arguments: a tensor's data_ptr for each p and b; the tensors contiguous."""
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
    split: RowKernel
    finish: RowKernel
    finish_split: RowKernel
    rms_norm: RowKernel


@functools.cache
def row_kernels() -> RowKernels:
    """Compiled for this machine: at once where they lie in numba's cache, else within seconds."""
    return RowKernels(
        quantise_weights=RowKernel(_quantise_weights, "pbp"),
        quantise=RowKernel(_quantise, "ppp"),
        split=RowKernel(_split, "ppp"),
        finish=RowKernel(_finish, "pppi"),
        finish_split=RowKernel(_finish_split, "pppi"),
        # The sum is taken in as many lanes as the machine has, the same way for every row.
        rms_norm=RowKernel(_rms_norm, "pppf", fastmath={"reassoc"}),
    )


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1), thread_name_prefix="rows")
