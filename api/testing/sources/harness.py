"""A source under hand: its subtasks, its enumerator, checkpoints, failures and restores, without a cluster.

`SourceTestHarness` plays the part of JobManager and tasks for one source: it looks for splits, hands them out, polls
its readers in turn, takes checkpoints, tells of their completion, kills and deploys again, at another parallelism if it
is told so. What is read behind a checkpoint that is restored is forgotten, as everything behind a source would forget
it; so ``rows`` is what the job has counted.

Time is the harness's own: it goes on where nothing is to be read, to when a reader or the enumerator is due. What goes
on outside (a server, a client's threads) takes its own time: a round that gives nothing pauses for a millisecond.

Source: Flink's ``SourceReaderTestBase``, ``SourceTestSuiteBase``, ``TestingSplitEnumeratorContext``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.columns.records import Batch, LatencyMarker, StreamStatus, Watermark
from headrace.engine.connectors.contract import Source
from headrace.engine.connectors.sources import PollResult, SourceOperator
from headrace.engine.errors import ExternalError, HeadraceError
from headrace.engine.functions.operator import OperatorContext, Output, add_place
from headrace.engine.graph.job_graph import ChainedOperator, JobGraph, JobVertex
from headrace.engine.job.sources.source_coordinator import Said, SourceCoordinator
from headrace.engine.kernel.machine import Command, Offload, OffloadCompleted, StartTimer
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.protocol.task_messages import NextInputSplit, RequestNextInputSplit, SourceEventToEnumerator
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId
from headrace.state.reading.program_pickles import dump_program, load_program

__all__ = ["SourceTestHarness"]

_UID, _VERTEX = OperatorId("source"), VertexId("source")
START_MS = 1_700_000_000_000
PATIENCE_S = 60.0
"""How long records of the outside are waited for."""


class _Checkpoint:
    """What a restore needs, and what had been read."""

    def __init__(
        self, parts: list[RestoredPart], enumerators: dict[OperatorId, Any], rows: list[Any], kinds: list[int]
    ) -> None:
        self.parts = parts
        self.enumerators = enumerators
        self.rows = list(rows)
        self.kinds = list(kinds)


class _Subtask(Output):
    """One subtask: its operator, and what it has emitted since it was deployed.

    Attributes:
        watermark_ms: The last one; None before the first.
        num_late: Records that came behind a watermark that was not below their time.
        is_idle: By its last word.
        has_ended: Whether nothing follows.
    """

    def __init__(self, harness: SourceTestHarness, subtask: int, parts: Sequence[RestoredPart]) -> None:
        self._harness = harness
        self.watermark_ms: int | None = None
        self.num_late = 0
        self.is_idle = False
        self.has_ended = False
        self.attempt = ExecutionAttemptId(1, harness.num_attempts, _VERTEX, subtask)
        self.num_answers = 0
        self.state = HeapOperatorStateBackend(_UID)
        self.state.restore(parts, subtask, harness.parallelism)
        self.metrics = MetricGroup()
        self.operator = SourceOperator(load_program(harness.program), harness.strategy)
        self.operator.open(
            OperatorContext(
                operator=_UID,
                name="source",
                subtask=subtask,
                parallelism=harness.parallelism,
                max_parallelism=128,
                attempt=f"1.{harness.num_attempts}",
                job="job",
                output=self,
                keyed_state=None,  # type: ignore[arg-type]  # a source has no keyed state
                operator_state=self.state,
                metrics=self.metrics,
                now_ms=lambda: harness.now_ms,
                probe=lambda _point: None,
                checkpointing=True,
                send_source_event=lambda event: harness._events.append(
                    SourceEventToEnumerator(self.attempt, _UID, event)
                ),
                report=lambda name, value: harness.reports.append((name, value)),
            )
        )

    def emit(self, batch: Batch) -> None:
        self._harness.rows += batch.rows
        self._harness.kinds += (
            [0] * batch.num_rows if batch.row_kinds is None else [int(kind) for kind in batch.row_kinds]
        )
        if batch.timestamps is not None and self.watermark_ms is not None:
            self.num_late += sum(int(time_ms) <= self.watermark_ms for time_ms in batch.timestamps)

    def emit_watermark(self, watermark: Watermark) -> None:
        assert self.watermark_ms is None or watermark.timestamp_ms > self.watermark_ms, "a watermark goes back"
        self.watermark_ms = watermark.timestamp_ms

    def emit_status(self, status: StreamStatus) -> None:
        self.is_idle = status.idle

    def emit_side(self, tag: str, batch: Batch) -> None:
        self._harness.dead_letters += batch.rows

    def emit_marker(self, marker: LatencyMarker) -> None:
        """Nobody measures."""


class SourceTestHarness:
    """A job that is nothing but a source.

    Args:
        source: The source.
        parallelism: How many readers it has at first.
        strategy: Event times and watermarks.

    Attributes:
        rows: The records that count, in the order they came.
        kinds: What becomes of each of them, as `RowKind` numbers.
        dead_letters: What went to the side output of that name.
        reports: What the readers reported, as ``(name, value)``.
        notes: What the job's history says of the source.
        complete: The newest complete checkpoint; 0 for none.
        now_ms: The clock.
    """

    def __init__(
        self, source: Source, parallelism: int = 1, strategy: WatermarkStrategy = WatermarkStrategy.no_watermarks()
    ) -> None:
        self.program = dump_program(source)
        self.strategy = strategy
        self.parallelism = parallelism
        self.rows: list[Any] = []
        self.kinds: list[int] = []
        self.dead_letters: list[Any] = []
        self.reports: list[tuple[str, Any]] = []
        self.notes: list[str] = []
        self.complete = 0
        self.num_attempts = 0
        self.now_ms = START_MS
        self.subtasks: list[_Subtask] = []
        operator = ChainedOperator(_UID, "source", SourceOperator(source, strategy))
        vertex = JobVertex(_VERTEX, "source", (operator,), parallelism, 128)
        self._graph = JobGraph("job", {_VERTEX: vertex}, ())
        self._coordinator = SourceCoordinator(self._graph, checkpointing=True)
        self._timers: dict[str, tuple[int, Any]] = {}
        self._events: list[SourceEventToEnumerator] = []
        self._checkpoints: dict[int, _Checkpoint] = {}
        self._next_checkpoint = 1

    # -------------------------------------------------------------------------------------------------------- lifecycle
    def start(self, parallelism: int | None = None, *, checkpoint_id: int | None = None, fresh: bool = False) -> None:
        """Deploy all subtasks; those before are ended as by a failure.

        Args:
            parallelism: How many; as many as before if it is not named.
            checkpoint_id: From which checkpoint; the newest complete one if it is not named. 0 is the beginning.
            fresh: Whether a new leader does it, which knows nothing but the checkpoint.

        Raises:
            HeadraceError: What the job would fail with.
        """
        self.close()
        self.num_attempts += 1
        self.parallelism = parallelism or self.parallelism
        vertex = self._graph.vertices[_VERTEX]
        vertices = {_VERTEX: JobVertex(_VERTEX, "source", vertex.chain, self.parallelism, 128)}
        self._graph = JobGraph("job", vertices, ())
        if fresh:
            self._coordinator = SourceCoordinator(self._graph, checkpointing=True)
        self._coordinator.become(self._graph)
        chosen = self.complete if checkpoint_id is None else checkpoint_id
        found = self._checkpoints[chosen] if chosen else _Checkpoint([], {}, [], [])
        self.complete = chosen
        self.rows, self.kinds = list(found.rows), list(found.kinds)
        commands = self._coordinator.begin(found.enumerators)
        for subtask in range(self.parallelism):
            self.subtasks.append(_Subtask(self, subtask, found.parts))
        self._do(commands)

    def close(self) -> None:
        """End all subtasks as after a failure or a cancellation."""
        subtasks, self.subtasks = self.subtasks, []
        if subtasks:
            self._do(self._coordinator.stop())
        self._timers.clear()
        self._events.clear()
        for subtask in subtasks:
            subtask.operator.close()

    @property
    def has_ended(self) -> bool:
        """Whether all subtasks have told the end of event time."""
        return all(subtask.has_ended for subtask in self.subtasks)

    # ---------------------------------------------------------------------------------------------------------- reading
    def step(self, max_records: int = 100) -> bool:
        """Poll every subtask once, and do what is due; gives whether anything came of it.

        Raises:
            HeadraceError: What the job would fail with.
        """
        self._run_timers()
        has_come = False
        for subtask in self.subtasks:
            if subtask.has_ended:
                continue
            try:
                result = subtask.operator.poll_next(max_records)
            except HeadraceError as error:
                add_place(error, {"operator": "source", "subtask": subtask.attempt.subtask}, _UID)
                raise
            has_come |= result is PollResult.MORE
            subtask.has_ended = result is PollResult.ENDED
            if not subtask.has_ended and subtask.operator.wants_split:
                num_splits, is_hungry = subtask.operator.split_requested()
                request = RequestNextInputSplit(subtask.attempt, _UID, subtask.num_answers, num_splits, is_hungry)
                self._take(self._coordinator.requested(request))
            self._tell_enumerator()
        if not has_come and not self.has_ended:
            self._pass_time()
        return has_come

    def read(self, until: Callable[[], bool], max_records: int = 100) -> None:
        """Read on until something is so.

        Raises:
            AssertionError: If it does not become so.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            self.step(max_records)
            assert time.monotonic() < deadline, f"{len(self.rows)} records have come, and it is still not so"
            if self.has_ended and not until():
                message = f"the source has ended behind {len(self.rows)} records"
                raise AssertionError(message)

    def read_number(self, count: int, max_records: int = 100) -> None:
        """Read on until so many records count."""
        self.read(lambda: len(self.rows) >= count, max_records)

    def read_to_the_end(self, max_records: int = 100) -> None:
        """Read until the source has ended."""
        self.read(lambda: self.has_ended, max_records)

    def rest(self, rounds: int = 30) -> None:
        """Go on for some rounds, whether anything comes or not."""
        for _ in range(rounds):
            self.step()

    def try_step(self, max_records: int = 100) -> bool:
        """As `step`, and deploy first if nothing is; what fails outside ends the deployment. Gives whether it lives."""
        try:
            if not self.subtasks:
                self.start()
            self.step(max_records)
        except ExternalError as error:
            self.notes.append(str(error))
            self.close()
            return False
        return True

    def survive(self, until: Callable[[], bool], max_records: int = 100) -> None:
        """Read as `read` does, with a restart from the newest checkpoint whenever what is outside fails."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.subtasks and until()):
            assert time.monotonic() < deadline, f"{len(self.rows)} records have come, and it is still not so"
            if not self.try_step(max_records):
                time.sleep(0.01)

    def _pass_time(self) -> None:
        """Let the clock go on to what is due next, and the outside have a moment."""
        time.sleep(0.001)
        due = [time_ms for time_ms, _ in self._timers.values()]
        due += [
            time_ms
            for subtask in self.subtasks
            if not subtask.has_ended and (time_ms := subtask.operator.next_poll_ms()) is not None
        ]
        self.now_ms = max(self.now_ms + 1, min(due, default=0))

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def checkpoint(self, *, completes: bool = True, notifies: bool = True) -> int:
        """Take a checkpoint, complete or still under way, of which readers hear or do not; gives its id."""
        checkpoint_id, self._next_checkpoint = self._next_checkpoint, self._next_checkpoint + 1
        enumerators = json.loads(json.dumps(self._coordinator.snapshot(checkpoint_id)))
        parts = []
        for subtask in self.subtasks:
            subtask.operator.take_snapshot(checkpoint_id)
            number = subtask.attempt.subtask
            parts += [
                RestoredPart(part.state, part.kind, json.loads(json.dumps(part.metadata)), part.write(), number)
                for part in subtask.state.snapshot()
            ]
        self._checkpoints[checkpoint_id] = _Checkpoint(parts, enumerators, self.rows, self.kinds)
        if completes:
            self.complete_checkpoint(checkpoint_id, notifies=notifies)
        return checkpoint_id

    def complete_checkpoint(self, checkpoint_id: int, *, notifies: bool = True) -> None:
        """Have a checkpoint be complete, and tell the readers."""
        self.complete = checkpoint_id
        for subtask in self.subtasks if notifies else ():
            subtask.operator.checkpoint_ended(checkpoint_id, is_complete=True)
        self._hand_out(self._coordinator.completed(checkpoint_id))

    # ------------------------------------------------------------------------------------------------------- enumerator
    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, StartTimer):
                self._timers[command.key] = self.now_ms + command.delay_ms, command.message
            elif isinstance(command, Offload):
                result = error = None
                try:
                    result = command.work()
                except Exception as raised:
                    error = raised
                self._take(self._coordinator.discovered(OffloadCompleted(command.name, command.token, result, error)))

    def _take(self, said: Said) -> None:
        self.notes += said.notes
        for _uid, subtask, event in said.events:
            for one in self.subtasks if subtask is None else [self.subtasks[subtask]]:
                one.operator.handle_source_event(event)
        self._hand_out(said.answers)
        self._do(said.commands)
        if self._coordinator.take_checkpoint_wish():
            self.checkpoint()

    def _hand_out(self, answers: Sequence[NextInputSplit]) -> None:
        for answer in answers:
            subtask = self.subtasks[answer.attempt.subtask]
            if answer.attempt == subtask.attempt and answer.nonce == subtask.num_answers:
                subtask.num_answers += 1
                if answer.no_more:
                    subtask.operator.no_more_splits()
                else:
                    subtask.operator.add_splits(answer.splits)

    def _run_timers(self) -> None:
        for key, (due_ms, message) in list(self._timers.items()):
            if due_ms <= self.now_ms:
                del self._timers[key]
                self._do(self._coordinator.discovery_due(message))

    def _tell_enumerator(self) -> None:
        while self._events:
            self._do(self._coordinator.event_received(self._events.pop(0)))
