"""Tables that are topics of MQTT: ``'connector' = 'mqtt'``, rows that only come.

Flink has no such connector in SQL; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.mqtt import MqttSink, MqttSource
from ...connectors.mqtt.reader import METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of
from .client_options import tls_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["MqttTable"]


class MqttTable(TableConnector):
    """Topics whose messages are rows.

    Options: ``url``, ``topic`` (several filters with semicolons between; written to, a topic with columns in braces),
    ``format``, ``json.ignore-parse-errors``, ``tls.ca-file``, ``tls.certificate-file``, ``tls.key-file``,
    ``tls.key-password``; read ``client-id``, ``scan.consumers``, ``scan.deduplicate-by``, ``scan.receive-maximum``,
    ``scan.session-expiry``, ``scan.on-session-lost`` (fail, warn), ``scan.retained``, ``scan.drops-topic``; written
    ``sink.qos``, ``sink.retain``, ``sink.properties.*``.
    """

    name = "mqtt"
    manner = ("tls.*", "scan.receive-maximum")
    makes_watermarks = True
    is_bounded = False
    metadata_types = {name: kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for topics of MQTT"
            raise ConfigurationError(message)
        self._url = options.need("url")
        self._topics = tuple(part.strip() for part in options.need("topic").split(";"))
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._on_error = on_error_of(options)
        self._client_id = options.take("client-id")
        self._tls = tls_of(options)
        self._scan: dict[str, Any] = {
            "consumers": options.take("scan.consumers", int, 1),
            "deduplicate_by": options.take("scan.deduplicate-by"),
            "receive_maximum": options.take("scan.receive-maximum", int, 10_000),
            "session_expiry": options.take("scan.session-expiry", Options.duration, 86_400_000),
            "on_session_lost": options.choice("scan.on-session-lost", ("fail", "warn"), "fail"),
            "retained": options.take("scan.retained", Options.boolean, default=True),
            "drops_topic": options.take("scan.drops-topic"),
        }
        self._qos = options.take("sink.qos", int, 1)
        self._retain = options.take("sink.retain", Options.boolean, default=False)
        self._properties = options.take_all("sink.properties.")

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the topics."""
        if self._client_id is None:
            message = "a table of MQTT that is read needs option 'client-id': the broker keeps its sessions under that"
            raise ConfigurationError(message)
        source = MqttSource(
            self._url,
            self._topics,
            value=self._format,
            client_id=self._client_id,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
            tls=self._tls,
            **self._scan,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"mqtt {', '.join(self._topics)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Send rows as messages."""
        if len(self._topics) != 1:
            message = "rows are written to one topic, which may be made of columns; the table names several"
            raise ConfigurationError(message)
        sink = MqttSink(
            self._url,
            self._topics[0],
            value=self._format,
            qos=self._qos,
            retain=self._retain,
            properties=self._properties,
            tls=self._tls,
        )
        stream.sink_to(sink).name(table)
