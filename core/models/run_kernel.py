"""The compiled part of FusedRun (fused_run.py): consecutive layers as stages of one function.

In each stage every thread takes its share, rows or panels of weights or items of attention; then they meet. A row's
own arithmetic is that of the functions between the products (layer_kernels.py), of the products (int8_kernel.py) and
of the attention (attention_kernel.py), whoever computes it and in whatever company.
"""

import numpy as np
from numba import carray, njit, types

from core.models.attention_call import AttentionCall
from core.models.attention_kernel import attend
from core.models.byte_dots import GROUP
from core.models.int8_kernel import ProductCall, multiply, quantise
from core.models.layer_kernels import add_norm, add_rows, gate, place_heads
from core.models.pointers import anything_at, bytes_at, claim, floats_at, numbers_at, wholes_at
from core.models.rendezvous import call_number, meet
from core.models.row_kernels import rms_norm
from core.models.run_call import LAYOUT, LayerParts, RunCall

SOURCE_FILES = (
    "lanes.py", "pointers.py", "byte_dots.py", "row_kernels.py", "attention_call.py", "rendezvous.py", "run_call.py",
    "layer_kernels.py", "int8_kernel.py", "attention_kernel.py",
)  # fmt: skip
SOURCES = "69cb5dc4"  # their digest, see lanes.py

_RUN, _PARTS = np.dtype(RunCall), np.dtype(LayerParts)
_PRODUCT, _ATTENTION = np.dtype(ProductCall), np.dtype(AttentionCall)
_PARTS_SIZE = _PARTS.itemsize
_JOINED, _MET = 0, 1  # the counters' places in RunCall

_rms_norm = njit(fastmath={"reassoc"})(rms_norm)
_quantise, _multiply, _attend = njit(quantise), njit(multiply), njit(attend)
_add_norm, _add_rows, _gate, _place_heads = njit(add_norm), njit(add_rows), njit(gate), njit(place_heads)


@njit
def _set_product(address, call, out):  # type: ignore[no-untyped-def]
    product = carray(anything_at(address), 1, _PRODUCT)[0]
    product.claimed = 0
    product.joined = 0
    product.numbers, product.steps, product.fine = call.numbers, call.steps, call.fine
    product.scratch, product.rows, product.out = call.scratch, call.rows, out


@njit
def _set_layer(call, part):  # type: ignore[no-untyped-def]
    """A layer's calls are told of this forward."""
    _set_product(part.qkv, call, call.product)
    _set_product(part.output, call, call.projected)
    _set_product(part.gate_up, call, call.both)
    _set_product(part.down, call, call.projected)
    attention = carray(anything_at(part.attention), 1, _ATTENTION)[0]
    attention.claimed = 0
    attention.joined = 0
    attention.query, attention.query_head = call.product, call.dim
    attention.query_row = (call.heads + 2 * call.kv_heads) * call.dim
    attention.out, attention.keys, attention.values = call.mixed, part.keys, part.values


@njit
def _quantised(call, part, product, source, begin, end):  # type: ignore[no-untyped-def]
    """Rows of `source`, as a product takes them."""
    told = carray(anything_at(product), 1, _PRODUCT)[0]
    n, numbers, fine = told.groups * GROUP, bytes_at(call.numbers), numbers_at(call.fine)
    steps, rows = floats_at(call.steps), floats_at(source)
    _quantise(rows, numbers, steps, fine, told.reach, part.enough, call.rows, n, begin, end)


@njit
def _attention(call, part, counters, threads, begin, end):  # type: ignore[no-untyped-def]
    """x -> mixed."""
    rows, n, x, normed = call.rows, call.hidden, floats_at(call.x), floats_at(call.normed)
    _rms_norm(x, floats_at(part.input_norm), normed, part.input_eps, rows, n, begin, end)
    _quantised(call, part, part.qkv, call.normed, begin, end)
    meet(counters, _MET, threads, call.give_way)
    _multiply(anything_at(part.qkv))
    meet(counters, _MET, threads, call.give_way)
    _place_heads(
        floats_at(call.product),
        floats_at(call.cos),
        floats_at(call.sin),
        floats_at(part.q_norm),
        floats_at(part.k_norm),
        floats_at(part.keys),
        floats_at(part.values),
        wholes_at(call.slots),
        call.heads,
        call.kv_heads,
        call.dim,
        call.head_norms,
        part.head_eps,
        rows,
        (call.heads + 2 * call.kv_heads) * call.dim,
        begin,
        end,
    )
    meet(counters, _MET, threads, call.give_way)
    _attend(anything_at(part.attention))
    meet(counters, _MET, threads, call.give_way)


@njit
def _layer(call, part, counters, me, threads):  # type: ignore[no-untyped-def]
    rows, n, x, projected = call.rows, call.hidden, floats_at(call.x), floats_at(call.projected)
    begin, end = rows * me // threads, rows * (me + 1) // threads
    if me == 0:
        _set_layer(call, part)
    _attention(call, part, counters, threads, begin, end)
    _quantised(call, part, part.output, call.mixed, begin, end)
    meet(counters, _MET, threads, call.give_way)
    _multiply(anything_at(part.output))
    meet(counters, _MET, threads, call.give_way)
    _add_norm(x, projected, floats_at(part.norm), x, floats_at(call.normed), part.eps, rows, n, begin, end)
    _quantised(call, part, part.gate_up, call.normed, begin, end)
    meet(counters, _MET, threads, call.give_way)
    _multiply(anything_at(part.gate_up))
    meet(counters, _MET, threads, call.give_way)
    _gate(floats_at(call.both), floats_at(call.gated), rows, call.between, begin, end)
    _quantised(call, part, part.down, call.gated, begin, end)
    meet(counters, _MET, threads, call.give_way)
    _multiply(anything_at(part.down))
    meet(counters, _MET, threads, call.give_way)
    _add_rows(x, projected, rows, n, begin, end)


def run_layers(pointer):  # type: ignore[no-untyped-def]
    """One thread's share of a RunCall; none at all of one that is laid out otherwise."""
    call = carray(pointer, 1, _RUN)[0]
    if call.layout != LAYOUT:
        return
    me = claim(pointer, _JOINED)
    threads = call_number(call.team_size)
    for layer in range(call.layers):
        part = carray(anything_at(call.parts + layer * _PARTS_SIZE), 1, _PARTS)[0]
        _layer(call, part, pointer, me, threads)


SIGNATURE = types.void(types.voidptr)
