"""Jobs that have ended, of a cluster that may be gone: its job store, asked as a cluster is.

So all of REST answers about them, with what the store keeps: a job's last view. Nothing is ever written, no program in
the store is opened, and what would change a job is refused, as its job has ended.

Source: Flink's ``HistoryServer``.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from headrace.engine.cluster.stored_jobs import end_from_facts
from headrace.engine.errors import ClusterUnavailableError, HeadraceError, JobError, JobNotFoundError
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.details import JobDetails
from headrace.engine.protocol.messages import (
    FetchJobDetails,
    FindJobManager,
    JobManagerFound,
    ListJobs,
    ListTaskManagers,
)
from headrace.engine.protocol.views import JobView
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.identifiers import JobId

__all__ = ["EndedJobs"]

REFRESH_S = 10.0
"""How often the store is looked at: Flink's ``historyserver.archive.fs.refresh-interval``."""


class EndedJobs:
    """Answers what a cluster would. May be asked from any thread.

    Args:
        store: The cluster's jobs.
        name: What it is called.
    """

    def __init__(self, store: JobStore, name: str) -> None:
        self._store = store
        self.name = name
        self._lock = threading.Lock()
        self._views: dict[str, JobView] = {}
        # Jobs whose entry cannot be read, and why.
        self.problems: dict[str, str] = {}
        self._read_s: float | None = None

    def views(self) -> dict[str, JobView]:
        """Return the jobs by id, newest first.

        Raises:
            HeadraceError: If the store cannot be read.
        """
        with self._lock:
            now_s = time.monotonic()
            if self._read_s is None or now_s - self._read_s >= REFRESH_S:
                self._read()
                self._read_s = now_s
            return self._views

    def _read(self) -> None:
        views: list[JobView] = []
        problems: dict[str, str] = {}
        for job in self._store.read_all():
            if job.problem is not None:
                problems[job.job_id] = job.problem
            elif job.end is not None:
                try:
                    views.append(end_from_facts(JobId(job.job_id), job.end))
                except (ValueError, TypeError, HeadraceError) as error:
                    problems[job.job_id] = f"its entry cannot be read: {error!r:.400}"
        views.sort(key=lambda view: (-(view.ended_ms or 0), view.job_id))
        self._views = {view.job_id: view for view in views}
        self.problems = problems

    def ask_dispatcher(self, request: Any, timeout_ms: int = 0) -> Any:
        """Answer what the Dispatcher would."""
        if isinstance(request, ListJobs):
            return list(self.views().values())
        if isinstance(request, ListTaskManagers):
            return []
        if isinstance(request, FindJobManager):
            view = self._view(request.job_id)
            return JobManagerFound(None, 0, view, JobDetails(view))
        message = f"a history does not answer {type(request).__name__}"
        raise JobError(message)

    def ask_job(self, job_id: JobId, request: Any, timeout_ms: int = 0) -> Any:
        """Answer what a job's JobManager would, once it has ended."""
        view = self._view(job_id)
        if isinstance(request, FetchJobDetails):
            return JobDetails(view)
        message = f"job {view.name!r} has ended {view.state}"
        raise JobError(message, job=view.job_id)

    def ask_machine(self, address: Address, request: Any, timeout_ms: int = 0) -> Any:
        """There are none."""
        message = "the cluster of a history does not run"
        raise ClusterUnavailableError(message)

    def page_of(self, host: str) -> None:
        """There is none."""

    def _view(self, job_id: JobId) -> JobView:
        view = self.views().get(job_id)
        if view is None:
            problem = self.problems.get(job_id)
            message = f"there is no job {job_id[:100]!r} in the history" + (f": {problem}" if problem else "")
            raise JobNotFoundError(message)
        return view
