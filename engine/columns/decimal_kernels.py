"""Decimals in expressions: the types that results have, and casts that keep a value or fail.

Types follow Spark's and Flink's rules. With digits p and scale s, ``+`` and ``-`` give scale max(s1, s2) and one digit
more than the longer whole part, ``*`` gives (p1 + p2 + 1, s1 + s2), ``/`` scale max(6, s1 + p2 + 1). What would need
more than 38 digits keeps its whole part and gives up digits of its scale, down to 6 of them (fewer if it had fewer).
Results are computed exactly and then rounded to that scale, halves away from zero; one whose whole part does not fit
fails. An integer counts as a decimal of all the digits that its type can have, a constant of those that it has.

A cast to a decimal rounds to the scale in the same way and fails if whole digits do not fit. A float stands for the
shortest decimal text that reads back as it: 1.005 is 1.005.

Invariant: no value is wrong without an error, and none depends on how rows are cut into batches.

Source: Spark's ``DecimalPrecision`` (SQL Server's rules); Flink's ``LogicalTypeMerging``.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = [
    "arithmetic",
    "as_literal",
    "as_texts",
    "comparable",
    "divided",
    "is_for_decimals",
    "to_decimal",
    "with_room",
]

Value = Any
Operation = Callable[[Any, Any], Any]

_MOST_DIGITS = 38
_LEAST_SCALE = 6
_WIDE_DIGITS = 76
_EXACT = decimal.Context(prec=200, Emax=9_999_999, Emin=-9_999_999, traps=[decimal.InvalidOperation])
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")


def _pc() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def is_for_decimals(*types: pa.DataType) -> bool:
    """Return whether decimals of up to 38 digits meet only their like and integers, so that the rules here hold."""
    is_any = False
    for kind in types:
        if pa.types.is_decimal128(kind):
            is_any = True
        elif not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
            return False
    return is_any


def as_literal(scalar: pa.Scalar) -> pa.Scalar:
    """Return a whole constant as a decimal of no more digits than it has."""
    value = scalar.as_py()
    if value is None:
        return scalar
    return pa.scalar(decimal.Decimal(value), pa.decimal128(len(str(abs(value))), 0))


def _digits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_integer(kind):
        return {8: 3, 16: 5, 32: 10}.get(kind.bit_width, 20 if pa.types.is_uint64(kind) else 19), 0
    return kind.precision, kind.scale


def _result_type(precision: int, scale: int) -> pa.DataType:
    if precision <= _MOST_DIGITS:
        return pa.decimal128(max(precision, 1), scale)
    whole = precision - scale
    return pa.decimal128(_MOST_DIGITS, max(_MOST_DIGITS - whole, min(scale, _LEAST_SCALE)))


def _operands(left: Value, right: Value) -> list[Value]:
    """Both as decimals; nulls of no type as nulls of the other's."""
    kinds = [left.type, right.type]
    known = next(kind for kind in kinds if not pa.types.is_null(kind))
    made = []
    for value in (left, right):
        kind = known if pa.types.is_null(value.type) else value.type
        made.append(_pc().cast(value, pa.decimal128(*_digits(kind))))
    return made


def arithmetic(kernel: str) -> Operation:
    """``+``, ``-`` or ``*`` of decimals.

    Args:
        kernel: ``add``, ``subtract`` or ``multiply``.
    """

    def apply(left: Value, right: Value) -> Value:
        left, right = _operands(left, right)
        (p1, s1), (p2, s2) = _digits(left.type), _digits(right.type)
        if kernel == "multiply":
            precision, scale = p1 + p2 + 1, s1 + s2
        else:
            scale = max(s1, s2)
            precision = max(p1 - s1, p2 - s2) + scale + 1
        to = _result_type(precision, scale)
        if precision <= _MOST_DIGITS:
            return _pc().cast(_pc().call_function(f"{kernel}_checked", [left, right]), to)
        if precision <= _WIDE_DIGITS:
            wide = [_pc().cast(v, pa.decimal256(*_digits(v.type))) for v in (left, right)]
            return to_decimal(_pc().call_function(f"{kernel}_checked", wide), to)
        return _each(getattr(_EXACT, kernel), (left, right), to)

    return apply


def divided(left: Value, right: Value) -> Value:
    """``/`` of decimals. Division by zero fails."""
    left, right = _operands(left, right)
    (p1, s1), (p2, s2) = _digits(left.type), _digits(right.type)
    scale = max(_LEAST_SCALE, s1 + p2 + 1)

    def divide(one: decimal.Decimal, other: decimal.Decimal) -> decimal.Decimal:
        if not other:
            message = "division of a decimal by zero"
            raise ZeroDivisionError(message)
        return _EXACT.divide(one, other)

    return _each(divide, (left, right), _result_type(p1 - s1 + s2 + scale, scale))


