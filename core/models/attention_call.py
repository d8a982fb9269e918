"""What attention_kernel.py is told, and the sizes it works with."""

import ctypes
import zlib

TILE = 32
DIM_MULTIPLE = 8
LANES = 64
"""Pairs an item has at most, unless a single row has more: enough that keys are read once for many rows."""

CHUNK_FIELDS = 4
"""Of each chunk of rows, int64: its first row in the flat batch, its number of rows, the first row's position,
and where its block table begins in `tables`."""


class AttentionCall(ctypes.Structure):
    """What the compiled function is told, by address; sizes and strides in elements.

    layout: LAYOUT, which the function compares with what it was compiled for. claimed, joined: counters, 0 at the
    start: items taken and threads at work. An item is a chunk of rows and a key
    head. query: [rows, heads, dim] float32, dim side by side. keys, values: the layer's cache. out: [rows, heads, dim],
    contiguous. window: positions a row sees, its own included. softcap: 0 for none. scratch: scratch_size float32 for
    each thread.
    """

    _fields_ = (
        ("claimed", ctypes.c_int64),
        ("joined", ctypes.c_int64),
        ("layout", ctypes.c_int64),
        ("items", ctypes.c_int64),
        ("query", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("values", ctypes.c_int64),
        ("out", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("tables", ctypes.c_int64),
        ("scratch", ctypes.c_int64),
        ("scratch_size", ctypes.c_int64),
        ("query_row", ctypes.c_int64),
        ("query_head", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("wide", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


LAYOUT = zlib.crc32(repr(AttentionCall._fields_).encode())


def scratch_size(pairs: int, dim: int) -> int:
    """float32 that a thread needs for items of so many pairs: queries and sums, four numbers a lane, a tile's scores
    and places (two float32 each)."""
    lanes = -(-pairs // 16) * 16
    return 2 * lanes * dim + 4 * lanes + TILE * 16 + 2 * TILE
