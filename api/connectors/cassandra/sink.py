"""A table of Cassandra as a sink: a row for each primary key.

Each row is written ``USING TIMESTAMP``, and Cassandra keeps, cell by cell, what has the greatest one. The number is
never the clock's: either it is the record's own (``order``), or one that the sink makes, above all that were made for
the table before (`headrace.connectors.upserts.numbering`). So whatever is written again, or late, changes nothing.

Of two cells with the same number Cassandra keeps the larger *value*, and a deletion wins over both: an order of the
record must be different for each change of a key.

Source: Flink's ``CassandraSink``; Cassandra's documentation, "Dynamo", "Data Versioning".
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, SinkError, nearest

from ...formats.client_values import Convert
from ...formats.schemas import schema_of
from ..messages.client_thread import AnswerError
from ..upserts import (
    Entry,
    KeyedColumns,
    Numbers,
    OrderKey,
    Refused,
    SinkAwayError,
    UpsertOptions,
    UpsertSink,
    UpsertSinkWriter,
    WriterPlace,
)
from .client import CassandraClient, Connection, split_name
from .cql_types import TableShape, quoted
from .cql_values import writer_of

__all__ = ["CassandraSink"]

OVERHEAD_BYTES = 60
"""Beside the values of a row, about."""

_REFUSED = (ValueError, TypeError, AttributeError, ArithmeticError, struct.error)
"""What is raised for values that a statement cannot have."""

ROWS_AT_ONCE = 128
"""Rows that are under way at the same time, of one request."""


class CassandraSink(UpsertSink):
    """Writes records as rows.

    Args:
        client: Of the cluster, or a host of it.
        table: The table behind its keyspace, as ``shop.orders``; it must be there.
        schema: The fields that are written, with their types. Other columns are left as they are.
        key: The columns of the table's primary key, all of them.
        order: The column, or the `OrderKey`, that says which record of a key is newer, and differs for each change of a
            key; it need not be written. None: the one that came to the sink later is newer, and records of a key must
            come to one subtask.
        delete_column: A boolean field that is not written: where it is true, the row is deleted.
        numbers_table: Where it is kept, in the table's keyspace, which numbers were used; for sinks without an order.
            It is made if it is not there.
        options: How records are brought there.

    Guarantees: at least once; each key has its newest record, whatever fails.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        client: CassandraClient | str,
        table: str,
        *,
        schema: pa.Schema | Mapping[str, Any],
        key: str | Sequence[str],
        order: str | OrderKey | None = None,
        delete_column: str | None = None,
        numbers_table: str = "headrace_numbers",
        options: UpsertOptions = UpsertOptions(),
    ) -> None:
        self._client = CassandraClient(client) if isinstance(client, str) else client
        fields = schema_of(schema)
        assert fields is not None
        rows = KeyedColumns(fields, key, delete_column, order)
        self._target = _Target(*split_name(table), fields, rows.key, rows.order is not None, numbers_table)
        super().__init__(f"table {table!r}", rows, options)

    def create_writer(self) -> UpsertSinkWriter:
        """Make the writer of one subtask."""
        return _Writer(self.place, self._client, self._target, self.options)


