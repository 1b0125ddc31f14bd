"""Tables of Cassandra: ``'connector' = 'cassandra'``.

Flink's SQL has no such connector; options are named as those of its others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.cassandra import CassandraClient, CassandraLookup, CassandraSink, CassandraSource
from ..connectors.contract import Options, lookup_cache_of, lookup_retries_of
from ..connectors.deletions import DELETED, with_deletions
from .upsert_options import UpsertTable, order_of, writing_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["CassandraTable"]


class CassandraTable(UpsertTable):
    """A table of Cassandra, which must be there; changes are applied by its PRIMARY KEY.

    Options: ``hosts`` (several with semicolons between), ``keyspace``, ``table-name``, ``username``, ``password``,
    ``local-datacenter``, ``consistency``, ``connection.request-timeout``; written ``sink.order-column``,
    ``sink.order-column.ties-below``, ``sink.numbers-table``, ``sink.buffer-flush.max-rows``,
    ``sink.buffer-flush.interval``, ``sink.patience``, ``failure-handler`` (fail, ignore); read ``scan.splits``,
    ``scan.fetch-size``; looked up ``lookup.cache`` and those of its cache, ``lookup.max-retries``.
    """

    name = "cassandra"
    manner = (
        "hosts",
        "username",
        "password",
        "local-datacenter",
        "consistency",
        "connection.request-timeout",
        "sink.buffer-flush.*",
        "sink.patience",
        "scan.fetch-size",
        "lookup.*",
    )
    can_look_up = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables of Cassandra: their partitions are Cassandra's"
            raise ConfigurationError(message)
        self._client = CassandraClient(
            [host.strip() for host in options.need("hosts").split(";")],
            options.take("username"),
            options.take("password"),
            options.take("local-datacenter"),
            options.take("consistency", str.upper, "LOCAL_QUORUM"),
        )
        self._table = f"{options.need('keyspace')}.{options.need('table-name')}"
        self.order = order_of(options, schema)
        self._numbers_table = options.take("sink.numbers-table", str, "headrace_numbers")
        self._writing = writing_of(options)
        self._splits = options.take("scan.splits", int, 16)
        self._page_size = options.take("scan.fetch-size", int, 1_000)
        self.lookup_cache = lookup_cache_of(options)
        self._lookup_retries = lookup_retries_of(options)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the table once."""
        source = CassandraSource(
            self._client,
            self._table,
            schema=schema,
            splits=self._splits,
            page_size=self._page_size,
            patience=self._writing.patience,
        )
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"cassandra {self._table}")

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Ask for rows by partition key, and as many clustering columns as are given from the first one on."""
        return CassandraLookup(self._client, self._table, schema, keys, self._lookup_retries)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write each change by its key.

        Raises:
            ConfigurationError: If the table has no PRIMARY KEY.
        """
        if not self.primary_key:
            message = f"table {table} needs a PRIMARY KEY to be written: that of the table of Cassandra"
            raise ConfigurationError(message)
        sink = CassandraSink(
            self._client,
            self._table,
            schema=schema,
            key=self.primary_key,
            order=self.order,
            delete_column=DELETED,
            numbers_table=self._numbers_table,
            options=self._writing,
        )
        with_deletions(stream, self.primary_key, schema).sink_to(sink).name(table)
