"""How types come together: operands of arithmetic and comparisons, branches of CASE, columns of a UNION.

Rows, arrays and maps come together part by part, rows by the order of their fields, which have the names of the first.

Source: Flink's ``LogicalTypeMerging``, ``LogicalTypeCasts``; Calcite's ``TypeCoercionImpl``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.expressions import lit
from headrace.engine.columns.kernels import KERNELS, Value

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .contract import KernelCall, Typed

__all__ = [
    "as_decimal_type",
    "cast_to",
    "common_type",
    "is_number",
    "is_text",
    "list_like",
    "starts_and_sizes",
    "together",
    "with_parts",
]

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
    nested = _common_nested(one, other)
    if nested is not None:
        return nested
    message = f"{sql_name(one)} and {sql_name(other)} have no type in common"
    raise SqlError(message, hint="CAST one of them")


def _common_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The common type of rows, arrays or maps; None if they are none, or rows of other numbers of fields."""
    if pa.types.is_struct(one) and pa.types.is_struct(other) and one.num_fields == other.num_fields:
        fields = zip(one, other, strict=True)
        return pa.struct([pa.field(left.name, common_type([left.type, right.type])) for left, right in fields])
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(common_type([one.key_type, other.key_type]), common_type([one.item_type, other.item_type]))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(common_type([one.value_type, other.value_type]))
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        # A FLOAT stays one beside integers.
        is_double = any(kind == pa.float64() or pa.types.is_decimal(kind) for kind in (one, other))
        return pa.float64() if is_double else pa.float32()
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
    if pa.types.is_nested(kind):
        return Typed(KernelCall("CAST", _fitted, (value.expression,), kind, to=kind), kind)
    return Typed(value.expression.cast(kind), kind)


def _fitted(value: Value, to: pa.DataType) -> Value:
    """Values in a type that they have in common with others."""
    if value.type == to:
        return value
    if pa.types.is_null(value.type):
        return pa.nulls(len(value), to)
    return with_parts(value, to, _fitted) if pa.types.is_nested(to) else KERNELS["cast"](value, to=to)


def with_parts(value: pa.Array, to: pa.DataType, convert: Callable[[Any, pa.DataType], Any]) -> pa.Array:
    """Return rows, arrays or maps whose parts are of other types.

    Args:
        value: The rows, arrays or maps.
        to: Their new type.
        convert: Makes of values those of another type.
    """
    is_null: Any = value.is_null()
    if pa.types.is_struct(to):
        # Flattened, a field of a row that is null is null itself.
        parts = [convert(part, field.type) for part, field in zip(value.flatten(), to, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=is_null)
    if pa.types.is_map(to):
        keys, items = list_like(value, value.keys), list_like(value, value.items)
        made = (convert(keys.values, to.key_type), convert(items.values, to.item_type))
        return pa.MapArray.from_arrays(keys.offsets, *made, mask=is_null)
    lists = list_like(value, value.values)
    return pa.ListArray.from_arrays(lists.offsets, convert(lists.values, to.value_type), mask=is_null)


def starts_and_sizes(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return where the elements of each list begin, and how many there are; none of null."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    is_null = np.asarray(lists.is_null())
    return offsets[:-1], np.where(is_null, 0, np.diff(offsets))


def list_like(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return lists of other values, of which each has as many as one of these, and is null where that is."""
    starts, sizes = starts_and_sizes(lists)
    places = np.repeat(starts - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(places)), mask=lists.is_null())


def together(values: Sequence[Typed]) -> list[Typed]:
    """Return all values in their common type.

    Raises:
        SqlError: If there is none.
    """
    kind = common_type([value.kind for value in values])
    return [cast_to(value, kind) for value in values]
