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

from headrace.engine.columns.expressions import lit
from headrace.engine.columns.kernels import Value, compute

from .coercion import cast_to, is_number, together
from .contract import Function, KernelCall, Typed, constant, literal_of, require, row_by_row
from .operators import call, compare, modulo

__all__ = ["FUNCTIONS"]

_DOUBLE = pa.float64()


def _number(value: Typed) -> Typed:
    return require(value, is_number, "a number")


def _of_doubles(name: str, function: Callable[..., Any], count: int = 1) -> Function:
    """A function that numpy has for doubles."""

    def bind(*values: Typed) -> Typed:
        operands = tuple(cast_to(_number(value), _DOUBLE).expression for value in values)
        return Typed(KernelCall(name, _by_numpy, operands, _DOUBLE, function=function), _DOUBLE)

    return Function(name, f"{name}({', '.join('xy'[:count])})", bind, count, count)


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
    # One digit more: 9.5 becomes 10.
    wide = pa.decimal128(min(value.kind.precision + 1, 38), value.kind.scale)
    found = call("round", cast_to(value, wide), num_digits=number)
    return cast_to(found, pa.decimal128(wide.precision, min(max(number, 0), value.kind.scale)))


def _whole(name: str) -> Callable[[Typed], Typed]:
    def bind(value: Typed) -> Typed:
        found = call(name, _number(value))
        if pa.types.is_decimal(value.kind):
            return cast_to(found, pa.decimal128(min(value.kind.precision - value.kind.scale + 1, 38), 0))
        return cast_to(found, value.kind)

    return bind


def _truncated(value: Typed, digits: Typed | None = None) -> Typed:
    number = 0 if digits is None else constant(digits, "the number of digits")
    expression = KernelCall("TRUNCATE", _cut, (_number(value).expression,), value.kind, digits=number)
    return Typed(expression, value.kind)


def _cut(value: Value, digits: int) -> Value:
    pc = compute()
    if pa.types.is_integer(value.type) and digits >= 0:
        return value
    return pc.round(value, ndigits=digits, round_mode="towards_zero")


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


def _text_of_base(name: str, function: Callable[[int], str]) -> Function:
    def bind(value: Typed) -> Typed:
        number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
        kernel = row_by_row(lambda one: function(one & 0xFFFFFFFFFFFFFFFF), pa.string())
        return Typed(KernelCall(name, kernel, (number.expression,), pa.string()), pa.string())

    return Function(name, f"{name}(number)", bind, 1, 1)


FUNCTIONS = (
    Function("ABS", "ABS(x)", _abs, 1, 1),
    Function("SIGN", "SIGN(x)", _sign, 1, 1),
    Function("ROUND", "ROUND(x[, digits])", _rounded, 1, 2),
    Function("TRUNCATE", "TRUNCATE(x[, digits])", _truncated, 1, 2),
    Function("FLOOR", "FLOOR(x)", _whole("floor"), 1, 1),
    Function("CEIL", "CEIL(x)", _whole("ceil"), 1, 1),
    Function("CEILING", "CEILING(x)", _whole("ceil"), 1, 1),
    Function("MOD", "MOD(x, y)", modulo, 2, 2),
    Function("PI", "PI()", lambda: literal_of(math.pi, _DOUBLE), 0, 0),
    Function("E", "E()", lambda: literal_of(math.e, _DOUBLE), 0, 0),
    Function("GREATEST", "GREATEST(x, ...)", _extreme("GREATEST"), 1, None),
    Function("LEAST", "LEAST(x, ...)", _extreme("LEAST"), 1, None),
    Function("NULLIF", "NULLIF(x, y)", _null_if, 2, 2),
    Function("LOG", "LOG([base,] x)", _logarithm, 1, 2),
    _of_doubles("LN", np.log),
    _of_doubles("LOG10", np.log10),
    _of_doubles("LOG2", np.log2),
    _of_doubles("EXP", np.exp),
    _of_doubles("SQRT", np.sqrt),
    _of_doubles("POWER", np.power, 2),
    _of_doubles("SIN", np.sin),
    _of_doubles("COS", np.cos),
    _of_doubles("TAN", np.tan),
    _of_doubles("ASIN", np.arcsin),
    _of_doubles("ACOS", np.arccos),
    _of_doubles("ATAN", np.arctan),
    _of_doubles("ATAN2", np.arctan2, 2),
    _of_doubles("SINH", np.sinh),
    _of_doubles("COSH", np.cosh),
    _of_doubles("TANH", np.tanh),
    _of_doubles("COT", lambda x: 1 / np.tan(x)),
    _of_doubles("DEGREES", np.degrees),
    _of_doubles("RADIANS", np.radians),
    _text_of_base("BIN", lambda number: f"{number:b}"),
    _text_of_base("HEX", lambda number: f"{number:X}"),
)
