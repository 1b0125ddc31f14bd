"""A sink whose records are in an open transaction when the checkpoint is taken, and which commits it then.

The rules:

* A transaction belongs to one subtask, attempt and checkpoint, and so does its transactional id. No id has a second
  transaction: a late commit could hit it.
* What a checkpoint holds says by which producer, and under which epoch, the transaction was begun. With that anybody
  may commit it, and once more: the broker answers as before.
* Behind a commit it is noted that it was made (`headrace.connectors.kafka.ledger`), for the day on which the broker has
  forgotten the id (``transactional.id.expiration.ms``) and an old savepoint is gone on from. Two subtasks of a later
  attempt may write over each other's notes, and lose one: then the broker is asked, as without notes.
  A job that begins from a checkpoint of another asks for its committed ids, too: who dies before the note leaves none.
* What is not committed, and neither open, has been ended by the broker, which waits no longer than the transaction's
  timeout: that is possible loss, and never passed over.
* What earlier attempts of this job began behind the restored checkpoint belongs to none. It is ended at the start, or
  readers of committed records would wait for it; ids say behind which checkpoint their transaction was begun. So is,
  behind the first checkpoint of this attempt, whatever else they have open: all that was restored is committed then.
  A subtask looks after ids of its own place, and of places that there are no longer: other subtasks may still be of
  the attempt that it replaces. Another job that goes on from the same savepoint is not touched.

Source: Flink's ``ExactlyOnceKafkaWriter``, ``KafkaCommitter``, ``TransactionAborter``; KIP-98.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Committer, CommitterContext, WriterContext
from headrace.engine.errors import (
    CheckpointMismatchError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
)
from headrace.state.checkpoints.manifest_schema import is_text
from headrace.state.credentials import masked

from .client import REQUEST_TIMEOUT_S, Client, ClientErrors, cause_of, client_failures, kafka
from .ledger import PARTITION, Ledger, Note
from .serialization import KafkaRecords
from .transaction_coordinator import TransactionGoneError, TransactionMark
from .transactions import CommitSettings, let_go, require_topic, transactional_producer
from .writers import ProducingWriter

__all__ = ["TransactionCommitter", "TransactionWriter"]

_PLACE = re.compile(r"(?P<attempt>[0-9]+\.[0-9]+)-(?P<subtask>[0-9]+)-[0-9]+-(?P<behind>[0-9]+)")
"""What follows prefix and owner in an id."""

CLOSING_TIMEOUT_S = 5.0
"""How long to try to end what was never prepared; the broker does it otherwise, after the transaction's timeout."""


class TransactionWriter(ProducingWriter):
    """Writes records as they come into a transaction that is left open at the barrier.

    Args:
        client: Of the cluster.
        settings: Where records go, and under which ids.
        records: How they are made.
    """

    def __init__(self, client: Client, settings: CommitSettings, records: KafkaRecords) -> None:
        super().__init__(client, settings.topic, records)
        self._settings = settings
        self._coordinator = client.coordinator()
        # Of the transaction under way, or the next one, in this attempt; and the checkpoint behind which it begins.
        self._number = 0
        self._behind = 0
        self._num_rows = 0

    def open(self, context: WriterContext) -> None:
        self._begin_to_report(context)
        self._series = self._settings.transactional_id(context)
        self._behind = _restored(context)

    @property
    def _transactional_id(self) -> str:
        return _id_of(self._series, self._number, self._behind)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        if self._producer is None:
            self._begin()
        super().write(batch)
        self._num_rows += len(batch)

    def _begin(self) -> None:
        self._producer = transactional_producer(self._client, self._settings, self._transactional_id, self._errors)
        try:
            self._producer.begin_transaction()
        except kafka().KafkaException as error:
            raise self._failed(masked(str(error))) from error

    def prepare(self, checkpoint_id: int) -> list[Any]:
        behind, self._behind = self._behind, checkpoint_id
        if self._producer is None:
            return []
        super().prepare(checkpoint_id)
        transactional_id = _id_of(self._series, self._number, behind)
        try:
            mark = self._coordinator.mark_of(transactional_id)
        except TransactionGoneError as error:
            if error.state == "Empty":  # somebody has taken the id over, and begun nothing
                message = "a later attempt of the job writes in its place"
                raise SinkFencedError(message, topic=self._topic, transaction=transactional_id) from error
            reason = f"the broker has ended the transaction before the barrier ({error})"
            raise self._failed(reason) from error
        committable = {
            "topic": self._topic,
            "series": self._series,
            "number": self._number,
            "behind": behind,
            "producer_id": mark.producer_id,
            "epoch": mark.epoch,
            "checkpoint_id": checkpoint_id,
            "rows": self._num_rows,
        }
        # Forgotten, and not closed: that would abort the transaction.
        self._producer = None
        self._number += 1
        self._num_rows = 0
        return [committable]

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with contextlib.suppress(*client_failures()):  # the broker will end it
                producer.abort_transaction(CLOSING_TIMEOUT_S)
        self._coordinator.close()


