"""A host's kernel: runs the machines of one host, be it a process, an object on a loop or a simulation.

The kernel owns everything between a machine's commands and the outside: mailbox, timers, the outbox that makes one
frame per destination and flush, the reliable links to other hosts, asks, children. It has no thread, clock or socket
of its own; an actor system calls `run_turn` whenever there is something to do and is called back through `HostSystem`
to move frames and to touch processes. So the three actor systems share every line that could get order or delivery
wrong.

A turn handles what is in the mailbox, fires due timers, and then gives each stepping machine that wants it one step.
What handling put into the outbox leaves before a step begins, because a step may run user code for seconds.

Invariant: a machine sees the messages of one sender in the order sent, each once; a machine that raises takes its
host down, and the reason is what the parent is told. Nothing here is thread-safe; a system calls it from one thread.

Source: `headrace.engine.kernel.machine`; Flink's ``MailboxProcessor`` (control before data, one bounded
action at a time).
"""

from __future__ import annotations

import functools
import heapq
import logging
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.engine.columns.rejected_records import RejectedRecords
from headrace.engine.errors import InternalError, raise_from_outside
from headrace.engine.functions.keys import KeySelector
from headrace.engine.kernel.event_log import EventLog, FetchStory
from headrace.engine.kernel.link import BARE, Frame, LinkReceiver, LinkSender, LinkTiming, Parcel
from headrace.engine.kernel.machine import (
    Address,
    Asked,
    CancelOffload,
    CancelTimer,
    Command,
    HostPinged,
    HostTerminated,
    KillHost,
    Machine,
    Offload,
    OffloadCompleted,
    PingHost,
    Reply,
    Send,
    SpawnHost,
    Started,
    StartTimer,
    StepOutcome,
    StopHost,
)
from headrace.engine.protocol.messages import RequestFailed
from headrace.engine.protocol.observation_messages import ObservedTask
from headrace.state.credentials import masked
from headrace.state.identifiers import ExecutionAttemptId, VertexId

from .host_system import HostSystem
from .log_files import EVENTS_LOGGER
from .record_samples import Tap

__all__ = ["HostKernel", "MachineFactory"]

_EVENTS = logging.getLogger(EVENTS_LOGGER)
"""The operational log: one line for each event of a control machine, at level INFO."""

MachineFactory = Callable[[Address], Machine]
"""Builds a machine on its host; gets the machine's own address."""

STOPPED = "stopped"
"""The reason of an orderly end."""

MAX_EVENTS_PER_TURN = 1_000
"""After so many events the outbox is flushed and steps get their turn, even if the mailbox is not empty."""

MAX_UNACKNOWLEDGED_FRAMES = 32
"""Received frames after which an acknowledgement waits no longer for a frame to ride on."""

LINGER_MS = 1_000
"""How long a host that stops in order waits for its last messages to be acknowledged."""


class _Cell:
    """A machine in its place."""

    __slots__ = ("handle", "log", "machine", "num_logged", "observe", "step", "step_wanted", "wake_at_ms")

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.handle: Callable[[Any, int], list[Command]] = machine.handle
        # What the machine notes, if it does; and how many events of that have been logged.
        log = getattr(machine, "log", None)
        self.log = log if isinstance(log, EventLog) else None
        self.num_logged = 0
        # None for a machine that only handles.
        self.step: Callable[[int], StepOutcome] | None = getattr(machine, "step", None)
        # What its tasks say of themselves, of a machine that has some.
        self.observe: Callable[[], list[ObservedTask]] | None = getattr(machine, "observe", None)
        # Whether a step is wanted now, and else at what time (epoch ms).
        self.step_wanted = False
        self.wake_at_ms: int | None = None


class _Peer:
    """Both directions between this host and another."""

    __slots__ = ("ack_at", "num_unacknowledged", "receiver", "sender")

    def __init__(self, sender: LinkSender) -> None:
        self.sender = sender
        self.receiver = LinkReceiver()
        # Frames had since the last acknowledgement went out, and when one is due at the latest (ticks).
        self.num_unacknowledged = 0
        self.ack_at: int | None = None


