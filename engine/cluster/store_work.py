"""The work on the job store that the Dispatcher of several has offloaded, under the epoch that it leads by.

Each work has a token, by which its end is known again, and which says what is to be done again after a pause. Work that
is done again does no harm (`headrace.engine.cluster.job_store_io`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from headrace.state.identifiers import JobId

from ..kernel.machine import Offload, StartTimer
from ..protocol.messages import SubmitJob
from ..protocol.views import JobView
from .job_store_io import forget_job, recover_jobs, store_end, store_submission
from .standbys import HighAvailability

__all__ = [
    "Acceptance",
    "EndStored",
    "JobForgotten",
    "JobsRecovered",
    "StoreAgain",
    "StoreWork",
    "SubmissionStored",
    "store_later",
]

STORE_RETRY_MS = 500
"""Pause before the job store is tried again."""


@dataclass(slots=True)
class Acceptance:
    """A submission that is being stored."""

    submission: SubmitJob
    ask_ids: list[str]
    num_attempts: int = 0


@dataclass(frozen=True, slots=True)
class SubmissionStored:
    """Token of an offloaded write to the job store; so are the next ones."""

    job_id: JobId

    def __str__(self) -> str:
        return self.job_id


@dataclass(frozen=True, slots=True)
class EndStored:
    """Token of the writing of a job's last word."""

    job_id: JobId

    def __str__(self) -> str:
        return self.job_id


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """Token of the deletion of a job that has ended."""

    job_id: JobId

    def __str__(self) -> str:
        return self.job_id


@dataclass(frozen=True, slots=True)
class JobsRecovered:
    """Token of the offloaded reading of the job store."""

    term: int

    def __str__(self) -> str:
        return f"term {self.term}"


@dataclass(frozen=True, slots=True)
class StoreAgain:
    """Timer: the job store failed, and this work is to be done again."""

    work: SubmissionStored | EndStored | JobsRecovered


def store_later(work: SubmissionStored | EndStored | JobsRecovered) -> StartTimer:
    """Have work done again, after a pause."""
    return StartTimer(f"store {work!r}", STORE_RETRY_MS, StoreAgain(work))


class StoreWork:
    """What is offloaded.

    Args:
        high_availability: Where the store and the lease are.
        term: The epoch that the Dispatcher leads by.
    """

    def __init__(self, high_availability: HighAvailability, term: int) -> None:
        self._jobs = high_availability.jobs
        self._lease = high_availability.lease
        self._term = term

    def recover(self) -> Offload:
        """Read what the leader before has left."""
        work = functools.partial(recover_jobs, self._jobs, self._lease, self._term)
        return Offload("recover_jobs", JobsRecovered(self._term), work)

    def store_submission(self, acceptance: Acceptance) -> Offload:
        """Store a submission, once more."""
        acceptance.num_attempts += 1
        submission = acceptance.submission
        work = functools.partial(store_submission, self._jobs, self._lease, self._term, submission)
        return Offload("store_submission", SubmissionStored(submission.job_id), work)

    def store_end(self, view: JobView) -> Offload:
        """Store a job's last word."""
        work = functools.partial(store_end, self._jobs, self._lease, self._term, view)
        return Offload("store_end", EndStored(view.job_id), work)

    def forget(self, job_id: JobId) -> Offload:
        """Delete what the store has of a job."""
        work = functools.partial(forget_job, self._jobs, self._lease, self._term, job_id)
        return Offload("forget_job", JobForgotten(job_id), work)
