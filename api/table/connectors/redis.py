"""Tables in Redis: ``'connector' = 'redis'``, a stream of rows that only come, or rows by PRIMARY KEY.

Flink has no such connector; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.redis import RedisHashes, RedisSink, RedisStream, RedisStreamSource, RedisStrings
from ...connectors.redis.reader import METADATA
from ...connectors.redis.targets import RedisTarget
from .contract import Options, TableConnector
from .deletions import DELETED, with_deletions
from .message_formats import format_of, on_error_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["RedisTable"]


class RedisTable(TableConnector):
    """A stream whose entries are rows, or a row for each PRIMARY KEY.

    Options: ``url``; of a stream ``stream`` (several with semicolons between), ``format``, ``field``,
    ``scan.startup.mode`` (earliest, latest, id), ``scan.startup.id``, ``scan.bounded.mode`` (unbounded, latest),
    ``json.ignore-parse-errors``, ``sink.max-length``; of rows by key ``prefix``, ``type`` (hash; string, with
    ``format``); of both ``sink.delivery-guarantee``.
    """

    name = "redis"
    manner = ("scan.startup.*", "sink.max-length")
    makes_watermarks = True
    metadata_types = {name: kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables in Redis"
            raise ConfigurationError(message)
        self._url = options.need("url")
        streams, prefix = options.take("stream"), options.take("prefix")
        if (streams is None) == (prefix is None):
            message = "a table in Redis is a 'stream', or rows by PRIMARY KEY below a 'prefix': one of the two"
            raise ConfigurationError(message)
        guarantee = options.choice("sink.delivery-guarantee", ("at-least-once", "exactly-once"), "at-least-once")
        self._make = RedisSink.exactly_once if guarantee == "exactly-once" else RedisSink.at_least_once
        self._streams = tuple(part.strip() for part in streams.split(";")) if streams else ()
        self._prefix = prefix
        if prefix is None:
            self._of_stream(options, schema)
            return
        self.takes_changes = self.applies_by_key = True
        self.is_bounded = False
        self._is_hash = options.choice("type", ("hash", "string"), "hash") == "hash"
        self._format = None if self._is_hash else format_of(options, schema, "format", None, ("json", "csv", "avro"))

    def _of_stream(self, options: Options, schema: pa.Schema) -> None:
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._field = options.take("field", str, "value")
        mode = options.choice("scan.startup.mode", ("earliest", "latest", "id"), "earliest")
        given = options.take("scan.startup.id")
        if (mode == "id") != (given is not None):
            message = "'scan.startup.mode' = 'id' and 'scan.startup.id' need each other"
            raise ConfigurationError(message)
        self._start = given or mode
        self.is_bounded = options.choice("scan.bounded.mode", ("unbounded", "latest"), "unbounded") == "latest"
        self._on_error = on_error_of(options)
        self._max_length = options.take("sink.max-length", int)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY."""
        super().keyed_by(primary_key)
        if (self._prefix is not None) != bool(primary_key):
            message = "in Redis rows below a 'prefix' have a PRIMARY KEY, and those of a 'stream' have none"
            raise ConfigurationError(message)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the streams."""
        if not self._streams:
            what = "be read: rows by key are written only"
            raise self._cannot(what)
        assert self._format is not None
        source = RedisStreamSource(
            self._url,
            self._streams,
            value=self._format,
            field=self._field,
            start=self._start,
            bounded=self.is_bounded,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"redis {', '.join(self._streams)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Add rows to the stream, or write the last change of each key in a batch."""
        if self._prefix is not None:
            stream = with_deletions(stream, self.primary_key, schema, only_last=True)
        elif len(self._streams) != 1:
            message = "rows are written into one stream; the table names another number of them"
            raise ConfigurationError(message)
        stream.sink_to(self._make(self._url, self._target())).name(table)

    def _target(self) -> RedisTarget:
        if self._prefix is None:
            assert self._format is not None
            return RedisStream(self._streams[0], self._format, self._field, self._max_length)
        if self._is_hash:
            return RedisHashes(self._prefix, self.primary_key, DELETED)
        return RedisStrings(self._prefix, self.primary_key, DELETED, value=self._format)
