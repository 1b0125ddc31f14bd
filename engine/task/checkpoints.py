"""The way of a barrier through a task: alignment or overtaking, snapshot, forwarding, upload, acknowledgement.

1. The aligner says when the barrier counts: at once for a source, when it has come on all channels otherwise. Channels
   on which it has come are blocked meanwhile.
2. The operators are snapshotted (the synchronous part), and the barrier is forwarded behind all they have emitted.
3. The snapshot is written outside of the task's thread. The head of a loop *holds* it until it knows what was in the
   loop, which belongs to it (`headrace.engine.task.loop_head`).
4. Its end is acknowledged with the names of the files, or the checkpoint is declined.

A checkpoint that is aborted, declined or superseded is forgotten wherever it stands. What is held of its snapshot is
dropped, and with it the local files it needed; an upload under way is left to end, and its end is ignored.

Order at barrier n: operators flush pending output; state is snapshotted; the barrier is forwarded; channels are
unblocked.

**Unaligned.** If that is enabled a barrier goes its way in order until its checkpoint is ``aligned_timeout_ms`` old;
then it *overtakes*. A task that has seen it come on some channel, queued or not, takes its snapshot at once, and the
barrier goes on ahead of all that waits for credit. A barrier that waits for credit itself is taken out of the queue and
sent ahead. What was overtaken belongs to the snapshot, which is held until that is all known
(`headrace.engine.task.in_flight`). A barrier that has overtaken is acted upon when it arrives, whatever is queued
there.

Some exchanges *keep order* (`headrace.engine.graph.job_graph.JobEdge.keeps_order`): on their channels barriers wait
their turn, always, and no record is ever in flight in a checkpoint. A task that is fed by one overtakes nothing before
it has taken the barrier from all such channels; meanwhile a barrier that came ahead on another channel is queued there.

The invariant: what a channel carried before barrier n is, record by record, either in the effects of the consumer's
snapshot n or in a log of n, of one end or the other, and never in both.

Source: Flink's ``SubtaskCheckpointCoordinatorImpl``, ``AsyncCheckpointRunnable`` and
``AlternatingCollectingBarriersUnaligned``; FLIP-76.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot
from headrace.state.identifiers import OperatorId

from ..columns.records import Batch, CheckpointBarrier
from ..kernel.config import CheckpointingMode
from ..kernel.machine import Offload
from ..protocol.checkpoint_messages import AcknowledgeCheckpoint, DeclineCheckpoint
from ..protocol.task_messages import DataMessage, TaskDeployment
from .barriers import Alignment, BarrierAligner, is_always_aligned
from .channel_state import Logged
from .channels import InputChannel
from .in_flight import InFlightLog, LogPlaces
from .inputs_outputs import TaskOutputs
from .loops import LoopFeedback
from .operator_chain import OperatorChain, SnapshotDraft
from .outbox import LateSnapshotDiscarded, SnapshotUploaded, TaskOutbox
from .snapshot_io import discard_late_snapshot, upload_snapshot

__all__ = ["TaskCheckpoints"]

LeftToReplay = Callable[[], list[tuple[OperatorId, int, str, Logged]]]
"""Gives what a restore brought and has not been processed."""


@dataclass(slots=True)
class _Taken:
    """A snapshot that has been taken and not been acknowledged."""

    started_ms: int
    # When the first barrier came; None for a source.
    aligned_since_ms: int | None
    alignment_ms: int
    sync_ms: int
    # The folder of a savepoint; None for a checkpoint.
    savepoint: str | None = None
    is_unaligned: bool = False


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
        left_to_replay: What was in flight before and is still to be processed: part of every snapshot.

    Attributes:
        is_aligned: Whether barriers block channels (exactly-once).
        may_overtake: Whether they may overtake; then `arrived` wants to see every message.
        due_ms: When `overtake_due` has something to do; None if nothing waits for time.
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
        left_to_replay: LeftToReplay,
    ) -> None:
        self._deployment = deployment
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._outbox = outbox
        self._now_ms = now_ms
        self._probe = probe
        self._feedback = feedback
        self._left_to_replay = left_to_replay
        checkpoints = deployment.settings.checkpoints
        mode = checkpoints.mode if checkpoints else CheckpointingMode.EXACTLY_ONCE
        self.is_aligned = mode is CheckpointingMode.EXACTLY_ONCE
        self._aligner = BarrierAligner(len(inputs), mode)
        self.may_overtake = self.is_aligned and checkpoints is not None and checkpoints.unaligned
        self.due_ms: int | None = None
        self._aligned_timeout_ms = checkpoints.aligned_timeout_ms if checkpoints else 0
        self._places = LogPlaces(deployment, chain.vertex)
        # The channels on which barriers never overtake.
        self._ordered = frozenset(channel.index for channel in inputs if channel.keeps_order)
        # The newest barrier that waits in the queue of some channel and may overtake; and when its time has come.
        self._queued: CheckpointBarrier | None = None
        self._queued_due_ms = 0
        # What was in flight, of snapshots that wait for it to be known, by checkpoint.
        self._logs: dict[int, InFlightLog] = {}
        # When the first barrier of the current alignment came.
        self._alignment_started_ms: int | None = None
        # Snapshots that have been taken, until they are written or given up, by checkpoint.
        self._taken: dict[int, _Taken] = {}
        # Those among them that wait for what is in the loop, or in flight.
        self._held: dict[int, SnapshotDraft] = {}
        # Savepoints that were given up while they were written, with their folders.
        self._late: dict[int, str] = {}

    # --------------------------------------------------------------------------------------------------------- barriers
    def on_barrier(self, channel: InputChannel, barrier: CheckpointBarrier) -> bool:
        """Take a barrier that has come on a channel.

        Returns:
            Whether it was the last one: the snapshot has been taken.
        """
        is_last = self._apply(self._aligner.on_barrier(channel.index, barrier))
        if self._queued is not None and channel.keeps_order:
            self._note_due()
        return is_last

    def arrived(self, channel: InputChannel, message: DataMessage) -> None:
        """See a message when it comes, before anything of it is taken: what it brings may be in flight at a checkpoint.

        Raises:
            HeadraceError: If an operator fails in a snapshot that begins here.
        """
        for element in message.elements:
            if isinstance(element, Batch):
                for log in self._logs.values():
                    if channel.index in log.awaited:
                        log.add_input(channel, (element,))
            elif isinstance(element, CheckpointBarrier):
                self._barrier_arrived(channel, element, message)

    def _barrier_arrived(self, channel: InputChannel, barrier: CheckpointBarrier, message: DataMessage) -> None:
        checkpoint_id = barrier.checkpoint_id
        for log in list(self._logs.values()):
            if channel.index not in log.awaited:
                continue
            if log.barrier.checkpoint_id == checkpoint_id:
                log.awaited.discard(channel.index)
                self._upload_if_complete(checkpoint_id)
            elif log.barrier.checkpoint_id < checkpoint_id:  # its barrier never came here, and will not
                self.decline(log.barrier.checkpoint_id, "superseded by a newer checkpoint")
        if not self._aligner.is_open(checkpoint_id):
            return
        due_ms = 0 if message.overtakes else self._overtakes_at_ms(barrier)
        if due_ms is None:
            return
        if self._may_overtake_now(checkpoint_id) and due_ms <= self._now_ms():
            self._overtake(barrier, channel.index if message.overtakes else None)
            return
        if message.overtakes:
            channel.keep_place(message)
        if self._queued is None or self._queued.checkpoint_id < checkpoint_id:
            self._queued, self._queued_due_ms = barrier, due_ms
        elif self._queued.checkpoint_id == checkpoint_id:
            self._queued_due_ms = min(self._queued_due_ms, due_ms)
        self._note_due()

    def abort(self, checkpoint_id: int) -> None:
        """Drop a checkpoint that the coordinator has given up: nothing waits for it any more."""
        self._apply(self._aligner.on_abort(checkpoint_id))
        self._forget(checkpoint_id)

    def decline(self, checkpoint_id: int, reason: str) -> None:
        """Tell the coordinator that this task has no part in a checkpoint."""
        self._forget(checkpoint_id)
        self._outbox.tell_coordinator(DeclineCheckpoint(self._outbox.attempt, checkpoint_id, reason))

    def close(self) -> None:
        """Give up all that is held, as the task ends."""
        self._taken.clear()
        self._held.clear()
        self._logs.clear()
        self._queued = self.due_ms = None

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
        self._take(alignment.trigger, InFlightLog(alignment.trigger, self._places))
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
        self._logs.pop(checkpoint_id, None)
        self._note_due()

    # ------------------------------------------------------------------------------------------------------- overtaking
    def _overtakes_at_ms(self, barrier: CheckpointBarrier) -> int | None:
        """When a barrier stops waiting its turn; None for never."""
        if not self.may_overtake or is_always_aligned(barrier):
            return None
        return barrier.timestamp_ms + self._aligned_timeout_ms

    def _may_overtake_now(self, checkpoint_id: int) -> bool:
        """Whether the barrier has been taken from all channels that keep order."""
        return self._ordered <= self._aligner.taken(checkpoint_id)

    def _note_due(self) -> None:
        """Find out when something is to overtake."""
        if self._queued is not None and not self._aligner.is_open(self._queued.checkpoint_id):
            self._queued = None
        held = [self._overtakes_at_ms(log.barrier) for log in self._logs.values() if log.holds_barrier]
        waiting = [due_ms for due_ms in held if due_ms is not None]
        if self._queued is not None and self._may_overtake_now(self._queued.checkpoint_id):
            waiting.append(self._queued_due_ms)
        self.due_ms = min(waiting, default=None)

    def overtake_due(self, now_ms: int) -> None:
        """Let barriers overtake whose time has come; called when ``due_ms`` has passed.

        Raises:
            HeadraceError: If an operator fails in a snapshot that begins here.
        """
        queued = self._queued
        if queued is not None and self._queued_due_ms <= now_ms and self._may_overtake_now(queued.checkpoint_id):
            self._overtake(queued, None)
        for checkpoint_id, log in list(self._logs.items()):
            if log.holds_barrier and self._is_due(log.barrier, now_ms):
                log.add_outputs(self._outputs.overtake(log.barrier, only_held=True))
                self._upload_if_complete(checkpoint_id)
        self._note_due()

    def _is_due(self, barrier: CheckpointBarrier, now_ms: int) -> bool:
        due_ms = self._overtakes_at_ms(barrier)
        return due_ms is not None and due_ms <= now_ms

    def _overtake(self, barrier: CheckpointBarrier, ahead_on: int | None) -> None:
        """Take the snapshot now, with what is in flight on the channels.

        Args:
            barrier: It has come on some channel.
            ahead_on: The channel on which it has come ahead of all that is queued there.
        """
        overtaking = self._aligner.on_overtaking(barrier)
        if overtaking is None:
            return
        if overtaking.superseded is not None:
            self.decline(overtaking.superseded, "superseded by a newer checkpoint")
        self._probe("task.overtake")
        log = InFlightLog(barrier, self._places)
        log.is_unaligned = True
        log.add_replay(self._left_to_replay())
        for channel in self._inputs:
            if channel.index in overtaking.aligned:
                continue
            batches, has_come = channel.in_flight(barrier.checkpoint_id)
            log.add_input(channel, batches)
            if not has_come and channel.index != ahead_on:
                log.awaited.add(channel.index)
        if self._alignment_started_ms is None:
            self._alignment_started_ms = self._now_ms()
        self._take(barrier, log)
        self._unblock()

    def outputs_flushed(self) -> None:
        """Note barriers that have left. Called after each flush of a task that `holds_barriers`."""
        for checkpoint_id, log in list(self._logs.items()):
            if log.holds_barrier and not self._outputs.holds_barrier(checkpoint_id):
                log.holds_barrier = False
                self._upload_if_complete(checkpoint_id)

    @property
    def holds_barriers(self) -> bool:
        """Whether snapshots wait for barriers to leave, or to come."""
        return bool(self._logs)

    # -------------------------------------------------------------------------------------------------------- snapshots
    def take_snapshot(self, barrier: CheckpointBarrier) -> None:
        """Take the snapshot of a checkpoint, forward its barrier and have it written; a source begins here."""
        self._take(barrier, InFlightLog(barrier, self._places))

    def _take(self, barrier: CheckpointBarrier, log: InFlightLog) -> None:
        checkpoint_id = barrier.checkpoint_id
        started_ms, since_ms = self._now_ms(), self._alignment_started_ms
        self._probe("task.snapshot.before")
        draft = self._chain.snapshot(checkpoint_id, barrier.base_id, is_savepoint=barrier.savepoint is not None)
        self._probe("task.snapshot.after")
        if not log.is_unaligned:
            log.add_replay(self._left_to_replay())
        due_ms = self._overtakes_at_ms(barrier)
        if due_ms is not None and (log.is_unaligned or due_ms <= started_ms):
            log.add_outputs(self._outputs.overtake(barrier))
        else:
            self._outputs.broadcast(barrier)
            log.holds_barrier = due_ms is not None and self._outputs.holds_barrier(checkpoint_id)
        self._probe("task.barrier.forwarded")
        now_ms = self._now_ms()
        self._taken[checkpoint_id] = _Taken(
            started_ms,
            since_ms,
            0 if since_ms is None else started_ms - since_ms,
            now_ms - started_ms,
            barrier.savepoint,
        )
        self._held[checkpoint_id] = draft
        self._logs[checkpoint_id] = log
        if self._feedback is not None:
            self.upload_logged()
        else:
            self._upload_if_complete(checkpoint_id)
        self._note_due()

    def _upload_if_complete(self, checkpoint_id: int) -> None:
        """Write a snapshot once all is known that was in flight."""
        log = self._logs[checkpoint_id]
        if not log.is_complete:
            return
        del self._logs[checkpoint_id]
        draft, taken = self._held.pop(checkpoint_id), self._taken[checkpoint_id]
        if log.is_unaligned:
            self._probe("task.in_flight.complete")
            taken.is_unaligned = True
            if taken.aligned_since_ms is not None:
                taken.alignment_ms = self._now_ms() - taken.aligned_since_ms
        parts = dict(draft)
        for operator, part in log.parts():
            parts[operator].append(part)
        self._upload(checkpoint_id, draft)

    def upload_logged(self) -> None:
        """Write the snapshots that were held and for which it is known by now what was in the loop."""
        assert self._feedback is not None
        for checkpoint_id, log in self._feedback.take_complete_logs():
            draft = self._held.pop(checkpoint_id, None)
            self._logs.pop(checkpoint_id, None)
            if draft is not None:
                _, parts = draft[0]  # those of the head
                parts.extend(log)
                self._upload(checkpoint_id, draft)

    def _upload(self, checkpoint_id: int, draft: SnapshotDraft) -> None:
        savepoint = self._taken[checkpoint_id].savepoint
        work = functools.partial(upload_snapshot, self._deployment, checkpoint_id, draft, savepoint)
        self._outbox.add(Offload("upload_snapshot", SnapshotUploaded(self._outbox.attempt, checkpoint_id), work))

    def upload_ended(
        self, checkpoint_id: int, snapshots: tuple[OperatorSnapshot, ...] | None, error: BaseException | None
    ) -> None:
        """Acknowledge or decline a checkpoint, as the asynchronous part of its snapshot has ended."""
        taken = self._taken.pop(checkpoint_id, None)
        if taken is None:  # aborted meanwhile
            folder = self._late.pop(checkpoint_id, None)
            if folder is not None and snapshots is not None:
                discard = functools.partial(discard_late_snapshot, folder, snapshots)
                discarded = LateSnapshotDiscarded(self._outbox.attempt, checkpoint_id)
                self._outbox.add(Offload("discard_savepoint", discarded, discard))
            return
        if error is not None or snapshots is None:
            if error is not None:
                self._chain.add_place(error)
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
            "persisted_bytes": float(sum(file.size for file in files if file.kind is FileKind.CHANNEL)),
            "is_unaligned": float(taken.is_unaligned),
        }
        self._outbox.tell_coordinator(AcknowledgeCheckpoint(self._outbox.attempt, checkpoint_id, snapshots, metrics))
