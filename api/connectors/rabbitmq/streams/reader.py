"""Reads streams of RabbitMQ side by side, in a thread, from offsets on.

Invariant: a stream's position is the offset behind the last message that was given, or passed over.

Source: RabbitMQ's "Stream Plugin Protocol"; Flink's ``SplitFetcher``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.checkpoints.manifest_schema import is_count

from ....formats.messages import BadMessage
from ...messages.client_thread import AwayError, ClientThread
from ...messages.decoding import MessageDecoder, Metadata, reject
from ...messages.fetching import FetchingReader
from ..protocol.address import HEARTBEAT_S, Address
from ..protocol.amqp10 import body_of
from ..protocol.stream_client import (
    INTERNAL_ERROR,
    NO_STREAM,
    UNAVAILABLE,
    Chunk,
    StreamConnection,
    StreamRefusedError,
    StreamsAwayError,
    chunk_at_edge,
)

__all__ = ["METADATA", "Message", "StreamReader"]

LISTEN_S = 0.1
CREDIT = 10
"""Chunks of a stream that are under way, or wait for the thread."""

MAX_WAITING = 20
"""Chunks that wait for the task, of all streams."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream."""

    stream: str
    offset: int
    time_ms: int
    body: bytes


METADATA: Metadata = {
    "stream": (pa.string(), lambda message: message.stream),
    "offset": (pa.int64(), lambda message: message.offset),
    "timestamp": (pa.timestamp("ms", "UTC"), lambda message: message.time_ms),
}


@dataclass(slots=True)
class _Reading:
    """One stream and how far it was fetched, or given.

    Attributes:
        start: ``first`` and ``timestamp`` as long as nothing was read, then ``offset``.
        at: The offset of the next message, or the timestamp.
        end: The offset that is read no more; None for none.
        seen: Of the newest chunk that was fetched, or given: the first offset and when the server wrote it. Chunks
            never change, so a stream that has another one there is another stream. None before the first.
        is_sure: Whether a chunk has come since it was subscribed to.
    """

    stream: str
    start: str
    at: int
    end: int | None
    seen: tuple[int, int] | None = None
    is_sure: bool = False

    @property
    def is_at_end(self) -> bool:
        return self.end is not None and (self.end == 0 or (self.start == "offset" and self.at >= self.end))

    @property
    def subscribed_at(self) -> int:
        """Where to subscribe: with the newest chunk that is known, to see that it is still there."""
        return self.at if self.seen is None else min(self.at, self.seen[0])

    def as_split(self) -> Split:
        payload = {"end": self.end, "seen": self.seen and list(self.seen)}
        return Split(self.stream, payload, {"from": self.start, "at": self.at})


@dataclass(frozen=True, slots=True)
class _Fetched:
    split_id: str
    chunk: Chunk

    @property
    def num_messages(self) -> int:
        return len(self.chunk.messages)


class _Fetcher(ClientThread):
    """Fetches chunks of some streams."""

    def __init__(self, address: Address, name: str, patience_s: float, readings: Sequence[_Reading]) -> None:
        super().__init__(name, MAX_WAITING, patience_s)
        self._address = address
        self._readings = readings
        self._connection: StreamConnection | None = None

    def connect(self) -> None:
        try:
            connection = self._connection = StreamConnection(self._address, HEARTBEAT_S)
            for number, one in enumerate(self._readings):
                one.is_sure = False
                if not one.is_at_end:
                    connection.subscribe(number, one.stream, one.start, one.subscribed_at, CREDIT)
        except StreamsAwayError as error:
            raise AwayError(str(error)) from error
        except StreamRefusedError as error:
            raise _refused(error) from error

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def work(self) -> None:
        assert self._connection is not None
        try:
            chunk = self._connection.receive(LISTEN_S)
            if chunk is not None:
                self._take(self._readings[chunk.subscription], chunk)
                self._connection.give_credit(chunk.subscription, 1)
        except StreamsAwayError as error:
            raise AwayError(str(error)) from error
        except StreamRefusedError as error:
            raise _refused(error) from error
        except ValueError as error:
            message = f"a stream of RabbitMQ cannot be read: {error}"
            raise SourceError(message) from error

    def _take(self, reading: _Reading, chunk: Chunk) -> None:
        behind = chunk.first_offset + len(chunk.messages)
        if reading.start == "offset" and not reading.is_sure:
            self._check_first(reading, chunk, behind)
        reading.is_sure = True
        if reading.is_at_end or (reading.start == "offset" and behind <= reading.at):
            return
        reading.start, reading.at, reading.seen = "offset", behind, (chunk.first_offset, chunk.time_ms)
        self.give(_Fetched(reading.stream, chunk))

    def _check_first(self, reading: _Reading, chunk: Chunk, behind: int) -> None:
        """See that the first chunk is the one that was asked for.

        Raises:
            SourceError: If messages before it are gone, or it is of another stream.
        """
        first = chunk.first_offset
        if reading.seen is not None and first <= reading.seen[0] and (first, chunk.time_ms) != reading.seen:
            why = "it was deleted and made anew"
        elif first > reading.at and not self._has_offset(reading):
            why = f"messages up to offset {first} were deleted before they were read"
        elif behind < reading.at:
            why = "it is another one, which has not come so far"
        else:
            return
        message = f"stream {reading.stream!r} of RabbitMQ cannot be read on: {why}"
        hint = "a longer max-age keeps messages; to go on without them, start anew without the checkpoint"
        raise SourceError(message, hint=hint, split=reading.stream, position=f"offset {reading.at}")

    def _has_offset(self, reading: _Reading) -> bool:
        """Whether what stands at a position is there, and no message: the server numbers its own entries, too, such as
        how far others have read. Streams are deleted from their beginning on: behind a message nothing is gone.
        """
        chunk = chunk_at_edge(self._address, reading.stream, "first")
        return chunk is not None and chunk.first_offset <= reading.at

    def while_waiting(self) -> None:
        """Say that we are there, while the task takes nothing."""
        if self._connection is not None:
            try:
                self._connection.beat()
            except StreamsAwayError:
                return  # noticed again when the connection is read


