"""Reads partitions of Pulsar's topics side by side, in a thread, from ids of messages on.

Invariant: a partition's position is the id of the last message that was given, or passed over.

Pulsar does not say when what a reader asks for was deleted: it goes on with what is left. So a reader asks for the
message that it has given last, and if another one comes, what lay between may be lost. With a *subscription* Pulsar
deletes nothing that is not acknowledged in it; what lies before the last message of a complete checkpoint is, but for
its own batch: Pulsar keeps or deletes entries, and a batch is one.

A message in *chunks* is several entries, between which others may lie. The client drops one whose first chunk lies
before the place where reading begins, without a word; so such messages are refused.

Source: Pulsar's "Reader interface", "Message retention and expiry"; Flink's ``PulsarPartitionSplitReader``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.checkpoints.manifest_schema import is_count

from ..messages.client_thread import AwayError, ClientThread
from ..messages.decoding import MessageDecoder, Metadata
from ..messages.fetching import POLL_MS, FetchingReader
from .client import Client, pulsar, told, will_not_pass

__all__ = ["METADATA", "Id", "Message", "PulsarReader", "id_of"]

MAX_WAITING = 8
"""Pieces of messages that may wait for the task, of all partitions."""

MESSAGES_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20

RECEIVE_AHEAD = 200
"""Messages of a partition that are under way. They are counted, and may be large."""

CHUNKS = ";"
"""Stands between the ids of the first and the last chunk, in the text that the client makes of a message's id."""

Id = tuple[int, int, int]
"""Ledger, entry and number in a batch, which is -1 for a message that is alone; ordered as the messages are."""


def id_of(message: Any) -> Id:
    """Return a message's id, without its partition."""
    found = message.message_id()
    return found.ledger_id(), found.entry_id(), found.batch_index()


def refuse_chunks(topic: str, message: Any) -> None:
    """See that a message is in one piece.

    Raises:
        SourceError: If not.
    """
    if CHUNKS in str(message.message_id()):
        raise in_chunks(topic, f"message {_text(id_of(message))} is")


def in_chunks(topic: str, what: str) -> SourceError:
    """Return the error for a message in chunks, which begins with what that is."""
    message = f"{topic} cannot be read: {what} in chunks, and a job could not go on between them after a failure"
    return SourceError(message, hint="have its producer send whole messages (chunking_enabled=False)", split=topic)


def _text(message_id: Id) -> str:
    return ":".join(map(str, message_id))


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a partition."""

    topic: str
    id: Id
    key: str
    data: bytes
    is_tombstone: bool
    publish_ms: int
    event_ms: int
    producer: str

    @classmethod
    def of(cls, topic: str, message: Any) -> Message:
        """Take over what the client has received.

        Raises:
            SourceError: If it came in chunks.
        """
        refuse_chunks(topic, message)
        return cls(
            topic, id_of(message), message.partition_key(), message.data(), message.has_null_value(),
            message.publish_timestamp(), message.event_timestamp(), message.producer_name(),
        )  # fmt: skip

    @property
    def time_ms(self) -> int:
        """Its event time; that of its publication if its sender has given none."""
        return self.event_ms or self.publish_ms


METADATA: Metadata = {
    "topic": (pa.string(), lambda message: message.topic),
    "key": (pa.string(), lambda message: message.key or None),  # the client has an empty one where there is none
    "message_id": (pa.string(), lambda message: _text(message.id)),
    "publish_time": (pa.timestamp("ms", "UTC"), lambda message: message.publish_ms),
    "event_time": (pa.timestamp("ms", "UTC"), lambda message: message.event_ms or None),
    "producer_name": (pa.string(), lambda message: message.producer),
}


@dataclass(slots=True)
class _Reading:
    """One partition and how far it was fetched, or given.

    Attributes:
        last: The id of the last message; None as long as there is none.
        before: The id of the last message before that one's entry, if it was read here.
        since_ms: Where to begin without a last message: messages that were published before are passed over.
        end: The id of the last message that is read; None for no end.
        is_sure: Whether the last message has been met since the connection was made.
    """

    topic: str
    last: Id | None
    since_ms: int
    end: Id | None
    before: Id | None = None
    is_sure: bool = False

    def move(self, message_id: Id) -> None:
        """Another message has been read."""
        if self.last is not None and self.last[:2] != message_id[:2]:
            self.before = self.last
        self.last = message_id

    @property
    def is_at_end(self) -> bool:
        return self.end is not None and self.last is not None and self.last >= self.end

    def as_split(self) -> Split:
        return Split(self.topic, {"end": _listed(self.end)}, {"last": _listed(self.last), "since_ms": self.since_ms})


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Messages of one partition."""

    split_id: str
    messages: list[Message]

    @property
    def num_messages(self) -> int:
        return len(self.messages)


