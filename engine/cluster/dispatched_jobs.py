"""What the Dispatcher knows of a job, as long as it runs and after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import JobFailedError, NoResourceAvailableError
from ..kernel.config import JobSettings
from ..protocol.details import JobDetails
from ..protocol.messages import SubmitJob
from ..protocol.states import JobStatus
from ..protocol.views import FailureView, JobView
from .job_store_io import RecoveredJob

__all__ = [
    "LEADER_LOST",
    "MAX_VAIN_EPOCHS",
    "NO_STRATEGY",
    "STEADY_MS",
    "DispatchedJob",
    "ended_job",
    "failed_view",
    "first_view",
    "restarting_view",
    "taken_over_view",
    "too_large",
]

LEADER_LOST = "the cluster's leader was lost"

NO_STRATEGY = "it has no restart strategy"

MAX_VAIN_EPOCHS = 10
"""So many JobManagers in a row may die without progress; one more and the job has failed."""

STEADY_MS = 60_000
"""A JobManager under which all tasks ran for so long has made progress, also if the job takes no checkpoints."""


@dataclass(slots=True)
class DispatchedJob:
    """One job, from its submission until it is forgotten."""

    submission: SubmitJob
    view: JobView
    epoch: int = 0
    # No JobManager has been started for it, by any leader.
    is_first: bool = True
    # The job's host while there is one, else None.
    host: str | None = None
    # JobManagers in a row that died without progress; checkpoints that were complete when the present one began; and
    # since when all tasks run under it.
    num_vain_epochs: int = 0
    checkpoints_at_start: int = 0
    running_since_ms: int | None = None
    has_run: bool = False
    # Pings of the present host in a row without an answer, and whether it ever gave one.
    num_unanswered: int = 0
    is_alive: bool = False
    # Its last word while that is being stored: no one is told before it is.
    ending: JobView | None = None
    # What it has left behind has been seen to, or is being.
    has_cleanup: bool = False
    # The job in full, once it has ended and if that is known.
    details: JobDetails | None = None

    @property
    def has_ended(self) -> bool:
        return self.view.state.is_terminal

    def note_progress(self, view: JobView, now_ms: int) -> None:
        """Note what a report says of the present JobManager: whether the job runs under it, and gets on."""
        self.has_run = self.has_run or view.state is not JobStatus.CREATED
        if view.checkpoints_completed > self.checkpoints_at_start:
            self.num_vain_epochs = 0
        if view.state is not JobStatus.RUNNING:
            self.running_since_ms = None
        elif self.running_since_ms is None:
            self.running_since_ms = now_ms

    @property
    def may_restart(self) -> bool:
        """Whether it has a restart strategy."""
        return self.submission.settings.restart_strategy().max_attempts != 0

    def note_loss(self, now_ms: int) -> str | None:
        """Note that its JobManager was lost; gives why the job fails with it, None if another one is to be started."""
        if self.has_run and not self.may_restart:
            return NO_STRATEGY
        was_steady = self.running_since_ms is not None and now_ms - self.running_since_ms >= STEADY_MS
        self.num_vain_epochs = 1 if was_steady else self.num_vain_epochs + 1
        if self.num_vain_epochs > MAX_VAIN_EPOCHS:
            return f"{self.num_vain_epochs} in a row without progress"
        return None

    def present_details(self) -> JobDetails:
        """Return the job in full, as far as it is known here."""
        settings = None if self.view.is_data_set else self.submission.settings
        return replace(self.details or JobDetails(self.view, settings), view=self.view)


def too_large(submission: SubmitJob, max_slots: int | None) -> NoResourceAvailableError | None:
    """Return the error of a job that needs more slots than the cluster will ever have; None if it may run."""
    if not max_slots or submission.num_slots <= max_slots:
        return None
    message = f"{submission.num_slots} slots needed, {max_slots} available"
    return NoResourceAvailableError(message, hint="Lower the parallelism or raise max_slots.", job=submission.name)


def ended_job(recovered: RecoveredJob, now_ms: int) -> DispatchedJob:
    """Return a job that is only remembered: it has ended, or its entry in the job store is damaged."""
    view = recovered.view
    name = recovered.job_id if view is None else view.name
    settings = JobSettings() if recovered.submission is None else recovered.submission.settings
    submission = SubmitJob(recovered.job_id, name, b"", settings, 0)
    if view is None:
        message = f"the job cannot be recovered: {recovered.problem}"
        error = JobFailedError(message, job=recovered.job_id)
        view = replace(
            first_view(submission, now_ms),
            state=JobStatus.FAILED,
            ended_ms=now_ms,
            failure=message,
            error=error,
        )
    return DispatchedJob(submission, view, is_first=False)


def first_view(submission: SubmitJob, now_ms: int) -> JobView:
    """Return the view of a job that no JobManager has reported on yet."""
    return JobView(submission.job_id, submission.name, JobStatus.CREATED, version=0, started_ms=now_ms, ended_ms=None)


def restarting_view(job: DispatchedJob, reason: str, now_ms: int) -> JobView:
    """Return the view of a job whose JobManager was lost, and that gets another one."""
    return replace(
        job.view,
        state=JobStatus.RESTARTING if job.has_run else JobStatus.CREATED,
        failure=reason,
        history=(*job.view.history, (now_ms, f"restarts: {reason}")),
        failures=(*job.view.failures, FailureView(now_ms, "ProcessLostError", reason)),
    )


def taken_over_view(job: DispatchedJob, term: int, now_ms: int) -> JobView:
    """Return the view of a job that had not ended under the leader before, and restarts under the epoch of this one."""
    note = f"restarts: {LEADER_LOST}; taken over under epoch {term}"
    return replace(job.view, state=JobStatus.RESTARTING, failure=LEADER_LOST, history=((now_ms, note),))


def failed_view(job: DispatchedJob, reason: str, now_ms: int) -> JobView:
    """Return the last word of a job that the Dispatcher lets fail: its JobManager could not say it."""
    message = f'job "{job.submission.name}" failed'
    return replace(
        job.view,
        state=JobStatus.FAILED,
        version=job.view.version + 1,
        ended_ms=now_ms,
        failure=reason,
        error=JobFailedError(message, job=job.submission.job_id, cause=reason),
        slots=(),
        history=(*job.view.history, (now_ms, f"fails: {reason}")),
        failures=(*job.view.failures, FailureView(now_ms, "JobFailedError", reason)),
        entered_ms={**job.view.entered_ms, JobStatus.FAILED.value: now_ms},
    )
