"""Tables that are streams of Amazon Kinesis: ``'connector' = 'kinesis'``, rows that only come.

Options are named as those of Flink's connector, as far as there is the same here.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.kinesis import KinesisSink, KinesisSource
from ...connectors.kinesis.reader import METADATA
from ..connectors.contract import Options, TableConnector
from ..connectors.message_formats import format_of, on_error_of

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["KinesisTable"]

_STARTS = ("LATEST", "TRIM_HORIZON", "AT_TIMESTAMP")

_BATCHES = {
    "sink.batch.max-size": "max_batch_size",
    "sink.requests.max-inflight": "max_in_flight_requests",
    "sink.requests.max-buffered": "max_buffered_requests",
    "sink.flush-buffer.size": "max_batch_size_in_bytes",
    "sink.flush-buffer.timeout": "max_time_in_buffer",
}
"""Options that are numbers, and the arguments of `KinesisSink` that they are."""


class KinesisTable(TableConnector):
    """A stream whose records are rows.

    Options: ``stream.arn`` or ``stream``, ``format``, ``aws.region``, ``aws.endpoint``, ``aws.credentials.provider``
    (AUTO, BASIC), ``aws.credentials.basic.accesskeyid``, ``aws.credentials.basic.secretkey``,
    ``aws.trust.all.certificates``, ``source.init.position``, ``source.init.timestamp``,
    ``source.shard.discovery.interval``, ``source.reader.type`` (POLLING),
    ``source.shard.get-records.max-record-count``, ``source.on-expired``, ``scan.bounded.mode``,
    ``json.ignore-parse-errors``, ``sink.partitioner`` (random), ``sink.partitioner-field-delimiter``,
    ``sink.batch.max-size``, ``sink.requests.max-inflight``, ``sink.requests.max-buffered``,
    ``sink.flush-buffer.size``, ``sink.flush-buffer.timeout``. PARTITIONED BY names the columns of the partition key.
    """

    name = "kinesis"
    manner = (
        "aws.credentials.*",
        "aws.trust.all.certificates",
        "source.init.*",
        "source.shard.*",
        *_BATCHES,
    )
    makes_watermarks = True
    metadata_types = {name.replace("_", "-"): kind for name, (kind, _) in METADATA.items()}

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        arn, stream = options.take("stream.arn"), options.take("stream")
        if (arn is None) == (stream is None):
            message = "a table of Kinesis needs option 'stream.arn' or 'stream', and not both"
            raise ConfigurationError(message)
        self._stream = arn or stream
        self._format = format_of(options, schema, "format", None, ("json", "csv", "raw", "avro"))
        self._place = {
            "region": options.take("aws.region"),
            "endpoint": options.take("aws.endpoint"),
            "options": _credentials(options),
        }
        self.is_bounded = options.choice("scan.bounded.mode", ("unbounded", "latest"), "unbounded") == "latest"
        options.choice("source.reader.type", ("POLLING",), "POLLING")
        self._source: dict[str, Any] = {
            "start": _start(options),
            "bounded": self.is_bounded,
            "discovery_interval": options.take("source.shard.discovery.interval", str, "10 s"),
            "max_records_per_read": options.take("source.shard.get-records.max-record-count", int, 10_000),
            "on_expired": _on_expired(options),
            "on_error": on_error_of(options),
        }
        options.choice("sink.partitioner", ("random",), "random")
        self._sink: dict[str, Any] = {
            "partition_key": partitioned_by or None,
            "delimiter": options.take("sink.partitioner-field-delimiter", str, "|"),
        }
        for option, argument in _BATCHES.items():
            if (number := options.take(option, int)) is not None:
                self._sink[argument] = number
        # What is wrong in them is said now.
        KinesisSource(self._stream, value=self._format, **self._place, **self._source)
        KinesisSink(self._stream, value=self._format, **self._place, **self._sink)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the stream."""
        metadata = {column: name.replace("-", "_") for column, name in self.metadata.items() if column in schema.names}
        source = KinesisSource(self._stream, value=self._format, metadata=metadata, **self._place, **self._source)
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"kinesis {self._stream}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Put rows into the stream."""
        sink = KinesisSink(self._stream, value=self._format, **self._place, **self._sink)
        stream.sink_to(sink).name(table)


def _credentials(options: Options) -> dict[str, Any]:
    """Settings of boto3's client."""
    key, secret = options.take("aws.credentials.basic.accesskeyid"), options.take("aws.credentials.basic.secretkey")
    provider = options.choice("aws.credentials.provider", ("AUTO", "BASIC"), "AUTO")
    if (provider == "BASIC") != (key is not None) or (key is None) != (secret is None):
        message = (
            "'aws.credentials.provider' = 'BASIC', 'aws.credentials.basic.accesskeyid' and"
            " 'aws.credentials.basic.secretkey' need each other"
        )
        raise ConfigurationError(message)
    settings = {} if key is None else {"aws_access_key_id": key, "aws_secret_access_key": secret}
    trusts_all = options.take("aws.trust.all.certificates", Options.boolean, default=False)
    return {**settings, "verify": False} if trusts_all else settings


def _start(options: Options) -> str:
    """Where to begin, as `KinesisSource` says it."""
    position = options.choice("source.init.position", _STARTS, "LATEST")
    text = options.take("source.init.timestamp")
    if (position == "AT_TIMESTAMP") != (text is not None):
        message = "'source.init.position' = 'AT_TIMESTAMP' and 'source.init.timestamp' need each other"
        raise ConfigurationError(message)
    if text is None:
        return "latest" if position == "LATEST" else "earliest"
    try:
        return f"timestamp:{round(_seconds_of(text) * 1_000)}"
    except (ValueError, OverflowError) as error:
        message = f"'source.init.timestamp' is a time as 2016-04-04T19:58:46.480-00:00, or seconds; got {text!r}"
        raise ConfigurationError(message) from error


def _seconds_of(text: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    if time.tzinfo is None:
        raise ValueError(text)
    return time.timestamp()


def _on_expired(options: Options) -> Literal["fail", "earliest"]:
    is_lenient = options.choice("source.on-expired", ("fail", "TRIM_HORIZON"), "fail") == "TRIM_HORIZON"
    return "earliest" if is_lenient else "fail"
