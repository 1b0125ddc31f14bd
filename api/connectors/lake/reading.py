"""Reads tables of files: one version, or each new one as it comes. Splits are files, positions are rows of them.

Every version of a table is a list of files that never change, so a split means the same whenever it is read again. What
was seen last is part of checkpoints: following goes on with the version behind it, at any parallelism.

Following is for tables to which rows are added. A version that takes rows away, or puts others in their place, says
nothing that a stream of rows could say; it is refused by name, or passed over if the program says so. Versions that
only put files together (compaction) change no rows and are passed over.

Source: Iceberg's ``ContinuousSplitPlannerImpl``, Delta's ``DeltaSource`` for Flink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)
from headrace.engine.connectors.source_protocols import EnumeratorProgress, ProgressingEnumerator
from headrace.engine.errors import ConfigurationError, HeadraceError, SinkError, SourceError, nearest
from headrace.state.credentials import masked

__all__ = [
    "LakeEnumerator",
    "LakeReader",
    "OnChange",
    "ReadableTable",
    "Version",
    "in_columns",
    "read_all",
    "require_same_table",
    "wanted_columns",
]

OnChange = Literal["fail", "skip"]
"""What a version that takes rows away means to who follows: an error, or nothing."""


@dataclass(frozen=True)
class Version:
    """What a version brings.

    Attributes:
        number: By which it is found again.
        files: What a reader needs to open each file, with the ``path`` that names it.
        removes: What it does beside adding rows, in a word; None if it only adds.
        table: The table's id: another one may come under its name, and count its versions anew.
    """

    number: int
    files: list[dict[str, Any]] = field(default_factory=list)
    removes: str | None = None
    table: str = field(kw_only=True)


class ReadableTable(Protocol):
    """A table to be read; picklable."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    def first(self, *, follows: bool) -> Version:
        """Return what reading begins with: all files of a version, or none."""
        ...

    def since(self, number: int, table: str) -> Iterator[Version]:
        """Yield the versions behind one, in their order.

        Args:
            number: Of that version.
            table: The id of the table that it is of.

        Raises:
            SourceError: If the table no longer says what they brought, or is another one.
        """
        ...

    def open_file(self, payload: dict[str, Any], columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, always the same, with the table's columns."""
        ...


class LakeEnumerator(ProgressingEnumerator):
    """Finds files, version by version.

    Args:
        table: Where.
        follow_ms: How often to look for new versions; None to read one and end.
        on_change: See `OnChange`.
    """

    def __init__(self, table: ReadableTable, follow_ms: int | None, on_change: OnChange) -> None:
        self._table = table
        self._on_change = on_change
        self.discovery_interval_ms = follow_ms

    def discover(self) -> Discovery:
        return self.discover_from(EnumeratorProgress(None, False, 1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """Go on behind the version that was seen last."""
        follows = self.discovery_interval_ms is not None
        if progress.state is None:
            first = _asked(self._table, lambda: self._table.first(follows=follows))
            # A start without files is "from now on", which no later look would find again.
            is_repeatable = not follows or bool(first.files)
            seen = {"version": first.number, "table": first.table}
            return Discovery(_splits(first), is_final=not follows, is_repeatable=is_repeatable, state=seen)
        if not follows:
            return Discovery([], is_final=True, state=progress.state)
        last, table, splits = int(progress.state["version"]), str(progress.state["table"]), []
        newer: list[Version] = _asked(self._table, lambda: list(self._table.since(last, table)))
        for version in newer:
            if version.removes is None:
                splits += _splits(version)
            elif self._on_change == "fail":
                message = f"version {version.number} of the table does more than to add rows: {version.removes}"
                hint = "read the table anew, or pass such versions over with on_change='skip'"
                raise ConfigurationError(message, hint=hint, table=self._table.name, version=version.number)
            last = version.number
        return Discovery(splits, is_final=False, is_repeatable=True, state={"version": last, "table": table})


def require_same_table(known: str, now: str, **place: Any) -> None:
    """See that a table is the one that was followed.

    Raises:
        SourceError: If another one has its name.
    """
    if known != now:
        message = "the table that was followed has been dropped or replaced by another one of its name"
        raise SourceError(message, hint="read the new one from its beginning, without the checkpoint", **place)


def _asked(table: ReadableTable, ask: Any) -> Any:
    """What a library raises becomes an error that may pass, and names the table."""
    try:
        return ask()
    except SinkError as error:
        message = error.message
        raise SourceError(message, hint=error.hint, **error.context) from error
    except HeadraceError:
        raise
    except Exception as error:
        message = f"the table cannot be read: {masked(str(error))}"
        raise SourceError(message, table=table.name) from error


def _splits(version: Version) -> list[Split]:
    return [
        Split(f"{version.number}:{one['path']}", {**one, "version": version.number}, is_bounded=True)
        for one in version.files
    ]


class LakeReader(SourceReader):
    """Reads files one after another.

    Args:
        table: Whose.
        columns: Which to read; None for all.
        schema: As which types; None for the table's.
    """

    def __init__(self, table: ReadableTable, columns: tuple[str, ...] | None, schema: pa.Schema | None = None) -> None:
        self._table = table
        self._columns = columns
        self._schema = schema
        self._splits: list[Split] = []
        # Of the first split: what is decoded, what is not, and how many rows were given. None if it is not open.
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.RecordBatch | None = None
        self._position = 0

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        self._splits.extend(splits)

    def poll(self, max_records: int) -> Any:
        if not self._splits:
            return ALL_SPLITS_FINISHED
        split = self._splits[0]
        try:
            rows = self._next(split, max_records)
        except HeadraceError as error:
            error.context.setdefault("split", split.split_id)
            raise
        except Exception as error:
            message = f"cannot read a file of the table: {masked(str(error))}"
            raise SourceError(
                message, table=self._table.name, split=split.split_id, position=f"row {self._position}"
            ) from error
        if rows is not None:
            return Polled(split.split_id, Batch.of_columns(rows))
        self._batches = self._rest = None
        del self._splits[0]
        return SplitFinished(split.split_id)

    def _next(self, split: Split, max_records: int) -> pa.RecordBatch | None:
        if self._batches is None:
            self._position = split.position or 0
            rows = _typed(self._table.open_file(split.payload, self._columns), self._schema)
            self._batches = _behind(rows, self._position)
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return None
        rows = self._rest.slice(0, max_records)
        self._rest = self._rest.slice(rows.num_rows)
        self._position += rows.num_rows
        return rows

    def snapshot(self) -> list[Split]:
        if self._batches is None:
            return list(self._splits)
        first = self._splits[0]
        return [Split(first.split_id, first.payload, self._position), *self._splits[1:]]

    def close(self) -> None:
        self._batches = self._rest = None


def _typed(batches: Iterator[pa.RecordBatch], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    return batches if schema is None else (batch.cast(schema) for batch in batches)


def read_all(table: ReadableTable, columns: tuple[str, ...] | None, schema: pa.Schema | None) -> pa.Table:
    """Return all rows of a version, here and now."""
    version: Version = _asked(table, partial(table.first, follows=False))
    batches = [
        batch
        for one in version.files
        for batch in _typed(table.open_file({**one, "version": version.number}, columns), schema)
    ]
    if not batches and schema is None:
        message = "an empty table is read with a schema"
        raise SourceError(message, table=table.name)
    return pa.Table.from_batches(batches, schema)


def _behind(batches: Iterator[pa.RecordBatch], position: int) -> Iterator[pa.RecordBatch]:
    """What comes behind so many rows."""
    for batch in batches:
        dropped = min(position, batch.num_rows)
        position -= dropped
        yield batch.slice(dropped)


def in_columns(found: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """Return rows of a file with the columns of the table: those that it has not are of its partition, or null."""
    columns = []
    for column in schema:
        if column.name in constants:
            columns.append(pa.repeat(constants[column.name], found.num_rows))
        elif column.name in found.schema.names:
            columns.append(found.column(column.name).cast(column.type))
        else:
            columns.append(pa.nulls(found.num_rows, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def wanted_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns that are to be read, in their order.

    Raises:
        ConfigurationError: If the table has not one of them.
    """
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            message = f"the table has no column {name!r}"
            raise ConfigurationError(message, hint=nearest(name, schema.names) or f"it has {schema.names}")
    return pa.schema([schema.field(name) for name in columns])
