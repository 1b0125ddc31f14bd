"""Planted bugs: each must be caught by the simulator, or the simulator proves nothing.

``python tests/simulation/mutants.py``. Every mutant breaks one rule of the protocol in production code, in this
process only; then seeds are run until one fails. A mutant that survives all its seeds is a failure of the harness.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.loops import LOOPS, far_apart
from simulation.ordered_exchanges import dealt_by_hand, forwarded, rules_for_every_key
from simulation.planted import caught_by
from simulation.programs import SHAPES, sliding_count
from simulation.simulator import run_seed
from simulation.storms import run_storm_seed
from simulation.unaligned import RESCALED, run_cut_off_seed

from headrace.actors.sim.faults import FaultPlan
from headrace.engine.checkpoint import coordinator as checkpointing
from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint import pending as pending_checkpoint
from headrace.engine.checkpoint.choice import Choice
from headrace.engine.columns.records import Batch, CheckpointBarrier
from headrace.engine.connectors import commits, sinks, sources
from headrace.engine.job.sources import split_assignment
from headrace.engine.kernel import link
from headrace.engine.operators.exchange import BroadcastPartitioner, CustomPartitioner, ForwardPartitioner
from headrace.engine.protocol.checkpoint_messages import CheckpointOutcome
from headrace.engine.task import channel_state, iterations, loop_progress, slot, task
from headrace.engine.task import checkpoints as task_checkpoints
from headrace.engine.task import in_flight as task_inflight
from headrace.engine.task.barriers import Alignment, BarrierAligner
from headrace.engine.task.channels import InputChannel, OutputChannel
from headrace.engine.task.debloating import BufferDebloater
from headrace.engine.windows import slices
from headrace.state.backends.heap import backend as heap
from headrace.state.checkpoints.storage import CheckpointStorage

Mutant = Callable[[], Any]
MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Mutant) -> Mutant:
    """Register a planted bug: a context manager that plants it."""
    MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


def patch(owner: Any, name: str, replacement: Any) -> Any:
    return mock.patch.object(owner, name, replacement)


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
                for (edge, producer), channel in hosted._input_by_peer.items():
                    if edge == message.edge_id and producer[2:] == message.producer[2:]:
                        channel._queue.append(message)
        return []

    with patch(slot.SlotMachine, "_on_data", on_data):
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
    original = task.Task.take_split

    def take_split(self: task.Task, answer: Any) -> None:
        original(self, answer)
        self._split_nonce -= answer.split is not None
        original(self, answer)

    with patch(task.Task, "take_split", take_split):
        yield


@mutant
def loop_log_is_forgotten() -> Iterator[None]:
    """What was in a loop is not in it again after a restore."""
    with patch(iterations, "_own_share", lambda entries, subtask, parallelism: []):
        yield


@mutant
def loop_is_acknowledged_before_its_log_is_complete() -> Iterator[None]:
    """The head of a loop does not wait until the barrier has come back."""
    original = iterations.IterationHead.snapshot_state

    def snapshot_state(self: iterations.IterationHead, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        self._logs[checkpoint_id].awaited.clear()

    with patch(iterations.IterationHead, "snapshot_state", snapshot_state):
        yield


@mutant
def loop_forgets_its_backlog() -> Iterator[None]:
    """What the head has taken and not sent on is not logged."""
    original = iterations.IterationHead.snapshot_state

    def snapshot_state(self: iterations.IterationHead, checkpoint_id: int) -> None:
        backlog, self._backlog = self._backlog, type(self._backlog)()
        original(self, checkpoint_id)
        backlog.extend(self._backlog)
        self._backlog = backlog

    with patch(iterations.IterationHead, "snapshot_state", snapshot_state):
        yield


@mutant
def loop_logs_what_follows_the_barrier() -> Iterator[None]:
    """Records that come back behind the barrier are logged with those before it."""

    def take_barrier(self: iterations.IterationHead, channel: int, barrier: CheckpointBarrier) -> None:
        original(self, channel, barrier)
        log = self._logs.get(barrier.checkpoint_id)
        if log is not None and log.awaited:
            log.awaited.add(-1 - channel)  # a mark: behind the barrier here

    def take_records(self: iterations.IterationHead, channel: int, batch: Any) -> None:
        for log in self._logs.values():
            if -1 - channel in log.awaited and channel not in log.awaited:
                log.batches.append(batch)
        original_records(self, channel, batch)

    def take_complete_logs(self: iterations.IterationHead) -> Any:
        for log in self._logs.values():
            if all(channel < 0 for channel in log.awaited):
                log.awaited.clear()
        return original_complete(self)

    original = iterations.IterationHead._take_barrier
    original_records = iterations.IterationHead._take_records
    original_complete = iterations.IterationHead.take_complete_logs
    with (
        patch(iterations.IterationHead, "_take_barrier", take_barrier),
        patch(iterations.IterationHead, "_take_records", take_records),
        patch(iterations.IterationHead, "take_complete_logs", take_complete_logs),
    ):
        yield


@mutant
def loop_does_not_set_the_future_aside() -> Iterator[None]:
    """What comes back behind a barrier that the head has yet to take is processed before its snapshot."""
    original = iterations.IterationHead.join

    def join(self: iterations.IterationHead, task: iterations.LoopTask) -> None:
        original(self, replace(task, is_aligned=False))

    with patch(iterations.IterationHead, "join", join):
        yield


@mutant
def one_clean_round_only() -> Iterator[None]:
    """A head takes the loop for empty when its neighbours have seen nothing for one round."""
    original = loop_progress.LoopProgress.__init__

    def init(self: loop_progress.LoopProgress, channels: Any, num_heads: int) -> None:
        original(self, channels, 1)

    with patch(loop_progress.LoopProgress, "__init__", init):
        yield


@mutant
def unaligned_output_is_not_stored() -> Iterator[None]:
    """What a barrier overtakes on its way out is not part of the snapshot."""
    with patch(task_inflight.InFlightLog, "add_outputs", lambda self, overtaken: overtaken_without_records(self)):
        yield


def overtaken_without_records(log: task_inflight.InFlightLog) -> None:
    log.is_unaligned, log.holds_barrier = True, False


@mutant
def unaligned_input_is_logged_one_batch_short() -> Iterator[None]:
    """The last of the records that have come before the barrier is not logged."""
    original = InputChannel.in_flight

    def in_flight(self: InputChannel, checkpoint_id: int) -> Any:
        batches, has_come = original(self, checkpoint_id)
        return batches[:-1], has_come

    with patch(InputChannel, "in_flight", in_flight):
        yield


@mutant
def unaligned_log_ends_with_the_snapshot() -> Iterator[None]:
    """What comes between the snapshot and the barrier is not logged."""
    with patch(task_inflight.InFlightLog, "add_input", only_before(task_inflight.InFlightLog.add_input)):
        yield


def only_before(original: Any) -> Any:
    def add_input(self: Any, channel: InputChannel, batches: Any) -> None:
        if channel.index not in self.awaited:
            original(self, channel, batches)

    return add_input


@mutant
def unaligned_log_goes_on_behind_the_barrier() -> Iterator[None]:
    """Records that come behind the barrier are logged with those before it."""
    original = InputChannel.in_flight

    def in_flight(self: InputChannel, checkpoint_id: int) -> Any:
        batches, has_come = original(self, checkpoint_id)
        return (original(self, -1)[0] if has_come else batches), has_come

    def arrived(self: Any, channel: InputChannel, message: Any) -> None:
        original_arrived(self, channel, message)
        for log in self._logs.values():
            if log.awaited and channel.index not in log.awaited:
                log.add_input(channel, [element for element in message.elements if isinstance(element, Batch)])

    original_arrived = task_checkpoints.TaskCheckpoints.arrived
    with (
        patch(InputChannel, "in_flight", in_flight),
        patch(task_checkpoints.TaskCheckpoints, "arrived", arrived),
    ):
        yield


@mutant
def unaligned_records_are_replayed_behind_new_ones() -> Iterator[None]:
    """What was in flight is processed once nothing else is there to be processed."""
    original = task.Task.step

    def step(self: task.Task, now_ms: int) -> None:
        replay = self._replay
        if replay and self._ready_input(self._chain.is_blocked) is not None:
            self._replay = type(replay).__new__(type(replay))
            self._replay._entries = ()
            try:
                original(self, now_ms)
            finally:
                self._replay = replay
        else:
            original(self, now_ms)

    with patch(task.Task, "step", step):
        yield


@mutant
def unaligned_is_acknowledged_before_its_logs_are_complete() -> Iterator[None]:
    """A snapshot is written without waiting for the barriers of all channels."""
    with patch(task_inflight.InFlightLog, "is_complete", property(lambda self: True)):
        yield


@mutant
def unaligned_records_are_not_partitioned_again() -> Iterator[None]:
    """At another parallelism records by key go where those of a forward exchange would."""

    def takes(partitioner: Any, old: Any, new: Any, subtask: int) -> Any:
        return lambda consumer: consumer % new[0] == subtask

    with (
        patch(channel_state, "_takes", takes),
        patch(channel_state, "_is_deterministic", lambda partitioner: False),
    ):
        yield


@mutant
def unaligned_records_stay_with_the_old_number() -> Iterator[None]:
    """At a lower parallelism what was in flight to a subtask that is gone is forgotten."""
    original = channel_state._takes

    def takes(partitioner: Any, old: Any, new: Any, subtask: int) -> Any:
        if channel_state._is_deterministic(partitioner):
            return original(partitioner, old, new, subtask)
        return lambda consumer: consumer == subtask

    with patch(channel_state, "_takes", takes):
        yield


@mutant
def unaligned_barrier_leaves_its_queue_and_its_records_behind() -> Iterator[None]:
    """A barrier that waits for credit is sent ahead, and what it overtakes by that is not stored."""
    original = task_checkpoints.TaskCheckpoints.overtake_due

    def overtake_due(self: Any, now_ms: int) -> None:
        outputs = self._outputs
        overtake = outputs.overtake

        def without_records(barrier: CheckpointBarrier, *, only_held: bool = False) -> Any:
            channels = overtake(barrier, only_held=only_held)
            return [(edge, consumer, []) for edge, consumer, _ in channels] if only_held else channels

        outputs.overtake = without_records
        try:
            original(self, now_ms)
        finally:
            del outputs.overtake

    with patch(task_checkpoints.TaskCheckpoints, "overtake_due", overtake_due):
        yield


@mutant
def unaligned_forgets_what_it_has_not_replayed() -> Iterator[None]:
    """A checkpoint that is taken while records are replayed does not hold the rest of them."""
    with patch(channel_state.Replay, "log", lambda self: []):
        yield


@mutant
def unaligned_cut_drops_what_the_consumer_did_not_want() -> Iterator[None]:
    """A producer that sends less than it has forgets the rest."""
    original = OutputChannel._cut

    def cut(self: OutputChannel, left_bytes: int) -> Any:
        return [element for element in original(self, left_bytes) if not isinstance(element, Batch)]

    with patch(OutputChannel, "_cut", cut):
        yield


@mutant
def keys_are_not_cut_with_their_records() -> Iterator[None]:
    """What is cut out of a batch has the keys of the batch's first records."""
    original = Batch._part

    def part(self: Batch, *arguments: Any) -> Batch:
        cut = original(self, *arguments)
        if cut._keys is not None:
            cut.note_keys(self._keys[0], self._keys[1][: cut.num_rows])
        return cut

    with patch(Batch, "_part", part):
        yield


