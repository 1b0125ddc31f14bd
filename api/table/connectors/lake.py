"""Tables of Apache Iceberg, Delta Lake and Apache Hudi: ``'connector' = 'iceberg'``, ``'delta'`` and ``'hudi'``.

Source: the documentation of the formats' connectors for Flink (their options).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.delta import DeltaSink, DeltaSource
from ...connectors.hudi import HudiSource
from ...connectors.hudi.timeline import number_of
from ...connectors.iceberg import IcebergSink, IcebergSource
from .contract import Options, TableConnector
from .deletions import with_deletions

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["DeltaLakeTable", "HudiTable", "IcebergTable", "catalog_properties"]

_STARTS = {
    "TABLE_SCAN_THEN_INCREMENTAL": "full",
    "INCREMENTAL_FROM_LATEST_SNAPSHOT_EXCLUSIVE": "latest",
}
"""What Iceberg calls where following begins."""


class _ReadLakeTable(TableConnector):
    """What all have: rows are read."""

    makes_watermarks = True

    def __init__(self, reading: dict[str, Any]) -> None:
        self._reading = reading
        self.is_bounded = reading.get("follow") is None

    @abstractmethod
    def _source(self, schema: pa.Schema) -> Any:
        """Return the source."""

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the table, exactly once."""
        source = self._source(schema)
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"{self.name} {source.name}")

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Read a version of the table, where the program is."""
        if not self.is_bounded:
            msg = "be followed in batch mode"
            raise self._cannot(msg)
        return env.from_arrow(self._source(schema).read())


class _LakeTable(_ReadLakeTable):
    """What is written, too. Rows are added; with a PRIMARY KEY that counts, changes are applied by it."""

    def __init__(self, partitioned_by: tuple[str, ...], reading: dict[str, Any]) -> None:
        super().__init__(reading)
        self._partitioned_by = partitioned_by

    @abstractmethod
    def _sink(self, schema: pa.Schema, key: tuple[str, ...]) -> Any:
        """Return the sink."""

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write rows, exactly once: one commit for each checkpoint."""
        key = self.primary_key if self.takes_changes else ()
        if key:
            stream = with_deletions(stream, key, schema, only_last=True)
        stream.sink_to(self._sink(schema, key)).name(table)


