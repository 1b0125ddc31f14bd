"""A TaskManager: starts the slots of one job on one machine, supervises them, passes tasks on.

Two phases. *Registration*: announce itself to ResourceManager and JobManager, again and again until the JobManager
acknowledges; task messages are refused. *Operational*: tasks are passed on. A new leader, or a leader that has fallen
silent, sends it back to registration, and every slot process that has been given a task is replaced first: whatever
ran for the old leader must not go on.

Each slot is a process of its own. It is pinged, and answers even while user code runs; silence, or one step of user
code that takes too long, is its death. A dead slot is reported, replaced by a fresh process under a fresh name, and
announced again once that one lives. Deadlines are counted in rounds of pings, not read from the clock, so a jump of
the clock kills none.

Invariants: the announced slots are processes that have given a sign of life and have not been ordered to die; where
there are nodes, nothing is announced or reported lost without its node, for slots are beside their TaskManager, and
that knows its own node from its start; what it announces has been examined first, or could not be.

Source: Flink's ``TaskExecutor``, ``HeartbeatManager``; supervision as in Akka.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.state.files.local_directories import sweep_local_directories
from headrace.state.identifiers import JobId

from ..kernel.config import JobSettings
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
    Send,
    SpawnHost,
    Started,
    StartTimer,
    kind_of,
)
from ..kernel.slot_resources import Examine, MachineResources, managed_memory_bytes
from ..protocol.control_messages import RelayToSlot, SlotFailed
from ..protocol.messages import (
    AcknowledgeRegistration,
    FailTask,
    Heartbeat,
    JobManagerChanged,
    KillSlot,
    RegisterTaskManager,
    RequestHeartbeat,
    SlotLost,
)
from ..protocol.views import SlotInfo
from ..task.slot import SlotMachine

__all__ = ["TaskManager"]

SLOT_ACTOR = "slot"

SLOT_START_TIMEOUT_MS = 120_000
"""A process silent for this long from its start will stay so: importing libraries takes seconds, an image pull more.
The first ones have less time, as one that was stopped half-way is best replaced while the job still waits for slots.
"""

FIRST_PING_MS = 10
"""A starting slot is pinged after this, then at growing intervals, so that a quick start is seen quickly."""

MAX_RESPAWN_DELAY_MS = 10_000
"""Upper bound of the pause before a slot that died at its start is started again; it begins at 100 ms and doubles."""

REGISTRATION_RETRY_MS = 1_000

EXAMINE = "examine_machine"
EXAMINE_TIMEOUT_MS = 5_000
"""A disk that does not answer must not keep a TaskManager from its work: it goes on without the figures."""


class _Phase(Enum):
    REGISTRATION = "registration"
    OPERATIONAL = "operational"


class _SlotState(Enum):
    STARTING = "starting"
    LIVE = "live"
    DYING = "dying"  # ordered to die
    ABSENT = "absent"  # gone; a fresh process follows


@dataclass(slots=True)
class _Slot:
    index: int
    state: _SlotState = _SlotState.ABSENT
    # Counts the processes; part of the host's name, so that names are fresh.
    generation: int = 0
    host: str = ""
    # Its process id, once it has given a sign of life and if it has one.
    pid: int | None = None
    # The machine it is on, if there are several: the TaskManager's own.
    node: str = ""
    # Pings in a row without an answer.
    num_unanswered: int = 0
    # Waited for its first sign of life so far, and the next pause between two pings.
    waited_ms: int = 0
    next_ping_ms: int = FIRST_PING_MS
    # Deaths in a row before a first sign of life; and processes in a row that were killed as they gave none.
    num_failed_starts: int = 0
    num_silent_starts: int = 0
    # It was handed a task.
    is_used: bool = False
    # Why it was ordered to die, and whether for its silence.
    reason: str = ""
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class _RegistrationDue:
    pass


@dataclass(frozen=True, slots=True)
class _Examined:
    """Token of the offloaded look at the machine."""


@dataclass(frozen=True, slots=True)
class _ExamineTimedOut:
    pass


@dataclass(frozen=True, slots=True)
class _PingsDue:
    pass


@dataclass(frozen=True, slots=True)
class _FirstPingDue:
    index: int
    host: str


@dataclass(frozen=True, slots=True)
class _RespawnDue:
    index: int


@dataclass(frozen=True, slots=True)
class _LeaderSilent:
    serial: int


class TaskManager:
    """The machine.

    Args:
        address: Its own address; the host's name is the TaskManager's.
        job_id: The job it works for.
        resource_manager: Its parent.
        job_manager: The job's leader at the time it was spawned.
        epoch: That leader's epoch.
        num_slots: Slots to offer.
        settings: Of the job: heartbeats and time-outs.
        cpu_per_slot: Logical cores that a slot reserves in the cluster.
        managed_memory_bytes: Its managed memory, divided evenly over its slots; 0 for a part of the machine's memory.
        examine: Looks at the machine it is on; None leaves that unknown.
        keeps_rejected: Whether operators keep the last records that they reject, as the cluster shows records.
    """

    def __init__(
        self,
        address: Address,
        job_id: JobId,
        resource_manager: Address,
        job_manager: Address,
        epoch: int,
        num_slots: int,
        settings: JobSettings,
        cpu_per_slot: float = 1.0,
        managed_memory_bytes: int = 0,
        examine: Examine | None = None,
        *,
        keeps_rejected: bool = False,
    ) -> None:
        self.address = address
        self.job_id = job_id
        self.phase = _Phase.REGISTRATION
        self.log = EventLog(machine="TaskManager", job=job_id, epoch=epoch)
        self._resource_manager = resource_manager
        self._job_manager = job_manager
        self._epoch = epoch
        self._settings = settings
        self._cpu_per_slot = cpu_per_slot
        self._managed_memory_bytes = managed_memory_bytes
        self._examine = examine
        self._keeps_rejected = keeps_rejected
        # What it was found to have, and whether it has begun with that: before, it has no slots and announces nothing.
        self._machine: MachineResources | None = None
        self._resources: dict[str, float] = {}
        self._has_begun = False
        # The machine it is on; known from its start, empty where there are no nodes.
        self._node = ""
        self._slots = [_Slot(index) for index in range(num_slots)]
        # Number of the newest announcement; of the newest one acknowledged; and the one that leads out of registration.
        self._revision = 1
        self._acknowledged_revision = 0
        self._entry_revision = 1
        # Counts the leader's signs of life, so that a timer that one of them has overtaken is recognised.
        self._leader_serial = 0
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            Started: self._on_started,
            _Examined: self._on_examined,
            _ExamineTimedOut: self._on_examine_timed_out,
            AcknowledgeRegistration: self._on_acknowledged,
            RequestHeartbeat: self._on_heartbeat_requested,
            JobManagerChanged: self._on_leader_changed,
            RelayToSlot: self._on_relay,
            FailTask: self._on_fail_task,
            KillSlot: self._on_kill_slot,
            HostPinged: self._on_pinged,
            HostTerminated: self._on_terminated,
            _RegistrationDue: lambda _timer, _now_ms: self._announce_if_needed(),
            _PingsDue: self._on_pings_due,
            _FirstPingDue: self._on_first_ping_due,
            _RespawnDue: self._on_respawn_due,
            _LeaderSilent: self._on_leader_silent,
        }

    @property
    def name(self) -> str:
        """The TaskManager's name."""
        return self.address.host

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        handler = self._handlers.get(kind_of(event))
        return [] if handler is None else handler(event, now_ms)

    def _on_started(self, event: Started, now_ms: int) -> list[Command]:
        self._node = event.node
        for slot in self._slots:
            slot.node = event.node
        if self._examine is None:
            return self._begin(now_ms)
        look = functools.partial(self._examine, self._settings.state.local_directory)
        return [Offload(EXAMINE, _Examined(), look), StartTimer("examine", EXAMINE_TIMEOUT_MS, _ExamineTimedOut())]

    def _on_examined(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if self._has_begun:
            return []
        self._machine = event.result
        if event.error is not None:
            self.log.add(now_ms, "machine", f"could not be examined: {event.error}")
        return [CancelTimer("examine"), *self._begin(now_ms)]

    def _on_examine_timed_out(self, _timer: _ExamineTimedOut, now_ms: int) -> list[Command]:
        if self._has_begun:
            return []
        self.log.add(now_ms, "machine", "could not be examined in time")
        return self._begin(now_ms)

    def _begin(self, now_ms: int) -> list[Command]:
        """Start the slots, each with its share of the memory, and announce them."""
        self._has_begun = True
        num_slots = len(self._slots)
        memory = managed_memory_bytes(self._managed_memory_bytes, num_slots, self._cpu_per_slot, self._machine)
        self._resources = {
            "slots": float(num_slots),
            "cpu": num_slots * self._cpu_per_slot,
            "managed_memory_bytes": float(memory),
            "managed_memory_bytes_per_slot": float(memory // num_slots),
        }
        commands = [command for slot in self._slots for command in self._spawn(slot, now_ms)]
        return [*commands, StartTimer("pings", self._settings.heartbeat_interval_ms, _PingsDue()), *self._announce()]

    # ---------------------------------------------------------------------------------------------------- registration
    def _announce(self) -> list[Command]:
        """Tell both leaders what there is, and again later until the JobManager has acknowledged it."""
        if not self._has_begun:
            return []
        live = tuple(self._info(slot) for slot in self._slots if slot.state is _SlotState.LIVE)
        registration = RegisterTaskManager(
            self.job_id,
            self.name,
            self.address,
            self._epoch,
            live,
            dict(self._resources),
            self._revision,
            self._node,
            self._machine,
        )
        return [
            Send(self._resource_manager, registration),
            Send(self._job_manager, registration),
            StartTimer("registration", REGISTRATION_RETRY_MS, _RegistrationDue()),
        ]

    def _announce_if_needed(self) -> list[Command]:
        return self._announce() if self._acknowledged_revision < self._revision else []

    def _announce_change(self) -> list[Command]:
        self._revision += 1
        return self._announce()

    def _on_acknowledged(self, message: AcknowledgeRegistration, now_ms: int) -> list[Command]:
        if message.epoch != self._epoch or message.revision <= self._acknowledged_revision:
            return []
        if message.revision < self._entry_revision:
            return []  # of what was announced before the leader was lost
        self._acknowledged_revision = message.revision
        commands: list[Command] = []
        if self.phase is _Phase.REGISTRATION:
            self.phase = _Phase.OPERATIONAL
            self.log.add(now_ms, "phase", f"operational under epoch {self._epoch}")
            commands.append(self._leader_timer())
        if self._acknowledged_revision == self._revision:
            commands.append(CancelTimer("registration"))
        return commands

    def _on_leader_changed(self, message: JobManagerChanged, now_ms: int) -> list[Command]:
        if message.epoch <= self._epoch:
            return []
        self._job_manager, self._epoch = message.job_manager, message.epoch
        self.log.know(epoch=message.epoch)
        return self._register_anew("another JobManager leads the job", now_ms)

    def _on_leader_silent(self, timer: _LeaderSilent, now_ms: int) -> list[Command]:
        if self.phase is not _Phase.OPERATIONAL or timer.serial != self._leader_serial:
            return []
        return self._register_anew("the JobManager has fallen silent", now_ms)

    def _register_anew(self, reason: str, now_ms: int) -> list[Command]:
        self.phase = _Phase.REGISTRATION
        self.log.add(now_ms, "phase", f"registration: {reason}")
        commands: list[Command] = [CancelTimer("leader")]
        for slot in self._slots:
            if slot.is_used and slot.state in (_SlotState.STARTING, _SlotState.LIVE):
                commands += self._kill(slot, reason, now_ms)
        self._acknowledged_revision = self._revision
        self._entry_revision = self._revision + 1
        return commands + self._announce_change()

    def _leader_timer(self) -> StartTimer:
        self._leader_serial += 1
        return StartTimer("leader", self._settings.heartbeat_timeout_ms, _LeaderSilent(self._leader_serial))

    def _on_heartbeat_requested(self, message: RequestHeartbeat, _now_ms: int) -> list[Command]:
        if message.epoch != self._epoch:
            return []
        commands: list[Command] = [Send(message.sender, Heartbeat(self.job_id, self.name, message.nonce))]
        if self.phase is _Phase.OPERATIONAL:
            commands.append(self._leader_timer())
        return commands

    # ----------------------------------------------------------------------------------------------------------- tasks
    def _on_relay(self, message: RelayToSlot, now_ms: int) -> list[Command]:
        slot = self._find(message.slot_host)
        if message.epoch != self._epoch or slot is None or slot.state is not _SlotState.LIVE:
            return []  # the sender is deposed, or will hear of the slot's end
        if self.phase is not _Phase.OPERATIONAL:
            # Sent before the sender heard that it was given up: only the slot's end tells it that the task is lost.
            return self._kill(slot, "it was given a task while its TaskManager had no JobManager", now_ms)
        slot.is_used = True
        self.log.add(now_ms, slot.host, f"takes {message.message.deployment.attempt}")
        return [Send(Address(slot.host, SLOT_ACTOR), message.message)]

    def _on_fail_task(self, message: FailTask, now_ms: int) -> list[Command]:
        slot = self._find(message.slot_host)
        if message.epoch != self._epoch or slot is None or slot.state is not _SlotState.LIVE:
            return []
        self.log.add(now_ms, slot.host, f"is to fail {message.attempt}: {message.reason}")
        return [Send(Address(slot.host, SLOT_ACTOR), message)]

    def _on_kill_slot(self, message: KillSlot, now_ms: int) -> list[Command]:
        slot = self._find(message.slot_host)
        if message.epoch != self._epoch or slot is None or slot.state not in (_SlotState.STARTING, _SlotState.LIVE):
            return []
        return self._kill(slot, message.reason, now_ms)

    # ----------------------------------------------------------------------------------------------------- supervision
    def _find(self, host: str) -> _Slot | None:
        return next((slot for slot in self._slots if slot.host == host), None)

    def _info(self, slot: _Slot) -> SlotInfo:
        return SlotInfo(slot.index, Address(slot.host, SLOT_ACTOR), slot.pid, slot.node)

    def _spawn(self, slot: _Slot, now_ms: int) -> list[Command]:
        slot.generation += 1
        slot.host = f"{self.name}-slot-{slot.index}-{slot.generation}"
        slot.state = _SlotState.STARTING
        slot.is_used = slot.is_silent = False
        slot.num_unanswered = slot.waited_ms = 0
        slot.pid = None
        slot.next_ping_ms = FIRST_PING_MS
        self.log.add(now_ms, slot.host, "starting")
        share_bytes = int(self._resources["managed_memory_bytes_per_slot"])
        make = functools.partial(
            SlotMachine,
            parent=self.address,
            managed_memory_bytes=share_bytes,
            keeps_rejected=self._keeps_rejected,
        )
        actors = ((SLOT_ACTOR, make),)
        # The cores are the TaskManager's own reservation; a slot only has to be beside it.
        spawn = SpawnHost(slot.host, actors, {"cpu": 0.0, "colocate": 1.0})
        return [spawn, PingHost(slot.host), self._first_ping_timer(slot)]

    @staticmethod
    def _first_ping_timer(slot: _Slot) -> StartTimer:
        return StartTimer(f"first-ping-{slot.index}", slot.next_ping_ms, _FirstPingDue(slot.index, slot.host))

    def _on_first_ping_due(self, timer: _FirstPingDue, now_ms: int) -> list[Command]:
        slot = self._slots[timer.index]
        if slot.host != timer.host or slot.state is not _SlotState.STARTING:
            return []
        slot.waited_ms += slot.next_ping_ms
        first_ms = max(self._settings.slot_request_timeout_ms // 2, self._settings.heartbeat_interval_ms)
        patience_ms = min(first_ms << slot.num_silent_starts, SLOT_START_TIMEOUT_MS)
        if slot.waited_ms >= patience_ms:
            slot.num_silent_starts += 1
            slot.is_silent = patience_ms == SLOT_START_TIMEOUT_MS  # else its node is not to blame yet
            return self._kill(slot, f"no sign of life within {patience_ms / 1_000:g} s", now_ms)
        slot.next_ping_ms = min(2 * slot.next_ping_ms, self._settings.heartbeat_interval_ms)
        return [PingHost(slot.host), self._first_ping_timer(slot)]

    def _on_pings_due(self, _timer: _PingsDue, now_ms: int) -> list[Command]:
        interval_ms, timeout_ms = self._settings.heartbeat_interval_ms, self._settings.heartbeat_timeout_ms
        commands: list[Command] = [StartTimer("pings", interval_ms, _PingsDue())]
        for slot in self._slots:
            if slot.state is not _SlotState.LIVE:
                continue
            if slot.num_unanswered * interval_ms >= timeout_ms:
                slot.is_silent = True
                commands += self._kill(slot, f"no sign of life for {timeout_ms / 1_000:g} s", now_ms)
                continue
            slot.num_unanswered += 1
            commands.append(PingHost(slot.host))
        return commands

    def _on_pinged(self, event: HostPinged, now_ms: int) -> list[Command]:
        slot = self._find(event.host)
        if slot is None or slot.state not in (_SlotState.STARTING, _SlotState.LIVE):
            return []
        slot.num_unanswered = 0
        if slot.state is _SlotState.STARTING:
            slot.state = _SlotState.LIVE
            slot.pid, slot.node = event.pid, event.node or slot.node
            slot.num_failed_starts = slot.num_silent_starts = 0
            self.log.add(now_ms, slot.host, "live")
            return [CancelTimer(f"first-ping-{slot.index}"), *self._announce_change()]
        limit_ms = self._settings.step_timeout_ms
        if limit_ms and event.step_ms > limit_ms:
            return self._kill(slot, f"stuck in {event.doing or 'a step'} for {event.step_ms / 1_000:g} s", now_ms)
        return []

    def _kill(self, slot: _Slot, reason: str, now_ms: int) -> list[Command]:
        """Order a slot's death; its end is reported and answered by a fresh one when it has come."""
        self.log.add(now_ms, slot.host, f"killed: {reason}")
        slot.state = _SlotState.DYING
        slot.reason = reason
        return [CancelTimer(f"first-ping-{slot.index}"), KillHost(slot.host, reason)]

    def _on_terminated(self, event: HostTerminated, now_ms: int) -> list[Command]:
        slot = self._find(event.host)
        if slot is None or slot.state is _SlotState.ABSENT:
            return []
        was = slot.state
        reason = slot.reason if was is _SlotState.DYING else event.reason
        self.log.add(now_ms, slot.host, f"gone: {reason}")
        slot.node = event.node or slot.node
        lost = SlotLost(self.job_id, self._epoch, self.name, self._info(slot), reason)
        slot.state = _SlotState.ABSENT
        slot.reason = ""
        commands: list[Command] = [CancelTimer(f"first-ping-{slot.index}")]
        if was is not _SlotState.DYING or slot.is_silent:  # it may be the node's fault
            commands.append(Send(self._resource_manager, SlotFailed(self.job_id, self.name, slot.node)))
        state = self._settings.state
        if (
            state.backend != "heap"
        ):  # a slot that was killed leaves its databases behind; should this fail, the next sweeps
            sweep = functools.partial(sweep_local_directories, state.local_directory)
            commands.append(Offload("sweep_local_state", slot.host, sweep))
        if was is not _SlotState.STARTING:
            if self.phase is _Phase.OPERATIONAL:
                commands.append(Send(self._job_manager, lost))
            return [*commands, *self._spawn(slot, now_ms), *self._announce_change()]
        slot.num_failed_starts += 1
        delay_ms = min(100 * 2 ** (slot.num_failed_starts - 1), MAX_RESPAWN_DELAY_MS)
        return [*commands, StartTimer(f"respawn-{slot.index}", delay_ms, _RespawnDue(slot.index))]

    def _on_respawn_due(self, timer: _RespawnDue, now_ms: int) -> list[Command]:
        slot = self._slots[timer.index]
        return self._spawn(slot, now_ms) if slot.state is _SlotState.ABSENT else []
