"""Functions of numbers.

Source: Flink's documentation ("Arithmetic Functions").
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.decimal_kernels import with_room
from headrace.engine.columns.expressions import lit
from headrace.engine.columns.kernels import Value, compute

from .coercion import cast_to, is_number, together
from .contract import Function, KernelCall, Typed, constant, literal_of, require
from .operators import call, compare, modulo

__all__ = ["FUNCTIONS"]

_DOUBLE = pa.float64()


def _number(value: Typed) -> Typed:
    return require(value, is_number, "a number")


def _of_doubles(name: str, function: Callable[..., Any], count: int = 1, meaning: str = "") -> Function:
    """A function that numpy has for doubles."""

    def bind(*values: Typed) -> Typed:
        operands = tuple(cast_to(_number(value), _DOUBLE).expression for value in values)
        return Typed(KernelCall(name, _by_numpy, operands, _DOUBLE, function=function), _DOUBLE)

    return Function(name, f"{name}({', '.join('xy'[:count])})", bind, count, count, meaning)


def _by_numpy(*values: Value, function: Callable[..., Any]) -> Value:
    num_rows = max(len(value) for value in values if not isinstance(value, pa.Scalar))
    arrays = [pa.repeat(value, num_rows) if isinstance(value, pa.Scalar) else value for value in values]
    is_null = np.zeros(num_rows, np.bool_)
    for array in arrays:
        is_null |= np.asarray(array.is_null())
    with np.errstate(all="ignore"):
        return pa.array(function(*(np.asarray(array.fill_null(1.0)) for array in arrays)), mask=is_null)


def _abs(value: Typed) -> Typed:
    return cast_to(call("abs", _number(value)), value.kind)


def _rounded(value: Typed, digits: Typed | None = None) -> Typed:
    number = 0 if digits is None else constant(digits, "the number of digits")
    if not pa.types.is_decimal(value.kind):
        return cast_to(call("round", _number(value), num_digits=number), value.kind)
    # As many digits before the point as are rounded: 0.5 to hundreds has three.
    wide = _with_room(value, max(value.kind.precision, value.kind.scale - number))
    return cast_to(call("round", wide, num_digits=number), _rounded_type(value.kind, number))


def _with_room(value: Typed, precision: int) -> Typed:
    """A decimal of one digit more: 9.5 becomes 10, also where it has the most digits that a DECIMAL can have."""
    kind = pa.decimal128 if precision < 38 else pa.decimal256
    return cast_to(value, kind(min(precision + 1, 76), value.kind.scale))


def _rounded_type(kind: pa.DataType, digits: int) -> pa.DataType:
    """Flink's ``LogicalTypeMerging.findRoundDecimalType``."""
    if digits >= kind.scale:
        return kind
    return pa.decimal128(min(1 + kind.precision - kind.scale + max(digits, 0), 38), max(digits, 0))


def _whole(name: str) -> Callable[[Typed], Typed]:
    def bind(value: Typed) -> Typed:
        if not pa.types.is_decimal(value.kind):
            return cast_to(call(name, _number(value)), value.kind)
        wide = _with_room(value, value.kind.precision)
        return cast_to(call(name, wide), pa.decimal128(value.kind.precision, 0))

    return bind


def _truncated(value: Typed, digits: Typed | None = None) -> Typed:
    number = 0 if digits is None else constant(digits, "the number of digits")
    expression = KernelCall("TRUNCATE", _cut, (_number(value).expression,), value.kind, digits=number)
    cut = Typed(expression, value.kind)
    return cast_to(cut, _rounded_type(value.kind, number)) if pa.types.is_decimal(value.kind) else cut


def _cut(value: Value, digits: int) -> Value:
    pc = compute()
    if pa.types.is_integer(value.type) and digits >= 0:
        return value
    return with_room(value, lambda wide: pc.round(wide, ndigits=digits, round_mode="towards_zero"))


def _sign(value: Typed) -> Typed:
    return Typed(KernelCall("SIGN", _sign_of, (_number(value).expression,), value.kind), value.kind)


def _sign_of(value: Value) -> Value:
    pc = compute()
    if not pa.types.is_decimal(value.type):
        return pc.sign(value)
    minus, zero, plus = (pa.scalar(decimal.Decimal(one), value.type) for one in (-1, 0, 1))
    return pc.if_else(pc.greater(value, zero), plus, pc.if_else(pc.less(value, zero), minus, zero))


