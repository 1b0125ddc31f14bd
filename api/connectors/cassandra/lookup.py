"""Rows of a table of Cassandra by key, as they are now: for lookup joins.

A key has all columns of the partition key. What else of it are clustering columns from the first one on is asked for,
too; the rest is left to the join.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import CommitRetry
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError, SourceError, TypeMismatchError

from ...formats.client_values import Convert, columns_of
from ..messages.client_thread import AnswerError
from .client import CassandraClient, Connection, split_name
from .cql_types import TableShape, quoted
from .cql_values import reader_of, writer_of

__all__ = ["CassandraLookup"]

KEYS_AT_ONCE = 128


class CassandraLookup(TableLookup):
    """Finds rows of a table by key.

    Args:
        client: Of the cluster.
        table: The table behind its keyspace.
        schema: The columns that are read, with their types; those of the key are among them.
        keys: Names of the key's columns.
        max_retries: How often a question that failed is asked again.
    """

    def __init__(
        self, client: CassandraClient, table: str, schema: pa.Schema, keys: Sequence[str], max_retries: int = 3
    ) -> None:
        self._client = client
        self._keyspace, self._table = split_name(table)
        self._schema = schema
        self._keys = tuple(keys)
        self._max_retries = max_retries
        # None until it is opened.
        self._connection: Connection | None = None

    def open(self) -> None:
        """Connect, and look at the table.

        Raises:
            ConfigurationError: If its rows cannot be found by the key.
        """
        try:
            self._connection = self._client.connect()
        except AnswerError as error:
            message = f"table {self._keyspace}.{self._table} cannot be asked: {error}"
            raise SourceError(message) from error
        shape = self._connection.shape(self._keyspace, self._table)
        self._asked = self._asked_of(shape)
        self._makers: list[Convert | None] = []
        for name in self._asked:
            self._makers.append(writer_of(name, self._schema.field(name).type, shape.columns[name]))
        for name in self._schema.names:
            if name not in shape.columns:
                message = f"table {shape.name!r} has no column {name!r}"
                raise ConfigurationError(message)
        self._readers = [reader_of(field.name, field.type, shape.columns[field.name]) for field in self._schema]
        where = " AND ".join(f"{quoted(name)} = ?" for name in self._asked)
        target = f"{quoted(self._keyspace)}.{quoted(self._table)}"
        self._statement = f"SELECT {quoted(*self._schema.names)} FROM {target} WHERE {where}"

    def _asked_of(self, shape: TableShape) -> list[str]:
        """The columns that are asked by."""
        missing = [name for name in shape.partition_key if name not in self._keys]
        if missing:
            message = f"rows of table {shape.name!r} are found by its partition key: {', '.join(missing)} is missing"
            raise ConfigurationError(message, hint=f"join by {', '.join(shape.partition_key)}")
        asked = list(shape.partition_key)
        for name in shape.clustering:
            if name not in self._keys:
                break
            asked.append(name)
        return asked

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some keys."""
        columns = [keys.column(keys.schema.names.index(name)).to_pylist() for name in self._asked]
        wanted = list(dict.fromkeys(zip(*columns, strict=True)))
        rows: list[tuple[Any, ...]] = []
        for first in range(0, len(wanted), KEYS_AT_ONCE):
            rows += self._rows_of(wanted[first : first + KEYS_AT_ONCE])
        values = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        return columns_of(values, self._schema, self._readers, table=f"{self._keyspace}.{self._table}")

    def _rows_of(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Raises: SourceError: If Cassandra does not answer."""
        assert self._connection is not None
        found: list[tuple[Any, ...]] = []
        retry = CommitRetry()
        for failures in range(1, self._max_retries + 2):
            answers = self._answers(self._connection, keys)
            found += [row for one in answers if not isinstance(one, AnswerError) for row in one]
            failed = [(key, one) for key, one in zip(keys, answers, strict=True) if isinstance(one, AnswerError)]
            if not failed:
                break
            error = failed[0][1]
            if not error.is_away or failures > self._max_retries:
                message = f"table {self._keyspace}.{self._table} cannot be asked: {error}"
                raise SourceError(message)
            keys = [key for key, _ in failed]
            time.sleep(retry.delay_ms(failures) / 1_000)
        return found

    def _answers(
        self, connection: Connection, keys: Sequence[tuple[Any, ...]]
    ) -> list[list[tuple[Any, ...]] | AnswerError]:
        try:
            statement = connection.prepared(self._statement)
        except AnswerError as error:
            return [error] * len(keys)
        return connection.ask_all([statement.bind(self._made(key)) for key in keys])

    def _made(self, key: tuple[Any, ...]) -> list[Any]:
        try:
            return [value if make is None else make(value) for value, make in zip(key, self._makers, strict=True)]
        except ValueError as error:
            message = f"no row can have the key {key!r:.80}: {error}"
            raise TypeMismatchError(message) from error

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
