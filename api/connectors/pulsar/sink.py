"""Topics of Pulsar as a sink: exactly once where the broker deduplicates.

A broker that deduplicates drops what a producer sends to a partition under a sequence id that is not above its last
one, and tells a producer that comes again under its name which that was. Records between two barriers are part of the
checkpoint, by partition and with their numbers, and are sent when it is complete
(`headrace.connectors.messages.numbered_output`).

Messages are sent alone: of a batch the broker remembers the number of its first message. None is sent behind one that
failed, as what was passed over could never be sent; so they go in windows, and the client has no time limits of its
own, by which it would drop some and go on with others. It drops one that came to the broker damaged, by its checksum,
and the broker goes on behind it: nobody can send that one any more, and the job stops.

The number that a broker tells is that of the last message it has taken, which it may not keep yet. It confirms what has
a number only when it keeps it, also if that comes again.

Source: Pulsar's "Message deduplication"; PIP-6.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, PossibleLossError, SinkError, TypeMismatchError

from ...formats.messages import MessageFormat, require_format
from ..messages.numbered_output import NumberedCommitter, NumberedWriter
from .client import Client, pulsar, told, will_not_pass

__all__ = ["PulsarSink"]

SCHEMA = pa.schema([("data", pa.binary()), ("key", pa.string()), ("event_ms", pa.int64())])

SEND_TIMEOUT_S = 60.0
"""For a window of messages: a broker that is away comes back meanwhile, or the commit is tried again."""

WINDOW_MESSAGES = 1_000
"""Not above what a producer takes without waiting."""

WINDOW_BYTES = 8 << 20

REMIND_MS = 600_000
"""So often a broker is asked for the last number of a partition that is quiet, as it forgets who is away for hours."""

MOST_BYTES = 5 << 20
"""What a broker takes, unless its ``maxMessageSize`` says otherwise."""


class PulsarSink:
    """Writes records as messages into a topic, which must be there, and whose broker must deduplicate.

    Args:
        service_url: ``pulsar://host:port``, several hosts with commas between; ``pulsar+ssl://`` with TLS.
        topic: The topic. Partitions that are added to it are written from the next start on.
        value: How records are messages, as `JsonMessages`; see `headrace.formats.messages`.
        key: The field whose value, as text, is the message's key. Messages of one key go to one partition, that which
            Pulsar's client in Java gives it, and in order if they come to one subtask: ``key_by`` the key. None, or
            null in a record: no key, and partitions in turn.
        max_message_bytes: What the broker takes (``maxMessageSize``): a larger record is an error before its barrier.
        token: Who asks, as a token of Pulsar.
        options: More settings of ``pulsar.Client``, as those of TLS.

    Messages have the records' event times.

    Guarantees: exactly once with checkpoints, as far as Pulsar remembers producers
        (``brokerDeduplicationProducerInactivityTimeoutMinutes``, six hours): a job that was away for longer
        may write its last checkpoint's records again. Without checkpoints the records appear when the job ends.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    # Numbers are of one subtask in one attempt.
    subtasks_are_independent = True

    def __init__(
        self,
        service_url: str,
        topic: str,
        *,
        value: MessageFormat,
        key: str | None = None,
        max_message_bytes: int = MOST_BYTES,
        token: str | None = None,
        options: Mapping[str, Any] = {},
    ) -> None:
        if not isinstance(topic, str) or not topic or topic.startswith("non-persistent:"):
            message = f"a sink writes one topic, which keeps what it is given; got {topic!r}"
            raise ConfigurationError(message)
        if type(max_message_bytes) is not int or max_message_bytes < 1:
            message = f"max_message_bytes must be 1 or more; got {max_message_bytes!r}"
            raise ConfigurationError(message)
        require_format(value)
        self._client = Client(service_url, token, dict(options))
        self._topic = topic
        self._encoder = _Encoder(value, key, max_message_bytes)

    def __repr__(self) -> str:
        return f"PulsarSink({self._topic!r})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _PartitionsWriter(self._client, self._topic, self._encoder)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _PartitionsCommitter(self._client, self._topic)


def _place(partition: str) -> str:
    return f"{partition} of Pulsar"


def _partitions(client: Any, topic: str) -> list[str]:
    """The partitions of a topic.

    Raises:
        SinkError: If Pulsar does not answer.
        ConfigurationError: If there is no such topic.
    """
    try:
        return list(client.get_topic_partitions(topic))
    except pulsar().PulsarException as error:
        raise _refused(topic, error) from error


def _refused(topic: str, error: Exception) -> Exception:
    message = f"topic {topic!r} of Pulsar cannot be written: {told(error)}"
    return (ConfigurationError if will_not_pass(error) else SinkError)(message)