def _extreme(function: str) -> Callable[..., Typed]:
    def bind(*values: Typed) -> Typed:
        same = together(values)
        operands = tuple(one.expression for one in same)
        return Typed(KernelCall(function, _extreme_of, operands, same[0].kind, function=function), same[0].kind)

    return bind


def _extreme_of(*values: Value, function: str) -> Value:
    # Null if one of them is, as in Flink.
    pc = compute()
    choose = pc.max_element_wise if function == "GREATEST" else pc.min_element_wise
    return choose(*values, skip_nulls=False)


def _null_if(value: Typed, other: Typed) -> Typed:
    from .operators import case

    return case([compare("equal", value, other)], [Typed(lit(None, value.kind), value.kind), value])


def _logarithm(value: Typed, other: Typed | None = None) -> Typed:
    if other is None:
        return _of_doubles("LN", np.log).bind(value)
    base, number = value, other
    return _of_doubles("LOG", lambda one, two: np.log(two) / np.log(one), 2).bind(base, number)


FUNCTIONS = (
    Function(
        "ABS", "ABS(x)", _abs, 1, 1, "The value without its sign.", "an overflow is an error, where Flink wraps around"
    ),
    Function("SIGN", "SIGN(x)", _sign, 1, 1, "-1, 0 or 1, in the type of the number."),
    Function(
        "ROUND",
        "ROUND(x[, digits])",
        _rounded,
        1,
        2,
        "The number rounded to digits behind the point, halves away from zero.",
        "the digits are a literal",
    ),
    Function(
        "TRUNCATE",
        "TRUNCATE(x[, digits])",
        _truncated,
        1,
        2,
        "The number cut behind some digits.",
        "the digits are a literal",
    ),
    Function("FLOOR", "FLOOR(x)", _whole("floor"), 1, 1, "The greatest whole number that is not above."),
    Function("CEIL", "CEIL(x)", _whole("ceil"), 1, 1, "The smallest whole number that is not below."),
    Function("CEILING", "CEILING(x)", _whole("ceil"), 1, 1, "The smallest whole number that is not below."),
    Function("MOD", "MOD(x, y)", modulo, 2, 2, "The remainder, with the sign of the first.", "doubles are taken, too"),
    Function("PI", "PI()", lambda: literal_of(math.pi, _DOUBLE), 0, 0, "Pi."),
    Function("E", "E()", lambda: literal_of(math.e, _DOUBLE), 0, 0, "Euler's number."),
    Function("GREATEST", "GREATEST(x, ...)", _extreme("GREATEST"), 1, None, "The greatest value; null if one is."),
    Function("LEAST", "LEAST(x, ...)", _extreme("LEAST"), 1, None, "The smallest value; null if one is."),
    Function("NULLIF", "NULLIF(x, y)", _null_if, 2, 2, "Null if both are equal, else the first."),
    Function("LOG", "LOG([base,] x)", _logarithm, 1, 2, "The logarithm, to base e if none is given."),
    _of_doubles("LN", np.log, meaning="The logarithm to base e."),
    _of_doubles("LOG10", np.log10, meaning="The logarithm to base 10."),
    _of_doubles("LOG2", np.log2, meaning="The logarithm to base 2."),
    _of_doubles("EXP", np.exp, meaning="E to a power."),
    _of_doubles("SQRT", np.sqrt, meaning="The square root."),
    _of_doubles("POWER", np.power, 2, meaning="X to the power y."),
    _of_doubles("SIN", np.sin, meaning="The sine."),
    _of_doubles("COS", np.cos, meaning="The cosine."),
    _of_doubles("TAN", np.tan, meaning="The tangent."),
    _of_doubles("ASIN", np.arcsin, meaning="The arc sine."),
    _of_doubles("ACOS", np.arccos, meaning="The arc cosine."),
    _of_doubles("ATAN", np.arctan, meaning="The arc tangent."),
    _of_doubles("ATAN2", np.arctan2, 2, meaning="The angle of a point (y, x)."),
    _of_doubles("SINH", np.sinh, meaning="The hyperbolic sine."),
    _of_doubles("COSH", np.cosh, meaning="The hyperbolic cosine."),
    _of_doubles("TANH", np.tanh, meaning="The hyperbolic tangent."),
    _of_doubles("COT", lambda x: 1 / np.tan(x), meaning="The cotangent."),
    _of_doubles("DEGREES", np.degrees, meaning="Radians in degrees."),
    _of_doubles("RADIANS", np.radians, meaning="Degrees in radians."),
)
