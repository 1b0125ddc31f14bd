"""Vertices and their subtasks: where they run, how they are, watermarks.

Source: Flink's ``JobVertexDetailsHandler``, ``JobVertexWatermarksHandler``, ``SubtasksTimesHandler``,
``JobVertexTaskManagersHandler``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.protocol.details import JobDetails, SubtaskTotals, SubtaskView, VertexDetails
from headrace.engine.protocol.views import OperatorView, VertexView

from .jobs import now_ms, vertex_pairs
from .routes import RestError, RestRequest
from .tasks import flink_state, io_metrics, state_counts, state_of_all, times_of, times_of_all

__all__ = [
    "find_subtask",
    "find_vertex",
    "subtask",
    "subtask_times",
    "task_managers",
    "vertex",
    "vertex_of",
    "watermarks",
    "watermarks_of_job",
]


def find_vertex(details: JobDetails, vertex_id: str) -> tuple[VertexView, VertexDetails]:
    """Return a vertex of a job.

    Raises:
        RestError: 404 if there is none, or nothing is known of its subtasks.
    """
    for view, more in vertex_pairs(details):
        if view.vertex_id == vertex_id and more is not None:
            return view, more
    if any(str(stage.id) == vertex_id for stage in details.view.stages or ()):
        message = f"{vertex_id} is a stage of data set {details.view.job_id}: nothing is known of its single tasks"
        raise RestError(404, message)
    raise RestError(404, f"job {details.view.job_id} has no vertex {vertex_id[:200]!r}, or is not deployed")


def find_subtask(more: VertexDetails, text: str) -> SubtaskView:
    """Return a subtask by its index, as a path has it.

    Raises:
        RestError: 400 if that is no number, 404 if there is no such subtask.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RestError(400, f"a subtask is a whole number; got {text[:100]!r}")
    if int(text) >= len(more.subtasks):
        raise RestError(404, f"vertex {more.vertex_id!r} has {len(more.subtasks)} subtasks, no {text}")
    return more.subtasks[int(text)]


def vertex_of(request: RestRequest) -> tuple[VertexView, VertexDetails]:
    """Return the vertex that a path names, with its subtasks; raises as `find_vertex`."""
    vertex_id = request.path["vertexid"]
    return find_vertex(request.cluster.details(request.path["jobid"], vertex_id), vertex_id)


def vertex(request: RestRequest) -> Any:
    """Return a vertex with its subtasks."""
    view, more = vertex_of(request)
    now = now_ms()
    return {
        "id": view.vertex_id,
        "name": view.name,
        "parallelism": view.parallelism,
        "maxParallelism": more.max_parallelism,
        "now": now,
        "aggregated": {"metrics": io_metrics(more.totals), "status-counts": _counts(more)},
        "operators": [
            {"uid": operator.uid, "name": operator.name, "metrics": operator.metrics} for operator in view.operators
        ],
        "subtasks": [_subtask(one, now) for one in more.subtasks],
    }


def _counts(more: VertexDetails) -> dict[str, int]:
    return state_counts(one.state for one in more.subtasks)


def _subtask(one: SubtaskView, now: int) -> dict[str, Any]:
    return {
        "subtask": one.subtask,
        "status": flink_state(one.state),
        "attempt": one.attempt,
        "endpoint": one.host,
        "node": one.node,
        "taskmanager-id": one.task_manager,
        **times_of(one, now),
        "metrics": io_metrics(SubtaskTotals.of([one])),
    }


def subtask(request: RestRequest) -> Any:
    """Return the current attempt of one subtask."""
    _view, more = vertex_of(request)
    return _subtask(find_subtask(more, request.path["subtaskindex"]), now_ms())


def subtask_times(request: RestRequest) -> Any:
    """When each subtask came into its states."""
    view, more = vertex_of(request)
    now = now_ms()
    return {
        "id": view.vertex_id,
        "name": view.name,
        "now": now,
        "subtasks": [
            {
                "subtask": one.subtask,
                "endpoint": one.host,
                "duration": times_of(one, now)["duration"],
                "timestamps": {**dict.fromkeys(state_counts(()), 0), **_entered(one)},
            }
            for one in more.subtasks
        ],
    }


def _entered(one: SubtaskView) -> dict[str, int]:
    """When it came into each of Flink's states: the first of those that Flink has one name for."""
    entered: dict[str, int] = {}
    for state, at_ms in one.entered_ms.items():
        entered.setdefault(flink_state(state), at_ms)
    return entered


def task_managers(request: RestRequest) -> Any:
    """Return a vertex by the TaskManagers that its subtasks are on."""
    view, more = vertex_of(request)
    now = now_ms()
    groups: dict[str, list[SubtaskView]] = {}
    for one in more.subtasks:
        groups.setdefault(one.task_manager, []).append(one)
    return {
        "id": view.vertex_id,
        "name": view.name,
        "now": now,
        "taskmanagers": [_on_task_manager(name, ones, now) for name, ones in sorted(groups.items())],
    }


def _on_task_manager(name: str, ones: list[SubtaskView], now: int) -> dict[str, Any]:
    totals = SubtaskTotals.of(ones)
    return {
        "taskmanager-id": name,
        "endpoint": name,
        "status": state_of_all(one.state for one in ones),
        **times_of_all(totals, now),
        "metrics": io_metrics(totals),
        "status-counts": state_counts(one.state for one in ones),
    }


def watermarks(request: RestRequest) -> Any:
    """Return the watermark that each subtask has given on last; those that have given none are left out."""
    _view, more = vertex_of(request)
    return [
        {"id": f"{one.subtask}.currentOutputWatermark", "value": str(int(one.numbers["watermark_ms"]))}
        for one in more.subtasks
        if "watermark_ms" in one.numbers
    ]


def watermarks_of_job(request: RestRequest) -> Any:
    """Return where event time is in all operators, and what holds it back; not of Flink."""
    job_id, makers_only = request.path["jobid"], request.query.get("makers", False)
    details = request.cluster.details(job_id) if makers_only else request.cluster.all_of(job_id)
    chosen = (
        (view, [one for one in view.operators if _makes(one) or not makers_only]) for view in details.view.vertices
    )
    return {
        "now": now_ms(),
        "vertices": [
            {
                "id": view.vertex_id,
                "name": view.name,
                "parallelism": view.parallelism,
                "low-watermark": view.watermark_ms,
                "operators": [_event_time(operator) for operator in operators],
            }
            for view, operators in chosen
            if operators or not makers_only
        ],
    }


def _makes(operator: OperatorView) -> bool:
    """Whether it makes watermarks: sources, and what assigns event times."""
    return any(one.parts for one in operator.event_time)


def _event_time(operator: OperatorView) -> dict[str, Any]:
    found = [one.watermark_ms for one in operator.event_time if one.watermark_ms is not None]
    return {
        "uid": operator.uid,
        "name": operator.name,
        "low-watermark": min(found, default=None),
        "high-watermark": max(found, default=None),
        "late-records-dropped": int(operator.metrics.get("num_late_records_dropped", 0)),
        "subtasks": [
            {
                "subtask": one.subtask,
                "watermark": one.watermark_ms,
                "waits-for": one.next_ms,
                "num-parts": one.num_parts,
                "parts": [
                    {
                        "name": part.name,
                        "watermark": part.watermark_ms,
                        "risen": part.risen_ms,
                        "idle": part.is_idle,
                        "held": part.is_held,
                    }
                    for part in one.parts
                ],
            }
            for one in operator.event_time
        ],
    }
