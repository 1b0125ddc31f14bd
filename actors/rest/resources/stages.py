"""Stages of a data set, as the vertices that other jobs have: so Flink shows its batch jobs, too.

A stage has tasks, but no subtasks that could be asked: where they run only its executor knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.protocol.views import StageView

from .tasks import state_counts

__all__ = ["nodes_of_stages", "tasks_of_stage", "vertex_of_stage"]

_STATES = {"PENDING": "SCHEDULED", "SKIPPED": "FINISHED"}
"""Words of ours that Flink has others for; a stage that was skipped lies there already, from a job before."""

_LEFT = {"RUNNING": "SCHEDULED"}
"""What tasks of a stage in some state are that are neither done nor run; else what the stage is."""


def tasks_of_stage(stage: StageView) -> dict[str, int]:
    """Return how many tasks of a stage are in which of Flink's states."""
    state = _STATES.get(stage.state, stage.state)
    done = stage.num_tasks if state == "FINISHED" else stage.num_done
    counts = {"FINISHED": done, "RUNNING": stage.num_running}
    left = _LEFT.get(state, state)
    counts[left] = counts.get(left, 0) + max(stage.num_tasks - done - stage.num_running, 0)
    return counts


def vertex_of_stage(stage: StageView, now_ms: int) -> dict[str, Any]:
    """Return a stage with the keys of a vertex."""
    is_over = stage.state in ("FINISHED", "FAILED", "CANCELED", "SKIPPED")
    began_ms = stage.started_ms or -1
    return {
        "id": str(stage.id),
        "name": stage.name,
        "parallelism": stage.num_tasks,
        "status": _STATES.get(stage.state, stage.state),
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
