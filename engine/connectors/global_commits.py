"""The operators of a sink that has one committer for all of its subtasks.

Writers run in parallel. At each barrier they emit what they have prepared, ahead of the barrier; so when it has come to
the committer from all of them, that has gathered what the whole sink prepared for the checkpoint, and nothing else.
This is one committable from then on (`headrace.engine.connectors.sink_protocols.GlobalCommittable`): it is in the
committer's state until a checkpoint that was taken after its commit, and is committed when its own is complete. What
`headrace.engine.connectors.sinks` says of committables holds for it, with one subtask.

Between the two the barriers are always aligned, also in an unaligned checkpoint: a committable that was overtaken by
its barrier would be committed with the next checkpoint, and a reader would see half of one. The stream graph sees to
that.

At the end of input writers emit the rest; a checkpoint that holds it is taken before the job ends. Without checkpoints
it is committed then. All that records or committables pass between is restarted together, as it is one region.

Source: Flink's ``SinkWriterOperator``, ``GlobalCommitterOperator``; the way of Iceberg's and Delta's sinks for Flink;
FLIP-191, FLIP-371.
"""

from __future__ import annotations

import re
from typing import Any

from headrace.state.checkpoints.manifest_schema import is_count, require
from headrace.state.keyed.contract import ListStateHandle
from headrace.state.open.names import COMMITTABLES

from ..columns.records import Batch
from ..errors import CheckpointMismatchError
from ..functions.operator import OperatorContext
from .commits import CommitQueue, Pending
from .sink_protocols import GlobalCommittable, SupportsGlobalCommitter
from .sink_writers import KeptHistory, WriterOperator, require_owner
from .sinks import NO_CHECKPOINT, CommitterOperator

__all__ = ["EmittingWriterOperator", "GlobalCommitterOperator"]


_ATTEMPT = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class EmittingWriterOperator(WriterOperator):
    """Writes what comes in, and emits what is prepared of it ahead of the barrier.

    Probe point: ``sink.prepare`` (durable and emitted, not yet in a snapshot).

    Args:
        sink: Where the records go; it has a ``create_global_committer``.
    """

    gives_committables = True
    face = "as given"

    def __init__(self, sink: SupportsGlobalCommitter) -> None:
        super().__init__(sink)
        # All input has come, and the rest is emitted: nothing may follow.
        self._has_finished = False
        # The last checkpoint that was prepared for; None before there is one.
        self._last_prepared: int | None = None
        # What was prepared for checkpoints that are not known to be complete: a savepoint may hold it.
        self._unconfirmed: list[Pending] = []

    def open(self, context: OperatorContext) -> None:
        """Make the writer.

        Raises:
            CheckpointMismatchError: If the checkpoint is of a sink whose subtasks commit, and holds output of theirs.
        """
        super().open(context)
        committables = context.operator_state.list_state(COMMITTABLES).get()
        if committables:
            message = "the checkpoint holds output that this sink's subtasks were to commit, and it has one committer"
            raise CheckpointMismatchError(message, committables=len(committables))
        self._last_prepared = max(self._history.prepared.values(), default=None)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        """Emit what was written since the last barrier."""
        if not self._has_finished:
            self._emit_prepared(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Store the history alone; a savepoint keeps what may not be committed yet."""
        self._kept.prepared(checkpoint_id)
        if self.context.takes_savepoint:
            self._retain([committable for _, committable in self._unconfirmed])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget what the checkpoint holds: it will be committed, by whatever attempt."""
        self._unconfirmed = [(number, one) for number, one in self._unconfirmed if number > checkpoint_id]

    def finish(self) -> None:
        """Emit the rest; it belongs to the next checkpoint, whatever its id."""
        super().finish()
        last = self._last_prepared
        is_first = last is None and not self.context.checkpointing
        self._emit_prepared(NO_CHECKPOINT if is_first else (last or NO_CHECKPOINT) + 1)
        self._has_finished = True

    def _emit_prepared(self, checkpoint_id: int) -> None:
        self._last_prepared = checkpoint_id
        committables = self._prepare(checkpoint_id)
        if committables:
            self._unconfirmed.extend((checkpoint_id, committable) for committable in committables)
            self.context.output.emit(Batch.of_rows(list(committables)))
        self.context.probe("sink.prepare")


class GlobalCommitterOperator(CommitterOperator):
    """Gathers what all writers of a sink prepared for a checkpoint, and commits it in one go.

    Probe points: as of `headrace.engine.connectors.sinks.SinkOperator`, but ``sink.prepare``.

    Args:
        sink: The sink; it has a ``create_global_committer``.
    """

    takes_committables = True

    def __init__(self, sink: SupportsGlobalCommitter) -> None:
        self.sink = sink
        # What has come since the last barrier.
        self._gathered: list[Any] = []

    @property
    def proves_commits(self) -> bool:
        return bool(getattr(self.sink, "proves_commits", False))

    def open(self, context: OperatorContext) -> None:
        """Make the committer, and begin to commit what the restored checkpoint holds.

        Raises:
            CheckpointMismatchError: If that cannot be understood.
        """
        super().open(context)
        self._kept = KeptHistory(context)
        self._state: ListStateHandle = context.operator_state.list_state(COMMITTABLES)
        restored = sorted((_restored(one) for one in self._state.get()), key=lambda pending: pending[0])
        self._commits = CommitQueue(self.sink.create_global_committer(), context, restored, self._kept.history)
        self._commits.open()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Take committables."""
        self._gathered.extend(batch.rows)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Keep what has come since the last barrier, with what is pending, as part of this checkpoint."""
        self._prepare_for(checkpoint_id)
        assert self._commits is not None
        self._state.update([(number, _stored(one)) for number, one in self._commits.pending])
        self._kept.prepared(checkpoint_id)

    def _prepare_for(self, checkpoint_id: int) -> None:
        gathered, self._gathered = self._gathered, []
        context, owner = self.context, self._kept.history.owner
        whole = GlobalCommittable(owner, context.attempt, checkpoint_id, tuple(gathered))
        self._take(checkpoint_id, [whole] if gathered else [])


def _stored(whole: GlobalCommittable) -> dict[str, Any]:
    return {"owner": whole.owner, "attempt": whole.attempt, "committables": list(whole.committables)}


def _restored(element: Any) -> Pending:
    """A pair of checkpoint id and committable, out of a checkpoint, which anybody may have written."""
    try:
        checkpoint_id, part = element
        require(is_count(checkpoint_id), "checkpoint id", checkpoint_id)
        owner, attempt, committables = part["owner"], part["attempt"], part["committables"]
        require_owner(owner)
        require(type(attempt) is str and _ATTEMPT.fullmatch(attempt) is not None, "attempt", attempt)
        require(type(committables) is list and bool(committables), "committables", committables)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        message = f"the checkpoint's part for a sink's global committer cannot be read: {error!r:.400}"
        raise CheckpointMismatchError(message) from error
    return checkpoint_id, GlobalCommittable(owner, attempt, checkpoint_id, tuple(committables))
