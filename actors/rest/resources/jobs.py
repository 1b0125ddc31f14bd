"""Jobs: lists, one in full, its plan, configuration, exceptions and accumulators.

Source: Flink's ``JobsOverviewHandler``, ``JobDetailsHandler``, ``JobExceptionsHandler``, ``JsonPlanGenerator``.
"""

from __future__ import annotations

import time
from typing import Any

from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.config import JobSettings
from headrace.engine.protocol.details import EdgeView, JobDetails, JobSummary, SubtaskTotals, VertexDetails
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView, VertexView

from .routes import RestError, RestRequest
from .stages import kind_of, nodes_of_stages, vertex_of_stage
from .tasks import FLINK_STATES, io_metrics, skew_of, state_counts, state_of_all, times_of_all

__all__ = [
    "accumulators",
    "configuration",
    "exceptions",
    "job",
    "job_ids",
    "jobs_overview",
    "now_ms",
    "plan",
    "rescales",
    "settings_of",
    "status",
    "vertex_pairs",
]

DEFAULT_EXCEPTIONS = 20
"""How many exceptions are shown unless the request says so."""


def now_ms() -> int:
    """Return epoch milliseconds."""
    return time.time_ns() // 1_000_000


def job_ids(request: RestRequest) -> Any:
    """Return all jobs with their states."""
    return {"jobs": [{"id": view.job_id, "status": view.state} for view in request.cluster.jobs()]}


def jobs_overview(request: RestRequest) -> Any:
    """Return all jobs, with what their tasks do."""
    return {"jobs": [_overview(one) for one in request.cluster.summaries()]}


def _overview(one: JobSummary) -> dict[str, Any]:
    counts = state_counts(one.num_tasks)
    return {
        "jid": one.job_id,
        "name": one.name,
        "start-time": one.started_ms,
        **_end_of(one),
        "state": one.state,
        **_job_type(one.kind),
        "last-modification": one.changed_ms,
        "tasks": {"total": sum(counts.values()), **{state.lower(): counts[state] for state in FLINK_STATES}},
    }


def _end_of(view: JobView | JobSummary) -> dict[str, int]:
    end_ms = -1 if view.ended_ms is None else view.ended_ms
    return {"end-time": end_ms, "duration": max((now_ms() if end_ms < 0 else end_ms) - view.started_ms, 0)}


def job(request: RestRequest) -> Any:
    """Return one job in full."""
    details = request.cluster.details(request.path["jobid"])
    view, now = details.view, now_ms()
    vertices = [_vertex(vertex, more, now) for vertex, more in vertex_pairs(details)]
    vertices += [vertex_of_stage(stage, now) for stage in view.stages or ()]
    return {
        "jid": view.job_id,
        "name": view.name,
        "state": view.state,
        **_job_type(kind_of(details)),
        "start-time": view.started_ms,
        **_end_of(view),
        "maxParallelism": -1,
        "now": now,
        "timestamps": {status.value: view.entered_ms.get(status.value, 0) for status in JobStatus},
        "vertices": vertices,
        "status-counts": state_counts(vertex["status"] for vertex in vertices),
        "plan": _plan(details),
        "num-restarts": view.num_restarts,
        "history": [{"timestamp": at_ms, "text": text} for at_ms, text in view.history],
        **({} if view.waiting is None else {"waiting": view.waiting}),
        **({"stages-left-out": view.num_stages_left_out} if view.is_data_set else {}),
    }


def vertex_pairs(details: JobDetails) -> list[tuple[VertexView, VertexDetails | None]]:
    """Return the vertices of a job, each with what is known of its subtasks."""
    by_id = {vertex.vertex_id: vertex for vertex in details.vertices}
    return [(vertex, by_id.get(vertex.vertex_id)) for vertex in details.view.vertices]


def _vertex(vertex: VertexView, more: VertexDetails | None, now: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "status": state_of_all(vertex.states),
        "tasks": state_counts(vertex.states),
    }
    if more is None:
        return described
    return {
        **described,
        "maxParallelism": more.max_parallelism,
        "slotSharingGroup": more.slot_sharing_group,
        **times_of_all(more.totals, now),
        "metrics": io_metrics(more.totals),
        "busy": vertex.busy,
        "idle": vertex.idle,
        "backpressured": vertex.backpressured,
        "read-records-per-second": vertex.records_in_per_s,
        "write-records-per-second": vertex.records_out_per_s,
        "low-watermark": vertex.watermark_ms,
        "spread": _spread(more.totals),
        "late-records-dropped": int(vertex.metrics.get("num_late_records_dropped", 0)),
    }


def _spread(totals: SubtaskTotals) -> dict[str, Any]:
    """How unevenly the subtasks of a vertex are used, and by which of them most is read."""
    rates = totals.rates
    largest = rates.index(max(rates)) if rates else -1
    return {
        "max-busy": totals.max_busy,
        "max-backpressured": totals.max_backpressured,
        "skew": skew_of(rates) if rates else 0.0,
        "largest-subtask": largest,
        "largest-share": rates[largest] / sum(rates) if any(rates) else 0.0,
    }


def plan(request: RestRequest) -> Any:
    """Return the graph of a job."""
    return {"plan": _plan(request.cluster.details(request.path["jobid"]))}


