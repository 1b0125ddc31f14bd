"""Values of fields as those of BSON, and back: exactly, or not at all.

A document has no schema, so each value is looked at where it is read: a whole number may be an int, a long, a decimal,
or a double that is one. What has no place in the declared type is an error. Times without a zone are those of UTC:
MongoDB keeps moments, in milliseconds.

Source: BSON's specification; MongoDB's "BSON Types".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import ConfigurationError, TypeMismatchError, nearest

from ...formats.client_values import Convert, optional

__all__ = ["BSON_TYPES", "check_bson_types", "check_names", "fields_of", "reader_of", "writer_of"]

BSON_TYPES = ("objectId", "uuid")
"""What a text may be in a document, beside a string."""

MOST_DIGITS = 34
"""Of a Decimal128."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)
_DAY_MS = 86_400_000
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def check_names(names: Iterable[str]) -> None:
    """See that fields of documents can have these names: a dot leads into a document, and a $ begins an operator.

    Raises:
        ConfigurationError: If not.
    """
    for name in names:
        if not name or name.startswith("$") or "." in name or "\0" in name:
            message = f"a field of a document has a name without . and a $ at its beginning; got {name!r}"
            raise ConfigurationError(message, hint="declare a document as a struct, whose parts are fields")


def check_bson_types(schema: pa.Schema, given: Mapping[str, str]) -> dict[str, str]:
    """See that columns can be what they are said to be in documents.

    Raises:
        ConfigurationError: If not.
    """
    for name, kind in given.items():
        if name not in schema.names:
            message = f"the schema has no column {name!r}, which is to be {kind}"
            raise ConfigurationError(message, hint=nearest(name, schema.names) or f"it has {', '.join(schema.names)}")
        if kind not in BSON_TYPES:
            message = f"a column is {' or '.join(BSON_TYPES)} in documents, or as its type says; got {kind!r}"
            raise ConfigurationError(message)
        if not _is_text(schema.field(name).type):
            message = f"column {name!r} is {schema.field(name).type}: only texts can be {kind} in documents"
            raise ConfigurationError(message)
    return dict(given)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if kinds.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(_plain(kind)) or kinds.is_large_string(_plain(kind)))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _has_no_place(name: str, kind: pa.DataType) -> TypeMismatchError:
    message = f"values of type {kind} in column {name!r} have no place in a document of MongoDB"
    hints = {
        "uint64": "a long ends at 2^63: cast it to a decimal",
        "timestamp[ns]": "MongoDB keeps milliseconds: cast it to timestamp[ms] or [us]",
    }
    return TypeMismatchError(message, hint=hints.get(str(kind), "cast them in the program, or declare another type"))


# -------------------------------------------------------------------------------------------------------------- writing
def writer_of(name: str, kind: pa.DataType, bson_type: str | None = None) -> Convert | None:
    """Return how a field's values, which are not null, become those of BSON; None for as they are.

    Raises:
        TypeMismatchError: If there is no type of BSON that holds them all.
    """
    from bson import Binary, Decimal128, Int64

    kind = _plain(kind)
    if bson_type is not None:
        return _object_id if bson_type == "objectId" else lambda value: Binary.from_uuid(uuid.UUID(value))
    for fits, convert in (
        (kinds.is_null(kind) or kinds.is_boolean(kind) or _is_text(kind) or _is_bytes(kind), None),
        (kinds.is_integer(kind) and kind.bit_width + kinds.is_unsigned_integer(kind) <= 32, None),
        (kinds.is_int64(kind) or kinds.is_uint32(kind), Int64),
        (kinds.is_floating(kind), float),
        (kinds.is_decimal(kind) and kind.precision <= MOST_DIGITS, Decimal128),
        (kinds.is_date(kind), _day),
        (kinds.is_timestamp(kind) and kind.unit != "ns", _moment),
    ):
        if fits:
            return convert
    if _is_list(kind):
        part = optional(writer_of(name, kind.value_type))
        return lambda values: [part(value) for value in values]
    if kinds.is_struct(kind):
        parts = {field.name: optional(writer_of(f"{name}.{field.name}", field.type)) for field in kind}
        return lambda value: {one: convert(value.get(one)) for one, convert in parts.items()}
    if kinds.is_map(kind) and _is_text(kind.key_type):
        item = optional(writer_of(name, kind.item_type))
        return lambda value: {key: item(one) for key, one in dict(value).items()}
    raise _has_no_place(name, kind)


def _object_id(text: str) -> Any:
    from bson import ObjectId

    if not ObjectId.is_valid(text):
        message = f"{text!r:.80} is no objectId, which has 24 digits in hexadecimal"
        raise ValueError(message)
    return ObjectId(text)


def _moment(value: datetime) -> Any:
    from bson.datetime_ms import DatetimeMS

    time = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
    whole, rest = divmod(time - _EPOCH, _MS)
    if rest:
        message = f"{value} has microseconds, and MongoDB keeps milliseconds"
        raise ValueError(message)
    return DatetimeMS(whole)


