"""Tables of PostgreSQL that are followed: ``'connector' = 'postgres-cdc'``.

Source: Flink's documentation ("Postgres CDC Connector").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.postgres_cdc import PostgresCdcSource
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["PostgresCdcTable"]


class PostgresCdcTable(TableConnector):
    """A table whose rows, and all changes of them, are told.

    Options: ``hostname``, ``port``, ``username``, ``password``, ``database-name``, ``schema-name``, ``table-name``,
    ``slot.name``, ``publication.name``, ``decoding.plugin.name`` (pgoutput), ``changelog-mode``, ``scan.startup.mode``,
    ``scan.incremental.snapshot.enabled`` (true), ``scan.incremental.snapshot.chunk.size``, ``heartbeat.interval.ms``,
    ``properties.*`` of libpq.
    """

    name = "postgres-cdc"
    manner = (
        "hostname",
        "port",
        "username",
        "password",
        "scan.startup.mode",
        "scan.incremental.snapshot.chunk.size",
        "heartbeat.interval.ms",
        "properties.*",
    )
    is_bounded = False
    gives_changes = True
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables that are followed"
            raise ConfigurationError(message)
        options.choice("decoding.plugin.name", ("pgoutput",), "pgoutput")
        options.choice("scan.incremental.snapshot.enabled", ("true",), "true")
        self._mode = options.choice("changelog-mode", ("all", "upsert"), "all")
        self.gives_upserts = self._mode == "upsert"
        self._schema = schema
        self._arguments: dict[str, Any] = {
            "hostname": options.need("hostname"),
            "port": options.take("port", int, 5432),
            "username": options.need("username"),
            "password": options.need("password"),
            "database": options.need("database-name"),
            "schema_name": options.take("schema-name", str, "public"),
            "table": options.need("table-name"),
            "slot": options.need("slot.name"),
            "publication": options.take("publication.name"),
            "startup_mode": options.take("scan.startup.mode", str, "initial"),
            "chunk_size": options.take("scan.incremental.snapshot.chunk.size", int, 8_096),
            "heartbeat_interval": options.take("heartbeat.interval.ms", Options.duration, 30_000),
            "properties": options.take_all("properties."),
        }
        self._source(schema)

    def _source(self, schema: pa.Schema) -> PostgresCdcSource:
        return PostgresCdcSource(schema=schema, changelog_mode=self._mode, **self._arguments)  # type: ignore[arg-type]

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY: that of the table in the database.

        Raises:
            ConfigurationError: If upserts have none.
        """
        super().keyed_by(primary_key)
        if self.gives_upserts and not primary_key:
            message = "'changelog-mode' = 'upsert' needs a PRIMARY KEY, by which updates find their rows"
            raise ConfigurationError(message, hint="PRIMARY KEY (id) NOT ENFORCED")

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Follow the table; where updates find their rows by its key, that is read in any case."""
        needed = self.primary_key if self.gives_upserts else ()
        keys = [self._schema.field(name) for name in needed if name not in schema.names]
        source = self._source(pa.schema([*schema, *keys]))
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"postgres-cdc {self._arguments['table']}")
