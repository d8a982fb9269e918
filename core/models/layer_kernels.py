"""What a decoder layer does to float32 rows on a CPU between its matrix products: one pass over the memory each."""

import functools
from dataclasses import dataclass

import numpy as np
from numba import njit

from core.models.lanes import add, choose_below, divide, exp, load, magnitude, multiply, splat, store, subtract, zeros8
from core.models.pointers import at, put
from core.models.row_kernels import RowKernel

SOURCE_FILES = ("lanes.py", "pointers.py")
SOURCES = "29dc1d8c"  # their digest, see lanes.py

WIDTH = 8  # of the vectors here: what rows and half heads must be multiples of

_ONE, _MINUS_ONE, _ZERO = np.float32(1), np.float32(-1), np.float32(0)


@njit(fastmath={"reassoc"})
def _norm_factor(row, begin, n, eps):  # type: ignore[no-untyped-def]
    """1 / root of (mean of squares + eps), summed in as many lanes as the machine has, the same for every row."""
    total = _ZERO
    for i in range(n):
        value = at(row, begin + i)
        total += value * value
    return _ONE / np.sqrt(total / np.float32(n) + np.float32(eps))


def add_rows(x, more, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """x + more in x, both [rows, n]."""
    for i in range(begin * n, end * n):
        put(x, i, at(x, i) + at(more, i))


def add_norm(x, more, weight, total, out, eps, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """total = x + more; out = total normalised by its root mean square, times weight [n]; all others [rows, n]."""
    for r in range(begin, end):
        row = r * n
        for i in range(row, row + n):
            put(total, i, at(x, i) + at(more, i))
        factor = _norm_factor(total, row, n, eps)
        for i in range(n):
            put(out, row + i, (at(total, row + i) * factor) * at(weight, i))


def gate(both, out, rows, n, begin, end):  # type: ignore[no-untyped-def]
    """out [rows, n] = silu(gate) * up of both [rows, 2n], gate before up."""
    zero = zeros8()
    one, minus = splat(zero, _ONE), splat(zero, _MINUS_ONE)
    for r in range(begin, end):
        for i in range(0, n, 8):
            g = load(zero, both, 2 * r * n + i)
            # 1 / (1 + e^-g) with an exponent that is never positive: for a negative g it is e^g / (1 + e^g).
            shrunk = exp(multiply(magnitude(g), minus))
            share = divide(choose_below(g, zero, shrunk, one), add(one, shrunk))
            store(out, r * n + i, multiply(multiply(g, share), load(zero, both, (2 * r + 1) * n + i)))


@njit
def _rotate(source, begin, out, out_begin, factor, weight, normed, cos, sin, angles, dim):  # type: ignore[no-untyped-def]
    """A head at source[begin:] -> out[out_begin:]: times factor and weight if normed, then turned by halves."""
    zero, half = zeros8(), dim // 2
    scale = splat(zero, factor)
    for i in range(0, half, 8):
        a, b = load(zero, source, begin + i), load(zero, source, begin + half + i)
        if normed:
            a = multiply(multiply(a, scale), load(zero, weight, i))
            b = multiply(multiply(b, scale), load(zero, weight, half + i))
        c0, s0 = load(zero, cos, angles + i), load(zero, sin, angles + i)
        c1, s1 = load(zero, cos, angles + half + i), load(zero, sin, angles + half + i)
        store(out, out_begin + i, subtract(multiply(a, c0), multiply(b, s0)))
        store(out, out_begin + half + i, add(multiply(b, c1), multiply(a, s1)))


def place_heads(  # type: ignore[no-untyped-def]
    product, cos, sin, q_norm, k_norm, keys, values, slots, heads, kv_heads, dim, normed, eps, rows, n, begin, end
):
    """product [rows, n], a row's queries, keys and values side by side: queries are turned where they stand, keys are
    turned and put into the cache at the row's slot, values put there. cos, sin: [rows, dim]. slots: int64 [rows].
    q_norm, k_norm: [dim], weights of a head's own norm, if normed."""
    zero = zeros8()
    for r in range(begin, end):
        factor = _ONE
        for head in range(heads):
            own = r * n + head * dim
            if normed:
                factor = _norm_factor(product, own, dim, eps)
            _rotate(product, own, product, own, factor, q_norm, normed, cos, sin, r * dim, dim)
        for head in range(kv_heads):
            own = r * n + (heads + head) * dim
            there = (at(slots, r) * kv_heads + head) * dim
            if normed:
                factor = _norm_factor(product, own, dim, eps)
            _rotate(product, own, keys, there, factor, k_norm, normed, cos, sin, r * dim, dim)
            for i in range(0, dim, 8):
                store(values, there + i, load(zero, product, own + kv_heads * dim + i))


@dataclass(frozen=True, slots=True)
class LayerKernels:
    add_norm: RowKernel
    gate: RowKernel
    place_heads: RowKernel


@functools.cache
def layer_kernels() -> LayerKernels:
    """Compiled for this machine: at once where they lie in numba's cache, else within seconds."""
    sources = SOURCE_FILES, SOURCES
    return LayerKernels(
        add_norm=RowKernel(add_norm, "pppppf", sources),
        gate=RowKernel(gate, "pp", sources),
        place_heads=RowKernel(place_heads, "pppppppliiiif", sources),
    )
