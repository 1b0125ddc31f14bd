"""Tables that are streams or queues of RabbitMQ: ``'connector' = 'rabbitmq'``, rows that only come.

Flink has no such connector in SQL; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.rabbitmq import RabbitQueueSink, RabbitQueueSource, RabbitStreamSink, RabbitStreamSource
from ...connectors.rabbitmq.queues.reader import METADATA as OF_QUEUES
from ...connectors.rabbitmq.streams.reader import METADATA as OF_STREAMS
from .contract import Options, TableConnector
from .message_formats import format_of, on_error_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["RabbitmqTable"]

_STARTS = ("first", "next", "offset", "timestamp")
_IDS = {"correlation-id": "correlation_id", "message-id": "message_id", "none": None}


class RabbitmqTable(TableConnector):
    """A stream or a queue whose messages are rows.

    Options: ``url``, ``stream`` or ``queue`` (several with semicolons between), ``format``,
    ``json.ignore-parse-errors``; of streams ``scan.startup.mode``, ``scan.startup.offset``,
    ``scan.startup.timestamp-millis``, ``scan.bounded.mode``; of queues ``scan.deduplicate-by``, ``scan.prefetch``,
    ``sink.correlation-id``.
    """

    name = "rabbitmq"
    manner = ("scan.startup.*", "scan.prefetch")
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for streams and queues of RabbitMQ"
            raise ConfigurationError(message)
        self._url = options.need("url")
        streams, queues = options.take("stream"), options.take("queue")
        if (streams is None) == (queues is None):
            message = "a table of RabbitMQ is a 'stream' or a 'queue': one of the two"
            raise ConfigurationError(message)
        self._is_stream = streams is not None
        self._names = tuple(part.strip() for part in (streams or queues or "").split(";"))
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._on_error = on_error_of(options)
        self.metadata_types = {name: kind for name, (kind, _) in (OF_STREAMS if streams else OF_QUEUES).items()}
        self.is_bounded = False
        self._scan = self._of_stream(options) if self._is_stream else self._of_queue(options)

    def _of_stream(self, options: Options) -> dict[str, Any]:
        mode = options.choice("scan.startup.mode", _STARTS, "first")
        offset = options.take("scan.startup.offset", int)
        time_ms = options.take("scan.startup.timestamp-millis", int)
        if (mode == "offset") != (offset is not None) or (mode == "timestamp") != (time_ms is not None):
            message = "'scan.startup.offset' and 'scan.startup.timestamp-millis' are for the modes of their names"
            raise ConfigurationError(message)
        start = offset if mode == "offset" else f"timestamp:{time_ms}" if mode == "timestamp" else mode
        self.is_bounded = options.choice("scan.bounded.mode", ("unbounded", "latest"), "unbounded") == "latest"
        return {"start": start, "bounded": self.is_bounded}

    def _of_queue(self, options: Options) -> dict[str, Any]:
        wanted = options.choice("scan.deduplicate-by", tuple(_IDS), "correlation-id")
        self._correlation_id = options.take("sink.correlation-id")
        return {"deduplicate_by": _IDS[wanted], "prefetch": options.take("scan.prefetch", int, 10_000)}

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the streams, or queues."""
        make: Any = RabbitStreamSource if self._is_stream else RabbitQueueSource
        metadata = {column: name for column, name in self.metadata.items() if column in schema.names}
        source = make(
            self._url, self._names, value=self._format, metadata=metadata, on_error=self._on_error, **self._scan
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"rabbitmq {', '.join(self._names)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Send rows as messages."""
        if len(self._names) != 1:
            message = "rows are written into one stream or queue; the table names another number of them"
            raise ConfigurationError(message)
        (name,) = self._names
        sink: Any
        if self._is_stream:
            sink = RabbitStreamSink(self._url, name, value=self._format)
        else:
            sink = RabbitQueueSink(self._url, name, value=self._format, correlation_id=self._correlation_id)
        stream.sink_to(sink).name(table)
