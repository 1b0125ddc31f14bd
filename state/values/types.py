"""What a value is: one type that knows the column it lies in, the form it is stored in, and the way between them.

Kinds of types: an atom, an opaque one for values of which nothing is known, and those that are made of others
(`headrace.state.values.composite_types`): with None, list, map, tuple, record. Each has four sides, which always agree:

- ``schema``: the JSON value that is kept with stored data: an atom's name (``int64``, ``string`` ...), ``{"optional":
  s}``, ``{"list": s}``, ``{"map": [k, v]}``, ``{"tuple": [...]}``, ``{"record": [[name, s], ...], "of": kind, "class":
  name}`` or ``{"opaque": text}``;
- ``arrow_type``: of the column that holds values of the type; None is null in it, whatever the type;
- `ValueType.array` and `ValueType.values`: to the column and back. What comes back is equal to what went in, a value
  of which that cannot be said is refused: nothing is converted at a loss but the digits that 32 bits of a float lack;
- `ValueType.holds`: whether values would come back equal and of the very same types, without any conversion.

Types are found by `headrace.state.values.type_sources`: from Python's hints, Arrow's types, stored schemas. To add an
atom, add a line to `ATOMS`.

Source: Flink's ``TypeInformation`` and ``TypeSerializer``; Arrow's data types.
"""

from __future__ import annotations

import datetime
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from .sharing import shown

__all__ = [
    "ATOMS",
    "RECORD_SHAPE",
    "AtomType",
    "Change",
    "OpaqueType",
    "Schema",
    "ValueType",
    "declared_shape",
    "held_as",
    "kinds_of",
]

RECORD_SHAPE = b"headrace.row"
"""In a schema's metadata: what a record is in Python (``dict``, ``tuple``, ``value``, and ``pickled`` on the wire)."""

Schema = Any
"""What the module's docstring says; None where nothing is declared."""
Change = Callable[[Any], Any]

ATOMS: dict[str, tuple[type, pa.DataType]] = {
    "null": (type(None), pa.null()),
    "bool": (bool, pa.bool_()),
    "int8": (int, pa.int8()),
    "int16": (int, pa.int16()),
    "int32": (int, pa.int32()),
    "int64": (int, pa.int64()),
    "uint8": (int, pa.uint8()),
    "uint16": (int, pa.uint16()),
    "uint32": (int, pa.uint32()),
    "uint64": (int, pa.uint64()),
    "float16": (float, pa.float16()),
    "float32": (float, pa.float32()),
    "float64": (float, pa.float64()),
    "string": (str, pa.string()),
    "binary": (bytes, pa.binary()),
    "decimal": (Decimal, pa.string()),
    "uuid": (uuid.UUID, pa.string()),
    "date": (datetime.date, pa.date32()),
    "time": (datetime.time, pa.time64("us")),
    "timestamp": (datetime.datetime, pa.timestamp("us")),
    "duration": (datetime.timedelta, pa.duration("us")),
}
"""The atoms by their stored names: the Python type of their values, and the type of their columns. Besides there are
``decimal128(p, s)``, ``decimal256(p, s)`` and ``timestamp[zone]``."""

_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError)


