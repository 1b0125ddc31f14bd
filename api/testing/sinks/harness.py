"""A sink under hand: subtasks, checkpoints, crashes, restores and zombies, without a cluster.

`SinkTestHarness` plays the part of JobManager and tasks for one sink: it deploys its subtasks, takes checkpoints, tells
of their completion, kills and deploys again, at another parallelism if it is told so. An attempt that was replaced
lives on as a `SinkAttempt` as long as the test holds it: a process that was given up for dead and does not know it.

A sink with one committer for all subtasks is played with it; what its writers emit comes to it at once.

Committing runs on the spot, pauses between retries take no time. With ``holds_work`` it stays where it is until
`SinkAttempt.run_work`: commits that are under way while other things happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Sink
from headrace.engine.connectors.global_commits import EmittingWriterOperator, GlobalCommitterOperator
from headrace.engine.connectors.sink_protocols import SupportsGlobalCommitter
from headrace.engine.connectors.sinks import CommitterOperator, SinkOperator
from headrace.engine.functions.operator import OffloadEnd, Operator, OperatorContext
from headrace.engine.kernel.metrics import MetricGroup
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import OperatorId

__all__ = ["SinkAttempt", "SinkTestHarness"]

START_MS = 1_700_000_000_000


KeptPart = tuple[str, RestoredPart]
"""Of a checkpoint: whether it is of ``sink`` or ``committer``, and what."""


class _ToCommitter:
    """What writers emit is the committer's input."""

    def __init__(self, committer: GlobalCommitterOperator) -> None:
        self._committer = committer

    def emit(self, batch: Batch) -> None:
        self._committer.process_batch(batch, 0)


