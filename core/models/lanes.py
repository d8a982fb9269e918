"""Lanes: several float32 numbers as one value in functions that numba compiles, and what can be done with them.

Which numbers a machine's vector instructions take together is the compiler's choice wherever it may reorder sums, and
it chooses differently in different loops. Here it has none: each function below treats every lane alone, rounds once
(`fma` included) and comes out the same to the bit whether a machine has registers of that width or of half of it.
The functions are for compiled code only. A pointer is a CPointer of the element's type, an index counts elements.

numba keeps compiled code for as long as the file of the outermost function stays what it was, and does not look at what
that calls: so files whose functions use these say of which state of this one they were written (`SOURCES`).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_model

WIDTHS = (8, 16)

_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH = np.float32(0.693359375)  # nine bits of ln 2: times a whole number it is exact
_LN_2_LOW = np.float32(-2.12194440054690583e-4)  # the rest of it
_ROUNDER = np.float32(3 << 22)  # leaves a sum's whole part in its low bits, halves to even
_LEAST_EXP = np.float32(-87)  # below it exp is less than float32's normal numbers: 0
_ONE, _TWO, _MINUS_TWO, _ZERO = np.float32(1), np.float32(2), np.float32(-2), np.float32(0)
_TAYLOR = tuple(np.float32(1 / factorial) for factorial in (5040, 720, 120, 24, 6, 2))


class LanesType(types.Type):  # type: ignore[misc]
    """So many float32 numbers; immutable."""

    def __init__(self, width: int) -> None:
        super().__init__(name=f"lanes{width}")
        self.width = width


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: LanesType) -> None:
        super().__init__(manager, fe_type, ir.VectorType(ir.FloatType(), fe_type.width))


_TYPES = {width: LanesType(width) for width in WIDTHS}


def _vector_of(lanes: LanesType) -> ir.VectorType:
    return ir.VectorType(ir.FloatType(), lanes.width)


def _splat(builder: Any, value: Any, width: int) -> Any:
    """The same element in all lanes."""
    vector = ir.VectorType(value.type, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width))


def _call(builder: Any, name: str, *values: Any) -> Any:
    """LLVM's function of that name for vectors."""
    vector = values[0].type
    kind = ir.FunctionType(vector, [vector] * len(values))
    symbol = f"llvm.{name}.v{vector.count}f32"
    function = builder.module.globals.get(symbol) or ir.Function(builder.module, kind, symbol)
    return builder.call(function, values)


def _elementwise(name: str, count: int, build: Any) -> Any:
    """A function of so many lanes whose result is lanes. build: (builder, *vectors) -> the vector."""

    def typed(*lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, *arguments)

        return lanes[0](*lanes), generate

    one = lambda typing, a: typed(a)  # noqa: E731
    two = lambda typing, a, b: typed(a, b)  # noqa: E731
    three = lambda typing, a, b, c: typed(a, b, c)  # noqa: E731
    four = lambda typing, a, b, c, d: typed(a, b, c, d)  # noqa: E731
    function = (one, two, three, four)[count - 1]
    function.__name__ = function.__qualname__ = name
    return intrinsic(function)


add = _elementwise("add", 2, lambda builder, a, b: builder.fadd(a, b))
subtract = _elementwise("subtract", 2, lambda builder, a, b: builder.fsub(a, b))
multiply = _elementwise("multiply", 2, lambda builder, a, b: builder.fmul(a, b))
divide = _elementwise("divide", 2, lambda builder, a, b: builder.fdiv(a, b))
fma = _elementwise("fma", 3, lambda builder, a, b, c: _call(builder, "fma", a, b, c))  # a * b + c, rounded once
magnitude = _elementwise("magnitude", 1, lambda builder, a: _call(builder, "fabs", a))
signed_like = _elementwise("signed_like", 2, lambda builder, a, b: _call(builder, "copysign", a, b))
# Where a < b one, elsewhere (a NaN on either side included) other.
choose_below = _elementwise(
    "choose_below",
    4,
    lambda builder, a, b, one, other: builder.select(builder.fcmp_ordered("<", a, b), one, other),
)


def _power_of_two(builder: Any, shifted: Any) -> Any:
    """2 ** n for lanes that hold n + _ROUNDER: n's bits, moved to where a float32 keeps its exponent."""
    whole = ir.VectorType(ir.IntType(32), shifted.type.count)
    exponent = builder.shl(builder.bitcast(shifted, whole), ir.Constant(whole, [23] * whole.count))
    return builder.bitcast(builder.add(exponent, ir.Constant(whole, [127 << 23] * whole.count)), shifted.type)


power_of_two = _elementwise("power_of_two", 1, _power_of_two)


@intrinsic
def splat(typing, like, value):  # type: ignore[no-untyped-def]
    """A float32 in as many lanes as `like` has."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _splat(builder, arguments[1], like.width)

    return like(like, types.float32), generate


@intrinsic
def width_of(typing, like):  # type: ignore[no-untyped-def]
    """How many lanes it has."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return context.get_constant(types.intp, like.width)

    return types.intp(like), generate


@intrinsic
def load(typing, like, pointer, index):  # type: ignore[no-untyped-def]
    """The float32 from there on, as many as `like` has lanes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.bitcast(builder.gep(arguments[1], [arguments[2]]), _vector_of(like).as_pointer())
        return builder.load(place, align=4)

    return like(like, pointer, types.intp), generate


@intrinsic
def store(typing, pointer, index, lanes):  # type: ignore[no-untyped-def]
    """Write the lanes there."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), arguments[2].type.as_pointer())
        builder.store(arguments[2], place, align=4)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, lanes), generate


def _zeros(width: int) -> Any:
    def function(typing):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return ir.Constant(_vector_of(_TYPES[width]), [0.0] * width)

        return _TYPES[width](), generate

    function.__name__ = function.__qualname__ = f"zeros{width}"
    return intrinsic(function)


zeros8, zeros16 = map(_zeros, WIDTHS)


@njit
def exp(x):  # type: ignore[no-untyped-def]
    """e ** x within two units in the last place for x <= 0, exactly 1 for 0; NaN for NaN. With n = x / ln 2 rounded it
    is 2 ** n * e ** r, and r, at most half of ln 2, needs eight terms of its series."""
    low = splat(x, _LEAST_EXP)
    clamped = choose_below(x, low, low, x)
    shifted = fma(clamped, splat(x, _LOG2_E), splat(x, _ROUNDER))
    n = subtract(shifted, splat(x, _ROUNDER))
    r = fma(n, splat(x, -_LN_2_LOW), fma(n, splat(x, -_LN_2_HIGH), clamped))
    series = splat(x, _TAYLOR[0])
    for i in range(1, 6):
        series = fma(series, r, splat(x, _TAYLOR[i]))
    series = fma(fma(series, r, splat(x, _ONE)), r, splat(x, _ONE))
    return choose_below(x, low, splat(x, _ZERO), multiply(series, power_of_two(shifted)))


@njit
def tanh(x):  # type: ignore[no-untyped-def]
    """Within 1e-7."""
    one = splat(x, _ONE)
    shrunk = exp(multiply(magnitude(x), splat(x, _MINUS_TWO)))
    return signed_like(divide(subtract(one, shrunk), add(one, shrunk)), x)