@dataclass(slots=True)
class _Connection:
    client: Any
    readers: dict[str, Any] = field(default_factory=dict)
    # Of the subscription, which is there for what Pulsar may delete.
    guards: dict[str, Any] = field(default_factory=dict)


class _Fetcher(ClientThread):
    """Fetches messages of some partitions in turn."""

    def __init__(
        self, client: Client, name: str, patience_s: float, subscription: str | None, readings: Sequence[_Reading]
    ) -> None:
        super().__init__(name, MAX_WAITING, patience_s)
        self._client = client
        self._name = name
        self._subscription = subscription
        self._readings = list(readings)
        self._connection: _Connection | None = None
        # Up to where messages are not needed any more: put in by the task, taken out by the thread.
        self._done: deque[tuple[str, Id]] = deque()

    def release(self, topic: str, message_id: Id) -> None:
        """Let Pulsar delete what a partition has up to a message; called by the task."""
        self._done.append((topic, message_id))

    def connect(self) -> None:
        connection = self._connection = _Connection(self._client.connect())
        try:
            for reading in self._readings:
                if self._subscription is not None:
                    connection.guards[reading.topic] = self._guard(connection.client, reading.topic)
                connection.readers[reading.topic] = self._reader(connection.client, reading)
        except pulsar().PulsarException as error:
            raise self._failed(error) from error

    def _guard(self, client: Any, topic: str) -> Any:
        """The consumer of a subscription that is never asked for a message."""
        library = pulsar()
        return client.subscribe(
            topic, self._subscription, consumer_type=library.ConsumerType.Failover, receiver_queue_size=0,
            initial_position=library.InitialPosition.Earliest,
        )  # fmt: skip

    def _reader(self, client: Any, reading: _Reading) -> Any:
        library = pulsar()
        reading.is_sure = reading.last is None
        start = library.MessageId.earliest if reading.last is None else library.MessageId(-1, *reading.last)
        reader = client.create_reader(
            reading.topic, start, receiver_queue_size=RECEIVE_AHEAD, reader_name=self._name,
            start_message_id_inclusive=reading.last is not None,
        )  # fmt: skip
        if reading.last is None and reading.since_ms:
            reader.seek(reading.since_ms)
        return reader

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pulsar().PulsarException):
                connection.client.close()

    def work(self) -> None:
        try:
            self._release()
            found = [self._fetch(one) for one in list(self._readings)]
        except pulsar().PulsarException as error:
            raise self._failed(error) from error
        if not any(found):
            self._require_connected()
            self.pause(POLL_MS / 1_000)

    def _release(self) -> None:
        assert self._connection is not None
        while self._done:
            topic, message_id = self._done.popleft()
            guard = self._connection.guards.get(topic)
            if guard is not None:
                guard.acknowledge_cumulative(pulsar().MessageId(-1, *message_id))

    def _require_connected(self) -> None:
        """See that partitions are connected: the client would wait for ever, and then not look for what is gone."""
        assert self._connection is not None
        for topic, reader in self._connection.readers.items():
            if not reader.is_connected():
                message = f"{topic} of Pulsar cannot be read: the connection is broken"
                raise AwayError(message)

    def _fetch(self, reading: _Reading) -> bool:
        """Fetch what is behind a position; whether there was something."""
        messages: list[Message] = []
        try:
            self._receive(reading, messages)
        finally:  # also if the connection broke: the next one begins behind these
            if messages:
                self.give(_Fetched(reading.topic, messages))
        if reading.is_at_end:
            assert self._connection is not None
            self._readings.remove(reading)
            self._connection.readers.pop(reading.topic).close()
        return bool(messages)

    def _receive(self, reading: _Reading, messages: list[Message]) -> None:
        """Take over what has come, and how far that is."""
        num_bytes = 0
        while not reading.is_at_end and len(messages) < MESSAGES_AT_ONCE and num_bytes < BYTES_AT_ONCE:
            message = self._next(reading)
            if message is None:
                self._require_rest(reading)
                break
            if reading.end is not None and message.id > reading.end:
                raise _lost_end(reading)
            reading.move(message.id)
            messages.append(message)
            num_bytes += len(message.data)

    def _next(self, reading: _Reading) -> Message | None:
        """The next message that is to be given; None if there is none now."""
        assert self._connection is not None
        library = pulsar()
        reader = self._connection.readers[reading.topic]
        while True:
            try:
                message = Message.of(reading.topic, reader.read_next(timeout_millis=0))
            except library.Timeout:
                return None
            if not reading.is_sure:
                reading.is_sure = True
                if message.id != reading.last:
                    raise _lost(reading, message.id)
            elif reading.last is None and message.publish_ms < reading.since_ms:
                continue  # in a batch with a younger one
            else:
                return message

    def _require_rest(self, reading: _Reading) -> None:
        """See that the last message that is to be read can still come, where nothing comes now."""
        assert self._connection is not None
        if reading.end is None or self._connection.readers[reading.topic].has_message_available():
            return
        raise _lost_end(reading)

    def _failed(self, error: Exception) -> SourceError:
        message = f"topics of Pulsar cannot be read: {told(error)}"
        return (SourceError if will_not_pass(error) else AwayError)(message)