class _Target:
    """What is written, and how.

    Args:
        keyspace: Of the table.
        table: Its name.
        schema: The fields that are written.
        key: Of these.
        has_order: Whether numbers are the records' own.
        numbers_table: Where those of the sink are kept.
    """

    def __init__(
        self, keyspace: str, table: str, schema: pa.Schema, key: tuple[str, ...], has_order: bool, numbers_table: str
    ) -> None:
        self.keyspace, self.table = keyspace, table
        self.schema = schema
        self.key = key
        self.has_order = has_order
        self.numbers_table = numbers_table
        target = f"{quoted(keyspace)}.{quoted(table)}"
        marks = ", ".join("?" * len(schema))
        self.insert = f"INSERT INTO {target} ({quoted(*schema.names)}) VALUES ({marks}) USING TIMESTAMP ?"
        where = " AND ".join(f"{quoted(name)} = ?" for name in key)
        self.delete = f"DELETE FROM {target} USING TIMESTAMP ? WHERE {where}"

    def converters(self, shape: TableShape) -> dict[str, Convert | None]:
        """Return how each field is written.

        Raises:
            ConfigurationError: If the table has no such column, another key, or what cannot be written again.
            TypeMismatchError: If a field does not fit its column.
        """
        if set(self.key) != set(shape.key):
            message = (
                f"the primary key of table {shape.name!r} is ({', '.join(shape.key)}); got ({', '.join(self.key)})"
            )
            raise ConfigurationError(message)
        return {field.name: self._converter(shape, field) for field in self.schema}

    def _converter(self, shape: TableShape, field: pa.Field) -> Convert | None:
        name = field.name
        if name not in shape.columns:
            message = f"table {shape.name!r} has no column {name!r}"
            raise ConfigurationError(message, hint=nearest(name, list(shape.columns)))
        column = shape.columns[name]
        convert = writer_of(name, field.type, column)
        if name in shape.static:
            message = f"column {name!r} is static, and belongs to many rows: which of them is newer cannot be told"
            raise ConfigurationError(message)
        if self.has_order and column.name == "list" and not column.is_frozen:
            message = f"column {name!r} is a {column}: written again with the same order it has each element twice"
            raise ConfigurationError(message, hint=f"make it a frozen<{column}>, or leave the order to the sink")
        if name in self.key and column.name in ("float", "double", "decimal", "list", "set", "map"):
            message = f"column {name!r} of the key is a {column}, whose equal values may be different rows"
            raise ConfigurationError(message)
        return convert


