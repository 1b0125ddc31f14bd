"""A job of hundreds of vertices that nobody runs: views as a JobManager would give them, other ones each time."""

from __future__ import annotations

from typing import Any

from headrace.actors.rest.resources.stages import summary_of
from headrace.engine.functions.event_time_parts import OperatorEventTime, WatermarkPart
from headrace.engine.protocol.details import (
    CheckpointStatisticsView,
    CheckpointView,
    EdgeView,
    JobDetails,
    SubtaskTotals,
    SubtaskView,
    TaskAcknowledgement,
    VertexDetails,
)
from headrace.engine.protocol.messages import (
    FetchJobDetails,
    FetchJobSummary,
    FetchPendingCheckpoints,
    ListJobs,
    ListTaskManagers,
)
from headrace.engine.protocol.states import CheckpointStatus, JobStatus, TaskState
from headrace.engine.protocol.views import JobView, OperatorView, TaskManagerView, VertexView
from headrace.state.identifiers import JobId, OperatorId, VertexId

BEGAN_MS = 1_790_000_000_000
JOB = JobId("1a2b3c4d" * 4)
WIDTH = 10
"""Vertices of a layer."""


class LargeCluster:
    """Answers as a cluster with one large job does.

    Args:
        num_vertices: Of the job.
        parallelism: Of each vertex.
    """

    name = "large"

    def __init__(self, num_vertices: int = 200, parallelism: int = 5) -> None:
        self._num_vertices = num_vertices
        self._parallelism = parallelism
        self._turn = 0

    def ask_dispatcher(self, request: Any, _timeout_ms: int = 0) -> Any:
        if isinstance(request, ListJobs):
            return [self._details().view]
        assert isinstance(request, ListTaskManagers)
        slots = self._parallelism
        return [TaskManagerView(f"tm-{i}", JOB, f"node-{i}", slots, 1 << 30, (1 << 30) // slots) for i in range(10)]

    def ask_job(self, _job_id: Any, request: Any, _timeout_ms: int = 0) -> Any:
        if isinstance(request, FetchPendingCheckpoints):
            return ()
        if isinstance(request, FetchJobSummary):
            return summary_of(self._details())
        assert isinstance(request, FetchJobDetails)
        self._turn += 1
        return self._details()

    def page_of(self, _host: str) -> None:
        return None

    def _share(self, *place: int) -> float:
        """A share of time, that differs from turn to turn."""
        return (sum(part * prime for part, prime in zip((*place, self._turn), (7, 13, 29), strict=False)) % 100) / 100

    def _details(self) -> JobDetails:
        vertices = [self._vertex(i) for i in range(self._num_vertices)]
        view = JobView(
            JOB, "a large job", JobStatus.RUNNING, self._turn, BEGAN_MS, None, tuple(one for one, _ in vertices), 0, 3,
            0, 3, "/checkpoints/3", 120.0, None, None, entered_ms={"CREATED": BEGAN_MS, "RUNNING": BEGAN_MS + 900},
        )  # fmt: skip
        checkpoints = CheckpointStatisticsView(num_completed=3, history=tuple(self._checkpoint(i) for i in (3, 2, 1)))
        return JobDetails(view, None, tuple(more for _, more in vertices), tuple(self._edges()), checkpoints)

    def _edges(self) -> list[EdgeView]:
        pairs = [(i - WIDTH, i) for i in range(WIDTH, self._num_vertices)]
        pairs += [(i - WIDTH - (i * 3) % WIDTH, i) for i in range(2 * WIDTH, self._num_vertices, 4) if (i * 3) % WIDTH]
        return [EdgeView(VertexId(f"v{source}"), VertexId(f"v{target}"), 0, "HASH") for source, target in pairs]

    def _vertex(self, i: int) -> tuple[VertexView, VertexDetails]:
        busy, held = self._share(i), self._share(i, 3) / 2
        name = f"{'Source: ' if i < WIDTH else ''}operator {i} -> filter -> map"
        event_time = tuple(
            OperatorEventTime(
                BEGAN_MS + 1000 * i + subtask,
                parts=(WatermarkPart("0", BEGAN_MS, BEGAN_MS),) if i < WIDTH else (),
                num_parts=1,
                subtask=subtask,
            )
            for subtask in range(self._parallelism)
        )
        operators = tuple(
            OperatorView(OperatorId(f"v{i}" if k == 0 else f"v{i}-{k}"), f"operator {i}.{k}", {}, event_time)
            for k in range(3)
        )
        subtasks = tuple(self._subtask(i, subtask) for subtask in range(self._parallelism))
        view = VertexView(
            VertexId(f"v{i}"), name, self._parallelism, {"RUNNING": self._parallelism}, 10_000, 9_000, 1_000.0 + i,
            900.0 + i, busy, max(1 - busy - held, 0), held, BEGAN_MS + 1000 * i, {}, operators,
        )  # fmt: skip
        return view, VertexDetails(VertexId(f"v{i}"), 128, "default", SubtaskTotals.of(subtasks), subtasks)

    def _subtask(self, i: int, subtask: int) -> SubtaskView:
        numbers = {"records_in": 2_000, "records_out": 1_800, "busy_ms": 900, "backpressured_ms": 100}
        metrics = {f"metric_{k}": k + self._turn for k in range(10)}
        return SubtaskView(
            subtask, TaskState.RUNNING, 0, f"tm-{i % 10}", f"tm-{i % 10}/{subtask}", f"node-{i % 10}",
            {"SCHEDULED": BEGAN_MS, "DEPLOYING": BEGAN_MS + 100, "RUNNING": BEGAN_MS + 900},
            {**numbers, "elapsed_ms": 1_000 * self._turn}, 200.0, 180.0, self._share(i, subtask),
            self._share(i, subtask) / 3, {OperatorId(f"v{i}"): metrics},
        )  # fmt: skip

    def _checkpoint(self, number: int) -> CheckpointView:
        at = BEGAN_MS + 60_000 * number
        tasks = tuple(
            TaskAcknowledgement(VertexId(f"v{i}"), k, at + i + k, 1 << 20, 1 << 16, 0, 1.0, 2.0, 3.0, False)
            for i in range(self._num_vertices)
            for k in range(self._parallelism)
        )
        return CheckpointView(
            number, CheckpointStatus.COMPLETED, False, False, at, at + 400, len(tasks), tasks, f"/checkpoints/{number}"
        )
