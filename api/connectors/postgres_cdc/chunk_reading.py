"""Reads a chunk of a table: page by page in the order of the key, each page in a transaction that knows what it sees.

A chunk is one page, but where rows were added to it since it was cut, or a reader goes on in the middle of it. The
position is the last key that was given, with the pages so far: what comes behind is a page of its own, with eyes of its
own.

Source: Flink CDC's ``PostgresScanFetchTask``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import TypeMismatchError

from ..sql.postgresql import psycopg_driver
from .chunks import Key, TableKey
from .pgoutput import lsn_of
from .row_changes import batch_of
from .settings import CdcSettings, asked, failed, quoted
from .values import column_of, require_type

__all__ = ["ChunkReading"]


class ChunkReading:
    """One chunk and how far it was read.

    Args:
        split: The chunk.
        settings: What is read.
    """

    def __init__(self, split: Split, settings: CdcSettings) -> None:
        self.split = split
        self._settings = settings
        self._key = TableKey(tuple((name, kind) for name, kind in split.payload["key"]))
        names = settings.schema.names
        self._columns = [*names, *(name for name in self._key.names if name not in names)]
        self._upto: Key | None = split.payload["upto"]
        position = split.position or {}
        # Pages that were given, each up to a key; the last of them up to the last row that was given.
        self.pages: list[dict[str, Any]] = list(position.get("pages", ()))
        self.is_done: bool = position.get("is_done", False)
        # The page that is being given: its rows, the next of them, what it saw, and whether it is the last one.
        self._page: Any = None
        self._next = 0
        self._sight: dict[str, Any] = {}
        self._is_last = False

    @property
    def place(self) -> dict[str, Any]:
        """Split and position, for errors."""
        above = self.pages[-1]["upto"] if self.pages else self.split.payload["above"]
        return {"split": self.split.split_id, "position": f"behind key {above}", "table": self._settings.name}

    def as_split(self) -> Split:
        """Return the chunk with its position."""
        if not self.pages and not self.is_done:
            return self.split
        position = {"pages": self.pages, "is_done": self.is_done}
        return Split(self.split.split_id, self.split.payload, position, is_bounded=True)

    def read(self, connection: Any, max_records: int) -> Batch | None:
        """Return the next rows; None when there are no more.

        Args:
            connection: To read over.
            max_records: How many at most.

        Raises:
            SourceError: If the database does not give them.
            TypeMismatchError: If a value cannot be held by its type.
        """
        if self._page is None:
            self._fetch(connection)
        first, stop = self._next, min(self._next + max_records, self._page.ntuples)
        batch = self._batch(first, stop) if stop > first else None
        self._next = stop
        if stop == self._page.ntuples:
            self._note(self._upto if self._is_last else self._key_at(stop - 1), goes_on=first > 0)
            self._page, self.is_done = None, self._is_last
        elif batch is not None:
            self._note(self._key_at(stop - 1), goes_on=first > 0)
        if batch is None and not self.is_done:
            return self.read(connection, max_records)
        return batch

    def _note(self, upto: Key | None, *, goes_on: bool) -> None:
        """Say how far the page has been given."""
        page = {"upto": upto, **self._sight}
        self.pages = [*self.pages[:-1], page] if goes_on else [*self.pages, page]

    def _fetch(self, connection: Any) -> None:
        settings, order = self._settings, self._key.in_statements()
        above = self.pages[-1]["upto"] if self.pages else self.split.payload["above"]
        values: list[str] = []
        conditions = []
        for sign, key in ((">", above), ("<=", self._upto)):
            if key is not None:
                marks = ", ".join(f"${len(values) + number + 1}" for number in range(len(key)))
                conditions.append(f"({order}) {sign} ({marks})")
                values += key
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = ", ".join(quoted(name) for name in self._columns)
        # Tables that inherit from it have logs of their own.
        table = f"ONLY {quoted(*settings.table)}"
        query = f"SELECT {columns} FROM {table} {where} ORDER BY {order} LIMIT {settings.chunk_rows}"
        try:
            asked(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            sees = asked(connection, "SELECT pg_current_snapshot()").get_value(0, 0).decode()
            self._page = asked(connection, query, values)
            lsn, is_flushed = self._end_of_log(connection)
            asked(connection, "COMMIT")
            if not is_flushed:
                # Of those who do not wait for the disk: what was seen must not be undone by a crash.
                asked(connection, "SELECT pg_logical_emit_message(true, 'headrace', '')")
        except psycopg_driver().Error as error:
            raise failed(error, "a chunk of a table cannot be read", **self.place) from error
        self._next, self._sight = 0, {"sees": sees, "lsn": lsn}
        self._is_last = self._page.ntuples < settings.chunk_rows
        for number, item in enumerate(settings.schema):
            require_type(item.name, self._page.ftype(number), item.type)

    @staticmethod
    def _end_of_log(connection: Any) -> tuple[int, bool]:
        found = asked(connection, "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()")
        inserted, flushed = (lsn_of(found.get_value(0, column).decode()) for column in (0, 1))
        return inserted, flushed >= inserted

    def _key_at(self, row: int) -> Key:
        return [self._page.get_value(row, self._columns.index(name)).decode() for name in self._key.names]

    def _batch(self, first: int, stop: int) -> Batch:
        arrays = []
        try:
            for number, item in enumerate(self._settings.schema):
                texts = [self._page.get_value(row, number) for row in range(first, stop)]
                arrays.append(column_of(item.name, self._page.ftype(number), texts, item.type))
        except TypeMismatchError as error:
            if stop - first > 1:  # of several rows, the first that cannot be held
                for row in range(first, stop):
                    self._batch(row, row + 1)
            error.context.update({**self.place, "position": f"key {self._key_at(first)}"})
            raise
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._settings.schema)
        return batch_of(rows, [RowKind.INSERT] * rows.num_rows, self._settings.kind_column)
