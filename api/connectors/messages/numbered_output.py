"""Output that a server keeps once by its number: exactly once where a server remembers the last number of each writer.

An attempt of a subtask writes under a name of its own, a *publisher*, and numbers its rows from 1. The rows between
two barriers are part of the checkpoint, with publisher and first number. Once it is complete they are sent, and each
subtask that sends them, however often, sends the same rows under the same numbers. (Numbers that are given while a
job reads again would not do: records come in another order after a restore, so one number would be two records.)

The server remembers the last number alone, so numbers of a publisher must be sent in order, and one that is passed over
is lost for ever. After a restore at another parallelism two subtasks may hold what one publisher prepared. So a
committer looks at the last number first: if what comes before is not written yet, it waits for the subtask that holds
it. Where nobody else can hold it, it is an error: the server has lost what it had confirmed.

The last number never says that rows need not be sent: a server may tell of what it has taken, and die before it keeps
that. Only its answer to a row says that it keeps it and all before it. So rows are sent again, and it drops them.

Source: RabbitMQ's "Message Deduplication" of streams; ``docs/design/066-queues.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitRetry, Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ExternalError,
    PossibleLossError,
    SinkError,
)
from headrace.state.checkpoints.manifest_schema import is_text

from ...formats.prepared_rows import GatheredRows, from_ipc

__all__ = ["NumberedCommitter", "NumberedWriter", "PreparedCommitter"]


def _publisher(context: WriterContext | CommitterContext) -> str:
    """The name under which a subtask's attempt writes."""
    return f"headrace-{context.history.owner}-{context.attempt}-{context.subtask}"


