"""Tables in indices of OpenSearch and Elasticsearch: ``'connector' = 'opensearch'``, ``'elasticsearch-7'`` and others.

All names are one connector, as the protocol is one for what is used of it.

Source: Flink's documentation ("Opensearch SQL Connector", "Elasticsearch SQL Connector").
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.opensearch import JsonMessages, OpenSearchSink, OpenSearchSource, SearchClient, UpsertOptions
from ...connectors.opensearch.reader import METADATA
from ..connectors.contract import Options
from ..connectors.deletions import DELETED, with_deletions
from ..connectors.message_formats import on_error_of
from .upsert_options import UpsertTable, order_of, refused_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["SEARCH_TABLES", "OpenSearchTable"]


class OpenSearchTable(UpsertTable):
    """Documents of an index; with a PRIMARY KEY changes are applied by it, without one rows are added.

    Options: ``hosts`` (several with semicolons between), ``index``, ``username``, ``password``,
    ``connection.path-prefix``, ``connection.request-timeout``, ``allow-insecure``, ``format`` (json),
    ``json.ignore-parse-errors``; written ``document-id.key-delimiter``, ``failure-handler`` (fail, ignore),
    ``sink.bulk-flush.max-actions``, ``sink.bulk-flush.max-size``, ``sink.bulk-flush.interval``, ``sink.patience``,
    ``sink.order-column``, ``sink.deletion-marker``; read ``scan.query``, ``scan.slices``, ``scan.keep-alive``.
    """

    name = "opensearch"
    manner = (
        "hosts",
        "username",
        "password",
        "connection.*",
        "allow-insecure",
        "sink.bulk-flush.*",
        "sink.patience",
        "scan.keep-alive",
    )
    metadata_types = {name: kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables in an index"
            raise ConfigurationError(message)
        prefix = options.take("connection.path-prefix", str, "").strip("/")
        hosts = [host.strip().rstrip("/") for host in options.need("hosts").split(";")]
        is_trusted = options.take("allow-insecure", Options.boolean, default=False)
        client_options: dict[str, Any] = {"verify_certs": False, "ssl_show_warn": False} if is_trusted else {}
        self._client = SearchClient(
            [f"{host}/{prefix}" if prefix else host for host in hosts],
            options.take("username"),
            options.take("password"),
            client_options,
        )
        self._index = options.need("index")
        if "{" in self._index:
            message = f"an index whose name is made of each row is not supported; got {self._index!r}"
            raise ConfigurationError(message)
        options.choice("format", ("json",), "json")
        self._delimiter = options.take("document-id.key-delimiter", str, "_")
        self.order = order_of(options, schema)
        self.marker = options.take("sink.deletion-marker")
        self._writing = UpsertOptions(
            batch_size=options.take("sink.bulk-flush.max-actions", int, 1_000),
            batch_bytes=options.take("sink.bulk-flush.max-size", Options.memory, 2 << 20),
            batch_interval=options.take("sink.bulk-flush.interval", Options.duration, 1_000),
            request_timeout=options.take("connection.request-timeout", Options.duration, 30_000),
            patience=options.take("sink.patience", Options.duration, 60_000),
            on_error=refused_of(options, "failure-handler"),
        )
        query = options.take("scan.query", _query)
        # What is deleted is no row, though its document stays.
        there = None if self.marker is None else {"bool": {"must_not": [{"term": {self.marker: True}}]}}
        self._query = {"bool": {"filter": [there, query]}} if there and query else there or query
        self._slices = options.take("scan.slices", int, 1)
        self._keep_alive = options.take("scan.keep-alive", Options.duration, 300_000)
        self._on_error = on_error_of(options)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the documents that there are."""
        metadata = {column: name for column, name in self.metadata.items() if column in schema.names}
        source = OpenSearchSource(
            self._client,
            self._index,
            value=JsonMessages(pa.schema([field for field in schema if field.name not in metadata])),
            query=self._query,
            slices=self._slices,
            metadata=metadata,
            on_error=self._on_error,
            keep_alive=self._keep_alive,
            patience=self._writing.patience,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"{self.name} {self._index}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write each change by its key, or add rows."""
        if self.primary_key:
            stream = with_deletions(stream, self.primary_key, schema)
        sink = OpenSearchSink(
            self._client,
            self._index,
            key=self.primary_key,
            order=self.order,
            delete_column=DELETED if self.primary_key else None,
            deletion_marker=self.marker,
            delimiter=self._delimiter,
            options=self._writing,
        )
        stream.sink_to(sink).name(table)


def _query(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        message = "a query is an object of JSON"
        raise ValueError(message)
    return found


class _OpenSearch2Table(OpenSearchTable):
    name = "opensearch-2"


class _Elasticsearch7Table(OpenSearchTable):
    name = "elasticsearch-7"


class _Elasticsearch8Table(OpenSearchTable):
    name = "elasticsearch-8"


class _ElasticsearchTable(OpenSearchTable):
    name = "elasticsearch"


SEARCH_TABLES = (OpenSearchTable, _OpenSearch2Table, _ElasticsearchTable, _Elasticsearch7Table, _Elasticsearch8Table)
"""The connector under its names: those of Flink, and those without a version."""
