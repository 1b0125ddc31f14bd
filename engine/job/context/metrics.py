"""Numbers of a job's tasks, turned into what people look at: rates, shares of time, sums over subtasks.

Counters are those of the current attempts. Rates and shares are over the time between a task's last two reports, by
the task's own ``elapsed_ms``, so that a late or early message does not bend them.

Source: Flink's web dashboard and ``JobVertexBackPressureInfo``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId

from ...autoscaler.evaluation import Observation, VertexTotals
from ...connectors.sources import EMIT_LAG, SOURCE_IDLE_TIME, WATERMARK_LAG
from ...execution.graph import ExecutionGraph, ExecutionVertex
from ...functions.accumulators import AccumulatorPart, merged_parts
from ...functions.event_time_parts import OperatorEventTime
from ...graph.job_graph import JobEdge
from ...kernel.metrics import MetricValue, added, as_numbers
from ...protocol.details import EdgeView, SubtaskTotals, SubtaskView, VertexDetails
from ...protocol.messages import SHOWN_OF_ALL
from ...protocol.states import TaskState
from ...protocol.task_messages import MetricsReported, edge_number
from ...protocol.views import OperatorView, VertexView

__all__ = ["JobMetrics"]

GAUGES = frozenset({"watermark_ms", EMIT_LAG, WATERMARK_LAG, SOURCE_IDLE_TIME})
"""Operators' numbers that are no counters: adding them over subtasks would mean nothing."""


@dataclass(slots=True)
class _TaskNumbers:
    latest: dict[str, float] = field(default_factory=dict)
    previous: dict[str, float] = field(default_factory=dict)
    operators: dict[OperatorId, dict[str, MetricValue]] = field(default_factory=dict)
    accumulators: dict[OperatorId, dict[str, AccumulatorPart]] = field(default_factory=dict)
    event_time: dict[OperatorId, OperatorEventTime] = field(default_factory=dict)
    # What the last two reports come to: per second, and shares of time. Views are made more often than reports come.
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    busy: float = 0.0
    backpressured: float = 0.0

    def total(self, name: str) -> float:
        return self.latest.get(name, 0)

    def take(self, message: MetricsReported) -> None:
        """Go on to a newer report."""
        self.previous, self.latest = self.latest, message.numbers
        self.operators = message.operators
        self.accumulators = message.accumulators
        self.event_time = message.event_time
        self.records_in_per_s = 1_000 * self.per_ms("records_in")
        self.records_out_per_s = 1_000 * self.per_ms("records_out")
        self.busy = min(self.per_ms("busy_ms"), 1.0)
        self.backpressured = min(self.per_ms("backpressured_ms"), 1.0)

    def per_ms(self, name: str) -> float:
        elapsed = self.latest.get("elapsed_ms", 0) - self.previous.get("elapsed_ms", 0)
        return max(self.latest.get(name, 0) - self.previous.get(name, 0), 0) / elapsed if elapsed > 0 else 0.0


