"""The functions that short forms of windows stand for: ``aggregate(n=count())`` by rows, ``apply(callable)`` and
``apply_batches(callable)``.

They are picklable and without state, so that the window operator needs to know nothing of them. What ``WindowRow``
makes is what `headrace.engine.windows.columnar.slices` emits as columns, field by field: a program does not see which
path it took.

Source: PyFlink's ``WindowedStream.apply``; the result record is Headrace's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ..columns.records import Batch
from ..errors import ProgramError
from ..functions.contract import WindowFunction
from ..functions.given import record_batches_of
from ..functions.user_function import FunctionWrapper, UserFunction
from .windows import GlobalWindow, TimeWindow

__all__ = ["ApplyBatchesFunction", "ApplyFunction", "WindowRow"]

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone are UTC, as in columns


class WindowRow:
    """Makes the record of a window's built-in aggregates: key fields, ``window_start``, ``window_end``, aggregates.

    Times are naive UTC datetimes, as rows of the columnar path have them; the windows of ``count_window`` have none.

    Args:
        key_names: Names of the key's fields; None for a key made by a function, which is called ``key``.
        aggregate_names: Names of the aggregates.

    Raises:
        ProgramError: If two fields would have one name.
    """

    def __init__(self, key_names: tuple[str, ...] | None, aggregate_names: Iterable[str]) -> None:
        self._key_names = ("key",) if key_names is None else key_names
        self._is_single = len(self._key_names) == 1
        taken = [*self._key_names, "window_start", "window_end", *aggregate_names]
        doubled = sorted({name for name in taken if taken.count(name) > 1})
        if doubled:
            message = f"the result would have several columns called {', '.join(map(repr, doubled))}"
            raise ProgramError(message, hint="rename the aggregate or the key column")

    def __call__(self, key: Any, window: TimeWindow | GlobalWindow, result: dict[str, Any]) -> dict[str, Any]:
        names = self._key_names
        row = {names[0]: key} if self._is_single else dict(zip(names, key, strict=True))
        if isinstance(window, TimeWindow):
            row["window_start"] = _EPOCH + timedelta(milliseconds=window.start)
            row["window_end"] = _EPOCH + timedelta(milliseconds=window.end)
        row.update(result)
        return row


class ApplyFunction(FunctionWrapper, WindowFunction):
    """A callable of (key, window, records) as a window function."""

    def __init__(self, function: Callable[[Any, Any, Iterable[Any]], Iterable[Any] | None]) -> None:
        super().__init__(UserFunction(function, "apply"))

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        given: Iterable[Any] | None = self._call(key, window, inputs)
        return given


class ApplyBatchesFunction(FunctionWrapper, WindowFunction):
    """A callable of (key, window, record batch) as a window function; gives what ``map_batches`` functions give.

    Args:
        function: The callable.
        schema: The records' declared schema, of which columns are made; None if it is not known.
    """

    def __init__(self, function: Callable[[Any, Any, pa.RecordBatch], Any], schema: pa.Schema | None) -> None:
        super().__init__(UserFunction(function, "apply_batches"))
        self._schema = schema

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        batch = Batch.of_rows(list(inputs)).columns_as(self._schema)
        produced = record_batches_of(self._call(key, window, batch))
        return [row for part in produced for row in Batch.of_columns(part).rows]
