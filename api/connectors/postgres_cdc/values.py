"""Values of PostgreSQL, as the texts that it writes, as columns: exactly, or an error that names the column.

One table says it for what is in the table already and for its log, which both come as texts of the same form (dates by
ISO, times with zones in UTC, bytes in hexadecimal). What has no type of its own here (enums, intervals, addresses,
domains ...) comes as the text that PostgreSQL writes.

Source: `headrace.connectors.sql.postgresql.TYPES`; Flink's "Postgres CDC Connector", data type mapping.
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

from ..sql.postgresql import TYPES

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

_ARRAYS = {one.array: number for number, one in TYPES.items() if one.array is not None}
"""Number of an array's type: that of its elements."""


def name_of(number: int) -> str:
    """Return what a type is called, for messages."""
    if number in _ARRAYS:
        return f"{name_of(_ARRAYS[number])}[]"
    return TYPES[number].name if number in TYPES else f"a type of its own (number {number})"


def _family(number: int) -> str:
    """The family of a type; ``text`` for all that are told as texts."""
    family = TYPES[number].family if number in TYPES else "text"
    return family if family in _FITS else "text"


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
    return bool(_FITS[_family(number)](kind))


_FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "bool": kinds.is_boolean,
    "int": lambda one: kinds.is_integer(one) or kinds.is_decimal(one),
    "float4": kinds.is_floating,
    "float": kinds.is_float64,
    "decimal": kinds.is_decimal,
    "text": kinds.is_string,
    "bytes": kinds.is_binary,
    "date": kinds.is_date32,
    "time": kinds.is_time,
    "timestamp": lambda one: kinds.is_timestamp(one) and one.tz is None,
    "timestamptz": lambda one: kinds.is_timestamp(one) and one.tz is not None,
}
"""By family, which declared types have its values."""


def _natural(number: int) -> str:
    if number in _ARRAYS:
        return f"a list of {_natural(_ARRAYS[number])}"
    natural = {
        "bool": "bool", "int": "int64", "float4": "float32", "float": "float64", "decimal": "decimal128(38, 18)",
        "bytes": "binary", "date": "date32", "time": "time64[us]", "timestamp": "timestamp[us]",
        "timestamptz": "timestamp[us, tz=UTC]",
    }  # fmt: skip
    return natural.get(_family(number), "string")


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
    family = _family(number)
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
