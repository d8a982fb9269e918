"""Dot products of bytes as one machine instruction, for functions that numba compiles: AVX-512 VNNI's vpdpbusd.

It multiplies 64 unsigned bytes with 64 signed ones and adds each four neighbours' products to one of 16 sums of 32
bits, exactly. `dots(n)` is a whole inner loop of it for n rows and COLUMNS weights, written out so that all sums stay
in registers: no compiler is left a choice of how to spread them. Which machine has the instruction: `available`.
"""

import functools
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic

LANES = 16
"""Sums that one instruction adds to."""

COLUMNS = 4 * LANES
"""Weights, each of another output, that lie side by side."""

GROUP = 4
"""Neighbouring bytes of a row whose products go to one sum."""

MOST_ROWS = 6
"""Rows of one loop: with their 24 sums, four vectors of weights and a row's bytes 29 of 32 registers are taken."""

_BYTE, _NUMBER, _WHOLE = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS = ir.VectorType(_NUMBER, LANES)
_VECTORS = COLUMNS // LANES


@functools.cache
def available() -> bool:
    """Whether numba compiles for a machine with the instruction; not if another machine was named for it."""
    if config.CPU_NAME or config.CPU_FEATURES is not None or not config.ENABLE_AVX:
        return False
    features = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("avx512f") and features.get("avx512vnni"))


def dots(rows: int) -> Any:
    """A function (weights, table, first, groups, out) for so many rows, of addresses and whole numbers.

    weights: signed bytes [groups, COLUMNS, GROUP], at a multiple of 64. table: addresses (int64) of rows of unsigned
    bytes, GROUP * groups each; first: the place of the first. out: int32 [rows, COLUMNS].
    """

    def function(typing, weights, table, first, groups, out):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            _Loop(builder, rows, *arguments).write()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    function.__name__ = function.__qualname__ = f"dots{rows}"
    return intrinsic(function)


class _Loop:
    """The code of one such function, being written."""

    def __init__(self, builder: Any, rows: int, weights: Any, table: Any, first: Any, groups: Any, out: Any) -> None:
        self._builder, self._rows = builder, rows
        self._weights, self._out = (builder.inttoptr(address, _BYTE.as_pointer()) for address in (weights, out))
        self._table = builder.gep(builder.inttoptr(table, _WHOLE.as_pointer()), [first])
        self._groups = groups

    def write(self) -> None:
        builder = self._builder
        rows = [
            builder.inttoptr(builder.load(builder.gep(self._table, [_WHOLE(row)])), _NUMBER.as_pointer())
            for row in range(self._rows)
        ]
        before = builder.basic_block
        loop, behind = builder.append_basic_block("dots"), builder.append_basic_block("behind")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(_WHOLE)
        sums = [builder.phi(_SUMS) for _ in range(self._rows * _VECTORS)]
        after, new = builder.add(at, _WHOLE(1)), self._step(at, rows, sums)
        at.add_incoming(_WHOLE(0), before)
        at.add_incoming(after, builder.basic_block)
        for old, next_one in zip(sums, new, strict=True):
            old.add_incoming(ir.Constant(_SUMS, [0] * LANES), before)
            old.add_incoming(next_one, builder.basic_block)
        builder.cbranch(builder.icmp_signed("<", after, self._groups), loop, behind)
        builder.position_at_end(behind)
        for place, vector in enumerate(new):
            builder.store(vector, self._vector(self._out, _WHOLE(64 * place)), align=GROUP)

    def _step(self, at: Any, rows: list[Any], sums: list[Any]) -> list[Any]:
        """One group of all rows and columns."""
        builder = self._builder
        begin = builder.mul(at, _WHOLE(COLUMNS * GROUP))
        places = [builder.add(begin, _WHOLE(64 * vector)) for vector in range(_VECTORS)]
        weights = [builder.load(self._vector(self._weights, place), align=64) for place in places]
        new = []
        for row, pointer in enumerate(rows):
            own = self._everywhere(builder.load(builder.gep(pointer, [at]), align=GROUP))
            mine = sums[row * _VECTORS : (row + 1) * _VECTORS]
            new += [builder.call(self._instruction(), [old, own, w]) for old, w in zip(mine, weights, strict=True)]
        return new

    def _vector(self, bytes_: Any, place: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(bytes_, [place]), _SUMS.as_pointer())

    def _everywhere(self, number: Any) -> Any:
        first = self._builder.insert_element(ir.Constant(_SUMS, ir.Undefined), number, _NUMBER(0))
        return self._builder.shuffle_vector(first, first, ir.Constant(_SUMS, [0] * LANES))

    def _instruction(self) -> Any:
        module, name = self._builder.module, "llvm.x86.avx512.vpdpbusd.512"
        kind = ir.FunctionType(_SUMS, [_SUMS] * 3)
        return module.globals.get(name) or ir.Function(module, kind, name)
