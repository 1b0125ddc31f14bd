"""A table of a database as a source: read once, from its beginning to its end, or followed by a column that grows.

How it is followed says `headrace.connectors.sql.following`; this is how it is read once.

With a key of integers and texts it is read page by page in the order of the key, and the position is the last key: a
reader that goes on after a failure begins behind it, whatever has changed before. Without one all rows are read at
once, in the order of all their columns, and the position is their number: the table must not change meanwhile. A key is
what the database says to be one, and what no row lacks: pages would leave out rows of equal keys, and rows without one.

With `KeyRanges` the table is cut into ranges of one column's integers, and each of them is read in this way, by the
subtask that has time for it. It is cut once: a checkpoint holds the ranges, and no later look at the table makes
others.

Source: Flink's ``JdbcDynamicTableSource``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError

from ...formats.schemas import schema_of
from .connecting import connected, table_path
from .following import FollowingReader, GrowingColumn, followed_split, order_of
from .ranges import KeyRanges, in_range
from .reading import PAGE_ROWS, ReadSettings, TableRows

__all__ = ["SqlSource"]


class SqlSource(Source[dict[str, Any]]):
    """Gives the rows of a table, which must be there, as columns.

    Args:
        connection: A URL, as ``sqlite:///relative.db``, ``sqlite:////absolute.db``,
            ``postgresql://user:password@host:port/database``, or the same with ``mariadb:``; or a function without
            arguments that gives a new DB-API connection (then ``dialect`` is needed), for passwords that are to be
            found only where the job runs; or a `JdbcConnection`. A function's SQLite connection must be made with
            ``check_same_thread=False``.
        table: Its name: ``"table"`` or ``"schema.table"``, or a pair for names with dots.
        schema: The columns that are read, with their types: a schema, or a mapping from column to type.
        key: Some of them, by which the database tells rows apart, and which no row lacks. With one of integers and
            texts the table is read page by page; without one all at once, and it must not change while it may have to
            be read again.
        ranges: How the table is cut into parts that are read at the same time; None to read it in one.
        follow: The column by which rows are found that come later; the source has no end then. None: the table is read
            once.
        dialect: ``sqlite``, ``postgresql`` or ``mariadb``; needed with a function only.
        max_retries: How often a question that failed is asked again, with pauses, before the job fails.

    Guarantees: exactly once. Read once with a key: each row that is there all the time, whatever else changes.
    Followed: each row that becomes visible in time, in the order of the column within each part; see `GrowingColumn`
    for what "in time" is, and what is missed. Rows that are deleted are not told, and of a row that is changed several
    times between two looks only the last is.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        connection: str | Callable[[], Any],
        table: str | tuple[str, ...],
        schema: pa.Schema | Mapping[str, Any],
        *,
        key: str | Sequence[str] = (),
        ranges: KeyRanges | None = None,
        follow: GrowingColumn | None = None,
        dialect: str | None = None,
        max_retries: int = 3,
    ) -> None:
        columns = schema_of(schema)
        if not columns:
            message = "schema must name the columns that are read"
            raise ConfigurationError(message)
        if max_retries < 0:
            message = f"max_retries must be at least 0; got {max_retries}"
            raise ConfigurationError(message)
        self._settings = ReadSettings(*connected(connection, dialect), table_path(table), columns, max_retries)
        self._key = (key,) if isinstance(key, str) else tuple(key)
        for name in self._key:
            if name not in columns.names:
                message = f"key column {name!r} is none of those that are read: {columns.names}"
                raise ConfigurationError(message)
        self._ranges = ranges
        self._follow = follow
        self.is_bounded = follow is None
        if follow is not None:
            follow.check(self._settings, self._key)
            if ranges is not None and ranges.column == follow.name:
                message = f"of ranges of {follow.name!r}, by which the table is followed, the last has all that comes"
                raise ConfigurationError(message, hint="cut the table by another column")

    def __repr__(self) -> str:
        return f"SqlSource({'.'.join(self._settings.table)!r}, {self._settings.dialect.name})"

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._settings.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return one split with everything, or one for each range."""
        order = None if self._follow is None else order_of(self._follow.name, self._key)
        return _TableEnumerator(self._settings, self._ranges, order)

    def create_reader(self) -> SourceReader:
        """Make a reader."""
        if self._follow is not None:
            return FollowingReader(self._settings, self._key, self._follow)
        kinds = [self._settings.schema.field(name).type for name in self._key]
        is_paged = bool(kinds) and all(pa.types.is_integer(one) or pa.types.is_string(one) for one in kinds)
        return _TableReader(self._settings, self._key if is_paged else ())


_ORIGIN = "table"
"""Of all splits: the table is cut once, however it would be cut now."""


class _TableEnumerator:
    discovery_interval_ms: int | None = None

    def __init__(self, settings: ReadSettings, ranges: KeyRanges | None, order: tuple[str, ...] | None) -> None:
        self._settings = settings
        self._ranges = ranges
        # In which it is followed; None if it is read once.
        self._order = order

    def discover(self) -> Discovery:
        order = self._order
        if self._ranges is None:
            whole = Split("table", origin=_ORIGIN) if order is None else followed_split(order, None)
            return Discovery([whole], is_final=True)
        rows = TableRows(self._settings)
        try:
            parts = self._ranges.cut(rows)
        finally:
            rows.close()
        if order is not None:
            return Discovery([followed_split(order, part) for part in parts], is_final=True)
        names = [f"{part['column']} from {part['from']} to {part['to']}" for part in parts]
        splits = [Split(name, part, origin=_ORIGIN) for name, part in zip(names, parts, strict=True)]
        return Discovery(splits, is_final=True)


class _TableReader(SourceReader):
    """Reads split by split, page by page or everything of it at once; the position tells which: a key, or a number."""

    def __init__(self, settings: ReadSettings, key: tuple[str, ...]) -> None:
        self._settings = settings
        self._key = key
        # The first one is being read.
        self._splits: list[Split] = []
        # Where the next rows of it begin; None at the beginning.
        self._position: list[Any] | int | None = None
        self._rows: TableRows | None = None
        # All of its rows, if they are read at once and have been read.
        self._whole: pa.RecordBatch | None = None
        # Whether it can be read page by page; None if that has not been asked.
        self._is_paged: bool | None = None

    def open(self, context: ReaderContext) -> None:
        self._rows = TableRows(self._settings)

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            if "follow" in split.payload:
                message = "the checkpoint holds a table that was followed by a column, and now it is to be read once"
                raise CheckpointMismatchError(message, split=split.split_id, position=split.position)
        if splits and not self._splits:
            self._position = splits[0].position
        self._splits += splits

    def poll(self, max_records: int) -> Any:
        if not self._splits:
            return ALL_SPLITS_FINISHED
        split, rows = self._splits[0], self._rows
        assert rows is not None
        if self._position is None and not self._reads_pages(rows):
            self._position = 0
        where, values = in_range(rows, split.payload)
        if isinstance(self._position, int):
            found = self._part(rows, where, values, self._position, max_records)
        else:
            found = self._page(rows, where, values, self._position, max_records)
        if found.num_rows:
            return Polled(split.split_id, Batch.of_columns(found))
        del self._splits[0]
        self._whole = None
        self._position = self._splits[0].position if self._splits else None
        return SplitFinished(split.split_id)

    def _reads_pages(self, rows: TableRows) -> bool:
        if self._is_paged is None:
            self._is_paged = bool(self._key) and rows.are_unique(self._key) and not rows.are_lacked(self._key)
        return self._is_paged

    def _page(
        self, rows: TableRows, where: str, values: list[int], last: list[Any] | None, max_records: int
    ) -> pa.RecordBatch:
        """The rows of a range behind a key."""
        key = rows.quoted(*self._key)
        conditions = [where] if where else []
        if last is not None:
            condition, more = rows.behind(self._key, last)
            conditions.append(condition)
            values = [*values, *more]
        found = rows.rows(" AND ".join(conditions), values, f"ORDER BY {key} {rows.first(min(max_records, PAGE_ROWS))}")
        if found.num_rows:
            self._position = [found.column(name)[-1].as_py() for name in self._key]
        return found

    def _part(self, rows: TableRows, where: str, values: list[int], first: int, max_records: int) -> pa.RecordBatch:
        """The rows of a range from a number on."""
        if self._whole is None:
            self._whole = rows.rows(where, values, f"ORDER BY {rows.quoted(*self._settings.schema.names)}")
        if first > self._whole.num_rows:
            message = f"{first} rows were read before, and the table has {self._whole.num_rows}"
            raise CheckpointMismatchError(message, table=".".join(self._settings.table))
        found = self._whole.slice(first, max_records)
        self._position = first + found.num_rows
        return found

    def snapshot(self) -> list[Split]:
        if not self._splits:
            return []
        first, *others = self._splits
        return [Split(first.split_id, first.payload, self._position), *others]

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