def _plan(details: JobDetails) -> dict[str, Any]:
    view, kind = details.view, kind_of(details)
    named = {"jid": view.job_id, "name": view.name, **({"type": kind} if kind else {})}
    if view.stages is not None:
        return {**named, "nodes": nodes_of_stages(view.stages), "explained": details.plan}
    inputs: dict[str, list[EdgeView]] = {}
    for edge in details.edges:
        inputs.setdefault(edge.target, []).append(edge)
    nodes = [
        {
            "id": vertex.vertex_id,
            "parallelism": vertex.parallelism,
            "operator": "",
            "operator_strategy": "",
            "description": vertex.name,
            "operators": [{"uid": operator.uid, "name": operator.name} for operator in vertex.operators],
            **(
                {"inputs": [_input(*pair) for pair in enumerate(edges)]}
                if (edges := inputs.get(vertex.vertex_id))
                else {}
            ),
            "optimizer_properties": {},
        }
        for vertex in view.vertices
    ]
    return {**named, "nodes": nodes}


def _input(number: int, edge: EdgeView) -> dict[str, Any]:
    return {
        "num": number,
        "id": edge.source,
        "ship_strategy": edge.ship_strategy,
        "exchange": "pipelined_bounded",
        "input": edge.input_index,
        "edge": edge.edge_id,
        **({} if edge.side_output is None else {"side_output": edge.side_output}),
        **({"feedback": True} if edge.is_feedback else {}),
        **({} if edge.records is None else _flow(edge)),
    }


def _flow(edge: EdgeView) -> dict[str, Any]:
    """What goes over an exchange, and how full its fullest queues are: shares of what is allowed there.

    One end alone may be full for a moment, as between two steps of who reads; an exchange is when both are.
    """
    return {
        "records": edge.records,
        "records-per-second": edge.records_per_s,
        "output-usage": edge.output_usage,
        "input-usage": edge.input_usage,
        "queue-fill": min(edge.output_usage, edge.input_usage),
    }


def _job_type(kind: str) -> dict[str, str]:
    """What kind of job it is, if that is known."""
    return {"job-type": kind} if kind else {}


def status(request: RestRequest) -> Any:
    """Return the state of a job."""
    return {"status": request.cluster.details(request.path["jobid"]).view.state}


def rescales(request: RestRequest) -> Any:
    """Return how a job came to its parallelism: its rescales, newest first, by command or by itself."""
    view = request.cluster.details(request.path["jobid"]).view
    return {
        "autoscaler": {"enabled": view.autoscaler is not None, "status": view.autoscaler or "off"},
        "rescales": [one.as_json() for one in reversed(view.rescales)],
    }


def settings_of(details: JobDetails) -> JobSettings:
    """Return what a job was submitted with.

    Raises:
        RestError: 404 if that is not known.
    """
    if details.view.is_data_set:
        raise RestError(404, f"job {details.view.job_id} is a data set: it has no settings, and takes no checkpoints")
    if details.settings is None:
        raise RestError(404, f"the settings of job {details.view.job_id} are not known any more")
    return details.settings


def configuration(request: RestRequest) -> Any:
    """Return what a job was submitted with."""
    details = request.cluster.details(request.path["jobid"])
    settings, view = settings_of(details), details.view
    parallelism = max((vertex.parallelism for vertex in view.vertices), default=-1)
    return {
        "jid": view.job_id,
        "name": view.name,
        "execution-config": {
            "execution-mode": "BATCH" if settings.is_batch else "PIPELINED",
            "restart-strategy": settings.restart_strategy().describe(),
            "job-parallelism": parallelism,
            "object-reuse-mode": settings.object_reuse,
            "state-backend": settings.state.backend,
            "failover-strategy": settings.failover.value,
            "latency-interval": settings.latency_interval_ms,
            "metrics-interval": settings.metrics_interval_ms,
            "user-config": {},
        },
    }


def exceptions(request: RestRequest) -> Any:
    """Return why a job was restarted, or has failed: newest first."""
    most = request.query.get("maxExceptions", DEFAULT_EXCEPTIONS)
    view = request.cluster.details(request.path["jobid"]).view
    newest_first = view.failures[::-1]
    entries: list[dict[str, Any]] = [
        {
            "exceptionName": failure.kind,
            "stacktrace": failure.text,
            "timestamp": failure.at_ms,
            "failureLabels": {"domain": failure.domain} if failure.domain else {},
            "taskName": failure.task or None,
            "endpoint": failure.task_manager or None,
            "taskManagerId": failure.task_manager or None,
            "concurrentExceptions": [],
        }
        for failure in newest_first[:most]
    ]
    root = newest_first[0] if newest_first else None
    return {
        **({} if root is None else {"root-exception": root.text, "timestamp": root.at_ms}),
        "truncated": len(newest_first) > most,
        "exceptionHistory": {"entries": entries, "truncated": len(newest_first) > most},
    }


def accumulators(request: RestRequest) -> Any:
    """Return what user functions have accumulated; of kinds of their own the value is not opened here."""
    view = request.cluster.details(request.path["jobid"]).view
    found = [
        {"name": name, "type": part.kind, "value": _accumulated(part.content)}
        for name, parts in sorted(view.accumulators.items())
        for part in parts
    ]
    return {"job-accumulators": [], "user-task-accumulators": found, "serialized-user-task-accumulators": {}}


def _accumulated(content: Any) -> str | None:
    if isinstance(content, bytes):  # a pickle, which only a client opens
        return None
    try:
        return str(content.get_local_value())
    except HeadraceError:
        return None