class SinkAttempt:
    """One deployment of the sink.

    Attributes:
        operators: By subtask; behind them the one committer of all, if the sink has one.
        works: What was asked to be done outside and has not been done: (what, whom to tell of its end).
    """

    def __init__(
        self,
        harness: SinkTestHarness,
        number: int,
        parallelism: int,
        restored: Sequence[KeptPart],
        must_prove_after: int | None = None,
    ) -> None:
        self._harness = harness
        self._must_prove_after = must_prove_after
        self._number = number
        self._parallelism = parallelism
        self.operators: list[Operator] = []
        self.works: list[tuple[Callable[[], Any], OffloadEnd]] = []
        self._backends: list[HeapOperatorStateBackend] = []
        sink: Any = harness.sink
        if not hasattr(sink, "create_global_committer"):
            for subtask in range(parallelism):
                self._add(SinkOperator(sink), "sink", subtask, parallelism, restored, None)
            return
        committer = GlobalCommitterOperator(sink)
        for subtask in range(parallelism):
            writer = EmittingWriterOperator(sink)
            self._add(writer, "sink", subtask, parallelism, restored, _ToCommitter(committer))
        self._add(committer, "committer", 0, 1, restored, None)

    def _add(
        self,
        operator: Operator,
        name: str,
        subtask: int,
        parallelism: int,
        restored: Sequence[KeptPart],
        output: _ToCommitter | None,
    ) -> None:
        backend = HeapOperatorStateBackend(OperatorId(name))
        backend.restore([part for owner, part in restored if owner == name], subtask, parallelism)
        self._backends.append(backend)
        self.operators.append(operator)
        operator.open(self._context(name, subtask, parallelism, backend, output, bool(restored)))

    @property
    def parallelism(self) -> int:
        """How many subtasks it has."""
        return self._parallelism

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: its tasks may start, or end."""
        return all(operator.is_settled for operator in self.operators)

    def _context(
        self,
        name: str,
        subtask: int,
        parallelism: int,
        backend: HeapOperatorStateBackend,
        output: _ToCommitter | None,
        is_restored: bool,
    ) -> OperatorContext:
        # Nothing here refers to the attempt itself: one that is no longer held is gone at once, with its open files.
        harness, works = self._harness, self.works

        def offload(work: Callable[[], Any], on_end: OffloadEnd, _kind: str) -> int:
            works.append((work, on_end))
            return len(works)

        def call_later(delay_ms: int, call: Callable[[], None]) -> int:
            def pass_time() -> None:
                harness.now_ms += delay_ms
                harness.pauses_ms.append(delay_ms)

            works.append((pass_time, lambda _result, _error: call()))
            return len(works)

        return OperatorContext(
            operator=OperatorId(name),
            name=name,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=128,
            attempt=f"1.{self._number}",
            job=harness.job,
            output=output,  # type: ignore[arg-type]  # subtasks that commit emit nothing
            keyed_state=None,  # type: ignore[arg-type]  # and has no keyed state
            operator_state=backend,
            is_restored=is_restored,
            metrics=MetricGroup(),
            now_ms=lambda: harness.now_ms,
            probe=lambda point: harness.probe(point),
            report=lambda name, value: harness.reports.append((name, value)),
            checkpointing=harness.checkpointing,
            offload=offload,
            must_prove_after=self._must_prove_after,
            call_later=call_later,
        )

    def run_work(self) -> None:
        """Do all that is under way, and all that follows from it.

        Raises:
            HeadraceError: What a task would fail with.
        """
        while self.works:
            work, on_end = self.works.pop(0)
            result = error = None
            try:
                result = work()
            except Exception as raised:
                error = raised
            on_end(result, error)

    def write(self, records: Sequence[Any] | Batch, subtask: int = 0) -> None:
        """Hand records to a subtask."""
        batch = records if isinstance(records, Batch) else Batch.of_rows(list(records))
        self.operators[subtask].process_batch(batch, 0)

    def snapshot(self, checkpoint_id: int) -> list[KeptPart]:
        """Return what a checkpoint holds of it."""
        kept: list[KeptPart] = []
        for index, (operator, backend) in enumerate(zip(self.operators, self._backends, strict=True)):
            operator.prepare_snapshot(checkpoint_id)
            operator.take_snapshot(checkpoint_id)
            is_common = isinstance(operator, GlobalCommitterOperator)
            name, subtask = ("committer", 0) if is_common else ("sink", index)
            parts = [RestoredPart(p.state, p.kind, p.metadata, p.write(), subtask) for p in backend.snapshot()]
            kept += [(name, part) for part in parts]
        return kept

    def finish(self) -> None:
        """Commit the job's output, as all input has come."""
        for operator in self.operators:
            if not isinstance(operator, CommitterOperator):
                operator.finish()
        for operator in self.operators:
            operator.finish_job()

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell all subtasks that a checkpoint is complete."""
        for operator in self.operators:
            operator.checkpoint_ended(checkpoint_id, is_complete=True)
        self._harness.work(self)

    def close(self) -> None:
        """End it as after a failure or a cancellation."""
        for operator in self.operators:
            operator.close()
        self._harness.work(self)


class SinkTestHarness:
    """A job that is nothing but a sink.

    Args:
        sink: The sink, or an equal one after another.
        parallelism: How many subtasks it has at first.
        checkpointing: Whether the job takes checkpoints.
        job: The job's id.

    Attributes:
        attempt: The newest deployment; None before `start`.
        complete: The newest complete checkpoint; 0 for none.
        holds_work: See the module.
        probe: Called at every protocol point with its name; may raise, to crash there.
        reports: What the sink has reported to the client.
        now_ms: The clock.
        pauses_ms: How long retries have waited, in order.
    """

    def __init__(
        self,
        sink: Sink | SupportsGlobalCommitter,
        parallelism: int = 1,
        *,
        checkpointing: bool = True,
        job: str = "job",
    ) -> None:
        self.sink = sink
        self.checkpointing = checkpointing
        self.job = job
        self.attempt: SinkAttempt | None = None
        self.complete = 0
        self.holds_work = False
        self.probe: Callable[[str], None] = lambda _point: None
        self.reports: list[tuple[str, Any]] = []
        self.now_ms = START_MS
        self.pauses_ms: list[int] = []
        self._parallelism = parallelism
        self._num_attempts = 0
        self._snapshots: dict[int, list[KeptPart]] = {0: []}

    @property
    def parallelism(self) -> int:
        """How many subtasks the newest deployment has."""
        return self._parallelism

    @property
    def operators(self) -> list[Operator]:
        """The newest deployment's, by subtask."""
        return self._current.operators

    @property
    def _current(self) -> SinkAttempt:
        assert self.attempt is not None, "the sink has not been started"
        return self.attempt

    def start(
        self, parallelism: int | None = None, *, checkpoint_id: int | None = None, is_fallback: bool = False
    ) -> SinkAttempt:
        """Deploy all subtasks. The attempt before is not closed: it was killed, or is a zombie now.

        Args:
            parallelism: How many; as many as before if it is not named.
            checkpoint_id: From which checkpoint; the newest complete one if it is not named.
            is_fallback: Whether newer ones are lost, so that the sink must prove that nothing of those is public.

        Raises:
            CheckpointFallbackError: If it is, or the sink cannot tell.
        """
        self._parallelism = parallelism or self._parallelism
        chosen = self.complete if checkpoint_id is None else checkpoint_id
        restored = self._snapshots[chosen]
        number, self._num_attempts = self._num_attempts, self._num_attempts + 1
        self.attempt = None
        self.attempt = SinkAttempt(self, number, self._parallelism, restored, chosen if is_fallback else None)
        self.work(self.attempt)
        return self.attempt

    def take_snapshot_of(self, other: SinkTestHarness, checkpoint_id: int) -> None:
        """Know another job's checkpoint, to be restored."""
        self._snapshots[checkpoint_id] = other._snapshots[checkpoint_id]

    def work(self, attempt: SinkAttempt) -> None:
        """Do what is under way, unless it is held."""
        if not self.holds_work:
            attempt.run_work()

    def write(self, records: Sequence[Any] | Batch, subtask: int = 0) -> None:
        """Hand records to a subtask."""
        self._current.write(records, subtask)

    def checkpoint(self, checkpoint_id: int, *, completes: bool = True, notifies: bool = True) -> None:
        """Take a checkpoint.

        Args:
            checkpoint_id: Its id.
            completes: Whether it becomes complete; it is aborted otherwise.
            notifies: Whether the sink hears of it.
        """
        parts = self._current.snapshot(checkpoint_id)
        if not completes:
            for operator in self.operators:
                operator.checkpoint_ended(checkpoint_id, is_complete=False)
            return
        self._snapshots[checkpoint_id] = parts
        self.complete = checkpoint_id
        if notifies:
            self.notify(checkpoint_id)

    def notify(self, checkpoint_id: int) -> None:
        """Tell the sink that a checkpoint is complete."""
        self._current.notify_complete(checkpoint_id)

    def end_input(self) -> None:
        """Tell the sink that all input has come: what it has kept back is in the next checkpoint."""
        for operator in self.operators:
            operator.finish()

    def finish(self) -> None:
        """End the job in order: what is left is committed, everything is closed."""
        self._current.finish()
        self.work(self._current)
        assert self._current.is_settled, "the job would be finished before its last commit"
        self.close()

    def close(self) -> None:
        """End the newest deployment as after a failure."""
        self._current.close()