class ValueType(ABC):
    """The type of a value.

    Attributes:
        schema: Its stored description.
        arrow_type: Of a column of its values.
        is_certain: Whether it says the type of every part, so that no value has to be looked at.
        lower: Turns a value into what is stored of it, instances of classes into dicts; None if that is the value.
        lift: The inverse.
        parts: The types it is made of, in the order of the schema.
    """

    schema: Schema
    arrow_type: pa.DataType
    is_certain: bool = True
    lower: Change | None = None
    lift: Change | None = None
    parts: tuple[ValueType, ...] = ()

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Turn values into a column of ``arrow_type``; None is null.

        Raises:
            TypeMismatchError: If a value is not of the type, or would not come back equal; ``row`` says which.
        """
        try:
            return self._array(values)
        except _FAILURES as error:
            for row, value in enumerate(values):
                try:
                    self._array([value])
                except _FAILURES as reason:
                    message = f"a value is not of its type: {shown(value, 120)}: {reason}"
                    raise TypeMismatchError(message, row=row) from error
            message = f"values are not of their type: {error}"
            raise TypeMismatchError(message) from error

    def values(self, column: pa.Array | pa.ChunkedArray) -> list[Any]:
        """Turn a column of ``arrow_type`` into values; the inverse of `array`.

        Raises:
            TypeMismatchError: If a value has no Python counterpart, as a time beyond the year 9999.
        """
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return self._values(column)

    @abstractmethod
    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether values would come back from a column equal and of the very same types; nothing is
        converted.
        """

    @abstractmethod
    def _array(self, values: Sequence[Any]) -> pa.Array:
        """The column of the values; fails as Arrow does."""

    @abstractmethod
    def _values(self, column: pa.Array) -> list[Any]:
        """The values of a column that is in one piece."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.schema!r})"


# --------------------------------------------------------------------------------------------------------------- atoms
class AtomType(ValueType):
    """A value without parts.

    Args:
        schema: Its stored name.
        python: The type of the values.
        arrow_type: Of the column: that of `ATOMS`, or another one that holds the same values.
    """

    def __init__(self, schema: str, python: type, arrow_type: pa.DataType) -> None:
        self.schema = schema
        self.python = python
        self.arrow_type = arrow_type
        self._is_text_of_others = python in (Decimal, uuid.UUID) and pa.types.is_string(arrow_type)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        kinds = kinds_of(values)
        if any(issubclass(kind, np.generic) for kind in kinds):
            values = [value.item() if isinstance(value, np.generic) else value for value in values]
            kinds = kinds_of(values)
        for kind in kinds - {self.python}:
            self._refuse_lossy(kind, values)
        if self.python in (datetime.datetime, datetime.time) and kinds:
            self._check_zones(values)
        if self._is_text_of_others:
            values = [None if value is None else str(value) for value in values]
        return pa.array(values, self.arrow_type)

    def _refuse_lossy(self, kind: type, values: Sequence[Any]) -> None:
        """Arrow would make something else of other types, silently: 1 of True, text of bytes, a date of a datetime."""
        if kind is int and self.python is Decimal and not self._is_text_of_others:
            return
        if kind is int and self.python is float and all(type(v) is not int or float(v) == v for v in values):
            return
        message = f"expected a {self.python.__name__}, got a {kind.__name__}"
        raise TypeError(message)

    def _check_zones(self, values: Sequence[Any]) -> None:
        is_zoned = pa.types.is_timestamp(self.arrow_type) and self.arrow_type.tz is not None
        for value in values:
            if value is not None and (value.utcoffset() is not None) != is_zoned:
                message = f"expected a {self.python.__name__} {'with' if is_zoned else 'without'} a time zone"
                raise TypeError(message)

    def _values(self, column: pa.Array) -> list[Any]:
        values = _python_values(column)
        if not self._is_text_of_others:
            return values
        try:
            return [None if value is None else self.python(value) for value in values]
        except (ValueError, ArithmeticError) as error:
            message = f"a text is no {self.python.__name__}: {error!r}"
            raise TypeMismatchError(message) from error

    def holds(self, values: Sequence[Any]) -> bool:
        present = held_as(self.python, values)
        if not present:
            return present is not None
        if self.schema in _WHOLE and ATOMS[self.schema][1].equals(self.arrow_type):
            check = _HOLDERS.get(self.python)
            return check is None or check(present, self.arrow_type)
        try:
            back = self._values(self._array(present))
        except (TypeMismatchError, *_FAILURES):
            return False
        return all(map(_is_same_atom, present, back))


_WHOLE = frozenset(ATOMS) - {"float16", "float32", "duration"}
"""Atoms whose columns hold all values of their Python type but for what `_HOLDERS` look at."""


def _holds_int(values: Sequence[Any], kind: pa.DataType) -> bool:
    bits = kind.bit_width
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)
    return bool(min(values) >= low and max(values) <= high)


def _holds_text(values: Sequence[Any], kind: pa.DataType) -> bool:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _holds_time(values: Sequence[Any], kind: pa.DataType) -> bool:
    return all(value.tzinfo is None and not value.fold for value in values)


_HOLDERS: dict[type, Callable[[Sequence[Any], pa.DataType], bool]] = {
    int: _holds_int,
    str: _holds_text,
    datetime.datetime: _holds_time,
    datetime.time: _holds_time,
}


def _is_same_atom(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, datetime.datetime):
        return bool(value == other and value.tzinfo == other.tzinfo and not value.fold)
    return repr(value) == repr(other)


def declared_shape(schema: pa.Schema) -> str:
    """Return what a schema says a record is: ``dict`` where it says nothing; see `RECORD_SHAPE`."""
    return (schema.metadata or {}).get(RECORD_SHAPE, b"dict").decode("utf-8", "replace")


def held_as(kind: type, values: Sequence[Any]) -> Sequence[Any] | None:
    """Return the values but None, if all of them are of exactly one type; else None."""
    kinds = set(map(type, values))
    if kinds == {kind}:
        return values
    kinds.discard(type(None))
    return [value for value in values if value is not None] if kinds <= {kind} else None


def kinds_of(values: Iterable[Any]) -> set[type]:
    """Return the Python types of values, None apart."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    return kinds


