"""The compiled parts of BytesProduct (int8_bytes.py): rows to bytes, weights to panels, and the products of both."""

import ctypes

import numpy as np
from numba import carray, njit, types

from core.models.byte_dots import COLUMNS, GROUP, dots
from core.models.pointers import at, claim, floats_at, numbers_at, put, wholes_at
from core.models.row_kernels import top_magnitude

SOURCE_FILES = ("lanes.py", "pointers.py", "byte_dots.py", "row_kernels.py")
SOURCES = "285b4639"  # their digest, see lanes.py

_TINY = np.finfo(np.float32).tiny
_ROUNDER = np.float32(3 << 22)  # added and taken away again it leaves a float32 below 2**22 rounded, halves to even
_ONE, _ZERO = np.float32(1), np.float32(0)
_SUM_BYTES = 4 * COLUMNS

_dots1, _dots2, _dots3, _dots4, _dots5, _dots6 = (dots(rows) for rows in range(1, 7))


class ProductCall(ctypes.Structure):
    """What `multiply` is told, by address.

    claimed, joined: counters, 0 at the start: panels taken and threads at work. weights: [panels, groups, COLUMNS,
    GROUP] signed bytes. scales float32, sums int32 [columns]: what a weight's 1 stands for, and the sum of an output's
    weights. bias: float32 [columns], or 0. numbers: bytes [2 * rows, GROUP * groups], of which the row behind the first
    `rows` belongs to each that `fine` marks. steps float32, fine int32 [rows]. out: float32 [rows, columns]. scratch:
    for each thread a table of 2 * rows addresses and int32 [2 * rows, COLUMNS]. reach: what was added to each byte is
    one more.
    """

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "claimed", "joined", "weights", "scales", "sums", "bias", "numbers", "steps", "fine", "out", "scratch",
            "rows", "columns", "groups", "reach",
        )
    )  # fmt: skip


_CALL = np.dtype(ProductCall)
_CLAIMED, _JOINED = 0, 1  # the counters' places in it


def scratch_bytes(rows: int) -> int:
    """Of a thread that multiplies so many rows."""
    return 2 * rows * (8 + _SUM_BYTES)