class NumberedWriter(SinkWriter):
    """Gathers the records between two barriers, and numbers them.

    Args:
        place: Where they go: a checkpoint's rows are for it alone.
        encode: Makes rows of records, as the committer sends them.
        remind_ms: How long there may be no rows before something without rows is prepared, so that the committer asks
            for the last number, and the server does not forget the publisher; None for ever.
    """

    def __init__(self, place: str, encode: Callable[[Batch], pa.RecordBatch], *, remind_ms: int | None = None) -> None:
        self._place = place
        self._encode = encode
        self._remind_ms = remind_ms
        self._rows = GatheredRows()
        # Of the next row that is prepared.
        self._number = 1
        # When something was prepared last.
        self._prepared_ms = 0

    def open(self, context: WriterContext) -> None:
        self._name = _publisher(context)
        self._now_ms = context.now_ms

    def write(self, batch: Batch) -> None:
        if len(batch):
            self.add(self._encode(batch))

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows that are encoded."""
        self._rows.add(rows)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        pieces, num_rows = self._rows.take()
        if not num_rows and not self._must_remind:
            return []
        self._prepared_ms = self._now_ms()
        committable = {
            "place": self._place,
            "publisher": self._name,
            "first": self._number,
            "checkpoint_id": checkpoint_id,
            "rows": num_rows,
            "data": pieces,
        }
        self._number += num_rows
        return [committable]

    @property
    def _must_remind(self) -> bool:
        """Whether the server may forget this publisher, of which it has rows."""
        if self._remind_ms is None or self._number == 1:
            return False
        return self._now_ms() - self._prepared_ms >= self._remind_ms


class PreparedCommitter(Committer, ABC):
    """Sends what one subtask was given. Subclasses talk to the server. Its methods block.

    Args:
        place: As of the writer.
        schema: Of the rows.
    """

    def __init__(self, place: str, schema: pa.Schema) -> None:
        self._place = place
        self._schema = schema
        self._own_name = ""

    @abstractmethod
    def connect(self, context: CommitterContext) -> None:
        """See that the server is there and takes what will come. Called again after it has failed."""

    @abstractmethod
    def send_all(self, publisher: str, first: int, batches: list[pa.RecordBatch]) -> None:
        """Have the server keep rows, numbered from one on, once, and wait until it says so."""

    @abstractmethod
    def disconnect(self) -> None:
        """Let go of the connection, if there is one."""

    def open(self, context: CommitterContext) -> None:
        """Connect.

        Raises:
            SinkError: If the server does not answer.
            ConfigurationError: If it does not take what will come.
        """
        self._own_name = _publisher(context)
        try:
            self.connect(context)
        except BaseException:
            self.disconnect()
            raise

    def commit(self, committable: Any) -> None:
        """Send what was prepared; the server drops what it has.

        Raises:
            SinkError: If the server does not take it now, or what comes before it is not there yet.
            PossibleLossError: If the server has lost what comes before it.
            CheckpointError: If it is not what such a sink prepares.
        """
        _check(committable, self._place)
        first, num_rows = committable["first"], committable["rows"]
        if not num_rows and committable["publisher"] != self._own_name:
            return  # a reminder of an attempt that has ended
        # All of them before any is sent: what is damaged behind the first piece could not be taken back.
        batches = [
            batch
            for piece in from_ipc(committable["data"], num_rows, checkpoint=committable["checkpoint_id"])
            for batch in piece
        ]
        for batch in batches:
            if batch.schema != self._schema:
                message = "prepared output is of no records of this sink"
                raise CheckpointCorruptError(message, checkpoint=committable["checkpoint_id"])
        try:
            self.send_all(committable["publisher"], first, batches)
        except ExternalError:
            self.disconnect()
            raise

    def close(self) -> None:
        self.disconnect()


class NumberedCommitter(PreparedCommitter):
    """Sends what one subtask was given behind what the server has of the publisher, in order."""

    # One subtask may wait for what another one holds.
    retry = CommitRetry(max_attempts=30, initial_delay_ms=100, max_delay_ms=2_000)

    @abstractmethod
    def last_number(self, publisher: str) -> int:
        """Return the last number that the server has taken of a publisher, maybe to lose it; 0 for none."""

    @abstractmethod
    def send(self, publisher: str, first: int, rows: pa.RecordBatch) -> None:
        """Have the server keep rows, from a number on, and wait until it says so, also of those that it has already."""

    def send_all(self, publisher: str, first: int, batches: list[pa.RecordBatch]) -> None:
        last = self.last_number(publisher)
        if last < first - 1:
            self._refuse_gap(publisher, first, last)
        for batch in batches:
            self.send(publisher, first, batch)
            first += batch.num_rows

    def _refuse_gap(self, publisher: str, first: int, last: int) -> None:
        what = (
            f"rows {last + 1} to {first - 1} of {publisher} are not in {self._place}, and later ones are to be written"
        )
        if publisher == self._own_name:
            message = f"{what}; they were confirmed, so the server has lost them"
            hint = "it lost its last writes, or forgot the writer; go on from a checkpoint that is older than that"
            raise PossibleLossError(message, hint=hint)
        message = f"{what}; another subtask holds them, or the server has lost them"
        raise SinkError(message)


_FIELDS = {"place": str, "publisher": str, "first": int, "checkpoint_id": int, "rows": int, "data": list}


def _check(committable: Any, place: str) -> None:
    """See that a checkpoint holds what this sink prepares.

    Raises:
        CheckpointMismatchError: If not.
    """
    is_right = isinstance(committable, dict) and committable.keys() == _FIELDS.keys()
    is_right = is_right and all(type(committable[name]) is kind for name, kind in _FIELDS.items())
    is_right = is_right and all(type(piece) is bytes for piece in committable["data"])
    is_right = is_right and all(is_text(committable[name]) for name in ("place", "publisher"))
    is_right = is_right and all(0 <= committable[name] < 1 << 62 for name in ("first", "checkpoint_id", "rows"))
    is_right = is_right and committable["first"] > 0 and committable["publisher"].startswith("headrace-")
    if not is_right:
        message = "the checkpoint holds prepared output that is not of a sink of this kind"
        raise CheckpointMismatchError(message)
    if committable["place"] != place:
        message = f"the checkpoint holds records for {committable['place']}; the sink writes {place}"
        raise CheckpointMismatchError(message, hint="keep where the sink writes, or give it another uid")