# ------------------------------------------------------------------------------------------------------------- writing
class _Encoder:
    def __init__(self, value: MessageFormat, key: str | None, max_message_bytes: int) -> None:
        self._value = value
        self._key = key
        self._max_message_bytes = max_message_bytes

    def rows(self, batch: Batch) -> pa.RecordBatch:
        """Messages of records.

        Raises:
            TypeMismatchError: If one is too large, or has no such key.
        """
        data = self._value.encode(batch)
        largest = max(map(len, data), default=0)
        if largest > self._max_message_bytes:
            message = f"a record of {largest} bytes is more than a topic of Pulsar takes"
            raise TypeMismatchError(message, at_most=self._max_message_bytes)
        times: list[int | None] = [None] * len(data)
        if batch.timestamps is not None:  # 0 stands for none in Pulsar, and there is nothing before it
            times = [one if one > 0 else None for one in map(int, batch.timestamps)]
        return pa.RecordBatch.from_arrays(
            [pa.array(data, pa.binary()), pa.array(self._keys(batch), pa.string()), pa.array(times, pa.int64())],
            schema=SCHEMA,
        )

    def _keys(self, batch: Batch) -> list[str | None]:
        if self._key is None:
            return [None] * len(batch)
        columns = batch.columns
        if self._key not in columns.schema.names:
            message = f"the records have no field {self._key!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        return [None if one is None else str(one) for one in columns.column(self._key).to_pylist()]


def partition_of(key: str, num_partitions: int) -> int:
    """Return the partition of a key, as Pulsar's client in Java chooses it: by the hash of Java's strings."""
    found = 0
    text = key.encode("utf-16-be")
    for high, low in zip(text[::2], text[1::2], strict=True):
        found = (31 * found + (high << 8 | low)) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % num_partitions


class _PartitionsWriter(SinkWriter):
    """Deals out records to partitions, before they are numbered."""

    def __init__(self, client: Client, topic: str, encoder: _Encoder) -> None:
        self._client = client
        self._topic = topic
        self._encoder = encoder
        self._turn = 0

    def open(self, context: WriterContext) -> None:
        client = self._client.connect()
        try:
            partitions = _partitions(client, self._topic)
        finally:
            client.close()
        self._writers = [
            NumberedWriter(_place(partition), self._encoder.rows, remind_ms=REMIND_MS) for partition in partitions
        ]
        for writer in self._writers:
            writer.open(context)
        self._turn = context.subtask  # so that not all begin with the first

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        rows = self._encoder.rows(batch)
        self._turn += 1
        number = len(self._writers)
        chosen = np.array(
            [(self._turn if key is None else partition_of(key, number)) % number for key in rows["key"].to_pylist()]
        )
        for place in np.unique(chosen):
            self._writers[place].add(rows.take(pa.array(np.flatnonzero(chosen == place))))

    def prepare(self, checkpoint_id: int) -> list[Any]:
        return [committable for writer in self._writers for committable in writer.prepare(checkpoint_id)]


# ---------------------------------------------------------------------------------------------------------- committing
class _PartitionsCommitter(Committer):
    """Has each partition's committer send what is for it."""

    retry = NumberedCommitter.retry

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._committers: dict[str, _PartitionCommitter] = {}
        # None while there is none.
        self._connection: Any = None

    def open(self, context: CommitterContext) -> None:
        """Find the partitions.

        Raises:
            SinkError: If Pulsar does not answer.
            ConfigurationError: If there is no such topic.
        """
        self.close()
        self._connection = self._client.connect()
        for partition in _partitions(self._connection, self._topic):
            committer = self._committers[_place(partition)] = _PartitionCommitter(self._connection, partition)
            committer.open(context)

    def commit(self, committable: Any) -> None:
        place = committable.get("place") if isinstance(committable, dict) else None
        found = self._committers.get(place) if isinstance(place, str) else None
        if found is None:  # any of them says what is wrong
            found = next(iter(self._committers.values()))
        found.commit(committable)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._committers.clear()
        if connection is not None:
            with contextlib.suppress(pulsar().PulsarException):
                connection.close()


