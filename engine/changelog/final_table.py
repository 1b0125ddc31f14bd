"""The table that a changelog comes to.

Rows are a multiset: a change that takes a row back takes one that is equal to it. NaN is equal to NaN here, and -0.0 to
0.0, as they are in keys.

Source: Flink's dynamic tables; the result of ``TableResult.collect`` of its Table API, when it has been applied.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.state.errors import UserFunctionError

from ..columns.grouping import Groups, comparable
from ..columns.records import Batch
from .changes import adds

__all__ = ["FinalTable", "apply_changes"]

_FOLD_ROWS = 262_144


class FinalTable:
    """The table that batches of changes come to; takes them one after the other.

    Args:
        schema: Of its rows; None for that of the first batch.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._schema = schema
        self._rows: list[pa.RecordBatch] = []
        self._adds: list[np.typing.NDArray[np.bool_]] = []
        self._num_rows = 0
        self._num_folded = 0

    def add(self, batch: Batch) -> None:
        """Apply a batch.

        Raises:
            UserFunctionError: If it takes back a row that is not there; maybe with a later batch only, or `rows`.
        """
        if not batch.num_rows:
            return
        self._rows.append(batch.columns_as(self._schema))
        self._schema = self._schema or self._rows[0].schema
        kinds = batch.row_kinds
        self._adds.append(np.ones(batch.num_rows, np.bool_) if kinds is None else adds(kinds))
        self._num_rows += batch.num_rows
        if self._num_rows > 2 * self._num_folded + _FOLD_ROWS:
            self._fold()

    def rows(self) -> pa.Table:
        """Return the rows that there are, in the order in which they were added.

        Raises:
            UserFunctionError: If a row was taken back that was not there.
        """
        self._fold()
        return pa.Table.from_batches(self._rows, self._schema or pa.schema([]))

    def _fold(self) -> None:
        if all(added.all() for added in self._adds):
            return
        rows = pa.Table.from_batches(self._rows, self._schema).combine_chunks()
        is_added = np.concatenate(self._adds)
        columns = [comparable(column.combine_chunks()) for column in rows.columns]
        groups = Groups.of(columns).codes if columns else np.zeros(len(is_added), np.int64)
        # In order of groups, and of changes in each, counts show whether a row was there when it was taken back.
        order = np.argsort(groups, kind="stable")
        totals = np.cumsum(np.where(is_added[order], 1, -1))
        is_first = np.diff(groups[order], prepend=-1) != 0
        firsts = np.flatnonzero(is_first)
        before = np.where(firsts > 0, totals[firsts - 1], 0)
        place = np.cumsum(is_first) - 1
        counts = totals - before[place]
        if (counts < 0).any():
            row = rows.slice(int(order[np.argmax(counts < 0)]), 1).to_pylist()[0]
            message = f"a change takes back what is not there: {row!r:.400}"
            raise UserFunctionError(message)
        # Of equal rows those stay that were added last.
        lasts = np.append(firsts[1:], len(order)) - 1
        added_behind = np.cumsum(is_added[order][::-1])[::-1]
        added_later = np.append(added_behind, 0)[1:] - np.append(added_behind, 0)[lasts + 1][place]
        stays = order[is_added[order] & (added_later < counts[lasts][place])]
        kept = rows.take(pa.array(np.sort(stays))).combine_chunks()
        self._rows, self._num_rows = kept.to_batches(), len(kept)
        self._adds = [np.ones(batch.num_rows, np.bool_) for batch in self._rows]
        self._num_folded = self._num_rows


def apply_changes(batches: Iterable[Batch], schema: pa.Schema | None = None) -> pa.Table:
    """Return the table that a changelog comes to.

    Args:
        batches: The changelog, in order.
        schema: Of its rows; None for that of the first batch.

    Raises:
        UserFunctionError: If a change takes back a row that is not there.
    """
    table = FinalTable(schema)
    for batch in batches:
        table.add(batch)
    return table.rows()
