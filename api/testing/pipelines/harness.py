"""A whole small program under a manual clock, in this process: every operator, exchange and subtask, no cluster.

The program is a function from streams to streams; each of its parameters is an input that the test feeds by name, each
stream it returns an output that the test reads. Between two calls of the test everything that can be computed has been:
feeding a record lets it run through all operators, moving the clock fires what is due on the way, each at its time.

What runs is what runs in production: the real slot with its real tasks, channels, barriers and splits, the real
checkpoint files (in memory). Only what decides when and where is replaced: one slot hosts all subtasks, the clock is
the test's, work that production does in the background is done on the spot. So `snapshot` is an aligned checkpoint of
the whole program, and `restore` starts a fresh run from it, at any parallelism.

Source: Kafka Streams' ``TopologyTestDriver``; Flink's ``StreamTaskMailboxTestHarness``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.engine.columns.records import MAX_WATERMARK, Batch, StreamStatus
from headrace.engine.errors import ProgramError
from headrace.engine.functions.accumulators import accumulated_value, merged_parts
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.kernel.config import CheckpointSettings
from headrace.engine.kernel.metrics import combined
from headrace.engine.protocol.task_messages import MetricsReported

from ...stream.environment import StreamExecutionEnvironment
from ..operators.harness import Harness, batch_of, records_of_batch
from ..operators.subtask import StateCounts
from .ports import ENVIRONMENT_NAMES, Input, declare_inputs, declare_outputs, vertex_of
from .run import CheckpointPlace, ProgramRun

__all__ = ["PipelineSnapshot", "PipelineTestHarness"]

NEVER_MS = 10**15
"""Longer than any test's clock goes: numbers of tasks are not reported."""


_Self = TypeVar("_Self", bound="PipelineTestHarness")


@dataclass(frozen=True)
class PipelineSnapshot:
    """A checkpoint of a whole program; taken by ``snapshot``, understood by ``restore``.

    Attributes:
        path: Of the checkpoint, within this process.
        epoch: Of the run that took it.
    """

    path: str
    epoch: int
    place: CheckpointPlace = field(repr=False)


