"""A table of a database as a bounded source: read once, from its beginning to its end.

With a key of integers and texts it is read page by page in the order of the key, and the position is the last key: a
reader that goes on after a failure begins behind it, whatever has changed before. Without one all rows are read at
once, in the order of all their columns, and the position is their number: the table must not change meanwhile.

Source: Flink's ``JdbcDynamicTableSource``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import CheckpointMismatchError

from .reading import ReadSettings, TableRows

__all__ = ["SqlSource"]

_PAGE_ROWS = 10_000


class SqlSource:
    """Gives the rows of a table.

    Args:
        settings: What is read.
        key: A unique key of the table, whose columns are read; none for a table that does not change.
    """

    is_bounded = True

    def __init__(self, settings: ReadSettings, key: Sequence[str] = ()) -> None:
        self._settings = settings
        kinds = [settings.schema.field(name).type for name in key]
        is_paged = bool(key) and all(pa.types.is_integer(one) or pa.types.is_string(one) for one in kinds)
        self._key = tuple(key) if is_paged else ()

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._settings.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """One split with everything."""
        return _TableEnumerator()

    def create_reader(self) -> SourceReader:
        """Make a reader."""
        return _PageReader(self._settings, self._key) if self._key else _WholeReader(self._settings)


class _TableEnumerator:
    discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        return Discovery([Split("table")], is_final=True)


class _Reader(SourceReader):
    """What both readers do."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._split: Split | None = None
        # Where the next rows begin.
        self._position: Any = None
        self._rows: TableRows | None = None

    def open(self, context: ReaderContext) -> None:
        self._rows = TableRows(self._settings)

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._split, self._position = split, split.position

    def poll(self, max_records: int) -> Any:
        if self._split is None:
            return ALL_SPLITS_FINISHED
        assert self._rows is not None
        found = self._next(self._rows, max_records)
        if found.num_rows:
            return Polled(self._split.split_id, Batch.of_columns(found))
        finished, self._split = self._split, None
        return SplitFinished(finished.split_id)

    def _next(self, rows: TableRows, max_records: int) -> pa.RecordBatch:
        """The rows behind the position, which then is behind them."""
        raise NotImplementedError

    def snapshot(self) -> list[Split]:
        return [] if self._split is None else [Split(self._split.split_id, self._split.payload, self._position)]

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


class _PageReader(_Reader):
    """Reads in the order of a key; the position is the last one."""

    def __init__(self, settings: ReadSettings, key: tuple[str, ...]) -> None:
        super().__init__(settings)
        self._key = key

    def _next(self, rows: TableRows, max_records: int) -> pa.RecordBatch:
        key = rows.quoted(*self._key)
        where, values = "", []
        if self._position is not None:
            where, values = f"({key}) > ({', '.join([rows.mark] * len(self._key))})", list(self._position)
        found = rows.rows(where, values, f"ORDER BY {key} LIMIT {min(max_records, _PAGE_ROWS)}")
        if found.num_rows:
            self._position = [found.column(name)[-1].as_py() for name in self._key]
        return found


class _WholeReader(_Reader):
    """Reads everything at once; the position is the number of rows that are out."""

    def __init__(self, settings: ReadSettings) -> None:
        super().__init__(settings)
        self._whole: pa.RecordBatch | None = None

    def _next(self, rows: TableRows, max_records: int) -> pa.RecordBatch:
        if self._whole is None:
            self._whole = rows.rows(behind=f"ORDER BY {rows.quoted(*self._settings.schema.names)}")
        position = self._position or 0
        if position > self._whole.num_rows:
            message = f"{position} rows were read before, and the table has {self._whole.num_rows}"
            raise CheckpointMismatchError(message, table=".".join(self._settings.table))
        found = self._whole.slice(position, max_records)
        self._position = position + found.num_rows
        return found