class IcebergTable(_LakeTable):
    """A table of Iceberg, which is made when it is first written, if it is not there.

    Options: ``catalog-type``, ``uri``, ``warehouse`` and ``catalog.*`` (other properties of pyiceberg's catalogs),
    ``catalog-name``, ``catalog-database``, ``catalog-table``; ``streaming``, ``monitor-interval``,
    ``starting-strategy``, ``start-snapshot-id``, ``snapshot-id``, ``as-of-timestamp``, ``on-change``;
    ``write.upsert.enabled``.
    """

    name = "iceberg"
    manner = ("monitor-interval", "starting-strategy", "start-snapshot-id")

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._catalog = catalog_properties(options)
        self._table = f"{options.take('catalog-database', str, 'default')}.{options.need('catalog-table')}"
        self._upserts = options.take("write.upsert.enabled", Options.boolean, default=False)
        super().__init__(partitioned_by, _iceberg_reading(options))
        IcebergSource(self._table, catalog=self._catalog, **self._reading)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY."""
        super().keyed_by(primary_key)
        if self._upserts and not primary_key:
            message = "'write.upsert.enabled' needs a PRIMARY KEY, by which rows are found"
            raise ConfigurationError(message)
        self.takes_changes = self.applies_by_key = self._upserts

    def _source(self, schema: pa.Schema) -> IcebergSource:
        return IcebergSource(self._table, catalog=self._catalog, columns=schema, **self._reading)

    def _sink(self, schema: pa.Schema, key: tuple[str, ...]) -> IcebergSink:
        return IcebergSink(
            self._table, catalog=self._catalog, schema=schema, partition_by=self._partitioned_by, key=key
        )


class DeltaLakeTable(_LakeTable):
    """A table of Delta Lake, which is made when it is first written, if it is not there.

    Options: ``table-path``, ``storage.*`` (deltalake's storage options); ``mode`` (batch, streaming),
    ``updateCheckIntervalMillis``, ``startingVersion``, ``versionAsOf``, ``timestampAsOf``, ``on-change``.

    With a PRIMARY KEY changes are applied by it; without one rows are added.
    """

    name = "delta"
    manner = ("storage.*", "updateCheckIntervalMillis", "startingVersion")

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._path = options.need("table-path").removeprefix("file://")
        self._storage = options.take_all("storage.")
        super().__init__(partitioned_by, _delta_reading(options))
        DeltaSource(self._path, storage_options=self._storage, **self._reading)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY."""
        super().keyed_by(primary_key)
        self.takes_changes = self.applies_by_key = bool(primary_key)

    def _source(self, schema: pa.Schema) -> DeltaSource:
        return DeltaSource(self._path, columns=schema, storage_options=self._storage, **self._reading)

    def _sink(self, schema: pa.Schema, key: tuple[str, ...]) -> DeltaSink:
        return DeltaSink(
            self._path, schema=schema, partition_by=self._partitioned_by, key=key, storage_options=self._storage
        )


class HudiTable(_ReadLakeTable):
    """A table of Hudi, which is read.

    Options: ``path``, ``table.type``, ``storage.*`` (the library's storage options); ``read.streaming.enabled``,
    ``read.streaming.check-interval`` (seconds), ``read.start-commit``, ``on-change``.
    """

    name = "hudi"
    manner = ("storage.*", "read.streaming.check-interval")

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._path = options.need("path").removeprefix("file://")
        kind = options.take("table.type")
        super().__init__({
            **_hudi_reading(options), "storage_options": options.take_all("storage."), "table_type": kind,
        })  # fmt: skip
        HudiSource(self._path, **self._reading)

    def _source(self, schema: pa.Schema) -> HudiSource:
        return HudiSource(self._path, columns=schema, **self._reading)


def catalog_properties(options: Options) -> dict[str, str]:
    """Return the properties of an Iceberg catalog that options give."""
    given = {
        "name": options.take("catalog-name", str, "headrace"),
        "type": options.take("catalog-type"),
        "uri": options.take("uri"),
        "warehouse": options.take("warehouse"),
        **options.take_all("catalog."),
    }
    return {name: value for name, value in given.items() if value is not None}


def _iceberg_reading(options: Options) -> dict[str, Any]:
    follows = options.take("streaming", Options.boolean, default=False)
    interval = options.take("monitor-interval", Options.duration, 60_000)
    strategy = options.choice("starting-strategy", tuple(_STARTS), "TABLE_SCAN_THEN_INCREMENTAL")
    start = options.take("start-snapshot-id", int)
    as_of = options.take("as-of-timestamp", int)
    return {
        "follow": interval if follows else None,
        "start": _STARTS[strategy] if start is None else start,
        "version": options.take("snapshot-id", int),
        "as_of": None if as_of is None else pa.scalar(as_of, pa.timestamp("ms", "UTC")).as_py(),
        "on_change": options.choice("on-change", ("fail", "skip"), "fail"),
    }


def _delta_reading(options: Options) -> dict[str, Any]:
    follows = options.choice("mode", ("batch", "streaming"), "batch") == "streaming"
    interval = options.take("updateCheckIntervalMillis", int, 5_000)
    start = options.take("startingVersion", lambda text: "latest" if text == "latest" else int(text))
    return {
        "follow": interval if follows else None,
        # Delta's is the first that is read.
        "start": "full" if start is None else start if start == "latest" else start - 1,
        "version": options.take("versionAsOf", int),
        "as_of": options.take("timestampAsOf"),
        "on_change": options.choice("on-change", ("fail", "skip"), "fail"),
    }


def _hudi_reading(options: Options) -> dict[str, Any]:
    follows = options.take("read.streaming.enabled", Options.boolean, default=False)
    interval_s = options.take("read.streaming.check-interval", int, 60)
    start = options.take("read.start-commit", lambda text: text if text == "earliest" else number_of(str(int(text))))
    beginning = "latest" if follows else "full"
    return {
        "follow": interval_s * 1_000 if follows else None,
        # Hudi's is the first that is read.
        "start": beginning if start is None else "full" if start == "earliest" else start - 1,
        "on_change": options.choice("on-change", ("fail", "skip", "rows"), "fail"),
    }
