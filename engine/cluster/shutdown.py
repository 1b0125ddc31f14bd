"""How a cluster is shut down: first its jobs end, then what they used, then the lease is given back, then it is said.

Ends of jobs that are being stored and what jobs have left are waited for, until the time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..kernel.machine import Address, CancelTimer, Command, KillHost, Reply, Send, StartTimer, StopHost
from ..protocol.control_messages import ReleaseAll
from ..protocol.messages import CancelJob
from .job_manager_hosts import job_manager_of

__all__ = ["JobsAwaited", "Shutdown", "ShutdownTimedOut", "await_jobs"]

JOBS_AWAITED_MS = 120_000
"""A cluster that ends with its jobs ends after so long without any, too: who was to submit one has gone."""

SHUTDOWN_TIMEOUT_MS = 15_000
"""Jobs that have not ended so long after the cluster was told to shut down are killed."""


@dataclass(frozen=True, slots=True)
class JobsAwaited:
    """Timer: a cluster that is there for its jobs alone has waited long enough for the first one."""


def await_jobs() -> StartTimer:
    """Wait for the first job of a cluster that is there for its jobs alone."""
    return StartTimer("jobs awaited", JOBS_AWAITED_MS, JobsAwaited())


@dataclass(frozen=True, slots=True)
class ShutdownTimedOut:
    """Timer: what has not ended is not waited for any more."""


class _Step(Enum):
    JOBS = "jobs"  # they end
    SLOTS = "slots"  # the ResourceManager is told to release all
    RELEASED = "released"  # it has
    LEASE = "lease"  # the lease is being given back
    DONE = "done"


class Shutdown:
    """One that is under way.

    Args:
        dispatcher: Whom the ResourceManager answers.
        resource_manager: Releases what jobs used.
        is_own: Nobody has asked for it, so that nobody ends the Dispatcher's host.
    """

    def __init__(self, dispatcher: Address, resource_manager: Address, *, is_own: bool = False) -> None:
        self._is_own = is_own
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._step = _Step.JOBS
        # Ends that could not be stored are left, and so is what jobs have left.
        self._is_forced = False
        # Who waits for the end.
        self.ask_ids: list[str] = []

    def begin(self, hosts: Sequence[str]) -> list[Command]:
        """Cancel the jobs; ``hosts`` are those of their JobManagers."""
        cancels: list[Command] = [Send(job_manager_of(host), CancelJob()) for host in hosts]
        return [StartTimer("shutdown", SHUTDOWN_TIMEOUT_MS, ShutdownTimedOut()), *cancels]

    def go_on(
        self, *, has_hosts: bool, is_unfinished: bool, give_back: Callable[[], list[Command]] | None
    ) -> list[Command]:
        """Do what is next, if it can be done.

        Args:
            has_hosts: Whether there are JobManagers still.
            is_unfinished: Whether ends are being stored, or what jobs have left is being deleted.
            give_back: Gives the lease back; None without high availability.
        """
        if has_hosts or (is_unfinished and not self._is_forced):
            return []
        if self._step is _Step.JOBS:
            self._step = _Step.SLOTS
            return [Send(self._resource_manager, ReleaseAll(self._dispatcher))]
        if self._step is _Step.RELEASED and give_back is not None:
            self._step = _Step.LEASE
            return give_back()
        if self._step in (_Step.SLOTS, _Step.LEASE):
            return []
        self._step = _Step.DONE
        replies: list[Command] = [Reply(ask_id, value=True) for ask_id in self.ask_ids]
        self.ask_ids.clear()
        return [CancelTimer("shutdown"), *replies, *([StopHost()] if self._is_own else [])]

    def released(self) -> None:
        """Take it that the ResourceManager has released all."""
        if self._step is _Step.SLOTS:
            self._step = _Step.RELEASED

    def given_back(self) -> None:
        """Take it that the lease has been given back."""
        self._step = _Step.DONE

    def timed_out(self, hosts: Sequence[str]) -> list[Command]:
        """Kill the JobManagers that are left; without any, wait for nothing else any more."""
        if not hosts:
            self._is_forced = True
            return []
        kills: list[Command] = [KillHost(host, "it did not end before the cluster's shutdown") for host in hosts]
        return [*kills, StartTimer("shutdown", SHUTDOWN_TIMEOUT_MS, ShutdownTimedOut())]