class JobMetrics:
    """The newest numbers of every current task."""

    def __init__(self) -> None:
        self._tasks: dict[ExecutionAttemptId, _TaskNumbers] = {}
        # The same by vertex and subtask, as people look at them.
        self._by_vertex: dict[VertexId, dict[int, _TaskNumbers]] = {}

    def keep_only(self, attempts: Collection[ExecutionAttemptId]) -> None:
        """Forget all tasks but these, as a new deployment begins."""
        kept, self._tasks, self._by_vertex = self._tasks, {}, {}
        for attempt, numbers in kept.items():
            if attempt in attempts:
                self._keep(attempt, numbers)

    def _keep(self, attempt: ExecutionAttemptId, numbers: _TaskNumbers) -> None:
        self._tasks[attempt] = numbers
        self._by_vertex.setdefault(attempt.vertex, {})[attempt.subtask] = numbers

    def reported(self, message: MetricsReported) -> None:
        """Take a task's report; the caller has checked that its attempt is a current one."""
        numbers = self._tasks.get(message.attempt)
        if numbers is None:
            numbers = _TaskNumbers()
            self._keep(message.attempt, numbers)
        if message.numbers.get("elapsed_ms", 0) <= numbers.latest.get("elapsed_ms", -1):
            return  # doubled
        numbers.take(message)

    def accumulators(self) -> dict[str, tuple[AccumulatorPart, ...]]:
        """Return what the functions of all current tasks have accumulated, by name, in the order of subtasks."""
        own = [item for item in self._tasks.items() if item[1].accumulators]
        tasks = sorted(own, key=lambda item: (item[0].vertex, item[0].subtask))
        return merged_parts(parts for _, task in tasks for parts in task.accumulators.values())

    def view(self, graph: ExecutionGraph) -> tuple[VertexView, ...]:
        """Return every vertex, sources first."""
        inputs = _inputs_of(graph)
        return tuple(
            [_view_of(one, graph, self._by_vertex.get(one, {}), inputs.get(one, ())) for one in graph.vertices]
        )

    def totals(self, graph: ExecutionGraph, now_ms: int) -> Observation | None:
        """Return what every vertex has done since it was deployed; None as long as some task has not reported."""
        found: dict[VertexId, VertexTotals] = {}
        for vertex_id, subtasks in graph.vertices.items():
            attempts = [subtask.current.attempt for subtask in subtasks if subtask.current is not None]
            tasks = [self._tasks[attempt] for attempt in attempts if attempt in self._tasks]
            if len(tasks) < len(subtasks):
                return None
            found[vertex_id] = _totals_of(tasks)
        return Observation(now_ms, found)

    def details(
        self, graph: ExecutionGraph, in_full: Collection[VertexId] | None = None
    ) -> list[tuple[VertexView, VertexDetails]]:
        """Return every vertex, sources first, and what its view leaves out; less of those not ``in_full``.

        Args:
            graph: Of what.
            in_full: Of which vertices all is told; None for all of them. What is told of others says `FetchJobDetails`.
        """
        inputs, found = _inputs_of(graph), list[tuple[VertexView, VertexDetails]]()
        for vertex_id, executions in graph.vertices.items():
            vertex, tasks = graph.job_graph.vertices[vertex_id], self._by_vertex.get(vertex_id, {})
            has_all = in_full is None or vertex_id in in_full
            subtasks = tuple([_subtask_of(one, tasks.get(one.subtask, _NOTHING)) for one in executions])
            more = VertexDetails(
                vertex_id,
                vertex.max_parallelism,
                vertex.slot_sharing_group,
                SubtaskTotals.of(subtasks),
                subtasks if has_all else (),
            )
            found.append((_view_of(vertex_id, graph, tasks, inputs.get(vertex_id, ()), in_full=has_all), more))
        return found

    def edges(self, graph: ExecutionGraph) -> tuple[EdgeView, ...]:
        """Return the exchanges of a job, with what goes over them."""
        tasks = {vertex: list(by_subtask.values()) for vertex, by_subtask in self._by_vertex.items()}
        return tuple(
            [_edge_of(edge, tasks.get(edge.source, []), tasks.get(edge.target, [])) for edge in graph.job_graph.edges]
        )


_NOTHING = _TaskNumbers()
"""Of a task that has not reported."""


def _inputs_of(graph: ExecutionGraph) -> dict[VertexId, tuple[VertexId, ...]]:
    """Whose output each vertex reads."""
    inputs: dict[VertexId, dict[VertexId, None]] = {}
    for edge in graph.job_graph.edges:
        inputs.setdefault(edge.target, {})[edge.source] = None
    return {vertex: tuple(sources) for vertex, sources in inputs.items()}


def _subtask_of(subtask: ExecutionVertex, task: _TaskNumbers) -> SubtaskView:
    execution = subtask.current
    if execution is None:
        return SubtaskView(subtask.subtask, TaskState.CREATED, -1, "", "", "", {}, {})
    place = execution.place
    return SubtaskView(
        subtask.subtask,
        execution.state,
        execution.attempt.attempt,
        place.task_manager,
        place.info.address.host,
        place.info.node,
        execution.entered_ms.copy(),
        task.latest,
        task.records_in_per_s,
        task.records_out_per_s,
        task.busy,
        task.backpressured,
        task.operators,
    )


