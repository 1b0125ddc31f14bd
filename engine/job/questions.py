"""What clients ask a JobManager, and what it answers: at once from what it knows, or once there is an answer."""

from __future__ import annotations

from ..errors import CheckpointError, ConfigurationError, InternalError, SavepointError, StateUnavailableError
from ..graph.rescaling import find_vertex
from ..kernel.machine import Asked, Command, OffloadCompleted, Reply
from ..protocol.checkpoint_messages import CheckpointWanted, PendingCheckpointsAsked
from ..protocol.messages import (
    CancelJob,
    FailTaskOnPurpose,
    FetchJobDetails,
    FetchJobSummary,
    FetchPendingCheckpoints,
    FetchReports,
    KillSlotOnPurpose,
    RequestFailed,
    RescaleJob,
    StopJob,
    TakeCheckpoint,
    WaitForJob,
)
from ..protocol.query_messages import LocateState
from ..protocol.savepoint_messages import FetchSavepointStatus, StopWithSavepoint, TriggerSavepoint
from . import rescale
from .context.job import Job
from .context.phase import Phase
from .phases import ending
from .phases.failures import cancel

__all__ = ["on_asked", "on_savepoint_begun"]


def on_asked(job: Job, event: Asked, now_ms: int) -> list[Command]:
    """Answer a question, now or later."""
    ask_id, request, clients = event.ask_id, event.request, job.record.clients
    if isinstance(request, WaitForJob):
        return [*clients.poll(ask_id, request), *ending.linger(job)]
    if isinstance(request, FetchReports):
        return _fetch_reports(job, ask_id, request, now_ms)
    if isinstance(request, FetchJobDetails):
        return [Reply(ask_id, job.details(request))]
    if isinstance(request, FetchJobSummary):
        return [Reply(ask_id, job.summary())]
    if isinstance(request, FetchPendingCheckpoints):  # it is on this host, and answers itself
        return [job.to_coordinator(PendingCheckpointsAsked(ask_id))]
    if isinstance(request, FetchSavepointStatus):
        return [_savepoint_status(job, ask_id, request)]
    if isinstance(request, StopJob):
        return [*_stop_requested(job, ask_id, request, now_ms), *clients.asked()]
    if isinstance(request, RescaleJob):
        return [*rescale.asked(job, ask_id, request, now_ms), *clients.asked(request.timeout_ms)]
    if isinstance(request, TakeCheckpoint):
        return [_checkpoint_asked(job, ask_id, request), *clients.asked(request.timeout_ms)]
    if isinstance(request, (TriggerSavepoint, StopWithSavepoint)):
        return [*_savepoint_requested(job, ask_id, request), *clients.asked(request.timeout_ms)]
    if isinstance(request, CancelJob):
        clients.cancel_requested(ask_id)
        return cancel(job, "by request", now_ms)
    if isinstance(request, LocateState):
        return [_locate_state(job, ask_id, request), *clients.asked()]
    if isinstance(request, KillSlotOnPurpose):
        return _kill_slot_on_purpose(job, ask_id, request.index)
    if isinstance(request, FailTaskOnPurpose):
        return _fail_task_on_purpose(job, ask_id, request)
    message = f"a JobManager does not answer {type(request).__name__}"
    return [Reply(ask_id, RequestFailed(InternalError(message)))]


def _fetch_reports(job: Job, ask_id: str, request: FetchReports, now_ms: int) -> list[Command]:
    fetched = job.record.reports.fetch(request.offset)
    commands: list[Command] = [Reply(ask_id, fetched), *job.record.clients.asked()]
    if not job.record.reports.has_unfetched_rows:
        commands += ending.delivered(job, now_ms)
    return commands + ending.linger(job)


def _stop_requested(job: Job, ask_id: str, request: StopJob, now_ms: int) -> list[Command]:
    """Let the job end in order for a client; see `headrace.engine.job.context.stop` for what may cross that."""
    is_over = job.state.is_going_down
    refusal = None if is_over else job.wish.refusal(request)
    if refusal is not None:
        return [Reply(ask_id, RequestFailed(refusal))]
    commands: list[Command] = [Reply(ask_id, value=True)]
    if is_over or not job.wish.want(request.mode, now_ms):
        return commands
    if job.state.phase in (Phase.DEPLOYING, Phase.EXECUTING):
        commands += job.run.stop_sources(request.mode)
    return commands + job.advance(now_ms) if job.state.phase is Phase.EXECUTING else commands


