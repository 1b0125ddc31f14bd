"""Values of fields as those of columns of Cassandra, and back: exactly, or not at all.

A field fits a column if the column holds each of its values, and a column fits a field if the field does. What only a
value can tell (microseconds, numbers of a decimal's digits) is an error of that value. Times without a zone are those
of UTC: Cassandra keeps moments, in milliseconds.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import TypeMismatchError

from ...formats.client_values import Convert, optional
from .cql_types import CqlType

__all__ = ["exact", "reader_of", "writer_of"]

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "varint": 1 << 20}
_TEXTS = frozenset({"text", "varchar", "ascii"})
_IDS = frozenset({"uuid", "timeuuid"})
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _does_not_fit(name: str, kind: pa.DataType, column: CqlType) -> TypeMismatchError:
    message = f"values of type {kind} do not fit column {name!r} of type {column}"
    hint = "cast them in the program, or declare another type"
    if column.name == "counter":
        message = f"column {name!r} is a counter: what is added again after a failure would be counted twice"
        hint = "write the sum into a bigint"
    return TypeMismatchError(message, hint=hint)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if kinds.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_id(kind: pa.DataType) -> bool:
    return _is_text(kind) or (kinds.is_fixed_size_binary(kind) and kind.byte_width == 16)


def _bits(kind: pa.DataType) -> int:
    """How many bits a number with a sign needs for all values of a type of whole numbers."""
    return int(kind.bit_width) + bool(kinds.is_unsigned_integer(kind))


def _each(convert: Convert | None) -> Convert:
    return (lambda value: value) if convert is None else convert


# -------------------------------------------------------------------------------------------------------------- writing
def writer_of(name: str, kind: pa.DataType, column: CqlType) -> Convert | None:
    """Return how a field's values, which are not null, become those of a column; None for as they are.

    Raises:
        TypeMismatchError: If they do not fit.
    """
    kind, to = _plain(kind), column.name
    if kinds.is_null(kind) and to != "counter":
        return None
    for fits, convert in (
        (to == "boolean" and kinds.is_boolean(kind), None),
        (to in _BITS and kinds.is_integer(kind) and _bits(kind) <= _BITS[to], None),
        (to == "varint" and kinds.is_decimal(kind) and kind.scale == 0, int),
        (to == "float" and (kinds.is_float32(kind) or kinds.is_float16(kind)), None),
        (to == "double" and kinds.is_floating(kind), None),
        (to == "decimal" and (kinds.is_decimal(kind) or kinds.is_integer(kind)), Decimal),
        (to in _TEXTS and _is_text(kind), None),
        (to == "blob" and _is_bytes(kind), None),
        (to == "inet" and _is_text(kind), _address_of),
        (to in _IDS and _is_id(kind), _id_of),
        (to == "date" and kinds.is_date(kind), None),
        (to == "time" and kinds.is_time(kind), None),
        (to == "timestamp" and kinds.is_timestamp(kind) and kind.unit != "ns", _milliseconds),
    ):
        if fits:
            return convert
    if to in ("list", "set") and _is_list(kind):
        part = _each(writer_of(name, kind.value_type, column.parts[0]))
        return lambda values: [part(value) for value in values]
    if to == "map" and kinds.is_map(kind):
        key, item = (
            _each(writer_of(name, one, part))
            for one, part in zip((kind.key_type, kind.item_type), column.parts, strict=True)
        )
        return lambda value: {key(one): item(other) for one, other in dict(value).items()}
    raise _does_not_fit(name, kind, column)


def _id_of(value: Any) -> uuid.UUID:
    return uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value)


def _address_of(value: str) -> str:
    """An address in the one form that it has: several texts are one."""
    return str(ipaddress.ip_address(value))


def _milliseconds(value: datetime) -> int:
    time = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
    whole, rest = divmod(time - _EPOCH, timedelta(milliseconds=1))
    if rest:
        message = f"{value} has microseconds, and Cassandra keeps milliseconds"
        raise ValueError(message)
    return whole


# -------------------------------------------------------------------------------------------------------------- reading
def reader_of(name: str, kind: pa.DataType, column: CqlType) -> Convert | None:
    """Return how a column's values, which are not null, become what Arrow makes a field's values of; None for as they
    are.

    Raises:
        TypeMismatchError: If they do not fit.
    """
    of = column.name
    for fits, convert in (
        (of == "boolean" and kinds.is_boolean(kind), None),
        (of in _BITS and of != "varint" and kinds.is_integer(kind) and _holds(kind, _BITS[of]), None),
        (of in ("varint", "counter") and kinds.is_int64(kind), None),
        (of == "varint" and kinds.is_decimal(kind) and kind.scale == 0, Decimal),
        (of == "float" and kinds.is_floating(kind) and not kinds.is_float16(kind), None),
        (of == "double" and kinds.is_float64(kind), None),
        (of == "decimal" and kinds.is_decimal(kind), None),
        (of in _TEXTS | {"inet"} and _is_text(kind), None),
        (of == "blob" and _is_bytes(kind), None),
        (of in _IDS and _is_text(kind), str),
        (of in _IDS and _is_id(kind), lambda value: value.bytes),
        (of == "date" and kinds.is_date32(kind), lambda value: value.days_from_epoch),
        (of == "time" and kinds.is_time(kind), _time_in(kind)),
        (of == "timestamp" and kinds.is_timestamp(kind) and kind.unit != "s", _moment_in(kind)),
    ):
        if fits:
            return convert
    if of in ("list", "set") and _is_list(kind):
        part = optional(reader_of(name, kind.value_type, column.parts[0]))
        return lambda values: [part(value) for value in values]
    if of == "map" and kinds.is_map(kind):
        key, item = (
            optional(reader_of(name, one, part))
            for one, part in zip((kind.key_type, kind.item_type), column.parts, strict=True)
        )
        return lambda value: [(key(one), item(other)) for one, other in value.items()]
    raise _does_not_fit(name, kind, CqlType("bigint") if of == "counter" else column)


def _holds(kind: pa.DataType, bits: int) -> bool:
    return bool(kinds.is_signed_integer(kind)) and kind.bit_width >= bits


def _time_in(kind: pa.DataType) -> Convert:
    """What makes a number of a time of day, in the unit of a type."""

    def number_of(value: Any) -> int:
        number, rest = divmod(value.nanosecond_time, factor)
        if rest:
            message = f"the time {value} is no whole number of {kind.unit}"
            raise ValueError(message)
        return int(number)

    factor = _NANOSECONDS[kind.unit] if kinds.is_time(kind) else 1
    return number_of


def _moment_in(kind: pa.DataType) -> Convert:
    """What makes a number of a moment, in the unit of a type."""
    factor = _NANOSECONDS["ms"] // _NANOSECONDS[kind.unit] if kinds.is_timestamp(kind) and kind.unit != "s" else 1
    return lambda value: exact(value) * factor


def exact(value: Any) -> Any:
    """Return a value of the driver with moments as the milliseconds that they are, also inside of others.

    The driver calculates them as floats, whose last digits are wrong.
    """
    if isinstance(value, datetime):
        microseconds = (value - _NAIVE_EPOCH) // timedelta(microseconds=1)
        return (microseconds + 500) // 1_000
    if isinstance(value, Mapping):
        return {exact(key): exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "SortedSet":
        return [exact(one) for one in value]
    return value
