"""A cluster as its client sees it: connect, submit, ask, close; the same over all three actor systems.

A cluster is a first host, "head", with Dispatcher and ResourceManager, and whatever these start. `connect` makes one
and `Cluster.close` takes down what was made, in the reverse order, even after Ctrl-C: jobs, hosts, Ray itself if it
was started here. With ``detached=True`` on Ray the head has no parent, outlives the program, and is found again
under its name.

Asking a job survives its JobManager: the Dispatcher says where the leader is now, or answers from its archive once
the job has ended. All questions here can be asked twice, so a lost answer is simply asked for again until the time is
up.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.engine.cluster.leadership import LeaderRefused
from headrace.engine.cluster.standbys import HEAD, is_head
from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, InternalError, JobError, StorageError
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.cluster_shape import ClusterReport, Observe
from headrace.engine.kernel.config import ClusterSettings, HighAvailabilitySettings, JobSettings
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.machine_resources import Examine
from headrace.engine.protocol.messages import (
    CancelJob,
    FetchJobDetails,
    FetchReports,
    FindJobManager,
    JobManagerFound,
    JobSubmitted,
    ListJobs,
    ListTaskManagers,
    ReportsFetched,
    RequestFailed,
    ShutDownCluster,
    StopJob,
    SubmitJob,
    WaitForJob,
)
from headrace.engine.protocol.views import JobView, TaskManagerView
from headrace.state.identifiers import JobId
from headrace.state.reading.program_pickles import dump_program

from .head import (
    DISPATCHER_ACTOR,
    LOOK_AGAIN_MS,
    REPORTER_ACTOR,
    REST_ACTOR,
    HeadPlan,
    LeaderSearch,
    no_leader,
    open_lease,
)
from .hosts.host import MachineFactory
from .hosts.host_system import AskTimedOutError, HostGoneError
from .machine_resources import examine_machine

if TYPE_CHECKING:
    from headrace.engine.kernel.rest_settings import RestSettings

    from .ray.system import RaySystem
    from .rest.host import RestAddress, RestPlan
    from .sim.faults import FaultPlan

Actors = tuple[tuple[str, MachineFactory], ...]

__all__ = [
    "Cluster",
    "System",
    "all_jobs",
    "all_task_managers",
    "cancel_job",
    "connect",
    "list_clusters",
    "start_heads",
]

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
        """An id for a job."""
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
        """Milliseconds of a clock that does not go back."""
        ...

    def run_in_background(self) -> None:
        """Let hosts run while no question is asked."""
        ...

    def close(self) -> None:
        """End all hosts at once."""
        ...


class Cluster:
    """A connection to a cluster. Made by `connect`.

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

    def submit(self, job_graph: JobGraph, num_slots: int, settings: JobSettings | None = None) -> JobId:
        """Hand a job over to the cluster; it begins to run.

        Args:
            job_graph: The job.
            num_slots: Slots it needs.
            settings: Instead of the graph's own.

        Returns:
            The job's id on this cluster.

        Raises:
            NoResourceAvailableError: If the cluster can never give that many slots.
            ClusterUnavailableError: If the cluster does not answer.
        """
        job_id = JobId(self.system.fresh_id())
        request = SubmitJob(job_id, job_graph.name, dump_program(job_graph), settings or job_graph.settings, num_slots)
        answer = self.ask_dispatcher(request, SUBMIT_TIMEOUT_MS)
        if not isinstance(answer, JobSubmitted):
            message = f"a submission was answered by {answer!r}"
            raise InternalError(message, job=job_graph.name)
        return answer.job_id

    def ask_dispatcher(self, request: Any, timeout_ms: int = 30_000) -> Any:
        """Ask the Dispatcher.

        Returns:
            The answer, as ``engine.messages`` says for each request.

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
        """The cluster's TaskManagers, with the memory, disk and network that they found at their start.

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
        """Where the cluster serves REST, head by head; those that are there now.

        Raises:
            ConfigurationError: If it serves none, or one of them cannot.
            ClusterUnavailableError: If there is no answer.
        """
        from .rest.host import FetchRestAddress

        self.ask_dispatcher(ListTaskManagers(), timeout_ms)  # once there is an answer there are heads
        heads = sorted(filter(is_head, self.system.hosts))
        found: list[RestAddress] = []
        for host in heads:
            with contextlib.suppress(HostGoneError):
                found.append(self.ask_machine(Address(host, REST_ACTOR), FetchRestAddress(), timeout_ms))
        return found

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

    def may_span_machines(self) -> bool:
        """Whether what one of its processes writes to its disk may be out of reach of another one."""
        if self.actor_system != "ray":
            return False
        from .ray.autoscaler import may_span_machines

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

    def close(self) -> None:
        """End what `connect` has made; leave alone what it has found. May be repeated, and is safe after Ctrl-C."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_owner:
                self._stop_clients()
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


def connect(
    actor_system: str,
    *,
    address: str | None = None,
    detached: bool = False,
    settings: ClusterSettings = ClusterSettings(),
    seed: int = 0,
    name: str | None = None,
    faults: FaultPlan | None = None,
    examine: Examine | None = None,
    joins_only: bool = False,
    starts_only: bool = False,
) -> Cluster:
    """Make a cluster, or find a detached one.

    Args:
        actor_system: ``ray``, ``local`` or ``sim``.
        address: Of the Ray cluster, see `headrace.actors.ray.connection.open_ray`; only for ``ray``.
        detached: Leave the cluster running when this program ends; only for ``ray``.
        settings: How the cluster is laid out.
        seed: Of the simulator.
        name: The cluster's name; a detached cluster of that name, if there is one, is joined.
        faults: What goes wrong in the simulator; nothing by default.
        examine: What TaskManagers look at their machines with. None looks, but not in the simulator, where nothing is
            known of them.
        joins_only: Whether to join a detached cluster that is there, of the name or the only one, and start none.
        starts_only: Whether to start one, and join none.

    Raises:
        ConfigurationError: If the options do not fit together, or a cluster of the name is there that is not wanted.
        ClusterUnavailableError: If there is no Ray cluster at the address, or on it none that could be joined.
    """
    if actor_system != "ray" and (address is not None or detached):
        message = f"address and detached are options of actor system 'ray'; got {actor_system!r}"
        raise ConfigurationError(message)
    if actor_system == "ray":
        wanted = _Wanted(detached, joins_only, starts_only)
        return _connect_ray(address, settings, name, wanted)
    if actor_system == "local":
        examine = examine or examine_machine
    from .local.system import LocalSystem

    system: System
    if actor_system == "local":
        system = LocalSystem()
    elif actor_system == "sim":
        from .sim.faults import FaultPlan
        from .sim.system import SimSystem

        # A plan of faults makes a test, all of which is to repeat; a program may find what its last run has left.
        run = uuid.uuid4().hex[:12] if faults is None else ""
        system = SimSystem(seed, faults or FaultPlan(), run=run)
    else:
        message = f"actor system must be 'ray', 'local' or 'sim'; got {actor_system!r}"
        raise ConfigurationError(message)
    ha = settings.high_availability
    name = name or (actor_system if ha is None else ha.cluster_id)
    plan = HeadPlan(settings, examine=examine)
    if settings.rest is not None or settings.reporters is not None:
        if actor_system == "sim":
            message = "a simulated cluster serves no REST and reports nothing: it has no time of its own"
            raise ConfigurationError(message)
        plan = _with_clients(plan, functools.partial(_client_of, system, name), name)
        system.run_in_background()  # whoever asks must not drive the program
        if isinstance(system, LocalSystem):
            system.keep_logs()
    if ha is not None:
        return start_heads(system, name, replace(plan, replaces_standbys=True), is_owner=True)
    system.start(HEAD, plan.actors(HEAD))
    return Cluster(system, name, is_owner=True)


def _client_of(system: System, name: str) -> Cluster:
    """Make one more client of a cluster in this process."""
    search = None if HEAD in system.hosts else LeaderSearch(system, None)
    return Cluster(system, name, is_owner=False, search=search)


def _client_on_ray(name: str) -> Cluster:
    """Make a client of a cluster on the Ray that this process is part of."""
    return _found_on_ray(name, None, opened=False)


def _with_clients(plan: HeadPlan, connect: Callable[[], Cluster], name: str) -> HeadPlan:
    """Add what in a head is a client of its cluster: REST, and reporters."""
    settings = plan.settings
    if settings.rest is not None:
        plan = replace(plan, rest=_rest_plan(settings.rest, connect, name))
    if settings.reporters is not None:
        from .reporters.host import ReporterPlan

        plan = replace(plan, reporters=ReporterPlan(settings.reporters, connect))
    return plan


def _rest_plan(settings: RestSettings, client: Callable[[], Cluster], name: str) -> RestPlan:
    from .rest.host import RestPlan
    from .rest.security import fresh_tokens

    return RestPlan(settings, fresh_tokens(), client, name)


def list_clusters(address: str | None = None) -> list[Cluster]:
    """Connections to all Headrace clusters on a running Ray cluster.

    Closing the first ends the connection to Ray, if it was made here.

    Raises:
        ClusterUnavailableError: If there is no Ray cluster at the address.
    """
    from .ray.connection import open_ray
    from .ray.system import clusters_on_ray

    opened = open_ray(address or "auto", 0, may_start=False)
    clusters = []
    for name in clusters_on_ray():
        clusters.append(_found_on_ray(name, None, opened=opened))
        opened = False
    if opened:
        import ray

        ray.shutdown()
    return clusters


def all_jobs(address: str | None = None) -> list[tuple[str, JobView]]:
    """The jobs of all Headrace clusters on a running Ray cluster, each with the name of its cluster.

    Raises:
        ClusterUnavailableError: If there is no Ray cluster at the address.
    """
    jobs: list[tuple[str, JobView]] = []
    with _all_clusters(address) as clusters:
        for cluster in clusters:
            with contextlib.suppress(HostGoneError):  # it has ended since it was listed
                jobs.extend((cluster.name, view) for view in cluster.ask_dispatcher(ListJobs()))
    return jobs


def all_task_managers(address: str | None = None) -> list[tuple[str, list[TaskManagerView]]]:
    """All Headrace clusters on a running Ray cluster by name, each with its TaskManagers.

    Raises:
        ClusterUnavailableError: If there is no Ray cluster at the address.
    """
    found: list[tuple[str, list[TaskManagerView]]] = []
    with _all_clusters(address) as clusters:
        for cluster in clusters:
            with contextlib.suppress(HostGoneError):  # it has ended since it was listed
                found.append((cluster.name, cluster.task_managers()))
    return found


def cancel_job(address: str | None, cluster: str, job_id: JobId, timeout_ms: int = 60_000) -> None:
    """Cancel a job of any Headrace cluster on a running Ray cluster; returns when it has ended.

    Raises:
        ClusterUnavailableError: If there is no such cluster, or it does not answer in time.
        JobNotFoundError: If it knows no such job.
    """
    with cluster_named(address, cluster) as found:
        found.ask_job(job_id, CancelJob(), timeout_ms)


@contextlib.contextmanager
def cluster_named(address: str | None, name: str) -> Iterator[Cluster]:
    """A connection to one Headrace cluster on a running Ray cluster, closed at the end of the block.

    Raises:
        ClusterUnavailableError: If there is no such cluster.
    """
    with _all_clusters(address) as clusters:
        found = next((c for c in clusters if c.name == name), None)
        if found is None:
            message = f"there is no Headrace cluster {name!r}"
            raise ClusterUnavailableError(message)
        yield found


@contextlib.contextmanager
def _all_clusters(address: str | None) -> Iterator[list[Cluster]]:
    clusters = list_clusters(address)
    try:
        yield clusters
    finally:
        for cluster in reversed(clusters):
            cluster.close()


class _Wanted(NamedTuple):
    """Which clusters of a Ray will do."""

    detached: bool
    joins_only: bool
    starts_only: bool


def _connect_ray(address: str | None, settings: ClusterSettings, name: str | None, wanted: _Wanted) -> Cluster:
    from .ray.connection import open_ray
    from .ray.system import clusters_on_ray

    opened = open_ray(address, settings.max_slots, may_start=not wanted.detached and not wanted.joins_only)
    try:
        if settings.high_availability is not None:
            name = settings.high_availability.cluster_id
        running = clusters_on_ray()
        if wanted.joins_only:
            name = _one_of(running, name)
        if name is not None and name in running:
            if wanted.starts_only:
                message = f"a cluster {name!r} runs already, and a job of its own cluster was asked for"
                raise ConfigurationError(message, hint="Submit to it with '--target session', or choose another id.")
            return _found_on_ray(name, settings.high_availability, opened=opened)
        name = name or uuid.uuid4().hex[:8]
        return _start_on_ray(settings, name, opened=opened, detached=wanted.detached)
    except BaseException:
        if opened:
            import ray

            ray.shutdown()
        raise


def _one_of(running: list[str], name: str | None) -> str:
    """The cluster to join: the one of the name, or the only one there is.

    Raises:
        ClusterUnavailableError: If there is none, or more than one.
    """
    if name is None and len(running) == 1:
        return running[0]
    if name is not None and name in running:
        return name
    what = f"there is no Headrace cluster {name!r}" if name else "there is no Headrace cluster to submit to"
    if name is None and running:
        what = f"{len(running)} Headrace clusters run, and none of them was named"
    known = f"There are {', '.join(map(repr, running))}." if running else "'headrace cluster start' starts one."
    raise ClusterUnavailableError(what, hint=known)


def _start_on_ray(settings: ClusterSettings, name: str, *, opened: bool, detached: bool) -> Cluster:
    from .ray.autoscaler import configured_types, observe_ray
    from .ray.connection import is_private
    from .ray.host import end_host
    from .ray.system import RaySystem

    # On a Ray of our own there is no other user of the cores: any parallelism may be tried there.
    reserve = not is_private()
    report: ClusterReport | None = None
    observe: Observe | None = None
    if reserve and settings.cpu_per_slot > 0:
        observe = functools.partial(observe_ray, configured_types())
        report = observe()
        slots = [int(shape.num_cpus / settings.cpu_per_slot) * shape.max_nodes for shape in report.shapes]
        if not settings.max_slots and any(slots) and not report.scales:
            settings = replace(settings, max_slots=sum(slots))
    system: RaySystem = RaySystem(name, reserve=reserve)
    plan = HeadPlan(settings, report, observe, detached, examine_machine, end_elsewhere=end_host)
    plan = _with_clients(plan, functools.partial(_client_on_ray, name), name)
    if settings.high_availability is not None:
        start = functools.partial(system.start, detached=detached, spread=True)
        return start_heads(system, name, plan, is_owner=not detached, disconnect_ray=opened, start=start)
    system.start(HEAD, plan.actors(HEAD), detached=detached)
    return Cluster(system, name, is_owner=not detached, disconnect_ray=opened)


def _found_on_ray(name: str, ha: HighAvailabilitySettings | None, *, opened: bool) -> Cluster:
    """A connection to a cluster that is there."""
    from .ray.system import RaySystem

    system: RaySystem = RaySystem(name, reserve=True)
    search: LeaderSearch | None = None
    if HEAD not in system.hosts:  # one of several heads leads
        search = LeaderSearch(system, None if ha is None else open_lease(ha))
    return Cluster(system, name, is_owner=False, disconnect_ray=opened, search=search)


def start_heads(
    system: System,
    name: str | None,
    plan: HeadPlan,
    *,
    is_owner: bool,
    disconnect_ray: bool = False,
    start: Callable[[str, Actors], None] | None = None,
) -> Cluster:
    """Start a leader-to-be and its standbys; which is which they find out themselves."""
    ha = plan.settings.high_availability
    assert ha is not None
    lease = open_lease(ha)

    def start_missing(born_after: int, num_heads: int) -> None:
        for index in range(num_heads):
            host = f"{HEAD}-{born_after}-{system.fresh_id()}-{index}"
            (start or system.start)(host, plan.actors(host, born_after))

    def replenish() -> None:
        """Take the place of heads that were lost; what fails is tried again when the next one is."""
        with contextlib.suppress(StorageError, ClusterUnavailableError):
            num_heads = len([host for host in system.hosts if is_head(host)])
            start_missing(lease.observe().epoch - 1, 1 + ha.num_standbys - num_heads)

    try:
        start_missing(lease.observe().epoch, 1 + ha.num_standbys)
    except BaseException:
        lease.close()
        raise
    search = LeaderSearch(system, lease)
    return Cluster(
        system,
        name or ha.cluster_id,
        is_owner=is_owner,
        disconnect_ray=disconnect_ray,
        search=search,
        replenish=None if plan.replaces_standbys else replenish,
    )


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
