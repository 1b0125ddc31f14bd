"""Reads ranges of tokens of a table, one after the other, in a thread, page by page, each from a position on.

Invariant: a range's position is the token and the primary key of the last row that was given; rows come in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError, nearest

from ...formats.client_values import Convert, columns_of
from ..messages.client_thread import AnswerError, AwayError, ClientThread
from ..messages.fetching import FetchingReader
from .client import CassandraClient, Connection
from .cql_types import CqlType, TableShape, quoted
from .cql_values import reader_of

__all__ = ["LEAST_TOKEN", "MOST_TOKEN", "Scan", "TableReader"]

LEAST_TOKEN, MOST_TOKEN = -(1 << 63), (1 << 63) - 1
"""Of the Murmur3Partitioner; no row has the least one."""

MAX_WAITING = 2
"""Pages that may wait for the task."""

Position = tuple[int, tuple[str, ...]]
"""A token, and a row's key: partition key and clustering columns, as Cassandra has them in binary, in hexadecimal."""


@dataclass(frozen=True)
class Scan:
    """What is read.

    Attributes:
        keyspace: Of the table.
        table: Its name.
        schema: The columns.
        page_size: Rows of an answer.
        patience_s: How long no host may answer.
    """

    keyspace: str
    table: str
    schema: pa.Schema
    page_size: int
    patience_s: float

    @property
    def name(self) -> str:
        """The table's, with its keyspace."""
        return f"{self.keyspace}.{self.table}"

    def converters(self, shape: TableShape) -> list[Convert | None]:
        """Return how values of each column are read.

        Raises:
            ConfigurationError: If the table has no such column.
            TypeMismatchError: If one has values of another type.
        """
        for name in self.schema.names:
            if name not in shape.columns:
                message = f"table {shape.name!r} has no column {name!r}"
                raise ConfigurationError(message, hint=nearest(name, list(shape.columns)))
        return [reader_of(field.name, field.type, shape.columns[field.name]) for field in self.schema]


class _Statements:
    """What is asked of a table.

    Args:
        scan: What is read.
        shape: Of the table.
    """

    def __init__(self, scan: Scan, shape: TableShape) -> None:
        self._shape = shape
        self._table = f"{quoted(scan.keyspace)}.{quoted(scan.table)}"
        self._token = f"token({quoted(*shape.partition_key)})"
        key = [_in_binary(name, shape.columns[name]) for name in shape.key]
        chosen = ", ".join([self._token, *key, *map(quoted, scan.schema.names)])
        self.select = f"SELECT {chosen} FROM {self._table}"
        self.range = f"{self.select} WHERE {self._token} > ? AND {self._token} <= ?"
        self.partition = f"{self.select} WHERE {self._equal(shape.partition_key)}"
        partition = ", ".join(key[: len(shape.partition_key)])
        self.partitions = f"SELECT DISTINCT {partition} FROM {self._table} WHERE {self._token} = ?"

    @staticmethod
    def _equal(names: Sequence[str]) -> str:
        return " AND ".join(f"{quoted(name)} = ?" for name in names)

    @cached_property
    def rest_of_partition(self) -> list[str]:
        """What gives the rows of a partition behind one, nearest first.

        The first statement is given the whole key, each other one a part less of its end.
        """
        found = []
        clustering = list(self._shape.clustering.items())
        for number in range(len(clustering), 0, -1):
            name, is_reversed = clustering[number - 1]
            same = [*self._shape.partition_key, *self._shape.clustering][: -len(clustering) + number - 1]
            found.append(f"{self.select} WHERE {self._equal(same)} AND {quoted(name)} {'<' if is_reversed else '>'} ?")
        return found


def _in_binary(name: str, kind: CqlType) -> str:
    """A column of a key, to be selected: as Cassandra has it, where there is a function for that.

    A client gives no value for one that has no bytes, as those of most types may, and the same number for varints of
    several lengths, which are different partitions.
    """
    if kind.name == "blob" or kind.parts or kind.is_frozen or not kind.name.isalpha():
        return quoted(name)
    return f"{kind.name}AsBlob({quoted(name)})"


