"""What a client and the cluster say to each other about one job.

It follows a job by long polls of its `JobView`, and fetches what subtasks report (printed lines, collected rows) as it
goes. Reports are numbered by the JobManager, so a fetch that is repeated or interrupted loses and doubles nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.engine.protocol.asks_jobs import AsksJobs
from headrace.engine.protocol.messages import FetchReports, ReportsFetched, WaitForJob
from headrace.engine.protocol.views import JobView
from headrace.state.identifiers import JobId, OperatorId

from .progress import Progress, ProgressListener

__all__ = ["ASK_TIMEOUT_MS", "PATIENCE_MS", "POLL_MS", "JobConversation", "ReportListener"]

ReportListener = Callable[[OperatorId, int, Any], None]
"""Told one report: operator, subtask, value."""

POLL_MS = 200
"""Longest wait of one poll: what was printed is seen at most this late."""

ASK_TIMEOUT_MS = 30_000
"""An answer that takes longer than this, over its own wait, is taken for lost."""

PATIENCE_MS = 300_000
"""How long a client that follows a job waits for an answer. Machines that are busy with other things answer late, and
silence of a minute says nothing of the job. A cluster that has ended is known to have, and is not waited for.
"""


class JobConversation:
    """One about one job; several threads may ask.

    Args:
        cluster: Where the job runs.
        job_id: The job.
        on_progress: Told each new view.
        on_report: Who is told which reports, by their name.
    """

    def __init__(
        self,
        cluster: AsksJobs,
        job_id: JobId,
        on_progress: Progress | ProgressListener | None,
        on_report: Mapping[str, ReportListener],
    ) -> None:
        self.on_progress = on_progress.update if isinstance(on_progress, Progress) else on_progress
        # One conversation at a time: reports must be handed on in order, each once.
        self.lock = threading.RLock()
        self._cluster = cluster
        self._job_id = job_id
        self._on_report = on_report
        # The newest view seen; its version is what the next long poll waits to be passed.
        self._view: JobView | None = None
        # Where the next fetch of reports goes on; everything before it has been handed to its listener.
        self._report_offset = 0
        # The job has ended and all its reports have been handed on: its JobManager need not be there any more.
        self._has_all_reports = not on_report

    def ask(self, request: Any, timeout_ms: int = ASK_TIMEOUT_MS) -> Any:
        """Ask the job one question."""
        return self._cluster.ask_job(self._job_id, request, timeout_ms)

    def poll(self, wait_ms: int, patience_ms: int = PATIENCE_MS) -> JobView:
        """Make one long poll and tell listeners what is new. A cluster that is there but silent is waited for."""
        with self.lock:
            seen = -1 if self._view is None or wait_ms == 0 else self._view.version
            view: JobView = self.ask(WaitForJob(seen, wait_ms), wait_ms + patience_ms)
            if not self._has_all_reports:
                self._fetch_reports(patience_ms, has_ended=view.state.is_terminal)
            is_new = self._view is None or view.version != self._view.version
            self._view = view
            if is_new and self.on_progress is not None:
                self.on_progress(view)
            return view

    def _fetch_reports(self, patience_ms: int, *, has_ended: bool) -> None:
        while not self._has_all_reports:
            fetched: ReportsFetched = self.ask(FetchReports(self._report_offset), patience_ms)
            self._report_offset = fetched.next_offset
            for operator, subtask, name, value in fetched.reports:
                listener = self._on_report.get(name)
                if listener is not None:
                    listener(operator, subtask, value)
            if not fetched.reports:
                self._has_all_reports = has_ended
                return
