"""The operator that drives a sink through the two phases of a commit.

A writer's output becomes *committables* at each barrier; they are part of that checkpoint (operator state
``committables``, as pairs of checkpoint id and committable) and are committed once the checkpoint is known to be
complete. The one invariant: a committable is in the state of every checkpoint from the one that made it until one taken
after its commit. So whatever checkpoint a job restores, everything up to it is either visible already or is in the
restored state, and committing it again changes nothing. An aborted checkpoint loses nothing for the same reason: its
committables stay pending and are part of the next one.

A sink that commits has a *history* (state ``history``, a union list of which the first subtask writes the one element):
who prepared output that led to the checkpoint, and up to which one. With it a sink can tell what is public and was made
behind the checkpoint that is restored.

Commits run beside the task (`headrace.engine.commits`), between two lines that they never cross. A task is READY only
when its committer is open and has committed what was restored; as no task starts before all are ready, a job writes
nothing before every commit of its past is done. And it is FINISHED only after its last commit. What fails
behind that commit, where there is nothing to do but to clean up, is a warning: a restart would meet it again for ever.

Without checkpoints nobody would ever tell a sink to commit, so what was written becomes visible at the end of the job.

Source: Flink's ``SinkWriterOperator`` and ``CommitterOperator``; FLIP-143, FLIP-191; rows G15 to G17.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from headrace.engine.checkpointed import attach
from headrace.engine.commits import CommitQueue, warn
from headrace.engine.connector import Sink, SinkHistory, SinkWriter, SupportsCommitProof, WriterContext
from headrace.engine.errors import CheckpointMismatchError, InternalError, ProgramError
from headrace.engine.operators import Operator, OperatorContext
from headrace.engine.records import Batch
from headrace.state.backend import ListStateHandle
from headrace.state.manifest_schema import is_count, require
from headrace.state.snapshot_names import SINK_HISTORY

__all__ = ["NO_CHECKPOINT", "SinkOperator"]

_NAME = re.compile(r"[0-9a-f]{12}")
"""Of an origin or an owner."""

NO_CHECKPOINT = 0
"""The checkpoint id under which a sink prepares when no checkpoints are taken; real ones count from 1."""


class SinkOperator(Operator):
    """Writes what comes in and commits it with the checkpoint it belongs to.

    Probe points: ``sink.prepare`` (durable, not yet in a snapshot), ``sink.commit.before``, ``sink.commit.<k>`` (after
    the k-th committable of a round, from 0), ``sink.commit.after``.

    Args:
        sink: Where the records go.
    """

    may_change_records = False

    keeps_work = True

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # Commits that fall behind hold back the input.
        self.offloads = hasattr(sink, "create_committer")
        # Made in `open`; None before, so that `close` after a failed start has nothing to do.
        self._writer: SinkWriter | None = None
        # None for a sink that does not commit.
        self._commits: CommitQueue | None = None
        self._history = SinkHistory("", "")
        # All of the job's output is prepared, and its commit is due.
        self._has_job_finished = False
        # The first and the last checkpoint that this attempt prepared for; None before it has.
        self._first_prepared: int | None = None
        self._last_prepared: int | None = None

    @property
    def is_one_region(self) -> bool:
        return self.commits and not getattr(self.sink, "subtasks_are_independent", False)

    @property
    def commits(self) -> bool:
        return hasattr(self.sink, "create_committer")

    @property
    def proves_commits(self) -> bool:
        return isinstance(self.sink, SupportsCommitProof) and self.sink.proves_commits

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
        self._history_state: ListStateHandle = context.operator_state.union_list_state(SINK_HISTORY)
        self._history = _history_of(context, self._history_state.get())
        self._history_state.update([])
        writer = self.sink.create_writer()
        self._writer = writer
        attach(writer, context, None)
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
                history=self._history,
            )
        )
        self._write = writer.write
        create_committer = getattr(self.sink, "create_committer", None)
        if create_committer is not None:
            self._commits = CommitQueue(create_committer(), context, restored, self._history)
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
        if self.context.subtask == 0:
            history = self._history
            prepared = {**history.prepared, history.owner: checkpoint_id}
            self._history_state.update([{"origin": history.origin, "prepared": prepared}])

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
            self._prepare(last)
            if self._commits is not None:
                self._commits.commit_up_to(last)
        elif self._commits is not None and self._commits.undue():
            message = "output is still uncommitted after the job's last checkpoint"
            raise InternalError(message, checkpoints=self._commits.undue())
        self._has_job_finished = True
        if self._commits is not None:
            self._commits.finish()

    def close(self) -> None:
        """Close writer and committer, as far as there are any."""
        writer, self._writer = self._writer, None
        is_done = self._has_job_finished and self._commits is not None and self.is_settled
        try:
            try:
                if writer is not None:
                    writer.close()
            finally:
                if self._commits is not None:
                    self._commits.close()
        except Exception as error:
            if not is_done:
                raise
            warn(self.context, "could not clean up behind the last commit", error)

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


def _history_of(context: OperatorContext, restored: Iterable[Any]) -> SinkHistory:
    """What a restored checkpoint says of the sink's past; a beginning if it says nothing."""
    owner = hashlib.blake2b(f"{context.job}\0{context.operator}".encode(), digest_size=6).hexdigest()
    origin, prepared = owner, dict[str, int]()
    for part in restored:
        try:
            origin = part["origin"]
            for name in (origin, *part["prepared"]):  # sinks make names of files of them
                require(type(name) is str and _NAME.fullmatch(name) is not None, "name", name)
            for name, checkpoint_id in part["prepared"].items():
                require(is_count(checkpoint_id), "checkpoint", checkpoint_id)
                prepared[name] = max(checkpoint_id, prepared.get(name, 0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the checkpoint's part for a sink's history cannot be read: {error!r:.400}"
            raise CheckpointMismatchError(message) from error
    return SinkHistory(origin, owner, prepared)
