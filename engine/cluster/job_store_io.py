"""The job store's work that the Dispatcher offloads: store a submission, store an end, find what a leader left.

Each function blocks and touches no machine. All writing goes the same way: write, see that no other leader has come
after this one, and only then report success; ``headrace.state.checkpoints.job_store`` says why that is enough. A
submission is not even written by a leader that was replaced while it slept: it would not be deleted before the next
change of leaders.

Source: Flink's ``JobGraphStore`` and ``JobResultStore`` as the Dispatcher uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.state.checkpoints.job_store import JobStore, StoredJob
from headrace.state.checkpoints.leases import TERM_BITS, LeaseStore
from headrace.state.identifiers import JobId

from ..checkpoint.io import clean_up_job, make_folder
from ..errors import HeadraceError, SupersededError, TypeMismatchError
from ..kernel.config import JobSettings
from ..protocol.messages import SubmitJob
from ..protocol.views import JobView
from .stored_jobs import (
    end_as_facts,
    end_from_facts,
    submission_as_facts,
    submission_from_facts,
)

__all__ = ["RecoveredJob", "clean_up_ended_job", "forget_job", "recover_jobs", "store_end", "store_submission"]


_MAX_NOTE = 100_000
"""Characters of a failure, where it cannot be kept as it is."""


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A job as a new leader finds it: open (a submission), ended (a view), or damaged (a problem).

    Attributes:
        job_id: The job.
        submission: What is to be run on; with a view, what is to be cleaned up after.
        view: Its last word.
        problem: Why neither is known.
    """

    job_id: JobId
    submission: SubmitJob | None = None
    view: JobView | None = None
    problem: str | None = None


def store_submission(jobs: JobStore, lease: LeaseStore, epoch: int, submission: SubmitJob) -> None:
    """Store a submission; once this has returned, every later leader knows the job.

    Raises:
        StorageError: If the store failed; whether the job is in it is not known.
        SupersededError: If another leader has taken over; it may or may not know the job.
        TypeMismatchError: If a setting is not of its type, or the program is too large to be stored.
    """
    _check_epoch(lease, epoch)
    make_folder(submission, epoch << TERM_BITS)
    jobs.put_submission(submission.job_id, epoch, submission_as_facts(submission), submission.job_graph)
    _check_epoch(lease, epoch)


def store_end(jobs: JobStore, lease: LeaseStore, epoch: int, view: JobView) -> None:
    """Store how a job ended; once this has returned, no later leader starts it again.

    Raises:
        StorageError: If the store failed.
        SupersededError: If another leader has taken over: for it the job may be open.
    """
    try:
        jobs.put_end(view.job_id, epoch, end_as_facts(view))
    except (TypeMismatchError, ValueError) as error:  # how it ended is what later leaders need
        jobs.put_end(view.job_id, epoch, end_as_facts(_shortened(view, error)))
    _check_epoch(lease, epoch)


def clean_up_ended_job(jobs: JobStore | None, settings: JobSettings, view: JobView) -> None:
    """Delete what a job has left, and then its submission, without which no later leader does it again.

    Called when the end is stored, by any leader, at any time, and again if it failed.

    Args:
        jobs: The job store; None if there is none.
        settings: The job's.
        view: Its last word.

    Raises:
        HeadraceError: If something could not be deleted: see `headrace.engine.checkpoint.io.clean_up_job`.
    """
    clean_up_job(settings, view)
    if jobs is not None:
        jobs.drop_submission(view.job_id)


def recover_jobs(jobs: JobStore, lease: LeaseStore, epoch: int) -> list[RecoveredJob]:
    """Read all jobs and take over those that are open. Called by a new leader, once it may act, before anything else.

    Returns:
        The jobs: ended ones first, by their end, then open ones by their id.

    Raises:
        StorageError: If the store failed; it can be called again.
        SupersededError: If another leader has taken over meanwhile.
    """
    found = [_recovered(job) for job in jobs.read_all()]
    for job in found:
        if job.submission is not None and job.view is None:
            jobs.adopt(job.job_id, epoch)
    _check_epoch(lease, epoch)
    return sorted(found, key=_age)


def forget_job(jobs: JobStore, lease: LeaseStore, epoch: int, job_id: JobId) -> None:
    """Delete what is stored of a job that ended long ago.

    Raises:
        StorageError: If the store failed; nothing depends on it.
        SupersededError: If another leader has taken over.
    """
    _check_epoch(lease, epoch)
    jobs.remove(job_id)


def _recovered(job: StoredJob) -> RecoveredJob:
    job_id = JobId(job.job_id)
    if job.problem is not None:
        return RecoveredJob(job_id, problem=job.problem)
    view: JobView | None = None
    submission: SubmitJob | None = None
    try:
        view = None if job.end is None else end_from_facts(job_id, job.end)
        if job.submission is not None:  # what has ended is not run: its graph is not needed
            program = job.submission.program if view is None else b""
            submission = submission_from_facts(job_id, job.submission.facts, program)
    except (ValueError, TypeError, HeadraceError) as error:
        return RecoveredJob(job_id, view=view, problem=f"its entry in the job store cannot be read: {error!r:.400}")
    return RecoveredJob(job_id, submission, view)


def _age(job: RecoveredJob) -> tuple[int, int, str]:
    if job.view is None:
        return 1, 0, job.job_id
    return 0, job.view.ended_ms or 0, job.job_id


def _shortened(view: JobView, error: Exception) -> JobView:
    """A view without what programs can make as large or as odd as they like, and with a note that says so."""
    note = f"its metrics and accumulators are not kept: {error}"[:_MAX_NOTE]
    return replace(
        view,
        vertices=(),
        accumulators={},
        last_checkpoint_metrics={},
        error=None,
        failure=None if view.failure is None else view.failure[:_MAX_NOTE],
        history=((view.ended_ms or view.started_ms, note),),
    )


def _check_epoch(lease: LeaseStore, epoch: int) -> None:
    if not lease.is_current(epoch):
        message = f"another leader has taken over after epoch {epoch}"
        raise SupersededError(message)
