"""The way of a barrier through a task: alignment, snapshot, forwarding, upload, acknowledgement.

1. The aligner says when the barrier counts: at once for a source, when it has come on all channels otherwise. Channels
   on which it has come are blocked meanwhile.
2. The operators are snapshotted (the synchronous part), and the barrier is forwarded behind all they have emitted.
3. The snapshot is written outside of the task's thread. The head of a loop *holds* it until it knows what was in the
   loop, which belongs to it (`headrace.engine.iterations`).
4. Its end is acknowledged with the names of the files, or the checkpoint is declined.

A checkpoint that is aborted, declined or superseded is forgotten wherever it stands. What is held of its snapshot is
dropped, and with it the local files it needed; an upload under way is left to end, and nobody listens.

Order at barrier n (features row 0.10): operators flush pending output; state is snapshotted; the barrier is forwarded;
channels are unblocked.

Source: Flink's ``SubtaskCheckpointCoordinatorImpl`` and ``AsyncCheckpointRunnable``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.engine.barriers import Alignment, BarrierAligner
from headrace.engine.channels import InputChannel
from headrace.engine.config import CheckpointingMode
from headrace.engine.machine import Offload
from headrace.engine.messages import AcknowledgeCheckpoint, DeclineCheckpoint, TaskDeployment
from headrace.engine.records import CheckpointBarrier
from headrace.engine.snapshot_io import discard_late_snapshot, upload_snapshot
from headrace.engine.task_chain import OperatorChain, SnapshotDraft
from headrace.engine.task_channels import TaskOutputs
from headrace.engine.task_loops import LoopFeedback
from headrace.engine.task_outbox import TaskOutbox
from headrace.state.snapshot import OperatorSnapshot

__all__ = ["TaskCheckpoints"]


class _Taken(NamedTuple):
    """A snapshot that has been taken and not been acknowledged."""

    started_ms: int
    alignment_ms: int
    sync_ms: int
    # The folder of a savepoint; None for a checkpoint.
    savepoint: str | None = None


class TaskCheckpoints:
    """The checkpoints under way in one task.

    Args:
        deployment: Where snapshots are written.
        chain: What is snapshotted.
        inputs: The channels that are aligned.
        outputs: Where barriers are forwarded to.
        outbox: Takes uploads, acknowledgements and declines.
        now_ms: The clock.
        probe: Marks protocol points.
        feedback: For the head of a loop: whose logs belong to its snapshots.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        chain: OperatorChain,
        inputs: Sequence[InputChannel],
        outputs: TaskOutputs,
        outbox: TaskOutbox,
        now_ms: Callable[[], int],
        probe: Callable[[str], None],
        feedback: LoopFeedback | None,
    ) -> None:
        self._deployment = deployment
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._outbox = outbox
        self._now_ms = now_ms
        self._probe = probe
        self._feedback = feedback
        checkpoints = deployment.settings.checkpoints
        mode = checkpoints.mode if checkpoints else CheckpointingMode.EXACTLY_ONCE
        self.is_aligned = mode is CheckpointingMode.EXACTLY_ONCE
        self._aligner = BarrierAligner(len(inputs), mode)
        # When the first barrier of the current alignment came.
        self._alignment_started_ms: int | None = None
        # Snapshots that have been taken, until they are written or given up, by checkpoint.
        self._taken: dict[int, _Taken] = {}
        # Those among them that wait for what is in the loop.
        self._held: dict[int, SnapshotDraft] = {}
        # Savepoints that were given up while they were written, with their folders.
        self._late: dict[int, str] = {}

    # --------------------------------------------------------------------------------------------------------- barriers
    def on_barrier(self, channel: InputChannel, barrier: CheckpointBarrier) -> bool:
        """Take a barrier that has come on a channel.

        Returns:
            Whether it was the last one: the snapshot has been taken.
        """
        return self._apply(self._aligner.on_barrier(channel.index, barrier))

    def abort(self, checkpoint_id: int) -> None:
        """The coordinator has given a checkpoint up: nothing waits for it any more."""
        self._forget(checkpoint_id)
        self._apply(self._aligner.on_abort(checkpoint_id))

    def decline(self, checkpoint_id: int, reason: str) -> None:
        """Tell the coordinator that this task has no part in a checkpoint."""
        self._forget(checkpoint_id)
        self._outbox.tell_coordinator(DeclineCheckpoint(self._outbox.attempt, checkpoint_id, reason))

    def close(self) -> None:
        """The task ends: give up all that is held."""
        self._taken.clear()
        self._held.clear()

    def _apply(self, alignment: Alignment) -> bool:
        if alignment.superseded is not None:
            self.decline(alignment.superseded, "superseded by a newer checkpoint")
        if alignment.unblock:
            self._unblock()
        if alignment.block is not None:
            self._probe("task.align.first_barrier" if self._alignment_started_ms is None else "task.align.barrier")
            if self._alignment_started_ms is None:
                self._alignment_started_ms = self._now_ms()
            self._inputs[alignment.block].is_blocked = True
        if alignment.trigger is None:
            return False
        started_ms = self._alignment_started_ms
        self.take_snapshot(alignment.trigger, 0 if started_ms is None else self._now_ms() - started_ms)
        self._unblock()
        return True

    def _unblock(self) -> None:
        self._alignment_started_ms = None
        for channel in self._inputs:
            channel.is_blocked = False

    def _forget(self, checkpoint_id: int) -> None:
        taken = self._taken.pop(checkpoint_id, None)
        held = self._held.pop(checkpoint_id, None)
        if taken is not None and taken.savepoint is not None and held is None:
            self._late[checkpoint_id] = taken.savepoint

    # -------------------------------------------------------------------------------------------------------- snapshots
    def take_snapshot(self, barrier: CheckpointBarrier, alignment_ms: int = 0) -> None:
        """Take the snapshot of a checkpoint, forward its barrier and have it written; a source begins here."""
        checkpoint_id = barrier.checkpoint_id
        started_ms = self._now_ms()
        self._probe("task.snapshot.before")
        draft = self._chain.snapshot(checkpoint_id, barrier.base_id, is_savepoint=barrier.savepoint is not None)
        self._probe("task.snapshot.after")
        self._outputs.broadcast(barrier)
        self._probe("task.barrier.forwarded")
        self._taken[checkpoint_id] = _Taken(started_ms, alignment_ms, self._now_ms() - started_ms, barrier.savepoint)
        if self._feedback is None:
            self._upload(checkpoint_id, draft)
        else:
            self._held[checkpoint_id] = draft
            self.upload_logged()

    def upload_logged(self) -> None:
        """Write the snapshots that were held and for which it is known by now what was in the loop."""
        assert self._feedback is not None
        for checkpoint_id, log in self._feedback.take_complete_logs():
            draft = self._held.pop(checkpoint_id, None)
            if draft is not None:
                _, parts = draft[0]  # those of the head
                parts.extend(log)
                self._upload(checkpoint_id, draft)

    def _upload(self, checkpoint_id: int, draft: SnapshotDraft) -> None:
        savepoint = self._taken[checkpoint_id].savepoint
        work = functools.partial(upload_snapshot, self._deployment, checkpoint_id, draft, savepoint)
        self._outbox.add(Offload("upload_snapshot", (self._outbox.attempt, checkpoint_id), work))

    def upload_ended(
        self, checkpoint_id: int, snapshots: tuple[OperatorSnapshot, ...] | None, error: BaseException | None
    ) -> None:
        """The asynchronous part of a snapshot has ended: acknowledge it, or decline."""
        taken = self._taken.pop(checkpoint_id, None)
        if taken is None:  # aborted meanwhile
            folder = self._late.pop(checkpoint_id, None)
            if folder is not None and snapshots is not None:
                discard = functools.partial(discard_late_snapshot, folder, snapshots)
                self._outbox.add(Offload("discard_savepoint", (self._outbox.attempt, checkpoint_id), discard))
            return
        if error is not None or snapshots is None:
            self.decline(checkpoint_id, f"could not write the snapshot: {error}")
            return
        if taken.savepoint is None:  # nothing ever builds on a savepoint
            self._chain.snapshot_stored(checkpoint_id, snapshots)
        files = [file for snapshot in snapshots for file in snapshot.files]
        metrics = {
            "alignment_ms": float(taken.alignment_ms),
            "sync_ms": float(taken.sync_ms),
            "async_ms": float(self._now_ms() - taken.started_ms - taken.sync_ms),
            "bytes": float(sum(file.size for file in files)),
            "uploaded_bytes": float(sum(file.size for file in files if file.is_made_for(checkpoint_id))),
        }
        self._outbox.tell_coordinator(AcknowledgeCheckpoint(self._outbox.attempt, checkpoint_id, snapshots, metrics))
