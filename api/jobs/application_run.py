"""A program in application mode that is run again after its process has died: its jobs are the same, by the same ids.

With high availability the jobs of a dead program are recovered by the cluster that the next run of it starts. That run
calls ``execute`` again, once for each of them. So the first run leaves an id in the cluster's directory, and ids of
jobs follow from it and from their number in the program: a job that the cluster knows is followed, and no second one is
begun; of one that has ended the result is told again. When a program ends in order, by itself or by an error, the id
goes, and the next run is another one.

The n-th job of both runs must be the same: its name is compared. Who dies with a job's rows half read cannot be given
them again, so a job that hands rows to ``main()`` is refused if an earlier run has begun it.

Source: Flink's application mode with high availability (a fixed job id, ``ApplicationDispatcherBootstrap``), which
takes one job for each program.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
import uuid
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from headrace.engine.errors import ConfigurationError, NotFoundError, ProgramError
from headrace.engine.kernel.config import HighAvailabilitySettings
from headrace.engine.protocol.messages import ListJobs
from headrace.engine.protocol.views import JobView
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.files.filesystem import filesystem_for, join_uri
from headrace.state.identifiers import JobId

__all__ = ["APPLICATION_VARIABLE", "ApplicationRun"]

APPLICATION_VARIABLE = "HEADRACE_APPLICATION"
"""Set by ``headrace run-application`` where it runs the program."""

FILE = "application"
"""In the cluster's directory: the id of the run that has not ended."""

MAX_ID_BYTES = 100

MAX_JOBS = 1_000
"""So many ended jobs a cluster remembers; an older one would be run again."""

RECOVERY_TIMEOUT_MS = 120_000
"""Until the cluster has taken over what its predecessor has left."""


class AsksDispatcher(Protocol):
    """The part of a cluster that is needed."""

    def ask_dispatcher(self, request: Any, timeout_ms: int = ...) -> Any:
        """Ask the Dispatcher."""
        ...


class ApplicationRun:
    """One run of a program, over all its environments on one cluster.

    Args:
        settings: Of the cluster.
    """

    _of_directory: ClassVar[dict[str, ApplicationRun]] = {}

    def __init__(self, settings: HighAvailabilitySettings) -> None:
        self._settings = settings
        self._files, folder = filesystem_for(settings.cluster_uri, is_private=True)
        self._path = join_uri(folder, FILE)
        self._num_jobs = 0
        self._has_begun = False
        self._lock = threading.Lock()
        try:
            self._id = self._files.read_bytes(self._path, MAX_ID_BYTES).decode()
            self._is_second = True
        except NotFoundError:
            self._id, self._is_second = uuid.uuid4().hex, False

    @classmethod
    def on(cls, settings: HighAvailabilitySettings) -> ApplicationRun:
        """Return that of this process on a cluster, which need not run yet.

        Raises:
            ConfigurationError: If the cluster's jobs are of no run that could go on.
        """
        run = cls._of_directory.get(settings.cluster_uri) or cls(settings)
        if not run._is_second and not run._has_begun and (going_on := run._going_on()):
            message = f"the cluster's directory has jobs that have not ended and are not this program's: {going_on}"
            hint = "End them ('headrace recover', then 'headrace cancel'), or choose another --cluster-id."
            raise ConfigurationError(message, hint=hint)
        return run

    @property
    def has_begun(self) -> bool:
        """Whether its cluster has been started by this process."""
        return self._has_begun

    def begin(self) -> None:
        """Leave the id, before the first job and once the cluster is this program's own. May be repeated."""
        if self._has_begun:
            return
        self._files.write_bytes(self._path, self._id.encode())
        self._has_begun = True
        self._of_directory[self._settings.cluster_uri] = self
        atexit.register(self.end)

    def end(self) -> None:
        """The program has ended in order, and so have its jobs: the next run is another one."""
        if not self._going_on():
            self._files.delete(self._path)

    def _going_on(self) -> str:
        """The ids of jobs that have not ended, as a text; empty if there are none."""
        jobs = JobStore.open(self._settings.cluster_uri, self._settings.key_file).read_all()
        return ", ".join(job.job_id for job in jobs if job.problem is None and job.end is None)

    def next_job(self, name: str, cluster: AsksDispatcher, *, hands_rows: bool) -> JobId:
        """Return the id of the program's next job.

        Args:
            name: Of the job.
            cluster: Where it is submitted.
            hands_rows: Whether ``main()`` reads its rows.

        Raises:
            ProgramError: If the run before has begun another job in its place, or this one, and has read of its rows;
                or if there are too many.
        """
        with self._lock:
            self._num_jobs += 1
            number = self._num_jobs
        if number > MAX_JOBS:
            message = f"an application that can be run again has {MAX_JOBS:,} jobs at most"
            raise ProgramError(message, job=name)
        job_id = JobId(hashlib.sha256(f"{self._id}/{number}".encode()).hexdigest()[:32])
        if not self._is_second:
            return job_id
        before = next((view for view in _jobs(cluster) if view.job_id == job_id), None)
        if before is not None and before.name != name:
            message = f"job {number} of the application was {before.name!r} when its process died, and is {name!r} now"
            raise ProgramError(message, job=name, hint="The program must submit the same jobs in the same order.")
        if before is not None and hands_rows:
            message = f"rows of job {name!r} went to a main() that has died, and do not come again"
            hint = "Write to a sink in an application that is to survive, or begin with another cluster id."
            raise ProgramError(message, job=name, hint=hint)
        return job_id


def _jobs(cluster: AsksDispatcher) -> Iterable[JobView]:
    found: list[JobView] = cluster.ask_dispatcher(ListJobs(), RECOVERY_TIMEOUT_MS)
    return found
