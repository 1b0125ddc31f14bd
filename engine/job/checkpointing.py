"""The JobManager's part of the conversation about a checkpoint: what is triggered when, and what follows its end."""

from __future__ import annotations

from ..errors import CheckpointError
from ..kernel.machine import Command
from ..protocol.checkpoint_messages import (
    CheckpointEnded,
    CheckpointOutcome,
    CheckpointRequested,
    CheckpointTriggered,
    CheckpointWanted,
    ReportsPending,
    ReportsWanted,
)
from . import rescale
from .context.job import Job
from .context.phase import LIVE_PHASES, Phase
from .phases.failures import handle_failure, leave, restart

__all__ = ["on_checkpoint_ended", "on_checkpoint_requested", "on_reports_wanted", "wanted_for_splits"]


def on_checkpoint_requested(job: Job, message: CheckpointRequested, now_ms: int) -> list[Command]:
    """Trigger a checkpoint or savepoint, if one may be taken now."""
    state, phase = job.state, job.state.phase
    if message.epoch != state.epoch or phase not in (Phase.EXECUTING, Phase.FINAL_CHECKPOINT):
        return _refused(job, message, f"the job is {phase.value}")
    if job.savepoints.refuses(message):
        return _refused(job, message, "the job is being stopped with a savepoint")
    is_final = phase is Phase.FINAL_CHECKPOINT and message.savepoint is None
    if is_final:
        state.final_ids.add(message.checkpoint_id)
    suspends = (is_final and job.wish.suspends) or job.savepoints.suspends(message)
    mode = job.wish.mode if message.savepoint is None else None
    if message.savepoint is None:
        rescale.checkpoint_triggered(job, message.checkpoint_id)
    marks = job.savepoints.marks(message)
    triggered, commands = job.run.trigger_checkpoint(message, mode, suspends=suspends, marks=marks)
    job.record.log.add(now_ms, "job", f"checkpoint {message.checkpoint_id} triggered")
    return [*commands, job.to_coordinator(triggered)]


def _refused(job: Job, message: CheckpointRequested, reason: str) -> list[Command]:
    return [job.to_coordinator(CheckpointTriggered(message.checkpoint_id, (), {}, reason))]


def on_reports_wanted(job: Job, message: ReportsWanted, _now_ms: int) -> list[Command]:
    """Say which rows the client has not got."""
    return [job.to_coordinator(ReportsPending(message.checkpoint_id, job.record.reports.unfetched_rows()))]


def on_checkpoint_ended(job: Job, message: CheckpointEnded, now_ms: int) -> list[Command]:
    """Go on as a checkpoint or savepoint is complete, or will never be."""
    if message.outcome is CheckpointOutcome.FENCED:
        return leave(job, message.reason, now_ms) if message.epoch == job.state.epoch else []
    if message.view is not None:
        job.record.checkpoints.ended(message.view)
    is_complete = message.outcome is CheckpointOutcome.COMPLETED
    if message.request_id is not None:
        return (_savepoint_completed if is_complete else _savepoint_failed)(job, message, now_ms)
    return (checkpoint_completed if is_complete else _checkpoint_aborted)(job, message, now_ms)


def checkpoint_completed(job: Job, message: CheckpointEnded, now_ms: int) -> list[Command]:
    """Have the tasks commit, and with the last one finish; what is restarted from now on goes back to it."""
    state, record, run = job.state, job.record, job.execution
    record.checkpoint_completed(message)
    state.num_user_failures = 0
    state.base_id = max(state.base_id, message.checkpoint_id)
    state.newest_own = max(state.newest_own, message.checkpoint_id)
    record.backoff = record.backoff.after_checkpoint()
    if run is None:
        return []
    commands = run.notify_complete(message.checkpoint_id)
    commands += rescale.checkpoint_completed(job, message.checkpoint_id, now_ms)
    if state.phase is Phase.FINAL_CHECKPOINT and message.checkpoint_id in state.final_ids:
        commands += job.go(Phase.FINISHING, now_ms)
    return commands


def _checkpoint_aborted(job: Job, message: CheckpointEnded, now_ms: int) -> list[Command]:
    job.record.checkpoint_failed()
    job.state.given_up.add(message.checkpoint_id)
    if job.execution is None:
        return []
    commands = job.execution.notify_aborted(message.checkpoint_id)
    commands += rescale.checkpoint_aborted(job, message.checkpoint_id, message.reason, now_ms)
    if message.outcome is CheckpointOutcome.INTOLERABLE and job.state.phase in LIVE_PHASES:
        text = f"more checkpoints failed than are tolerable: {message.reason}"
        commands += handle_failure(job, CheckpointError(text, checkpoint=message.checkpoint_id), now_ms)
    return commands


def _savepoint_completed(job: Job, message: CheckpointEnded, now_ms: int) -> list[Command]:
    commands = job.savepoints.completed(message, now_ms)
    if job.execution is None:
        return commands
    job.execution.savepoint_completed(message.checkpoint_id)
    return commands + job.advance(now_ms) if job.state.phase in LIVE_PHASES else commands


def _savepoint_failed(job: Job, message: CheckpointEnded, now_ms: int) -> list[Command]:
    commands, stopped = job.savepoints.failed(message, now_ms)
    if job.execution is None or job.state.phase not in LIVE_PHASES:
        return commands
    if message.checkpoint_id:
        commands += job.execution.notify_aborted(message.checkpoint_id)
    if stopped is None:
        return commands
    # Its sources have stopped for good. With a checkpoint to go on from that is no failure of the job.
    has_checkpoints = job.settings.checkpoints is not None
    return commands + (restart if has_checkpoints else handle_failure)(job, stopped, now_ms)


def wanted_for_splits(job: Job) -> list[Command]:
    """Ask for a checkpoint at once if there are splits that are read only once one holds them."""
    run = job.execution
    if run is None or job.state.phase is not Phase.EXECUTING or not run.take_checkpoint_wish():
        return []
    return [job.to_coordinator(CheckpointWanted(job.state.epoch, job.state.deployment))]
