"""Threads of one compiled function that wait for each other between its stages. For functions that numba compiles.

Between two stages there are microseconds at most, so a thread spins; but not for long: where others want the
processor, the one it waits for may be among those that do not run, and it gives way.
"""

import ctypes
import functools

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_SPINS = 4096  # looks before it gives way: some fifty microseconds

_WHOLE, _NUMBER = ir.IntType(64), ir.IntType(32)


@functools.cache
def give_way_address() -> int:
    """Of the system's call to let others run; 0 if there is none."""
    try:
        call = ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError, TypeError):
        return 0
    return ctypes.cast(call, ctypes.c_void_p).value or 0


@intrinsic
def _arrive(typing, counters, index):  # type: ignore[no-untyped-def]
    """Add one to the int64 there, and what it was. All that was written before is written for who sees it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.gep(builder.bitcast(arguments[0], _WHOLE.as_pointer()), [arguments[1]])
        return builder.atomic_rmw("add", place, _WHOLE(1), "acq_rel")

    return types.int64(counters, types.intp), generate


@intrinsic
def _arrived(typing, counters, index):  # type: ignore[no-untyped-def]
    """The int64 there, now."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.gep(builder.bitcast(arguments[0], _WHOLE.as_pointer()), [arguments[1]])
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(counters, types.intp), generate


@intrinsic
def _pause(typing):  # type: ignore[no-untyped-def]
    """Leave the core's other thread and the memory alone for a moment."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind, name = ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
        builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call_number(typing, address):  # type: ignore[no-untyped-def]
    """What the C function of no arguments at that address returns, an int."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = builder.inttoptr(arguments[0], ir.FunctionType(_NUMBER, []).as_pointer())
        return builder.call(function, [])

    return types.int32(types.intp), generate


@njit
def meet(counters, index, threads, give_way):  # type: ignore[no-untyped-def]
    """Returns once `threads` threads have come here as often as this one. counters: of int64, the one at index 0 at
    the start. give_way: an address, see give_way_address."""
    goal = (_arrive(counters, index) // threads + 1) * threads
    spins = 0
    while _arrived(counters, index) < goal:
        _pause()
        spins += 1
        if spins >= _SPINS and give_way:
            call_number(give_way)
