"""Metrics by name, one by one or over many subtasks and jobs; and all of them for Prometheus.

Names and scopes are Flink's, ``taskmanager.job.task.operator``; values are texts, as Flink gives them. A metric that
Flink does not have keeps the name it has here.

Source: Flink's ``AbstractMetricsHandler``, ``AbstractAggregatingMetricsHandler``, ``PrometheusReporter``; Prometheus'
text format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.engine.kernel.metrics import MetricValue, as_numbers
from headrace.engine.protocol.details import JobDetails
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView

from .cluster import slots_of
from .jobs import now_ms, vertex_pairs
from .questions import ClusterQuestions
from .routes import Answer, RestRequest
from .tasks import metric_name, operator_names, skew_of, task_metrics
from .vertices import find_subtask, vertex_of

__all__ = [
    "AGGREGATIONS",
    "Sample",
    "job_manager_metrics",
    "job_metrics",
    "jobs_metrics",
    "prometheus",
    "samples",
    "subtask_metrics",
    "subtasks_metrics",
    "vertex_metrics",
]

AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "skew": skew_of,
}
"""What several values may come to."""

PREFIX = "headrace"
"""Of all names for Prometheus; Flink's is ``flink``."""

_ODD = re.compile(r"[^A-Za-z0-9_:]")


def _shown(request: RestRequest, metrics: Mapping[str, float]) -> Any:
    """The ids of metrics; or, of those asked for, their values."""
    wanted = request.query.get("get")
    if wanted is None:
        return [{"id": name} for name in sorted(metrics)]
    return [{"id": name, "value": _text(metrics[name])} for name in wanted if name in metrics]


def _text(value: float) -> str:
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def _aggregated(request: RestRequest, parts: Sequence[Mapping[str, float]]) -> Any:
    """The ids of metrics of several; or, of those asked for, what they come to."""
    names = {name for part in parts for name in part}
    wanted = request.query.get("get")
    if wanted is None:
        return [{"id": name} for name in sorted(names)]
    kinds = request.query.get("agg") or list(AGGREGATIONS)
    found: list[dict[str, Any]] = []
    for name in wanted:
        values = [part[name] for part in parts if name in part]
        if values:
            found.append({"id": name, **{kind: AGGREGATIONS[kind](values) for kind in kinds}})
    return found


def vertex_metrics(request: RestRequest) -> Any:
    """Return metrics of a vertex, each with the number of its subtask before it."""
    view, more = vertex_of(request)
    return _shown(
        request,
        {
            f"{subtask.subtask}.{name}": value
            for subtask in more.subtasks
            for name, value in task_metrics(subtask, view.operators).items()
        },
    )


def subtask_metrics(request: RestRequest) -> Any:
    """Return metrics of one subtask."""
    view, more = vertex_of(request)
    return _shown(request, task_metrics(find_subtask(more, request.path["subtaskindex"]), view.operators))


def subtasks_metrics(request: RestRequest) -> Any:
    """Return metrics over the subtasks of a vertex."""
    view, more = vertex_of(request)
    wanted = request.query.get("subtasks")
    chosen = more.subtasks if wanted is None else [find_subtask(more, text) for text in wanted]
    return _aggregated(request, [task_metrics(subtask, view.operators) for subtask in chosen])


def metrics_of_job(details: JobDetails) -> dict[str, float]:
    """Return the metrics of a job as such."""
    view, checkpoints = details.view, details.checkpoints
    last_ms = now_ms() if view.ended_ms is None else view.ended_ms
    running_ms = view.entered_ms.get(JobStatus.RUNNING.value)
    is_running = view.state is JobStatus.RUNNING
    metrics: dict[str, float] = {
        "uptime": last_ms - running_ms if is_running and running_ms is not None else 0,
        "downtime": _since(view, JobStatus.RESTARTING),
        "numRestarts": view.num_restarts,
        "fullRestarts": view.num_restarts,
        "totalNumberOfCheckpoints": view.checkpoints_completed + view.checkpoints_failed,
        "numberOfCompletedCheckpoints": view.checkpoints_completed,
        "numberOfFailedCheckpoints": view.checkpoints_failed,
    }
    latest = checkpoints.latest_completed
    if latest is not None:
        metrics |= {
            "lastCompletedCheckpointId": latest.checkpoint_id,
            "lastCheckpointDuration": latest.duration_ms or 0,
            "lastCheckpointSize": sum(task.uploaded_bytes for task in latest.tasks),
            "lastCheckpointFullSize": sum(task.state_bytes for task in latest.tasks),
            "lastCheckpointPersistedData": sum(task.persisted_bytes for task in latest.tasks),
        }
    if checkpoints.restored is not None:
        metrics["lastCheckpointRestoreTimestamp"] = checkpoints.restored.restored_ms
    return metrics


