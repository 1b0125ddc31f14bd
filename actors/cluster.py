"""A cluster as its client sees it: submit, ask, close; the same over all three actor systems.

A cluster is a first host, "head", with Dispatcher and ResourceManager, and whatever these start. It is made or found by
`headrace.actors.connecting`; `Cluster.close` takes down what was made, in the reverse order, even after Ctrl-C: jobs,
hosts, Ray itself if it was started here.

Asking a job survives its JobManager: the Dispatcher says where the leader is now, or answers from its archive once
the job has ended. All questions here can be asked twice, so a lost answer is simply asked for again until the time is
up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headrace.engine.cluster.leadership import LeaderRefused
from headrace.engine.cluster.standbys import HEAD, is_head
from headrace.engine.errors import (
    ClusterUnavailableError,
    ConfigurationError,
    InternalError,
    JobError,
    JobNotFoundError,
)
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import JobSettings
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.messages import (
    CancelJob,
    CancelReportedJob,
    FetchJobDetails,
    FetchReports,
    FindJobManager,
    JobManagerFound,
    JobSubmitted,
    ListTaskManagers,
    ReportsFetched,
    RequestFailed,
    ShutDownCluster,
    StopJob,
    SubmitJob,
    WaitForJob,
)
from headrace.engine.protocol.views import TaskManagerView
from headrace.state.identifiers import JobId
from headrace.state.reading.program_pickles import dump_program

from .head import (
    DISPATCHER_ACTOR,
    LOOK_AGAIN_MS,
    REPORTER_ACTOR,
    REST_ACTOR,
    LeaderSearch,
    no_leader,
)
from .hosts.host import MachineFactory
from .hosts.host_system import AskTimedOutError, HostGoneError

if TYPE_CHECKING:
    from .rest.host import RestAddress

__all__ = ["Cluster", "System"]

DISPATCHER = Address(HEAD, DISPATCHER_ACTOR)

SUBMIT_TIMEOUT_MS = 120_000
"""The head's process has to start first."""

SHUTDOWN_TIMEOUT_MS = 30_000
"""How long jobs and hosts may take to end in order before they are killed; longer than the Dispatcher's own patience.
"""

PATIENCE_MS = 5_000
"""An answer this late, over what its question allows, is taken for lost, and asked for again of the one that leads by
then.
"""

STOP_CLIENT_TIMEOUT_MS = 5_000
"""How long a head may take to close its REST server before it is killed."""

LEADER_PATIENCE_MS = 5_000
"""A leader of several that does not answer within this time may not be there any more: it is looked for again."""

DATA_SET_RETRY_MS = 200
"""Pause before it is asked again whether a data set has ended; its program reports every second."""

RETRY_MS = 50
"""Pause before a job whose leader is gone is looked for again."""


