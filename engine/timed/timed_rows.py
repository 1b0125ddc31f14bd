"""Rows with their times: which of them wait for the watermark.

Invariant: a row that is held waits, or has begun; one that has begun never waits again in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..columns.records import MIN_TIMESTAMP
from ..tables.columns import Integers
from ..tables.growing import grown
from ..tables.key_index import KeyIndex
from ..tables.row_store import RowStore
from .times import last_passed, times_of

__all__ = ["TimedRows"]


_NUM_PARTS = 16
"""Rows of a restored state wait in so many parts."""


class TimedRows:
    """The rows of one input.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        schema: Of the rows.
        keys: Names of the key's columns.
        index: Gives the codes of keys; other inputs may share it.
        time: The column of event time.

    Attributes:
        store: The rows.
        times: Their times by number, in units of the column.
        kind: The type of the times.
    """

    def __init__(
        self, backend: KeyedStateBackend, name: str, schema: pa.Schema, keys: Sequence[str], index: KeyIndex, time: str
    ) -> None:
        self.keys = list(keys)
        self._index = index
        self._time_name = time
        self._time = schema.names.index(time)
        self.kind = schema.field(time).type
        self.store = RowStore(backend, name, [schema.field(key) for key in keys], index, list(schema))
        self.find_all()

    def live(self) -> Integers:
        """Return the numbers of all rows, in order of arrival."""
        return np.flatnonzero(self.store.codes[: self.store.size] >= 0)

    def find_all(self) -> None:
        """Look at all rows anew; all wait."""
        ids = self.live()
        self.times = np.zeros(self.store.size, np.int64)
        self.times[ids] = times_of(self.store.take_column(self._time, ids), self._time_name)
        # Rows that wait, in parts: the earliest time of each, a number that tells them apart, and the rows.
        self._waiting: list[tuple[int, int, Integers]] = []
        self._num_parts = 0
        for part in np.array_split(ids[np.argsort(self.times[ids], kind="stable")], _NUM_PARTS):
            self._wait(part)

    def _wait(self, ids: Integers) -> None:
        if len(ids):
            heappush(self._waiting, (int(self.times[ids].min()), self._num_parts, ids))
            self._num_parts += 1

    def times_in(self, rows: pa.RecordBatch) -> Integers:
        """Return the times of rows.

        Raises:
            ProgramError: If one is null.
        """
        return times_of(rows.column(self._time), self._time_name)

    def in_time(self, rows: pa.RecordBatch, watermark_ms: int) -> tuple[pa.RecordBatch, Integers, int]:
        """Return those rows that the watermark has not passed, their times, and how many it has passed.

        Raises:
            ProgramError: If a time is null.
        """
        times = self.times_in(rows)
        is_late = times <= last_passed(watermark_ms, self.kind)
        num_late = int(is_late.sum()) if watermark_ms > MIN_TIMESTAMP else 0
        if num_late:
            rows, times = rows.filter(pa.array(~is_late)), times[~is_late]
        return rows, times, num_late

    def codes_in(self, rows: pa.RecordBatch) -> Integers:
        """Return the codes of rows' keys."""
        return self._index.codes_of([rows.column(key) for key in self.keys], rows.num_rows)[0]

    def add(self, rows: pa.RecordBatch, times: Integers, codes: Integers, numbers: Integers | None = None) -> Integers:
        """Let rows wait; returns their numbers."""
        ids = self.store.add(codes, rows.columns, numbers)
        self.times = grown(self.times, self.store.size)
        self.times[ids] = times
        self._wait(ids)
        return ids

    def begun(self, watermark_ms: int) -> Integers:
        """Return the rows that the watermark has passed and that are still held; they do not wait any more."""
        last, found = last_passed(watermark_ms, self.kind), [np.zeros(0, np.int64)]
        while self._waiting and self._waiting[0][0] <= last:
            ids = heappop(self._waiting)[2]
            is_due = self.times[ids] <= last
            found.append(ids[is_due])
            self._wait(ids[~is_due])
        due = np.concatenate(found)
        return due[self.store.codes[due] >= 0]