def _refused(error: StreamRefusedError) -> Exception:
    """What the refusal of a server means: that it is asked again, or that there is no use."""
    message = f"a stream of RabbitMQ cannot be read: {error}"
    if error.code in (UNAVAILABLE, INTERNAL_ERROR):
        return AwayError(message)
    return SourceError(message, hint="make it first" if error.code == NO_STREAM else None)


class StreamReader(FetchingReader[_Reading, _Fetched, _Fetcher]):
    """Reads the streams of one subtask.

    Args:
        address: Of the server.
        decoder: Makes records of messages.
        patience_s: How long the server may be away.
    """

    def __init__(self, address: Address, decoder: MessageDecoder[Message], patience_s: float) -> None:
        super().__init__()
        self._address = address
        self._decoder = decoder
        self._patience_s = patience_s

    def reading_of(self, split: Split) -> _Reading:
        return _reading_of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"rabbitmq {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._address, name, self._patience_s, readings)

    def read(self, reading: _Reading, fetched: _Fetched) -> Batch:
        chunk = fetched.chunk
        first = chunk.first_offset
        skipped = max(0, reading.at - first) if reading.start == "offset" else 0
        messages: list[Message] = []
        bad: list[BadMessage] = []
        offsets: list[int] = []
        for offset, message in enumerate(chunk.messages[skipped:], first + skipped):
            if reading.end is not None and offset >= reading.end:
                break
            try:
                messages.append(Message(reading.stream, offset, chunk.time_ms, body_of(message)))
            except ValueError as error:
                bad.append(BadMessage(len(offsets), message, str(error)))
                offsets.append(offset)
        if bad:
            reject(
                self._context, self._decoder.on_error, reading.stream, bad, lambda one: f"offset {offsets[one.index]}"
            )
        batch = self._decoder.decode(self._context, reading.stream, messages, lambda one: one.time_ms)
        behind = first + len(chunk.messages)
        reading.start, reading.at = "offset", behind if reading.end is None else min(behind, reading.end)
        reading.seen = (first, chunk.time_ms)
        return batch


def _reading_of(split: Split) -> _Reading:
    """Where a split is.

    Raises:
        CheckpointMismatchError: If its position is none of a stream.
    """
    position, end, seen = split.position, split.payload.get("end"), split.payload.get("seen")
    is_right = isinstance(position, dict) and position.keys() == {"from", "at"} and is_count(position["at"])
    is_right = is_right and position["from"] in ("first", "offset", "timestamp") and (end is None or is_count(end))
    is_right = is_right and (seen is None or (isinstance(seen, (list, tuple)) and len(seen) == 2))
    if not is_right:
        message = "the checkpoint's position is not one of a stream of RabbitMQ"
        raise CheckpointMismatchError(message, split=split.split_id)
    return _Reading(split.split_id, position["from"], position["at"], end, seen and (seen[0], seen[1]))
