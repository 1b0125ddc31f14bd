"""What a sort by event time keeps: the rows that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..columns.records import MAX_BATCH_ROWS, Timestamps
from ..tables.columns import Integers
from ..tables.key_index import KeyIndex
from ..tables.ordering import sort_key, sorted_rows
from .timed_rows import TimedRows
from .times import milliseconds

__all__ = ["SortState"]


class SortState:
    """The rows of the one subtask.

    Args:
        backend: The operator's keyed state.
        schema: Of the records.
        orders: Column, whether the smallest comes first, whether null does; the first is the time of rows.
    """

    def __init__(
        self, backend: KeyedStateBackend, schema: pa.Schema, orders: Sequence[tuple[str, bool, bool | None]]
    ) -> None:
        self._rows = TimedRows(backend, "rows", schema, [], KeyIndex([]), orders[0][0])
        self._others = [(schema.names.index(column), ascending, nulls) for column, ascending, nulls in orders[1:]]

    def add(self, rows: pa.RecordBatch, watermark_ms: int) -> int:
        """Let rows wait; returns how many are late, which are left out.

        Args:
            rows: The records.
            watermark_ms: How far event time is.

        Raises:
            ProgramError: If one has no time.
        """
        rows, times, num_late = self._rows.in_time(rows, watermark_ms)
        if rows.num_rows:
            self._rows.add(rows, times, self._rows.codes_in(rows))
        return num_late

    def pass_time(self, watermark_ms: int) -> Iterator[tuple[list[pa.Array], Timestamps]]:
        """Let event time go on; gives the rows that it passes, in order, with their event times."""
        due = self._rows.begun(watermark_ms)
        if not len(due):
            return
        ids = due[self._order_of(due)]
        times = milliseconds(self._rows.times[ids], self._rows.kind)
        for start in range(0, len(ids), MAX_BATCH_ROWS):
            some = slice(start, start + MAX_BATCH_ROWS)
            yield self._rows.store.take(ids[some]), times[some]
        self._rows.store.remove(due)
        if self._rows.store.is_sparse:
            self._rows.store.compact()
            self._rows.find_all()

    def _order_of(self, ids: Integers) -> Integers:
        keys = [self._rows.times[ids]]
        for column, ascending, nulls_first in self._others:
            values = self._rows.store.take_column(column, ids)
            nulls, ranks = sort_key(values, ascending=ascending, nulls_first=nulls_first)
            keys += [ranks] if nulls is None else [nulls, ranks]
        return sorted_rows([*keys, ids])

    def persist(self) -> None:
        """Write what has changed."""
        self._rows.store.persist()