class PipelineTestHarness(Harness):
    """A program of any number of operators, at any parallelism, without a cluster.

    Asynchronous requests are made on the spot. A loop finds out by the clock that it is empty: behind one,
    watermarks and the end come after ``advance("1 s")``.

    Args:
        program: A function from streams to streams: its parameters are the inputs, by name (one called ``env`` gets the
            `StreamExecutionEnvironment`, for programs with sources and settings of their own). It returns the stream
            whose records the test wants to see, a dict of such streams by name, or None.
        parallelism: Of all operators that have none of their own.
        now_ms: Where processing time begins, epoch milliseconds.
        state_backend: Where keyed state is held, unless the program says it: ``heap`` or ``rocksdb``.
        **options: As for ``StreamExecutionEnvironment.get_execution_environment``.

    Examples:
        >>> from headrace import TumblingEventTimeWindows
        >>> from headrace.testing import PipelineTestHarness
        >>> def clicks_per_user(clicks):
        ...     windows = clicks.key_by(lambda click: click[0]).window(TumblingEventTimeWindows.of("10 s"))
        ...     return windows.reduce(lambda a, b: (a[0], a[1] + b[1]))
        >>> with PipelineTestHarness(clicks_per_user, parallelism=2) as harness:
        ...     harness.process_elements([("ann", 1), ("bob", 1), ("ann", 1)], [1_000, 2_000, 3_000])
        ...     harness.process_watermark(10_000)
        ...     sorted(harness.extract_output_values())
        [('ann', 2), ('bob', 1)]
    """

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        parallelism: int = 1,
        now_ms: int = 0,
        state_backend: str = "heap",
        **options: Any,
    ) -> None:
        super().__init__(now_ms)
        # Set by `restore`; read when the program is started.
        self._restored: PipelineSnapshot | None = None
        # Made here, so that a wrong program fails where the harness is made.
        env = StreamExecutionEnvironment.get_execution_environment(
            actor_system="local", parallelism=parallelism, **options
        )
        env.set_state_backend(state_backend)
        self._inputs = declare_inputs(env, program)
        arguments = {name: one.stream for name, one in self._inputs.items()}
        passes_environment = [name for name in inspect.signature(program).parameters if name in ENVIRONMENT_NAMES]
        self._output_names = declare_outputs(program(**arguments, **dict.fromkeys(passes_environment, env)))
        self._place = CheckpointPlace()
        graph = env.get_job_graph("test")
        settings = replace(
            graph.settings,
            watches_records=True,
            checkpoints=replace(
                graph.settings.checkpoints or CheckpointSettings(NEVER_MS, self._place.uri), directory=self._place.uri
            ),
            buffer_timeout_ms=0,
            metrics_interval_ms=NEVER_MS,
            latency_interval_ms=0,
        )
        self._graph = replace(graph, settings=settings)
        # Where each input's elements are handed in.
        self._heads = {name: vertex_of(graph, one.stream) for name, one in self._inputs.items()}
        self._run: ProgramRun | None = None

    def restore(self: _Self, snapshot: PipelineSnapshot) -> _Self:
        """Begin from a snapshot of an earlier run of the program, whatever its parallelism was. Returns the harness.

        Operators are matched as in production: by their uid, or by their place in the program.

        Raises:
            ProgramError: If the harness is open already.
        """
        if self._is_open:
            message = "state is restored before the program is started"
            raise ProgramError(message, hint="Call restore() on a new harness, first of all.")
        self._restored = snapshot
        return self

    def _open(self) -> None:
        self._run = ProgramRun(self._graph, self._place, self._now_ms, self._keep)
        snapshot = self._restored
        self._run.start(None if snapshot is None else snapshot.path, 0 if snapshot is None else snapshot.epoch)

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()

    def _running(self) -> ProgramRun:
        self.open()
        assert self._run is not None
        return self._run

    # ------------------------------------------------------------------------------------------------------------ input
    def process_element(self, value: Any, timestamp: int | None = None, stream: str | None = None) -> None:
        """Feed one record and let it run through.

        Args:
            value: The record.
            timestamp: Its event time, epoch milliseconds; None for none.
            stream: Name of the input; needed if there are several.
        """
        self.process_elements([value], None if timestamp is None else [timestamp], stream)

    def process_elements(
        self, values: Iterable[Any], timestamps: Sequence[int] | None = None, stream: str | None = None
    ) -> None:
        """Feed several records, in one batch.

        Args:
            values: The records; a ``pyarrow.RecordBatch`` for operators that work on columns.
            timestamps: Their event times, one each; None for none.
            stream: Name of the input; needed if there are several.
        """
        self._feed(self._input(stream), [batch_of(values, timestamps)])

    def process_watermark(self, timestamp: int, stream: str | None = None) -> None:
        """Let event time go on.

        Args:
            timestamp: How far, epoch milliseconds.
            stream: Name of the input; None for all inputs.
        """
        for one in self._inputs.values() if stream is None else [self._input(stream)]:
            if not one.has_ended:
                self._feed(one, [one.watermark.advance(timestamp)])

    def process_idleness(self, idle: bool, stream: str | None = None) -> None:
        """Let an input become idle, or active again: meanwhile event time is that of the others.

        Args:
            idle: Whether it is idle.
            stream: Name of the input; needed if there are several.
        """
        self._feed(self._input(stream), [StreamStatus(idle)])

    def end_input(self, stream: str | None = None) -> None:
        """End an input: its event time goes to its end. When all inputs and sources have ended, the program finishes.

        Args:
            stream: Name of the input; None for all inputs.
        """
        for one in list(self._inputs.values()) if stream is None else [self._input(stream)]:
            if not one.has_ended:
                self._feed(one, [MAX_WATERMARK])
                one.has_ended = True
                self._guarded(self._running().feed, self._heads[one.name], None)

    def _input(self, name: str | None) -> Input:
        if name is None and len(self._inputs) == 1:
            return next(iter(self._inputs.values()))
        if name is None or name not in self._inputs:
            known = ", ".join(map(repr, self._inputs)) or "none"
            message = f"an input of the program must be named; got {name!r}, there are {known}"
            raise ProgramError(message)
        return self._inputs[name]

    def _feed(self, one: Input, elements: list[Any]) -> None:
        run = self._running()
        if one.has_ended:
            message = f"input {one.name!r} has ended"
            raise ProgramError(message)
        self._guarded(run.feed, self._heads[one.name], elements)

    def _advance_to(self, now_ms: int) -> None:
        run = self._running()
        try:
            run.advance_to(now_ms)
        finally:
            self._now_ms = run.now_ms

    @property
    def is_finished(self) -> bool:
        """Whether all inputs and sources have ended and every operator is done."""
        return self._run is not None and self._run.is_finished

    # ------------------------------------------------------------------------------------------------- output and state
    def _keep(self, output: str | None, element: Any) -> None:
        kept = self._emitted.setdefault(output, [])
        if isinstance(element, Batch):
            kept.extend(records_of_batch(element))
        else:
            kept.append(element)

    def _output_name(self, output: OutputTag | str | None) -> str | None:
        name = super()._output_name(output)
        if name not in self._output_names:
            known = ", ".join(map(repr, self._output_names)) or "none"
            message = f"the program returns no output {name!r}; there are {known}"
            raise ProgramError(message, hint="Return a dict of streams, by the names of the outputs.")
        return name

    def snapshot(self) -> PipelineSnapshot:
        """Take a checkpoint of the whole program; it goes on. Sinks commit what they have written so far.

        Raises:
            CheckpointError: If a task declines it.
        """
        run = self._running()
        return PipelineSnapshot(self._guarded(run.checkpoint), run.epoch, self._place)

    def num_keyed_state_entries(self, state: str | None = None) -> int:
        """Return how many values keyed state holds, over all operators, keys and windows; timers are not counted.

        Args:
            state: The state's name; None for all states.
        """
        return StateCounts(self._running().keyed_states()).num_entries(state)

    def num_event_time_timers(self) -> int:
        """Return how many event-time timers of functions and triggers wait, over all operators and keys."""
        return StateCounts(self._running().keyed_states()).num_event_time_timers()

    def num_processing_time_timers(self) -> int:
        """Return how many processing-time timers wait, over all operators and keys."""
        return StateCounts(self._running().keyed_states()).num_processing_time_timers()

    def metric(self, name: str) -> float:
        """Return a metric, such as ``num_late_records_dropped``, of all operators together; 0 if there is none."""
        operators = (numbers for report in self._reports() for numbers in report.operators.values())
        return combined(operators).get(name, 0)

    def accumulator_result(self, name: str) -> Any:
        """Return what functions have accumulated under a name, over all subtasks; None if nothing."""
        parts = merged_parts(part for report in self._reports() for part in report.accumulators.values())
        return accumulated_value(name, parts.get(name, ()))

    def _reports(self) -> list[MetricsReported]:
        reports: list[MetricsReported] = self._guarded(self._running().reports)
        return reports
