"""A table of a database as a bounded source: read once, from its beginning to its end.

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

from collections.abc import Sequence
from dataclasses import dataclass
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

from .reading import ReadSettings, TableRows

__all__ = ["KeyRanges", "SqlSource", "in_range"]

_PAGE_ROWS = 10_000

_MAX_RANGES = 10_000


@dataclass(frozen=True)
class KeyRanges:
    """How a table is cut into parts that are read at the same time.

    Attributes:
        column: Of integers; its values need not be unique.
        number: How many ranges there are; fewer, if there are fewer integers.
        bounds: The least and the greatest value that is read, both included: rows beyond them, and rows without a
            value, are left out. None: the database is asked, and all rows are read.

    Raises:
        ConfigurationError: If a number makes no sense.
    """

    column: str
    number: int
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.number <= _MAX_RANGES:
            message = f"a table is cut into 1 to {_MAX_RANGES:,} ranges; got {self.number}"
            raise ConfigurationError(message)
        if self.bounds is not None and self.bounds[0] > self.bounds[1]:
            message = f"the lower bound of a table's ranges must not be above the upper one; got {self.bounds}"
            raise ConfigurationError(message)

    def cut(self, rows: TableRows) -> list[dict[str, Any]]:
        """Return the ranges, as splits carry them: the first value, and the first one behind.

        Where the database is asked, the first range begins and the last one ends with whatever there is.
        """
        found = self.bounds or rows.bounds(self.column)
        if found is None:
            return [{"column": self.column, "from": None, "to": None}]
        least, behind = found[0], found[1] + 1
        number = min(self.number, behind - least)
        edges: list[int | None] = [least + (behind - least) * i // number for i in range(number + 1)]
        if self.bounds is None:
            edges[0] = edges[-1] = None
        return [{"column": self.column, "from": edges[i], "to": edges[i + 1]} for i in range(number)]

    def whole(self) -> dict[str, Any]:
        """Return all that is read, as one range."""
        first, behind = (None, None) if self.bounds is None else (self.bounds[0], self.bounds[1] + 1)
        return {"column": self.column, "from": first, "to": behind}


def in_range(rows: TableRows, part: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the condition of a range, and its values; a range that begins with what there is has rows without one."""
    if not part or (part["from"] is None and part["to"] is None):
        return "", []
    column, mark = rows.quoted(part["column"]), rows.mark
    if part["from"] is None:
        return f"({column} < {mark} OR {column} IS NULL)", [part["to"]]
    if part["to"] is None:
        return f"{column} >= {mark}", [part["from"]]
    return f"{column} >= {mark} AND {column} <= {mark}", [part["from"], part["to"] - 1]


class SqlSource(Source[dict[str, Any]]):
    """Gives the rows of a table.

    Args:
        settings: What is read.
        key: What the program says to be a key of the table, whose columns are read; none for a table that does not
            change.
        ranges: How it is cut; None to read it in one.
    """

    is_bounded = True

    def __init__(self, settings: ReadSettings, key: Sequence[str] = (), ranges: KeyRanges | None = None) -> None:
        self._settings = settings
        self._ranges = ranges
        kinds = [settings.schema.field(name).type for name in key]
        is_paged = bool(key) and all(pa.types.is_integer(one) or pa.types.is_string(one) for one in kinds)
        self._key = tuple(key) if is_paged else ()

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._settings.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """One split with everything, or one for each range."""
        return _TableEnumerator(self._settings, self._ranges)

    def create_reader(self) -> SourceReader:
        """Make a reader."""
        return _TableReader(self._settings, self._key)


_ORIGIN = "table"
"""Of all splits: the table is cut once, however it would be cut now."""


class _TableEnumerator:
    discovery_interval_ms: int | None = None

    def __init__(self, settings: ReadSettings, ranges: KeyRanges | None) -> None:
        self._settings = settings
        self._ranges = ranges

    def discover(self) -> Discovery:
        if self._ranges is None:
            return Discovery([Split("table", origin=_ORIGIN)], is_final=True)
        rows = TableRows(self._settings)
        try:
            parts = self._ranges.cut(rows)
        finally:
            rows.close()
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
            self._is_paged = bool(self._key) and rows.are_told_apart(self._key)
        return self._is_paged

    def _page(
        self, rows: TableRows, where: str, values: list[int], last: list[Any] | None, max_records: int
    ) -> pa.RecordBatch:
        """The rows of a range behind a key."""
        key = rows.quoted(*self._key)
        conditions = [where] if where else []
        if last is not None:
            conditions.append(f"({key}) > ({', '.join([rows.mark] * len(self._key))})")
        behind = f"ORDER BY {key} LIMIT {min(max_records, _PAGE_ROWS)}"
        found = rows.rows(" AND ".join(conditions), [*values, *(last or [])], behind)
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