def quantise(x, numbers, steps, fine, reach, enough, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x [rows, n] -> numbers, bytes [2 * rows, n]: whole numbers within +-reach, reach + 1 added; steps [rows]: what 1
    stands for, NaN if the row has one; fine int32 [rows]: 1 if the row needs a second one for what its rounding lost,
    because the mean square of its numbers is less than `enough`. That one stands `rows` further down: as many of its
    steps, 2 * reach of which make one of the row's. Without any (enough is 0) numbers may be [rows, n]."""
    x, steps, fine = carray(x, (rows, n)), carray(steps, (rows,)), carray(fine, (rows,))
    numbers = carray(numbers, (2 * rows, n))
    zero, finer = np.int32(reach + 1), np.float32(2 * reach)
    for r in range(begin, end):
        step = top_magnitude(x[r], steps, r) / np.float32(reach)
        steps[r] = step = _TINY if step < _TINY else step
        inverse, square = _ONE / step, np.int64(0)
        for i in range(n):
            value = x[r, i] * inverse
            value = value if value == value else _ZERO  # the row's step says that there was no number
            numbers[r, i] = np.uint8(np.int32((value + _ROUNDER) - _ROUNDER) + zero)
        for i in range(n):
            number = np.int32(numbers[r, i]) - zero
            square += number * number
        fine[r] = square < enough * n
        if fine[r]:
            for i in range(n):
                value = x[r, i] * inverse
                value = value if value == value else _ZERO
                rest = (value - ((value + _ROUNDER) - _ROUNDER)) * finer
                numbers[rows + r, i] = np.uint8(np.int32((rest + _ROUNDER) - _ROUNDER) + zero)


def place(weights, panel, sums, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """weights, signed bytes [rows, n] of up to COLUMNS outputs -> their panel, [n / GROUP, COLUMNS, GROUP]; sums int32
    [rows]: of an output's weights. What the panel has beyond `rows` columns stays as it is."""
    groups = n // GROUP
    whole, panel = carray(weights, (rows, n)), carray(panel, (groups, COLUMNS, GROUP))
    sums = carray(sums, (rows,))
    for r in range(begin, end):
        total = np.int32(0)
        for i in range(n):
            total += np.int32(whole[r, i])
        sums[r] = total
    for first in range(0, groups, 16):  # so that the lines written to stay near
        for r in range(begin, end):
            for group in range(first, min(groups, first + 16)):
                for i in range(GROUP):
                    panel[group, r, i] = whole[r, group * GROUP + i]


@njit
def _list_rows(call, table):  # type: ignore[no-untyped-def]
    """Addresses of the rows to multiply: all, then the fine ones of those that are marked. How many."""
    fine, size, count = numbers_at(call.fine), call.groups * GROUP, call.rows
    for r in range(call.rows):
        put(table, r, call.numbers + r * size)
        if at(fine, r):
            put(table, count, call.numbers + (call.rows + r) * size)
            count += 1
    return count


@njit
def _dots(weights, table, count, groups, out):  # type: ignore[no-untyped-def]
    """All rows' sums with a panel, in loops of about as many rows each."""
    first = 0
    while first < count:
        left = count - first
        loops = (left + 5) // 6
        rows = (left + loops - 1) // loops
        place = out + first * _SUM_BYTES
        if rows == 6:
            _dots6(weights, table, first, groups, place)
        elif rows == 5:
            _dots5(weights, table, first, groups, place)
        elif rows == 4:
            _dots4(weights, table, first, groups, place)
        elif rows == 3:
            _dots3(weights, table, first, groups, place)
        elif rows == 2:
            _dots2(weights, table, first, groups, place)
        else:
            _dots1(weights, table, first, groups, place)
        first += rows


@njit
def _write(call, panel, sums_at):  # type: ignore[no-untyped-def]
    """(coarse + fine / (2 * reach)) * step + bias of all rows, a panel's columns."""
    begin = panel * COLUMNS
    width = min(COLUMNS, call.columns - begin)
    scales, totals = floats_at(call.scales + 4 * begin), numbers_at(call.sums + 4 * begin)
    steps, fine, found = floats_at(call.steps), numbers_at(call.fine), numbers_at(sums_at)
    zero, refined = np.int32(call.reach + 1), call.rows
    for r in range(call.rows):
        out = floats_at(call.out + 4 * (r * call.columns + begin))
        step, own = at(steps, r), r * COLUMNS
        if at(fine, r):
            fine_step, other = step / np.float32(2 * call.reach), refined * COLUMNS
            refined += 1
            for c in range(width):
                coarse = np.float32(np.int32(at(found, own + c) - zero * at(totals, c))) * at(scales, c)
                rest = np.float32(np.int32(at(found, other + c) - zero * at(totals, c))) * at(scales, c)
                put(out, c, coarse * step + rest * fine_step)
        else:
            for c in range(width):
                put(out, c, np.float32(np.int32(at(found, own + c) - zero * at(totals, c))) * at(scales, c) * step)
        if call.bias:
            bias = floats_at(call.bias + 4 * begin)
            for c in range(width):
                put(out, c, at(out, c) + at(bias, c))


def multiply(pointer):  # type: ignore[no-untyped-def]
    """One thread's share of a ProductCall: panels until none is left."""
    call = carray(pointer, 1, _CALL)[0]
    scratch = call.scratch + claim(pointer, _JOINED) * 2 * call.rows * (8 + _SUM_BYTES)
    count, found = _list_rows(call, wholes_at(scratch)), scratch + 16 * call.rows
    panels = (call.columns + COLUMNS - 1) // COLUMNS
    while True:
        panel = claim(pointer, _CLAIMED)
        if panel >= panels:
            break
        weights = call.weights + panel * call.groups * COLUMNS * GROUP
        _dots(weights, scratch, count, call.groups, found)
        _write(call, panel, found)


SIGNATURE = types.void(types.voidptr)