@dataclass(slots=True)
class _Reading:
    """A range, and how far it was fetched or given."""

    split_id: str
    start: int
    end: int
    position: Position | None
    is_at_end: bool = False

    def as_split(self) -> Split:
        position = None if self.position is None else {"token": self.position[0], "key": list(self.position[1])}
        return Split(self.split_id, {"start": self.start, "end": self.end}, position)


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows of a range.

    Attributes:
        rows: Values of the columns that are read.
        positions: Of each row.
        converters: How the columns are read.
        is_last: Whether there are no more.
    """

    split_id: str
    rows: list[tuple[Any, ...]]
    positions: list[Position]
    converters: list[Convert | None]
    is_last: bool

    @property
    def num_messages(self) -> int:
        return len(self.rows)


class _Shared:
    """The connection of a reader, which has one for all of its threads; it finds hosts again by itself."""

    def __init__(self, client: CassandraClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_closed = False

    def connection(self) -> Connection:
        """Return it.

        Raises:
            AnswerError: If no host answers, or it is closed.
        """
        with self._lock:
            if self._is_closed:
                message = "the reader is closed"
                raise AnswerError(message, is_away=True)
            if self._connection is None:
                self._connection = self._client.connect()
            return self._connection

    def close(self) -> None:
        """Let go of it, without waiting for the thread that makes it."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Fetcher(ClientThread):
    """Fetches the rows of ranges, one range after the other."""

    def __init__(self, shared: _Shared, name: str, scan: Scan, readings: Sequence[_Reading]) -> None:
        super().__init__(name, MAX_WAITING, scan.patience_s)
        self._shared = shared
        self._scan = scan
        self._readings = list(readings)
        self._connection: Connection | None = None
        self._pages: Iterator[_Page] | None = None

    def connect(self) -> None:
        try:
            self._connection = self._shared.connection()
        except AnswerError as error:
            raise self._failed(error) from error

    def disconnect(self) -> None:
        self._connection, self._pages = None, None

    def work(self) -> None:
        if not self._readings:
            self.end()
            return
        reading = self._readings[0]
        if self._pages is None:
            self._pages = self._pages_of(reading)
        try:
            page = next(self._pages)
        except AnswerError as error:
            raise self._failed(error) from error
        if page.positions:
            reading.position = page.positions[-1]
        if page.is_last:
            self._pages = None
            self._readings.pop(0)
        self.give(page)

    def _failed(self, error: AnswerError) -> SourceError:
        message = f"table {self._scan.name!r} cannot be read: {error}"
        one = self._readings[0] if self._readings else None
        place: dict[str, Any] = {} if one is None else {"split": one.split_id, "position": f"behind {one.position}"}
        return (AwayError if error.is_away else SourceError)(message, **place)

    # ---------------------------------------------------------------------------------------------------------- pages
    def _pages_of(self, reading: _Reading) -> Iterator[_Page]:
        """The pages behind a position.

        Raises:
            AnswerError: If Cassandra has answered with an error, or not at all.
        """
        assert self._connection is not None
        table = _Table(self._connection, self._scan)
        for rows in table.rows_behind(reading.position, reading.start, reading.end):
            yield table.page_of(reading.split_id, rows)
        yield _Page(reading.split_id, [], [], [], is_last=True)


