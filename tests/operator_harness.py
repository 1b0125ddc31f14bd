"""Runs one operator as a task would, with a manual clock, and collects what it emits.

`OperatorHarness` is one subtask; `ParallelHarness` is all subtasks of a keyed operator, with records routed by key
group, and can be snapshotted and restored at another parallelism. Operators are pickled on the way in, as on the way
into a real task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.engine.columns.records import Batch, LatencyMarker, StreamStatus, Watermark
from headrace.engine.columns.rejected_records import LATE, MOST_REJECTED, RejectedRecords
from headrace.engine.functions.operator import Operator, OperatorContext
from headrace.engine.kernel.metrics import MetricGroup
from headrace.state.backends.choice import make_keyed_backend, restore_keyed_backend
from headrace.state.backends.heap.backend import HeapKeyedStateBackend, HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import OperatorId
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_group_range, key_groups_of, subtask_of
from headrace.state.reading.program_pickles import dump_program, load_program

MAX_PARALLELISM = 128

STATE_BACKENDS = ["heap"]
"""The last one is what harnesses run on that are not told; `tests/engine/conftest.py` appends others."""


def keyed_state(
    subtask: int = 0,
    parallelism: int = 1,
    now_ms: Callable[[], int] = lambda: 0,
    backend: str | None = None,
    max_parallelism: int = MAX_PARALLELISM,
) -> Any:
    """The keyed state backend of one subtask, of the kind in force if none is named."""
    return make_keyed_backend(
        backend or STATE_BACKENDS[-1],
        OperatorId("op"),
        subtask,
        key_group_range(max_parallelism, parallelism, subtask),
        max_parallelism,
        now_ms,
        managed_memory_bytes=16 << 20,
    )


def restore_keyed_state(backend: Any, parts: Sequence[RestoredPart]) -> None:
    """Restore such a backend from the keyed parts of a snapshot."""
    name = "heap" if isinstance(backend, HeapKeyedStateBackend) else "rocksdb"
    restore_keyed_backend(backend, name, parts, OperatorId("op"))


class CollectingOutput:
    """Keeps everything that is emitted, in order."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.sides: dict[str, list[Batch]] = {}

    def emit(self, batch: Batch) -> None:
        self.elements.append(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        self.elements.append(watermark)

    def emit_status(self, status: StreamStatus) -> None:
        self.elements.append(status)

    def emit_side(self, tag: str, batch: Batch) -> None:
        self.sides.setdefault(tag, []).append(batch)

    def emit_marker(self, marker: LatencyMarker) -> None:
        self.elements.append(marker)


class OperatorHarness:
    """One subtask of an operator."""

    def __init__(
        self,
        operator: Operator,
        *,
        subtask: int = 0,
        parallelism: int = 1,
        now_ms: int = 0,
        restored: Sequence[RestoredPart] = (),
        backend: str | None = None,
        attempt: str = "1.0",
    ) -> None:
        self.now_ms = now_ms
        self.operator: Operator = load_program(dump_program(operator))
        self.output = CollectingOutput()
        self.metrics = MetricGroup()
        self._subtask = subtask
        backend = backend or STATE_BACKENDS[-1]
        self.keyed_state = keyed_state(subtask, parallelism, lambda: self.now_ms, backend)
        self.operator_state = HeapOperatorStateBackend("op")
        if restored:
            restore_keyed_state(self.keyed_state, restored)
            self.operator_state.restore(
                [part for part in restored if part.kind in ("list", "union", "broadcast")], subtask, parallelism
            )
        self.context = OperatorContext(
            operator=OperatorId("op"),
            name="op",
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            attempt=attempt,
            job="job",
            output=self.output,
            keyed_state=self.keyed_state,
            operator_state=self.operator_state,
            metrics=self.metrics,
            now_ms=lambda: self.now_ms,
            probe=lambda _name: None,
            is_restored=bool(restored),
            offload=self._offload,
            cancel_offload=self._cancel,
            call_later=self._call_later,
            report=lambda name, value: self.reports.append((name, value)),
            rejected=RejectedRecords(),
        )
        # What it has reported, and calls that it wants later: number -> (when, what).
        self.reports: list[tuple[str, Any]] = []
        self.alarms: dict[int, tuple[int, Any]] = {}
        # Work that the operator has asked for and that has not been done: number -> (work, whom to tell, kind).
        self.works: dict[int, tuple[Any, Any, str]] = {}
        self._num_works = 0
        self.operator.open(self.context)

    def _offload(self, work: Any, on_end: Any, kind: str) -> int:
        self._num_works += 1
        self.works[self._num_works] = (work, on_end, kind)
        return self._num_works

    def _call_later(self, delay_ms: int, call: Any) -> int:
        self._num_works += 1
        self.alarms[self._num_works] = (self.now_ms + delay_ms, call)
        return self._num_works

    def _cancel(self, number: int) -> None:
        self.works.pop(number, None)
        self.alarms.pop(number, None)

    def pass_time(self, delay_ms: int) -> None:
        """Let time pass, making the calls that the operator wanted meanwhile."""
        until_ms = self.now_ms + delay_ms
        while self.alarms and min(due_ms for due_ms, _ in self.alarms.values()) <= until_ms:
            number = min(self.alarms, key=lambda number: (self.alarms[number][0], number))
            self.now_ms, call = self.alarms.pop(number)
            call()
        self.now_ms = until_ms

    def do_work(self, number: int | None = None) -> None:
        """Do one piece of offloaded work (the oldest, unless it is named) and tell its end; emits nothing."""
        work, on_end, kind = self.works.pop(min(self.works) if number is None else number)
        result = error = None
        try:
            result = work() if kind != "coroutine" else _result_of(work())
        except Exception as raised:
            error = raised
        on_end(result, error)

    def do_all_work(self) -> None:
        """Do all offloaded work, that which comes of it too, and let the operator emit."""
        self.advance_clock(self.now_ms)
        while self.works:
            self.do_work()
            self.advance_clock(self.now_ms)

    def process(self, rows: list[Any], timestamps: list[int] | None = None, input_index: int = 0) -> None:
        """Feed one batch."""
        times = None if timestamps is None else np.array(timestamps, dtype=np.int64)
        self.operator.process_batch(Batch.of_rows(rows, times), input_index)

    def watermark(self, watermark_ms: int) -> None:
        """Feed a watermark."""
        self.operator.process_watermark(Watermark(watermark_ms))

    def advance_clock(self, now_ms: int) -> None:
        """Let the clock go on, calling the operator at each time it has asked for."""
        while (due := self.operator.next_processing_time()) is not None and due <= now_ms:
            self.now_ms = max(self.now_ms, due)
            self.operator.on_processing_time(self.now_ms)
        self.now_ms = now_ms

    def snapshot(self, checkpoint_id: int = 1) -> list[RestoredPart]:
        """What a restore would read."""
        self.operator.prepare_snapshot(checkpoint_id)
        self.operator.take_snapshot(checkpoint_id)
        parts = [*self.keyed_state.snapshot(), *self.operator_state.snapshot()]
        return [RestoredPart(part.state, part.kind, part.metadata, part.write(), self._subtask) for part in parts]

    def take(self) -> list[tuple[Any, int | None]]:
        """The records emitted since the last call, with their event times."""
        records: list[tuple[Any, int | None]] = []
        for element in self.output.elements:
            if isinstance(element, Batch):
                records.extend(_records(element))
        self.output.elements = [element for element in self.output.elements if not isinstance(element, Batch)]
        return records

    def take_rows(self) -> list[Any]:
        """The records emitted since the last call."""
        return [row for row, _ in self.take()]

    def take_side(self, tag: str) -> list[tuple[Any, int | None]]:
        """The records of a side output since the last call."""
        return [record for batch in self.output.sides.pop(tag, []) for record in _records(batch)]

    def take_controls(self) -> list[Any]:
        """Watermarks and statuses since the last call; records are thrown away."""
        elements, self.output.elements = self.output.elements, []
        return [element for element in elements if not isinstance(element, Batch)]


def _result_of(coroutine: Any) -> Any:
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    message = "the coroutine waits"
    raise AssertionError(message)


def _records(batch: Batch) -> list[tuple[Any, int | None]]:
    times = [None] * batch.num_rows if batch.timestamps is None else batch.timestamps.tolist()
    assert len(times) == batch.num_rows
    return list(zip(batch.rows, times, strict=True))


def count_late(context: OperatorContext, *, of_parts: bool = False) -> int:
    """How many late records an operator has dropped; looks whether the last of them are kept, with their times; or
    parts that some of them had been combined to.
    """
    dropped: int = context.metrics.counters.get("num_late_records_dropped", 0)
    assert context.rejected is not None
    kept = context.rejected.last(LATE, MOST_REJECTED)
    num_kept = sum(batch.num_rows for batch in kept)
    assert 0 < num_kept <= dropped if of_parts and dropped else num_kept == min(dropped, MOST_REJECTED)
    assert all(batch.timestamps is not None and len(batch.timestamps) == batch.num_rows for batch in kept)
    return dropped


class ParallelHarness:
    """All subtasks of a keyed operator."""

    def __init__(
        self,
        operator: Operator,
        parallelism: int = 1,
        *,
        now_ms: int = 0,
        restored: Sequence[RestoredPart] = (),
        backend: str | None = None,
    ) -> None:
        self._operator = operator
        self._backend = backend or STATE_BACKENDS[-1]
        self.subtasks = [
            OperatorHarness(
                operator, subtask=i, parallelism=parallelism, now_ms=now_ms, restored=restored, backend=backend
            )
            for i in range(parallelism)
        ]

    def process(
        self, keys: list[Any], rows: list[Any], timestamps: list[int] | None = None, input_index: int = 0
    ) -> None:
        """Feed one batch, cut by key."""
        parallelism = len(self.subtasks)
        targets = subtask_of(key_groups_of(hash_keys(keys), MAX_PARALLELISM), MAX_PARALLELISM, parallelism).tolist()
        for i, harness in enumerate(self.subtasks):
            mine = [index for index, target in enumerate(targets) if target == i]
            if mine:
                times = None if timestamps is None else [timestamps[index] for index in mine]
                harness.process([rows[index] for index in mine], times, input_index)

    def broadcast(self, rows: list[Any], timestamps: list[int] | None = None, input_index: int = 1) -> None:
        """Feed one batch to all."""
        for harness in self.subtasks:
            harness.process(rows, timestamps, input_index)

    def watermark(self, watermark_ms: int) -> None:
        """Feed a watermark to all."""
        for harness in self.subtasks:
            harness.watermark(watermark_ms)

    def advance_clock(self, now_ms: int) -> None:
        """Let the clock of all go on."""
        for harness in self.subtasks:
            harness.advance_clock(now_ms)

    def take(self) -> list[tuple[Any, int | None]]:
        """The records that all have emitted since the last call."""
        return [record for harness in self.subtasks for record in harness.take()]

    def take_side(self, tag: str) -> list[tuple[Any, int | None]]:
        """The records of a side output of all."""
        return [record for harness in self.subtasks for record in harness.take_side(tag)]

    def restored(self, parallelism: int) -> ParallelHarness:
        """A fresh run of the same operator from a snapshot of this one, taken now."""
        parts = [part for harness in self.subtasks for part in harness.snapshot()]
        return ParallelHarness(
            self._operator, parallelism, now_ms=self.subtasks[0].now_ms, restored=parts, backend=self._backend
        )

    def close(self) -> None:
        """Let go of what state backends hold."""
        for harness in self.subtasks:
            harness.keyed_state.close()