def comparable(left: Value, right: Value) -> tuple[Value, Value]:
    """Return both operands of a comparison in a type that holds all values of both: that of one of them, if
    that does.
    """
    left, right = _operands(left, right)
    scale = max(left.type.scale, right.type.scale, 0)
    precision = scale + max(value.type.precision - value.type.scale for value in (left, right))
    # The wide type costs ten times as much to make and to compare.
    is_short = precision <= _MOST_DIGITS
    common = pa.decimal128(precision, scale) if is_short else pa.decimal256(_WIDE_DIGITS, scale)
    return _pc().cast(left, common), _pc().cast(right, common)


def _each(operation: Callable[..., decimal.Decimal], values: tuple[Value, ...], to: pa.DataType) -> Value:
    """The operation value by value, in Python's decimals; for what is too wide for Arrow's kernels."""
    length = next((len(value) for value in values if isinstance(value, pa.Array)), None)
    columns = [
        value.to_pylist() if isinstance(value, pa.Array) else [value.as_py()] * (1 if length is None else length)
        for value in values
    ]
    results = [
        None if any(part is None for part in parts) else _rounded(operation(*parts), to)
        for parts in zip(*columns, strict=True)
    ]
    made = pa.array(results, to)
    return made[0] if length is None else made


def _rounded(value: decimal.Decimal, to: pa.DataType) -> decimal.Decimal:
    if value and value.adjusted() >= to.precision - to.scale:
        message = f"the decimal {value:.20g} does not fit {to}"
        raise ValueError(message)
    return value.quantize(decimal.Decimal(1).scaleb(-to.scale), decimal.ROUND_HALF_UP, _EXACT)


def with_room(value: Value, operation: Callable[[Value], Value]) -> Value:
    """Return what an operation gives that may need one digit more: 9.9 becomes 10.

    Arrow gives 0, without a word, for what does not fit. With room it does, and the way back fails.

    Args:
        value: Of any type; others than decimals need no room.
        operation: Gives a value of the type that it is given.
    """
    if not pa.types.is_decimal(value.type):
        return operation(value)
    wide = _pc().cast(value, pa.decimal256(_WIDE_DIGITS, value.type.scale))
    return _pc().cast(operation(wide), value.type)


# ---------------------------------------------------------------------------------------------------------------- casts


def as_texts(value: Value) -> Value:
    """Return decimals as texts, digit by digit: Arrow writes small ones as 1E-18."""
    texts = _pc().cast(value, pa.string())
    if isinstance(value, pa.Scalar):
        return texts if not value.is_valid else pa.scalar(format(value.as_py(), "f"))
    if not _pc().any(_pc().match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if one is None else format(one, "f") for one in value.to_pylist()], pa.string())


def to_decimal(value: Value, to: pa.DataType) -> Value:
    """Return a number or a text as a decimal; what does not fit fails.

    Args:
        value: Of a type that can be a number; others fail as Arrow's cast does.
        to: A decimal type.
    """
    pc = _pc()
    if pa.types.is_boolean(value.type):
        value = pc.cast(value, pa.int8())
    kind = value.type
    if pa.types.is_integer(kind) and 0 <= to.scale <= _MOST_DIGITS:
        if _digits(kind)[0] + to.scale <= to.precision:  # every value fits
            return pc.cast(value, to)
        return pc.cast(pc.cast(value, pa.decimal256(_WIDE_DIGITS, to.scale)), to)
    if pa.types.is_floating(kind):
        value = pc.cast(value, pa.string())
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        try:
            wide = pc.cast(value, pa.decimal256(_WIDE_DIGITS, _MOST_DIGITS))
        except pa.ArrowInvalid:
            return _each(_number, (value,), to)  # very large, very small, or no number
        return _each(_number, (value,), to) if to.scale > _MOST_DIGITS else to_decimal(wide, to)
    if not pa.types.is_decimal(kind):
        return pc.cast(value, to)
    if kind.scale <= to.scale:
        return _with_longer_scale(value, to)
    try:
        if kind.precision < _WIDE_DIGITS:
            # Room for 9.99 that becomes 10.0.
            value = pc.cast(value, pa.decimal256(_WIDE_DIGITS, kind.scale))
        return pc.cast(pc.round(value, ndigits=to.scale, round_mode="half_towards_infinity"), to)
    except pa.ArrowInvalid:
        # Either it does not fit, or only what lay between did not.
        return _each(lambda exact: exact, (value,), to)


def _with_longer_scale(value: Value, to: pa.DataType) -> Value:
    """Arrow's cast where no value can outgrow the integer that it multiplies; it does not notice when one has."""
    digits = value.type.precision + to.scale - value.type.scale
    if digits <= _MOST_DIGITS:
        return _pc().cast(value, to)
    if digits <= _WIDE_DIGITS:
        return _pc().cast(_pc().cast(value, pa.decimal256(_WIDE_DIGITS, to.scale)), to)
    return _each(lambda exact: exact, (value,), to)


def _number(text: str) -> decimal.Decimal:
    if not _NUMBER.fullmatch(text):
        message = f"the text {text!r} is no decimal number"
        raise ValueError(message)
    return decimal.Decimal(text)
