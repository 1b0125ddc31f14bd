"""How types come together: operands of arithmetic and comparisons, branches of CASE, columns of a UNION.

Source: Flink's ``LogicalTypeMerging``, ``LogicalTypeCasts``; Calcite's ``TypeCoercionImpl``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.engine.columns.expressions import lit

from ..parsing.errors import SqlError
from ..parsing.types import sql_name
from .contract import Typed

__all__ = ["as_decimal_type", "cast_to", "common_type", "is_number", "is_text", "together"]

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def is_number(kind: pa.DataType) -> bool:
    """Whether it can be computed with."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether it is CHAR, VARCHAR or STRING."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_decimal_type(kind: pa.DataType) -> pa.DataType:
    """Return the DECIMAL that holds all values of an integer type; a decimal itself."""
    return pa.decimal128(_DIGITS[kind], 0) if kind in _DIGITS else kind


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type that values of all these types have in common.

    Raises:
        SqlError: If there is none.
    """
    known = [kind for kind in kinds if not pa.types.is_null(kind)]
    if not known:
        return pa.null()
    result = known[0]
    for kind in known[1:]:
        result = _common(result, kind)
    return result


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if is_number(one) and is_number(other):
        return _common_number(one, other)
    if is_text(one) and is_text(other):
        return pa.string()
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz == other.tz:
        return max(one, other, key=lambda kind: ("s", "ms", "us", "ns").index(kind.unit))
    for time, date in ((one, other), (other, one)):
        if pa.types.is_timestamp(time) and pa.types.is_date(date) and time.tz is None:
            return time
    message = f"{sql_name(one)} and {sql_name(other)} have no type in common"
    raise SqlError(message, hint="CAST one of them")


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        return pa.float32() if one == other == pa.float32() else pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return _INTEGERS[max(_INTEGERS.index(one), _INTEGERS.index(other))]
    left, right = as_decimal_type(one), as_decimal_type(other)
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return pa.decimal128(min(whole + scale, 38), scale)


def cast_to(value: Typed, kind: pa.DataType) -> Typed:
    """Return a value in another type, itself if it has it."""
    if value.kind == kind:
        return value
    if pa.types.is_null(value.kind):
        return Typed(lit(None, kind), kind)
    return Typed(value.expression.cast(kind), kind)


def together(values: Sequence[Typed]) -> list[Typed]:
    """Return all values in their common type.

    Raises:
        SqlError: If there is none.
    """
    kind = common_type([value.kind for value in values])
    return [cast_to(value, kind) for value in values]
