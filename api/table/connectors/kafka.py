"""Tables that are topics of Kafka: ``'connector' = 'kafka'`` for rows that only come, ``'upsert-kafka'`` for tables.

Source: Flink's documentation ("Apache Kafka SQL Connector", "Upsert Kafka SQL Connector").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.kafka import KafkaOffsets, KafkaSink, KafkaSource
from ...connectors.kafka.reader import METADATA
from ...formats.messages import CsvMessages, MessageFormat
from .changelog import ChangelogColumns, behind
from .contract import Options, TableConnector
from .deletions import DELETED, with_deletions
from .message_formats import FORMATS, KIND_COLUMN, OF_CHANGES, format_named, format_of, on_error_of, raw_format

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["KafkaTable", "UpsertKafkaTable"]

_STARTS = ("group-offsets", "earliest-offset", "latest-offset", "timestamp", "specific-offsets")
_ENDS = ("unbounded", "group-offsets", "latest-offset", "timestamp", "specific-offsets")
# Where schemas are, and who asks for them.
_REGISTRIES = tuple(
    f"{prefix}{name}.{option}"
    for prefix in ("", "key.", "value.")
    for name in ("avro-confluent", "protobuf-confluent")
    for option in ("url", "basic-auth.*", "properties.*")
)
_OFFSET = re.compile(r"partition:([0-9]+),offset:([0-9]+)")


@dataclass(frozen=True)
class _Delivery:
    """How rows are written: exactly once under a prefix of transactional ids, or at least once.

    Attributes:
        prefix: None for at least once.
        staging: Where rows wait for their checkpoint; see `KafkaSink.exactly_once`.
        timeout_ms: How long a transaction may be open; None for the default.
        on_newer: What happens if rows are written behind the checkpoint that is restored.
    """

    prefix: str | None
    staging: Literal["checkpoint", "transaction"]
    timeout_ms: int | None
    on_newer: Literal["error", "keep"]

    @classmethod
    def of(cls, options: Options) -> _Delivery:
        guarantee = options.choice("sink.delivery-guarantee", ("at-least-once", "exactly-once"), "at-least-once")
        prefix = options.take("sink.transactional-id-prefix")
        if (guarantee == "exactly-once") != (prefix is not None):
            message = "'sink.delivery-guarantee' = 'exactly-once' and 'sink.transactional-id-prefix' need each other"
            raise ConfigurationError(message)
        staging = options.choice("sink.staging", ("checkpoint", "transaction"), "checkpoint")
        timeout_ms = options.take("properties.transaction.timeout.ms", int)
        keeps_newer = options.choice("sink.on-newer-output", ("error", "keep"), "error") == "keep"
        if prefix is None and (staging == "transaction" or timeout_ms is not None or keeps_newer):
            message = "there are transactions with 'sink.delivery-guarantee' = 'exactly-once' only"
            raise ConfigurationError(message)
        on_newer: Literal["error", "keep"] = "keep" if keeps_newer else "error"
        return cls(prefix, "transaction" if staging == "transaction" else "checkpoint", timeout_ms, on_newer)

    def sink(self, servers: str, topic: str, **arguments: Any) -> KafkaSink:
        if self.prefix is None:
            return KafkaSink.at_least_once(servers, topic, **arguments)
        return KafkaSink.exactly_once(
            servers, topic, transactional_id_prefix=self.prefix, staging=self.staging,
            transaction_timeout=self.timeout_ms, on_newer_output=self.on_newer, **arguments,
        )  # fmt: skip


class _Topics(TableConnector):
    """What both kinds of tables have.

    Options of a registry of schemas, behind the name of a format: ``.url``, ``.subject``, ``.basic-auth.user-info``,
    ``.properties.*``.
    """

    metadata_types = {name: METADATA[name][0] for name in ("topic", "partition", "offset", "timestamp")}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for topics of Kafka, which have partitions of their own"
            raise ConfigurationError(message)
        self._delivery = _Delivery.of(options)
        properties = options.take_all("properties.")
        self._servers = properties.pop("bootstrap.servers", "")
        if not self._servers:
            message = "a table of Kafka needs option 'properties.bootstrap.servers'"
            raise ConfigurationError(message)
        self._group_id = properties.pop("group.id", None)
        self._properties = properties
        self._schema = schema

    def _read_metadata(self, wanted: pa.Schema) -> dict[str, str]:
        return {column: name for column, name in self.metadata.items() if column in wanted.names}


class KafkaTable(_Topics):
    """A topic, or several, whose records are rows.

    Options: ``topic``, ``topic-pattern``, ``properties.bootstrap.servers``, ``properties.group.id`` and others of the
    client, ``format`` (json, csv, raw, avro, avro-confluent with ``avro-confluent.url``, ``.subject``,
    ``.basic-auth.user-info``, ``.properties.*``; protobuf, protobuf-confluent with ``.message-class-name``,
    ``.read-default-values`` and what avro-confluent has; debezium-json, whose messages say what becomes of rows),
    ``key.fields``, ``scan.startup.*``, ``scan.bounded.*``, ``scan.topic-partition-discovery.interval``,
    ``json.ignore-parse-errors``, ``csv.ignore-parse-errors``, ``debezium-json.ignore-parse-errors``,
    ``debezium-json.schema-include``, ``csv.field-delimiter``, ``sink.delivery-guarantee``,
    ``sink.transactional-id-prefix``, ``sink.staging``, ``sink.on-newer-output``.
    """

    name = "kafka"
    manner = ("properties.*", "scan.topic-partition-discovery.interval", "scan.startup.*", *_REGISTRIES)
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        super().__init__(options, schema, partitioned_by)
        topics = options.take("topic")
        self._topics = tuple(part.strip() for part in topics.split(";")) if topics else ()
        self._pattern = options.take("topic-pattern")
        subject = f"{self._topics[0]}-value" if len(self._topics) == 1 else None
        self._format = format_of(options, schema, "format", subject, (*FORMATS, OF_CHANGES))
        self.gives_changes = self.takes_changes = self._format.gives_changes
        self._key = tuple(part for part in options.take("key.fields", str, "").split(";") if part)
        for name in self._key:
            if name not in schema.names:
                message = f"'key.fields' names column {name!r}, which the table has not"
                raise ConfigurationError(message)
        self._start = _offsets(options, "scan.startup", _STARTS, "group-offsets", self._topics)
        self._stop = _offsets(options, "scan.bounded", _ENDS, "unbounded", self._topics)
        self.is_bounded = self._stop is not None
        self._discovery = options.take("scan.topic-partition-discovery.interval", Options.duration, 300_000)
        # A format without such an option of its own (Avro, raw) has that of JSON.
        name = OF_CHANGES if self._format.gives_changes else "csv" if isinstance(self._format, CsvMessages) else "json"
        self._skipping = f"{name}.ignore-parse-errors"
        self._on_error = on_error_of(options, name)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the topics."""
        assert self._start is not None
        if self._start.kind == "committed" and self._group_id is None:
            message = "reading begins where the table's group has committed, and it has no 'properties.group.id'"
            raise ConfigurationError(message, hint="or set 'scan.startup.mode' = 'earliest-offset'")
        source = KafkaSource(
            self._servers,
            self._topics,
            value=self._format,
            topic_pattern=self._pattern,
            start=self._start,
            stop=self._stop,
            group_id=self._group_id,
            metadata=self._read_metadata(schema),
            discovery_interval=self._discovery or None,
            on_error=self._on_error,
            properties=self._properties,
            advice=f"'{self._skipping}' = 'true' goes on without such records, and counts them",
        )
        name = f"kafka {', '.join(self._topics) or self._pattern}"
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), name)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write rows, or changes, as records."""
        if len(self._topics) != 1:
            message = "rows are written into one topic; the table names another number of them"
            raise ConfigurationError(message)
        if self._format.gives_changes:
            columns = pa.schema([pa.field(KIND_COLUMN, pa.string()), *schema])
            stream = behind(stream, ChangelogColumns(KIND_COLUMN), "changes as messages", columns)
        if self._key:
            stream = stream.key_by(*self._key)
        sink = self._delivery.sink(
            self._servers, self._topics[0], value=self._format, key=self._key, properties=self._properties
        )
        stream.sink_to(sink).name(table)


class UpsertKafkaTable(_Topics):
    """A topic in which the last record of a key is its row, and one without a value deletes it.

    It is read from its beginning, or there would be rows that nobody knows of. What rows replace is found out by the
    query, which keeps the last row of each key.

    Options: ``topic``, ``properties.*``, ``value.format``, ``key.format`` (raw of one column; others with their options
    behind ``key.``, as ``key.avro-confluent.url``, ``key.csv.field-delimiter``),
    ``scan.bounded.*``, ``scan.topic-partition-discovery.interval``, ``sink.delivery-guarantee``,
    ``sink.transactional-id-prefix``, ``sink.staging``, ``sink.on-newer-output``.
    """

    name = "upsert-kafka"
    manner = ("properties.*", "scan.topic-partition-discovery.interval", *_REGISTRIES)
    gives_changes = True
    gives_upserts = True
    takes_changes = True
    applies_by_key = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        super().__init__(options, schema, partitioned_by)
        self._topic = options.need("topic")
        self._format = format_of(options, schema, "value.format", f"{self._topic}-value")
        self._options = options
        self._key_format: MessageFormat | None = None
        self._stop = _offsets(options, "scan.bounded", _ENDS, "unbounded", (self._topic,))
        self.is_bounded = self._stop is not None
        self._discovery = options.take("scan.topic-partition-discovery.interval", Options.duration, 300_000)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY."""
        super().keyed_by(primary_key)
        if not primary_key:
            message = "a table of upsert-kafka needs a PRIMARY KEY, which is the key of its records"
            raise ConfigurationError(message)
        name = self._options.choice("key.format", FORMATS)
        if name != "raw":
            fields = pa.schema([self._schema.field(column) for column in primary_key])
            self._key_format = format_named(name, self._options, fields, "key.format", f"{self._topic}-key")
        elif len(primary_key) > 1:
            message = "'key.format' = 'raw' is for a key of one column"
            raise ConfigurationError(message, hint="'json' is for several")

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the topic: the new row of a key, or that it has none any more."""
        fields = pa.schema([self._schema.field(name) for name in self.primary_key])
        source = KafkaSource(
            self._servers,
            self._topic,
            value=self._format,
            key=self._key_format or raw_format(fields, "'key.format' = 'raw'"),
            stop=self._stop,
            group_id=self._group_id,
            metadata=self._read_metadata(schema),
            deletions=True,
            discovery_interval=self._discovery or None,
            properties=self._properties,
            advice="a record that is left out would leave an old row; write a new record for its key",
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"upsert-kafka {self._topic}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write the last change of each key in a batch; keys keep their order."""
        sink = self._delivery.sink(
            self._servers, self._topic, value=self._format, key=self.primary_key, delete_column=DELETED,
            key_format=self._key_format, properties=self._properties,
        )  # fmt: skip
        with_deletions(stream, self.primary_key, schema, only_last=True).sink_to(sink).name(table)