class _PartitionCommitter(NumberedCommitter):
    """Sends to one partition, by a producer that is there for one commit."""

    def __init__(self, connection: Any, partition: str) -> None:
        super().__init__(_place(partition), SCHEMA)
        self._connection = connection
        self._partition = partition
        self._producer: Any = None
        # Whether the broker has once remembered what it was sent.
        self._is_proven = False

    def connect(self, context: CommitterContext) -> None:
        return  # with the first commit

    def commit(self, committable: Any) -> None:
        """As the base; sees that the broker remembers what it was sent.

        Raises:
            ConfigurationError: If it does not, as it does not deduplicate.
        """
        try:
            super().commit(committable)
            if not self._is_proven and committable["rows"]:
                self._prove(committable)
        finally:
            self.disconnect()

    def _prove(self, committable: Any) -> None:
        last = committable["first"] + committable["rows"] - 1
        if self.last_number(committable["publisher"]) < last:
            message = f"{self._place} does not deduplicate: the broker does not remember what it has just confirmed"
            hint = "pulsar-admin namespaces set-deduplication --enable NAMESPACE; what was just written is there once"
            raise ConfigurationError(message, hint=hint)
        self._is_proven = True

    def last_number(self, publisher: str) -> int:
        """Begin anew under a producer's name: only then the broker says what it remembers."""
        self.disconnect()
        try:
            self._producer = self._connection.create_producer(
                self._partition, producer_name=publisher, batching_enabled=False, chunking_enabled=False,
                send_timeout_millis=0, max_pending_messages=WINDOW_MESSAGES, block_if_queue_full=True,
            )  # fmt: skip
            return max(0, int(self._producer.last_sequence_id()))
        except pulsar().PulsarException as error:
            raise _refused(self._partition, error) from error

    def send(self, publisher: str, first: int, rows: pa.RecordBatch) -> None:
        for messages in _windows(rows, first):
            window = _Window(publisher, first, len(messages))
            for number, message in enumerate(messages, first):
                if window.has_failed:
                    break  # what comes behind it must not arrive
                options = {} if message["event_ms"] is None else {"event_timestamp": message["event_ms"]}
                try:
                    self._producer.send_async(
                        message["data"], functools.partial(window.sent, number), partition_key=message["key"],
                        sequence_id=number, **options,
                    )  # fmt: skip
                except pulsar().PulsarException as error:
                    raise _refused(self._partition, error) from error
            window.wait(self._partition)
            first += len(messages)

    def disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(pulsar().PulsarException):
                producer.close()


def _windows(rows: pa.RecordBatch, first: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Messages in pieces that a producer takes at once; the next piece is asked for when all of the last are there.

    A broker refuses one message for its size, by a limit of the topic that a client cannot ask for, and takes what is
    under way behind it: that would pass for all. So a message that is larger than all before it goes alone.
    """
    window: list[Mapping[str, Any]] = []
    num_bytes = largest = 0
    for number, message in enumerate(rows.to_pylist(), first):
        size = _size_of(message, number)
        if window and (size > largest or len(window) >= WINDOW_MESSAGES or num_bytes >= WINDOW_BYTES):
            yield window
            window, num_bytes = [], 0
        if size > largest:
            largest = size
            yield [message]
        else:
            window.append(message)
            num_bytes += len(message["data"])
    if window:
        yield window


def _size_of(message: Mapping[str, Any], number: int) -> int:
    """What differs in size between messages of one producer: data, key, and numbers, seven bits a byte."""
    texts = len(message["data"]) + len((message["key"] or "").encode())
    return texts + sum((one.bit_length() + 6) // 7 for one in (number, message["event_ms"] or 0))


class _Window:
    """Messages that are under way together, with numbers from a first one on."""

    def __init__(self, publisher: str, first: int, number: int) -> None:
        self._publisher = publisher
        self._changed = threading.Condition()
        self._num_left = number
        self._behind = first + number
        # The first that failed, and why.
        self._failed: tuple[int, Any] | None = None

    @property
    def has_failed(self) -> bool:
        return self._failed is not None

    @property
    def is_over(self) -> bool:
        """Whether all are there, or one is not."""
        return not self._num_left or self.has_failed

    def sent(self, number: int, result: Any, _message_id: Any) -> None:
        """Called by the client, in a thread of its own: a message is there, or not."""
        with self._changed:
            self._num_left -= 1
            if result != pulsar().Result.Ok and self._failed is None:
                self._failed = number, result
            self._changed.notify_all()

    def wait(self, partition: str) -> None:
        """Wait until all are there.

        Raises:
            SinkError: If they are not.
            PossibleLossError: If one is not, and those behind it may be.
            ConfigurationError: If one can never be.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over, SEND_TIMEOUT_S)
            failed, num_left = self._failed, self._num_left
        if failed is None and not num_left:
            return
        number, result = failed or (0, None)
        if result == pulsar().Result.MessageTooBig:
            message = f"{partition} of Pulsar does not take a record, which is too large for it"
            hint = "raise the broker's maxMessageSize, and say by max_message_bytes what it is"
            raise ConfigurationError(message, hint=hint)
        if result == pulsar().Result.ChecksumError and number < self._behind - 1:
            message = (
                f"row {number} of {self._publisher} came damaged to {partition} of Pulsar, and those behind it came"
            )
            hint = "it may be missing there, and cannot be sent under its number any more"
            raise PossibleLossError(message, hint=hint)
        why = "it has not confirmed them in time" if result is None else str(result)
        message = f"{partition} of Pulsar does not take records: {why}"
        raise SinkError(message)