def _day(value: date) -> Any:
    return _moment(datetime(value.year, value.month, value.day, tzinfo=timezone.utc))


# -------------------------------------------------------------------------------------------------------------- reading
def reader_of(name: str, kind: pa.DataType) -> Convert:
    """Return how values of BSON, which are not null, become what Arrow makes a field's values of.

    Raises:
        TypeMismatchError: If no value of BSON can be one of the type.
    """
    kind = _plain(kind)
    for fits, convert in (
        (kinds.is_null(kind), _only(type(None))),
        (kinds.is_boolean(kind), _only(bool)),
        (kinds.is_integer(kind), _whole),
        (kinds.is_float64(kind), _double),
        (kinds.is_float32(kind), _single),
        (kinds.is_decimal(kind), _decimal),
        (_is_text(kind), _text),
        (_is_bytes(kind), _only(bytes)),
        (kinds.is_date32(kind), _days),
        (kinds.is_timestamp(kind), _moment_in(kind)),
    ):
        if fits:
            return convert
    if _is_list(kind):
        part = optional(reader_of(name, kind.value_type))
        return lambda value: [part(one) for one in _only(list)(value)]
    if kinds.is_struct(kind):
        parts = {field.name: optional(reader_of(f"{name}.{field.name}", field.type)) for field in kind}

        def struct_of(value: Any) -> dict[str, Any]:
            document = _document(value)
            return {one: convert(document.get(one)) for one, convert in parts.items()}

        return struct_of
    if kinds.is_map(kind) and _is_text(kind.key_type):
        item = optional(reader_of(name, kind.item_type))
        return lambda value: [(key, item(one)) for key, one in _document(value).items()]
    raise _has_no_place(name, kind)


def _refuse(value: Any, wanted: str) -> ValueError:
    message = f"a {type(value).__name__} is no {wanted}"
    return ValueError(message)


def _only(wanted: type) -> Convert:
    """Values of one type alone, and not of its subtypes, which are other types of BSON: as Code, which is a str."""

    def same(value: Any) -> Any:
        if type(value) is not wanted:
            raise _refuse(value, wanted.__name__)
        return value

    return same


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    from bson import Decimal128

    exact = value.to_decimal() if isinstance(value, Decimal128) else value
    if not (_is_number(exact) or isinstance(exact, Decimal)) or exact != exact or exact in (_INFINITE, -_INFINITE):
        raise _refuse(value, "whole number")
    if int(exact) != exact:
        message = f"{value} is no whole number"
        raise ValueError(message)
    return int(exact)


_INFINITE = float("inf")


def _double(value: Any) -> float:
    if not _is_number(value):
        raise _refuse(value, "double")
    if isinstance(value, int) and int(float(value)) != value:
        message = f"a double does not hold {value}"
        raise ValueError(message)
    return float(value)


def _single(value: Any) -> float:
    found = _double(value)
    with np.errstate(over="ignore"):
        is_held = found != found or float(np.float32(found)) == found
    if not is_held:
        message = f"a float of 32 bits does not hold {value}"
        raise ValueError(message)
    return found


def _decimal(value: Any) -> Decimal:
    from bson import Decimal128

    if isinstance(value, Decimal128):
        found = value.to_decimal()
        if found.is_finite():
            return found
    elif isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise _refuse(value, "decimal")


def _text(value: Any) -> str:
    from bson import Binary, ObjectId

    if type(value) is str:
        return value
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, Binary) and value.subtype == 4 and len(value) == 16:
        return str(uuid.UUID(bytes=bytes(value)))
    raise _refuse(value, "text")


def _milliseconds(value: Any) -> int:
    from bson.datetime_ms import DatetimeMS

    if not isinstance(value, DatetimeMS):
        raise _refuse(value, "time")
    return int(value)


def _days(value: Any) -> int:
    days, rest = divmod(_milliseconds(value), _DAY_MS)
    if rest:
        message = "a time is no date: it is not at midnight"
        raise ValueError(message)
    return days


def _moment_in(kind: pa.DataType) -> Convert:
    """What makes a number of a moment, in the unit of a type."""
    if not kinds.is_timestamp(kind):
        return _milliseconds
    if kind.unit != "s":
        factor = _PER_SECOND[kind.unit] // 1_000
        return lambda value: _milliseconds(value) * factor

    def seconds(value: Any) -> int:
        whole, rest = divmod(_milliseconds(value), 1_000)
        if rest:
            message = "a time is no whole number of seconds"
            raise ValueError(message)
        return whole

    return seconds


def _document(value: Any) -> Mapping[str, Any]:
    from bson.dbref import DBRef

    if isinstance(value, DBRef):
        return dict(value.as_doc())
    if not isinstance(value, Mapping):
        raise _refuse(value, "document")
    return value


def fields_of(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[Any]]:
    """Return the values of fields, column by column; None where a document has none."""
    getters: list[Callable[[str], Any]] = [document.get for document in documents]
    return [[get(name) for get in getters] for name in names]
