"""Writes what a checkpoint holds, in one transaction with the note that it is written.

The rules, for an attempt A of a subtask and for those that go on from its checkpoints:

* What A prepares is committed under A's transactional id, whichever attempt commits it.
* A takes its id over before its first record. So an attempt that was replaced, and does not know it, is shut out of
  what a later one commits for it: the later one has taken the id over.
* One that takes an id over that is not new, or again after a failure, looks at its note before it writes.

Two subtasks of a later attempt may hold parts of what A prepared, and take A's id from one another: the one that loses
it has written nothing, takes it over again and looks at the note.

Source: KIP-98; Flink's ``KafkaCommitter``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import Committer, CommitterContext
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigurationError,
    SinkError,
    SinkFencedError,
)
from headrace.state.checkpoints.manifest_schema import is_text

from ...formats.prepared_rows import from_ipc
from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, kafka
from .ledger import PARTITION, Ledger, Note
from .partitions import settings_of
from .serialization import NO_TIME, SCHEMA
from .transactions import CommitSettings, failed, let_go, require_topic, transactional_producer

__all__ = ["KafkaCommitter"]


@dataclass(slots=True)
class _Taken:
    """An id that this process has taken over: who writes under it, and what is written."""

    producer: Any
    note: Note


class KafkaCommitter(Committer):
    """Commits what one subtask was given. Its methods block.

    Args:
        client: Of the cluster.
        settings: How.
    """

    def __init__(self, client: Client, settings: CommitSettings) -> None:
        self._client = client
        self._settings = settings
        self._taken: dict[str, _Taken] = {}
        self._ledger: Ledger | None = None
        self._own_id = ""

    def open(self, context: CommitterContext) -> None:
        """Take the id of this attempt over; see that the topics are there.

        Raises:
            ConfigurationError: If the broker does not allow what the sink needs.
            SinkError: If it does not answer.
        """
        self._context = context
        self._errors = ClientErrors(f"committer of {context.operator_name}, subtask {context.subtask + 1}")
        self._own_id = self._settings.transactional_id(context)
        if self._ledger is None:
            timeout_s = self._settings.timeout_ms / 1_000 + REQUEST_TIMEOUT_S
            self._ledger = Ledger(self._client, self._settings.commits_topic, timeout_s)
        self._ledger.open(self._settings.topic)
        self._release(self._own_id)
        self._taken[self._own_id] = _Taken(self._take_over(self._own_id), Note())  # nobody has had it before
        require_topic(self._taken[self._own_id].producer, self._settings.topic, self._errors)
        self._require_sizes()
        self._settings.require_no_newer(self._ledger, context)

    def _require_sizes(self) -> None:
        """A record that the topic refuses could never be committed. Who may not ask for its limit goes on without."""
        library, topic, wanted = kafka(), self._settings.topic, self._client.max_message_bytes
        try:
            allowed = int(settings_of(self._client.admin(self._errors), topic)["max.message.bytes"])
        except library.KafkaException as error:
            if error.args[0].code() == library.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
            what = "the topic's limits cannot be looked at"
            raise self._failed(what, error) from error
        if allowed < wanted:
            message = (
                f"topic {topic!r} takes {allowed} bytes at a time (max.message.bytes), and the client may send {wanted}"
                " (message.max.bytes)"
            )
            hint = f"properties={{'message.max.bytes': {allowed}}}, or a higher limit of the topic"
            raise ConfigurationError(message, hint=hint)

    def _take_over(self, transactional_id: str) -> Any:
        return transactional_producer(self._client, self._settings, transactional_id, self._errors)

    def commit(self, committable: Any) -> None:
        """Write what was prepared, unless it is written.

        Raises:
            SinkFencedError: If a later attempt has taken over.
            SinkError: If Kafka does not take it now.
            CheckpointError: If it is not what a sink of Kafka prepares.
        """
        _check(committable, self._settings)
        assert self._ledger is not None
        if self._settings.begins_from_another(self._context.history):
            self._settings.require_no_newer(self._ledger, self._context)
        transactional_id, number = committable["transaction"], committable["number"]
        taken = self._taken.get(transactional_id)
        if taken is None:
            producer = self._take_over(transactional_id)
            taken = self._taken[transactional_id] = _Taken(producer, Note())
            try:
                taken.note = self._ledger.note(transactional_id)
            except BaseException:
                self._release(transactional_id)
                raise
        if number in taken.note.written:
            return  # by an attempt that failed afterwards, or whose answer got lost
        written = taken.note.with_commit(number, committable["checkpoint_id"], self._context.history)
        try:
            self._write(taken.producer, transactional_id, written, committable)
        except BaseException:
            self._release(transactional_id)  # the note will say whether it was written
            raise
        taken.note = written

    def _write(self, producer: Any, transactional_id: str, written: Note, committable: dict[str, Any]) -> None:
        library = kafka()
        what = {"checkpoint": committable["checkpoint_id"], "transaction": transactional_id}
        try:
            producer.begin_transaction()
            for batches in from_ipc(committable["data"], committable["rows"], **what):
                for batch in batches:
                    self._produce(producer, batch, what)
            producer.produce(self._settings.commits_topic, written.to_bytes(), transactional_id.encode(), PARTITION)
            producer.commit_transaction(self._settings.timeout_ms / 1_000)
        except library.KafkaException as error:
            code = error.args[0].code()
            if transactional_id == self._own_id and code in (library.KafkaError._FENCED, *_fenced_codes()):
                message = "a later attempt of the job writes in its place"
                raise SinkFencedError(message, topic=self._settings.topic, **what) from error
            reason = "records cannot be committed"
            raise self._failed(reason, error) from error

    def _produce(self, producer: Any, batch: pa.RecordBatch, what: dict[str, Any]) -> None:
        if batch.schema != SCHEMA:
            message = "prepared output is of no records of Kafka"
            raise CheckpointCorruptError(message, **what)
        keys, values, times = (column.to_pylist() for column in batch.columns)
        for key, value, time_ms in zip(keys, values, times, strict=True):
            options = {} if time_ms == NO_TIME else {"timestamp": time_ms}
            while True:
                try:
                    producer.produce(self._settings.topic, value, key, **options)
                    break
                except BufferError:  # its queue is full; a broker that takes nothing ends the transaction
                    producer.poll(0.1)
        producer.poll(0)

    def _failed(self, what: str, error: Any) -> SinkError:
        return failed(what, error, self._settings.topic, self._errors)

    def _release(self, transactional_id: str) -> None:
        taken = self._taken.pop(transactional_id, None)
        if taken is not None:
            let_go(taken.producer)

    def abort_leftovers(self) -> None:
        """Let go of the ids of earlier attempts: all that was restored is committed."""
        for transactional_id in [one for one in self._taken if one != self._own_id]:
            self._release(transactional_id)

    def close(self) -> None:
        for transactional_id in list(self._taken):
            self._release(transactional_id)
        if self._ledger is not None:
            self._ledger.close()


def _fenced_codes() -> tuple[int, ...]:
    codes = kafka().KafkaError
    return (codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)


_FIELDS = {"topic": str, "transaction": str, "number": int, "checkpoint_id": int, "rows": int, "data": list}


def _check(committable: Any, settings: CommitSettings) -> None:
    """See that a checkpoint holds what this sink prepares.

    Raises:
        CheckpointMismatchError: If not.
    """
    is_right = isinstance(committable, dict) and committable.keys() == _FIELDS.keys()
    is_right = is_right and all(type(committable[name]) is kind for name, kind in _FIELDS.items())
    is_right = is_right and all(type(piece) is bytes for piece in committable["data"])
    is_right = is_right and all(is_text(committable[name]) for name in ("topic", "transaction"))
    is_right = is_right and all(0 <= committable[name] < 1 << 63 for name in ("number", "checkpoint_id", "rows"))
    if not is_right:
        message = "the checkpoint holds prepared output that is not of a sink of Kafka with staging='checkpoint'"
        raise CheckpointMismatchError(message, hint="keep the sink's staging, or give the sink another uid")
    settings.require_own(committable["topic"], committable["transaction"])
