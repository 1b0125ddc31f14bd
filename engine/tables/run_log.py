"""A table in memory, kept as runs of a columnar state: what has changed is written behind what was written before.

A run holds the keys of what has changed and what they are now, or that they are gone; read in order, what comes later
counts. When there are about twice as many rows as the table has, the runs are replaced by one that has the whole table.
So a snapshot costs what has changed since the last one, and the state backend does the rest as for any columnar state:
incremental checkpoints, key groups of other subtasks after a rescale, open snapshots, managed memory.

Runs are written for snapshots, and when a table is made smaller; what is in memory counts as managed memory as far as
it is in runs.

Source: log-structured tables; `headrace.state.keyed.contract.ColumnarTable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from .columns import stored_type

__all__ = ["LogRows", "RunLog"]

LogRows = tuple[int, list[pa.Array], list[pa.Array]]
"""How many rows, their key columns, their other columns."""

MIN_ROWS = 4_096
"""Logs that are not longer are left as they are."""

_MAX_RUN_ROWS = 65_536
_ALL = "key"


class RunLog:
    """The runs of one table.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: Names and types of the key's columns; none for a table that is all of one key.
        columns: The other columns.
    """

    def __init__(
        self, backend: KeyedStateBackend, name: str, keys: Sequence[pa.Field], columns: Sequence[pa.Field]
    ) -> None:
        fields = [pa.field(f"key.{key.name}", stored_type(key.type)) for key in keys]
        self._has_keys = bool(fields)
        if not fields:
            fields = [pa.field(_ALL, pa.int8())]
        self._num_keys = len(fields)
        self._schema = pa.schema([*fields, *(pa.field(one.name, stored_type(one.type)) for one in columns)])
        self._table = backend.columnar_table(name, self._schema, tuple(field.name for field in fields))
        self.num_rows = sum(run.num_rows for run in self._table.runs(None))

    def read(self) -> LogRows | None:
        """All rows, in order; None if there are none."""
        if not self.num_rows:
            return None
        rows = pa.Table.from_batches(self._table.runs(None), self._schema)
        arrays = [pa.concat_arrays(column.chunks) for column in rows.columns]
        return rows.num_rows, arrays[: self._num_keys] if self._has_keys else [], arrays[self._num_keys :]

    def write(self, changed: LogRows, num_live: int, dump: Callable[[], LogRows]) -> None:
        """Add what has changed.

        Args:
            changed: The rows of it.
            num_live: How many rows the whole table would have.
            dump: Gives the whole table.
        """
        if not changed[0]:
            return
        if self.num_rows + changed[0] > 2 * num_live + MIN_ROWS:
            runs = self._runs(dump())
            self._table.replace(None, runs)
            self.num_rows = sum(run.num_rows for run in runs)
            return
        for run in self._runs(changed):
            self._table.append(None, run)
            self.num_rows += run.num_rows

    def _runs(self, rows: LogRows) -> list[pa.RecordBatch]:
        num_rows, keys, columns = rows
        if not self._has_keys:
            keys = [pa.array(np.zeros(num_rows, np.int8))]
        fitted = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip([*keys, *columns], self._schema, strict=True)
        ]
        whole = pa.RecordBatch.from_arrays(fitted, schema=self._schema)
        return [whole.slice(start, _MAX_RUN_ROWS) for start in range(0, num_rows, _MAX_RUN_ROWS)]
