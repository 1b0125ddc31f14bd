"""The operator that drives a sink through the two phases of a commit.

A writer's output becomes *committables* at each barrier; they are part of that checkpoint (operator state
``committables``, as pairs of checkpoint id and committable) and are committed once the checkpoint is known to be
complete. The one invariant: a committable is in the state of every checkpoint from the one that made it until one taken
after its commit. So whatever checkpoint a job restores, everything up to it is either visible already or is in the
restored state, and committing it again changes nothing. An aborted checkpoint loses nothing for the same reason: its
committables stay pending and are part of the next one.

Commits run beside the task (`headrace.engine.connectors.commits`), between two lines that they never cross. A task is
READY only when its committer is open and has committed what was restored; as no task starts before all are ready, a job
writes nothing before every commit of its past is done. And it is FINISHED only after its last commit. What fails behind
that commit, where there is nothing to do but to clean up, is a warning: a restart would meet it again for ever.

Without checkpoints a sink would never be told to commit, so what was written becomes visible at the end of the job.

Source: Flink's ``SinkWriterOperator`` and ``CommitterOperator``; FLIP-143, FLIP-191.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from headrace.state.keyed.contract import ListStateHandle
from headrace.state.open.names import COMMITTABLES

from ..errors import CheckpointMismatchError, InternalError, ProgramError
from ..functions.operator import Operator, OperatorContext
from .commits import CommitQueue, warn
from .contract import Sink, SupportsCommitProof
from .sink_writers import WriterOperator

__all__ = ["NO_CHECKPOINT", "SinkOperator"]

NO_CHECKPOINT = 0
"""The checkpoint id under which a sink prepares when no checkpoints are taken; real ones count from 1."""


class CommitterOperator(Operator, ABC):
    """Makes output public when the checkpoint is complete that holds it.

    What is prepared, and when, is for subclasses to say: they call `_take` behind each preparation.
    """

    offloads = True
    may_change_records = False
    keeps_work = True

    # None before `open`, and for a sink that does not commit.
    _commits: CommitQueue | None = None
    # All of the job's output is prepared, and its commit is due.
    _has_job_finished = False
    # The first and the last checkpoint that this attempt prepared for; None before it has.
    _first_prepared: int | None = None
    _last_prepared: int | None = None

    @property
    def commits(self) -> bool:
        return True

    @property
    def is_settled(self) -> bool:
        return self._commits is None or self._commits.is_settled

    @property
    def is_blocked(self) -> bool:
        return self._commits is not None and self._commits.is_full

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit what the checkpoint and all before it hold."""
        if self._commits is None or self._first_prepared is None or checkpoint_id < self._first_prepared:
            return
        self._commits.commit_up_to(checkpoint_id)

    def finish_job(self) -> None:
        """Make the rest visible: all without checkpoints, nothing with them, as the last one held it."""
        if not self.context.checkpointing:
            # Savepoints may have been taken all the same: what they hold is committed only now.
            last = NO_CHECKPOINT if self._last_prepared is None else self._last_prepared + 1
            self._prepare_for(last)
            if self._commits is not None:
                self._commits.commit_up_to(last)
        elif self._commits is not None and self._commits.undue():
            message = "output is still uncommitted after the job's last checkpoint"
            raise InternalError(message, checkpoints=self._commits.undue())
        self._has_job_finished = True
        if self._commits is not None:
            self._commits.finish()

    def close(self) -> None:
        """Close the committer, if there is one, behind what else there is to be closed."""
        is_done = self._has_job_finished and self._commits is not None and self.is_settled
        try:
            try:
                super().close()
            finally:
                if self._commits is not None:
                    self._commits.close()
        except Exception as error:
            if not is_done:
                raise
            warn(self.context, "could not clean up behind the last commit", error)

    @abstractmethod
    def _prepare_for(self, checkpoint_id: int) -> None:
        """Prepare all that has come since the last time, by `_take`."""

    def _take(self, checkpoint_id: int, committables: list[Any]) -> None:
        """Take what is prepared for a checkpoint."""
        if self._first_prepared is None:
            self._first_prepared = checkpoint_id
        self._last_prepared = checkpoint_id
        if self._commits is not None:
            self._commits.add(checkpoint_id, committables)


class SinkOperator(CommitterOperator, WriterOperator):
    """Writes what comes in and commits it with the checkpoint it belongs to.

    Probe points: ``sink.prepare`` (durable, not yet in a snapshot), ``sink.commit.before``, ``sink.commit.<k>`` (after
    the k-th committable of a round, from 0), ``sink.commit.after``.

    Args:
        sink: Where the records go.
    """

    face = "as given"

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        # Commits that fall behind hold back the input.
        self.offloads = self.commits

    @property
    def is_one_region(self) -> bool:
        return self.commits and not getattr(self.sink, "subtasks_are_independent", False)

    @property
    def commits(self) -> bool:
        return hasattr(self.sink, "create_committer")

    @property
    def proves_commits(self) -> bool:
        return isinstance(self.sink, SupportsCommitProof) and self.sink.proves_commits

    def open(self, context: OperatorContext) -> None:
        """Make writer and committer, and begin to commit what the restored checkpoint holds."""
        super().open(context)
        self._state: ListStateHandle = context.operator_state.list_state(COMMITTABLES)
        restored = [(int(checkpoint_id), committable) for checkpoint_id, committable in self._state.get()]
        restored.sort(key=lambda pair: pair[0])
        create_committer = getattr(self.sink, "create_committer", None)
        if create_committer is not None:
            self._commits = CommitQueue(create_committer(), context, restored, self._history)
            self._commits.open()
        elif restored:
            message = "the checkpoint holds prepared output, and the sink has no committer to commit it"
            raise CheckpointMismatchError(message, checkpoint=restored[0][0], committables=len(restored))

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Prepare what was written since the last barrier; with what is still pending it is in the checkpoint."""
        self._prepare_for(checkpoint_id)
        if self._commits is None:
            return
        pending = self._commits.pending
        if self.context.takes_savepoint:
            self._retain([committable for _, committable in pending])
        self._state.update(pending)
        self._kept.prepared(checkpoint_id)

    def _prepare_for(self, checkpoint_id: int) -> None:
        committables = self._prepare(checkpoint_id)
        if committables and not self.commits:
            message = "the sink's writer prepares output, and the sink has no create_committer"
            raise ProgramError(message, sink=type(self.sink).__name__)
        self._take(checkpoint_id, committables)
        self.context.probe("sink.prepare")