def _edge_of(edge: JobEdge, writers: list[_TaskNumbers], readers: list[_TaskNumbers]) -> EdgeView:
    records, written, read = (edge_number(edge.edge_id, name) for name in ("records", "output_usage", "input_usage"))
    known = [task for task in writers if records in task.latest]
    return EdgeView(
        edge.source,
        edge.target,
        edge.input_index,
        edge.partitioner.name,
        edge.side_tag,
        edge.is_feedback,
        edge.edge_id,
        int(sum([task.latest[records] for task in known])) if known else None,
        sum([1_000 * task.per_ms(records) for task in known]),
        max([task.latest.get(written, 0.0) for task in writers], default=0.0),
        max([task.latest.get(read, 0.0) for task in readers], default=0.0),
    )


def _view_of(
    vertex_id: VertexId,
    graph: ExecutionGraph,
    by_subtask: dict[int, _TaskNumbers],
    inputs: tuple[VertexId, ...],
    *,
    in_full: bool = True,
) -> VertexView:
    vertex, tasks = graph.job_graph.vertices[vertex_id], list(by_subtask.values())
    reports = [task.latest for task in tasks]
    busy = _mean([task.busy for task in tasks])
    backpressured = _mean([task.backpressured for task in tasks])
    watermarks = [numbers["watermark_ms"] for numbers in reports if "watermark_ms" in numbers]
    operators = _totals_by_operator(tasks, None if in_full else SHOWN_OF_ALL)
    in_order = [task for _, task in sorted(by_subtask.items())]
    return VertexView(
        vertex_id=vertex_id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        states=graph.state_counts(vertex_id),
        records_in=int(sum([numbers.get("records_in", 0) for numbers in reports])),
        records_out=int(sum([numbers.get("records_out", 0) for numbers in reports])),
        records_in_per_s=sum([task.records_in_per_s for task in tasks]),
        records_out_per_s=sum([task.records_out_per_s for task in tasks]),
        busy=busy,
        idle=max(1.0 - busy - backpressured, 0.0) if tasks else 0.0,
        backpressured=backpressured,
        watermark_ms=int(min(watermarks)) if len(watermarks) == vertex.parallelism else None,
        metrics=as_numbers(added(operators.values())),
        attempts=graph.attempt_numbers(vertex_id),
        operators=tuple(
            OperatorView(
                OperatorId(node.uid),
                node.name,
                as_numbers(operators.get(OperatorId(node.uid), {})),
                _event_time_of(OperatorId(node.uid), in_order, in_full=in_full),
            )
            for node in vertex.chain
        ),
        inputs=inputs,
    )


def _totals_of(tasks: list[_TaskNumbers]) -> VertexTotals:
    pending = [task.latest["pending_records"] for task in tasks if "pending_records" in task.latest]
    return VertexTotals(
        num_tasks=len(tasks),
        records_in=sum(task.total("records_in") for task in tasks),
        busy_ms=sum(task.total("busy_ms") for task in tasks),
        backpressured_ms=sum(task.total("backpressured_ms") for task in tasks),
        elapsed_ms=sum(task.total("elapsed_ms") for task in tasks),
        pending_records=sum(pending) if len(pending) == len(tasks) else None,
    )


def _event_time_of(uid: OperatorId, tasks: list[_TaskNumbers], *, in_full: bool) -> tuple[OperatorEventTime, ...]:
    """Where event time is in an operator's subtasks; if not in full, only of one that makes watermarks."""
    found = tuple([task.event_time[uid] for task in tasks if uid in task.event_time])
    return found if in_full or any(one.parts for one in found) else ()


def _totals_by_operator(
    tasks: list[_TaskNumbers], names: Collection[str] | None
) -> dict[OperatorId, dict[str, MetricValue]]:
    """Add up the metrics of a vertex's operators over its subtasks; only those with these names, if any are said."""
    reports: dict[OperatorId, list[dict[str, MetricValue]]] = {}
    for task in tasks:
        for uid, numbers in task.operators.items():
            if names is None:
                reports.setdefault(uid, []).append(numbers)
                continue
            for name in names:
                if name in numbers:
                    reports.setdefault(uid, []).append({name: numbers[name]})
    return {
        uid: {name: value for name, value in added(own).items() if name not in GAUGES} for uid, own in reports.items()
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