class _Writer(UpsertSinkWriter):
    """Sends rows as prepared statements, side by side."""

    def __init__(self, place: str, client: CassandraClient, target: _Target, options: UpsertOptions) -> None:
        super().__init__(place, options)
        self._client = client
        self._target = target
        # None until a host has answered.
        self._connection: Connection | None = None
        self._converters: dict[str, Convert | None] = {}
        # Who makes numbers where records have none.
        self._writer_place: WriterPlace | None = None
        self._numbers: Numbers | None = None

    def open(self, context: Any) -> None:
        """Look at the table, if a host answers."""
        self._writer_place = WriterPlace.of(context)
        super().open(context)

    def connect(self) -> None:
        self._client.check_driver()
        try:
            self._ready()
        except SinkAwayError:  # it is asked again with the first request, for as long as patience says
            return

    def _ready(self) -> Connection:
        """A connection to a table that will do.

        Raises:
            SinkAwayError: If no host answers.
            ConfigurationError: If the table will not do.
        """
        if self._connection is not None:
            return self._connection
        connection = self._ask(self._client.connect, self._options.request_timeout_s)
        try:
            self._converters = self._target.converters(connection.shape(self._target.keyspace, self._target.table))
            for statement in (self._target.insert, self._target.delete):
                self._ask(connection.prepared, statement)
            if not self._target.has_order:
                assert self._writer_place is not None
                self._numbers = Numbers(_Cell(self, connection, self._target), self._writer_place)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _ask(self, question: Any, *arguments: Any) -> Any:
        """Raises: SinkError: If there is an error, as what this is of."""
        try:
            return question(*arguments)
        except AnswerError as error:
            message = f"{self._place} takes nothing: {error}"
            raise (SinkAwayError if error.is_away else SinkError)(message) from error

    ask = _ask

    def get_size_in_bytes(self, request_entry: Entry) -> int:
        key, _, values = request_entry
        return OVERHEAD_BYTES + sum(map(_size_of, key if values is None else values))

    def apply(self, entries: list[Entry]) -> Iterable[Refused]:
        connection = self._ready()
        number = None
        if self._numbers is not None:
            # No two entries are of one row, so one number will do for all of them.
            entries, number = self._newest_of_rows(entries), self._numbers.take()
        for first in range(0, len(entries), ROWS_AT_ONCE):
            some = entries[first : first + ROWS_AT_ONCE]
            refused = list(self._applied(connection, some, number))
            yield from refused
            if any(one.is_for_now for one in refused):  # none of the others is tried: that would take as long again
                cause = next(one.cause for one in refused if one.is_for_now)
                yield from (Refused(entry, cause, is_for_now=True) for entry in entries[first + ROWS_AT_ONCE :])
                return

    def _newest_of_rows(self, entries: Sequence[Entry]) -> list[Entry]:
        """Of the entries of each row the last one: several texts of a key may be one row, as those of a UUID."""
        newest: dict[Any, Entry] = {}
        for entry in entries:
            try:
                row = tuple(self._made(self._target.key, entry[0]))
            except _REFUSED:  # it is refused when it is sent
                row = (None, *entry[0])
            newest.pop(row, None)
            newest[row] = entry
        return list(newest.values())

    def _applied(self, connection: Connection, entries: Sequence[Entry], number: int | None) -> Iterator[Refused]:
        sent: list[tuple[Entry, Any]] = []
        for entry in entries:
            try:
                sent.append((entry, self._bound(connection, entry, number)))
            except _REFUSED as error:
                yield Refused(entry, str(error) or repr(error))
        for (entry, _), answer in zip(sent, connection.ask_all(statement for _, statement in sent), strict=True):
            if isinstance(answer, AnswerError):
                yield Refused(entry, str(answer), answer.is_away)

    def _bound(self, connection: Connection, entry: Entry, number: int | None) -> Any:
        key, own, values = entry
        number = own if number is None else number
        target = self._target
        if values is None:
            return connection.prepared(target.delete).bind((number, *self._made(target.key, key)))
        return connection.prepared(target.insert).bind((*self._made(target.schema.names, values), number))

    def _made(self, names: Sequence[str], values: Sequence[Any]) -> Iterator[Any]:
        for name, value in zip(names, values, strict=True):
            convert = self._converters[name]
            yield value if value is None or convert is None else convert(value)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _size_of(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return sum(map(_size_of, value)) if isinstance(value, (list, tuple, set)) else 16


_NUMBERS_ID = uuid.UUID("6f6d8d0a-94a5-4c6e-9d37-0c5c0b7f3a11")


class _Cell:
    """Numbers that were used for a table, in a row of another one.

    The table has an id that is made of its name, so that several subtasks may make it at the same time.
    """

    def __init__(self, writer: _Writer, connection: Connection, target: _Target) -> None:
        self._writer, self._connection, self._name = writer, connection, target.table
        name = f"{quoted(target.keyspace)}.{quoted(target.numbers_table)}"
        number = uuid.uuid5(_NUMBERS_ID, name)
        self._ask(
            connection.ask,
            f"CREATE TABLE IF NOT EXISTS {name} (target text PRIMARY KEY, numbers text) WITH id = {number}",
        )
        self._read = self._ask(connection.prepared, f"SELECT numbers FROM {name} WHERE target = ?")
        self._read.is_idempotent = True
        self._read.consistency_level = connection.serial_level
        self._replace = self._ask(connection.prepared, f"UPDATE {name} SET numbers = ? WHERE target = ? IF numbers = ?")

    def _ask(self, question: Any, *arguments: Any) -> Any:
        return self._writer.ask(question, *arguments)

    def read(self) -> str | None:
        rows = list(self._ask(self._connection.ask, self._read.bind((self._name,))))
        return rows[0][0] if rows else None

    def replace(self, old: str | None, new: str) -> bool:
        ((is_applied, *_),) = list(self._ask(self._connection.ask, self._replace.bind((new, self._name, old))))
        return bool(is_applied)
