"""STOPPING and BACKING_OFF: tasks are canceled, and what comes next waits until nothing of them is left.

It is over only when no execution in scope is left and the CheckpointCoordinator has said that no publication is under
way; only then may a checkpoint be chosen to restore from.
"""

from __future__ import annotations

from ...kernel.machine import CancelTimer, Command, StartTimer
from ...protocol.checkpoint_messages import CoordinatorStopped, ExecutionStopped
from ...protocol.states import JobStatus
from ..context.job import Job, PhaseRules
from ..context.phase import BackOffOver, CancellationTimedOut, Phase

__all__ = ["BACKING_OFF", "STOPPING"]


def begin(job: Job, now_ms: int) -> list[Command]:
    """Cancel what is in scope, and let the coordinator stop."""
    state = job.state
    state.has_coordinator_stopped = False
    commands: list[Command] = [CancelTimer("slots"), CancelTimer("restart")]
    commands.append(job.to_coordinator(ExecutionStopped(state.epoch, state.deployment)))
    if job.execution is not None:
        commands += job.execution.cancel_tasks(state.scope, now_ms)
        commands += _cancellation_timer(job)
    return commands


def on_coordinator_stopped(job: Job, message: CoordinatorStopped, now_ms: int) -> list[Command]:
    """Go on stopping: no checkpoint of the deployment can complete any more."""
    for view in message.aborted:
        job.record.checkpoints.ended(view)
    if message.deployment != job.state.deployment:
        return []
    job.state.has_coordinator_stopped = True
    aborted = [] if job.execution is None else job.execution.abort_in_flight()
    return aborted + advance(job, now_ms)


def _cancellation_timer(job: Job) -> list[Command]:
    timeout_ms = job.settings.task_cancellation_timeout_ms
    if not timeout_ms:
        return []
    return [StartTimer("cancellation", timeout_ms, CancellationTimedOut(job.state.deployment))]


def on_cancellation_timed_out(job: Job, timer: CancellationTimedOut, _now_ms: int) -> list[Command]:
    """Kill the slots of tasks that have not stopped in time."""
    if timer.deployment != job.state.deployment or job.execution is None:
        return []
    waited_s = job.settings.task_cancellation_timeout_ms / 1_000
    kills = job.execution.kill_tasks(job.state.epoch, f"a task did not cancel within {waited_s:g} s")
    return [*kills, *_cancellation_timer(job)]


def advance(job: Job, now_ms: int) -> list[Command]:
    """Go on if nothing is left."""
    state = job.state
    if not state.has_coordinator_stopped:
        return []
    if job.execution is not None and not job.execution.have_ended(state.scope):
        return []
    return [CancelTimer("cancellation"), *_go_on(job, now_ms)]


def _go_on(job: Job, now_ms: int) -> list[Command]:
    state = job.state
    if state.stop_target is JobStatus.FINISHED and job.settings.attached and job.record.reports.has_unfetched_rows:
        return job.go(Phase.DELIVERING, now_ms)
    if state.stop_target is not JobStatus.RESTARTING:
        return job.go(Phase.ENDED, now_ms)
    if state.next_graph is None:
        return job.go(Phase.BACKING_OFF, now_ms)
    job.run.become(state.next_graph)
    state.next_graph = None
    state.scope = job.run.graph.subtasks()
    return job.go(Phase.PREPARING, now_ms)


def begin_pause(job: Job, _now_ms: int) -> list[Command]:
    """Wait for as long as the restart strategy says, or until the store is to be looked at again."""
    state = job.state
    state.serial += 1
    delay_ms, state.look_again_ms = state.look_again_ms, None
    if delay_ms is None:
        delay_ms = job.record.backoff.delay_ms
    return [StartTimer("restart", delay_ms, BackOffOver(state.serial))]


def on_pause_over(job: Job, timer: BackOffOver, now_ms: int) -> list[Command]:
    """Begin the next deployment."""
    return job.go(Phase.PREPARING, now_ms) if timer.serial == job.state.serial else []


STOPPING = PhaseRules(
    begin, advance, {CoordinatorStopped: on_coordinator_stopped, CancellationTimedOut: on_cancellation_timed_out}
)
BACKING_OFF = PhaseRules(begin_pause, lambda _job, _now_ms: [], {BackOffOver: on_pause_over})