def _locate_state(job: Job, ask_id: str, request: LocateState) -> Reply:
    if job.execution is not None:
        return Reply(ask_id, job.execution.locate_state(request))
    message = "the job is not running yet"
    return Reply(ask_id, RequestFailed(StateUnavailableError(message)))


def _checkpoint_asked(job: Job, ask_id: str, request: TakeCheckpoint) -> Command:
    """Want a checkpoint for a client; the coordinator, which is on this host, answers at its end."""
    state, settings, name = job.state, job.settings.checkpoints, job.submission.name
    if settings is None or settings.only_last:
        message = "the job takes no checkpoints while it runs"
        hint = "enable_checkpointing(...) has it take some; a savepoint can be taken of any streaming job"
        return Reply(ask_id, RequestFailed(ConfigurationError(message, hint=hint, job=name)))
    if state.phase is not Phase.EXECUTING or job.wish.mode is not None:
        message = "no checkpoint was taken: the job is " + (
            "being stopped" if state.phase is Phase.EXECUTING else state.phase.value
        )
        return Reply(ask_id, RequestFailed(CheckpointError(message, job=name)))
    wanted = CheckpointWanted(state.epoch, state.deployment, ask_id=ask_id, is_full=request.is_full)
    return job.to_coordinator(wanted)


def _savepoint_requested(job: Job, ask_id: str, request: TriggerSavepoint | StopWithSavepoint) -> list[Command]:
    state, refusal = job.state, None
    if state.phase is not Phase.EXECUTING:
        is_over = state.phase is Phase.ENDED
        refusal = f"the job has ended {job.record.status.value}" if is_over else f"the job is {state.phase.value}"
    commands = job.savepoints.asked(ask_id, request, state.epoch, state.deployment, refusal)
    return commands + ending.linger(job)


def _savepoint_status(job: Job, ask_id: str, request: FetchSavepointStatus) -> Reply:
    status = job.savepoints.status_of(request.request_id, job.state.epoch)
    if status is not None:
        return Reply(ask_id, status)
    message = f"no savepoint was asked for as {request.request_id!r}, or the JobManager that was taking it was lost"
    return Reply(ask_id, RequestFailed(SavepointError(message, job=job.submission.name)))


def on_savepoint_begun(job: Job, event: OffloadCompleted, now_ms: int) -> list[Command]:
    """Want a savepoint, as its folder has been made; one that stops the job begins with its sources."""
    is_running = job.state.phase is Phase.EXECUTING and job.wish.mode is None
    commands = job.savepoints.begun(event, job.state.deployment, is_running=is_running, now_ms=now_ms)
    mode = job.savepoints.stop_mode
    if mode is None or not is_running:
        return commands
    return commands + job.run.stop_sources(mode) + job.advance(now_ms)


def _kill_slot_on_purpose(job: Job, ask_id: str, index: int) -> list[Command]:
    slots = [] if job.execution is None else job.execution.registry.all_slots()
    if job.execution is None or not 0 <= index < len(slots):
        message = f"slot index must be from 0 to {len(slots) - 1}; got {index}" if slots else "the job has no slots"
        return [Reply(ask_id, RequestFailed(ConfigurationError(message, job=job.submission.name)))]
    host = slots[index].address.host
    return [*job.execution.kill_slot(job.state.epoch, host, "killed on purpose"), Reply(ask_id, host)]


def _fail_task_on_purpose(job: Job, ask_id: str, request: FailTaskOnPurpose) -> list[Command]:
    try:
        if job.execution is None:
            message = "the job has no tasks"
            raise ConfigurationError(message, job=job.submission.name)
        vertex = find_vertex(job.execution.graph.job_graph, request.operator)
        epoch, reason = job.state.epoch, request.reason
        attempt, commands = job.execution.fail_task(epoch, vertex.vertex_id, request.subtask, reason)
    except ConfigurationError as error:
        return [Reply(ask_id, RequestFailed(error))]
    return [*commands, Reply(ask_id, attempt)]
