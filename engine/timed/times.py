"""Times of a column as integers, beside watermarks, which are milliseconds.

Where a column is finer than a millisecond its rows are in order by all of it; the watermark has passed a row when it
has passed its millisecond.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.state.errors import ProgramError

from ..columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps
from ..tables.columns import Integers, bits_of, plain

__all__ = ["finer", "last_passed", "late_among", "milliseconds", "times_of", "units_in"]

_PER_MS = {"s": None, "ms": 1, "us": 1_000, "ns": 1_000_000}


def times_of(column: pa.Array, name: str) -> Integers:
    """Return the times of rows, in units of their column.

    Raises:
        ProgramError: If one is null.
    """
    column = plain(column)
    if column.null_count:
        message = f"the event time {name!r} of a record is null"
        raise ProgramError(message, hint="filter such records out before")
    return bits_of(column).astype(np.int64, copy=False)


def milliseconds(times: Integers, kind: pa.DataType) -> Timestamps:
    """Return the same as event times."""
    factor = _PER_MS[kind.unit]
    return times * 1_000 if factor is None else times if factor == 1 else times // factor


def last_passed(watermark_ms: int, kind: pa.DataType) -> int:
    """Return the last time that a watermark has passed."""
    if watermark_ms in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        return watermark_ms
    factor = _PER_MS[kind.unit]
    found = watermark_ms // 1_000 if factor is None else watermark_ms * factor + factor - 1
    return max(MIN_TIMESTAMP, min(MAX_TIMESTAMP, found))


def late_among(rows: pa.RecordBatch, time: str, watermark_ms: int) -> Batch:
    """Return the rows that a watermark has passed, with their times, to be shown."""
    column = rows.column(time)
    times = times_of(column, time)
    is_late = times <= last_passed(watermark_ms, column.type)
    return Batch.of_columns(rows.filter(pa.array(is_late)), milliseconds(times[is_late], column.type))


def units_in(times: Integers, kind: pa.DataType, other: pa.DataType) -> Integers:
    """Return times of one type as those of another; those between two of its units are the next one, as they begin
    later.
    """
    one, two = _PER_SECOND[kind.unit], _PER_SECOND[other.unit]
    return times * (two // one) if two >= one else -(-times // (one // two))


def finer(one: pa.DataType, other: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type with the finer unit of two, milliseconds at least; and how many of it a millisecond is."""
    unit = max((one.unit, other.unit, "ms"), key=_PER_SECOND.__getitem__)
    return pa.timestamp(unit), _PER_SECOND[unit] // 1_000


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
