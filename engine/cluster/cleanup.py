"""What jobs have left in the checkpoint store once they have ended: seen to by the Dispatcher, one job at a time.

A job's end is recorded first, and only then is anything deleted; from then on the job is never started again, so a
process that deletes cannot be wrong, not even a leader that has been replaced meanwhile, and deleting again does no
harm. The Dispatcher does it, not the job's leader: that may die at any moment after the end, and is not replaced. With
high availability the submission stays in the job store until all is done (`headrace.engine.cluster.job_store_io`), so
the next leader of the cluster finds a job that has ended and has a submission, and begins anew.

One job at a time, so that however much there is to delete, and however slowly, the Dispatcher's other work finds a
thread: its lease among them.

Source: Flink's ``DispatcherResourceCleaner`` and ``CheckpointResourcesCleanupRunner``; dirty results of FLIP-194.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.state.identifiers import JobId

from ..kernel.machine import Command, Offload, OffloadCompleted, StartTimer

__all__ = ["CleanUpAgain", "JobCleanedUp", "JobCleanup"]

RETRY_MS = 500
"""Pause before a job whose clean-up has failed is tried again."""

MAX_ATTEMPTS = 5
"""After so many the rest stays, for the next leader if there is one."""


@dataclass(frozen=True, slots=True)
class JobCleanedUp:
    """Token of the offloaded work."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class CleanUpAgain:
    """Timer: the clean-up of a job has failed, and is due again."""


class JobCleanup:
    """The jobs whose clean-up is under way or to come."""

    def __init__(self) -> None:
        # Oldest first; the first one is under way.
        self._works: dict[JobId, Callable[[], object]] = {}
        # How often the first one was tried.
        self._num_attempts = 0

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._works

    @property
    def is_idle(self) -> bool:
        """Nothing is to be cleaned up."""
        return not self._works

    def add(self, job_id: JobId, work: Callable[[], object]) -> list[Command]:
        """Clean up after a job, now or in its turn.

        Args:
            job_id: The job; its end is recorded.
            work: Does it; may be done again at any time, also after it failed half-way.
        """
        self._works.setdefault(job_id, work)
        return self._begin() if len(self._works) == 1 else []

    def ended(self, event: OffloadCompleted) -> tuple[list[Command], str | None]:
        """Take the end of the work; gives what follows, and why a job's clean-up was given up, if it was."""
        if event.token.job_id not in self._works:
            return [], None
        if event.error is not None and self._num_attempts < MAX_ATTEMPTS:
            return [StartTimer("clean-up", RETRY_MS, CleanUpAgain())], None
        del self._works[event.token.job_id]
        self._num_attempts = 0
        problem = None if event.error is None else f"could not delete the job's checkpoints: {event.error}"
        return self._begin(), problem

    def again(self) -> list[Command]:
        """Try again after the pause that follows a failure."""
        return self._begin()

    def _begin(self) -> list[Command]:
        for job_id, work in self._works.items():
            self._num_attempts += 1
            return [Offload("clean_up_job", JobCleanedUp(job_id), work)]
        return []
