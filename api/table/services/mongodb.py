"""Tables that are collections of MongoDB: ``'connector' = 'mongodb'``.

Source: Flink's documentation ("MongoDB SQL Connector").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.state.extras import needs

from ...connectors.mongodb import MongodbClient, MongodbLookup, MongodbSink, MongodbSource
from ..connectors.contract import Options, lookup_cache_of, lookup_retries_of
from ..connectors.deletions import DELETED, with_deletions
from .upsert_options import UpsertTable, order_of, writing_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["MongodbTable"]


class MongodbTable(UpsertTable):
    """A collection of MongoDB; changes are applied by its PRIMARY KEY.

    Options: ``uri``, ``database``, ``collection``, ``bson-type.*`` (objectId, uuid), ``connection.request-timeout``;
    written ``sink.order-column``, ``sink.order-column.ties-below``, ``sink.deletion-marker``, ``sink.number-field``,
    ``sink.numbers-collection``, ``sink.buffer-flush.max-rows``, ``sink.buffer-flush.interval``, ``sink.patience``,
    ``sink.delivery-guarantee`` (at-least-once), ``failure-handler`` (fail, ignore); read ``scan.splits``,
    ``scan.fetch-size``, ``scan.filter``; looked up ``lookup.cache`` and those of its cache, ``lookup.max-retries``.
    """

    name = "mongodb"
    of_columns = ("bson-type.",)
    manner = (
        "uri",
        "connection.request-timeout",
        "sink.buffer-flush.*",
        "sink.patience",
        "scan.fetch-size",
        "lookup.*",
    )
    can_look_up = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for collections of MongoDB"
            raise ConfigurationError(message)
        self._client = MongodbClient(options.need("uri"))
        self._collection = f"{options.need('database')}.{options.need('collection')}"
        self._bson_types = options.take_all("bson-type.")
        self.order = order_of(options, schema)
        self.marker = options.take("sink.deletion-marker")
        self._number_field = options.take("sink.number-field", str, "_number")
        self._numbers = options.take("sink.numbers-collection", str, "headrace_numbers")
        options.choice("sink.delivery-guarantee", ("at-least-once",), "at-least-once")
        self._writing = writing_of(options)
        self._splits = options.take("scan.splits", int, 16)
        self._page_size = options.take("scan.fetch-size", int, 2_048)
        query = options.take("scan.filter", _query)
        # What is deleted is no row, though its document stays.
        self._there = None if self.marker is None else {self.marker: None}
        self._query = {"$and": [self._there, query]} if self._there and query else self._there or query
        self.lookup_cache = lookup_cache_of(options)
        self._lookup_retries = lookup_retries_of(options)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the collection once."""
        source = MongodbSource(
            self._client,
            self._collection,
            schema=schema,
            query=self._query,
            splits=self._splits,
            page_size=self._page_size,
            patience=self._writing.patience,
        )
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"mongodb {self._collection}")

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Ask for documents by the values of their fields."""
        return MongodbLookup(
            self._client, self._collection, schema, keys, self._types_of(schema), self._lookup_retries, self._there
        )

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write each change by its key.

        Raises:
            ConfigurationError: If the table has no PRIMARY KEY.
        """
        if not self.primary_key:
            message = f"table {table} needs a PRIMARY KEY to be written: its documents' _id is made of that"
            raise ConfigurationError(message)
        sink = MongodbSink(
            self._client,
            self._collection,
            schema=schema,
            key=self.primary_key,
            order=self.order,
            delete_column=DELETED,
            deletion_marker=self.marker,
            bson_types=self._types_of(schema),
            number_field=self._number_field,
            numbers_collection=self._numbers,
            options=self._writing,
        )
        with_deletions(stream, self.primary_key, schema).sink_to(sink).name(table)

    def _types_of(self, schema: pa.Schema) -> Mapping[str, str]:
        """What the columns are in documents that are looked at here."""
        return {name: kind for name, kind in self._bson_types.items() if name in schema.names}


def _query(text: str) -> dict[str, Any]:
    """A filter, in MongoDB's Extended JSON."""
    with needs("MongoDB needs a driver, pymongo", "mongodb"):
        from bson import json_util
    found = json_util.loads(text)
    if not isinstance(found, dict):
        message = "a filter is an object of JSON"
        raise ValueError(message)
    return found
