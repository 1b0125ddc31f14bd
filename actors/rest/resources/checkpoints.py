"""Checkpoints: statistics, configuration, one of them in full, down to its subtasks.

What goes on is the CheckpointCoordinator's, what has ended the JobManager's; here they are one list.

Source: Flink's ``CheckpointingStatisticsHandler``, ``CheckpointConfigHandler`` and
``TaskCheckpointStatisticDetailsHandler``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.checkpoint.stats_tracker import figures
from headrace.engine.protocol.details import (
    CheckpointView,
    Figures,
    JobDetails,
    RestoredCheckpoint,
    TaskAcknowledgement,
)
from headrace.engine.protocol.states import CheckpointStatus

from .jobs import now_ms, settings_of
from .routes import RestError, RestRequest

__all__ = ["checkpoint", "configuration", "statistics", "vertex_of_checkpoint"]


def statistics(request: RestRequest) -> Any:
    """Counts, a summary, the latest and the newest checkpoints of a job."""
    job_id = request.path["jobid"]
    pending = request.cluster.pending_checkpoints(job_id)
    known = request.cluster.details(job_id, checkpoints=True).checkpoints
    history = _history(pending, known.history)
    num_pending = sum(view.status is CheckpointStatus.IN_PROGRESS for view in history)
    return {
        "counts": {
            "restored": known.num_restored,
            "total": num_pending + known.num_completed + known.num_failed,
            "in_progress": num_pending,
            "completed": known.num_completed,
            "failed": known.num_failed,
        },
        "summary": {
            name: _figures(known.summary.get(ours))
            for name, ours in (
                ("checkpointed_size", "uploaded_bytes"),
                ("state_size", "state_bytes"),
                ("end_to_end_duration", "duration_ms"),
                ("persisted_data", "persisted_bytes"),
            )
        },
        "latest": {
            "completed": _optional(known.latest_completed),
            "savepoint": _optional(known.latest_savepoint),
            "failed": _optional(known.latest_failed),
            "restored": None if known.restored is None else _restored(known.restored),
        },
        "history": [_checkpoint(view) for view in history],
    }


def _history(pending: Sequence[CheckpointView], ended: Sequence[CheckpointView]) -> list[CheckpointView]:
    """Both in one, newest first; what has ended between the two questions is there once."""
    by_id = {view.checkpoint_id: view for view in (*pending, *ended)}
    return [by_id[checkpoint_id] for checkpoint_id in sorted(by_id, reverse=True)]


def _figures(found: Figures | None) -> dict[str, float]:
    return (found or Figures(0, 0, 0, 0, 0, 0, 0, 0))._asdict()


def _optional(view: CheckpointView | None) -> dict[str, Any] | None:
    return None if view is None else _checkpoint(view)


def _restored(restored: RestoredCheckpoint) -> dict[str, Any]:
    return {
        "id": restored.checkpoint_id,
        "restore_timestamp": restored.restored_ms,
        "is_savepoint": restored.is_savepoint,
        "external_path": restored.path,
    }


def _checkpoint(view: CheckpointView) -> dict[str, Any]:
    duration_ms = now_ms() - view.triggered_ms if view.duration_ms is None else view.duration_ms
    kind = "SAVEPOINT" if view.is_savepoint else "CHECKPOINT"
    described: dict[str, Any] = {
        "className": view.status.lower(),
        "id": view.checkpoint_id,
        "status": view.status,
        "is_savepoint": view.is_savepoint,
        "checkpoint_type": kind,
        "is_last": view.is_last,
        "trigger_timestamp": view.triggered_ms,
        **_sums(view.tasks),
        "end_to_end_duration": max(duration_ms, 0),
        "num_subtasks": view.num_subtasks,
        "num_acknowledged_subtasks": len(view.tasks),
    }
    if view.status is CheckpointStatus.COMPLETED:
        described["external_path"] = view.path
    if view.status is CheckpointStatus.FAILED:
        described |= {"failure_timestamp": view.ended_ms, "failure_message": view.reason}
    return described


def _sums(tasks: Sequence[TaskAcknowledgement]) -> dict[str, Any]:
    return {
        "latest_ack_timestamp": max((task.acknowledged_ms for task in tasks), default=-1),
        "checkpointed_size": sum(task.uploaded_bytes for task in tasks),
        "state_size": sum(task.state_bytes for task in tasks),
        "persisted_data": sum(task.persisted_bytes for task in tasks),
        "unaligned_checkpoint": any(task.is_unaligned for task in tasks),
    }


def _find(request: RestRequest) -> tuple[JobDetails, CheckpointView]:
    job_id, text = request.path["jobid"], request.path["checkpointid"]
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise RestError(400, f"a checkpoint is a whole number; got {text[:100]!r}")
    details = request.cluster.details(job_id, checkpoints=True)
    known = details.checkpoints
    latest = (known.latest_completed, known.latest_savepoint, known.latest_failed)
    kept = (*known.history, *(view for view in latest if view is not None))
    for view in (*kept, *request.cluster.pending_checkpoints(job_id)):
        if view.checkpoint_id == int(text):
            return details, view
    raise RestError(404, f"checkpoint {text} of job {job_id} is not known, or not any more")


def checkpoint(request: RestRequest) -> Any:
    """Return one checkpoint, vertex by vertex."""
    details, view = _find(request)
    return {**_checkpoint(view), "tasks": {vertex: _task(details, view, vertex) for vertex in _vertices(view)}}


def _vertices(view: CheckpointView) -> list[str]:
    return list(dict.fromkeys(task.vertex for task in view.tasks))


def _task(details: JobDetails, view: CheckpointView, vertex: str) -> dict[str, Any]:
    tasks = [task for task in view.tasks if task.vertex == vertex]
    num_subtasks = next((v.parallelism for v in details.view.vertices if v.vertex_id == vertex), len(tasks))
    sums = _sums(tasks)
    end_ms = sums["latest_ack_timestamp"]
    return {
        "id": view.checkpoint_id,
        "status": view.status,
        **sums,
        "end_to_end_duration": max(end_ms - view.triggered_ms, 0),
        "num_subtasks": num_subtasks,
        "num_acknowledged_subtasks": len(tasks),
    }


def vertex_of_checkpoint(request: RestRequest) -> Any:
    """Return one vertex of a checkpoint, subtask by subtask."""
    details, view = _find(request)
    vertex = request.path["vertexid"]
    tasks = sorted(task for task in view.tasks if task.vertex == vertex)
    if not tasks:
        raise RestError(404, f"no subtask of vertex {vertex[:200]!r} has acknowledged checkpoint {view.checkpoint_id}")
    return {
        **_task(details, view, vertex),
        "summary": {
            "checkpointed_size": _summary(task.uploaded_bytes for task in tasks),
            "state_size": _summary(task.state_bytes for task in tasks),
            "end_to_end_duration": _summary(task.acknowledged_ms - view.triggered_ms for task in tasks),
            "checkpoint_duration": {
                "sync": _summary(task.sync_ms for task in tasks),
                "async": _summary(task.async_ms for task in tasks),
            },
            "alignment": {
                "persisted": _summary(task.persisted_bytes for task in tasks),
                "duration": _summary(task.alignment_ms for task in tasks),
            },
        },
        "subtasks": [_subtask(view, task) for task in tasks],
    }


def _summary(values: Any) -> dict[str, float]:
    return figures(values)._asdict()


def _subtask(view: CheckpointView, task: TaskAcknowledgement) -> dict[str, Any]:
    return {
        "index": task.subtask,
        "status": "completed",
        "ack_timestamp": task.acknowledged_ms,
        "end_to_end_duration": max(task.acknowledged_ms - view.triggered_ms, 0),
        "checkpointed_size": task.uploaded_bytes,
        "state_size": task.state_bytes,
        "checkpoint": {"sync": task.sync_ms, "async": task.async_ms},
        "alignment": {"persisted": task.persisted_bytes, "duration": task.alignment_ms},
        "unaligned_checkpoint": task.is_unaligned,
    }


def configuration(request: RestRequest) -> Any:
    """Return how a job takes checkpoints."""
    details = request.cluster.details(request.path["jobid"])
    settings = settings_of(details)
    checkpoints = settings.checkpoints
    if checkpoints is None:
        raise RestError(404, f"job {details.view.job_id} takes no checkpoints")
    return {
        "mode": checkpoints.mode.value.replace("-", "_"),
        "interval": checkpoints.interval_ms,
        "timeout": checkpoints.timeout_ms,
        "min_pause": checkpoints.min_pause_ms,
        "max_concurrent": checkpoints.concurrency,
        "externalization": {"enabled": True, "delete_on_cancellation": not checkpoints.retain_on_cancellation},
        "num_retained": checkpoints.num_retained,
        "state_backend": settings.state.backend,
        "checkpoint_storage": checkpoints.directory,
        "unaligned_checkpoints": checkpoints.unaligned,
        "aligned_checkpoint_timeout": checkpoints.aligned_timeout_ms,
        "tolerable_failed_checkpoints": checkpoints.tolerable_failures,
        "checkpoints_after_tasks_finish": True,
    }
