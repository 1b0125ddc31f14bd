"""Streams of Amazon Kinesis as a source: exactly once.

A split is a shard, its position the sequence number of the last record that was read. Positions are part of
checkpoints, and only those count when a job goes on. A shard has one reader. Shards that came of others are read when
these have ended (`headrace.connectors.kinesis.shards`).

Source: Kinesis' ``ListShards``, ``GetRecords``; Flink's ``KinesisStreamsSource``; FLIP-27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.connectors.contract import EnumeratorContext, Source, SourceReader, SplitEnumerator
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT
from headrace.state.values.durations import parse_duration_ms

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, patience_s_of, since_ms_of
from ..messages.decoding import MessageDecoder, OnError
from .client import Stream
from .reader import METADATA, KinesisReader, Message, Pace
from .shards import Scan, ShardEnumerator

__all__ = ["KinesisSource"]

MOST_RECORDS = 10_000
"""In one answer of Kinesis."""


class KinesisSource(Source[OUT]):
    """Reads records of a stream; with ``metadata`` also what Kinesis says of them.

    Event times are when records arrived, about, unless the watermark strategy has an assigner.

    Args:
        stream: A name, or an ARN.
        value: How records are decoded, as `JsonMessages`; see `headrace.formats.messages`. Records that the Kinesis
            Producer Library has put into one are taken apart first.
        region: Of AWS; None for that of the ARN, or that of the surroundings (``AWS_REGION``, AWS's files).
        endpoint: A URL, where it is not that of the region.
        start: Where to begin when nothing is restored: ``earliest`` (Kinesis' TRIM_HORIZON), ``latest`` (what comes
            from now on), or ``timestamp:`` and epoch milliseconds, when records arrived. Shards that are found later
            begin with their first record.
        bounded: Whether the source ends with the records that are there when the job begins.
        metadata: Columns that are added to those of the value: ``timestamp``, ``shard_id``, ``sequence_number``,
            ``sub_sequence_number``, ``partition_key``. A mapping gives them other names.
        discovery_interval: How often to look for shards, beside those that a shard names when it ends: milliseconds or
            text; None never.
        on_error: What becomes of a record that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        on_expired: What to do where records were deleted before they were read, as the job was away for longer than
            the stream keeps them: ``fail``, or go on with the ``earliest`` there is, and say so in the job's history.
        patience: How long Kinesis may be away before the job fails: milliseconds or text.
        read_interval: How long after one request for a shard's records the next is made: milliseconds or text. Kinesis
            allows five a second, for all who read the shard.
        max_records_per_read: Most records of an answer.
        options: More settings of boto3's client, as ``aws_access_key_id`` and ``aws_secret_access_key``. Without these
            credentials are looked for as boto3 does.

    Guarantees: exactly once, as far as Kinesis keeps what was not read yet.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        stream: str,
        *,
        value: MessageFormat[OUT],
        region: str | None = None,
        endpoint: str | None = None,
        start: str = "earliest",
        bounded: bool = False,
        metadata: Sequence[str] | Mapping[str, str] = (),
        discovery_interval: int | str | None = "10 s",
        on_error: OnError = "fail",
        on_expired: Literal["fail", "earliest"] = "fail",
        patience: int | str = "1 min",
        read_interval: int | str = "200 ms",
        max_records_per_read: int = MOST_RECORDS,
        options: Mapping[str, Any] = {},
    ) -> None:
        if on_expired not in ("fail", "earliest"):
            message = f"on_expired must be fail or earliest; got {on_expired!r}"
            raise ConfigurationError(message)
        if isinstance(max_records_per_read, bool) or not 1 <= max_records_per_read <= MOST_RECORDS:
            message = f"max_records_per_read must be 1 to {MOST_RECORDS}; got {max_records_per_read!r}"
            raise ConfigurationError(message)
        interval_ms = None if discovery_interval is None or bounded else parse_duration_ms(discovery_interval)
        pause_ms = parse_duration_ms(read_interval)
        if pause_ms < 0 or (interval_ms is not None and interval_ms <= 0):
            message = "read_interval must not be negative, and discovery_interval must be positive"
            raise ConfigurationError(message)
        self.is_bounded = bounded
        self._stream = Stream(stream, region, endpoint, dict(options))
        self._scan = Scan(start == "latest", since_ms_of(start), bounded, interval_ms)
        self._pace = Pace(pause_ms / 1_000, max_records_per_read, patience_s_of(patience), on_expired)
        self._decoder = MessageDecoder[Message](
            value, lambda one: one.data, lambda one: one.place, METADATA, columns_of(metadata), on_error
        )

    def __repr__(self) -> str:
        return f"KinesisSource({self._stream.name!r})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what finds shards."""
        return ShardEnumerator(self._stream, self._scan, self._pace.patience_s)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return KinesisReader(self._stream, self._decoder, self._pace)
