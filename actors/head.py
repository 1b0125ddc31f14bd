"""The head of a cluster: the host with Dispatcher and ResourceManager; with high availability one of several.

Without high availability there is one, ``head``. With it heads are called ``head-<something fresh>``: a name is never
used twice, and does not say who leads. That is told by the lease's record, which `LeaderSearch` reads for clients;
those that do not know where the lease is kept ask any head that they find by its name.

A leader whose process is seen to have ended is replaced at once, any other one when its lease has run out. One that
was replaced may still be there, stopped by a signal or cut off. Its successor ends its process if that is on the same
machine, else it asks Ray to. Nothing depends on this but the cores that the old one's TaskManagers hold: what they do
is refused by epoch.

Source: Flink's ``ClusterEntrypoint`` and ``LeaderRetrievalService``; STONITH as in Pacemaker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.leadership import LeaderFound, WhoLeads
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.cluster.standbys import HighAvailability, is_head
from headrace.engine.errors import ClusterUnavailableError, StorageError
from headrace.engine.kernel.cluster_shape import ClusterReport, Observe
from headrace.engine.kernel.config import FILES_LEASE, ClusterSettings, HighAvailabilitySettings
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.slot_resources import Examine
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import FileLease, LeaderRecord, LeaseState, LeaseStore

from .hosts.host import MachineFactory
from .hosts.host_system import AskTimedOutError, HostGoneError

if TYPE_CHECKING:
    from .reporters.host import ReporterHost, ReporterPlan
    from .rest.host import RestHost, RestPlan

__all__ = ["DISPATCHER_ACTOR", "REPORTER_ACTOR", "REST_ACTOR", "HeadPlan", "LeaderSearch", "no_leader", "open_lease"]

DISPATCHER_ACTOR = "dispatcher"
REST_ACTOR = "rest"
REPORTER_ACTOR = "reporter"
RESOURCE_MANAGER_ACTOR = "resource_manager"

LOOK_AGAIN_MS = 100
"""Pause of a client before it looks for the leader again."""

HEAD_ANSWER_MS = 1_000
"""A head that does not say within this time who leads is passed over."""


_PID = re.compile(r"[1-9][0-9]{0,9}")


def open_lease(settings: HighAvailabilitySettings, key_file: str | None = None) -> LeaseStore:
    """Return the lease store of a cluster.

    Args:
        settings: The cluster's.
        key_file: Of the keys that records of leaders are signed with; None for those who only look for a leader. They
            find it in Ray, by a name that nobody can take who is not in the cluster.

    Raises:
        ConfigurationError: If there is none of that kind, or what it needs is not installed.
    """
    if settings.lease_store == FILES_LEASE:
        return FileLease.open(settings.cluster_uri, key_file)
    from .zookeeper_lease import ZooKeeperLease

    return ZooKeeperLease.open(settings.lease_store, settings.cluster_id, settings.lease_ms, key_file)


EndElsewhere: TypeAlias = Callable[[str, str], str]
"""Ends a head on another machine, by the cluster and its name; says what it did, or nothing."""


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """Everything that the heads of one cluster have in common; travels to them, and from a leader to new standbys.

    Attributes:
        settings: How the cluster is laid out.
        report: What the cluster offers, see `ResourceManager`.
        observe: Looks at it again, from the head.
        examine: Looks at a TaskManager's machine, from there; None leaves that unknown.
        replaces_standbys: Whether the leader starts new standbys: only where they have no parent.
        end_elsewhere: Ends a head that was replaced and is on another machine; None leaves it there.
        rest: What they need to serve REST; None serves none.
        reporters: What they need to report metrics and traces; None reports nothing.
    """

    settings: ClusterSettings
    report: ClusterReport | None = None
    observe: Observe | None = None
    replaces_standbys: bool = False
    examine: Examine | None = None
    end_elsewhere: EndElsewhere | None = None
    rest: RestPlan | None = None
    reporters: ReporterPlan | None = None

    def actors(self, host: str, born_after: int = 0) -> tuple[tuple[str, MachineFactory], ...]:
        """Return the machines of one head.

        Args:
            host: Its name.
            born_after: The newest epoch that was over when it was started.
        """
        resource_manager = Address(host, RESOURCE_MANAGER_ACTOR)
        dispatcher = functools.partial(_dispatcher, self, resource_manager, born_after)
        manager = functools.partial(
            ResourceManager,
            settings=self.settings,
            report=self.report,
            observe=self.observe,
            examine=self.examine,
        )
        actors: list[tuple[str, MachineFactory]] = [(DISPATCHER_ACTOR, dispatcher), (RESOURCE_MANAGER_ACTOR, manager)]
        if self.rest is not None:
            actors.append((REST_ACTOR, functools.partial(_rest_host, self.rest)))
        if self.reporters is not None:
            own = None if self.settings.high_availability is None else Address(host, DISPATCHER_ACTOR)
            actors.append((REPORTER_ACTOR, functools.partial(_reporter_host, self.reporters, own)))
        return tuple(actors)


def _rest_host(plan: RestPlan, address: Address) -> RestHost:
    """Make the server's host, in its own process."""
    from .rest.host import RestHost

    return RestHost(address, plan)


def _reporter_host(plan: ReporterPlan, dispatcher: Address | None, address: Address) -> ReporterHost:
    """Make the reporter's host, in its own process."""
    from .reporters.host import ReporterHost

    return ReporterHost(address, dispatcher, plan)


