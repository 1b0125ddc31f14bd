"""Reads partitions of Kafka side by side: what the client has fetched, never waiting for more.

Invariant: a partition's position is the offset behind the last record that was given, or passed over.

Source: Flink's ``KafkaPartitionSplitReader``, ``KafkaSourceReader``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)
from headrace.engine.errors import SourceError

from ...formats.messages import BadMessage, MessageFormat, decode_or_null
from ..messages.decoding import OnError, reject
from .client import Client, ClientErrors, kafka
from .topic_ids import TopicIds

__all__ = ["METADATA", "KafkaReader", "ReadSettings"]

POLL_MS = 5
"""How soon to look again when nothing was there."""

LOOK_MS = 10_000
"""How often to look whether topics are still the ones that were read."""

LOOK_AGAIN_MS = 1_000
"""How soon to look again for what no broker has answered, as long as nothing is read because of that."""

_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def _headers(message: Any) -> list[dict[str, Any]] | None:
    found = message.headers()
    return None if found is None else [{"name": name, "value": value} for name, value in found]


METADATA: dict[str, tuple[pa.DataType, Callable[[Any], Any]]] = {
    "key": (pa.binary(), lambda message: message.key()),
    "topic": (pa.string(), lambda message: message.topic()),
    "partition": (pa.int32(), lambda message: message.partition()),
    "offset": (pa.int64(), lambda message: message.offset()),
    "timestamp": (pa.timestamp("ms", "UTC"), lambda message: message.timestamp()[1]),
    "headers": (_HEADERS, _headers),
}
"""What Kafka says of a record: type, and where it is."""


@dataclass(frozen=True)
class ReadSettings:
    """How records are made.

    Attributes:
        value: Decodes values.
        key: Decodes keys, whose columns stand for those of the value that have their names; None if nobody wants them.
        metadata: What is added, by the columns' names.
        deletions: Whether a record without a value deletes, and is not passed over.
        on_error: ``fail``, ``skip`` or ``dead-letter``.
        group_id: Under which offsets are committed; None for nowhere.
        advice: What an error about a record that cannot be decoded advises.
    """

    value: MessageFormat
    key: MessageFormat | None
    metadata: dict[str, str]
    deletions: bool
    on_error: OnError
    group_id: str | None
    advice: str | None = None

    @property
    def schema(self) -> pa.Schema | None:
        """The records' columns; None for rows of Python objects."""
        if self.value.schema is None:
            return None
        fields = {field.name: field for field in self.value.schema}
        fields.update({field.name: field for field in (() if self.key is None else self.key.schema or ())})
        added = [pa.field(column, METADATA[name][0]) for column, name in self.metadata.items()]
        return pa.schema([*fields.values(), *added])


class _Reading:
    """One partition and how far it was read."""

    __slots__ = ("end", "is_finished", "partition", "position", "split", "topic", "topic_id")

    def __init__(self, split: Split) -> None:
        self.split = split
        self.topic: str = split.payload["topic"]
        self.partition: int = split.payload["partition"]
        self.position: int = split.position
        # Of the topic that is read; None while it is not known, as in checkpoints of earlier builds.
        self.topic_id: str | None = split.payload.get("topic_id")
        # The offset that is read no more; None for none.
        self.end: int | None = split.payload["end"]
        self.is_finished = self.end is not None and self.position >= self.end

    def as_split(self) -> Split:
        """Return the partition with its position."""
        return Split(self.split.split_id, {**self.split.payload, "topic_id": self.topic_id}, self.position)


