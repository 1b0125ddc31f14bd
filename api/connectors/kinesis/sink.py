"""Streams of Amazon Kinesis as a sink: at least once.

Records wait in the sink and in checkpoints until Kinesis has said of each that it has it (`AsyncSink`). Of a request
Kinesis may take some records and turn others away; those are sent again, alone, behind what was taken.

Source: Kinesis' ``PutRecords``; Flink's ``KinesisStreamsSink``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.async_sinks import AsyncSink, AsyncSinkWriter
from headrace.engine.errors import ConfigurationError, ProgramError, SinkError
from headrace.state.values.sharing import shown

from ...formats.messages import MessageFormat, require_format
from ..messages.arguments import patience_s_of
from .client import TIMEOUT_S, Stream, StreamError, kind_of

__all__ = ["KinesisSink"]

MOST_ENTRIES, MOST_BYTES = 500, 5 << 20
"""Of a request."""

RECORD_BYTES, MOST_RECORD_BYTES = 1 << 20, 10 << 20
"""A record and its key: by default, and what a stream may be made to take."""

MOST_KEY_CHARACTERS = 256

Entry = tuple[str, bytes]
"""Partition key, and data."""


class KinesisSink(AsyncSink):
    """Puts records into a stream.

    Args:
        stream: A name, or an ARN.
        value: How records are encoded, as `JsonMessages`; see `headrace.formats.messages`.
        partition_key: What says which shard a record goes to: a field, several, with `delimiter` between, or a function
            of the record that gives a text. None: shards at random.
        delimiter: What stands between several fields.
        region: Of AWS; as for `KinesisSource`.
        endpoint: A URL, where it is not that of the region.
        ordered: Whether records of a subtask are sent one request after the other, and what was behind one that was
            turned away is sent again behind it.
        max_record_bytes: A record larger than that, with its key, fails the job. A stream takes 1 MiB, or up to 10 MiB
            if it was set up so.
        max_batch_size: Most records of a request, up to 500.
        max_in_flight_requests: Most requests of a subtask at once.
        max_buffered_requests: With so many records waiting no more are taken.
        max_batch_size_in_bytes: Of a request; a larger record goes alone.
        max_time_in_buffer: How long a record waits for others: milliseconds or text.
        patience: How long Kinesis may take nothing at all before the job fails: milliseconds or text.
        options: More settings of boto3's client; as for `KinesisSource`.

    Guarantees: at least once. After a failure, and where an answer got lost, records are there twice.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        stream: str,
        *,
        value: MessageFormat,
        partition_key: str | Sequence[str] | Callable[[Any], str] | None = None,
        delimiter: str = "|",
        region: str | None = None,
        endpoint: str | None = None,
        ordered: bool = False,
        max_record_bytes: int = RECORD_BYTES,
        max_batch_size: int = MOST_ENTRIES,
        max_in_flight_requests: int = 16,
        max_buffered_requests: int = 10_000,
        max_batch_size_in_bytes: int = MOST_BYTES,
        max_time_in_buffer: int | str = "1 s",
        patience: int | str = "1 min",
        options: Mapping[str, Any] = {},
    ) -> None:
        for name, number, most in (
            ("max_batch_size", max_batch_size, MOST_ENTRIES),
            ("max_record_bytes", max_record_bytes, MOST_RECORD_BYTES),
            ("max_batch_size_in_bytes", max_batch_size_in_bytes, MOST_RECORD_BYTES),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                message = f"{name} must be 1 to {most}; got {number!r}"
                raise ConfigurationError(message)
        super().__init__(
            element_converter=KinesisRecords(stream, value, partition_key, delimiter, max_record_bytes),
            max_batch_size=max_batch_size,
            max_in_flight_requests=max_in_flight_requests,
            max_buffered_requests=max_buffered_requests,
            max_batch_size_in_bytes=max(max_batch_size_in_bytes, max_record_bytes),
            max_record_size_in_bytes=max_record_bytes,
            max_time_in_buffer_ms=max_time_in_buffer,
            # The client gives a request up before, so that no thread is held for nothing.
            request_timeout_ms=3_000 * TIMEOUT_S,
            ordered=ordered,
        )
        self._stream = Stream(stream, region, endpoint, dict(options))
        self._patience_s = patience_s_of(patience)

    def __repr__(self) -> str:
        return f"KinesisSink({self._stream.name!r})"

    def create_writer(self) -> AsyncSinkWriter:
        """Make the writer of one subtask."""
        return _Writer(self._stream, self._patience_s)


@dataclass(frozen=True)
class KinesisRecords:
    """Makes entries of records."""

    stream: str
    value: MessageFormat
    key: str | Sequence[str] | Callable[[Any], str] | None
    delimiter: str
    most_bytes: int

    def __post_init__(self) -> None:
        require_format(self.value)
        key = self.key
        if key is None or callable(key):
            return
        names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
        if not names or not all(isinstance(name, str) and name for name in names):
            message = f"partition_key is a field, several, or a function of a record; got {key!r}"
            raise ConfigurationError(message)

    def __call__(self, row: Any) -> Entry:
        """The entry of a record.

        Raises:
            SinkError: If Kinesis would not take it.
        """
        key = self._key_of(row)
        if not isinstance(key, str) or not 1 <= len(key) <= MOST_KEY_CHARACTERS:
            message = f"a partition key of Kinesis is a text of 1 to {MOST_KEY_CHARACTERS} characters; got {key!r:.80}"
            raise SinkError(message, stream=self.stream, record=shown(row))
        (data,) = self.value.encode(Batch.of_rows([row]))
        if (size := _size_of((key, data))) > self.most_bytes:
            message = f"a record has {size} bytes with its key, and max_record_bytes is {self.most_bytes}"
            raise SinkError(message, stream=self.stream, record=shown(row))
        return key, data

    def _key_of(self, row: Any) -> Any:
        key = self.key
        if key is None:
            return uuid.uuid4().hex
        if callable(key):
            return key(row)
        names = (key,) if isinstance(key, str) else key
        values = [_field(row, name) for name in names]
        return self.delimiter.join("" if value is None else str(value) for value in values)


def _field(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        message = f"the record has no field {name!r}, which is its partition key"
        raise ProgramError(message, record=shown(row))
    return row[name]


def _size_of(entry: Entry) -> int:
    return len(entry[0].encode()) + len(entry[1])


class _Writer(AsyncSinkWriter):
    """Sends entries with ``PutRecords``, in requests that block, several at once."""

    def __init__(self, stream: Stream, patience_s: float) -> None:
        self._stream = stream
        self._patience_s = patience_s
        self._client: Any = None
        # Since when Kinesis has taken nothing; None if it has.
        self._away_since_s: float | None = None

    def open(self, context: Any) -> None:
        """Look whether the stream is there.

        Raises:
            SinkError: If it is not, or is not answered for.
            ConfigurationError: If credentials or a region are missing.
        """
        try:
            self._client = self._stream.connect()
            self._stream.retention_ms(self._client)
        except StreamError as error:
            if not error.is_away:
                raise self._failed(error) from error

    def get_size_in_bytes(self, request_entry: Entry) -> int:
        return _size_of(request_entry)

    def submit_request_entries(self, request_entries: list[Entry]) -> list[Entry]:  # type: ignore[override]
        """Send entries; gives those that Kinesis has turned away for now.

        Raises:
            SinkError: If it will not take one, or has taken nothing for too long.
        """
        records = [{"PartitionKey": key, "Data": data} for key, data in request_entries]
        try:
            results = self._stream.ask(self._client, "put_records", Records=records)["Records"]
        except StreamError as error:
            if not error.is_away:
                raise self._failed(error) from error
            return self._later(request_entries, str(error))
        refused = [
            (entry, result) for entry, result in zip(request_entries, results, strict=True) if result.get("ErrorCode")
        ]
        for entry, result in refused:
            if kind_of(result["ErrorCode"]) not in ("throttled", "away"):
                message = f"stream {self._stream.name!r} of Kinesis refuses a record: {_told(result)}"
                raise SinkError(message, record=shown(entry))
        if len(refused) < len(request_entries):
            self._away_since_s = None
            return [entry for entry, _ in refused]
        return self._later([entry for entry, _ in refused], _told(refused[0][1]))

    def _later(self, entries: list[Entry], cause: str) -> list[Entry]:
        """Entries that are sent again.

        Raises:
            SinkError: If nothing has been taken for too long.
        """
        now_s = time.monotonic()
        since_s = self._away_since_s = self._away_since_s or now_s
        away_s = now_s - since_s
        if away_s > self._patience_s:
            message = f"stream {self._stream.name!r} of Kinesis takes nothing, for {away_s:.0f} s now: {cause}"
            raise SinkError(message, hint="patience says how long that may be")
        return entries

    def _failed(self, error: StreamError) -> Exception:
        message = f"stream {self._stream.name!r} of Kinesis cannot be written: {error}"
        return ConfigurationError(message) if error.kind == "setup" else SinkError(message)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _told(result: Mapping[str, Any]) -> str:
    return f"{result['ErrorCode']}: {result.get('ErrorMessage')}"
