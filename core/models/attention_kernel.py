"""Paged attention of all rows of a forward on a CPU, as one compiled call a layer.

Every (row, query head) is computed alone, by the plain algorithm, in an order that only its own positions decide:

    for each tile of 32 positions that it sees, in ascending order, tiles beginning at multiples of 32:
        scores: for each key, the sum over the dimensions in ascending order, each product fused with its addition
        the largest score so far; what was summed before is scaled to it
        weights exp(score - largest); their sum and the weighted sum of values, key by key in ascending order

A vector's lanes are so many such pairs, which share a key head: rows that see the same keys, and the query heads that
share them, are computed side by side and load each key once, while each lane's arithmetic stays what it would be
alone. So a row's result is the same to the bit in any forward, in any company, and with vectors of any width. What a
row does not see is not added with weight 0 but skipped, so that a NaN there stays there.
"""

import numpy as np
from numba import carray, njit, types

from core.models.attention_call import CHUNK_FIELDS, LAYOUT, TILE, AttentionCall
from core.models.lanes import (
    add,
    choose_below,
    divide,
    exp,
    fma,
    load,
    multiply,
    splat,
    store,
    subtract,
    tanh,
    width_of,
    zeros8,
    zeros16,
)
from core.models.pointers import at, claim, floats_at, prefetch, put, wholes_at

SOURCE_FILES = ("lanes.py", "pointers.py", "attention_call.py")
SOURCES = "c2d0b8cc"  # their digest, see lanes.py

_LEAST = np.float32(np.finfo(np.float32).min)
_HIDDEN = np.float32(-np.inf)
_ZERO = np.float32(0)
_LINE = 16  # float32 in a cache line

_CALL = np.dtype(AttentionCall)
_CLAIMED, _JOINED = 0, 1  # the counters' places in it


@njit
def _score(zero, query, query_at, keys, places, count, dim, scores):  # type: ignore[no-untyped-def]
    """scores[key, lane] of `count` keys, eight at a time, so that additions need not wait for each other."""
    width = width_of(zero)
    for j in range(0, count, 8):
        p0, p1, p2, p3 = at(places, j), at(places, j + 1), at(places, j + 2), at(places, j + 3)
        p4, p5, p6, p7 = at(places, j + 4), at(places, j + 5), at(places, j + 6), at(places, j + 7)
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
        for d in range(dim):
            q = load(zero, query, query_at + d * width)
            s0 = fma(q, splat(zero, at(keys, p0 + d)), s0)
            s1 = fma(q, splat(zero, at(keys, p1 + d)), s1)
            s2 = fma(q, splat(zero, at(keys, p2 + d)), s2)
            s3 = fma(q, splat(zero, at(keys, p3 + d)), s3)
            s4 = fma(q, splat(zero, at(keys, p4 + d)), s4)
            s5 = fma(q, splat(zero, at(keys, p5 + d)), s5)
            s6 = fma(q, splat(zero, at(keys, p6 + d)), s6)
            s7 = fma(q, splat(zero, at(keys, p7 + d)), s7)
        begin = j * width
        store(scores, begin, s0)
        store(scores, begin + width, s1)
        store(scores, begin + 2 * width, s2)
        store(scores, begin + 3 * width, s3)
        store(scores, begin + 4 * width, s4)
        store(scores, begin + 5 * width, s5)
        store(scores, begin + 6 * width, s6)
        store(scores, begin + 7 * width, s7)


@njit
def _seen(first, last, position, value, other):  # type: ignore[no-untyped-def]
    """value in the lanes that see the position, other in those that do not."""
    return choose_below(last, position, other, choose_below(position, first, other, value))


@njit
def _hide(zero, first, last, begin, count, scores):  # type: ignore[no-untyped-def]
    """Minus infinity for what a lane does not see."""
    width = width_of(zero)
    for j in range(count):
        position = splat(zero, np.float32(begin + j))
        score = load(zero, scores, j * width)
        store(scores, j * width, _seen(first, last, position, score, splat(zero, _HIDDEN)))


@njit
def _weigh(zero, scores, count, tops, totals, lanes_at):  # type: ignore[no-untyped-def]
    """Scores become weights; returns what earlier sums are to be multiplied with."""
    width = width_of(zero)
    before = load(zero, tops, lanes_at)
    top = before
    for j in range(count):
        score = load(zero, scores, j * width)
        top = choose_below(top, score, score, top)
    shrink = exp(subtract(before, top))
    total = multiply(load(zero, totals, lanes_at), shrink)
    for j in range(count):
        weight = exp(subtract(load(zero, scores, j * width), top))
        store(scores, j * width, weight)
        total = add(total, weight)
    store(tops, lanes_at, top)
    store(totals, lanes_at, total)
    return shrink


