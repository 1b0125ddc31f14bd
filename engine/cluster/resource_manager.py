"""The ResourceManager of a cluster: wishes for slots become TaskManagers, supervised, and given back.

A job says how many slots it needs in all; its TaskManagers are its own, from the first request until it is released.
One that dies is reported to the job's leader and replaced while the job still wants its slots, at once if it had ever
registered, else with a growing pause. When another leader takes the job over, its TaskManagers stay and are told:
only their slots start afresh.

TaskManagers are spread over the nodes; new ones avoid nodes on which processes have died too often, see
`headrace.engine.cluster.blocklist`. A TaskManager whose slot's death has had its node blocked is replaced by one
elsewhere.

Whether a machine can be had is the host system's business: a TaskManager that cannot be placed never registers. While
one has not, the cluster is looked at every few seconds, and the JobManager is told what it does about that: it knows
how long it is willing to wait, and waits longer while nodes are being launched. Where none ever are, one that is silent
since its start gets a stand-in, and what the job does not use is given back. Only what can never be granted is refused
here. How large TaskManagers are follows from the kinds of nodes (`headrace.engine.kernel.cluster_shape`).

Invariant: at any time the TaskManagers of a job are those that were spawned and have not been reported as terminated;
slots offered in all never exceed ``max_slots``.

Source: Flink's ``ActiveResourceManager``, ``DefaultSlotManager`` and ``WorkerResourceSpec``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.state.checkpoints.leases import TERM_BITS
from headrace.state.identifiers import JobId

from ..kernel.cluster_shape import ClusterReport, Observe, awaited_text, refusal, task_manager_size
from ..kernel.config import ClusterSettings, JobSettings
from ..kernel.event_log import EventLog
from ..kernel.machine import (
    Address,
    CancelTimer,
    Command,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    OffloadCompleted,
    PingHost,
    Reply,
    Send,
    SpawnHost,
    StartTimer,
    StopHost,
    kind_of,
)
from ..kernel.slot_resources import Examine
from ..protocol.control_messages import AllReleased, JobNote, ReleaseAll, SlotFailed, TaskManagersAsked
from ..protocol.messages import (
    JobManagerChanged,
    RegisterTaskManager,
    ReleaseJob,
    RequestSlots,
    SlotRequestFailed,
    SlotsAwaited,
    StandInRequested,
    TaskManagerLost,
)
from ..protocol.views import TaskManagerView
from .blocklist import Blocklist
from .task_manager import TaskManager

__all__ = ["ClusterObserved", "ResourceManager"]

TASK_MANAGER_ACTOR = "tm"

MAX_RESPAWN_DELAY_MS = 30_000
"""Upper bound of the pause before a TaskManager that died unregistered is replaced; it begins at 500 ms and doubles."""

MAX_RELEASED = 10_000
"""Ended jobs remembered."""

RELEASE_TIMEOUT_MS = 5_000
"""A TaskManager asked to stop is killed after this."""

START_TIMEOUT_MS = 300_000
"""A TaskManager's host may wait this long for a machine that is not being launched; the JobManager's own patience is
usually shorter."""

LOOK_INTERVAL_MS = 2_000
"""How often the cluster is looked at while a TaskManager has not registered."""

OBSERVE = "observe_cluster"


@dataclass(slots=True)
class _TaskManagerHost:
    host: str
    num_slots: int
    is_registered: bool = False
    # Pings in a row without an answer, and whether one was ever answered.
    num_unanswered: int = 0
    is_alive: bool = False
    # Ordered to end.
    is_ending: bool = False
    reason: str = ""
    # Ordered to end as the job can do without it.
    is_given_back: bool = False
    # Ordered to end for its silence.
    is_silent: bool = False
    # It has not been heard of, and another one was spawned beside it.
    has_stand_in: bool = False
    # The machine it is on, once that is known, and those that it was to avoid.
    node: str = ""
    avoids: tuple[str, ...] = ()
    # What it has said of itself; None before it has.
    view: TaskManagerView | None = None


@dataclass(slots=True)
class _Job:
    job_id: JobId
    epoch: int
    job_manager: Address
    num_slots: int
    settings: JobSettings
    task_managers: dict[str, _TaskManagerHost] = field(default_factory=dict)
    # TaskManagers spawned so far: part of their names.
    num_spawned: int = 0
    # Deaths in a row before a registration.
    num_failed_starts: int = 0
    # Stand-ins in a row before a registration.
    num_stand_ins: int = 0
    is_waiting: bool = False
    is_released: bool = False
    # It asks for more than could be had when the cluster was last looked at; that is done again before it is told so.
    is_doubtful: bool = False

    @property
    def is_short(self) -> bool:
        """Whether slots that it wants have not come."""
        hosts = self.task_managers.values()
        return not self.is_released and (
            self.is_doubtful or any(not host.is_registered and not host.is_ending for host in hosts)
        )

    @property
    def num_slots_spawned(self) -> int:
        return sum(task_manager.num_slots for task_manager in self.task_managers.values() if not task_manager.is_ending)


@dataclass(frozen=True, slots=True)
class _SpawnDue:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class _LookDue:
    pass


@dataclass(frozen=True, slots=True)
class ClusterObserved:
    """Token of the offloaded look at the cluster."""


@dataclass(frozen=True, slots=True)
class _PingsDue:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class _ReleaseTimedOut:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class _GiveBackTimedOut:
    job_id: JobId
    host: str


class ResourceManager:
    """The machine.

    Args:
        address: Its own address.
        settings: How the cluster is laid out.
        report: What the cluster was like when this was started; None where cores are not counted.
        observe: Looks at it again; None if there is nothing to see.
        examine: Looks at a TaskManager's machine, from there; None leaves it unknown.
    """

    def __init__(
        self,
        address: Address,
        settings: ClusterSettings,
        report: ClusterReport | None = None,
        observe: Observe | None = None,
        examine: Examine | None = None,
    ) -> None:
        self.address = address
        self._examine = examine
        self.log = EventLog(machine="ResourceManager")
        self._settings = settings
        self._report = report
        self._observe = observe
        # The cluster is being looked at, or soon will be.
        self._is_looking = False
        self._blocklist = Blocklist(settings)
        self._jobs: dict[JobId, _Job] = {}
        # Jobs that have ended, oldest first: a request of theirs is a late one of a dead JobManager.
        self._released: dict[JobId, None] = {}
        # Who waits for everything to be given back; from then on nothing is granted.
        self._closing_for: Address | None = None
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            RequestSlots: self._on_request,
            ReleaseJob: self._on_release,
            ReleaseAll: self._on_release_all,
            RegisterTaskManager: self._on_registration,
            SlotFailed: self._on_slot_failed,
            TaskManagersAsked: self._on_asked_for_task_managers,
            HostPinged: self._on_pinged,
            HostTerminated: self._on_terminated,
            ClusterObserved: self._on_observed,
            _LookDue: self._on_look_due,
            _SpawnDue: self._on_spawn_due,
            _PingsDue: self._on_pings_due,
            _ReleaseTimedOut: self._on_release_timed_out,
            _GiveBackTimedOut: self._on_give_back_timed_out,
        }

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        handler = self._handlers.get(kind_of(event))
        return [] if handler is None else handler(event, now_ms)

    # -------------------------------------------------------------------------------------------------------- requests
    def _on_request(self, message: RequestSlots, now_ms: int) -> list[Command]:
        if self._closing_for is not None or message.job_id in self._released:
            return []
        limit = self._settings.max_slots
        if limit and message.num_slots > limit:
            reason = f"{message.num_slots} slots needed, the cluster has {limit} (max_slots)"
            return [Send(message.job_manager, SlotRequestFailed(message.job_id, message.epoch, reason))]
        job = self._jobs.get(message.job_id)
        commands: list[Command] = []
        if job is None:
            job = _Job(message.job_id, message.epoch, message.job_manager, message.num_slots, message.settings)
            self._jobs[message.job_id] = job
            commands.append(self._ping_timer(job))
        elif message.epoch < job.epoch:
            return []
        elif message.epoch > job.epoch:
            self.log.add(now_ms, f"job {job.job_id}", f"led by {message.job_manager} under epoch {message.epoch}")
            changed = JobManagerChanged(job.job_id, message.job_manager, message.epoch)
            commands += [Send(Address(host, TASK_MANAGER_ACTOR), changed) for host in job.task_managers]
        job.epoch, job.job_manager = message.epoch, message.job_manager
        job.num_slots, job.settings = message.num_slots, message.settings
        commands += self._give_back(job, message, now_ms)
        hopeless = refusal(job.num_slots, self._settings, self._report)
        job.is_doubtful = hopeless is not None and self._observe is not None
        if hopeless is not None and not job.is_doubtful:
            return [*commands, self._refused(job, hopeless)]
        return commands + self._spawn_missing(job, now_ms) + self._look()

    @staticmethod
    def _refused(job: _Job, reason: str) -> Send:
        return Send(job.job_manager, SlotRequestFailed(job.job_id, job.epoch, reason))

    def _give_back(self, job: _Job, message: RequestSlots, now_ms: int) -> list[Command]:
        """Stop TaskManagers that a job can do without: those it names, and of those that never registered the surplus,
        first the ones that others stand in for.

        What it names it has let go of already, and does not count on any more.
        """
        commands: list[Command] = []
        newest_first = reversed(job.task_managers.values())
        for task_manager in sorted(newest_first, key=lambda task_manager: not task_manager.has_stand_in):
            is_surplus = job.num_slots_spawned - task_manager.num_slots >= job.num_slots
            is_spare = is_surplus and not task_manager.is_registered and task_manager.host not in message.used
            is_free = task_manager.host in message.unused or is_spare
            if task_manager.is_ending or not is_free:
                continue
            self.log.add(now_ms, task_manager.host, "given back")
            task_manager.is_ending, task_manager.reason = True, "it is not needed any more"
            task_manager.is_given_back = True
            commands.append(StopHost(task_manager.host))
            due = _GiveBackTimedOut(job.job_id, task_manager.host)
            commands.append(StartTimer(f"give-back-{task_manager.host}", RELEASE_TIMEOUT_MS, due))
        return commands

    def _on_give_back_timed_out(self, timer: _GiveBackTimedOut, _now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        if job is None or timer.host not in job.task_managers:
            return []
        again = StartTimer(f"give-back-{timer.host}", RELEASE_TIMEOUT_MS, timer)
        return [KillHost(timer.host, "it did not stop in time"), again]

    def _spawn_missing(self, job: _Job, now_ms: int) -> list[Command]:
        """Spawn TaskManagers until the job has the slots it wants, as far as the cluster's bound allows."""
        if job.is_released or job.is_waiting or job.is_doubtful or self._closing_for is not None:
            return []
        commands: list[Command] = []
        per_host = task_manager_size(job.num_slots, self._settings, self._report)
        while (missing := job.num_slots - job.num_slots_spawned) > 0:
            size = self._settings.slots_per_task_manager or min(missing, per_host)
            if self._settings.max_slots:
                free = self._settings.max_slots - sum(other.num_slots_spawned for other in self._jobs.values())
                if free <= 0:
                    break  # tried again when something is given back
                size = min(size, free)
            commands.append(self._spawn(job, size, now_ms))
        return commands

    def _spawn(self, job: _Job, num_slots: int, now_ms: int) -> SpawnHost:
        term = job.epoch >> TERM_BITS  # names are never used again, not by the cluster's next leader either
        host = f"tm-{job.job_id}-{job.num_spawned}" if not term else f"tm-{job.job_id}-{term}.{job.num_spawned}"
        job.num_spawned += 1
        avoids = self._blocklist.blocked(now_ms)
        job.task_managers[host] = _TaskManagerHost(host, num_slots, avoids=avoids)
        self.log.add(now_ms, host, f"spawned with {num_slots} slots")
        factory = functools.partial(
            TaskManager,
            job_id=job.job_id,
            resource_manager=self.address,
            job_manager=job.job_manager,
            epoch=job.epoch,
            num_slots=num_slots,
            settings=job.settings,
            cpu_per_slot=self._settings.cpu_per_slot,
            managed_memory_bytes=self._settings.managed_memory_bytes,
            examine=self._examine,
            keeps_rejected=self._settings.rest is not None and self._settings.rest.allows_record_samples,
        )
        resources = {"cpu": num_slots * self._settings.cpu_per_slot, "slots": float(num_slots), "spread": 1.0}
        return SpawnHost(host, ((TASK_MANAGER_ACTOR, factory),), resources, avoids)

    def _on_spawn_due(self, timer: _SpawnDue, now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        if job is None:
            return []
        job.is_waiting = False
        return self._spawn_missing(job, now_ms) + self._look()

    # ------------------------------------------------------------------------------------------------------ the cluster
    def _look(self) -> list[Command]:
        """Look at the cluster if somebody waits for it, and it is not being looked at."""
        if self._observe is None or self._is_looking or not any(job.is_short for job in self._jobs.values()):
            return []
        self._is_looking = True
        return [Offload(OBSERVE, ClusterObserved(), self._observe)]

    def _on_look_due(self, _timer: _LookDue, _now_ms: int) -> list[Command]:
        self._is_looking = False
        return self._look()

    def _on_observed(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """Tell those who wait what the cluster does, or that it can never do what they want."""
        commands: list[Command] = [StartTimer("look", LOOK_INTERVAL_MS, _LookDue())]
        if event.error is not None:
            self.log.add(now_ms, "cluster", f"could not be looked at: {event.error}")
            return commands
        self._report = report = event.result
        for job in list(self._jobs.values()):
            if not job.is_short:
                continue
            hopeless = refusal(job.num_slots, self._settings, report)
            if hopeless is not None:
                self.log.add(now_ms, f"job {job.job_id}", f"refused: {hopeless}")
                job.is_doubtful = False
                job.num_slots = job.num_slots_spawned  # it does not get more
                commands.append(self._refused(job, hopeless))
                continue
            if job.is_doubtful:
                job.is_doubtful = False
                commands += self._spawn_missing(job, now_ms)
            awaited = SlotsAwaited(job.job_id, job.epoch, awaited_text(report), report.is_launching)
            commands.append(Send(job.job_manager, awaited))
        return commands

    @property
    def _is_launching(self) -> bool:
        return self._observe is not None and self._report is not None and self._report.is_launching

    # ----------------------------------------------------------------------------------------------------- supervision
    def _find(self, host: str) -> tuple[_Job, _TaskManagerHost] | None:
        for job in self._jobs.values():
            found = job.task_managers.get(host)
            if found is not None:
                return job, found
        return None

    def _on_registration(self, message: RegisterTaskManager, now_ms: int) -> list[Command]:
        found = self._find(message.task_manager)
        if found is None:
            return []
        job, task_manager = found
        if not task_manager.is_registered:
            self.log.add(now_ms, task_manager.host, "registered")
        task_manager.is_registered = task_manager.is_alive = True
        task_manager.num_unanswered = 0
        task_manager.view = message.view()
        job.num_failed_starts = job.num_stand_ins = 0
        commands = self._located(job, task_manager, message.node, now_ms)
        if message.epoch < job.epoch:  # it was spawned for a leader that is gone, and maybe has not heard
            changed = JobManagerChanged(job.job_id, job.job_manager, job.epoch)
            commands.append(Send(message.address, changed))
        return commands

    def _on_asked_for_task_managers(self, message: TaskManagersAsked, _now_ms: int) -> list[Command]:
        hosts = [host for job in self._jobs.values() for host in job.task_managers.values() if not host.is_ending]
        views = sorted((host.view for host in hosts if host.view is not None), key=lambda view: view.name)
        return [Reply(message.ask_id, views)]

    @staticmethod
    def _ping_timer(job: _Job) -> StartTimer:
        return StartTimer(f"pings-{job.job_id}", job.settings.heartbeat_interval_ms, _PingsDue(job.job_id))

    def _on_pings_due(self, timer: _PingsDue, now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        if job is None:
            return []
        commands: list[Command] = [self._ping_timer(job)]
        for task_manager in job.task_managers.values():
            if task_manager.is_ending or (self._is_launching and not task_manager.is_alive):
                continue  # its machine is about to be there
            patience_ms = job.settings.heartbeat_timeout_ms if task_manager.is_alive else START_TIMEOUT_MS
            if task_manager.num_unanswered * job.settings.heartbeat_interval_ms >= patience_ms:
                reason = f"no sign of life for {patience_ms / 1_000:g} s"
                self.log.add(now_ms, task_manager.host, f"killed: {reason}")
                task_manager.is_ending, task_manager.reason = True, reason
                task_manager.is_silent = True
                commands.append(KillHost(task_manager.host, reason))
                continue
            task_manager.num_unanswered += 1
            commands.append(PingHost(task_manager.host))
        return commands + self._stand_in(job, now_ms)

    def _stand_in(self, job: _Job, now_ms: int) -> list[Command]:
        """Spawn others beside TaskManagers that have been silent since their start; whichever comes first serves.

        Those are not killed: they may only be slow, or wait for room. After each stand-in that is silent, too, the next
        one is waited for twice as long. A cluster that launches nodes would launch one for each.
        """
        if self._report is not None and self._report.scales:
            return []
        settings = job.settings
        patience_ms = min(settings.heartbeat_timeout_ms, settings.slot_request_timeout_ms // 2) << job.num_stand_ins
        commands: list[Command] = []
        for silent in list(job.task_managers.values()):
            is_silent = silent.num_unanswered * settings.heartbeat_interval_ms >= max(patience_ms, 1)
            if (
                silent.is_alive
                or silent.is_ending
                or silent.has_stand_in
                or not is_silent
                or not self._has_room(silent)
            ):
                continue
            silent.has_stand_in = True
            spawned = self._spawn(job, silent.num_slots, now_ms)
            seconds = silent.num_unanswered * settings.heartbeat_interval_ms / 1_000
            text = f"TaskManager {silent.host} has been silent since its start, for {seconds:g} s: requests another one"
            self.log.add(now_ms, silent.host, f"{spawned.host} stands in for it")
            commands += [spawned, Send(job.job_manager, StandInRequested(job.job_id, job.epoch, text))]
        job.num_stand_ins += bool(commands)
        return commands

    def _has_room(self, task_manager: _TaskManagerHost) -> bool:
        """Whether one more like it is within the cluster's bound."""
        spawned = sum(job.num_slots_spawned for job in self._jobs.values())
        return not self._settings.max_slots or spawned + task_manager.num_slots <= self._settings.max_slots

    def _on_pinged(self, event: HostPinged, now_ms: int) -> list[Command]:
        found = self._find(event.host)
        if found is None:
            return []
        job, task_manager = found
        task_manager.num_unanswered = 0
        task_manager.is_alive = True
        return self._located(job, task_manager, event.node, now_ms)

    def _on_terminated(self, event: HostTerminated, now_ms: int) -> list[Command]:
        found = self._find(event.host)
        if found is None:
            return []
        job, task_manager = found
        del job.task_managers[event.host]
        node = task_manager.node or event.node
        reason = task_manager.reason or event.reason
        self.log.add(now_ms, event.host, f"gone: {reason}")
        if job.is_released:
            return self._forget_if_released(job, now_ms)
        commands: list[Command] = [Send(job.job_manager, TaskManagerLost(job.job_id, event.host, reason, node))]
        if task_manager.is_silent or not task_manager.is_ending:
            commands += self._count_failure(job, node, now_ms)
        if task_manager.is_registered or task_manager.is_given_back:
            commands += self._spawn_missing(job, now_ms) + self._look()
        else:
            job.num_failed_starts += 1
            job.is_waiting = True
            delay_ms = min(500 * 2 ** (job.num_failed_starts - 1), MAX_RESPAWN_DELAY_MS)
            commands.append(StartTimer(f"spawn-{job.job_id}", delay_ms, _SpawnDue(job.job_id)))
        return commands + (self._serve_others(job, now_ms) if task_manager.is_given_back else [])

    # ----------------------------------------------------------------------------------------------------------- nodes
    def _located(self, job: _Job, task_manager: _TaskManagerHost, node: str, now_ms: int) -> list[Command]:
        """Note where a TaskManager is, maybe for the first time. If that is a blocked node, no other one had room."""
        if task_manager.node or not node:
            return []
        task_manager.node = node
        self.log.add(now_ms, task_manager.host, f"is on node {node}")
        # One that was spawned before the block did not have to avoid the node.
        if node not in task_manager.avoids or not self._blocklist.lift(node, now_ms):
            return []
        text = f"node {node} is no longer blocked: no other node had room for TaskManager {task_manager.host}"
        return [self._note(job, text, now_ms)]

    def _count_failure(self, job: _Job, node: str, now_ms: int) -> list[Command]:
        """Count the death of a process on a node; at worst that is blocked now."""
        num_failures = self._blocklist.fail(node, now_ms)
        if not num_failures:
            return []
        seconds = self._settings.node_block_ms / 1_000
        text = f"node {node} is blocked for {seconds:g} s: {num_failures} processes on it have died"
        return [self._note(job, text, now_ms)]

    def _on_slot_failed(self, message: SlotFailed, now_ms: int) -> list[Command]:
        found = self._find(message.task_manager)
        if found is None:
            return []
        job, task_manager = found
        if job.is_released or task_manager.is_ending:
            return []
        node = message.node or task_manager.node
        commands = self._count_failure(job, node, now_ms)
        if node not in self._blocklist.blocked(now_ms):
            return []
        # Its next slot would start in the same bad place.
        task_manager.is_ending, task_manager.reason = True, "its node is blocked"
        self.log.add(now_ms, task_manager.host, f"killed: {task_manager.reason}")
        return [*commands, KillHost(task_manager.host, task_manager.reason)]

    def _note(self, job: _Job, text: str, now_ms: int) -> Send:
        self.log.add(now_ms, f"job {job.job_id}", text)
        return Send(job.job_manager, JobNote(job.job_id, text))

    # --------------------------------------------------------------------------------------------------------- release
    def _on_release(self, message: ReleaseJob, now_ms: int) -> list[Command]:
        job = self._jobs.get(message.job_id)
        if job is not None and message.epoch < job.epoch:
            return []
        self._released[message.job_id] = None
        if len(self._released) > MAX_RELEASED:
            del self._released[next(iter(self._released))]
        return [] if job is None else self._release(job, now_ms)

    def _release(self, job: _Job, now_ms: int) -> list[Command]:
        if job.is_released:
            return []
        self.log.add(now_ms, f"job {job.job_id}", "released")
        job.is_released = True
        commands: list[Command] = [CancelTimer(f"spawn-{job.job_id}"), CancelTimer(f"pings-{job.job_id}")]
        for task_manager in job.task_managers.values():
            task_manager.is_ending = True
            commands.append(StopHost(task_manager.host))
        commands.append(StartTimer(f"release-{job.job_id}", RELEASE_TIMEOUT_MS, _ReleaseTimedOut(job.job_id)))
        return commands + self._forget_if_released(job, now_ms)

    def _on_release_timed_out(self, timer: _ReleaseTimedOut, _now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        if job is None or not job.is_released:
            return []
        kills: list[Command] = [KillHost(host, "it did not stop in time") for host in job.task_managers]
        return [*kills, StartTimer(f"release-{job.job_id}", RELEASE_TIMEOUT_MS, _ReleaseTimedOut(job.job_id))]

    def _forget_if_released(self, job: _Job, now_ms: int) -> list[Command]:
        if job.task_managers:
            return []
        del self._jobs[job.job_id]
        commands: list[Command] = [CancelTimer(f"release-{job.job_id}")]
        return commands + self._serve_others(job, now_ms) + self._close_if_empty()

    def _serve_others(self, job: _Job, now_ms: int) -> list[Command]:
        """What a job has given back may be what another one waits for."""
        others = [other for other in self._jobs.values() if other is not job]
        return [command for other in others for command in self._spawn_missing(other, now_ms)]

    def _on_release_all(self, message: ReleaseAll, now_ms: int) -> list[Command]:
        self._closing_for = message.reply_to
        commands = [command for job in list(self._jobs.values()) for command in self._release(job, now_ms)]
        return commands + self._close_if_empty()

    def _close_if_empty(self) -> list[Command]:
        if self._closing_for is None or self._jobs:
            return []
        return [Send(self._closing_for, AllReleased())]
