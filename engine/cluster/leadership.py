"""The election of a cluster's leader, as one of its candidates sees it; a part of the Dispatcher.

A candidate passes through phases::

    WATCHING -> CLAIMING -> LEADING -> OVER
        ^          |  `-> SETTLING ^     ^
        `----------'          `----------'

It *watches* the lease and claims it once that is free, or has been silent for its whole length. *Settling* is waiting
until the leader before it has certainly stopped. *Leading* it renews, and it leads only for two thirds of the lease
from the moment before the last renewal that succeeded: it stops before anybody may take the lease from it. A leader
that has lost its lease never gets it back; it ends with its process, and all its children with it.

All times are of one process's monotonic clock: what is read at the end of a call was true at the end at the latest,
and what is written at its beginning at the earliest, so silence is counted from the *end* of the read that saw the
last change to the *beginning* of the present one, and leadership from the *beginning* of a renewal. A process that
was stopped in between may wake up at any point; so `leads` looks at the clock each time, and does not trust timers.

That is why at most one leads at a time. It is not what keeps the jobs right: a process may be stopped between looking
and acting. Whatever a leader writes that others rely on carries its epoch, and is checked where it is written.

Source: ``headrace.state.checkpoints.leases`` for the proof; Flink's ``DefaultLeaderElectionService``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.state.checkpoints.leases import Acquisition, LeaderRecord, LeaseState, LeaseStore

from ..kernel.event_log import EventLog
from ..kernel.machine import Address, Command, Offload, OffloadCompleted, Send, StartTimer, kind_of

__all__ = [
    "EndStandby",
    "LeaderElection",
    "LeaderFound",
    "LeaderRefused",
    "StandbyReported",
    "WhoLeads",
]

LOOKS_PER_LEASE = 6
"""How often a lease is looked at, or renewed, within its length."""


# ------------------------------------------------------------------------------------------------------------- messages
@dataclass(frozen=True, slots=True)
class WhoLeads:
    """A client asks any head. Answer: `LeaderFound`."""


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """Who leads, as far as the answering head knows; ``host`` is None if none does. The largest epoch is right."""

    epoch: int
    host: str | None


@dataclass(frozen=True, slots=True)
class LeaderRefused:
    """Answer of a head to what only the leader may answer: it does not lead, or not yet, or not any more."""


@dataclass(frozen=True, slots=True)
class StandbyReported:
    """A standby tells the leader that it is there; repeated."""

    host: str


@dataclass(frozen=True, slots=True)
class EndStandby:
    """The leader tells a standby that the cluster has been shut down."""

    epoch: int


@dataclass(frozen=True, slots=True)
class _WatchDue:
    serial: int


@dataclass(frozen=True, slots=True)
class _RenewDue:
    epoch: int


@dataclass(frozen=True, slots=True)
class _LookAtTheClock:
    epoch: int


@dataclass(frozen=True, slots=True)
class _LeaseObserved:
    """Token of the offloaded look at the lease; so are the next ones."""

    serial: int


@dataclass(frozen=True, slots=True)
class _LeaseAcquired:
    serial: int


@dataclass(frozen=True, slots=True)
class _LeaseRenewed:
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """Token of the lease's being given back, whose end is for the owner: `LeaderElection.released`."""

    epoch: int


class _Phase(Enum):
    WATCHING = "watching"
    CLAIMING = "claiming"
    SETTLING = "settling"
    LEADING = "leading"
    OVER = "over"


