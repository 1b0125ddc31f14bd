"""Where the dashboard shows a job, said once the job runs.

A program's cluster starts its REST server when somebody asks where it is (`RestSettings.start_delay_ms`), and that is
asked here when the job has run for a moment: so no job starts later for it, and one that is over at once has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from headrace.engine.errors import HeadraceError
from headrace.engine.protocol.asks_jobs import AsksJobs
from headrace.engine.protocol.messages import WaitForJob
from headrace.engine.protocol.states import JobStatus
from headrace.state.files.rest_addresses import read_addresses

if TYPE_CHECKING:
    from headrace.engine.protocol.views import JobView
    from headrace.state.identifiers import JobId

__all__ = ["JobLink", "ServesJobs", "link_line"]

SETTLED_S = 1.0
"""A job that runs for less is not looked at."""

LONG_POLL_MS = 1_000
ANSWER_MS = 30_000
ENDING_S = 2.0
"""How long the end of the thread is waited for."""


class ServesJobs(AsksJobs, Protocol):
    """A cluster that may serve REST."""

    name: str

    def rest_addresses(self) -> list[Any]:
        """Return where it is served, head by head, with tokens; starts what waits to be asked."""
        ...


def link_line(cluster: ServesJobs, job_id: JobId) -> str:
    """Say where the dashboard shows a job, or why there is none. The token is in no log: a command shows it."""
    try:
        addresses = cluster.rest_addresses()
        here = {(one.url, one.token) for one in read_addresses()}
    except HeadraceError as error:
        return f"no dashboard: {str(error).splitlines()[0]}"
    ours = [one for one in addresses if (one.url, one.tokens.write) in here]
    if not addresses:
        return "no dashboard: the cluster has no head that serves it"
    where = "" if ours else ", on the machine of the cluster's head"
    url = (ours or addresses)[0].url
    return f"dashboard{where}: {url}/#/job/{quote(job_id)} (its token: headrace dashboard {cluster.name})"


class JobLink:
    """Says it of one job, from a thread of its own.

    Args:
        cluster: Where the job runs.
        job_id: The job.
        say: Shows a line.
    """

    def __init__(self, cluster: ServesJobs, job_id: JobId, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._say = say
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say nothing more: the cluster is about to go."""
        self._is_closed.set()
        self._thread.join(ENDING_S)

    def _run(self) -> None:
        try:
            is_running = self._wait_until_it_runs()
        except HeadraceError:
            return  # the cluster goes, or has no answer: who waits for the job is told
        if is_running and not self._is_closed.wait(SETTLED_S):
            line = link_line(self._cluster, self._job_id)
            if not self._is_closed.is_set():
                self._say(line)

    def _wait_until_it_runs(self) -> bool:
        version = -1
        while not self._is_closed.is_set():
            view: JobView = self._cluster.ask_job(self._job_id, WaitForJob(version, LONG_POLL_MS), ANSWER_MS)
            status = view.state
            if status is JobStatus.RUNNING or status.is_terminal:
                return not status.is_terminal
            version = view.version
        return False
