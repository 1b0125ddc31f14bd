"""Tables that are addresses of HTTP: ``'connector' = 'http'``, rows that only come.

Flink has no such connector; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.http import HttpEventSource, HttpLineSource, HttpPageSource, HttpSink
from ...connectors.http.page_reader import PAGE_METADATA
from ...connectors.http.stream_source import EVENT_METADATA, LINE_METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of
from .client_options import given, tls_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["HttpTable"]

_SOURCES: dict[str, Any] = {
    "pages": (HttpPageSource, PAGE_METADATA),
    "events": (HttpEventSource, EVENT_METADATA),
    "lines": (HttpLineSource, LINE_METADATA),
}


class HttpTable(TableConnector):
    """What addresses give, as rows; or where rows are posted.

    Options: ``url`` (several with blanks between), ``format``, ``json.ignore-parse-errors``, ``headers.*``,
    ``patience``, ``timeout``, ``tls.ca-file``, ``tls.certificate-file``, ``tls.key-file``, ``tls.key-password``; read
    ``scan.mode`` (pages, events, lines), ``scan.cursor``, ``scan.parameter``, ``scan.body``, ``scan.records``,
    ``scan.bounded``, ``scan.interval``, ``scan.events`` (several with semicolons between), ``scan.needs-ids``; written
    ``sink.delivery-guarantee`` (exactly-once, at-least-once), ``sink.framing``, ``sink.batch-size``, ``sink.method``,
    ``sink.key-header``.
    """

    name = "http"
    manner = ("patience", "timeout", "tls.*", "scan.interval", "sink.batch-size")
    makes_watermarks = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for addresses of HTTP"
            raise ConfigurationError(message)
        self._urls = options.need("url").split()
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw"))
        self._on_error = on_error_of(options)
        self._asks: dict[str, Any] = {
            "headers": options.take_all("headers."),
            "tls": tls_of(options),
            **given(patience=options.take("patience"), timeout=options.take("timeout")),
        }
        mode = options.choice("scan.mode", tuple(_SOURCES), "pages")
        self._make, known = _SOURCES[mode]
        self.metadata_types = {name: kind for name, (kind, _) in known.items()}
        self._scan = self._scan_of(options, mode)
        self.is_bounded = bool(self._scan.get("bounded", False))
        self._is_exact = (
            options.choice("sink.delivery-guarantee", ("exactly-once", "at-least-once"), "at-least-once")
            == "exactly-once"
        )
        self._writing = given(
            framing=options.take("sink.framing"),
            batch_size=options.take("sink.batch-size", int),
            method=options.take("sink.method"),
            key_header=options.take("sink.key-header"),
        )

    @staticmethod
    def _scan_of(options: Options, mode: str) -> dict[str, Any]:
        if mode == "events":
            kinds = options.take("scan.events", str, "")
            return {
                "events": [kind.strip() for kind in kinds.split(";") if kind.strip()],
                "needs_ids": options.take("scan.needs-ids", Options.boolean, default=True),
            }
        found = given(
            cursor=options.take("scan.cursor"),
            parameter=options.take("scan.parameter"),
            interval=options.take("scan.interval"),
            bounded=options.take("scan.bounded", Options.boolean),
        )
        if mode == "pages":
            found |= given(body=options.take("scan.body"), records=options.take("scan.records"))
        return found

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the addresses."""
        if self._make is HttpPageSource and "cursor" not in self._scan:
            message = "a table of pages needs option 'scan.cursor', which says where a page names the next one"
            raise ConfigurationError(message)
        source = self._make(
            self._urls,
            value=self._format,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
            **self._asks,
            **self._scan,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"http {', '.join(self._urls)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Post rows."""
        if len(self._urls) != 1:
            message = "rows are posted to one address; the table names another number of them"
            raise ConfigurationError(message)
        make = HttpSink.exactly_once if self._is_exact else HttpSink.at_least_once
        stream.sink_to(make(self._urls[0], value=self._format, **self._asks, **self._writing)).name(table)