class TransactionCommitter(Committer):
    """Commits what one subtask was given. Its methods block.

    Args:
        client: Of the cluster.
        settings: Where records go, and under which ids.
    """

    def __init__(self, client: Client, settings: CommitSettings) -> None:
        self._client = client
        self._settings = settings
        self._coordinator = client.coordinator()
        self._ledger: Ledger | None = None
        # Of notes; made with the first.
        self._notes: Any = None
        # What is noted, by series, of those that were looked at.
        self._noted: dict[str, Note] = {}

    def open(self, context: CommitterContext) -> None:
        """See that there is a topic for notes, and that the broker allows such transactions.

        Raises:
            ConfigurationError: If the broker does not allow what the sink needs.
            SinkError: If it does not answer.
        """
        self._context = context
        self._errors = ClientErrors(f"committer of {context.operator_name}, subtask {context.subtask + 1}")
        self._series = self._settings.transactional_id(context)
        if self._ledger is None:
            self._ledger = Ledger(self._client, self._settings.commits_topic, REQUEST_TIMEOUT_S)
        self._ledger.open(self._settings.topic)
        self._noted = {self._series: Note()}  # nobody has had it before
        # Under the id of the first transaction, which its writer takes over.
        first_id = _id_of(self._series, 0, _restored(context))
        producer = transactional_producer(self._client, self._settings, first_id, self._errors)
        try:
            require_topic(producer, self._settings.topic, self._errors)
        finally:
            let_go(producer)
        self._settings.require_no_newer(self._ledger, context, self._committed_of_others())
        self._abort_earlier(behind=_restored(context))

    def _committed_of_others(self) -> dict[str, int]:
        """What jobs that this one begins from have committed, as the broker knows it: a checkpoint of each that has
        some, by owner. Who died between a commit and its note has left none.
        """
        history, prefix = self._context.history, f"{self._settings.prefix}-"
        found: dict[str, int] = {}
        if history.owner in history.prepared or not history.prepared:
            return found
        for transactional_id in self._coordinator.committed_ids(prefix):
            owner, _, place = transactional_id[len(prefix) :].partition("-")
            parts = _PLACE.fullmatch(place)
            if parts is not None and owner in history.prepared:
                found[owner] = max(found.get(owner, -1), int(parts["behind"]) + 1)  # no earlier one, at least
        return found

    def commit(self, committable: Any) -> None:
        """Commit a transaction, unless it is.

        Raises:
            PossibleLossError: If the broker has ended it in another way, or has forgotten it, and no note says that it
                was committed.
            SinkError: If Kafka does not answer.
            CheckpointMismatchError: If it is not what a sink of Kafka prepares in this way.
        """
        _check(committable, self._settings)
        assert self._ledger is not None
        if self._settings.begins_from_another(self._context.history):
            self._settings.require_no_newer(self._ledger, self._context)
        series, number = committable["series"], committable["number"]
        noted = self._note_of(series)
        if number in noted.written:
            return
        transactional_id = _id_of(series, number, committable["behind"])
        mark = TransactionMark(transactional_id, committable["producer_id"], committable["epoch"])
        try:
            self._coordinator.commit(mark)
        except TransactionGoneError as error:
            message = (
                f"{committable['rows']} records of checkpoint {committable['checkpoint_id']} were written in"
                f" transaction {transactional_id!r}, which the broker has ended or forgotten ({error})"
            )
            hint = (
                "a job must be back within transaction_timeout, or its records are lost;"
                " staging='checkpoint' depends on no time"
            )
            raise PossibleLossError(message, topic=self._settings.topic, hint=hint) from error
        self._write(series, noted.with_commit(number, committable["checkpoint_id"], self._context.history))

    def _note_of(self, series: str) -> Note:
        found = self._noted.get(series)
        if found is None:
            assert self._ledger is not None
            found = self._noted[series] = self._ledger.note(series)
        return found

    def _write(self, series: str, note: Note) -> None:
        failures: list[Any] = []
        try:
            if self._notes is None:
                self._notes = self._client.producer(self._errors)
            self._notes.produce(
                self._settings.commits_topic,
                note.to_bytes(),
                series.encode(),
                PARTITION,
                on_delivery=lambda error, _message: failures.append(error) if error is not None else None,
            )
            left = self._notes.flush(REQUEST_TIMEOUT_S)
        except client_failures() as error:
            failures.append(cause_of(error))
            left = 0
        if left or failures:
            self._release_notes()
            reason = masked(str(failures[0])) if failures else self._errors.last
            message = f"it cannot be noted what is committed: {reason}"
            raise SinkError(message, topic=self._settings.commits_topic)
        self._noted[series] = note

    def abort_leftovers(self) -> None:
        self._abort_earlier(behind=0)

    def _abort_earlier(self, behind: int) -> None:
        """End what earlier attempts of this job began behind a checkpoint, in this place or one that is no more."""
        context = self._context
        prefix = f"{self._settings.prefix}-{context.history.owner}-"
        for transactional_id in self._coordinator.open_ids(prefix):
            place = _PLACE.fullmatch(transactional_id, len(prefix))
            if place is None or int(place["subtask"]) % context.parallelism != context.subtask:
                continue
            if _in_order(place["attempt"]) < _in_order(context.attempt) and int(place["behind"]) >= behind:
                self._coordinator.abort(transactional_id, self._settings.timeout_ms)

    def _release_notes(self) -> None:
        notes, self._notes = self._notes, None
        if notes is not None:
            notes.purge()
            let_go(notes)

    def close(self) -> None:
        self._release_notes()
        self._coordinator.close()
        if self._ledger is not None:
            self._ledger.close()