class _Table:
    """A table that is read over a connection."""

    def __init__(self, connection: Connection, scan: Scan) -> None:
        self._connection = connection
        self._scan = scan
        self._shape = connection.shape(scan.keyspace, scan.table)
        self._converters = scan.converters(self._shape)
        self._statements = _Statements(scan, self._shape)
        # Types of the key's columns, as the driver has them.
        self._key_types = self._connection.types_of(self._statements.select)[1 : 1 + len(self._shape.key)]

    def page_of(self, split_id: str, rows: Sequence[tuple[Any, ...]]) -> _Page:
        """Rows, with their positions."""
        width = 1 + len(self._shape.key)
        positions = [(row[0], tuple(part.hex() for part in self._binary_parts(row[1:width]))) for row in rows]
        return _Page(split_id, [row[width:] for row in rows], positions, self._converters, is_last=False)

    def _binary_parts(self, key: Sequence[Any]) -> list[bytes]:
        """A key or the first parts of it; a partition that has static columns alone has no clustering columns."""
        pairs = zip(self._key_types, key, strict=False)
        return [self._connection.binary(kind, value) for kind, value in pairs if value is not None]

    def rows_behind(self, position: Position | None, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows behind a position, some at a time."""
        if position is not None:
            start, found = position
            key = [bytes.fromhex(text) for text in found]
            if len(key) == len(self._shape.key):
                for statement in self._statements.rest_of_partition:
                    yield from self._rows(statement, key)
                    key.pop()
            yield from self._rows_of_same_token(start, key[: len(self._shape.partition_key)])
        if start < end:
            yield from self._rows(self._statements.range, [_token(start), _token(end)])

    def _rows_of_same_token(self, token: int, partition: Sequence[bytes]) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of partitions that have a token by chance that another one has, and come behind it."""
        pages = self._rows(self._statements.partitions, [_token(token)])
        others = [self._binary_parts(row) for rows in pages for row in rows]
        if list(partition) in others:
            others = others[others.index(list(partition)) + 1 :]
        elif others:
            message = f"the partition at token {token} was deleted while it was read, and another one has its token"
            raise SourceError(message, position=token)
        for other in others:
            yield from self._rows(self._statements.partition, other)

    def _rows(self, statement: str, values: Sequence[bytes]) -> Iterator[list[tuple[Any, ...]]]:
        bound = self._connection.bound_binary(statement, values)
        bound.fetch_size = self._scan.page_size
        pages = self._connection.ask(bound)
        rows: list[tuple[Any, ...]] | None = list(pages.current_rows)
        while rows is not None:
            if rows:
                yield rows
            rows = self._connection.rows_behind(pages)


class TableReader(FetchingReader[_Reading, _Page, _Fetcher]):
    """Reads the ranges of one subtask.

    Args:
        client: Of the cluster.
        scan: What is read.
    """

    def __init__(self, client: CassandraClient, scan: Scan) -> None:
        super().__init__()
        self._client = client
        self._scan = scan

    def open(self, context: ReaderContext) -> None:
        self._client.check_driver()
        self._shared = _Shared(self._client)
        super().open(context)

    def close(self) -> None:
        super().close()
        self._shared.close()

    def reading_of(self, split: Split) -> _Reading:
        return _reading_of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"cassandra {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._shared, name, self._scan, readings)

    def read(self, reading: _Reading, fetched: _Page) -> Batch:
        reading.is_at_end = fetched.is_last
        if not fetched.rows:
            return Batch.of_rows([])
        columns = list(zip(*fetched.rows, strict=True))
        place = {"split": reading.split_id, "position": f"behind {reading.position}", "table": self._scan.name}
        records = columns_of(columns, self._scan.schema, fetched.converters, **place)
        reading.position = fetched.positions[-1]
        return Batch.of_columns(records)


def _reading_of(split: Split) -> _Reading:
    """Where a range is.

    Raises:
        CheckpointMismatchError: If it is none of a table of Cassandra.
    """
    payload, position = split.payload, split.position
    is_right = payload.keys() == {"start", "end"} and all(type(one) is int for one in payload.values())
    at: Position | None = None
    if position is not None and is_right:
        is_right = isinstance(position, dict) and position.keys() == {"token", "key"}
        is_right = is_right and type(position["token"]) is int and isinstance(position["key"], list)
        is_right = is_right and all(isinstance(part, str) and _is_hexadecimal(part) for part in position["key"])
        at = (position["token"], tuple(position["key"])) if is_right else None
    if not is_right:
        message = "the checkpoint's position is not one of a table of Cassandra"
        raise CheckpointMismatchError(message, split=split.split_id)
    return _Reading(split.split_id, payload["start"], payload["end"], at)


def _token(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _is_hexadecimal(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