# ------------------------------------------------------------------------------------------------------------- opaque
class OpaqueType(ValueType):
    """Values of which no column can be made: each is bytes, by a form that is told.

    Args:
        schema: Its stored description: ``{"opaque": text}``, or whatever a reader does not know.
        dump: Makes bytes of a value.
        load: The inverse.
        arrow_type: Of the column.
    """

    is_certain = False

    def __init__(
        self,
        schema: Schema,
        dump: Callable[[Any], bytes],
        load: Callable[[bytes], Any],
        arrow_type: pa.DataType | None = None,
    ) -> None:
        self.schema = schema
        self._dump, self._load = dump, load
        self.arrow_type = pa.binary() if arrow_type is None else arrow_type

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(self._dump, values)), self.arrow_type)

    def _values(self, column: pa.Array) -> list[Any]:
        load = self._load
        return [None if data is None else load(data) for data in _python_values(column)]

    def holds(self, values: Sequence[Any]) -> bool:
        return not kinds_of(values)


# ---------------------------------------------------------------------------------------------------- columns of atoms
_MIN_DATETIME_US, _MAX_DATETIME_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999


def _python_values(array: pa.Array) -> list[Any]:
    """Values without parts: like ``array.to_pylist()``, several times faster for plain types, and never with pandas.

    Timestamps without a zone are naive UTC datetimes; Python has microseconds, so nanoseconds are cut off (rounded
    down).

    Args:
        array: Of a type without parts; dictionaries are decoded.

    Raises:
        TypeMismatchError: If a value has no Python counterpart.
    """
    kind = array.type
    types = pa.types
    if types.is_timestamp(kind):
        return _datetimes(array)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        if not array.null_count:
            values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
            return values
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        texts: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return texts
    elif types.is_dictionary(kind):
        return _python_values(array.dictionary_decode())
    if types.is_duration(kind) and kind.unit == "ns":
        array = array.cast(pa.duration("us"), safe=False)
    elif types.is_time64(kind) and kind.unit == "ns":
        array = array.cast(pa.time64("us"), safe=False)
    try:
        others: list[Any] = array.to_pylist()
        return others
    except (ArithmeticError, ValueError, TypeError) as error:
        message = f"a column of type {kind} holds a value that Python has no type for: {error}"
        raise TypeMismatchError(message) from error


def _datetimes(array: pa.Array) -> list[Any]:
    kind = array.type
    ticks = array.fill_null(0).view(pa.int64()).to_numpy()
    if kind.unit == "ns":
        micros = ticks // 1_000  # rounds down, as the hash of keys does
    else:
        factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[kind.unit]
        limit = _MAX_DATETIME_US // factor
        if len(ticks) and (ticks.max() > limit or ticks.min() < _MIN_DATETIME_US // factor):
            message = f"a column of type {kind} holds a time outside the years 1 to 9999"
            raise TypeMismatchError(message)
        micros = ticks * factor
    if kind.tz is not None:
        zoned = (
            pa.array(micros, mask=array.is_null().to_numpy(zero_copy_only=False))
            if array.null_count
            else pa.array(micros)
        )
        times: list[Any] = zoned.view(pa.timestamp("us", kind.tz)).to_pylist()
        return times
    values: list[Any] = micros.view("datetime64[us]").tolist()
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values
