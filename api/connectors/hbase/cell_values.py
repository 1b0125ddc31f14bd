"""Values as bytes, as Java's `Bytes` of HBase and Flink's connector write them: what one has written the other reads.

A null text is the word ``null``, unless another one is said; any other null is no bytes at all.

Source: Flink's ``HBaseSerde``; HBase's ``org.apache.hadoop.hbase.util.Bytes``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import ConfigurationError, TypeMismatchError

__all__ = ["TableFields", "coder_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_ZERO = date(1970, 1, 1).toordinal()
_FORMATS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "float": ">f", "double": ">d"}

Coder = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
"""What makes bytes of a value, and a value of bytes."""


def coder_of(name: str, kind: pa.DataType) -> Coder:
    """Return how values of a type become bytes, and back.

    Raises:
        ConfigurationError: If there is no way.
    """
    if str(kind) in _FORMATS:
        return partial(struct.pack, _FORMATS[str(kind)]), partial(_number_of, _FORMATS[str(kind)])
    if kinds.is_boolean(kind):
        return (lambda value: b"\xff" if value else b"\0"), lambda found: found != b"\0"
    if kinds.is_string(kind):
        return (lambda value: value.encode()), lambda found: found.decode()
    if kinds.is_binary(kind):
        return _bytes_of_bytes, bytes
    if kinds.is_decimal(kind):
        return _bytes_of_decimal, _decimal_of_bytes
    if kinds.is_date32(kind):
        return _bytes_of_day, _day_of_bytes
    if kinds.is_time(kind):
        return _bytes_of_time, _time_of_bytes
    if kinds.is_timestamp(kind):
        return _bytes_of_moment, lambda found: _moment_of_bytes(found, has_zone=kind.tz is not None)
    message = f"column {name!r} has type {kind}, which HBase's connector cannot write"
    raise ConfigurationError(message, hint="numbers, texts, bytes, booleans, decimals, dates and times are written")


def _number_of(form: str, found: bytes) -> Any:
    return struct.unpack(form, found)[0]


def _bytes_of_bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):  # bytes(7) would be seven of them
        message = f"it is of type {type(value).__name__}"
        raise TypeError(message)
    return bytes(value)


def _bytes_of_day(value: date) -> bytes:
    return struct.pack(">i", value.toordinal() - _DAY_ZERO)


def _day_of_bytes(found: bytes) -> date:
    return date.fromordinal(struct.unpack(">i", found)[0] + _DAY_ZERO)


def _bytes_of_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        message = "it is no number"
        raise ValueError(message)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    if exponent > 0:
        whole, exponent = whole * 10**exponent, 0
    length = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
    return struct.pack(">i", -exponent) + whole.to_bytes(length, "big", signed=True)


def _decimal_of_bytes(found: bytes) -> Decimal:
    (scale,) = struct.unpack(">i", found[:4])
    whole = int.from_bytes(found[4:], "big", signed=True)
    digits = tuple(map(int, str(abs(whole))))
    return Decimal((int(whole < 0), digits, -scale))


def _bytes_of_time(value: time) -> bytes:
    milliseconds, rest = divmod(value.microsecond, 1_000)
    if rest:
        message = f"{value} has microseconds, and a cell keeps milliseconds"
        raise ValueError(message)
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return struct.pack(">i", seconds * 1_000 + milliseconds)


def _time_of_bytes(found: bytes) -> time:
    (milliseconds,) = struct.unpack(">i", found)
    return (_EPOCH + timedelta(milliseconds=milliseconds)).time()


def _bytes_of_moment(value: datetime) -> bytes:
    moment = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
    milliseconds, rest = divmod(moment - _EPOCH, timedelta(milliseconds=1))
    if rest:
        message = f"{value} has microseconds, and a cell keeps milliseconds"
        raise ValueError(message)
    return struct.pack(">q", milliseconds)


def _moment_of_bytes(found: bytes, *, has_zone: bool) -> datetime:
    moment = _EPOCH + timedelta(milliseconds=struct.unpack(">q", found)[0])
    return moment if has_zone else moment.replace(tzinfo=None)


@dataclass(frozen=True)
class _Column:
    """A column of a family."""

    family: str
    name: str
    cell: bytes
    is_text: bool
    coder: Coder


class TableFields:
    """The row key of a table, and its families with their columns.

    Args:
        schema: One column that is no row, which is the row key; the others are rows, which are families.
        null_text: What a null text is written as.

    Raises:
        ConfigurationError: If the schema is none of a table of HBase.
    """

    def __init__(self, schema: pa.Schema, null_text: str = "null", *, needs_key: bool = True) -> None:
        self.schema = schema
        keys = [field for field in schema if not kinds.is_struct(field.type)]
        if len(keys) > 1 or (needs_key and not keys):
            message = "a table of HBase has one column that is its row key, and a row for each column family"
            message += f"; these are no rows: {', '.join(field.name for field in keys) or 'none'}"
            raise ConfigurationError(message)
        self.key = keys[0].name if keys else None
        self._key_coder = coder_of(keys[0].name, keys[0].type) if keys else None
        self._null = null_text.encode()
        self.families = tuple(field.name for field in schema if kinds.is_struct(field.type))
        self._columns = [
            _Column(
                family.name, one.name, f"{family.name}:{one.name}".encode(), kinds.is_string(one.type),
                coder_of(f"{family.name}.{one.name}", one.type),
            )
            for family in schema
            if kinds.is_struct(family.type)
            for one in family.type
        ]  # fmt: skip

    def key_bytes(self, value: Any) -> bytes:
        """Return a row key.

        Raises:
            TypeMismatchError: If the value is none.
        """
        assert self._key_coder is not None
        try:
            return self._key_coder[0](value)
        except (ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
            message = f"row key {self.key!r} cannot be {value!r:.80}: {error}"
            raise TypeMismatchError(message) from error

    def cells_of(self, row: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the cells of a record.

        Raises:
            TypeMismatchError: If a value is none of its column.
        """
        cells = {}
        for column in self._columns:
            family = row.get(column.family)
            value = None if family is None else family.get(column.name)
            try:
                cells[column.cell] = (
                    (self._null if column.is_text else b"") if value is None else column.coder[0](value)
                )
            except (ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
                message = f"column {column.cell.decode()!r} cannot hold {value!r:.80}: {error}"
                raise TypeMismatchError(message) from error
        return cells

    def row_of(self, key: bytes, cells: Mapping[bytes, bytes]) -> dict[str, Any]:
        """Return what a row of HBase holds.

        Raises:
            ValueError: If its bytes are none of a type.
        """
        row: dict[str, Any] = {name: {} for name in self.families}
        for column in self._columns:
            found = cells.get(column.cell)
            is_null = found is None or (found == self._null if column.is_text else found == b"")
            try:
                row[column.family][column.name] = None if is_null or found is None else column.coder[1](found)
            except (ValueError, struct.error, OverflowError) as error:
                message = f"column {column.cell.decode()!r} has bytes that are none of its type: {found!r:.60}"
                raise ValueError(message) from error
        if self.key is not None and self._key_coder is not None:
            try:
                row[self.key] = self._key_coder[1](key)
            except (ValueError, struct.error, OverflowError) as error:
                message = f"the row key has bytes that are none of its type: {key!r:.60}"
                raise ValueError(message) from error
        return row
