"""What a leading Dispatcher knows of its standbys, when it starts new ones, and how it ends the leader before.

Standbys report again and again; one that has not been heard of for twice the length of a lease is gone, and another
is started in its place. It has no parent, so that it outlives the leader. Whether a report was late or a standby
lost does not matter: one too many leads to nothing but one more candidate, which is told to end with all others.

Source: Akka's supervision of cluster singletons; Flink leaves this to Kubernetes or YARN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import LeaderRecord, LeaseStore

from ..kernel.machine import Address, Command, Offload, Send, SpawnHost, StartTimer
from .leadership import EndStandby

__all__ = ["HEAD", "HighAvailability", "PredecessorEnded", "Standbys", "StandbysDue", "end_predecessor", "is_head"]

HEAD = "head"
"""The only head of a cluster without high availability. The others are called so with something fresh behind it."""

START_TIMEOUT_MS = 60_000
"""A standby may take this long until its first report."""

SILENT_LEASES = 2

LOOKS_PER_LEASE = 2
"""How often a leader looks who is missing. Before the first time standbys have had three looks at the lease, and so
three chances to report."""

Actors = tuple[tuple[str, Callable[[Address], Any]], ...]


def is_head(host: str) -> bool:
    """Return whether a host's name is that of a head."""
    return host == HEAD or host.startswith(f"{HEAD}-")


@dataclass(frozen=True, slots=True)
class HighAvailability:
    """What a head needs to be one of several.

    Attributes:
        lease: What they compete for; only used in offloaded work, as is all of the following.
        jobs: Where the cluster's jobs are kept.
        record: Who this head is.
        born_after: The newest epoch that was over when it was started.
        num_standbys: How many the leader keeps running; 0 if that is somebody else's business.
        make_standby: The machines of another head, given its name and what it is born after.
        end_host: Ends the host of a leader that has been replaced, if it is still there; says what it did.
    """

    lease: LeaseStore
    jobs: JobStore
    record: LeaderRecord
    born_after: int = 0
    num_standbys: int = 0
    make_standby: Callable[[str, int], Actors] | None = None
    end_host: Callable[[LeaderRecord], str] | None = None


@dataclass(frozen=True, slots=True)
class PredecessorEnded:
    """Token of the offloaded end of the leader before."""

    host: str

    def __str__(self) -> str:
        return self.host


def end_predecessor(settings: HighAvailability, before: LeaderRecord | None) -> list[Command]:
    """Have the host of the leader before ended, if there was one and somebody can."""
    if before is None or settings.end_host is None:
        return []
    return [Offload("end_predecessor", PredecessorEnded(before.host), functools.partial(settings.end_host, before))]


@dataclass(frozen=True, slots=True)
class StandbysDue:
    """Timer: see who has been heard of."""


class Standbys:
    """The standbys of one leader.

    Args:
        settings: How many there are to be, and how to make them.
        epoch: The leader's: part of their names.
    """

    def __init__(self, settings: HighAvailability, epoch: int) -> None:
        self._settings = settings
        self._epoch = epoch
        self._silence_ms = SILENT_LEASES * settings.record.lease_ms
        # When each must have been heard of again.
        self._expected_by: dict[str, int] = {}
        self._num_started = 0

    @property
    def hosts(self) -> list[str]:
        """The standbys that are there, or were started and not heard of yet."""
        return sorted(self._expected_by)

    def start(self) -> list[Command]:
        """Begin to look after them."""
        return [StartTimer("standbys", self._settings.record.lease_ms // LOOKS_PER_LEASE, StandbysDue())]

    def reported(self, host: str, now_ms: int) -> None:
        """Take a sign of life of a standby; ``now_ms`` is the leader's monotonic clock, as in all calls."""
        self._expected_by[host] = now_ms + self._silence_ms

    def look(self, now_ms: int) -> list[Command]:
        """Forget who has fallen silent and start who is missing; called with each timer."""
        self._expected_by = {host: by for host, by in self._expected_by.items() if by > now_ms}
        commands = self.start()
        make = self._settings.make_standby
        if make is None:
            return commands
        for _ in range(self._settings.num_standbys - len(self._expected_by)):
            host = f"{HEAD}-{self._epoch}-{self._num_started}"
            self._num_started += 1
            self._expected_by[host] = now_ms + START_TIMEOUT_MS
            commands.append(SpawnHost(host, make(host, self._epoch - 1), {"detached": 1.0, "spread": 1.0}))
        return commands

    def end_all(self, actor: str) -> list[Command]:
        """Tell them that the cluster has been shut down."""
        return [Send(Address(host, actor), EndStandby(self._epoch)) for host in self._expected_by]
