"""Rows with the windows that they fall in, on columns: a row once for each of them.

Source: Flink's ``WindowTableFunctionOperator``, ``TimeWindow.getWindowStartWithOffset``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..columns.records import Batch
from ..functions.operator import Operator
from ..operators.column_operators import naming_operator
from ..plan.table_nodes import WindowKind, WindowSpec

__all__ = ["PutIntoWindows", "WindowsOfBatch", "as_times", "milliseconds_of"]


class WindowsOfBatch:
    """Adds the columns of windows to a batch. Rows without a time fall in no window.

    Args:
        window: Tumbling, hopping or cumulating windows.
        names: Of the columns of start, end and time.
        schema: Of the result.
    """

    def __init__(self, window: WindowSpec, names: tuple[str, str, str], schema: pa.Schema) -> None:
        self._window = window
        self._names = names
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows, those of one window behind those of the one before."""
        window = self._window
        batch = batch.filter(batch.column(window.time_column).is_valid())
        times = milliseconds_of(batch.column(window.time_column))
        rows, starts, ends = [], [], []
        for row, start, end in self._windows(times):
            rows.append(row)
            starts.append(start)
            ends.append(end)
        taken = np.concatenate(rows)
        order = np.argsort(taken, kind="stable")
        result = batch.take(pa.array(taken[order]))
        start, end = np.concatenate(starts)[order], np.concatenate(ends)[order]
        values = dict(zip(self._names, (start, end, end - 1), strict=True))
        arrays = [
            as_times(values[field.name], field.type) if field.name in values else result.column(field.name)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _windows(self, times: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each place of a window which rows it has there, its starts and its ends."""
        window = self._window
        all_rows = np.arange(len(times))
        if window.kind is WindowKind.CUMULATE:
            start = _floor(times, window.offset_ms, window.size_ms)
            first = start + (times - start) // window.step_ms * window.step_ms + window.step_ms
            found = []
            for i in range(window.size_ms // window.step_ms):
                end = first + i * window.step_ms
                chosen = end <= start + window.size_ms
                found.append((all_rows[chosen], start[chosen], end[chosen]))
            return found
        last = _floor(times, window.offset_ms, window.step_ms)
        found = []
        for i in range(-(-window.size_ms // window.step_ms)):
            start = last - i * window.step_ms
            chosen = start + window.size_ms > times
            found.append((all_rows[chosen], start[chosen], start[chosen] + window.size_ms))
        return found


def _floor(times: np.ndarray, offset: int, step: int) -> np.ndarray:
    return (times - offset) // step * step + offset


def milliseconds_of(times: pa.Array) -> np.ndarray:
    """Return times, none of which is null, as milliseconds since 1970, rounded towards the past."""
    import pyarrow.compute as pc

    floor = pc.floor_temporal(times, 1, unit="millisecond")
    return np.asarray(floor.cast(pa.timestamp("ms", times.type.tz)).cast(pa.int64()))


def as_times(milliseconds: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return milliseconds since 1970 as times of a type, those of whole seconds rounded towards the past."""
    if kind.unit == "s":
        return pa.array(milliseconds // 1_000).cast(kind)
    return pa.array(milliseconds).cast(pa.timestamp("ms", kind.tz)).cast(kind)


class PutIntoWindows(Operator):
    """Adds the columns of windows to rows of a stream. A row's event time is then that of its window: ``window_time``.

    Every window ends behind the rows in it, so none is late that was not late before.

    Args:
        windows: Of a batch.
        time: The column of windows' times.
    """

    face = "columns"

    def __init__(self, windows: WindowsOfBatch, time: str) -> None:
        self._windows = windows
        self._time = time

    def process_batch(self, batch: Batch, input_index: int) -> None:
        with naming_operator(self.context):
            rows = self._windows(batch.columns_as(None))
        if rows.num_rows:
            self.context.output.emit(Batch.of_columns(rows, milliseconds_of(rows.column(self._time))))
