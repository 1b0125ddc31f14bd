"""Tables that are topics of Pulsar: ``'connector' = 'pulsar'``, rows that only come.

Options are named as those of Flink's connector, as far as there is the same here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, nearest
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.pulsar import PulsarSink, PulsarSource
from ...connectors.pulsar.reader import METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["PulsarTable"]


class PulsarTable(TableConnector):
    """A topic whose messages are rows.

    Options: ``service-url``, ``topics`` (several with semicolons between), ``format``, ``key.fields`` (one column),
    ``source.subscription-name``, ``source.start.message-id`` (earliest, latest), ``source.start.publish-time``,
    ``source.stop.at-message-id`` (never, latest), ``json.ignore-parse-errors``.
    """

    name = "pulsar"
    manner = ("source.start.*",)
    makes_watermarks = True
    metadata_types = {name: kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for topics of Pulsar"
            raise ConfigurationError(message)
        self._url = options.need("service-url")
        self._topics = tuple(part.strip() for part in options.need("topics").split(";"))
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._key = options.take("key.fields")
        if self._key is not None and self._key not in schema.names:
            message = f"'key.fields' names column {self._key!r}, which the table has not"
            raise ConfigurationError(message, hint=nearest(self._key, schema.names) or "it is the name of one column")
        self._subscription = options.take("source.subscription-name")
        start = options.choice("source.start.message-id", ("earliest", "latest"), "earliest")
        time_ms = options.take("source.start.publish-time", int)
        if time_ms is not None and start == "latest":
            message = "'source.start.publish-time' and 'source.start.message-id' = 'latest' exclude each other"
            raise ConfigurationError(message)
        self._start = start if time_ms is None else f"timestamp:{time_ms}"
        self.is_bounded = options.choice("source.stop.at-message-id", ("never", "latest"), "never") == "latest"
        self._on_error = on_error_of(options)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the topics."""
        source = PulsarSource(
            self._url,
            self._topics,
            value=self._format,
            start=self._start,
            bounded=self.is_bounded,
            subscription=self._subscription,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"pulsar {', '.join(self._topics)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Send rows as messages, those of one key in their order."""
        if len(self._topics) != 1:
            message = "rows are written into one topic; the table names another number of them"
            raise ConfigurationError(message)
        if self._key is not None:
            stream = stream.key_by(self._key)
        sink = PulsarSink(self._url, self._topics[0], value=self._format, key=self._key)
        stream.sink_to(sink).name(table)
