"""Values of PostgreSQL, as the texts that it writes, as columns: exactly, or an error that names the column.

One table says it for what is in the table already and for its log, which both come as texts of the same form (dates by
ISO, times with zones in UTC, bytes in hexadecimal). What has no type of its own here (enums, intervals, addresses,
domains ...) comes as the text that PostgreSQL writes.

Source: PostgreSQL's ``pg_type.dat``; Flink's "Postgres CDC Connector", data type mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from headrace.engine.errors import TypeMismatchError

__all__ = ["SESSION", "column_of", "require_type"]

SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "row_security": "off",
}
"""Settings by which all texts have one form, and rows that a policy hides are an error, as the log has them."""

_TYPES = {
    16: ("boolean", "bool"),
    17: ("bytea", "bytes"),
    20: ("bigint", "int"),
    21: ("smallint", "int"),
    23: ("integer", "int"),
    25: ("text", "text"),
    700: ("real", "float4"),
    701: ("double precision", "float8"),
    1042: ("character", "text"),
    1043: ("character varying", "text"),
    1082: ("date", "date"),
    1083: ("time", "time"),
    1114: ("timestamp", "timestamp"),
    1184: ("timestamp with time zone", "timestamptz"),
    1700: ("numeric", "decimal"),
    2950: ("uuid", "text"),
    114: ("json", "text"),
    3802: ("jsonb", "text"),
}
"""Number of a type: its name, and its family. Others are texts."""

_ARRAYS = {
    1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1009: 25, 1021: 700, 1022: 701, 1014: 1042, 1015: 1043,
    1182: 1082, 1183: 1083, 1115: 1114, 1185: 1184, 1231: 1700, 2951: 2950, 199: 114, 3807: 3802,
}  # fmt: skip
"""Number of an array's type: that of its elements."""


def name_of(number: int) -> str:
    """Return what a type is called, for messages and for the table of the guide."""
    if number in _ARRAYS:
        return f"{name_of(_ARRAYS[number])}[]"
    return _TYPES[number][0] if number in _TYPES else f"a type of its own (number {number})"


def require_type(column: str, number: int, kind: pa.DataType) -> None:
    """See that a column's values are ones of a declared type.

    Raises:
        TypeMismatchError: If they are not.
    """
    if not _fits(number, kind):
        message = f"column {column!r} is {name_of(number)} in the database, which cannot be read as {kind}"
        raise TypeMismatchError(message, hint=f"declare it as {_natural(number)}")


def _fits(number: int, kind: pa.DataType) -> bool:
    if number in _ARRAYS:
        return kinds.is_list(kind) and _fits(_ARRAYS[number], kind.value_type)
    family = _TYPES[number][1] if number in _TYPES else "text"
    return {
        "bool": kinds.is_boolean,
        "int": lambda one: kinds.is_integer(one) or kinds.is_decimal(one),
        "float4": kinds.is_floating,
        "float8": kinds.is_float64,
        "decimal": kinds.is_decimal,
        "text": kinds.is_string,
        "bytes": kinds.is_binary,
        "date": kinds.is_date32,
        "time": kinds.is_time,
        "timestamp": lambda one: kinds.is_timestamp(one) and one.tz is None,
        "timestamptz": lambda one: kinds.is_timestamp(one) and one.tz is not None,
    }[family](kind)


def _natural(number: int) -> str:
    if number in _ARRAYS:
        return f"a list of {_natural(_ARRAYS[number])}"
    natural = {
        "bool": "bool", "int": "int64", "float4": "float32", "float8": "float64", "decimal": "decimal128(38, 18)",
        "bytes": "binary", "date": "date32", "time": "time64[us]", "timestamp": "timestamp[us]",
        "timestamptz": "timestamp[us, tz=UTC]",
    }  # fmt: skip
    return natural.get(_TYPES[number][1] if number in _TYPES else "text", "string")


def column_of(name: str, number: int, texts: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return values as a column.

    Args:
        name: Of the column, for errors.
        number: Of its type in the database.
        texts: The values.
        kind: The declared type, which fits (`require_type`).

    Raises:
        TypeMismatchError: If one cannot be held exactly.
    """
    try:
        return _column(number, [None if one is None else one.decode() for one in texts], kind)
    except (pa.ArrowException, ValueError, ArithmeticError, OverflowError) as error:
        message = f"column {name!r} has a value that is no {kind}: {error}"
        raise TypeMismatchError(message) from error


def _column(number: int, texts: list[str | None], kind: pa.DataType) -> pa.Array:
    if number in _ARRAYS:
        return _lists(_ARRAYS[number], texts, kind)
    family = _TYPES[number][1] if number in _TYPES else "text"
    plain = pa.array(texts, pa.string())
    if family == "text":
        return plain
    if family == "bool":
        return pc.equal(plain, "t")
    convert = _CONVERT.get(family)
    if kinds.is_decimal(kind):
        convert = _decimal
    if convert is not None:
        values = [None if one is None else convert(one) for one in texts]
        if family == "time":
            return pa.array(values, pa.time64("us")).cast(kind)
        return pa.array(values, kind)
    if family in ("timestamp", "timestamptz"):
        exact = pa.timestamp("us", "UTC" if kind.tz else None)
        return plain.cast(exact).cast(pa.timestamp("us", kind.tz)).cast(kind)  # nothing may be cut
    return plain.cast(kind)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        message = f"{text} is no number that a decimal has"
        raise ValueError(message)
    return value


def _time(text: str) -> time:
    clock, _, fraction = text.partition(".")
    return time.fromisoformat(f"{clock}.{fraction:0<6}")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


_CONVERT: dict[str, Callable[[str], Any]] = {"time": _time, "bytes": _bytes, "decimal": _decimal}
"""Families whose texts Arrow does not parse."""


# --------------------------------------------------------------------------------------------------------------- arrays
def _lists(element: int, texts: list[str | None], kind: pa.DataType) -> pa.Array:
    offsets, flat = [0], []
    for text in texts:
        flat += [] if text is None else _elements(text)
        offsets.append(len(flat))
    values = _column(element, flat, kind.value_type)
    mask = pa.array([text is None for text in texts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind, mask=mask)


def _elements(text: str) -> list[str | None]:
    """The elements of an array of one dimension, as the database writes it.

    Raises:
        ValueError: If it has more dimensions, or bounds of its own.
    """
    if not text.startswith("{"):
        message = f"the array has bounds of its own: {text[:40]}"
        raise ValueError(message)
    found: list[str | None] = []
    place, end = 1, len(text) - 1
    while place < end:
        if text[place] == "{":
            message = f"the array has more than one dimension: {text[:40]}"
            raise ValueError(message)
        if text[place] == '"':
            element, place = _quoted(text, place + 1)
            found.append(element)
        else:
            stop = text.find(",", place, end)
            stop = end if stop < 0 else stop
            found.append(None if text[place:stop] == "NULL" else text[place:stop])
            place = stop
        place += 1  # the comma
    return found


def _quoted(text: str, place: int) -> tuple[str, int]:
    """An element in quotes, and the place behind them."""
    letters = []
    while text[place] != '"':
        place += text[place] == "\\"
        letters.append(text[place])
        place += 1
    return "".join(letters), place + 1
