"""One subtask of one operator, driven by hand: for functions with state, timers, side outputs.

The operator is given what a task would give it: a pickled copy of the function, a state backend that owns the subtask's
key groups, the clock, an output. It is called as its task would call it, and what it raises comes out as it would in
production: a `UserFunctionError` that names operator, subtask and function.

Source: Flink's ``AbstractStreamOperatorTestHarness``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.engine.columns.records import MAX_WATERMARK, Batch, LatencyMarker, StreamStatus, Watermark
from headrace.engine.errors import ProgramError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import OffloadEnd, Operator, OperatorContext
from headrace.engine.graph.transformations import OperatorTransformation
from headrace.engine.kernel.machine import OffloadKind
from headrace.engine.kernel.metrics import MetricGroup, combined
from headrace.engine.operators.watermark_valve import TaskWatermark
from headrace.engine.task.chain import ChainLink
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import OperatorId
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_groups_of, subtask_of
from headrace.state.reading.program_pickles import dump_program, load_program

from ...stream.data_stream import DataStream
from .harness import Harness, WatermarkGuard, batch_of, records_of_batch
from .subtask import StateCounts, SubtaskState
from .works import WorkRunner

__all__ = ["OperatorSnapshotParts", "OperatorTestHarness"]

DEFAULT_MAX_PARALLELISM = 128


_Self = TypeVar("_Self", bound="OperatorTestHarness")


@dataclass(frozen=True)
class OperatorSnapshotParts:
    """What one subtask's snapshot holds; taken by ``snapshot``, understood by ``restore`` at any parallelism."""

    parts: tuple[RestoredPart, ...]
    subtask: int
    max_parallelism: int