@mutant
def unaligned_windows_fire_again() -> Iterator[None]:
    """Subtasks whose event time was ahead of others at a checkpoint fire their windows again after it."""
    with patch(slices.GlobalSliceAggregate, "_without_fired", lambda self, merged, last_ms: merged):
        yield


@mutant
def debloated_windows_close() -> Iterator[None]:
    """A window of a slow consumer may become nothing, and one that has does not grow again."""

    def resize(self: InputChannel, num_bytes: int) -> bool:
        before, self._window_bytes = self._window_bytes, min(num_bytes // 100, self._credit_bytes)
        return self._window_bytes > before > 0

    with patch(InputChannel, "resize", resize):
        yield


@mutant
def debloated_growth_is_not_granted() -> Iterator[None]:
    """A window grows in silence; the next grant waits until half of the larger window is used, which nobody allowed."""

    def credit_due(self: InputChannel) -> Any:
        return self.grant() if 2 * (self.consumed_bytes - self._granted_bytes) >= self._window_bytes else None

    original = BufferDebloater.took

    def took(self: BufferDebloater, num_bytes: int, now_ms: int) -> bool:
        original(self, num_bytes, now_ms)
        return False

    with patch(InputChannel, "credit_due", credit_due), patch(BufferDebloater, "took", took):
        yield


@mutant
def barrier_comes_before_the_rest_of_its_batch() -> Iterator[None]:
    """A barrier is taken when the batch before it has been taken in part."""
    original = InputChannel.take

    def take(self: InputChannel, cut: Any = None) -> Any:
        elements, at = self._queue[0].elements, self._position
        if self._rows_taken and at + 1 < len(elements) and isinstance(elements[at + 1], CheckpointBarrier):
            batch = elements[at]
            parts = (batch.slice(0, self._rows_taken), elements[at + 1], self._rest())
            self._queue[0] = replace(self._queue[0], elements=(*elements[:at], *parts, *elements[at + 2 :]))
            self._position, self._rows_taken = at + 1, 0
        return original(self, cut)

    with patch(InputChannel, "take", take):
        yield


@mutant
def unaligned_rest_of_a_batch_is_lost() -> Iterator[None]:
    """What is left of a batch that has been taken in part is not in flight."""
    original = InputChannel.in_flight

    def in_flight(self: InputChannel, checkpoint_id: int) -> Any:
        batches, has_come = original(self, checkpoint_id)
        return (batches[1:] if self.has_rest else batches), has_come

    with patch(InputChannel, "in_flight", in_flight):
        yield


@mutant
def unaligned_rest_of_a_batch_is_doubled() -> Iterator[None]:
    """Of a batch that has been taken in part all is in flight."""
    original = InputChannel.in_flight

    def in_flight(self: InputChannel, checkpoint_id: int) -> Any:
        taken, self._rows_taken = self._rows_taken, 0
        try:
            return original(self, checkpoint_id)
        finally:
            self._rows_taken = taken

    with patch(InputChannel, "in_flight", in_flight):
        yield


@mutant
def unaligned_rest_of_what_was_restored_is_lost() -> Iterator[None]:
    """A batch that a restore brought and that is processed in pieces is forgotten by the next checkpoint."""
    original = channel_state.Replay.process_next
    in_pieces: set[int] = set()

    def process_next(self: channel_state.Replay, cut: Any = None) -> None:
        first = self._entries[0].batch
        original(self, cut)
        is_cut = bool(self._entries) and self._entries[0].batch.num_rows < first.num_rows
        (in_pieces.add if is_cut else in_pieces.discard)(id(self))

    log = channel_state.Replay.log
    with (
        patch(channel_state.Replay, "process_next", process_next),
        patch(channel_state.Replay, "log", lambda self: log(self)[1:] if id(self) in in_pieces else log(self)),
    ):
        yield


@mutant
def loop_forgets_the_rest_of_its_backlog() -> Iterator[None]:
    """A batch that has come back and is emitted in pieces does not belong to the checkpoint any more."""
    original = iterations.IterationHead.emit_next

    def emit_next(self: iterations.IterationHead, cut: Any = None) -> None:
        first = self._backlog[0]
        original(self, cut)
        if isinstance(first, Batch) and self._backlog and isinstance(self._backlog[0], Batch):
            rest = self._backlog[0]
            if first.num_rows > rest.num_rows and first.rows[-rest.num_rows :] == rest.rows:
                self._backlog.popleft()
                self._backlog_rows -= rest.num_rows

    with patch(iterations.IterationHead, "emit_next", emit_next):
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


def _overtaking(partitioner: type) -> Iterator[None]:
    with (
        patch(partitioner, "supports_unaligned", True),
        patch(channel_state.ChannelFiles, "_check_broadcast", lambda *_: None),
    ):
        yield


@mutant
def ordered_broadcasts_are_overtaken() -> Iterator[None]:
    """Copies of a broadcast record are in flight to some subtasks and processed by others."""
    yield from _overtaking(BroadcastPartitioner)


@mutant
def ordered_forwards_are_overtaken() -> Iterator[None]:
    """What is forwarded is dealt out anew by the number of the subtask, and new records of its keys elsewhere."""
    yield from _overtaking(ForwardPartitioner)


@mutant
def ordered_custom_partitioners_are_overtaken() -> Iterator[None]:
    """What a user's partitioner has dealt is dealt once more."""
    yield from _overtaking(CustomPartitioner)


@mutant
def ordered_channels_are_not_waited_for() -> Iterator[None]:
    """A barrier that has come ahead on one channel counts at once, whatever waits on those that keep order."""
    checkpoints = task_checkpoints.TaskCheckpoints
    with (
        patch(checkpoints, "_may_overtake_now", lambda *_: True),
        patch(channel_state.ChannelFiles, "_check_broadcast", lambda *_: None),
    ):
        yield


@mutant
def ordered_barrier_that_came_ahead_has_no_place() -> Iterator[None]:
    """While it waits for channels that keep order, what it overtook is processed as if it had come before it."""
    with patch(InputChannel, "keep_place", lambda *_: None):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant, of loops if it breaks those; gives the seed that caught it and how."""
    with MUTANTS[name]():
        return caught_by(name, lambda seed: run_for(name, seed), max_seeds)


STORMY = FaultPlan(
    loss=0.1, reordering=0.1, random_kills=4, fault_window_ms=(0.0, 1_000.0), orphan_ms=(1.0, 3_000.0), stray_work=0.5
)
"""Messages of attempts that are gone arrive late, while their slots live on."""


def run_for(name: str, seed: int) -> None:
    """Run one seed that can show a bug."""
    if name == "attempts_are_not_fenced":
        run_seed(seed, faults=STORMY)
    elif name.startswith("storm_"):
        run_storm_seed(seed)
    elif name.startswith("ordered_"):
        shown_by = {
            "ordered_forwards_are_overtaken": forwarded,
            "ordered_custom_partitioners_are_overtaken": dealt_by_hand,
        }
        run_cut_off_seed(seed, (shown_by.get(name, rules_for_every_key),))
    elif name.startswith("unaligned_"):
        run_cut_off_seed(seed, (sliding_count,) if name == "unaligned_windows_fire_again" else RESCALED)
    else:
        run_seed(seed, shapes=shapes_for(name))


def shapes_for(name: str) -> Any:
    """Which programs can show a bug."""
    if name in ("one_clean_round_only", "loop_does_not_set_the_future_aside"):
        return (far_apart,)
    return LOOPS if name.startswith("loop_") else (*SHAPES, *LOOPS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="seeds per mutant")
    parser.add_argument("--only", help="one mutant")
    options = parser.parse_args()
    survivors = 0
    names = [options.only] if options.only else list(MUTANTS)
    for name in names:
        seed, how = is_caught(name, options.seeds)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    print(f"{len(names) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
