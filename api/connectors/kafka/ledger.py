"""What is written: a note for each transactional id, kept in a compacted topic.

A note's key is a transactional id, its value says which of the things prepared under that id are written. It is sent in
the same transaction as their records, so both are there or neither. Before a commit the committer takes the id over:
Kafka then ends what another process has open under it, and shuts that process out. After that the note does not change
under its eyes, and what it says is true.

A note also says to which checkpoint the newest of these belongs, in which run the sink began, and whose job wrote them:
so a job that goes on from an older checkpoint or savepoint finds what is written behind it (`newer_output`).

So an id is a lock, and its note what the lock guards. A subtask's attempt has an id of its own, used by the attempts
after it for what a checkpoint holds of it. Ids are never given twice, and notes never deleted: each is some hundred
bytes, and there is one for every subtask of every attempt that has committed anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import ConfigurationError, SinkError
from headrace.state.credentials import masked
from headrace.state.reading.stored_json import parse_json

from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, kafka
from .partitions import end_of, settings_of

__all__ = ["Ledger", "Note", "Numbers", "newer_output"]

PARTITION = 0
MAX_NOTE_BYTES = 1 << 20


class Numbers:
    """A set of whole numbers, as runs: what is committed in order is one of them.

    Args:
        runs: First and last number of each, ascending.
    """

    def __init__(self, runs: list[list[int]] | None = None) -> None:
        self._runs = runs or []

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self._runs)

    def with_number(self, number: int) -> Numbers:
        """Return these and one more."""
        merged: list[list[int]] = []
        for first, last in sorted([*self._runs, [number, number]]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1][1] = max(last, merged[-1][1])
            else:
                merged.append([first, last])
        return Numbers(merged)

    def to_json(self) -> list[list[int]]:
        """Return the runs."""
        return self._runs


@dataclass(frozen=True, slots=True)
class Note:
    """What is written of the things prepared under one id.

    Attributes:
        written: Their numbers.
        checkpoint: The newest checkpoint that these belong to, by the count of the job that prepared them; -1 in notes
            that do not say so.
        origin: The run with which the sink began; empty in notes that do not say so.
        by: The owner, one job's sink, that wrote last.
    """

    written: Numbers = field(default_factory=Numbers)
    checkpoint: int = -1
    origin: str = ""
    by: str = ""

    def with_commit(self, number: int, checkpoint_id: int, history: SinkHistory) -> Note:
        """Return the note behind a commit."""
        newest = max(checkpoint_id, self.checkpoint)
        return Note(self.written.with_number(number), newest, history.origin, history.owner)

    def to_bytes(self) -> bytes:
        """Return it as it is kept."""
        said = {"checkpoint": self.checkpoint, "origin": self.origin, "by": self.by}
        return json.dumps({"written": self.written.to_json(), **said}).encode()


def newer_output(notes: Mapping[str, Note], prefix: str, history: SinkHistory) -> dict[str, int]:
    """Return what is written behind the restored checkpoint: the newest checkpoint of it, by owner.

    Of a job that has gone on from a checkpoint of this one nothing is said when this one restarts, but for what that
    job wrote of this one's own: it was the later, and has been told.

    Args:
        notes: By transactional id.
        prefix: What the ids of this sink begin with.
        history: What the restored checkpoint accounts for.
    """
    newer: dict[str, int] = {}
    begins = history.owner not in history.prepared
    for transactional_id, note in notes.items():
        if note.origin != history.origin or not transactional_id.startswith(f"{prefix}-"):
            continue
        owner = transactional_id[len(prefix) + 1 :].partition("-")[0]
        concerns = note.by != owner if owner == history.owner else begins or owner in history.prepared
        if concerns and not history.accounts_for(owner, note.checkpoint):
            newer[owner] = max(note.checkpoint, newer.get(owner, -1))
    return newer


class Ledger:
    """Reads notes. Blocks; for one thread.

    Args:
        client: Of the cluster.
        topic: Where they are.
        timeout_s: How long to wait for what is under way in the topic.
    """

    def __init__(self, client: Client, topic: str, timeout_s: float) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._errors = ClientErrors("reader of commits")
        # Made in `open`.
        self._admin: Any = None
        # Made with the first question; reads on from there.
        self._consumer: Any = None
        self._position = 0
        self._notes: dict[str, Note] = {}

    def open(self, output_topic: str) -> None:
        """Make the topic, if it is not there, as safe as the output's: notes are lost no sooner than it.

        Args:
            output_topic: Where the records go that the notes are of.

        Raises:
            ConfigurationError: If it is not compacted, or has more than one partition: notes would get lost.
            SinkError: If the cluster does not answer.
        """
        library = kafka()
        if self._admin is None:
            self._admin = self._client.admin(self._errors)
        settings = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
        num_copies = self._num_copies_of(output_topic)
        settings |= self._copies_that_confirm(output_topic)
        new = library.admin.NewTopic(self._topic, num_partitions=1, replication_factor=num_copies, config=settings)
        try:
            self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[self._topic].result()
        except library.KafkaException as error:
            if error.args[0].code() != library.KafkaError.TOPIC_ALREADY_EXISTS:
                self._require_topic(error)
            self._require_compacted()

    def _num_copies_of(self, topic: str) -> int:
        """How many brokers have a topic; -1, which is the broker's default, if it is not there or may not be seen."""
        try:
            found = self._described(topic)
        except kafka().KafkaException as error:
            what = f"topic {topic!r}, which they are of, cannot be looked at"
            raise self._failed(what, error) from error
        return -1 if found.error is not None else max(len(one.replicas) for one in found.partitions.values())

    def _copies_that_confirm(self, topic: str) -> dict[str, str]:
        """How many brokers must have a record of a topic before it counts, as a setting; none if it may not be seen."""
        name, library = "min.insync.replicas", kafka()
        hidden = (library.KafkaError.TOPIC_AUTHORIZATION_FAILED, library.KafkaError.UNKNOWN_TOPIC_OR_PART)
        try:
            return {name: settings_of(self._admin, topic)[name]}
        except library.KafkaException as error:
            if error.args[0].code() in hidden:
                return {}
            what = f"the settings of topic {topic!r}, which they are of, cannot be looked at"
            raise self._failed(what, error) from error

    def _described(self, topic: str) -> Any:
        return self._admin.list_topics(topic=topic, timeout=REQUEST_TIMEOUT_S).topics[topic]

    def _require_topic(self, cause: Any) -> None:
        """Without the right to make it, it may be there."""
        library = kafka()
        try:
            found = self._described(self._topic)
        except library.KafkaException as error:
            what = "the topic cannot be looked at"
            raise self._failed(what, error) from error
        if found.error is not None:
            what = "the topic is not there and cannot be made"
            raise self._failed(what, cause) from cause

    def _require_compacted(self) -> None:
        library = kafka()
        try:
            policy = settings_of(self._admin, self._topic)["cleanup.policy"]
            described = self._described(self._topic)
        except library.KafkaException as error:
            what = "the topic cannot be looked at"
            raise self._failed(what, error) from error
        if policy != "compact" or len(described.partitions) != 1:
            message = (
                f"topic {self._topic!r} must be compacted and of one partition, or notes of commits get lost; it has"
                f" cleanup.policy={policy} and {len(described.partitions)} partitions"
            )
            raise ConfigurationError(message, hint="set cleanup.policy=compact, or name another commits_topic")

    def note(self, transactional_id: str) -> Note:
        """Return what is written of an id that this process has taken over.

        Raises:
            SinkError: If the notes cannot be read to their end.
        """
        return self.notes().get(transactional_id, Note())

    def notes(self) -> Mapping[str, Note]:
        """Return all notes, by transactional id.

        Raises:
            SinkError: If they cannot be read to their end.
        """
        library = kafka()
        try:
            end = end_of(self._admin, self._topic, PARTITION)
            self._read_to(end)
        except library.KafkaException as error:
            what = "notes cannot be read"
            raise self._failed(what, error) from error
        return self._notes

    def _read_to(self, end: int) -> None:
        library = kafka()
        if self._consumer is None:
            self._consumer = self._client.consumer(
                self._errors, "headrace", **{"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
            )
            self._consumer.assign([library.TopicPartition(self._topic, PARTITION, library.OFFSET_BEGINNING)])
        deadline = time.monotonic() + self._timeout_s
        while self._position < end:
            if time.monotonic() > deadline:
                message = (
                    f"the notes of commits in topic {self._topic!r} could not be read to offset {end} within"
                    f" {self._timeout_s:.0f} s: they are known up to {self._position}; a transaction that is left open"
                    f" ends after its timeout; {self._errors.last}"
                )
                hint = "one that a broker has lost the end of stays open: kafka-transactions.sh find-hanging names it"
                raise SinkError(message, hint=hint)
            for message_ in self._consumer.consume(1_000, 0.2):
                self._take(message_)

    def _take(self, message: Any) -> None:
        library = kafka()
        error = message.error()
        if error is None:
            self._position = message.offset() + 1
            key, value = message.key(), message.value()
            if key is not None and value is not None:
                self._notes[key.decode("utf-8", "replace")] = self._parsed(value, message.offset())
        elif error.code() == library.KafkaError._PARTITION_EOF:
            self._position = max(self._position, message.offset())
        elif not error.retriable():
            raise library.KafkaException(error)

    def _parsed(self, value: bytes, offset: int) -> Note:
        """What a note says; anybody may have written it who may write into the topic."""
        try:
            stored = parse_json(value, max_bytes=MAX_NOTE_BYTES, max_depth=4)
            runs = stored["written"]
            checkpoint, origin, by = stored.get("checkpoint", -1), stored.get("origin", ""), stored.get("by", "")
            is_right = all(type(first) is int and type(last) is int and 0 <= first <= last for first, last in runs)
            is_right = is_right and type(checkpoint) is int and type(origin) is type(by) is str
        except (ValueError, TypeError, KeyError, AttributeError):
            is_right = False
        if not is_right:
            message = f"offset {offset} of topic {self._topic!r} holds no note of a commit"
            raise SinkError(message, hint="the topic is for these notes alone")
        return Note(Numbers([[first, last] for first, last in runs]), checkpoint, origin, by)

    def _failed(self, what: str, error: Any) -> SinkError:
        message = f"commits are noted in topic {self._topic!r}, and {what}: {masked(str(error))}"
        return SinkError(message, last_error=self._errors.last)

    def close(self) -> None:
        """Let go of the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
