"""Pointers in functions that numba compiles: from addresses, to elements, and counters that threads share.

A pointer is a CPointer of the element's type, an index counts elements.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def at(typing, pointer, index):  # type: ignore[no-untyped-def]
    """The element there; a negative index is no count from an end."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return pointer.dtype(pointer, types.intp), generate


@intrinsic
def put(typing, pointer, index, value):  # type: ignore[no-untyped-def]
    """Write an element there."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, pointer.dtype), generate


@intrinsic
def prefetch(typing, pointer, index):  # type: ignore[no-untyped-def]
    """Have the cache line of that element brought near while other work goes on; nothing more."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = builder.module.globals.get("llvm.prefetch.p0")
        function = function or ir.Function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(2), number(1)])  # to be read, into the second level, data
        return context.get_dummy_value()

    return types.void(pointer, types.intp), generate


def _pointer_to(element: Any, name: str) -> Any:
    def function(typing, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(element)))

        return types.CPointer(element)(types.intp), generate

    function.__name__ = function.__qualname__ = name
    return intrinsic(function)


floats_at = _pointer_to(types.float32, "floats_at")  # of an address
wholes_at = _pointer_to(types.int64, "wholes_at")
numbers_at = _pointer_to(types.int32, "numbers_at")
bytes_at = _pointer_to(types.uint8, "bytes_at")


@intrinsic
def anything_at(typing, address):  # type: ignore[no-untyped-def]
    """A pointer to that address, of no type."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), generate


@intrinsic
def claim(typing, pointer, index):  # type: ignore[no-untyped-def]
    """What the int64 there counts so far, which becomes one more: no two threads are told the same."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        counters = builder.bitcast(arguments[0], ir.IntType(64).as_pointer())
        place = builder.gep(counters, [arguments[1]])
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(pointer, types.intp), generate