def _lost_end(reading: _Reading) -> SourceError:
    assert reading.end is not None
    message = (
        f"{reading.topic} cannot be read to its end: message {_text(reading.end)}, the last one when the job began, was"
        " deleted, and others before it may be gone, too"
    )
    return SourceError(message, hint="a subscription or a longer retention keeps them", split=reading.topic)


def _lost(reading: _Reading, found: Id) -> SourceError:
    assert reading.last is not None
    message = (
        f"{reading.topic} cannot be read on: message {_text(reading.last)} was deleted, and those between it and"
        f" {_text(found)} may be gone with it"
    )
    hint = (
        "with a subscription Pulsar keeps what is not read yet, as it does with a longer retention; to go on without"
        " them, start anew without the checkpoint"
    )
    return SourceError(message, hint=hint, split=reading.topic, position=f"message {_text(reading.last)}")


class PulsarReader(FetchingReader[_Reading, _Fetched, _Fetcher]):
    """Reads the partitions of one subtask.

    Args:
        client: Of the cluster.
        decoder: Makes records of messages.
        patience_s: How long the cluster may be away.
        subscription: Keeps Pulsar from deleting what is not read; None for none.
    """

    def __init__(
        self, client: Client, decoder: MessageDecoder[Message], patience_s: float, subscription: str | None
    ) -> None:
        super().__init__()
        self._client = client
        self._decoder = decoder
        self._patience_s = patience_s
        self._subscription = subscription
        # By checkpoint: up to where messages are not needed when it is complete.
        self._pending: dict[int, dict[str, Id]] = {}

    def open(self, context: ReaderContext) -> None:
        pulsar()  # said at once if it is not installed
        super().open(context)

    def reading_of(self, split: Split) -> _Reading:
        return _reading_of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"headrace-{self._context.operator_name}-{self._context.subtask}"
        return _Fetcher(self._client, name, self._patience_s, self._subscription, readings)

    def read(self, reading: _Reading, fetched: _Fetched) -> Batch:
        messages = [message for message in fetched.messages if not message.is_tombstone]
        if len(messages) < len(fetched.messages):
            self._context.metrics.count("num_tombstones", len(fetched.messages) - len(messages))
        batch = self._decoder.decode(self._context, reading.topic, messages, lambda message: message.time_ms)
        for message in fetched.messages:
            reading.move(message.id)
        return batch

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As `snapshot`; what lies before the last message given until now may be deleted when it is complete."""
        if self._subscription is not None:
            readings = self._readings.items()
            self._pending[checkpoint_id] = {topic: one.before for topic, one in readings if one.before is not None}
        return self.snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let Pulsar delete what no job will go back to."""
        for number in sorted(one for one in self._pending if one <= checkpoint_id):
            for topic, message_id in self._pending.pop(number).items():
                self._fetchers[topic].release(topic, message_id)


def _listed(message_id: Id | None) -> list[int] | None:
    return None if message_id is None else list(message_id)


def _reading_of(split: Split) -> _Reading:
    """Where a split is.

    Raises:
        CheckpointMismatchError: If its position is none of a partition.
    """
    position, end = split.position, split.payload.get("end")
    is_right = isinstance(position, dict) and position.keys() == {"last", "since_ms"} and is_count(position["since_ms"])
    if not is_right or not all(one is None or _is_id(one) for one in (position["last"], end)):
        message = "the checkpoint's position is not one of a topic of Pulsar"
        raise CheckpointMismatchError(message, split=split.split_id)
    last = None if position["last"] is None else (*position["last"],)
    return _Reading(split.split_id, last, position["since_ms"], None if end is None else (*end,))


def _is_id(stored: Any) -> bool:
    if not isinstance(stored, list) or len(stored) != 3 or not all(type(one) is int for one in stored):
        return False
    return all(0 <= one < 1 << 62 for one in stored[:2]) and -1 <= stored[2] < 1 << 31