def _id_of(series: str, number: int, behind: int) -> str:
    return f"{series}-{number}-{behind}"


def _restored(context: WriterContext | CommitterContext) -> int:
    """The checkpoint that this job goes on from; 0 if from none of its own."""
    return context.history.prepared.get(context.history.owner, 0)


def _in_order(attempt: str) -> tuple[int, ...]:
    return tuple(map(int, attempt.split(".")))


_FIELDS = {
    "topic": str, "series": str, "number": int, "behind": int, "producer_id": int, "epoch": int, "checkpoint_id": int,
    "rows": int,
}  # fmt: skip


def _check(committable: Any, settings: CommitSettings) -> None:
    """See that a checkpoint holds what this sink prepares.

    Raises:
        CheckpointMismatchError: If not.
    """
    is_right = isinstance(committable, dict) and committable.keys() == _FIELDS.keys()
    is_right = is_right and all(type(committable[name]) is kind for name, kind in _FIELDS.items())
    is_right = is_right and all(is_text(committable[name]) for name in ("topic", "series"))
    numbers = [name for name, kind in _FIELDS.items() if kind is int]
    is_right = is_right and all(0 <= committable[name] < 1 << 63 for name in numbers)
    if not is_right or committable["epoch"] >= 1 << 15:
        message = "the checkpoint holds prepared output that is not of a sink of Kafka with staging='transaction'"
        raise CheckpointMismatchError(message, hint="keep the sink's staging, or give the sink another uid")
    settings.require_own(committable["topic"], committable["series"])
