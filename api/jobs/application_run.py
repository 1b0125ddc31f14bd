"""A program in application mode that is run again after its process has died: its jobs are the same, by the same ids.

With high availability the jobs of a dead program are recovered by the cluster that the next run of it starts. That run
calls ``execute`` again, once for each of them. So the first run leaves an id in the cluster's directory, and ids of
jobs follow from it and from their number in the program: a job that the cluster knows is followed, and no second one is
begun; of one that has ended the result is told again. When a program ends in order, by itself or by an error, the id
goes, and the next run is another one.

The n-th job of both runs must be the same: its name is compared. Threads submit in any order, so a job of
another one than the main thread is known by its name instead. Who dies with a job's rows half read cannot be given them
again, so a job that hands rows to ``main()`` is refused if an earlier run has begun it.

*What is no end.* A program that is stopped by SIGTERM, as by ``ray job stop`` or a node that is emptied; one that is
refused because it is another one; and a cluster that is closed while jobs of the run before have not been asked for
again. The cluster then goes as if the process had died, and its jobs are there for the next run.

Source: Flink's application mode with high availability (a fixed job id, ``ApplicationDispatcherBootstrap``), which
takes one job for each program.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import signal
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Protocol

from headrace.engine.errors import ConfigurationError, HeadraceError, NotFoundError, ProgramError
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

_LOG = logging.getLogger("headrace.application")


class AsksDispatcher(Protocol):
    """The part of a cluster that is needed."""

    def ask_dispatcher(self, request: Any, timeout_ms: int = ...) -> Any:
        """Ask the Dispatcher."""
        ...


class ApplicationRun:
    """One run of a program, over all its environments on one cluster. May be used from any thread.

    Args:
        settings: Of the cluster.
    """

    _of_directory: ClassVar[dict[str, ApplicationRun]] = {}
    _lock_of_all: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: HighAvailabilitySettings) -> None:
        self._settings = settings
        self._files, folder = filesystem_for(settings.cluster_uri, is_private=True)
        self._path = join_uri(folder, FILE)
        self._num_jobs = 0
        # Of jobs that were submitted beside the main thread.
        self._names: set[str] = set()
        # Jobs that this process has asked for.
        self._own: set[JobId] = set()
        self._has_begun = False
        # This process has started the cluster, and has not closed it since.
        self._has_cluster = False
        # The program was stopped or refused, so its end is none of its jobs'.
        self._is_cut_off = False
        self._lock, self._connecting = threading.Lock(), threading.Lock()
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
        with cls._lock_of_all:
            run = cls._of_directory.get(settings.cluster_uri) or cls(settings)
            if not run._is_second and not run._has_begun and (going_on := run._going_on()):
                text = ", ".join(going_on)
                message = f"the cluster's directory has jobs that have not ended and are not this program's: {text}"
                hint = "End them ('headrace recover', then 'headrace cancel'), or choose another --cluster-id."
                raise ConfigurationError(message, hint=hint)
            cls._of_directory[settings.cluster_uri] = run
            return run

    @contextlib.contextmanager
    def connecting(self) -> Iterator[bool]:
        """In the block one environment at a time finds the cluster, or starts it, if this gives True: none runs yet."""
        with self._connecting:
            yield not self._has_cluster
            self._begin()
            self._has_cluster = True
            self._heed_stop()

    def _begin(self) -> None:
        """Leave the id, before the first job and once the cluster is this program's own."""
        if self._has_begun:
            return
        self._files.write_bytes(self._path, self._id.encode())
        self._has_begun = True
        atexit.register(self.end)

    def _heed_stop(self) -> None:
        """Have SIGTERM cut the program off; Ray, which has just been connected to, takes it for an orderly exit."""
        before = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not callable(before) or getattr(before, "__self__", None) is self:
            return  # it kills, or is heeded already
        self._exit = before
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: Any) -> None:
        self._is_cut_off = True
        self._exit(number, frame)
        sys.exit(number)

    @property
    def is_cut_off(self) -> bool:
        """Whether the program ends without an end of its jobs."""
        return self._is_cut_off

    def close_cluster(self, *, is_owner: bool) -> bool:
        """Note that an environment closes its cluster; returns whether the jobs end with that.

        Args:
            is_owner: Whether it has started the cluster.
        """
        if not is_owner:
            return True
        self._has_cluster = False
        try:
            left = [job_id for job_id in self._going_on() if self._is_of_run(job_id) and job_id not in self._own]
        except HeadraceError as error:
            _LOG.warning("jobs are left to the next run of this program, as they cannot be read: %s", error)
            return False
        return not left and not self._is_cut_off

    def end(self) -> None:
        """Note that the program and its jobs have ended in order: the next run is another one."""
        if self._is_cut_off:
            return
        if left := self._going_on():
            _LOG.warning("jobs go on with the next run of this program, as they have not ended: %s", ", ".join(left))
        else:
            self._files.delete(self._path)

    def _going_on(self) -> list[JobId]:
        """The ids of jobs that have not ended."""
        jobs = JobStore.open(self._settings.cluster_uri, self._settings.key_file).read_all()
        return [JobId(job.job_id) for job in jobs if job.problem is None and job.end is None]

    def next_job(self, name: str, cluster: AsksDispatcher, *, hands_rows: bool) -> JobId:
        """Return the id of the program's next job.

        Args:
            name: Of the job.
            cluster: Where it is submitted.
            hands_rows: Whether ``main()`` reads its rows.

        Raises:
            ProgramError: If the run before has begun another job in its place, or this one, and has read of its rows;
                or if there are too many, or threads submit two of one name.
        """
        with self._lock:
            place = self._next_place(name)
        job_id = self._job_id(place)
        if not self._is_second:
            self._own.add(job_id)
            return job_id
        before = next((view for view in _jobs(cluster) if view.job_id == job_id), None)
        if before is not None and before.name != name:
            self._is_cut_off = True
            message = f"job {place} of the application was {before.name!r} when its process died, and is {name!r} now"
            raise ProgramError(message, job=name, hint="The program must submit the same jobs in the same order.")
        if before is not None and hands_rows:
            self._is_cut_off = True
            message = f"rows of job {name!r} went to a main() that has died, and do not come again"
            hint = "Write to a sink in an application that is to survive, or begin with another cluster id."
            raise ProgramError(message, job=name, hint=hint)
        self._own.add(job_id)
        return job_id

    def _next_place(self, name: str) -> str:
        """What tells the next job from all others, and is the same in each run."""
        if self._num_jobs + len(self._names) >= MAX_JOBS:
            message = f"an application that can be run again has {MAX_JOBS:,} jobs at most"
            raise ProgramError(message, job=name)
        if threading.current_thread() is threading.main_thread():
            self._num_jobs += 1
            return str(self._num_jobs)
        if name in self._names:
            message = f"threads of the application submit two jobs {name!r}: a next run could not tell which is which"
            raise ProgramError(
                message, job=name, hint="Give each a name of its own, or submit them in the main thread."
            )
        self._names.add(name)
        return f"thread/{name}"

    def _job_id(self, place: str) -> JobId:
        return JobId(_digest(self._id)[:8] + _digest(f"{self._id}/{place}")[:24])

    def _is_of_run(self, job_id: JobId) -> bool:
        return job_id.startswith(_digest(self._id)[:8])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _jobs(cluster: AsksDispatcher) -> Iterable[JobView]:
    found: list[JobView] = cluster.ask_dispatcher(ListJobs(), RECOVERY_TIMEOUT_MS)
    return found
