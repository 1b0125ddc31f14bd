"""Tables that are streams of WebSocket: ``'connector' = 'websocket'``, rows that only come.

Flink has no such connector; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.websocket import WebSocketSink, WebSocketSource
from ...connectors.websocket.source import WEBSOCKET_METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of
from .client_options import given, tls_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["WebSocketTable"]


class WebSocketTable(TableConnector):
    """What addresses send, as rows; or where rows are sent.

    Options: ``url`` (several with blanks between), ``format``, ``json.ignore-parse-errors``, ``headers.*``,
    ``subprotocols`` (several with blanks between), ``ping``, ``timeout``, ``patience``, ``max-message-size``,
    ``tls.ca-file``, ``tls.certificate-file``, ``tls.key-file``, ``tls.key-password``; read ``scan.cursor``,
    ``scan.parameter``, ``scan.subscribe``, ``scan.resume`` (several messages on a line each), ``scan.needs-cursors``,
    ``scan.bounded``; written ``sink.envelope``, ``sink.acknowledged-by``, ``sink.refused-by``, ``sink.opening``,
    ``sink.binary``.
    """

    name = "websocket"
    manner = ("ping", "timeout", "patience", "max-message-size", "tls.*")
    makes_watermarks = True
    metadata_types = {name: kind for name, (kind, _) in WEBSOCKET_METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for streams of WebSocket"
            raise ConfigurationError(message)
        self._urls = options.need("url").split()
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw"))
        self._on_error = on_error_of(options)
        self._asks: dict[str, Any] = {
            "headers": options.take_all("headers."),
            "subprotocols": options.take("subprotocols", str.split, ()),
            "tls": tls_of(options),
            **given(
                ping=options.take("ping"),
                timeout=options.take("timeout"),
                patience=options.take("patience"),
                max_bytes=options.take("max-message-size", Options.memory),
            ),
        }
        self._scan: dict[str, Any] = given(
            cursor=options.take("scan.cursor"),
            parameter=options.take("scan.parameter"),
            subscribe=options.take("scan.subscribe", _lines),
            resume=options.take("scan.resume", _lines),
            needs_cursors=options.take("scan.needs-cursors", Options.boolean),
            bounded=options.take("scan.bounded", Options.boolean),
        )
        self.is_bounded = bool(self._scan.get("bounded", False))
        self._writing: dict[str, Any] = given(
            envelope=options.take("sink.envelope"),
            acknowledged_by=options.take("sink.acknowledged-by"),
            refused_by=options.take("sink.refused-by"),
            opening=options.take("sink.opening", _lines),
            binary=options.take("sink.binary", Options.boolean),
        )

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the addresses."""
        source = WebSocketSource(
            self._urls,
            value=self._format,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
            **self._asks,
            **self._scan,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"websocket {', '.join(self._urls)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Send rows as messages."""
        if len(self._urls) != 1:
            message = "rows are sent to one address; the table names another number of them"
            raise ConfigurationError(message)
        sink = WebSocketSink(self._urls[0], value=self._format, **self._asks, **self._writing)
        stream.sink_to(sink).name(table)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