class System(Protocol):
    """The part of an actor system that its client uses."""

    @property
    def name(self) -> str:
        """``ray``, ``local`` or ``sim``."""
        ...

    @property
    def hosts(self) -> list[str]:
        """Hosts that live."""
        ...

    def fresh_id(self) -> str:
        """Return an id for a job."""
        ...

    def start(self, host: str, actors: tuple[tuple[str, MachineFactory], ...]) -> None:
        """Start a host without a parent."""
        ...

    def ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask a machine; raises HostGoneError or AskTimedOutError."""
        ...

    def wait(self, duration_ms: int) -> None:
        """Let time pass."""
        ...

    def elapsed_ms(self) -> int:
        """Return milliseconds of a clock that does not go back."""
        ...

    def run_in_background(self) -> None:
        """Let hosts run while no question is asked."""
        ...

    def close(self) -> None:
        """End all hosts at once."""
        ...


class Cluster:
    """A connection to a cluster. Made by `headrace.actors.connecting.connect`.

    Args:
        system: Runs its hosts.
        name: The cluster's name; what a detached one is found by.
        is_owner: Whether closing ends the cluster.
        disconnect_ray: Whether closing also ends the connection to Ray.
        search: Finds the leader, if the cluster has several heads.
        replenish: Starts heads in the place of those that have ended, if that is this program's business.
    """

    def __init__(
        self,
        system: System,
        name: str,
        *,
        is_owner: bool,
        disconnect_ray: bool = False,
        search: LeaderSearch | None = None,
        replenish: Callable[[], None] | None = None,
    ) -> None:
        self.system = system
        self.name = name
        self._search = search
        self._replenish = replenish
        self._is_owner = is_owner
        self._disconnect_ray = disconnect_ray
        self._is_closed = False
        # Nothing can be asked any more.
        self._is_disconnected = False
        # Where each job's JobManager was last.
        self._leaders: dict[JobId, Address] = {}

    @property
    def actor_system(self) -> str:
        """``ray``, ``local`` or ``sim``."""
        return self.system.name

    def submit(
        self, job_graph: JobGraph, num_slots: int, settings: JobSettings | None = None, job_id: JobId | None = None
    ) -> JobId:
        """Hand a job over to the cluster; it begins to run.

        Args:
            job_graph: The job.
            num_slots: Slots it needs.
            settings: Instead of the graph's own.
            job_id: Its id, where it may have been submitted before: then nothing new begins. None for a fresh one.

        Returns:
            The job's id on this cluster.

        Raises:
            NoResourceAvailableError: If the cluster can never give that many slots.
            ClusterUnavailableError: If the cluster does not answer.
        """
        job_id = job_id or JobId(self.system.fresh_id())
        request = SubmitJob(job_id, job_graph.name, dump_program(job_graph), settings or job_graph.settings, num_slots)
        answer = self.ask_dispatcher(request, SUBMIT_TIMEOUT_MS)
        if not isinstance(answer, JobSubmitted):
            message = f"a submission was answered by {answer!r}"
            raise InternalError(message, job=job_graph.name)
        return answer.job_id

    def ask_dispatcher(self, request: Any, timeout_ms: int = 30_000) -> Any:
        """Ask the Dispatcher.

        Returns:
            The answer, as `headrace.engine.protocol.messages` says for each request.

        Raises:
            HeadraceError: What the answer says, if it is `RequestFailed`.
            ClusterUnavailableError: If the head has ended, or does not answer within ``timeout_ms``; of several, if no
                leader does.
        """
        if self._search is None:
            return _answer(self.system.ask(DISPATCHER, request, timeout_ms))
        return self._ask_leader(self._search, request, timeout_ms)

    def _ask_leader(self, search: LeaderSearch, request: Any, timeout_ms: int) -> Any:
        """Ask the leading Dispatcher, again and again: all that it is asked may be asked twice."""
        deadline = self.system.elapsed_ms() + timeout_ms
        error: ClusterUnavailableError | None = None
        while not self._is_disconnected:
            address = search.address()
            left_ms = max(1, deadline - self.system.elapsed_ms())
            try:
                if address is not None:
                    answer = self.system.ask(address, request, min(left_ms, LEADER_PATIENCE_MS))
                    if not isinstance(answer, LeaderRefused):
                        return _answer(answer)
            except (HostGoneError, AskTimedOutError) as failure:
                error = failure
                if isinstance(failure, HostGoneError) and self._replenish is not None:
                    self._replenish()
            search.forget()
            if deadline - self.system.elapsed_ms() <= 0:
                break
            self.system.wait(LOOK_AGAIN_MS)
        raise no_leader(self.name) from error

    def task_managers(self) -> list[TaskManagerView]:
        """Return the cluster's TaskManagers, with the memory, disk and network that they found at their start.

        Raises:
            ClusterUnavailableError: If there is no answer.
        """
        views: list[TaskManagerView] = self.ask_dispatcher(ListTaskManagers())
        return views

    def ask_job(self, job_id: JobId, request: Any, timeout_ms: int = 30_000) -> Any:
        """Ask a job's JobManager, whichever leads it, or the archive once that is gone after the job's end.

        ``request`` must be one that may be asked twice.

        Raises:
            JobNotFoundError: If the cluster knows no such job.
            JobError: If the job has ended and only its JobManager could have answered.
            ClusterUnavailableError: If there is no answer within ``timeout_ms``.
        """
        deadline = self.system.elapsed_ms() + timeout_ms
        patience_ms = getattr(request, "timeout_ms", 0) + PATIENCE_MS
        while True:
            leader = self._leaders.get(job_id)
            if leader is None:
                found: JobManagerFound = self.ask_dispatcher(FindJobManager(job_id), max(PATIENCE_MS, timeout_ms))
                if found.address is None and found.view.is_data_set and not found.view.state.is_terminal:
                    return self._answer_of_data_set(request, found, deadline)
                if found.address is None:
                    return _answer_from_archive(request, found)
                leader = self._leaders[job_id] = found.address
            left_ms = deadline - self.system.elapsed_ms()
            try:
                return _answer(self.system.ask(leader, request, max(1, min(left_ms, patience_ms))))
            except (HostGoneError, AskTimedOutError):
                if self._leaders.get(job_id) == leader:  # another thread may have found its successor already
                    self._leaders.pop(job_id, None)
                if deadline - self.system.elapsed_ms() <= 0:
                    raise
                self.system.wait(RETRY_MS)

    def _answer_of_data_set(self, request: Any, found: JobManagerFound, deadline: int) -> Any:
        """Answer for a data set: its program runs it, and hears of requests when it reports next.

        Raises:
            AskTimedOutError: If it has been told to end and has not, by ``deadline``.
            JobError: If the request means nothing for a data set.
        """
        view = found.view
        if isinstance(request, CancelJob):
            while not self._has_ended_data_set(view.job_id):
                if self.system.elapsed_ms() >= deadline:
                    message = f"the program of data set {view.name!r} is told to end it, and has not ended it yet"
                    raise AskTimedOutError(message, job=view.job_id)
                self.system.wait(DATA_SET_RETRY_MS)
            return True
        if isinstance(request, WaitForJob) and view.version <= request.seen_version:
            self.system.wait(max(0, min(request.timeout_ms, deadline - self.system.elapsed_ms())))
            newer: JobManagerFound = self.ask_dispatcher(FindJobManager(view.job_id))
            return newer.view
        if isinstance(request, (WaitForJob, FetchJobDetails, FetchReports)):
            return _answer_from_archive(request, found)
        message = f"job {view.name!r} is a data set, which its program runs: it can be canceled, and nothing else"
        raise JobError(message, job=view.job_id)

    def _has_ended_data_set(self, job_id: JobId) -> bool:
        """Have a data set canceled; whether it has ended."""
        try:
            has_ended: bool = self.ask_dispatcher(CancelReportedJob(job_id))
        except JobNotFoundError:  # a new leader knows of it with its program's next report
            return False
        return has_ended

    def ask_machine(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask one machine, wherever it is now: once.

        Raises:
            HeadraceError: What the answer says, if it is `RequestFailed`.
            ClusterUnavailableError: If it is gone, or does not answer within ``timeout_ms``.
        """
        return _answer(self.system.ask(address, request, timeout_ms))

    def wait(self, duration_ms: int) -> None:
        """Let time pass."""
        self.system.wait(duration_ms)

    def rest_addresses(self, timeout_ms: int = 30_000) -> list[RestAddress]:
        """Return where the cluster serves REST, head by head; those that are there now.

        Raises:
            ConfigurationError: If it serves none, or one of them cannot.
            ClusterUnavailableError: If there is no answer.
        """
        from .rest.host import FetchRestAddress

        self.ask_dispatcher(ListTaskManagers(), timeout_ms)  # once there is an answer there are heads
        heads = sorted(filter(is_head, self.system.hosts))
        found: list[RestAddress] = []
        for host in heads:
            try:
                found.append(self.ask_machine(Address(host, REST_ACTOR), FetchRestAddress(), timeout_ms))
            except HostGoneError:
                continue
            except InternalError as error:
                if error.context.get("machine") != REST_ACTOR:
                    raise
                message = f"cluster {self.name!r} serves no REST"
                raise ConfigurationError(message) from error
        return found

    def page_of(self, host: str) -> str | None:
        """Return the address of the page of a host's process on Ray's dashboard; None where there is none."""
        if self.actor_system != "ray":
            return None
        from .ray.system import page_of_actor

        return page_of_actor(self.name, host)

    def _stop_clients(self) -> None:
        """Have heads report a last time, and let go of REST's ports and files; what is killed leaves them."""
        from .reporters.host import StopReporter
        from .rest.host import StopRest

        if self.actor_system == "sim":
            return
        for actor, request in ((REPORTER_ACTOR, StopReporter()), (REST_ACTOR, StopRest())):
            for host in filter(is_head, self.system.hosts):
                with contextlib.suppress(ClusterUnavailableError, InternalError):  # it is gone, or has none
                    self.ask_machine(Address(host, actor), request, STOP_CLIENT_TIMEOUT_MS)

    def is_on_private_ray(self) -> bool:
        """Return whether it is on a Ray that this process has started, whose token no other one has."""
        if self.actor_system != "ray":
            return False
        from .ray.connection import is_private

        return is_private()

    def may_span_machines(self) -> bool:
        """Return whether what one of its processes writes to its disk may be out of reach of another one."""
        if self.actor_system != "ray":
            return False
        from .ray.node_types import may_span_machines

        return may_span_machines()

    def run_in_background(self) -> None:
        """Let jobs go on while no question is asked.

        Matters only for a local cluster, which otherwise stands still. May be repeated.
        """
        self.system.run_in_background()

    def shut_down(self) -> None:
        """End all jobs and hosts, also of a cluster that somebody else made; then close."""
        self._is_owner = True
        self.close()

    @property
    def is_owner(self) -> bool:
        """Whether closing ends the cluster."""
        return self._is_owner

    def close(self, *, ends_jobs: bool = True) -> None:
        """End what `connect` has made; leave alone what it has found. May be repeated, and is safe after Ctrl-C.

        Args:
            ends_jobs: Whether jobs end with their cluster; else it goes as if this process had died, and what is stored
                of them is there for the next one.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_owner:
                self._stop_clients()
                if ends_jobs:
                    with contextlib.suppress(ClusterUnavailableError):
                        self.ask_dispatcher(ShutDownCluster(), SHUTDOWN_TIMEOUT_MS)
        finally:
            self._is_disconnected = True
            try:
                if self._search is not None:
                    self._search.close()
                if self._is_owner:
                    self.system.close()
            finally:
                if self._disconnect_ray:
                    import ray

                    ray.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self.actor_system}, {self.name!r})"


def _answer(answer: Any) -> Any:
    if isinstance(answer, RequestFailed):
        raise answer.error
    return answer


def _answer_from_archive(request: Any, found: JobManagerFound) -> Any:
    """What can still be said of a job that has ended and whose JobManager is gone."""
    view = found.view
    if isinstance(request, FetchJobDetails):
        return found.details
    if isinstance(request, WaitForJob):
        return view
    if isinstance(request, FetchReports):
        return ReportsFetched(request.offset, [])
    if isinstance(request, (CancelJob, StopJob)):
        return True
    message = f"job {view.name!r} has ended {view.state}"
    raise JobError(message, job=view.job_id)