@njit
def _added(weight, value, total, first, last, position):  # type: ignore[no-untyped-def]
    """total + weight * value, in the lanes that see the position; first None: in all."""
    more = fma(weight, value, total)
    if first is None:
        return more
    return _seen(first, last, position, more, total)


@njit
def _gather(  # type: ignore[no-untyped-def]
    zero, weights, values, places, begin, count, dim, shrink, sums, sums_at, first, last
):
    """sums[dimension, lane] = sums * shrink + the weighted values of the keys that the lane sees, eight dimensions at
    a time. first, last: None if all lanes see all keys."""
    width = width_of(zero)
    for d in range(0, dim, 8):
        own = sums_at + d * width
        a0 = multiply(load(zero, sums, own), shrink)
        a1 = multiply(load(zero, sums, own + width), shrink)
        a2 = multiply(load(zero, sums, own + 2 * width), shrink)
        a3 = multiply(load(zero, sums, own + 3 * width), shrink)
        a4 = multiply(load(zero, sums, own + 4 * width), shrink)
        a5 = multiply(load(zero, sums, own + 5 * width), shrink)
        a6 = multiply(load(zero, sums, own + 6 * width), shrink)
        a7 = multiply(load(zero, sums, own + 7 * width), shrink)
        for j in range(count):
            w, p = load(zero, weights, j * width), at(places, j) + d
            position = splat(zero, np.float32(begin + j))
            a0 = _added(w, splat(zero, at(values, p)), a0, first, last, position)
            a1 = _added(w, splat(zero, at(values, p + 1)), a1, first, last, position)
            a2 = _added(w, splat(zero, at(values, p + 2)), a2, first, last, position)
            a3 = _added(w, splat(zero, at(values, p + 3)), a3, first, last, position)
            a4 = _added(w, splat(zero, at(values, p + 4)), a4, first, last, position)
            a5 = _added(w, splat(zero, at(values, p + 5)), a5, first, last, position)
            a6 = _added(w, splat(zero, at(values, p + 6)), a6, first, last, position)
            a7 = _added(w, splat(zero, at(values, p + 7)), a7, first, last, position)
        store(sums, own, a0)
        store(sums, own + width, a1)
        store(sums, own + 2 * width, a2)
        store(sums, own + 3 * width, a3)
        store(sums, own + 4 * width, a4)
        store(sums, own + 5 * width, a5)
        store(sums, own + 6 * width, a6)
        store(sums, own + 7 * width, a7)


@njit
def _cap(zero, scores, count, softcap):  # type: ignore[no-untyped-def]
    width, cap = width_of(zero), splat(zero, softcap)
    for j in range(count):
        score = load(zero, scores, j * width)
        store(scores, j * width, multiply(tanh(divide(score, cap)), cap))


