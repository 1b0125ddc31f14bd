"""A table of a database as a bounded source: read once, from its beginning to its end.

With a key of integers and texts it is read page by page in the order of the key, and the position is the last key: a
reader that goes on after a failure begins behind it, whatever has changed before. Without one all rows are read at
once, in the order of all their columns, and the position is their number: the table must not change meanwhile. A key is
what the database says to be one, and what no row lacks: pages would leave out rows of equal keys, and rows without one.

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
        key: What the program says to be a key of the table, whose columns are read; none for a table that does not
            change.
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
        return _TableReader(self._settings, self._key)


class _TableEnumerator:
    discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        return Discovery([Split("table")], is_final=True)


class _TableReader(SourceReader):
    """Reads page by page, or everything at once; the position tells which: a key, or a number of rows."""

    def __init__(self, settings: ReadSettings, key: tuple[str, ...]) -> None:
        self._settings = settings
        self._key = key
        self._split: Split | None = None
        # Where the next rows begin; None at the beginning.
        self._position: list[Any] | int | None = None
        self._rows: TableRows | None = None
        # All rows, if they are read at once and have been read.
        self._whole: pa.RecordBatch | None = None

    def open(self, context: ReaderContext) -> None:
        self._rows = TableRows(self._settings)

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._split, self._position = split, split.position

    def poll(self, max_records: int) -> Any:
        if self._split is None:
            return ALL_SPLITS_FINISHED
        assert self._rows is not None
        if self._position is None and not (self._key and self._rows.are_told_apart(self._key)):
            self._position = 0
        if isinstance(self._position, int):
            found = self._part(self._rows, self._position, max_records)
        else:
            found = self._page(self._rows, self._position, max_records)
        if found.num_rows:
            return Polled(self._split.split_id, Batch.of_columns(found))
        finished, self._split = self._split, None
        return SplitFinished(finished.split_id)

    def _page(self, rows: TableRows, last: list[Any] | None, max_records: int) -> pa.RecordBatch:
        """The rows behind a key."""
        key = rows.quoted(*self._key)
        where = "" if last is None else f"({key}) > ({', '.join([rows.mark] * len(self._key))})"
        found = rows.rows(where, last or [], f"ORDER BY {key} LIMIT {min(max_records, _PAGE_ROWS)}")
        if found.num_rows:
            self._position = [found.column(name)[-1].as_py() for name in self._key]
        return found

    def _part(self, rows: TableRows, first: int, max_records: int) -> pa.RecordBatch:
        """The rows from a number on."""
        if self._whole is None:
            self._whole = rows.rows(behind=f"ORDER BY {rows.quoted(*self._settings.schema.names)}")
        if first > self._whole.num_rows:
            message = f"{first} rows were read before, and the table has {self._whole.num_rows}"
            raise CheckpointMismatchError(message, table=".".join(self._settings.table))
        found = self._whole.slice(first, max_records)
        self._position = first + found.num_rows
        return found

    def snapshot(self) -> list[Split]:
        return [] if self._split is None else [Split(self._split.split_id, self._split.payload, self._position)]

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
