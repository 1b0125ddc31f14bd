"""What can end or restart a job in any phase: failures, a cancellation, another leader.

Whether a failure is a reason to try again is said by its domain, in one table. The domain is found by the kind of
error, the nearest one in its tree of classes.

A failure restarts the pipelined regions it touches (`headrace.engine.execution.regions`): the way through the phases is
the same one, with a *scope*, and only subtasks in it are canceled, waited for and deployed. No checkpoint is taken
meanwhile. What fails until the pause is over belongs to the same restart, and widens its scope if it is another region;
what fails later counts as a failure of its own, and the way begins again with both. The whole job is in scope

* when the last checkpoint is being taken, tasks finish, or the job is being stopped by request: all tasks must do
  the same there;
* when a split enumerator or too many checkpoints have failed: that is nobody's region;
* when the checkpoint to go back to is not the newest one, as that is damaged: regions that run on are ahead of it.

Source: Flink's ``DefaultScheduler.handleTaskFailure``, ``ExecutionFailureHandler`` and
``ThrowableClassifier``; FLIP-304.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum

from ...checkpoint.restore_choice import may_pass_over, with_public_output
from ...errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFallbackError,
    CheckpointMismatchError,
    ConfigurationError,
    ConflictingRowsError,
    ExternalError,
    InternalError,
    JobCanceledError,
    ManagedMemoryError,
    NewerOutputError,
    NoResourceAvailableError,
    PossibleLossError,
    ProcessLostError,
    SinkFencedError,
    StorageError,
    UserError,
)
from ...execution.graph import Execution
from ...execution.regions import Subtask
from ...kernel.config import DamagedCheckpointPolicy, FailoverStrategy
from ...kernel.machine import Command
from ...protocol.states import JobStatus
from ...protocol.views import FailureView
from ..context.job import Job
from ..context.phase import Phase

__all__ = [
    "FailureDomain",
    "Verdict",
    "cancel",
    "domain_of",
    "fail_behind",
    "fail_job",
    "handle_failure",
    "leave",
    "may_fall_back",
    "note_restart",
    "restart",
]


class Verdict(Enum):
    """What follows a failure."""

    RESTART = "restart"
    """What it touches goes on from the newest checkpoint, as often as the restart strategy allows."""
    RESTART_UNLESS_REPEATED = "restart unless repeated"
    """The same; but so many without a complete checkpoint between them end the job."""
    END_JOB = "end job"
    """It would be the same the next time."""


class FailureDomain(Enum):
    """Where a failure comes from."""

    USER_CODE = "user code"
    CONFIGURATION = "configuration"
    MEMORY = "memory"
    PUBLIC_OUTPUT = "public output"
    CHECKPOINT = "checkpoint"
    STORAGE = "storage"
    PROCESS = "process"
    RESOURCES = "resources"
    OUTSIDE = "outside"
    ENGINE = "engine"

    @property
    def verdict(self) -> Verdict:
        """What follows."""
        return _VERDICTS[self]


_VERDICTS = {
    FailureDomain.USER_CODE: Verdict.RESTART_UNLESS_REPEATED,
    FailureDomain.CONFIGURATION: Verdict.END_JOB,
    FailureDomain.MEMORY: Verdict.END_JOB,
    FailureDomain.PUBLIC_OUTPUT: Verdict.END_JOB,
    FailureDomain.CHECKPOINT: Verdict.RESTART,
    FailureDomain.STORAGE: Verdict.RESTART,
    FailureDomain.PROCESS: Verdict.RESTART,
    FailureDomain.RESOURCES: Verdict.RESTART,
    FailureDomain.OUTSIDE: Verdict.RESTART,
    FailureDomain.ENGINE: Verdict.RESTART,
}

_DOMAINS: dict[type[BaseException], FailureDomain] = {
    UserError: FailureDomain.USER_CODE,
    ConfigurationError: FailureDomain.CONFIGURATION,
    ConflictingRowsError: FailureDomain.PUBLIC_OUTPUT,
    CheckpointMismatchError: FailureDomain.CONFIGURATION,
    ManagedMemoryError: FailureDomain.MEMORY,
    CheckpointFallbackError: FailureDomain.PUBLIC_OUTPUT,
    NewerOutputError: FailureDomain.PUBLIC_OUTPUT,
    PossibleLossError: FailureDomain.PUBLIC_OUTPUT,
    SinkFencedError: FailureDomain.PUBLIC_OUTPUT,
    CheckpointError: FailureDomain.CHECKPOINT,
    StorageError: FailureDomain.STORAGE,
    ProcessLostError: FailureDomain.PROCESS,
    NoResourceAvailableError: FailureDomain.RESOURCES,
    ExternalError: FailureDomain.OUTSIDE,
    InternalError: FailureDomain.ENGINE,
    BaseException: FailureDomain.ENGINE,
}


def domain_of(error: BaseException) -> FailureDomain:
    """Return where a failure comes from."""
    return next(_DOMAINS[kind] for kind in type(error).__mro__ if kind in _DOMAINS)


def handle_failure(
    job: Job, error: BaseException, now_ms: int, affected: Collection[Execution] | None = None
) -> list[Command]:
    """Stop what a failure touches, then restart that if the strategy allows it.

    Args:
        job: The job.
        error: What.
        now_ms: The time.
        affected: Whose failure it is; nobody's if a restart that is under way comes to nothing; None if it is the
            whole job's.
    """
    state, phase = job.state, job.state.phase
    if phase in (Phase.ENDED, Phase.DELIVERING):
        return []
    scope = _scope_of(job, affected)
    if phase is Phase.STOPPING and (state.stop_target is not JobStatus.RESTARTING or scope <= state.scope):
        return job.advance(now_ms)  # a consequence, or too late to matter
    if phase in (Phase.STOPPING, Phase.BACKING_OFF) and scope <= state.scope:
        return []
    note_failure(job, error, now_ms, affected)
    if phase in (Phase.STOPPING, Phase.BACKING_OFF):
        note_restart(job, error, scope | state.scope, now_ms)
        return job.stop(JobStatus.RESTARTING, now_ms, scope | state.scope)
    if phase in (Phase.PREPARING, Phase.WAITING_FOR_SLOTS, Phase.DEPLOYING):
        scope |= state.scope
    point = state.restore_point
    if isinstance(error, CheckpointCorruptError) and phase is Phase.DEPLOYING and point is not None:
        if point.is_requested:
            return fail_job(job, error, now_ms)
        state.damaged[point.checkpoint_id] = str(error)
        if not may_fall_back(job):
            message = f"checkpoint {point.checkpoint_id} is damaged: {error.message}"
            return fail_behind(job, CheckpointCorruptError(message, hint=error.hint, **error.context), now_ms)
    verdict = domain_of(error).verdict
    if verdict is Verdict.RESTART_UNLESS_REPEATED:
        state.num_user_failures += 1
    if verdict is Verdict.END_JOB or not _may_restart(job, now_ms):
        return fail_job(job, error, now_ms)
    job.record.backoff = backoff = job.record.backoff.after_failure(now_ms)
    job.record.num_restarts += 1
    note_restart(job, error, scope, now_ms)
    if backoff.has_grown:
        pause = f"waits {backoff.delay_ms / 1_000:g} s before restart {backoff.num_restarts}"
        job.record.note(now_ms, f"{pause}: it goes on failing without getting anywhere")
    return job.stop(JobStatus.RESTARTING, now_ms, scope)


def note_failure(job: Job, error: BaseException, now_ms: int, affected: Collection[Execution] | None = None) -> None:
    """Write a failure down for people, with the task that it is of."""
    failure = FailureView(now_ms, type(error).__name__, str(error), domain_of(error).value)
    execution = next(iter(affected or ()), None)
    if execution is not None and job.execution is not None:
        vertex, subtask = execution.subtask
        task = job.execution.graph.job_graph.vertices[vertex]
        failure = replace(
            failure,
            task=f"{task.name} ({subtask + 1}/{task.parallelism})",
            vertex_id=vertex,
            subtask=subtask,
            task_manager=execution.place.task_manager,
        )
    job.record.note_failure(error, failure)


def _may_restart(job: Job, now_ms: int) -> bool:
    """Whether the restart strategy allows one more try, and the program has not failed too often by itself."""
    backoff = job.record.backoff
    most = backoff.strategy.max_user_failures
    return backoff.can_restart(now_ms) and not 0 < most <= job.state.num_user_failures


def _scope_of(job: Job, affected: Collection[Execution] | None) -> frozenset[Subtask]:
    """What has to be restarted after a failure of some executions; None: of the job as a whole."""
    run = job.execution
    if run is None:
        return frozenset()
    is_stopping = job.wish.mode is not None or job.savepoints.stop_mode is not None
    is_ending = is_stopping or job.state.phase in (Phase.FINAL_CHECKPOINT, Phase.FINISHING)
    if affected is None or is_ending or job.settings.failover is FailoverStrategy.FULL:
        return run.graph.subtasks()
    return run.regions.touched_by(execution.subtask for execution in affected)


def note_restart(job: Job, error: BaseException, scope: frozenset[Subtask], now_ms: int) -> None:
    """Tell people of a restart."""
    run, record = job.execution, job.record
    part = "" if run is None or run.is_whole(scope) else f" {len(scope)} of {run.graph.num_subtasks} tasks"
    record.failure = str(error)
    record.note(now_ms, f"restarts{part} after: {error}")
    record.become(JobStatus.RESTARTING, now_ms)
    record.has_news = True


def restart(job: Job, error: BaseException, now_ms: int) -> list[Command]:
    """Go back to the newest checkpoint with the whole job, which is no failure of it."""
    job.record.num_restarts += 1
    note_restart(job, error, job.run.graph.subtasks(), now_ms)
    return job.stop(JobStatus.RESTARTING, now_ms)


def may_fall_back(job: Job) -> bool:
    """Return whether a newest checkpoint that is damaged or gone may be passed over for an older one."""
    checkpoints = job.settings.checkpoints
    if checkpoints is None or job.execution is None:
        return False
    chosen = checkpoints.damaged_checkpoints is DamagedCheckpointPolicy.FALL_BACK_AT_LEAST_ONCE
    return chosen or may_pass_over(job.execution.graph.job_graph)


def fail_behind(job: Job, error: CheckpointError, now_ms: int) -> list[Command]:
    """Fail the job, as its newest checkpoint is damaged or gone, and say what it made public."""
    if job.settings.restore_from is not None and not job.state.newest_own:
        return fail_job(job, error, now_ms)  # it is the one that the user named
    return fail_job(job, with_public_output(error, job.run.graph.job_graph), now_ms)


def fail_job(job: Job, error: BaseException, now_ms: int) -> list[Command]:
    """End the job: stop everything; ``error`` is its last word."""
    state, record = job.state, job.record
    is_decided = state.phase is Phase.STOPPING and state.stop_target is not JobStatus.RESTARTING
    if is_decided or state.phase in (Phase.DELIVERING, Phase.ENDED):
        return []
    note_failure(job, error, now_ms)
    record.error = error
    record.failure = str(error)
    record.note(now_ms, f"fails: {record.failure}")
    record.become(JobStatus.FAILING, now_ms)
    return job.stop(JobStatus.FAILED, now_ms)


def cancel(job: Job, reason: str, now_ms: int) -> list[Command]:
    """Cancel the job; ``reason`` says why."""
    state, record = job.state, job.record
    if state.phase is Phase.ENDED:
        return []
    if state.phase is Phase.DELIVERING:
        return job.go(Phase.ENDED, now_ms)
    if state.phase is Phase.STOPPING and state.stop_target in (JobStatus.FINISHED, JobStatus.CANCELED):
        return []
    record.note(now_ms, f"canceled: {reason}")
    record.become(JobStatus.CANCELLING, now_ms)
    record.error = JobCanceledError(f'job "{job.submission.name}" was canceled', job=job.submission.job_id)
    return job.stop(JobStatus.CANCELED, now_ms)


def leave(job: Job, reason: str, now_ms: int) -> list[Command]:
    """Leave without touching the job, its tasks and its record: another leader has them."""
    if job.state.phase is Phase.ENDED:
        return []
    job.record.note(now_ms, f"suspended: {reason}")
    job.state.stop_target = JobStatus.SUSPENDED
    return job.go(Phase.ENDED, now_ms)
