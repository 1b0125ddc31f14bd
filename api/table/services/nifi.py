"""Tables that are ports of NiFi: ``'connector' = 'nifi'``, rows that only come; a flow file is a row.

Flink has no such connector in SQL; options are named as those of its others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.nifi import NiFiSink, NiFiSource
from ...connectors.nifi.reader import METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of
from .client_options import tls_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["NiFiTable"]


class NiFiTable(TableConnector):
    """Ports whose flow files are rows: output ports when it is read, an input port when it is written.

    Options: ``url``, ``port`` (several output ports with semicolons between), ``format`` (json, csv, raw, avro),
    ``json.ignore-parse-errors``, ``tls.ca-file``, ``tls.certificate-file``, ``tls.key-file``, ``tls.key-password``;
    read ``scan.deduplicate``, ``scan.prefetch``, ``scan.remember``; written ``sink.attributes`` (columns with
    semicolons between).
    """

    name = "nifi"
    manner = ("scan.prefetch", "tls.*")
    makes_watermarks = True
    is_bounded = False
    metadata_types = {name: kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for ports of NiFi"
            raise ConfigurationError(message)
        self._url = options.need("url")
        self._ports = tuple(part.strip() for part in options.need("port").split(";"))
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._on_error = on_error_of(options)
        self._tls = tls_of(options)
        self._scan: dict[str, Any] = {
            "deduplicate": options.take("scan.deduplicate", Options.boolean, default=True),
            "prefetch": options.take("scan.prefetch", int, 10_000),
            "remember": options.take("scan.remember", Options.duration, 600_000),
        }
        attributes = options.take("sink.attributes")
        self._attributes = () if attributes is None else tuple(part.strip() for part in attributes.split(";"))

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the output ports."""
        source = NiFiSource(
            self._url,
            self._ports,
            value=self._format,
            metadata={column: name for column, name in self.metadata.items() if column in schema.names},
            on_error=self._on_error,
            tls=self._tls,
            **self._scan,
        )
        strategy = watermarks or WatermarkStrategy.no_watermarks()
        return env.from_source(source, strategy, f"nifi {', '.join(self._ports)}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Send rows as flow files."""
        if len(self._ports) != 1:
            message = "rows are written to one input port; the table names several"
            raise ConfigurationError(message)
        sink = NiFiSink(self._url, self._ports[0], value=self._format, attributes=self._attributes, tls=self._tls)
        stream.sink_to(sink).name(table)
