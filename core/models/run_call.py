"""What run_kernel.py is told."""

import ctypes
import zlib

_PART_ADDRESSES = (
    "input_norm", "norm", "q_norm", "k_norm", "qkv", "output", "gate_up", "down", "attention", "keys", "values",
)  # fmt: skip
_CALL_ADDRESSES = (
    "team_size", "give_way", "parts", "x", "normed", "product", "mixed", "projected", "both", "gated", "numbers",
    "steps", "fine", "scratch", "cos", "sin", "slots",
)  # fmt: skip
_CALL_SIZES = ("layers", "rows", "hidden", "heads", "kv_heads", "dim", "between", "head_norms")


class LayerParts(ctypes.Structure):
    """A layer. norms: float32, q_norm and k_norm only with head norms. qkv to down: of a ProductCall whose weights
    are set. attention: of an AttentionCall but for its tensors. keys, values: of the layer's cache."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _PART_ADDRESSES),
        ("input_eps", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("head_eps", ctypes.c_double),
        ("enough", ctypes.c_double),
    )


class RunCall(ctypes.Structure):
    """A forward through consecutive layers, by address.

    joined, met: counters, 0 at the start. layout: LAYOUT, which the function compares with what it was compiled for.
    team_size: of a C function that says how many threads there are. give_way: as in rendezvous.py. parts: [layers]
    LayerParts. x: float32 [rows, hidden], the rows, in place. normed, mixed, projected, product, both, gated: float32,
    what stands between a layer's stages. numbers, steps, fine: what quantise writes. scratch: of a product, for each
    thread. cos, sin: [rows, dim]. slots: int64 [rows].
    """

    _fields_ = (
        ("joined", ctypes.c_int64),
        ("met", ctypes.c_int64),
        ("layout", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in _CALL_ADDRESSES + _CALL_SIZES),
    )


LAYOUT = zlib.crc32(repr((LayerParts._fields_, RunCall._fields_)).encode())
