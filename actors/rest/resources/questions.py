"""What REST asks of a cluster: each question once for all who ask it at the same time, its answer good for a while.

So a hundred open pages are one question to a JobManager in half a second. Nothing here keeps a job alive: a look is no
sign of life of the job's client.

All of it blocks and may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from headrace.engine.errors import ClusterUnavailableError, JobError
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.details import CheckpointView, JobDetails, JobSummary
from headrace.engine.protocol.messages import (
    FetchJobDetails,
    FetchJobSummary,
    FetchPendingCheckpoints,
    FindJobManager,
    JobManagerFound,
    ListJobs,
    ListTaskManagers,
)
from headrace.engine.protocol.views import JobView, TaskManagerView
from headrace.state.identifiers import JobId, VertexId

from .stages import summary_of

__all__ = ["AsksCluster", "ClusterQuestions"]

NUM_THREADS = 4
"""Jobs that are asked at the same time where all of them are."""

DROP_EVERY_S = 1.0
"""How often answers that are not good any more are looked for."""


class AsksCluster(Protocol):
    """The part of a cluster that REST needs."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        ...

    def ask_dispatcher(self, request: Any, timeout_ms: int = ...) -> Any:
        """Ask the Dispatcher that leads."""
        ...

    def ask_job(self, job_id: JobId, request: Any, timeout_ms: int = ...) -> Any:
        """Ask a job's JobManager, or the archive once it is gone."""
        ...

    def ask_machine(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask one machine, wherever it is now: once."""
        ...

    def page_of(self, host: str) -> str | None:
        """Return the address of a page about a host's process elsewhere, as on Ray's dashboard; None if there
        is none.
        """
        ...


class ClusterQuestions:
    """Asks a cluster for many.

    Args:
        cluster: The cluster.
        ttl_ms: How long an answer is good.
        timeout_ms: How long one may take.
    """

    def __init__(self, cluster: AsksCluster, ttl_ms: int, timeout_ms: int) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms
        self._ttl_s = ttl_ms / 1_000
        self._lock = threading.Lock()
        # Answers, and questions on their way, by what was asked; with the time until which they are good.
        self._answers: dict[Any, tuple[float, Future[Any]]] = {}
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="headrace-rest-jobs")
        # When answers that are not good any more were dropped last.
        self._dropped_s = 0.0
        # How many questions were put; what tests look at.
        self.num_asked = 0

    def close(self) -> None:
        """Let go of threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -------------------------------------------------------------------------------------------------------- answers
    def jobs(self) -> list[JobView]:
        """Return all jobs as the Dispatcher knows them, newest first."""
        found: list[JobView] = self._once("jobs", lambda: self.cluster.ask_dispatcher(ListJobs(), self.timeout_ms))
        return found

    def task_managers(self) -> list[TaskManagerView]:
        """Return all TaskManagers, by name."""
        found: list[TaskManagerView] = self._once(
            "task managers", lambda: self.cluster.ask_dispatcher(ListTaskManagers(), self.timeout_ms)
        )
        return found

    def details(self, job_id: str, *vertices: str, checkpoints: bool = False) -> JobDetails:
        """Return one job; of a job that has none, as its JobManager was lost, what the Dispatcher knows.

        Args:
            job_id: The job.
            vertices: Of which vertices all is wanted; of others there are totals, see `FetchJobDetails`.
            checkpoints: Whether checkpoints are.

        Raises:
            JobNotFoundError: If there is no such job.
            ClusterUnavailableError: If there is no answer.
        """
        return self._fetched(job_id, FetchJobDetails(tuple(map(VertexId, vertices)), checkpoints))

    def all_of(self, job_id: str) -> JobDetails:
        """Return one job in full, with each subtask; raises as `details`."""
        return self._fetched(job_id, FetchJobDetails())

    def all_details(self) -> list[JobDetails]:
        """Return all jobs in full, newest first; of one that does not answer, what the Dispatcher knows."""
        return list(self._threads.map(self._details_of, self.jobs()))

    def summaries(self) -> list[JobSummary]:
        """Return all jobs as lists show them, newest first; of one that does not answer, what the Dispatcher knows."""
        return list(self._threads.map(self._summary_of, self.jobs()))

    def pending_checkpoints(self, job_id: str) -> tuple[CheckpointView, ...]:
        """Return the checkpoints of a job that are under way, newest first; none of a job that has ended."""
        pending: tuple[CheckpointView, ...] = self._once(("pending", job_id), lambda: self._pending(JobId(job_id)))
        return pending

    def ask(self, job_id: str, request: Any) -> Any:
        """Ask a JobManager, every time anew."""
        return self.cluster.ask_job(JobId(job_id), request, self.timeout_ms)

    def tell(self, job_id: str, request: Any, timeout_ms: int | None = None) -> Any:
        """Ask a JobManager for something that changes its job; what was known of it is forgotten."""
        try:
            return self.cluster.ask_job(JobId(job_id), request, timeout_ms or self.timeout_ms)
        finally:
            with self._lock:
                for key in [key for key in self._answers if key == "jobs" or job_id in key]:
                    del self._answers[key]

    def forget(self) -> None:
        """Have everything asked anew."""
        with self._lock:
            self._answers.clear()

    # ------------------------------------------------------------------------------------------------------ questions
    def _details_of(self, view: JobView) -> JobDetails:
        if not view.state.is_terminal:
            try:
                return self.all_of(view.job_id)
            except (ClusterUnavailableError, JobError):
                pass  # it is between two JobManagers, or has just ended
        return JobDetails(view)

    def _summary_of(self, view: JobView) -> JobSummary:
        if not (view.state.is_terminal or view.is_data_set):
            try:
                summary: JobSummary = self._once(("summary", view.job_id), lambda: self._summary(view.job_id))
            except (ClusterUnavailableError, JobError):
                pass  # as above
            else:
                return summary
        return summary_of(JobDetails(view))

    def _summary(self, job_id: JobId) -> Any:
        return self.cluster.ask_job(job_id, FetchJobSummary(), self.timeout_ms)

    def _fetched(self, job_id: str, request: FetchJobDetails) -> JobDetails:
        details: JobDetails = self._once((request, job_id), lambda: self._details(JobId(job_id), request))
        return details

    def _details(self, job_id: JobId, request: FetchJobDetails) -> JobDetails:
        try:
            details: JobDetails = self.cluster.ask_job(job_id, request, self.timeout_ms)
        except ClusterUnavailableError:
            # It is between two JobManagers; the Dispatcher knows that.
            found: JobManagerFound = self.cluster.ask_dispatcher(FindJobManager(job_id), self.timeout_ms)
            return found.details or JobDetails(found.view)
        return details

    def _pending(self, job_id: JobId) -> tuple[CheckpointView, ...]:
        try:
            pending: tuple[CheckpointView, ...] = self.cluster.ask_job(
                job_id, FetchPendingCheckpoints(), self.timeout_ms
            )
        except JobError:
            return ()  # it has ended
        return pending

    def _once(self, key: Any, ask: Callable[[], Any]) -> Any:
        """Ask, unless somebody has asked the same just now, or is about to."""
        now = time.monotonic()
        with self._lock:
            good_until, answer = self._answers.get(key, (0.0, None))
            is_mine = answer is None or (answer.done() and now >= good_until)
            if is_mine:
                answer = Future()
                self._answers[key] = (now, answer)
                self.num_asked += 1
        assert answer is not None
        if not is_mine:
            return answer.result()
        try:
            value = ask()
        except BaseException as error:
            with self._lock:
                if self._answers.get(key, (0.0, None))[1] is answer:
                    del self._answers[key]
            answer.set_exception(error)
            raise
        with self._lock:
            if self._answers.get(key, (0.0, None))[1] is answer:
                self._answers[key] = (time.monotonic() + self._ttl_s, answer)
                self._forget_old()
        answer.set_result(value)
        return value

    def _forget_old(self) -> None:
        """Drop what nobody is given any more: who clicks through a large job leaves an answer for each vertex."""
        now = time.monotonic()
        if now - self._dropped_s >= DROP_EVERY_S:
            self._dropped_s = now
            for key in [key for key, (until, answer) in self._answers.items() if answer.done() and until <= now]:
                del self._answers[key]
