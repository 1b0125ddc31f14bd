"""Event times: where a record's timestamp comes from.

A `WatermarkStrategy` has an *extractor*, made of what the user gave: a field's name, an expression, a function of one
or two arguments, or a `TimestampAssigner`. Extractors take whole batches; columns are read without a loop.

Timestamps are int64 epoch milliseconds UTC. Datetimes without a zone count as UTC, and a finer time is rounded down,
before 1970 too.

Source: Flink's ``TimestampAssigner``.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.state.values.sharing import types_of

from ..columns.records import MIN_TIMESTAMP, Batch, Timestamps
from ..errors import ProgramError, TypeMismatchError, nearest
from .life import refuse_life
from .tracebacks import taken_last
from .user_function import raise_in_function

__all__ = [
    "SECONDS_WARNING",
    "ComputedTimestamps",
    "TimestampAssigner",
    "TimestampExtractor",
    "are_like_seconds",
    "extractor_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_UNIT_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class TimestampAssigner(ABC):
    """A user's object that reads event times, in place of a function."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> Any:
        """Return the event time of ``value``, int epoch milliseconds or a datetime; ``record_timestamp`` is the one so
        far.
        """


class TimestampExtractor(Protocol):
    """Reads the event times of a batch."""

    def extract(self, batch: Batch) -> Timestamps:
        """Return one event time per record.

        Raises:
            TypeMismatchError: If a record has none, or one of a wrong type.
            UserFunctionError: If the user's function fails.
        """
        ...


def are_like_seconds(timestamps: Timestamps) -> bool:
    """Tell whether event times would be dates of today if they were seconds: as milliseconds all are early in 1970."""
    return len(timestamps) > 0 and bool(((timestamps >= _YEAR_2000_S) & (timestamps < _YEAR_2100_S)).all())


_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800

SECONDS_WARNING = (
    "event times are epoch milliseconds, but the first ones look like seconds: multiply by 1000, or use datetimes or "
    "Arrow timestamps, which know their unit"
)


def _to_ms(value: Any) -> int | None:
    """One value as epoch milliseconds; None if it is of no fitting type."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return (aware - _EPOCH) // _MILLISECOND
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return None


def _times_of_values(values: list[Any], rows: list[Any]) -> Timestamps:
    if types_of(values) != {int}:
        converted = list(map(_to_ms, values))
        if None in converted:
            index = converted.index(None)
            message = f"a timestamp must be an int (epoch milliseconds) or a datetime; got {values[index]!r}"
            raise TypeMismatchError(message, row=repr(rows[index])[:200])
        values = converted
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        message = "a timestamp must fit in 64 bits of epoch milliseconds"
        raise TypeMismatchError(message) from error


def _times_of_column(column: Any, batch: Batch, name: str) -> Timestamps:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        index = array.is_null().to_pylist().index(True)
        message = f"timestamp {name} is null"
        raise TypeMismatchError(message, row=repr(batch.slice(index, 1).rows[0])[:200])
    kind = array.type
    if pa.types.is_integer(kind):
        return _as_int64(array)
    if pa.types.is_date(kind):
        return _as_int64(array.cast(pa.timestamp("ms")))
    if not pa.types.is_timestamp(kind):
        message = f"timestamp {name} must be an integer (epoch milliseconds) or a timestamp; it is {kind}"
        raise TypeMismatchError(message)
    ticks = _as_int64(array)
    if kind.unit == "ms":
        return ticks
    return ticks * 1_000 if kind.unit == "s" else ticks // _UNIT_PER_MS[kind.unit]


def _as_int64(array: Any) -> Timestamps:
    times: Timestamps = array.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return times


@dataclass(frozen=True, slots=True)
class _FieldTimestamps:
    """Event time is a field of the record."""

    field: str

    def extract(self, batch: Batch) -> Timestamps:
        field = self.field
        if batch.has_columns:
            columns = batch.columns
            index = columns.schema.get_field_index(field)
            if index < 0:
                names = columns.schema.names
                message = f"timestamp field {field!r} is not in the record; its fields are {names}"
                raise TypeMismatchError(message, hint=nearest(field, names))
            return _times_of_column(columns.column(index), batch, repr(field))
        rows = batch.rows
        try:
            values = [row[field] for row in rows]
        except (KeyError, TypeError, IndexError) as error:
            message = f"timestamp field {field!r} is not in the record: {error!r}"
            raise TypeMismatchError(message) from error
        return _times_of_values(values, rows)


@dataclass(frozen=True, slots=True)
class _ExpressionTimestamps:
    """Event time is computed from columns."""

    expression: Any

    def extract(self, batch: Batch) -> Timestamps:
        return _times_of_column(self.expression.evaluate(batch.columns), batch, repr(self.expression))


@dataclass(frozen=True, slots=True)
class ComputedTimestamps:
    """Event time is a column that is computed in steps, each from the columns of the one before."""

    steps: tuple[Mapping[str, Any], ...]
    column: str

    def extract(self, batch: Batch) -> Timestamps:
        columns = batch.columns
        for step in self.steps:
            columns = pa.RecordBatch.from_pydict({name: value.evaluate(columns) for name, value in step.items()})
        return _times_of_column(columns.column(self.column), batch, repr(self.column))


@dataclass(frozen=True, slots=True)
class _RowTimestamps:
    """Event time is what a function says: of (record, record's timestamp so far), or of the record alone."""

    function: Any
    takes_timestamp: bool

    def extract(self, batch: Batch) -> Timestamps:
        function = getattr(self.function, "extract_timestamp", self.function)
        rows = batch.rows
        pending = iter(rows)
        try:
            if not self.takes_timestamp:
                values = [function(row) for row in pending]
            elif batch.timestamps is None:
                values = [function(row, MIN_TIMESTAMP) for row in pending]
            else:
                times = batch.timestamps.tolist()
                values = [function(row, time) for row, time in zip(pending, times, strict=True)]
        except BaseException as error:
            record = rows[taken_last(rows, pending)]
            raise_in_function(error, getattr(function, "__qualname__", repr(function)), record=record)
        return _times_of_values(values, rows)


def extractor_of(assigner: Any) -> TimestampExtractor:
    """Return what reads event times as the user wants it.

    Raises:
        ProgramError: If it is nothing that can.
    """
    if isinstance(assigner, ComputedTimestamps):
        return assigner
    if isinstance(assigner, str):
        return _FieldTimestamps(assigner)
    if hasattr(assigner, "evaluate"):
        return _ExpressionTimestamps(assigner)
    function = getattr(assigner, "extract_timestamp", assigner)
    if not callable(function):
        message = f"a timestamp assigner must be a field's name, an expression or a function; got {assigner!r}"
        raise ProgramError(message)
    refuse_life(assigner, "a timestamp assigner")
    return _RowTimestamps(assigner, _takes_two(function))


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins do not tell; most of those used here take one
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True