class OperatorTestHarness(Harness):
    """One subtask of any operator. The other harnesses of this module are this one, with names that fit their inputs.

    Args:
        tested: An operator; or a stream, then the operator that made it.
        name: The operator's name in errors.
        num_inputs: How many inputs the operator has.
        key_selectors: Finds the keys of each input, to refuse records that would not come to this subtask.
        parallelism: How many subtasks the operator is thought to have.
        subtask: Which of them this one is.
        max_parallelism: How many key groups there are.
        now_ms: Where processing time begins.
        state_backend: Where keyed state is held: ``heap`` or ``rocksdb``.
    """

    def __init__(
        self,
        tested: Operator | DataStream,
        *,
        name: str | None = None,
        num_inputs: int = 1,
        key_selectors: Sequence[KeySelector | None] = (),
        parallelism: int = 1,
        subtask: int = 0,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        now_ms: int = 0,
        state_backend: str = "heap",
    ) -> None:
        super().__init__(now_ms)
        self._state_backend = state_backend
        if not 0 <= subtask < parallelism <= max_parallelism:
            message = (
                f"subtask must be below parallelism, and that at most max_parallelism; "
                f"got {subtask}, {parallelism}, {max_parallelism}"
            )
            raise ProgramError(message)
        operator, own_name = (tested, type(tested).__name__) if isinstance(tested, Operator) else _maker_of(tested)
        self._name = name or own_name
        self._pickled = _pickled(operator, self._name)
        self._num_inputs = num_inputs
        self._selectors = [*key_selectors, *[None] * (num_inputs - len(key_selectors))]
        self._subtask, self._parallelism, self._max_parallelism = subtask, parallelism, max_parallelism
        # Set by `restore`; read when the operator is opened.
        self._restored: tuple[RestoredPart, ...] | None = None
        self._guards = [WatermarkGuard(f"input {index}") for index in range(num_inputs)]
        self._watermarks = TaskWatermark(range(num_inputs))
        self._ended: set[int] = set()
        self._checkpoint_id = 0
        self._output = _KeepingOutput(self)
        # Work that the operator wants done outside, by number, and who does it.
        self._works: dict[int, tuple[Callable[[], Any], OffloadEnd, OffloadKind]] = {}
        self._num_works = 0
        self._runner = WorkRunner()
        # Both made when the harness is opened.
        self._link: ChainLink | None = None
        self._state: SubtaskState | None = None

    # -------------------------------------------------------------------------------------------------------- lifecycle
    def restore(self: _Self, *snapshots: OperatorSnapshotParts) -> _Self:
        """Begin from the snapshots of all subtasks of an earlier run, at whatever parallelism; gives the harness.

        Raises:
            ProgramError: If the harness is open already, or the number of key groups is another.
        """
        if self._is_open:
            message = "state is restored before the operator is opened"
            raise ProgramError(message, hint="Call restore() on a new harness, first of all.")
        for snapshot in snapshots:
            if snapshot.max_parallelism != self._max_parallelism:
                message = (
                    f"a snapshot of max_parallelism {snapshot.max_parallelism} cannot be restored at "
                    f"{self._max_parallelism}: it is the number of key groups"
                )
                raise ProgramError(message)
        self._restored = tuple(part for snapshot in snapshots for part in snapshot.parts)
        return self

    def _open(self) -> None:
        operator: Operator = load_program(self._pickled)
        metrics = MetricGroup(lambda: self._now_ms)
        link = ChainLink("tested", self._name, operator, self._subtask, self._parallelism, metrics)
        operator_id = OperatorId("tested")
        state = SubtaskState(
            operator_id,
            self._subtask,
            self._parallelism,
            self._max_parallelism,
            lambda: self._now_ms,
            self._state_backend,
            self._restored or (),
        )
        self._state = state
        context = OperatorContext(
            operator=operator_id,
            name=self._name,
            subtask=self._subtask,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            attempt="1.0",
            job="test",
            output=self._output,
            keyed_state=state.keyed,
            operator_state=state.operator,
            metrics=link.metrics,
            now_ms=lambda: self._now_ms,
            probe=lambda _name: None,
            is_restored=self._restored is not None,
            watches_records=True,
            checkpointing=True,
            accumulators=link.accumulators,
            offload=self._offload,
            cancel_offload=self._cancel_offload,
        )
        self._link = link
        link.isolate(reuses_objects=False, watches=True)
        operator.context = context
        link.call(operator.open, context)
        self._settle(link)

    def _close(self) -> None:
        try:
            if self._link is not None:
                self._link.call(self._link.operator.close)
                self._do_works(self._link)
        finally:
            self._runner.close()
            if self._state is not None:
                self._state.close()

    def _opened(self) -> ChainLink:
        self.open()
        assert self._link is not None
        return self._link

    # ------------------------------------------------------------------------------------------------------------ input
    def _process(self, index: int, values: Iterable[Any], timestamps: Sequence[int] | None) -> None:
        link = self._opened()
        self._check_not_ended(index)
        batch = batch_of(values, timestamps)
        if batch.num_rows:
            self._check_routing(index, batch)
            self._guarded(self._process_batch, link, batch, index)

    def _process_batch(self, link: ChainLink, batch: Batch, index: int) -> None:
        link.process_batch(batch, index)
        self._settle(link)

    def _check_routing(self, index: int, batch: Batch) -> None:
        """Refuse records of foreign keys: their state would be lost at the next restore."""
        selector = self._selectors[index]
        if selector is None or self._parallelism == 1:
            return
        keys = selector.keys(batch)
        targets = subtask_of(
            key_groups_of(hash_keys(keys), self._max_parallelism), self._max_parallelism, self._parallelism
        )
        for key, target in zip(keys, targets.tolist(), strict=True):
            if target != self._subtask:
                message = f"key {key!r} belongs to subtask {target} of {self._parallelism}, not to {self._subtask}"
                raise ProgramError(message, operator=self._name)

    def _process_watermark(self, index: int, timestamp: int) -> None:
        self._opened()
        self._check_not_ended(index)
        watermark = self._guards[index].advance(timestamp)
        self._guarded(self._advance_event_time, lambda: self._watermarks.update(index, watermark.timestamp_ms))

    def _set_idle(self, index: int, idle: bool) -> None:
        self._opened()
        self._guarded(self._advance_event_time, lambda: self._watermarks.set_idle(index, idle))

    def _advance_event_time(self, update: Callable[[], int | None]) -> None:
        """As a task does: progress first, then a change of idleness."""
        link = self._opened()
        was_idle = self._watermarks.is_idle
        watermark_ms = update()
        if watermark_ms is not None:
            link.call(link.operator.process_watermark, Watermark(watermark_ms))
        if self._watermarks.is_idle != was_idle:
            link.call(link.operator.process_status, StreamStatus(self._watermarks.is_idle))
        self._settle(link)

    def _end_input(self, index: int) -> None:
        self._process_watermark(index, MAX_WATERMARK.timestamp_ms)
        link = self._opened()
        self._ended.add(index)
        self._guarded(self._tell_end, link, index)

    def _tell_end(self, link: ChainLink, index: int) -> None:
        link.call(link.operator.end_input, index)
        self._settle(link)
        if len(self._ended) == self._num_inputs:
            link.call(link.operator.finish)
            self._settle(link)

    def _check_not_ended(self, index: int) -> None:
        if index in self._ended:
            message = f"input {index} has ended"
            raise ProgramError(message, operator=self._name)

    def end_input(self) -> None:
        """End all inputs that have not ended: event time goes to its end, then the operator finishes."""
        for index in range(self._num_inputs):
            if index not in self._ended:
                self._end_input(index)

    # ------------------------------------------------------------------------------------------------- time and work
    def _advance_to(self, now_ms: int) -> None:
        link = self._opened()
        operator = link.operator
        while (due := operator.next_processing_time()) is not None and due <= now_ms:
            self._now_ms = max(self._now_ms, due)
            link.call(operator.on_processing_time, self._now_ms)
            self._do_works(link)
        self._now_ms = now_ms

    def _settle(self, link: ChainLink) -> None:
        """Do the work that the operator wants done outside, until it wants nothing more now."""
        self._do_works(link)
        operator = link.operator
        while operator.offloads and (due := operator.next_processing_time()) is not None and due <= self._now_ms:
            link.call(operator.on_processing_time, self._now_ms)
            self._do_works(link)

    def _do_works(self, link: ChainLink) -> None:
        while self._works:
            work, on_end, kind = self._works.pop(next(iter(self._works)))
            link.call(on_end, *self._runner.run(work, kind))

    def _offload(self, work: Callable[[], Any], on_end: OffloadEnd, kind: OffloadKind) -> int:
        self._num_works += 1
        self._works[self._num_works] = (work, on_end, kind)
        return self._num_works

    def _cancel_offload(self, number: int) -> None:
        self._works.pop(number, None)

    # ------------------------------------------------------------------------------------------------------------ state
    def snapshot(self, checkpoint_id: int | None = None) -> OperatorSnapshotParts:
        """Take the subtask's snapshot, as for a checkpoint; the subtask goes on.

        Args:
            checkpoint_id: Of the checkpoint; None counts from 1.
        """
        link = self._opened()
        self._checkpoint_id = self._checkpoint_id + 1 if checkpoint_id is None else checkpoint_id
        parts: tuple[RestoredPart, ...] = self._guarded(self._take_snapshot, link)
        return OperatorSnapshotParts(parts, self._subtask, self._max_parallelism)

    def _take_snapshot(self, link: ChainLink) -> tuple[RestoredPart, ...]:
        link.call(link.operator.prepare_snapshot, self._checkpoint_id)
        link.call(link.operator.take_snapshot, self._checkpoint_id)
        return self._opened_state().snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int | None = None) -> None:
        """Tell the operator that a checkpoint is durable, by default that of the last `snapshot`."""
        link = self._opened()
        wanted = self._checkpoint_id if checkpoint_id is None else checkpoint_id
        told = functools.partial(link.operator.checkpoint_ended, wanted, is_complete=True)
        self._guarded(link.call, told)

    def num_keyed_state_entries(self, state: str | None = None) -> int:
        """Return how many values keyed state holds, over all keys (and windows); timers are not counted.

        Args:
            state: The state's name; None for all states.
        """
        return StateCounts([self._opened_state().keyed]).num_entries(state)

    def num_event_time_timers(self) -> int:
        """Return how many event-time timers of functions and triggers wait, over all keys."""
        return StateCounts([self._opened_state().keyed]).num_event_time_timers()

    def num_processing_time_timers(self) -> int:
        """Return how many processing-time timers wait, over all keys."""
        return StateCounts([self._opened_state().keyed]).num_processing_time_timers()

    def _opened_state(self) -> SubtaskState:
        self.open()
        assert self._state is not None
        return self._state

    def metric(self, name: str) -> float:
        """Return a metric of the operator, such as ``num_late_records_dropped``; 0 if there is none."""
        return combined([self._opened().metrics.statistics()]).get(name, 0)

    def accumulator_result(self, name: str) -> Any:
        """Return what a function has accumulated under a name.

        Raises:
            ProgramError: If there is no such accumulator.
        """
        return self._opened().accumulators.get(name).get_local_value()

    def keep(self, output: str | None, element: Batch | Watermark | StreamStatus) -> None:
        """Keep what the operator emits; called by its output."""
        kept = self._emitted.setdefault(output, [])
        if isinstance(element, Batch):
            kept.extend(records_of_batch(element))
        else:
            kept.append(element)