def _offsets(
    options: Options, prefix: str, modes: tuple[str, ...], default: str, topics: tuple[str, ...]
) -> KafkaOffsets | None:
    """Where reading begins, or ends; None for never."""
    mode = options.choice(f"{prefix}.mode", modes, default)
    time_ms = options.take(f"{prefix}.timestamp-millis", int)
    given = options.take(f"{prefix}.specific-offsets")
    if (mode == "timestamp") != (time_ms is not None) or (mode == "specific-offsets") != (given is not None):
        message = f"'{prefix}.timestamp-millis' and '{prefix}.specific-offsets' are for the modes of their names"
        raise ConfigurationError(message)
    if mode == "unbounded":
        return None
    if mode == "timestamp":
        return KafkaOffsets.timestamp(time_ms)
    if mode == "specific-offsets":
        if len(topics) != 1:
            message = f"'{prefix}.specific-offsets' are of one topic"
            raise ConfigurationError(message)
        found = [_OFFSET.fullmatch(part.strip()) for part in given.split(";")]
        if not all(found):
            message = f"'{prefix}.specific-offsets' are written as partition:0,offset:42;partition:1,offset:300"
            raise ConfigurationError(message)
        return KafkaOffsets.of({(topics[0], int(one[1])): int(one[2]) for one in found if one})
    simple = {"earliest-offset": KafkaOffsets.earliest, "latest-offset": KafkaOffsets.latest}
    return KafkaOffsets.committed() if mode == "group-offsets" else simple[mode]()
