"""Stages of a data set, as the vertices that other jobs have: so Flink shows its batch jobs, too.

A stage has tasks, but no subtasks that could be asked: where they run only its executor knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.engine.protocol.details import JobDetails, JobSummary
from headrace.engine.protocol.states import StageState, TaskState
from headrace.engine.protocol.views import StageView

from .tasks import state_counts

__all__ = ["kind_of", "nodes_of_stages", "summary_of", "tasks_of_stage", "vertex_of_stage"]

_STATES = {StageState.PENDING: TaskState.SCHEDULED, StageState.SKIPPED: TaskState.FINISHED}
"""Those that Flink has other words for; a stage that was skipped lies there already, from a job before."""

_LEFT = {TaskState.RUNNING: TaskState.SCHEDULED}
"""What tasks of a stage in some state are that are neither done nor run; else what the stage is."""


def tasks_of_stage(stage: StageView) -> dict[str, int]:
    """Return how many tasks of a stage are in which of Flink's states."""
    state = _task_state(stage)
    done = stage.num_tasks if state is TaskState.FINISHED else stage.num_done
    counts: dict[str, int] = {TaskState.FINISHED: done, TaskState.RUNNING: stage.num_running}
    left = _LEFT.get(state, state)
    counts[left] = counts.get(left, 0) + max(stage.num_tasks - done - stage.num_running, 0)
    return counts


def _task_state(stage: StageView) -> TaskState:
    """Return the state of tasks that a stage's is."""
    return _STATES.get(stage.state) or TaskState(stage.state.value)


def summary_of(details: JobDetails) -> JobSummary:
    """Return what lists show of a job that is known in full, or of which only a view is left: no slots then."""
    view, counts, slots = details.view, Counter[str](), dict[str, tuple[str, int]]()
    for vertex in view.vertices:
        counts.update(vertex.states)
    for stage in view.stages or ():
        counts.update(tasks_of_stage(stage))
    for subtask in (one for vertex in details.vertices for one in vertex.subtasks):
        if subtask.host and not subtask.state.is_terminal:
            slots[subtask.host] = (subtask.task_manager, slots.get(subtask.host, ("", 0))[1] + 1)
    changed_ms = max(view.entered_ms.values(), default=view.started_ms)
    kind = kind_of(details)
    return JobSummary(
        view.job_id, view.name, view.state, view.started_ms, view.ended_ms, changed_ms, kind, dict(counts), slots
    )


def kind_of(details: JobDetails) -> str:
    """Return what kind of job it is; empty if that is not known."""
    if details.view.is_data_set:
        return "DATASET"
    if details.settings is None:
        return ""
    return "BATCH" if details.settings.is_batch else "STREAMING"


def vertex_of_stage(stage: StageView, now_ms: int) -> dict[str, Any]:
    """Return a stage with the keys of a vertex."""
    is_over = stage.state.has_ended
    began_ms = stage.started_ms or -1
    return {
        "id": str(stage.id),
        "name": stage.name,
        "parallelism": stage.num_tasks,
        "status": _task_state(stage),
        "tasks": state_counts(tasks_of_stage(stage)),
        "start-time": began_ms,
        "end-time": began_ms + stage.duration_ms if is_over and began_ms >= 0 else -1,
        "duration": stage.duration_ms if is_over or began_ms < 0 else max(now_ms - began_ms, 0),
        "stage": {
            "state": stage.state,
            "tasks-done": stage.num_done,
            "tasks-running": stage.num_running,
            "failed-attempts": stage.num_failed,
            "rows": stage.rows,
        },
    }


def nodes_of_stages(stages: Sequence[StageView]) -> list[dict[str, Any]]:
    """Return stages as the nodes of a plan; inputs that are not known any more are left out."""
    known = {stage.id for stage in stages}
    nodes: list[dict[str, Any]] = []
    for stage in stages:
        inputs = [
            {"num": number, "id": str(one), "ship_strategy": "", "exchange": "blocking", "input": number}
            for number, one in enumerate(one for one in stage.inputs if one in known)
        ]
        node: dict[str, Any] = {
            "id": str(stage.id),
            "parallelism": stage.num_tasks,
            "operator": "",
            "operator_strategy": "",
            "description": stage.name,
            "operators": [],
            **({"inputs": inputs} if inputs else {}),
            "optimizer_properties": {},
        }
        nodes.append(node)
    return nodes