class _KeepingOutput:
    """The `Output` of a tested operator."""

    def __init__(self, harness: OperatorTestHarness) -> None:
        self._keep = harness.keep

    def emit(self, batch: Batch) -> None:
        self._keep(None, batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        self._keep(None, watermark)

    def emit_status(self, status: StreamStatus) -> None:
        self._keep(None, status)

    def emit_side(self, tag: str, batch: Batch) -> None:
        self._keep(tag, batch)

    def emit_marker(self, marker: LatencyMarker) -> None:
        """Markers measure time, which stands still here."""


# ---------------------------------------------------------------------------------------------- functions to operators


def _maker_of(stream: Any) -> tuple[Operator, str]:
    """The operator that made a stream, and its name."""
    transformation = getattr(stream, "transformation", None)
    if not isinstance(transformation, OperatorTransformation):
        message = f"a harness takes an operator, or a stream that an operator has made; got {stream!r}"
        raise ProgramError(message, hint="Programs of several operators are run by PipelineTestHarness.")
    return transformation.operator, transformation.name


def _pickled(operator: Operator, name: str) -> bytes:
    try:
        return dump_program(operator)
    except Exception as error:
        message = f"an operator cannot be pickled: {error}"
        hint = "Make what cannot be sent to another process (locks, connections, files) in the function's open()."
        raise ProgramError(message, hint=hint, operator=name) from error