@njit
def _place(call, tables, table, kv_head, begin, count, places):  # type: ignore[no-untyped-def]
    """Where in the cache the tile's keys lie; the last one again up to a multiple of eight."""
    size, stride = call.block_size, call.kv_heads * call.dim
    for j in range(count):
        position = begin + j
        block = at(tables, table + position // size)
        put(places, j, (block * size + position % size) * stride + kv_head * call.dim)
    for j in range(count, (count + 7) // 8 * 8):
        put(places, j, at(places, count - 1))


@njit
def _fetch(call, tables, table, kv_head, begin, end):  # type: ignore[no-untyped-def]
    """Have keys and values of these positions brought near: a key head's lie apart, which no machine foresees."""
    keys, values = floats_at(call.keys), floats_at(call.values)
    size, stride = call.block_size, call.kv_heads * call.dim
    for position in range(begin, end):
        place = (at(tables, table + position // size) * size + position % size) * stride + kv_head * call.dim
        for d in range(0, call.dim, _LINE):
            prefetch(keys, place + d)
            prefetch(values, place + d)


@njit
def _attend_item(zero, call, item, scratch):  # type: ignore[no-untyped-def]
    width, dim, group = width_of(zero), call.dim, call.heads // call.kv_heads
    chunk, kv_head = item // call.kv_heads * CHUNK_FIELDS, item % call.kv_heads
    chunks, tables = wholes_at(call.chunks), wholes_at(call.tables)
    row, rows = at(chunks, chunk), at(chunks, chunk + 1)
    context, table = at(chunks, chunk + 2), at(chunks, chunk + 3)
    pairs = rows * group
    vectors = (pairs + width - 1) // width
    lanes = vectors * width
    # What lies in scratch, in bytes from its beginning.
    query, sums = floats_at(scratch), floats_at(scratch + 4 * lanes * dim)
    state = scratch + 8 * lanes * dim
    tops, totals = floats_at(state), floats_at(state + 4 * lanes)
    firsts, lasts = floats_at(state + 8 * lanes), floats_at(state + 12 * lanes)
    scores, places = floats_at(state + 16 * lanes), wholes_at(state + 16 * lanes + 4 * TILE * width)
    _begin_lanes(call, row, context, kv_head, pairs, lanes, width, query, sums, tops, totals, firsts, lasts)

    keys, values = floats_at(call.keys), floats_at(call.values)
    lowest, all_from = max(0, context - call.window + 1), max(0, context + rows - call.window)
    for tile in range(lowest // TILE * TILE, context + rows, TILE):
        begin, end = max(tile, lowest), min(tile + TILE, context + rows)
        count = end - begin
        _place(call, tables, table, kv_head, begin, count, places)
        _fetch(call, tables, table, kv_head, end, min(end + TILE, context + rows))
        seen_by_all = begin >= all_from and end <= context + 1
        for vector in range(vectors):
            lane, numbers = vector * width, vector * width * dim
            first, last = load(zero, firsts, lane), load(zero, lasts, lane)
            _score(zero, query, numbers, keys, places, count, dim, scores)
            if call.softcap > _ZERO:
                _cap(zero, scores, count, call.softcap)
            if seen_by_all:
                shrink = _weigh(zero, scores, count, tops, totals, lane)
                _gather(zero, scores, values, places, begin, count, dim, shrink, sums, numbers, None, None)
            else:
                _hide(zero, first, last, begin, count, scores)
                shrink = _weigh(zero, scores, count, tops, totals, lane)
                _gather(zero, scores, values, places, begin, count, dim, shrink, sums, numbers, first, last)
    _write_out(zero, call, row, kv_head, pairs, vectors, sums, totals)


@njit
def _begin_lanes(  # type: ignore[no-untyped-def]
    call, row, context, kv_head, pairs, lanes, width, query, sums, tops, totals, firsts, lasts
):
    """Lane p is query head p % group of row p // group; a lane too many has a query of zeros."""
    dim, group = call.dim, call.heads // call.kv_heads
    source = floats_at(call.query)
    for p in range(lanes):
        own = min(p, pairs - 1)
        position = context + own // group
        put(tops, p, _LEAST)
        put(totals, p, _ZERO)
        put(firsts, p, np.float32(max(0, position - call.window + 1)))
        put(lasts, p, np.float32(position))
        begin = p // width * width * dim + p % width
        there = (row + own // group) * call.query_row + (kv_head * group + own % group) * call.query_head
        for d in range(dim):
            put(query, begin + d * width, at(source, there + d) * call.scale if p < pairs else _ZERO)
            put(sums, begin + d * width, _ZERO)


@njit
def _write_out(zero, call, row, kv_head, pairs, vectors, sums, totals):  # type: ignore[no-untyped-def]
    width, dim, group = width_of(zero), call.dim, call.heads // call.kv_heads
    out = floats_at(call.out)
    for vector in range(vectors):
        total, begin = load(zero, totals, vector * width), vector * width * dim
        for d in range(dim):
            store(sums, begin + d * width, divide(load(zero, sums, begin + d * width), total))
        for p in range(vector * width, min(pairs, (vector + 1) * width)):
            there = ((row + p // group) * call.heads + kv_head * group + p % group) * dim
            for d in range(dim):
                put(out, there + d, at(sums, begin + d * width + p % width))


def attend(pointer):  # type: ignore[no-untyped-def]
    """One thread's share of an AttentionCall: items until none is left, or none at all of one laid out otherwise."""
    call = carray(pointer, 1, _CALL)[0]
    if call.layout != LAYOUT:
        return
    scratch = call.scratch + claim(pointer, _JOINED) * 4 * call.scratch_size
    group = call.heads // call.kv_heads
    while True:
        item = claim(pointer, _CLAIMED)
        if item >= call.items:
            break
        pairs = at(wholes_at(call.chunks), item // call.kv_heads * CHUNK_FIELDS + 1) * group
        if call.wide and not (pairs <= 8 or 16 < pairs <= 24):
            _attend_item(zeros16(), call, item, scratch)
        else:
            _attend_item(zeros8(), call, item, scratch)


SIGNATURE = types.void(types.voidptr)
