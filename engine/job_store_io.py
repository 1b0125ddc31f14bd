"""The job store's work that the Dispatcher offloads: store a submission, store an end, find what a leader left.

Each function blocks and touches no machine. All writing goes the same way: write, see that no other leader has come
after this one, and only then report success; ``headrace.state.job_store`` says why that is enough. A submission is not
even written by a leader that was replaced while it slept: nobody would delete it before the next change of leaders.

Source: Flink's ``JobGraphStore`` and ``JobResultStore`` as the Dispatcher uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cloudpickle

from headrace.engine.checkpoint_io import clean_up_job, make_folder
from headrace.engine.config import JobSettings
from headrace.engine.errors import SupersededError
from headrace.engine.messages import SubmitJob
from headrace.engine.views import JobView
from headrace.state.identifiers import JobId
from headrace.state.job_store import JobStore, StoredJob
from headrace.state.leases import TERM_BITS, LeaseStore
from headrace.state.program_pickles import load_program

__all__ = ["RecoveredJob", "clean_up_ended_job", "forget_job", "recover_jobs", "store_end", "store_submission"]


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


@dataclass(frozen=True, slots=True)
class _End:
    """How a job ended, as it is stored; the error apart, as it may not be readable everywhere."""

    view: JobView
    error: bytes | None


def store_submission(jobs: JobStore, lease: LeaseStore, epoch: int, submission: SubmitJob) -> None:
    """Store a submission; once this has returned, every later leader knows the job.

    Raises:
        StorageError: If the store failed; whether the job is in it is not known.
        SupersededError: If another leader has taken over; it may or may not know the job.
    """
    _check_epoch(lease, epoch)
    make_folder(submission, epoch << TERM_BITS)
    jobs.put_submission(submission.job_id, epoch, cloudpickle.dumps(submission))
    _check_epoch(lease, epoch)


def store_end(jobs: JobStore, lease: LeaseStore, epoch: int, view: JobView) -> None:
    """Store how a job ended; once this has returned, no later leader starts it again.

    Raises:
        StorageError: If the store failed.
        SupersededError: If another leader has taken over: for it the job may be open.
    """
    jobs.put_end(view.job_id, epoch, _pickled(view))
    _check_epoch(lease, epoch)


def clean_up_ended_job(jobs: JobStore | None, settings: JobSettings, view: JobView) -> None:
    """Delete what a job has left, and then its submission, without which no later leader does it again.

    Called when the end is stored, by any leader, at any time, and again if it failed.

    Args:
        jobs: The job store; None if there is none.
        settings: The job's.
        view: Its last word.

    Raises:
        HeadraceError: If something could not be deleted: see `headrace.engine.checkpoint_io.clean_up_job`.
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
    for payload in (job.end, job.submission):
        if payload is None:
            continue
        try:
            # Pickles of our own classes, and of what users' programs raised: the directory is trusted, see `JobStore`.
            value = load_program(payload)
        except Exception as error:
            return RecoveredJob(job_id, view=view, problem=f"its entry in the job store cannot be read: {error!r}")
        if isinstance(value, SubmitJob):
            submission = value
        elif isinstance(value, _End):
            view = replace(value.view, error=_unpickled_error(value.error))
        else:
            return RecoveredJob(job_id, view=view, problem=f"its entry in the job store holds a {type(value).__name__}")
    return RecoveredJob(job_id, submission, view)


def _age(job: RecoveredJob) -> tuple[int, int, str]:
    if job.view is None:
        return 1, 0, job.job_id
    return 0, job.view.ended_ms or 0, job.job_id


def _pickled(view: JobView) -> bytes:
    return bytes(cloudpickle.dumps(_End(replace(view, error=None), _pickled_error(view.error))))


def _pickled_error(error: BaseException | None) -> bytes | None:
    """What a user's program raised may be of any kind; its text is in the view's ``failure``, too."""
    try:
        return None if error is None else bytes(cloudpickle.dumps(error))
    except Exception:
        return None


def _unpickled_error(data: bytes | None) -> BaseException | None:
    try:
        return None if data is None else load_program(data)
    except Exception:
        return None  # of a class that is not known on this machine


def _check_epoch(lease: LeaseStore, epoch: int) -> None:
    if not lease.is_current(epoch):
        message = f"another leader has taken over after epoch {epoch}"
        raise SupersededError(message)
