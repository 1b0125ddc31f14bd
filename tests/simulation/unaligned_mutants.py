"""Planted bugs of unaligned checkpoints and of what cuts batches: overtaking, replay, order, debloating.

They are run by `simulation.mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulation.planted import Mutant, patch, planted_in

from headrace.engine.columns.records import Batch, CheckpointBarrier
from headrace.engine.operators.exchange import BroadcastPartitioner, CustomPartitioner, ForwardPartitioner
from headrace.engine.task import channel_state, task
from headrace.engine.task import checkpoints as task_checkpoints
from headrace.engine.task import in_flight as task_inflight
from headrace.engine.task.channels import InputChannel, OutputChannel
from headrace.engine.task.debloating import BufferDebloater
from headrace.engine.windows.columnar import slices

UNALIGNED_MUTANTS: dict[str, Mutant] = {}
mutant = planted_in(UNALIGNED_MUTANTS)


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