def _dispatcher(plan: HeadPlan, resource_manager: Address, born_after: int, address: Address) -> Dispatcher:
    """Build a Dispatcher, in its own process."""
    ha = plan.settings.high_availability
    if ha is None:
        return Dispatcher(address, resource_manager, plan.settings)
    parts = HighAvailability(
        lease=_WatchedLease(open_lease(ha, ha.key_file)),
        jobs=JobStore.open(ha.cluster_uri, ha.key_file),
        record=LeaderRecord(address.host, ha.lease_ms, _own_process()),
        born_after=born_after,
        num_standbys=ha.num_standbys if plan.replaces_standbys else 0,
        make_standby=plan.actors,
        end_host=functools.partial(_end_host, ha.cluster_id, plan.end_elsewhere),
    )
    return Dispatcher(address, resource_manager, plan.settings, parts)


# ------------------------------------------------------------------------------------------------------------ processes
def _own_process() -> dict[str, str]:
    """What identifies this process on its machine; empty where heads share a process."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return {}
    node = ray.get_runtime_context().get_node_id()
    return {"node": node, "pid": str(os.getpid()), "started": _started(os.getpid())}


def _started(pid: int) -> str:
    """When a process was started, in ticks since its machine was: together with its id unlike any other's. Empty if
    gone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # ended, and not yet taken note of by its parent
    except (OSError, IndexError):
        return ""


def _pid_here(record: LeaderRecord) -> int | None:
    """The process of a leader that was started on this machine; None if its record does not say that."""
    details, node = record.details, _own_process().get("node")
    pid, started = details.get("pid", ""), details.get("started", "")
    if node is None or details.get("node") != node or not started:
        return None
    return int(pid) if _PID.fullmatch(pid) else None


def _is_gone(record: LeaderRecord) -> bool:
    """Whether a leader's process has certainly ended: it was on this machine, and is not there any more."""
    pid = _pid_here(record)
    return pid is not None and _started(pid) != record.details["started"]


class _WatchedLease:
    """A lease whose holder's death is also seen by the absence of its process, where it was on this machine.

    So a killed leader is replaced at once, not after the length of its lease. Only for stores in which a lease can be
    taken from one that still seems to have it.
    """

    def __init__(self, lease: LeaseStore) -> None:
        self._lease = lease
        self.acquire = lease.acquire
        self.renew = lease.renew
        self.release = lease.release
        self.is_current = lease.is_current
        self.close = lease.close

    def observe(self) -> LeaseState:
        state = self._lease.observe()
        if state.leader is None or state.is_free or not state.silence_counts or not _is_gone(state.leader):
            return state
        return replace(state, is_free=True)


def _end_host(cluster: str, end_elsewhere: EndElsewhere | None, record: LeaderRecord) -> str:
    """End the process of a leader that was replaced, if it is still there; says what was done."""
    details, own = record.details, _own_process()
    if not details or not own or details == own:
        return ""
    if details.get("node") != own["node"]:
        done = "" if end_elsewhere is None else end_elsewhere(cluster, record.host)
        return f"{done}, which led before" if done else ""
    pid = _pid_here(record)
    if pid is None or _started(pid) != details["started"]:
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"killed process {pid}, which led before as {record.host}"


# -------------------------------------------------------------------------------------------------------------- clients
class FindsHosts(Protocol):
    """The part of an actor system that a search needs."""

    @property
    def hosts(self) -> list[str]:
        """Hosts that live."""
        ...

    def ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask a machine."""
        ...


class LeaderSearch:
    """Finds the leading Dispatcher of a cluster with several heads.

    Args:
        system: Where the heads run.
        lease: Where their lease is kept; None if that is not known here: then the heads are asked.
    """

    def __init__(self, system: FindsHosts, lease: LeaseStore | None) -> None:
        self._system = system
        self._lease = lease
        self._found: Address | None = None

    def address(self) -> Address | None:
        """Return where the leader is, as far as can be seen now; None if there is none."""
        if self._found is None:
            host = self._from_record() if self._lease is not None else self._from_heads()
            self._found = None if host is None else Address(host, DISPATCHER_ACTOR)
        return self._found

    def forget(self) -> None:
        """Forget the leader that was found: it does not lead, or does not answer."""
        self._found = None

    def close(self) -> None:
        """Let go of the lease store."""
        if self._lease is not None:
            self._lease.close()

    def _from_record(self) -> str | None:
        assert self._lease is not None
        try:
            state = self._lease.observe()
        except StorageError:
            return None  # the search for the leader looks again, until the time is up
        return None if state.leader is None or state.is_free else state.leader.host

    def _from_heads(self) -> str | None:
        newest = LeaderFound(0, None)
        for host in filter(is_head, self._system.hosts):
            with contextlib.suppress(HostGoneError, AskTimedOutError):
                found = self._system.ask(Address(host, DISPATCHER_ACTOR), WhoLeads(), HEAD_ANSWER_MS)
                if isinstance(found, LeaderFound) and found.epoch > newest.epoch:
                    newest = found
        return newest.host


def no_leader(cluster: str) -> ClusterUnavailableError:
    """Return the error of a client that has waited for a leader and found none."""
    message = f"no process leads cluster {cluster!r}"
    return ClusterUnavailableError(
        message, hint="is one of its heads alive, and can it reach the directory of its lease?"
    )
