"""Traces of a job: one of each checkpoint, one of each start and restart, down to operators and subtasks.

Spans are made of views, after the fact, with ids that follow from what they are of: who makes them again, as a head
that takes over, makes the same ones.

Names and attributes are Flink's where it has them; it has no spans of subtasks with alignment and snapshot apart.

Source: Flink's ``CheckpointStatsTracker.logCheckpointStatistics``, ``DefaultCheckpointStatsTracker`` and FLIP-384,
FLIP-482.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from headrace.engine.kernel.reporter_settings import SpanDetail
from headrace.engine.protocol.details import (
    CheckpointView,
    InitializationView,
    JobDetails,
    SubtaskView,
    TaskAcknowledgement,
)
from headrace.state.credentials import masked

__all__ = ["MOST_SPANS", "Span", "Trace", "traces_of"]

MOST_SPANS = 5_000
"""Of subtasks in one trace; its root says how many were left out."""

Attributes = dict[str, "str | int | float | bool"]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time.

    Attributes:
        name: What.
        began_ms: When it began, epoch milliseconds.
        ended_ms: When it ended.
        span_id: Unlike those of all others of its trace.
        parent_id: Whose part it is; None for a trace's root.
        attributes: What is known of it.
        error: Why it failed; empty if it did not.
    """

    name: str
    began_ms: int
    ended_ms: int
    span_id: int
    parent_id: int | None
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A root span and its parts.

    Attributes:
        scope: Who speaks, as Flink names it.
        trace_id: The same for all heads that make it.
        spans: The root first.
    """

    scope: str
    trace_id: int
    spans: tuple[Span, ...]


def traces_of(details: JobDetails, detail: SpanDetail) -> Iterator[Trace]:
    """Return the traces of everything of a job that has ended, as far as its views know it, oldest first.

    Args:
        details: The job.
        detail: How deep they go.
    """
    for start in details.initializations:
        yield _start(details, start, detail)
    for checkpoint in reversed(details.checkpoints.history):
        if checkpoint.ended_ms is not None:
            yield _checkpoint(details, checkpoint, detail)


class _Builder:
    """A trace in the making."""

    def __init__(self, details: JobDetails, *identity: object) -> None:
        self._job: Attributes = {"jobId": str(details.view.job_id), "jobName": details.view.name}
        text = "/".join(map(str, (details.view.job_id, *identity)))
        self._identity = text
        self.trace_id = _number(text, 16)
        self.spans: list[Span] = []
        self._num_left_out = 0
        self.vertices = {view.vertex_id: view for view in details.view.vertices}

    def add(
        self,
        name: str,
        began_ms: float,
        ended_ms: float,
        attributes: Attributes,
        parent: Span | None = None,
        error: str = "",
    ) -> Span:
        attributes = {**self._job, **attributes}
        span_id = _number(f"{self._identity}/{len(self.spans)}/{name}", 8)
        ended = max(ended_ms, began_ms)
        parent_id = None if parent is None else parent.span_id
        span = Span(name, int(began_ms), int(ended), span_id, parent_id, attributes, masked(error))
        self.spans.append(span)
        return span

    def has_room(self) -> bool:
        """Whether another subtask may have a span; one that may not is counted."""
        has_room = len(self.spans) < MOST_SPANS
        self._num_left_out += not has_room
        return has_room

    def result(self, scope: str) -> Trace:
        if self._num_left_out:
            self.spans[0].attributes["spansLeftOut"] = self._num_left_out
        return Trace(scope, self.trace_id, tuple(self.spans))

    def of_vertex(self, vertex: str) -> Attributes:
        """Which operators a vertex has."""
        view = self.vertices.get(vertex)  # type: ignore[call-overload]
        if view is None:
            return {"vertexId": vertex}
        uids = ",".join(operator.uid for operator in view.operators)
        return {"vertexId": vertex, "vertexName": view.name, "operators": uids}


def _number(text: str, num_bytes: int) -> int:
    """A number that follows from a text; never 0, which means no id."""
    return int.from_bytes(blake2b(text.encode(), digest_size=num_bytes).digest(), "big") or 1


# -------------------------------------------------------------------------------------------------------- checkpoints
def _checkpoint(details: JobDetails, checkpoint: CheckpointView, detail: SpanDetail) -> Trace:
    built = _Builder(details, "checkpoint", checkpoint.checkpoint_id, checkpoint.triggered_ms)
    assert checkpoint.ended_ms is not None
    tasks = checkpoint.tasks
    attributes: Attributes = {
        "checkpointId": checkpoint.checkpoint_id,
        "checkpointStatus": checkpoint.status.value,
        "checkpointType": "Savepoint" if checkpoint.is_savepoint else "Checkpoint",
        "isUnaligned": any(task.is_unaligned for task in tasks),
        **_sizes(tasks),
        "numAcknowledged": len(tasks),
        "numSubtasks": checkpoint.num_subtasks,
    }
    if checkpoint.reason:
        attributes["reason"] = masked(checkpoint.reason)
    root = built.add("Checkpoint", checkpoint.triggered_ms, checkpoint.ended_ms, attributes, error=checkpoint.reason)
    if detail is not SpanDetail.JOB:
        for vertex in dict.fromkeys(task.vertex for task in tasks):
            own = sorted((task for task in tasks if task.vertex == vertex), key=lambda task: task.subtask)
            _vertex_of_checkpoint(built, root, vertex, own, detail)
    return built.result("org.apache.flink.runtime.checkpoint.CheckpointStatsTracker")


def _sizes(tasks: Sequence[TaskAcknowledgement]) -> Attributes:
    return {
        "checkpointedSize": sum(task.uploaded_bytes for task in tasks),
        "fullSize": sum(task.state_bytes for task in tasks),
    }


def _vertex_of_checkpoint(
    built: _Builder, root: Span, vertex: str, tasks: Sequence[TaskAcknowledgement], detail: SpanDetail
) -> None:
    number: Attributes = {"checkpointId": root.attributes["checkpointId"]}
    ended_ms = max(task.acknowledged_ms for task in tasks)
    attributes: Attributes = {**number, **_sizes(tasks), **built.of_vertex(vertex)}
    span = built.add("Checkpoint_Task", root.began_ms, ended_ms, attributes, root)
    if detail is not SpanDetail.SUBTASKS:
        return
    for task in tasks:
        if not built.has_room():
            continue
        took_ms = task.alignment_ms + task.sync_ms + task.async_ms
        began_ms = max(task.acknowledged_ms - took_ms, root.began_ms)
        of_subtask: Attributes = {
            **number,
            **_sizes([task]),
            "vertexId": vertex,
            "subtask": task.subtask,
            "persistedData": task.persisted_bytes,
            "alignmentDurationMs": float(task.alignment_ms),
            "syncDurationMs": float(task.sync_ms),
            "asyncDurationMs": float(task.async_ms),
            "isUnaligned": task.is_unaligned,
        }
        built.add("Checkpoint_Subtask", began_ms, task.acknowledged_ms, of_subtask, span)


# -------------------------------------------------------------------------------------------------------------- starts
def _start(details: JobDetails, start: InitializationView, detail: SpanDetail) -> Trace:
    built = _Builder(details, "start", start.deployment, start.ended_ms)
    attributes: Attributes = {
        "initializationStatus": "COMPLETED",
        "numRestarts": start.num_restarts,
        "deployment": start.deployment,
        "numTasks": start.num_tasks,
    }
    if start.checkpoint_id:
        attributes["checkpointId"] = start.checkpoint_id
    if start.reason:
        attributes["reason"] = masked(start.reason)
    root = built.add("JobInitialization", start.began_ms, start.ended_ms, attributes)
    ends = [*list(start.phases.values())[1:], start.ended_ms]
    for (phase, began_ms), ended_ms in zip(start.phases.items(), ends, strict=True):
        built.add(f"Phase: {phase}", began_ms, ended_ms, {}, root)
    if detail is not SpanDetail.JOB:
        for more in details.vertices:
            own = [one for one in more.subtasks if one.attempt == start.deployment and "RUNNING" in one.entered_ms]
            if own:
                _vertex_of_start(built, root, more.vertex_id, own, detail)
    return built.result("org.apache.flink.runtime.scheduler.DefaultExecutionGraph")


def _vertex_of_start(
    built: _Builder, root: Span, vertex: str, subtasks: Sequence[SubtaskView], detail: SpanDetail
) -> None:
    began_ms, ended_ms = min(map(_deployed_ms, subtasks)), max(one.entered_ms["RUNNING"] for one in subtasks)
    span = built.add("JobInitialization_Task", began_ms, ended_ms, built.of_vertex(vertex), root)
    if detail is not SpanDetail.SUBTASKS:
        return
    for one in subtasks:
        if not built.has_room():
            continue
        began_ms, running_ms = _deployed_ms(one), one.entered_ms["RUNNING"]
        of_subtask: Attributes = {
            "vertexId": vertex,
            "subtask": one.subtask,
            "attempt": one.attempt,
            "taskManagerId": one.task_manager,
            "readyAfterMs": one.entered_ms.get("READY", running_ms) - began_ms,
        }
        built.add("JobInitialization_Subtask", began_ms, running_ms, of_subtask, span)


def _deployed_ms(one: SubtaskView) -> int:
    return one.entered_ms.get("DEPLOYING", one.entered_ms["RUNNING"])