class LeaderElection:
    """One candidate.

    Args:
        lease: What is competed for; only called in offloaded work.
        record: Who this candidate is.
        born_after: The newest epoch that was over when it was started: a cluster that is shut down under a later one
            takes it along.
        monotonic_ms: This process's clock that never goes back and does not stop.
        log: Where it notes what happens.
    """

    def __init__(
        self, lease: LeaseStore, record: LeaderRecord, born_after: int, monotonic_ms: Callable[[], int], log: EventLog
    ) -> None:
        # Under which it leads, or has led; 0 before.
        self.epoch = 0
        # What the last look at the lease has shown.
        self.seen: LeaseState | None = None
        # Who led before it, from the moment on when it claims.
        self.predecessor: LeaderRecord | None = None
        # Why it is over.
        self.reason = ""
        self._lease = lease
        self._record = record
        self._born_after = born_after
        self._monotonic_ms = monotonic_ms
        self._log = log
        self._phase = _Phase.WATCHING
        # Counts looks, so that an old one's end or timer is recognised; and when the present work was ordered.
        self._serial = 0
        self._asked_at = 0
        # Since when the lease has looked as it does: epoch, stamp and the end of the look that saw it first.
        self._unchanged: tuple[int, str] | None = None
        self._unchanged_since = 0
        # Leadership ends then unless it is renewed; it may be acted upon from then on.
        self._valid_until = 0
        self._acts_from = 0
        self._lease_ms = record.lease_ms
        self._num_renewals = 0
        # A renewal is under way, or the giving back, after which there are none; and whether that is wanted.
        self._is_renewing = False
        self._is_giving_back = False
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            _LeaseObserved: self._observed,
            _LeaseAcquired: self._claimed,
            _LeaseRenewed: self._renewed,
            _WatchDue: self._on_watch_due,
            _RenewDue: self._on_renew_due,
            _LookAtTheClock: self._on_clock_due,
        }

    # ------------------------------------------------------------------------------------------------------ for others
    @property
    def leads(self) -> bool:
        """Whether it may act as the leader, at this very moment."""
        return self._phase is _Phase.LEADING and self._monotonic_ms() < self._valid_until

    @property
    def is_over(self) -> bool:
        """Whether this candidate must end: its leadership was lost, or the cluster was shut down."""
        return self._phase is _Phase.OVER

    @property
    def seen_leader(self) -> LeaderFound:
        """Who leads, as the lease was seen last."""
        seen = self.seen
        if seen is None or seen.leader is None or seen.is_free:
            return LeaderFound(0, None)
        return LeaderFound(seen.epoch, seen.leader.host)

    def has_seen_newer(self, epoch: int) -> bool:
        """Return whether a leader of a newer epoch has been seen."""
        return self.seen is not None and self.seen.epoch > epoch

    def report_to_leader(self, own: Address) -> list[Command]:
        """Tell the leader, if there is another one, that this candidate stands by."""
        host = self.seen_leader.host
        return [] if host in (None, own.host) else [Send(Address(host, own.actor), StandbyReported(own.host))]

    def start(self) -> list[Command]:
        """Begin to watch."""
        return self._watch()

    def handle(self, event: Any, now_ms: int) -> list[Command] | None:
        """Take an event; None for one that is not about the election. Look at `is_over` and `leads` afterwards.

        Called with every event of the machine it is a part of, first of all.
        """
        self._look_at_the_clock(now_ms)
        handler = self._handlers.get(kind_of(event))
        return None if handler is None else handler(event, now_ms)

    def _on_watch_due(self, timer: _WatchDue, _now_ms: int) -> list[Command]:
        return self._watch() if timer.serial == self._serial and self._phase is _Phase.WATCHING else []

    def _on_renew_due(self, timer: _RenewDue, _now_ms: int) -> list[Command]:
        return self._renew_or_release() if timer.epoch == self.epoch else []

    def _on_clock_due(self, timer: _LookAtTheClock, _now_ms: int) -> list[Command]:
        is_leader = self._phase in (_Phase.SETTLING, _Phase.LEADING)
        return [self._clock_timer()] if is_leader and timer.epoch == self.epoch else []

    def lost(self, reason: str, now_ms: int) -> None:
        """Step down, as another one was found to lead."""
        if self._phase in (_Phase.SETTLING, _Phase.LEADING):
            self._become(_Phase.OVER, reason, now_ms)

    def give_back(self) -> list[Command]:
        """Give the lease back for good, told by the end of ``release_lease``: the cluster is shut down.

        It leads on until the lease has run out.
        """
        self._is_giving_back = True
        return [] if self._is_renewing else [self._release()]  # a renewal must not come behind it

    def released(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """Take the end of a ``release_lease``; gives what is left to do: nothing once it has been given back or has run
        out.

        One that is only left to run out can be taken by a head that was stopped meanwhile and has not heard that the
        cluster was shut down.
        """
        if event.error is None or not self.leads:
            return []
        self._log.add(now_ms, "lease", f"could not be given back: {event.error}")
        self._is_renewing = False
        return self._renew_later()

    def _renew_or_release(self) -> list[Command]:
        if not self._is_giving_back:
            return self._renew()
        return [] if self._is_renewing else [self._release()]

    def _release(self) -> Offload:
        self._is_renewing = True
        work = functools.partial(self._lease.release, self.epoch, close=True)
        return Offload("release_lease", LeaseReleased(self.epoch), work, kind="blocking")

    # -------------------------------------------------------------------------------------------------------- watching
    def _watch(self) -> list[Command]:
        self._phase = _Phase.WATCHING
        self._serial += 1
        self._asked_at = self._monotonic_ms()
        return [Offload("observe_lease", _LeaseObserved(self._serial), self._lease.observe, kind="blocking")]

    def _watch_later(self) -> list[Command]:
        return [StartTimer("lease", self._record.lease_ms // LOOKS_PER_LEASE, _WatchDue(self._serial))]

    def _observed(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.token.serial != self._serial or self._phase is not _Phase.WATCHING:
            return []
        if event.error is not None:
            self._log.add(now_ms, "lease", f"could not be looked at: {event.error}")
            return self._watch_later()
        state: LeaseState = event.result
        self.seen = state
        if state.is_closed and state.epoch > self._born_after:
            self._become(_Phase.OVER, f"the cluster was shut down under epoch {state.epoch}", now_ms)
            return []
        if (state.epoch, state.stamp) != self._unchanged:
            self._unchanged = (state.epoch, state.stamp)
            self._unchanged_since = self._monotonic_ms()
        if not self._may_claim(state):
            return self._watch_later()
        self._become(_Phase.CLAIMING, f"epoch {state.epoch} is over", now_ms)
        self.predecessor = state.leader
        self._serial += 1
        self._asked_at = self._monotonic_ms()
        work = functools.partial(self._lease.acquire, self._record, state)
        return [Offload("acquire_lease", _LeaseAcquired(self._serial), work, kind="blocking")]

    def _may_claim(self, state: LeaseState) -> bool:
        if state.is_free or (state.leader is not None and state.leader.host == self._record.host):
            return True  # nobody's; or its own, of a claim whose answer got lost: it has not acted upon it
        # Of a leader that is unknown: all heads of a cluster are given the same length.
        length_ms = self._record.lease_ms
        if state.leader is not None:
            length_ms = max(state.leader.lease_ms, length_ms)
        return state.silence_counts and self._asked_at - self._unchanged_since >= length_ms

    def _claimed(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.token.serial != self._serial or self._phase is not _Phase.CLAIMING:
            return []
        if event.error is not None:
            self._log.add(now_ms, "lease", f"could not be claimed: {event.error}")
        acquired: Acquisition | None = event.result
        if acquired is None:
            self._phase = _Phase.WATCHING
            return self._watch_later() if event.error is not None else self._watch()
        self.epoch = acquired.epoch
        self._lease_ms = acquired.lease_ms
        self._num_renewals = 0
        self._acts_from = self._monotonic_ms() + acquired.wait_ms
        self._become(_Phase.SETTLING, f"epoch {acquired.epoch} taken", now_ms)
        self._extend(now_ms)
        return [*self._renew(), self._clock_timer()]

    # --------------------------------------------------------------------------------------------------------- leading
    def _renew_later(self) -> list[Command]:
        return [StartTimer("lease", self._lease_ms // LOOKS_PER_LEASE, _RenewDue(self.epoch))]

    def _renew(self) -> list[Command]:
        if self._phase not in (_Phase.SETTLING, _Phase.LEADING) or self._is_renewing:
            return []
        self._is_renewing = True
        self._num_renewals += 1
        self._asked_at = self._monotonic_ms()
        work = functools.partial(self._lease.renew, self.epoch, self._num_renewals)
        return [Offload("renew_lease", _LeaseRenewed(self.epoch), work, kind="blocking")]

    def _renewed(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.token.epoch != self.epoch or self._phase not in (_Phase.SETTLING, _Phase.LEADING):
            return []
        self._is_renewing = False
        if event.error is not None:
            self._log.add(now_ms, "lease", f"could not be renewed: {event.error}")
        elif event.result:
            self._extend(now_ms)
        elif self._phase is _Phase.SETTLING:
            return self._watch()  # it has not acted
        else:
            self._become(_Phase.OVER, f"another one has taken the lease after epoch {self.epoch}", now_ms)
            return []
        return [self._release()] if self._is_giving_back else self._renew_later()

    def _extend(self, now_ms: int) -> None:
        """Count the lease as held from the moment when that was asked for."""
        self._valid_until = self._asked_at + self._lease_ms * 2 // 3
        self._look_at_the_clock(now_ms)

    def _look_at_the_clock(self, now_ms: int) -> None:
        if self._phase not in (_Phase.SETTLING, _Phase.LEADING):
            return
        now = self._monotonic_ms()
        is_valid = now < self._valid_until
        if self._phase is _Phase.LEADING and not is_valid:
            self._become(_Phase.OVER, f"the lease of epoch {self.epoch} could not be renewed in time", now_ms)
        elif self._phase is _Phase.SETTLING and is_valid and now >= self._acts_from:
            self._become(_Phase.LEADING, f"leads under epoch {self.epoch}", now_ms)

    def _clock_timer(self) -> StartTimer:
        """Have `handle` called at the end of the lease, or of the waiting before it, if nothing else does."""
        now = self._monotonic_ms()
        next_ms = self._acts_from if now < self._acts_from else self._valid_until
        delay_ms = next_ms - now if next_ms > now else self._lease_ms // LOOKS_PER_LEASE
        return StartTimer("lease-clock", delay_ms, _LookAtTheClock(self.epoch))

    def _become(self, phase: _Phase, why: str, now_ms: int) -> None:
        self._phase = phase
        if phase is _Phase.OVER:
            self.reason = why
        self._log.add(now_ms, "lease", f"{phase.value}: {why}")