def _since(view: JobView, state: JobStatus) -> int:
    """For how long a job has been in a state; 0 if it is in another one."""
    entered_ms = view.entered_ms.get(state.value)
    return max(now_ms() - entered_ms, 0) if view.state == state.value and entered_ms is not None else 0


def job_metrics(request: RestRequest) -> Any:
    """Return metrics of a job as such."""
    return _shown(request, metrics_of_job(request.cluster.details(request.path["jobid"], checkpoints=True)))


def jobs_metrics(request: RestRequest) -> Any:
    """Return metrics over all jobs, or some."""
    wanted, ask = request.query.get("jobs"), request.cluster
    found = ask.all_details() if wanted is None else [ask.details(job_id, checkpoints=True) for job_id in wanted]
    return _aggregated(request, [metrics_of_job(details) for details in found])


def metrics_of_cluster(cluster: ClusterQuestions) -> dict[str, float]:
    """Return the metrics of the cluster as such."""
    jobs = cluster.summaries()
    total, available = slots_of(cluster.task_managers(), jobs)
    return {
        "numRegisteredTaskManagers": len(cluster.task_managers()),
        "numRunningJobs": sum(not one.state.is_terminal for one in jobs),
        "taskSlotsTotal": total,
        "taskSlotsAvailable": available,
    }


def job_manager_metrics(request: RestRequest) -> Any:
    """Return metrics of the cluster as such."""
    return _shown(request, metrics_of_cluster(request.cluster))


# ----------------------------------------------------------------------------------------------------------- Prometheus
class _Exposition:
    """Samples by name, in the order of their coming.

    A metric whose name has what Prometheus' names have not keeps its own name in the label ``metric``: ``a.b`` and
    ``a_b`` are two, whichever of them is there.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, sample: Sample) -> None:
        written = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        for metric, value in sample.metrics.items():
            name = _ODD.sub("_", f"{PREFIX}_{sample.scope}_{metric}")
            own = f',metric="{_escaped(metric)}"' if _ODD.search(metric) else ""
            number = "NaN" if value != value else f"{value:.17g}".replace("inf", "Inf")
            self._lines.setdefault(name, []).append(f"{name}{{{written}{own}}} {number}")

    def text(self) -> str:
        parts = (f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in self._lines.items())
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Sample(NamedTuple):
    """Metrics of one thing.

    Attributes:
        scope: What it is, as Flink names scopes: ``jobmanager``, ``taskmanager_job_task_operator`` ...
        metrics: Its numbers by name.
        labels: Which one it is.
        since_ms: Since when its counters count, epoch milliseconds; 0 where that is not known.
    """

    scope: str
    metrics: Mapping[str, float]
    labels: Mapping[str, str]
    since_ms: int = 0


def samples(cluster: ClusterQuestions) -> Iterator[Sample]:
    """Everything that is measured in a cluster."""
    named = {"cluster": cluster.cluster.name}
    yield Sample("jobmanager", metrics_of_cluster(cluster), named)
    for details in cluster.all_details():
        labels = {**named, "job_id": str(details.view.job_id), "job_name": details.view.name}
        yield Sample("jobmanager_job", metrics_of_job(details), labels, details.view.started_ms)
        if not details.view.state.is_terminal:
            yield from _samples_of_tasks(details, labels)


def _samples_of_tasks(details: JobDetails, labels: Mapping[str, str]) -> Iterator[Sample]:
    for view, more in vertex_pairs(details):
        names = operator_names(view.operators)
        for subtask in () if more is None else more.subtasks:
            own = {
                **labels,
                "task_id": str(view.vertex_id),
                "task_name": view.name,
                "subtask_index": str(subtask.subtask),
                "tm_id": subtask.task_manager,
                "host": subtask.node,
            }
            since_ms = subtask.entered_ms.get("DEPLOYING", 0)
            yield Sample("taskmanager_job_task", task_metrics(subtask, ()), own, since_ms)
            for uid, reported in subtask.operators.items():
                of_operator = {**own, "operator_id": str(uid), "operator_name": names.get(uid, str(uid))}
                yield Sample("taskmanager_job_task_operator", _renamed(reported), of_operator, since_ms)


def prometheus(request: RestRequest) -> Answer:
    """Return everything that is measured, for Prometheus to fetch."""
    found = _Exposition()
    for sample in samples(request.cluster):
        found.add(sample)
    return Answer(found.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _renamed(reported: dict[str, MetricValue]) -> dict[str, float]:
    return {metric_name(name): value for name, value in as_numbers(reported).items()}