class HostKernel:
    """Runs the machines of one host.

    Args:
        name: The host's name; never used before.
        system: Moves frames and touches processes.
        timing: Of the links to other hosts.
    """

    def __init__(self, name: str, system: HostSystem, timing: LinkTiming = LinkTiming()) -> None:
        self.name = name
        # Why the host has ended; None while it lives. The system takes it down when it sees this.
        self.exit_reason: str | None = None
        self._system = system
        self._timing = timing
        self._point = system.point
        # Names of protocol points by message type, so that a point costs no string work.
        self._point_names: dict[tuple[str, type], str] = {}
        self._cells: dict[str, _Cell] = {}
        self._steppers: list[_Cell] = []
        # Events for machines, oldest first. One queue for all machines keeps the order of every pair of them.
        self._mailbox: deque[Parcel] = deque()
        # Messages for other hosts since the last flush, by host.
        self._outbox: dict[str, list[Parcel]] = {}
        self._peers: dict[str, _Peer] = {}
        # Hosts that are known to have ended: what still arrives from them or waits for them is dropped.
        self._gone: set[str] = set()
        # Peers with an acknowledgement to send, oldest first, and when to look at them next (ticks).
        self._owing: dict[str, None] = {}
        self._owing_at: int | None = None
        # When to look for retransmissions next (ticks); None while nothing is unacknowledged.
        self._retry_at: int | None = None
        # Running timers: (actor, key) -> (number, message); the heap also holds replaced ones, told by their number.
        self._timers: dict[tuple[str, str], tuple[int, Any]] = {}
        self._due: list[tuple[int, int, str, str]] = []
        self._count = 0
        # Replies wanted: ask id -> what to do with the answer.
        self._asks: dict[str, Callable[[Any], None]] = {}
        # Child host -> the machine that is its parent.
        self._children: dict[str, str] = {}
        # Pinged host -> the machines that want to know.
        self._pings: dict[str, list[str]] = {}
        self._ticks_ms = 0
        # The machine that is being run, for the reason of a death.
        self._current = ""
        # Set by an orderly end: from then on nothing is handled; the host lives until its last words are acknowledged.
        self._stopping = False
        self._linger_until: int | None = None
        self._executors: dict[type, Callable[[str, Any], None]] = {
            Reply: self._reply,
            StartTimer: self._start_timer,
            CancelTimer: self._cancel_timer,
            Offload: self._offload,
            CancelOffload: self._cancel_offload,
            SpawnHost: self._spawn,
            StopHost: self._stop_host,
            KillHost: self._kill_host,
            PingHost: self._ping_host,
        }

    # -------------------------------------------------------------------------------------------------- for the system
    def start(self, actors: tuple[tuple[str, MachineFactory], ...], node: str = "") -> None:
        """Build the machines and put `Started` into their mailboxes; called once, before the first turn.

        A factory that raises ends the host.

        Args:
            actors: Their names and factories.
            node: The machine this host runs on; empty where there are no nodes.
        """
        try:
            for actor, build in actors:
                address = Address(self.name, actor)
                machine: Any = build(address)
                if hasattr(machine, "probe") and self._point is not None:
                    machine.probe = self._probe
                if hasattr(machine, "clock"):
                    machine.clock = self._system.clock
                if hasattr(machine, "monotonic_ms"):
                    machine.monotonic_ms = functools.partial(self._system.monotonic_ms, self.name)
                if hasattr(machine, "stopwatch_us"):
                    machine.stopwatch_us = functools.partial(self._system.stopwatch_us, self.name)
                if hasattr(machine, "processor_us"):
                    machine.processor_us = functools.partial(self._system.processor_us, self.name)
                cell = self._cells[actor] = _Cell(machine)
                if cell.step is not None:
                    self._steppers.append(cell)
                self._mailbox.append((actor, Started(address, node)))
        except BaseException as error:
            raise_from_outside(error)
            self._fail(f"machine {actor!r} could not be built", error)

    def receive(self, frame: Frame) -> None:
        """Take a frame from the network; its messages are handled in the next turn."""
        source = frame.source
        if source in self._gone or self.exit_reason is not None:
            return
        peer = self._peers.get(source) or self._meet(source)
        peer.sender.acknowledge(frame.ack, self._ticks_ms)
        retry_at = peer.sender.retry_at
        if retry_at is not None and (self._retry_at is None or retry_at < self._retry_at):
            self._retry_at = retry_at
        if frame.sequence != BARE:
            self._mailbox.extend(peer.receiver.receive(frame))
            peer.num_unacknowledged += 1
            self._owing[source] = None

    def post(self, actor: str, event: Any) -> None:
        """Put an event of the system into a machine's mailbox."""
        self._mailbox.append((actor, event))

    def ask(self, actor: str, request: Any, on_reply: Callable[[Any], None]) -> None:
        """Put a client's question to a machine; ``on_reply`` is called with its first answer, in some later turn.

        A machine that is not there is answered for with `RequestFailed`.
        """
        cell = self._cells.get(actor)
        if cell is not None and cell.log is not None and isinstance(request, FetchStory):
            on_reply(cell.log.story(request.about))
            return
        if cell is None:
            message = "there is no such machine on this host"
            on_reply(RequestFailed(InternalError(message, machine=actor, host=self.name)))
            return
        self._count += 1
        ask_id = f"{self.name}/{self._count}"
        self._asks[ask_id] = on_reply
        self._mailbox.append((actor, Asked(ask_id, request)))

    def child_terminated(self, host: str, reason: str, node: str = "") -> None:
        """Tell the parent machine of a child that it has ended. Called once for each child."""
        actor = self._children.pop(host, None)
        self._gone.add(host)
        self._peers.pop(host, None)
        self._owing.pop(host, None)
        self._pings.pop(host, None)
        if actor is not None:
            self._mailbox.append((actor, HostTerminated(host, reason, node)))

    def pinged(self, host: str, step_ms: int, doing: str, pid: int | None = None, node: str = "") -> None:
        """Tell the machines that asked that a pinged host has answered."""
        for actor in self._pings.pop(host, ()):
            self._mailbox.append((actor, HostPinged(host, step_ms, doing, pid, node)))

    def abandon(self, host: str) -> None:
        """Keep no more frames for a host that is not a child, as it is known to be gone for good."""
        if host in self._peers:
            self._peers[host].sender.close()

    def stop(self) -> None:
        """End in order, as if a machine had given `StopHost`."""
        self._stopping = True

    @property
    def doing(self) -> str:
        """What the current step is doing, as the machines say it."""
        return next((cell.machine.doing for cell in self._steppers if getattr(cell.machine, "doing", "")), "")

    def observe(self) -> list[ObservedTask]:
        """Return what tasks of this host say of themselves now; alone of all here it may be called from another
        thread.
        """
        return [task for cell in list(self._steppers) if cell.observe is not None for task in cell.observe()]

    def tap(self, vertex: VertexId, edge_id: int, tap: Tap | None) -> list[ExecutionAttemptId]:
        """Have a call made for each message on an exchange; see `headrace.actors.hosts.record_samples`. As `observe` it
        may be called from another thread.
        """
        return [attempt for slot in self._slots() for attempt in slot.tap(vertex, edge_id, tap)]

    def key_selector(self, vertex: VertexId, edge_id: int) -> KeySelector | None:
        """By what tasks find keys; see `headrace.actors.hosts.hot_keys`. It may be called as `tap`."""
        found = (slot.key_selector(vertex, edge_id) for slot in self._slots())
        return next((one for one in found if one is not None), None)

    def rejected(self, vertex: VertexId) -> list[tuple[ExecutionAttemptId, str, str, RejectedRecords]]:
        """Return what operators keep of what they reject; see `headrace.actors.hosts.record_samples`. It may be called
        as `tap`.
        """
        return [found for slot in self._slots() for found in slot.rejected(vertex)]

    def _slots(self) -> list[Any]:
        return [cell.machine for cell in list(self._steppers) if hasattr(cell.machine, "tap")]

    @property
    def has_mail(self) -> bool:
        """Whether there is an event to handle."""
        return bool(self._mailbox)

    def wants_step(self, now_ms: int) -> bool:
        """Return whether one of the machines wants a step now."""
        return any(c.step_wanted or (c.wake_at_ms is not None and c.wake_at_ms <= now_ms) for c in self._steppers)

    @property
    def num_timers(self) -> int:
        """How many timers run."""
        return len(self._timers)

    @property
    def num_unacknowledged(self) -> int:
        """How many frames wait for an acknowledgement."""
        return sum(len(peer.sender) for peer in self._peers.values())

    def backlog(self, host: str) -> int:
        """Return how many frames for another host wait for their acknowledgement."""
        return len(self._peers[host].sender) if host in self._peers else 0

    def run_turn(self, now_ms: int, ticks_ms: int, *, may_step: bool = True) -> int | None:
        """Handle what is there and give stepping machines one step.

        Args:
            now_ms: Epoch milliseconds UTC.
            ticks_ms: Milliseconds of a clock that never goes back; timers run on it.
            may_step: False to leave steps for another turn.

        Returns:
            When the next turn is wanted, in milliseconds from now: 0 at once (also when the host has ended, see
            ``exit_reason``), None when something arrives.
        """
        if self.exit_reason is not None:
            return 0
        self._ticks_ms = ticks_ms
        try:
            if self._linger_until is None:
                self._handle_mail(now_ms)
                if self._due and self._due[0][0] <= ticks_ms:
                    self._fire_timers()
                    self._handle_mail(now_ms)
                if self._stopping:
                    self._close()
                elif may_step:
                    self._step(now_ms)
            self._flush()
        except BaseException as error:
            raise_from_outside(error)
            self._fail(f"machine {self._current!r} failed", error)
            return 0
        return self._wait_ms(now_ms)

    # ------------------------------------------------------------------------------------------------------ one turn
    def _handle_mail(self, now_ms: int) -> None:
        mailbox = self._mailbox
        cells = self._cells
        point = self._point
        for _ in range(min(len(mailbox), MAX_EVENTS_PER_TURN)) if mailbox else ():
            actor, event = mailbox.popleft()
            cell = cells.get(actor)
            if cell is None:
                continue  # a message for a machine that was never here: stale, as any other
            if point is not None:
                point(self.name, self._point_name("recv.", event))
            cell.step_wanted = True
            self._current = actor
            commands = cell.handle(event, now_ms)
            if commands:
                self._execute(actor, commands)
            if cell.log is not None and cell.log.num_events != cell.num_logged:
                self._log_events(cell, cell.log)

    def _fire_timers(self) -> None:
        while self._due and self._due[0][0] <= self._ticks_ms:
            _, number, actor, key = heapq.heappop(self._due)
            running = self._timers.get((actor, key))
            if running is not None and running[0] == number:
                del self._timers[actor, key]
                self._mailbox.append((actor, running[1]))

    def _step(self, now_ms: int) -> None:
        for actor, cell in self._cells.items():
            if cell.step is None:
                continue
            if cell.step_wanted or (cell.wake_at_ms is not None and cell.wake_at_ms <= now_ms):
                if self._outbox:
                    self._flush()
                self._current = actor
                outcome = cell.step(now_ms)
                cell.step_wanted = outcome.runnable
                cell.wake_at_ms = outcome.wake_at_ms
                if outcome.commands:
                    self._execute(actor, outcome.commands)

    def _execute(self, actor: str, commands: list[Command]) -> None:
        point = self._point
        outbox = self._outbox
        for command in commands:
            if type(command) is Send:
                if point is not None:
                    point(self.name, self._point_name("send.", command.message))
                host, receiver = command.to
                if host == self.name:
                    self._mailbox.append((receiver, command.message))
                elif host in outbox:
                    outbox[host].append((receiver, command.message))
                else:
                    outbox[host] = [(receiver, command.message)]
            else:
                if point is not None:
                    point(self.name, self._point_name("do.", command))
                self._executors[type(command)](actor, command)

    def _flush(self) -> None:
        """Send the outbox, overdue acknowledgements and retransmissions."""
        ticks_ms = self._ticks_ms
        point = self._point
        if self._outbox:
            outbox, self._outbox = self._outbox, {}
            for host, parcels in outbox.items():
                peer = self._peers.get(host)
                if peer is None:
                    if host in self._gone:
                        continue
                    peer = self._meet(host)
                sender = peer.sender
                if sender.is_closed:
                    continue
                frame = sender.send(tuple(parcels), peer.receiver.expected, ticks_ms)
                retry_at = sender.retry_at
                if retry_at is not None and (self._retry_at is None or retry_at < self._retry_at):
                    self._retry_at = retry_at
                if peer.num_unacknowledged:
                    self._acknowledged(host, peer)
                if point is not None:
                    point(self.name, "transmit")
                if not self._system.transmit(frame, again=False):
                    sender.close()
        if self._owing:
            self._pay_acknowledgements()
        if self._retry_at is not None and self._retry_at <= ticks_ms:
            self._retransmit()

    def _pay_acknowledgements(self) -> None:
        ticks_ms = self._ticks_ms
        wanted: int | None = None
        for host in list(self._owing):
            peer = self._peers[host]
            if peer.ack_at is None:
                peer.ack_at = ticks_ms + self._timing.ack_delay_ms
            if peer.ack_at <= ticks_ms or peer.num_unacknowledged >= MAX_UNACKNOWLEDGED_FRAMES:
                self._acknowledged(host, peer)
                self._system.transmit(peer.receiver.bare(self.name, host), again=False)
            elif wanted is None or peer.ack_at < wanted:
                wanted = peer.ack_at
        self._owing_at = wanted

    def _acknowledged(self, host: str, peer: _Peer) -> None:
        peer.num_unacknowledged = 0
        peer.ack_at = None
        self._owing.pop(host, None)

    def _retransmit(self) -> None:
        wanted: int | None = None
        for host, peer in self._peers.items():
            sender = peer.sender
            if sender.retry_at is None:
                continue
            for frame in sender.retransmit(peer.receiver.expected, self._ticks_ms):
                self._acknowledged(host, peer)
                if not self._system.transmit(frame, again=True):
                    sender.close()
                    break
            if sender.retry_at is not None and (wanted is None or sender.retry_at < wanted):
                wanted = sender.retry_at
        self._retry_at = wanted

    def _wait_ms(self, now_ms: int) -> int | None:
        if self._linger_until is not None:
            if not self.num_unacknowledged or self._ticks_ms >= self._linger_until:
                self.exit_reason = STOPPED
                return 0
        elif self._mailbox or self._stopping:
            return 0
        waits: list[int] = []
        for cell in self._steppers:
            if cell.step_wanted:
                return 0
            if cell.wake_at_ms is not None:
                waits.append(cell.wake_at_ms - now_ms)
        due = self._due
        while due and self._timers.get(due[0][2:], (None,))[0] != due[0][1]:
            heapq.heappop(due)  # replaced or canceled
        ticks_ms = self._ticks_ms
        if due:
            waits.append(due[0][0] - ticks_ms)
        if self._owing and self._owing_at is not None:
            waits.append(self._owing_at - ticks_ms)
        if self._retry_at is not None:
            waits.append(self._retry_at - ticks_ms)
        if self._linger_until is not None:
            waits.append(self._linger_until - ticks_ms)
        return max(0, min(waits)) if waits else None

    # ------------------------------------------------------------------------------------------------------- commands
    def _reply(self, _actor: str, command: Reply) -> None:
        on_reply = self._asks.pop(command.ask_id, None)
        if on_reply is not None:
            on_reply(command.value)

    def _start_timer(self, actor: str, command: StartTimer) -> None:
        self._count += 1
        self._timers[actor, command.key] = (self._count, command.message)
        heapq.heappush(self._due, (self._ticks_ms + command.delay_ms, self._count, actor, command.key))

    def _cancel_timer(self, actor: str, command: CancelTimer) -> None:
        self._timers.pop((actor, command.key), None)

    def _offload(self, actor: str, command: Offload) -> None:
        self._system.offload(self.name, actor, command)

    def _cancel_offload(self, actor: str, command: CancelOffload) -> None:
        self._system.cancel_offload(self.name, actor, command)

    def _spawn(self, actor: str, command: SpawnHost) -> None:
        if command.host in self._children or command.host in self._gone:
            message = "a host's name must be fresh"
            raise InternalError(message, host=command.host, parent=self.name)
        self._children[command.host] = actor
        self._system.spawn(self.name, command)

    def _stop_host(self, _actor: str, command: StopHost) -> None:
        if command.host is None or command.host == self.name:
            self._stopping = True
        elif command.host in self._children:
            self._system.stop(self.name, command.host)

    def _kill_host(self, _actor: str, command: KillHost) -> None:
        if command.host in self._children:
            self._system.kill(self.name, command.host, command.reason)

    def _ping_host(self, actor: str, command: PingHost) -> None:
        if command.host in self._gone:
            return
        asking = self._pings.setdefault(command.host, [])
        if actor not in asking:
            asking.append(actor)
        self._system.ping(self.name, command.host)

    # --------------------------------------------------------------------------------------------------------- inside
    def _meet(self, host: str) -> _Peer:
        peer = self._peers[host] = _Peer(LinkSender(self.name, host, self._timing))
        return peer

    def _probe(self, name: str) -> None:
        if self._point is not None:
            self._point(self.name, name)

    def _point_name(self, prefix: str, event: Any) -> str:
        """E.g. ``recv.TriggerCheckpoint``; offloaded work adds its own name."""
        key = (prefix, type(event))
        name = self._point_names.get(key)
        if name is None:
            name = self._point_names[key] = prefix + type(event).__name__
        return f"{name}.{event.name}" if isinstance(event, (Offload, OffloadCompleted)) else name

    def _log_events(self, cell: _Cell, log: EventLog) -> None:
        """Write what a machine has noted since the last time, if anybody wants to know."""
        num_new, cell.num_logged = log.num_events - cell.num_logged, log.num_events
        if _EVENTS.isEnabledFor(logging.INFO):
            for line in log.newest(num_new):
                _EVENTS.info("host=%s %s", self.name, line)

    def _close(self) -> None:
        """Begin the orderly end: machines let go, last words are sent."""
        self._linger_until = self._ticks_ms + LINGER_MS
        self._mailbox.clear()
        self._timers.clear()
        for cell in self._cells.values():
            cell.step_wanted = False
            cell.wake_at_ms = None
            close = getattr(cell.machine, "close", None)
            if close is not None:
                close()

    def _fail(self, what: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # What a machine meets may quote anything, and the reason goes to views and logs.
        self.exit_reason = masked(f"{what} on host {self.name}: {error!r}\n{trace}")
