"""What tasks say of themselves, in whatever phase the job is: their states, splits, watermarks, numbers and rows.

A task's report counts only for a current attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.state.identifiers import OperatorId

from ..errors import HeadraceError, InternalError, ProgramError
from ..execution.graph import Execution, InvalidTransition
from ..functions.operator import COLLECT, WARNING
from ..kernel.machine import Command, OffloadCompleted, StartTimer
from ..protocol.states import TaskState
from ..protocol.task_messages import (
    MetricsReported,
    ReportEmitted,
    ReportWatermark,
    RequestNextInputSplit,
    SourceEventToEnumerator,
    UpdateTaskExecutionState,
)
from .context.job import Job
from .context.phase import ViewDue
from .phases.failures import fail_job, handle_failure
from .sources.source_coordinator import DiscoveryDue

__all__ = ["TASK_EVENTS", "on_discovered", "on_report", "on_view_due"]

_PROGRESS = list(TaskState)
"""States in the order in which an undisturbed task reports them."""


def on_task_state(job: Job, message: UpdateTaskExecutionState, now_ms: int) -> list[Command]:
    """Take a task's new state."""
    run = job.run
    execution = run.graph.find(message.attempt)
    if execution is None or execution.state.is_terminal:
        return []
    state = message.state
    if execution.state is TaskState.CANCELING and not state.is_terminal:
        return []  # said before it heard of its cancellation
    if not execution.can_become(state):
        return _on_illegal_report(job, execution, state, now_ms)
    run.graph.transition(execution, state, job.record.log, now_ms)
    job.record.clients.changed()
    if state is TaskState.FAILED:
        unknown = InternalError("a task failed without saying why", task=str(message.attempt))
        return handle_failure(job, message.error or unknown, now_ms, [execution])
    if state is TaskState.ENDED:
        run.task_ended(message.attempt)
    return job.advance(now_ms)


def _on_illegal_report(job: Job, execution: Execution, state: TaskState, now_ms: int) -> list[Command]:
    if _PROGRESS.index(state) <= _PROGRESS.index(execution.state):
        return []  # doubled
    log = job.record.log
    error = InvalidTransition.of(execution.attempt, execution.state, state, log)
    if state.is_terminal:  # it is gone although nobody told it to go
        job.run.graph.transition(execution, TaskState.FAILED, log, now_ms, f"unexpected {state.value}")
    return handle_failure(job, error, now_ms, [execution])


def on_report(job: Job, message: ReportEmitted, now_ms: int) -> list[Command]:
    """Keep what a task hands to the client; also after the job has ended."""
    run, record = job.execution, job.record
    if job.settings.checkpoints is None and (run is None or run.graph.find(message.attempt) is None):
        return []  # its rows were rolled back when it was replaced
    if message.name == WARNING:
        record.note(now_ms, f"warning: {message.value}")
    elif message.name == COLLECT and run is not None and not run.graph.job_graph.collects:
        return fail_job(job, _undeclared_collection(message.operator), now_ms)
    elif record.reports.add(message):
        record.clients.changed()
    return []


def _undeclared_collection(operator: OperatorId) -> ProgramError:
    message = f"a sink reports rows under the name {COLLECT!r} and does not say so, so no checkpoint would hold them"
    return ProgramError(message, hint="give the sink an attribute collects = True", operator=operator)


def on_metrics(job: Job, message: MetricsReported, _now_ms: int) -> list[Command]:
    """Take a task's numbers; clients are shown them a little later, together with others'."""
    if job.run.graph.find(message.attempt) is None:
        return []
    job.record.metrics.reported(message)
    if job.state.is_view_due:
        return []
    job.state.is_view_due = True
    return [StartTimer("view", job.settings.metrics_interval_ms, ViewDue())]


def on_view_due(job: Job, _timer: ViewDue, _now_ms: int) -> list[Command]:
    """Show clients the new numbers."""
    job.state.is_view_due = False
    job.record.clients.changed()
    return []


def on_discovered(job: Job, event: OffloadCompleted, now_ms: int) -> list[Command]:
    """Go on with what a split enumerator has found, or fail."""
    try:
        notes, commands = job.run.discovered(event)
    except HeadraceError as error:
        return handle_failure(job, error, now_ms)
    for note in notes:
        job.record.note(now_ms, note)
        job.record.clients.changed()
    return commands


TASK_EVENTS: dict[type, Callable[[Job, Any, int], list[Command]]] = {
    UpdateTaskExecutionState: on_task_state,
    MetricsReported: on_metrics,
    RequestNextInputSplit: lambda job, message, _now_ms: job.run.split_requested(message),
    SourceEventToEnumerator: lambda job, message, _now_ms: job.run.source_event(message),
    ReportWatermark: lambda job, report, _now_ms: job.run.watermark_reported(report),
    DiscoveryDue: lambda job, timer, _now_ms: job.run.discovery_due(timer),
}
"""By kind of event; they mean something as long as there is something to execute."""
