"""The operator that drives a sink through the two phases of a commit.

A writer's output becomes *committables* at each barrier; they are part of that checkpoint (operator state
``committables``, as pairs of checkpoint id and committable) and are committed once the checkpoint is known to be
complete. The one invariant: a committable is in the state of every checkpoint from the one that made it until one taken
after its commit. So whatever checkpoint a job restores, everything up to it is either visible already or is in the
restored state, and committing it again changes nothing. An aborted checkpoint loses nothing for the same reason: its
committables stay pending and are part of the next one.

Commits run beside the task (`headrace.engine.commits`), between two lines that they never cross. A task is READY only
when its committer is open and has committed what was restored; as no task starts before all are ready, a job writes
nothing before every commit of its past is done. And it is FINISHED only after its last commit.

Without checkpoints nobody would ever tell a sink to commit, so what was written becomes visible at the end of the job.

Source: Flink's ``SinkWriterOperator`` and ``CommitterOperator``; FLIP-143, FLIP-191; rows G15 to G17.
"""

from __future__ import annotations

from headrace.engine.checkpointed import initialize_function
from headrace.engine.commits import CommitQueue
from headrace.engine.connector import Sink, SinkWriter, WriterContext
from headrace.engine.errors import CheckpointMismatchError, InternalError, ProgramError
from headrace.engine.operators import Operator, OperatorContext
from headrace.engine.records import Batch
from headrace.state.backend import ListStateHandle

__all__ = ["NO_CHECKPOINT", "SinkOperator"]

NO_CHECKPOINT = 0
"""The checkpoint id under which a sink prepares when no checkpoints are taken; real ones count from 1."""


class SinkOperator(Operator):
    """Writes what comes in and commits it with the checkpoint it belongs to.

    Probe points: ``sink.prepare`` (durable, not yet in a snapshot), ``sink.commit.before``, ``sink.commit.<k>`` (after
    the k-th committable of a round, from 0), ``sink.commit.after``.

    Args:
        sink: Where the records go.
    """

    keeps_work = True

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # Commits that fall behind hold back the input.
        self.offloads = hasattr(sink, "create_committer")
        # Made in `open`; None before, so that `close` after a failed start has nothing to do.
        self._writer: SinkWriter | None = None
        # None for a sink that does not commit.
        self._commits: CommitQueue | None = None
        # The first and the last checkpoint that this attempt prepared for; None before it has.
        self._first_prepared: int | None = None
        self._last_prepared: int | None = None

    @property
    def is_one_region(self) -> bool:
        return hasattr(self.sink, "create_committer") and not getattr(self.sink, "subtasks_are_independent", False)

    @property
    def is_settled(self) -> bool:
        return self._commits is None or self._commits.is_settled

    @property
    def is_blocked(self) -> bool:
        return self._commits is not None and self._commits.is_full

    def open(self, context: OperatorContext) -> None:
        """Make writer and committer, and begin to commit what the restored checkpoint holds."""
        super().open(context)
        self._state: ListStateHandle = context.operator_state.list_state("committables")
        restored = [(int(checkpoint_id), committable) for checkpoint_id, committable in self._state.get()]
        restored.sort(key=lambda pair: pair[0])
        writer = self.sink.create_writer()
        self._writer = writer
        initialize_function(writer, context, None)
        writer.open(
            WriterContext(
                job=context.job,
                operator=context.operator,
                operator_name=context.name,
                subtask=context.subtask,
                parallelism=context.parallelism,
                attempt=context.attempt,
                now_ms=context.now_ms,
                metrics=context.metrics,
                probe=context.probe,
                report=context.report,
                checkpointing=context.checkpointing,
            )
        )
        self._write = writer.write
        create_committer = getattr(self.sink, "create_committer", None)
        if create_committer is not None:
            self._commits = CommitQueue(create_committer(), context, restored)
            self._commits.open()
        elif restored:
            message = "the checkpoint holds prepared output, and the sink has no committer to commit it"
            raise CheckpointMismatchError(message, checkpoint=restored[0][0], committables=len(restored))

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Hand records to the writer."""
        self._write(batch)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Prepare what was written since the last barrier; with what is still pending it is in the checkpoint."""
        self._prepare(checkpoint_id)
        if self._commits is None:
            return
        pending = self._commits.pending
        if self.context.takes_savepoint and pending and self._writer is not None:
            self._writer.retain([committable for _, committable in pending])
        self._state.update(pending)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit what the checkpoint and all before it hold."""
        if self._commits is None or self._first_prepared is None or checkpoint_id < self._first_prepared:
            return
        self._commits.commit_up_to(checkpoint_id)

    def finish_job(self) -> None:
        """Make the rest visible: all without checkpoints, nothing with them, as the last one held it."""
        if not self.context.checkpointing:
            # Savepoints may have been taken all the same: what they hold is committed only now.
            last = NO_CHECKPOINT if self._last_prepared is None else self._last_prepared
            self._prepare(last)
            if self._commits is not None:
                self._commits.commit_up_to(last)
        elif self._commits is not None and self._commits.undue():
            message = "output is still uncommitted after the job's last checkpoint"
            raise InternalError(message, checkpoints=self._commits.undue())

    def close(self) -> None:
        """Close writer and committer, as far as there are any."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            if self._commits is not None:
                self._commits.close()

    def _prepare(self, checkpoint_id: int) -> None:
        if self._writer is None:
            message = "the sink's writer is not open"
            raise InternalError(message)
        if self._first_prepared is None:
            self._first_prepared = checkpoint_id
        self._last_prepared = checkpoint_id
        committables = self._writer.prepare(checkpoint_id)
        if self._commits is not None:
            self._commits.add(checkpoint_id, committables)
        elif committables:
            message = "the sink's writer prepares output, and the sink has no create_committer"
            raise ProgramError(message, sink=type(self.sink).__name__)
        self.context.probe("sink.prepare")