class KafkaReader(SourceReader):
    """Reads the partitions of one subtask.

    Args:
        client: Of the cluster.
        settings: How records are made.
    """

    def __init__(self, client: Client, settings: ReadSettings) -> None:
        self._client = client
        self._settings = settings
        self._readings: dict[tuple[str, int], _Reading] = {}
        self._paused: frozenset[str] = frozenset()
        # Made with the first partition.
        self._consumer: Any = None
        # Which topics they are; names that have not been looked at yet, and when others were looked at last.
        self._topic_ids: TopicIds | None = None
        self._unknown: set[str] = set()
        self._looked_ms = 0
        # Positions by checkpoint, until it is complete.
        self._positions: dict[int, list[tuple[str, int, int]]] = {}

    def open(self, context: ReaderContext) -> None:
        self._context = context
        self._errors = ClientErrors(f"reader of {context.operator_name}, subtask {context.subtask + 1}")
        context.metrics.gauge("pending_records", self._num_pending)

    def _num_pending(self) -> int:
        """How many records its partitions have behind what was read, by the last word of the brokers."""
        if self._consumer is None:
            return 0
        pending = 0
        for one in self._readings.values():
            place = kafka().TopicPartition(one.topic, one.partition)
            _low, high = self._consumer.get_watermark_offsets(place, cached=True) or (0, 0)
            pending += max(high - one.position, 0)  # less than 0 where nothing is known yet
        return pending

    def add_splits(self, splits: list[Split]) -> None:
        library = kafka()
        if self._consumer is None:
            self._consumer = self._client.consumer(
                self._errors, self._settings.group_id or "headrace", **{"isolation.level": "read_committed"}
            )
        readings = [_Reading(split) for split in splits]
        self._readings.update({(one.topic, one.partition): one for one in readings})
        self._unknown |= {one.topic for one in readings}
        self._looked_ms = 0
        assigned = [library.TopicPartition(one.topic, one.partition, one.position) for one in readings]
        self._consumer.incremental_assign(assigned)

    def pause_splits(self, split_ids: frozenset[str]) -> None:
        """Leave out these partitions."""
        if self._consumer is None or split_ids == self._paused:
            return
        library = kafka()
        by_change: dict[bool, list[Any]] = {True: [], False: []}
        for one in self._readings.values():
            is_paused = one.split.split_id in split_ids
            if is_paused != (one.split.split_id in self._paused):
                by_change[is_paused].append(library.TopicPartition(one.topic, one.partition))
        self._paused = split_ids
        if by_change[True]:
            self._consumer.pause(by_change[True])
        if by_change[False]:
            self._consumer.resume(by_change[False])

    def poll(self, max_records: int) -> Any:
        self._errors.check(self._failed)
        if not self._readings:
            return ALL_SPLITS_FINISHED
        if not self._knows_topics():
            return NOTHING_NOW
        found: list[Polled | SplitFinished] = []
        by_partition: dict[tuple[str, int], list[Any]] = {}
        events = []
        for message in self._consumer.consume(min(max_records, 1_000_000), 0):
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)
            else:
                events.append(message)
        for partition, messages in by_partition.items():
            reading = self._readings.get(partition)
            if reading is not None and not reading.is_finished:
                found += self._read(reading, messages)
        for event in events:  # behind the records that came with them
            self._note(event, event.error())
        finished = [one for one in self._readings.values() if one.is_finished]
        for one in finished:
            del self._readings[one.topic, one.partition]
            self._consumer.incremental_unassign([kafka().TopicPartition(one.topic, one.partition)])
            found.append(SplitFinished(one.split.split_id))
        return found or NOTHING_NOW

    def _knows_topics(self) -> bool:
        """Whether topics have been looked at; looks again from time to time.

        Raises:
            SourceError: If one is another than was read.
        """
        now_ms = self._context.now_ms()
        if self._topic_ids is None:
            self._topic_ids = TopicIds(self._client, self._errors)
        if self._topic_ids.is_under_way:
            found = self._topic_ids.take()
            if found is not None:
                self._compare(found)
                self._unknown -= found.keys()
                self._looked_ms = now_ms
        elif now_ms - self._looked_ms >= (LOOK_AGAIN_MS if self._unknown else LOOK_MS):
            self._topic_ids.ask({one.topic for one in self._readings.values()} | self._unknown)
        return not self._unknown

    def _compare(self, found: dict[str, str | None]) -> None:
        for one in self._readings.values():
            topic_id = found.get(one.topic)
            if topic_id is None or topic_id == one.topic_id:
                continue
            if one.topic_id is not None:
                text = (
                    f"topic {one.topic!r} was deleted and made again: records of the new one below offset"
                    f" {one.position} of partition {one.partition} would be passed over"
                )
                hint = "begin anew, with another uid of the source, or from no checkpoint"
                place = {"split": one.split.split_id, "position": f"offset {one.position}"}
                raise SourceError(text, hint=hint, **place)
            one.topic_id = topic_id

    def next_poll_ms(self) -> int | None:
        return self._context.now_ms() + POLL_MS

    # --------------------------------------------------------------------------------------------------------- records
    def _read(self, reading: _Reading, messages: list[Any]) -> list[Polled]:
        """Records of one partition, in its order."""
        if reading.end is not None and messages[-1].offset() >= reading.end - 1:
            reading.is_finished = True
            messages = [message for message in messages if message.offset() < reading.end]
        if not messages:
            return []
        reading.position = messages[-1].offset() + 1
        wanted = messages
        if not self._settings.deletions:
            wanted = [message for message in messages if message.value() is not None]
        if len(wanted) < len(messages):
            self._context.metrics.count("num_tombstones", len(messages) - len(wanted))
        decoded, wanted = self._decoded(reading, wanted)
        return [Polled(reading.split.split_id, self._completed(decoded, wanted))] if wanted else []

    def _decoded(self, reading: _Reading, messages: list[Any]) -> tuple[Batch, list[Any]]:
        """The values, and keys if they are wanted, of records that are good in both; and these records."""
        settings = self._settings
        values = [message.value() for message in messages]
        decoded = decode_or_null(settings.value, values) if settings.deletions else settings.value.decode(values)
        if decoded.bad:
            self._reject(reading, messages, "value", decoded.bad)
        if decoded.bad or settings.value.gives_changes:
            messages = [messages[place] for place in decoded.good]
        if settings.key is None or not messages:
            return decoded.batch, messages
        keys = decode_or_null(settings.key, [message.key() for message in messages])
        columns = decoded.batch.columns_as(settings.value.schema)
        if keys.bad:
            self._reject(reading, messages, "key", keys.bad)
            messages, columns = [messages[place] for place in keys.good], columns.take(pa.array(keys.good))
        by_name = dict(zip(columns.schema.names, columns.columns, strict=True))
        found = keys.batch.columns_as(settings.key.schema)
        by_name.update(zip(found.schema.names, found.columns, strict=True))
        return Batch.of_columns(pa.RecordBatch.from_pydict(by_name)), messages

    def _completed(self, batch: Batch, messages: Sequence[Any]) -> Batch:
        """Records with what Kafka says of them."""
        if self._settings.metadata:
            columns = batch.columns
            added = []
            for name in self._settings.metadata.values():
                kind, read = METADATA[name]
                added.append(pa.array([read(message) for message in messages], kind))
            batch = batch.with_columns(
                pa.RecordBatch.from_arrays([*columns.columns, *added], schema=self._settings.schema)
            )
        if self._settings.deletions:
            is_gone = np.array([message.value() is None for message in messages])
            kinds = np.where(is_gone, RowKind.DELETE, RowKind.UPDATE_AFTER).astype(np.int8)
            batch = batch.with_row_kinds(kinds)
        times = [message.timestamp() for message in messages]
        if times[0][0] == kafka().TIMESTAMP_NOT_AVAILABLE:
            return batch
        return batch.with_timestamps(np.array([time for _, time in times], np.int64))

    def _reject(self, reading: _Reading, messages: Sequence[Any], part: str, bad: list[BadMessage]) -> None:
        reject(
            self._context,
            self._settings.on_error,
            reading.split.split_id,
            bad,
            lambda one: f"offset {messages[one.index].offset()}",
            f"the {part} of a record",
            self._settings.advice,
        )

    # ---------------------------------------------------------------------------------------------------------- errors
    def _note(self, message: Any, error: Any) -> None:
        """Take an event that is no record: a partition's end, or an error of its own."""
        codes = kafka().KafkaError
        reading = self._readings.get((message.topic(), message.partition()))
        if error.code() == codes._PARTITION_EOF:
            # Behind the last record there may be ends of transactions, which are offsets, too.
            if reading is not None and reading.end is not None and message.offset() >= reading.end:
                reading.is_finished = True
            return
        if reading is None:
            self._errors.note(error)
            return
        place = {"split": reading.split.split_id, "position": f"offset {reading.position}"}
        if error.code() == codes._AUTO_OFFSET_RESET:
            where = f"offset {reading.position} of {reading.topic}-{reading.partition}"
            text = f"Kafka does not have the record at {where} any more, or not yet"
            hint = "it was deleted before it was read, or the topic is a new one; a longer retention keeps records"
            raise SourceError(text, hint=hint, **place)
        if error.retriable():
            self._errors.note(error)
            return
        text = f"cannot read a partition: {error}"
        raise SourceError(text, **place)

    def _failed(self, cause: str) -> Exception:
        message = f"Kafka cannot be read: {cause}"
        return SourceError(message)

    # ------------------------------------------------------------------------------------------------------- positions
    def snapshot(self) -> list[Split]:
        return [one.as_split() for one in self._readings.values()]

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As `snapshot`; remembers what is to be committed to Kafka once the checkpoint is complete."""
        if self._settings.group_id is not None:
            readings = self._readings.values()
            self._positions[checkpoint_id] = [(one.topic, one.partition, one.position) for one in readings]
        return self.snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit offsets to Kafka, where others look; nothing here depends on it."""
        positions = self._positions.pop(checkpoint_id, [])
        for older in [one for one in self._positions if one < checkpoint_id]:
            del self._positions[older]
        if positions and self._consumer is not None:
            library = kafka()
            offsets = [library.TopicPartition(*one) for one in positions]
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
