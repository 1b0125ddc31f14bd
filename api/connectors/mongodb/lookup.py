"""Documents of a collection of MongoDB by key, as they are now: for lookup joins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import CommitRetry
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import SourceError, TypeMismatchError

from ...formats.client_values import columns_of
from ..messages.client_thread import AnswerError
from .bson_values import check_bson_types, check_names, fields_of, reader_of, writer_of
from .client import Connection, MongodbClient
from .source import split_name

__all__ = ["MongodbLookup"]

KEYS_AT_ONCE = 500


class MongodbLookup(TableLookup):
    """Finds documents by the values of fields, which should be indexed.

    Args:
        client: Of the cluster.
        collection: The collection behind its database.
        schema: The fields that are read, with their types; those of the key are among them.
        keys: Names of the key's fields.
        bson_types: By field, what a text is in documents, as of the sink.
        max_retries: How often a question that failed is asked again.
        query: Among which documents, as ``find`` takes it; None for all.
        pause: Waits for so many seconds.
    """

    def __init__(
        self,
        client: MongodbClient,
        collection: str,
        schema: pa.Schema,
        keys: Sequence[str],
        bson_types: Mapping[str, str] | None = None,
        max_retries: int = 3,
        query: Mapping[str, Any] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        check_names(schema.names)
        self._client = client
        self._place = split_name(collection)
        self._schema = schema
        self._keys = tuple(keys)
        self._bson_types = check_bson_types(schema, bson_types or {})
        self._max_retries = max_retries
        self._query = query
        self._pause = pause
        # None until it is opened.
        self._connection: Connection | None = None

    def open(self) -> None:
        """Get ready to ask.

        Raises:
            TypeMismatchError: If a field's type has no place in documents.
        """
        try:
            self._connection = self._client.connect()
        except AnswerError as error:
            raise self._failed(error) from error
        self._readers = [reader_of(field.name, field.type) for field in self._schema]
        self._writers = [
            writer_of(name, self._schema.field(name).type, self._bson_types.get(name)) for name in self._keys
        ]

    def _failed(self, error: AnswerError) -> SourceError:
        message = f"collection {'.'.join(self._place)} cannot be asked: {error}"
        return SourceError(message)

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the documents of some keys."""
        columns = [keys.column(keys.schema.names.index(name)).to_pylist() for name in self._keys]
        wanted = list(zip(*columns, strict=True))
        found: list[Mapping[str, Any]] = []
        for first in range(0, len(wanted), KEYS_AT_ONCE):
            some = [self._made(key) for key in wanted[first : first + KEYS_AT_ONCE]]
            if len(self._keys) == 1:
                asked: dict[str, Any] = {self._keys[0]: {"$in": [key[0] for key in some]}}
            else:
                asked = {"$or": [dict(zip(self._keys, key, strict=True)) for key in some]}
            found += self._documents(asked)
        fields = fields_of(found, self._schema.names)
        return columns_of(fields, self._schema, self._readers, collection=".".join(self._place))

    def _made(self, key: tuple[Any, ...]) -> list[Any]:
        try:
            return [value if make is None else make(value) for value, make in zip(key, self._writers, strict=True)]
        except (ValueError, TypeError, ArithmeticError) as error:
            message = f"no document can have the key {key!r:.80}: {error}"
            raise TypeMismatchError(message) from error

    def _documents(self, asked: dict[str, Any]) -> list[Mapping[str, Any]]:
        """Raises: SourceError: If MongoDB does not answer."""
        assert self._connection is not None
        collection = self._connection.collection(*self._place)
        asked = asked if self._query is None else {"$and": [asked, self._query]}
        projection = {"_id": 0, **dict.fromkeys(self._schema.names, 1)}
        retry, failures = CommitRetry(), 0
        while True:
            try:
                return self._connection.ask(lambda: list(collection.find(asked, projection)))
            except AnswerError as error:
                failures += 1
                if not error.is_away or failures > self._max_retries:
                    raise self._failed(error) from error
            self._pause(retry.delay_ms(failures) / 1_000)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
