"""Making clusters, and finding those that run: `connect` for programs, the others for commands.

`connect` starts the first host, "head", over one of the three actor systems; of a cluster with several heads a
leader-to-be and its standbys. With ``detached=True`` on Ray the head has no parent, outlives the program, and is found
again under its name.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.engine.cluster.standbys import HEAD, is_head
from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, StorageError
from headrace.engine.kernel.cluster_shape import ClusterReport, Observe
from headrace.engine.kernel.config import ClusterSettings, HighAvailabilitySettings
from headrace.engine.kernel.slot_resources import Examine
from headrace.engine.protocol.messages import CancelJob, ListJobs
from headrace.engine.protocol.views import JobView, TaskManagerView
from headrace.state.checkpoints.leases import FileLease
from headrace.state.files.filesystem import join_uri
from headrace.state.identifiers import JobId

from .cluster import Cluster, System
from .head import HeadPlan, LeaderSearch, open_lease
from .hosts.host import MachineFactory
from .hosts.host_system import HostGoneError
from .machine_resources import examine_machine

if TYPE_CHECKING:
    from headrace.engine.kernel.rest_settings import RestSettings

    from .ray.system import RaySystem
    from .rest.host import RestPlan
    from .rest.resources.programs import ProgramPlace
    from .sim.faults import FaultPlan

__all__ = [
    "all_jobs",
    "all_task_managers",
    "cancel_job",
    "cluster_named",
    "connect",
    "is_connected_to_ray",
    "list_clusters",
    "only_cluster_on_ray",
    "start_heads",
]

Actors = tuple[tuple[str, MachineFactory], ...]

DYING_S = 60.0
"""A cluster goes within this time after its program, where Ray notices in time."""

LOOK_S = 0.5


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
        system.run_in_background()  # a client that asks must not drive the program
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


def _programs_on_ray(settings: ClusterSettings, name: str) -> ProgramPlace:
    """Where the programs of a cluster are kept: in its directory, or, without one, on its head's machine."""
    from .rest.resources.programs import ProgramPlace, own_folder, session_command

    ha = settings.high_availability
    if ha is None:
        directory = functools.partial(own_folder, name)
    else:
        directory = functools.partial(join_uri, ha.directory, f"{ha.cluster_id}/programs")
    return ProgramPlace(directory, functools.partial(_command_on_ray, session_command, name))


def _command_on_ray(command: Callable[[str, str], list[str]], name: str) -> list[str]:
    """What runs a program on this Ray; called in a head's process."""
    import ray

    return command(name, ray.get_runtime_context().gcs_address)


def list_clusters(address: str | None = None) -> list[Cluster]:
    """Return connections to all Headrace clusters on a running Ray cluster.

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


def is_connected_to_ray() -> bool:
    """Return whether this process is connected to a Ray; asked without importing it."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)  # it may be half imported
    return is_initialized is not None and bool(is_initialized())


def only_cluster_on_ray(name: str | None = None) -> Cluster | None:
    """Return a connection to the Headrace cluster on the Ray that this process is connected to: of the name, or the
    only one.

    None if there is none, or there are several and none was named, or this process is connected to no Ray.
    """
    if not is_connected_to_ray():
        return None
    from .ray.system import clusters_on_ray

    running = [one for one in clusters_on_ray() if name in (None, one)]
    return _found_on_ray(running[0], None, opened=False) if len(running) == 1 else None


def all_jobs(address: str | None = None) -> list[tuple[str, JobView]]:
    """Return the jobs of all Headrace clusters on a running Ray cluster, each with the name of its cluster.

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
    """Return all Headrace clusters on a running Ray cluster by name, each with its TaskManagers.

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
        if wanted.starts_only and settings.high_availability is not None:
            running = _without_dying(running, name)
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


def _without_dying(running: list[str], name: str | None) -> list[str]:
    """The clusters that run, once one of the name has had time to go, whose program has just died."""
    from .ray.system import clusters_on_ray

    deadline = time.monotonic() + DYING_S
    while name in running and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        running = clusters_on_ray()
    return running


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
    from .ray.connection import is_private
    from .ray.host import end_host
    from .ray.node_types import configured_types, observe_ray
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
    if plan.rest is not None:
        plan = replace(plan, rest=replace(plan.rest, programs=_programs_on_ray(settings, name)))
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
    if isinstance(lease, FileLease):
        lease.require_exclusive()

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
