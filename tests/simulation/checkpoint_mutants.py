"""Planted bugs of aligned checkpoints: barriers, what is stored, restored and committed, and the links that carry it.

They are run by `simulation.mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulation.planted import Mutant, patch, planted_in

from headrace.engine.checkpoint import coordinator as checkpointing
from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint import pending as pending_checkpoint
from headrace.engine.checkpoint.restore_choice import Choice
from headrace.engine.columns.records import CheckpointBarrier
from headrace.engine.connectors import commits, sinks, sources
from headrace.engine.job.sources import split_assignment
from headrace.engine.kernel import link
from headrace.engine.protocol.checkpoint_messages import CheckpointOutcome
from headrace.engine.task import slot, source_turns
from headrace.engine.task.barriers import Alignment, BarrierAligner
from headrace.engine.task.channels import InputChannel, OutputChannel
from headrace.state.backends.heap import backend as heap
from headrace.state.checkpoints.storage import CheckpointStorage

CHECKPOINT_MUTANTS: dict[str, Mutant] = {}
mutant = planted_in(CHECKPOINT_MUTANTS)


@mutant
def barriers_are_not_aligned() -> Iterator[None]:
    """Input behind a barrier is processed before the snapshot."""
    original = BarrierAligner.on_barrier

    def on_barrier(self: BarrierAligner, channel: int, barrier: CheckpointBarrier) -> Alignment:
        return replace(original(self, channel, barrier), block=None)

    with patch(BarrierAligner, "on_barrier", on_barrier):
        yield


@mutant
def snapshot_at_the_first_barrier() -> Iterator[None]:
    """A task does not wait for the barriers of its other inputs."""
    original = BarrierAligner.on_barrier

    def on_barrier(self: BarrierAligner, channel: int, barrier: CheckpointBarrier) -> Alignment:
        self.num_channels = 1
        return original(self, channel, barrier)

    with patch(BarrierAligner, "on_barrier", on_barrier):
        yield


@mutant
def barrier_is_dropped() -> Iterator[None]:
    """A barrier does not reach the last channel of a task with several."""
    original = OutputChannel.add_control

    def add_control(self: OutputChannel, element: Any, now_ms: int, *, flush: bool = False) -> None:
        if not (isinstance(element, CheckpointBarrier) and element.checkpoint_id % 2 and self.consumer.subtask == 1):
            original(self, element, now_ms, flush=flush)

    with patch(OutputChannel, "add_control", add_control):
        yield


@mutant
def barrier_overtakes_records() -> Iterator[None]:
    """A barrier is sent before the records that wait in the output buffer."""
    original = OutputChannel.add_control

    def add_control(self: OutputChannel, element: Any, now_ms: int, *, flush: bool = False) -> None:
        original(self, element, now_ms, flush=flush)
        if isinstance(element, CheckpointBarrier):
            self._pending.insert(0, self._pending.pop())

    with patch(OutputChannel, "add_control", add_control):
        yield


@mutant
def gap_is_ignored() -> Iterator[None]:
    """A link hands on frames although earlier ones are missing, and channels do not look at their sequence either."""

    def receive_frame(self: link.LinkReceiver, frame: link.Frame) -> Any:
        if frame.sequence < self.expected:
            return ()
        self.expected = frame.sequence + 1
        return frame.parcels

    def receive(self: InputChannel, message: Any) -> None:
        self._queue.append(message)

    with patch(link.LinkReceiver, "receive", receive_frame), patch(InputChannel, "receive", receive):
        yield


@mutant
def repetition_is_processed() -> Iterator[None]:
    """A frame that arrives twice is handed on twice, and channels take the messages twice."""
    original = link.LinkReceiver.receive

    def receive_frame(self: link.LinkReceiver, frame: link.Frame) -> Any:
        return frame.parcels if frame.sequence < self.expected else original(self, frame)

    def receive(self: InputChannel, message: Any) -> None:
        self._queue.append(message)

    with patch(link.LinkReceiver, "receive", receive_frame), patch(InputChannel, "receive", receive):
        yield


@mutant
def commit_before_publish() -> Iterator[None]:
    """A sink makes output visible at the barrier instead of when the checkpoint is complete."""
    original = sinks.SinkOperator.snapshot_state

    def snapshot_state(self: sinks.SinkOperator, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        self.notify_checkpoint_complete(checkpoint_id)

    with patch(sinks.SinkOperator, "snapshot_state", snapshot_state):
        yield


@mutant
def pending_commits_are_forgotten_on_restore() -> Iterator[None]:
    """What the checkpoint holds as prepared is not committed again."""
    original = commits.CommitQueue.open

    def open_queue(self: commits.CommitQueue) -> None:
        self._pending.clear()
        self._num_due = 0
        original(self)

    with patch(commits.CommitQueue, "open", open_queue):
        yield


@mutant
def job_ends_while_commits_are_under_way() -> Iterator[None]:
    """A task is finished, and its commits given up, before the last of them is done."""
    with patch(sinks.SinkOperator, "is_settled", True):
        yield


@mutant
def keyed_state_is_not_restored() -> Iterator[None]:
    """Operators start empty after a failure."""
    with patch(heap.HeapKeyedStateBackend, "restore", lambda self, parts: None):
        yield


@mutant
def source_positions_are_not_restored() -> Iterator[None]:
    """Readers start their splits again after a failure."""
    original = sources.SourceOperator.snapshot_state

    def snapshot_state(self: sources.SourceOperator, checkpoint_id: int) -> None:
        reader = self._reader
        before = reader.snapshot
        reader.snapshot = lambda: [replace(split, position=None) for split in before()]
        try:
            original(self, checkpoint_id)
        finally:
            reader.snapshot = before

    with patch(sources.SourceOperator, "snapshot_state", snapshot_state):
        yield


@mutant
def enumerator_forgets_what_it_assigned() -> Iterator[None]:
    """After a restore all splits are handed out again."""
    with patch(split_assignment.SplitAssignment, "restore", lambda self, _snapshot: self):
        yield


@mutant
def publish_without_all_acknowledgements() -> Iterator[None]:
    """A checkpoint counts as complete when one task has acknowledged it."""
    with patch(
        pending_checkpoint.PendingCheckpoint,
        "is_fully_acknowledged",
        property(lambda self: self.awaited is not None and bool(self.acknowledged)),
    ):
        yield


@mutant
def older_checkpoint_is_restored() -> Iterator[None]:
    """A restore takes the oldest retained checkpoint although output has been committed since."""

    def choose(storage: CheckpointStorage, _past: Any) -> Choice:
        complete = storage.list_complete()
        return Choice(storage.load(complete[0]) if complete else None)

    with patch(checkpoint_io, "choose_checkpoint", choose):
        yield


@mutant
def complete_before_published() -> Iterator[None]:
    """The coordinator tells that a checkpoint is complete when it begins to publish it."""
    original = checkpointing.CheckpointCoordinator._publish_next

    def publish_next(self: Any, now_ms: int) -> Any:
        commands = original(self, now_ms)
        if not commands:
            return commands
        return [*commands, self._ended(self._publishing.checkpoint_id, CheckpointOutcome.COMPLETED)]

    with patch(checkpointing.CheckpointCoordinator, "_publish_next", publish_next):
        yield


@mutant
def attempts_are_not_fenced() -> Iterator[None]:
    """A slot gives a task whatever is addressed to any attempt of its subtask, by whatever attempt of the producer."""

    def on_data(self: slot.SlotMachine, message: Any) -> list[Any]:
        for attempt, hosted in self._tasks.items():
            if attempt[2:] == message.consumer[2:]:
                self._turns.touch(hosted)
                for (edge, producer), channel in hosted._input_by_peer.items():
                    if edge == message.edge_id and producer[2:] == message.producer[2:]:
                        channel._queue.append(message)
        return []

    with patch(slot.SlotMachine, "_on_data", on_data):
        yield


@mutant
def credit_wakes_nobody() -> Iterator[None]:
    """A task that gets credit is not asked whether it can go on."""

    def on_credit(self: slot.SlotMachine, credit: Any) -> list[Any]:
        task = self._tasks.get(credit.producer)
        if task is not None:
            task.add_credit(credit)
        return []

    with patch(slot.SlotMachine, "_on_credit", on_credit):
        yield


@mutant
def end_before_the_final_checkpoint() -> Iterator[None]:
    """Sinks drop what no checkpoint holds when the job ends, and the job ends without the last checkpoint."""
    original = sinks.SinkOperator.finish_job

    def finish_job(self: sinks.SinkOperator) -> None:
        if self._commits is not None:
            self._commits._pending.clear()
        original(self)

    def notify(self: sinks.SinkOperator, checkpoint_id: int) -> None:
        pass

    with (
        patch(sinks.SinkOperator, "finish_job", finish_job),
        patch(sinks.SinkOperator, "notify_checkpoint_complete", notify),
    ):
        yield


@mutant
def split_answer_is_taken_twice() -> Iterator[None]:
    """A repeated or old answer to a split request is taken like a new one, and repetitions get through."""
    original = source_turns.SourceTurns.take_split

    def take_split(self: source_turns.SourceTurns, answer: Any) -> None:
        original(self, answer)
        self._split_nonce -= bool(answer.splits)
        original(self, answer)

    with patch(source_turns.SourceTurns, "take_split", take_split):
        yield


@mutant
def storm_leaves_frames_to_one_repair_per_silence() -> Iterator[None]:
    """Of what a storm has swallowed, a few frames are sent again, and the next ones only after another silence."""
    original = link.LinkSender.acknowledge

    def acknowledge(self: link.LinkSender, ack: int, now_ms: int) -> None:
        self._sent_below = 0
        original(self, ack, now_ms)

    with patch(link.LinkSender, "acknowledge", acknowledge):
        yield


@mutant
def storm_makes_hosts_give_each_other_up() -> Iterator[None]:
    """A link closes for good after a silence of two minutes, and nobody is told."""
    original = link.LinkSender.retransmit

    def retransmit(self: link.LinkSender, ack: int, now_ms: int) -> list[link.Frame]:
        if self.retry_at is not None and now_ms - self._waiting_since >= 120_000:
            self.close()
        return original(self, ack, now_ms)

    with patch(link.LinkSender, "retransmit", retransmit):
        yield
