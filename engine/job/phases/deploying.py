"""DEPLOYING: all tasks in scope are submitted, and started when all are ready, so that no data meets a task that is not
there.
"""

from __future__ import annotations

from ...errors import HeadraceError
from ...kernel.machine import CancelTimer, Command
from ...protocol.states import JobStatus, TaskState
from ..context.job import Job, PhaseRules
from ..context.phase import Phase
from . import slot_requests
from .failures import fail_job

__all__ = ["DEPLOYING"]


def begin(job: Job, now_ms: int) -> list[Command]:
    """Put the tasks into slots and submit them."""
    state, run, record = job.state, job.run, job.record
    state.deployment += 1
    running = {execution.attempt for execution in run.graph.executions() if execution.is_wanted}
    record.metrics.keep_only(running)
    record.reports.forget_attempts_before(state.epoch, state.deployment - 1, running)
    if job.settings.checkpoints is None and state.deployment > 0:
        record.reports.roll_back(run.operators_of(state.scope))
    state.final_ids.clear()
    record.log.add(now_ms, "job", f"deployment {state.deployment}, {len(state.scope)} tasks")
    try:
        commands = run.deploy(state.epoch, state.deployment, state.restore_point, state.scope, now_ms)
    except HeadraceError as error:
        return fail_job(job, error, now_ms)
    state.base_id = state.restored_id
    return [CancelTimer("slots"), *commands, *slot_requests.give_back_unused(job)]


def advance(job: Job, now_ms: int) -> list[Command]:
    """Start the tasks when all are ready; when all run, the job does."""
    run, wish = job.run, job.wish
    if run.graph.are_new_ones_ready():
        if job.savepoints.is_stopped:  # all has been committed, and nothing may be processed any more
            job.record.become(JobStatus.RUNNING, now_ms)
            return job.stop(JobStatus.FINISHED, now_ms)
        stop = [] if wish.mode is None else run.stop_sources(wish.mode)
        return stop + run.start_tasks()
    if not run.graph.are_all_in(TaskState.RUNNING, TaskState.ENDED):
        return []
    return job.go(Phase.EXECUTING, now_ms)


DEPLOYING = PhaseRules(begin, advance, {})
