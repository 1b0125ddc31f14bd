"""The simulator: all hosts in one thread, under virtual time, with a cluster's every fault, from one seed.

It runs the same kernels and machines as production and decides everything that production leaves to chance: how long
a frame travels, whether it is lost, doubled or overtaken, when offloaded work runs and when its end is heard, when a
host dies - at a named protocol point, or at any moment - or stops and wakes up as a zombie that does not know it was
given up. What comes after a death takes time, too: the parent hears of it late, and the children of the dead go on
for a while.

The same seed and plan give the same run, event for event; ``digest`` says so. A run that ends in no answer raises
`SimulationHangError` with the last events as its story.

A frozen host does its offloaded work when it wakes, long given up, and even a dead one's may be done (a write on its
way to the store cannot be called back): the test of every fence. What the simulator does not do: lose commands
between parent and child (spawn, stop, kill, ping); an operating system does not lose those, it is only slow.

Source: FoundationDB's simulation testing; Jepsen's nemesis.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import zlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from headrace.engine.errors import InternalError, raise_from_outside
from headrace.engine.kernel.link import Frame, LinkTiming
from headrace.engine.kernel.machine import Address, CancelOffload, Offload, OffloadCompleted, SpawnHost

from ..hosts.host import HostKernel, MachineFactory
from ..hosts.host_system import AskTimedOutError, HostGoneError
from ..hosts.interrupts import Interrupts
from .faults import FaultPlan, Range
from .processes import HostKilled, OffloadedWorks, SimHost, build_checked, copied
from .story import Story

__all__ = ["EPOCH_MS", "HostKilled", "SimSystem", "SimulationHangError"]

EPOCH_MS = 1_700_000_000_000
"""When every simulation begins: 2023-11-14T22:13:20Z.
"""

MAX_VIRTUAL_MS = 3_600_000
MAX_EVENTS = 5_000_000


class SimulationHangError(InternalError):
    """A simulated run did not come to what it was run for; the text ends with its last events."""


class SimSystem:
    """Simulated hosts.

    Args:
        seed: Decides everything that is random.
        faults: What goes wrong.
        timing: Of the links.
        max_events: How many events may pass within one `ask` or `run_for`: more is a hang.
        run: Part of the jobs' ids, which are the same in every run without it: needed where what jobs leave in
            directories and databases outlives the run.
    """

    name = "sim"

    def __init__(
        self,
        seed: int = 0,
        faults: FaultPlan = FaultPlan(),
        timing: LinkTiming = LinkTiming(),
        max_events: int = MAX_EVENTS,
        run: str = "",
    ) -> None:
        self.seed = seed
        self._job_suffix = f"-{run}" if run else ""
        self.faults = faults
        self.max_events = max_events
        self.point: Callable[[str, str], None] | None = self._on_point
        # How often each protocol point was passed, over all hosts and over those that may die.
        self.points: Counter[str] = Counter()
        self.mortal_points: Counter[str] = Counter()
        # How many hosts were killed and frozen by the plan.
        self.num_kills = 0
        self.num_freezes = 0
        # The protocol points at which hosts were killed, in order, each with its occurrence as in `FaultPlan.kills_at`.
        self.killed_at: list[tuple[str, int]] = []
        # Asked at each point that a host passes that may die, if it is set: whether the host dies there.
        self.strikes: Callable[[str], bool] | None = None
        self._timing = timing
        self._random = Random(seed)
        # What steps are measured with, and where that comes from: no draw of it changes another.
        self._stopwatch_us = 0
        self._stopwatch_random = Random(f"stopwatch-{seed}")
        # Microseconds since the beginning; and how much later it is in the turn under way, see `work`.
        self._now = self._worked_us = 0
        # (time, number, what to do, its arguments); the number makes equal times an order.
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._hosts: dict[str, SimHost] = {}
        self._dead: set[str] = set()
        # Which occurrences of points on mortal hosts kill.
        self._kills_at = set(faults.kills_at)
        self._story = Story()
        self._num_jobs = 0
        # Works of user functions that have not begun: what can still be cancelled.
        self._cancellable: set[tuple[str, str, str, Any]] = set()
        self._works = OffloadedWorks()
        for _ in range(faults.random_kills):
            self._at(self._draw(faults.fault_window_ms), self._kill_any)
        for _ in range(faults.freezes):
            self._at(self._draw(faults.fault_window_ms), self._freeze_any)
        # Hosts put on a node so far.
        self._num_placed = 0
        for _ in range(faults.node_deaths):
            self._at(self._draw(faults.fault_window_ms), self._kill_any_node)

    # ----------------------------------------------------------------------------------------------------- for the user
    @property
    def digest(self) -> str:
        """A checksum of everything that has happened so far."""
        return self._story.digest

    @property
    def num_events(self) -> int:
        """How many events have been planned so far."""
        return self._count

    @property
    def now_ms(self) -> float:
        """Virtual milliseconds since the beginning."""
        return self._now / 1_000

    @property
    def hosts(self) -> list[str]:
        """The hosts that live, oldest first."""
        return [host.name for host in self._hosts.values() if host.is_alive]

    def story(self) -> str:
        """Return the last events: virtual time, host, event."""
        return self._story.text()

    def fresh_id(self) -> str:
        """Return an id for a job: no chance but the run's, so that runs repeat."""
        self._num_jobs += 1
        return f"job-{self._num_jobs:04d}{self._job_suffix}"

    def start(self, host: str, actors: tuple[tuple[str, MachineFactory], ...]) -> None:
        """Start a host that has no parent."""
        self._create(None, SpawnHost(host, actors))

    def ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask a machine and let the world go on until it answers.

        Raises:
            HostGoneError: If the host is not there, or ends before it answers.
            AskTimedOutError: If ``timeout_ms`` of virtual time pass first.
        """
        host = self._hosts.get(address.host)
        if host is None or not host.is_alive:
            raise _host_gone(address)
        answers: list[Any] = []
        self._at(self._draw(self.faults.travel_ms), self._deliver_ask, host, address.actor, request, answers)
        deadline = self._now + timeout_ms * 1_000
        self._run(lambda: bool(answers) or not host.is_alive, deadline, self.max_events)
        if answers:
            return answers[0]
        if not host.is_alive:
            raise _host_gone(address)
        message = f"no answer within {timeout_ms} ms of virtual time"
        raise AskTimedOutError(message, asked=str(address), request=type(request).__name__, seed=self.seed)

    def run_until(
        self, predicate: Callable[[], bool], max_virtual_ms: float = MAX_VIRTUAL_MS, max_events: int = MAX_EVENTS
    ) -> None:
        """Let the world go on until ``predicate`` holds; it is looked at after each event.

        Raises:
            SimulationHangError: If nothing is left to happen, or a limit is reached, before it does.
        """
        self._run(predicate, self._now + int(max_virtual_ms * 1_000), max_events)
        if not predicate():
            what = f"the run did not come to its end within {max_virtual_ms} ms of virtual time"
            raise self._hung(what)

    def run_for(self, virtual_ms: float) -> None:
        """Let the world go on for a while."""
        self._run(lambda: False, self._now + int(virtual_ms * 1_000), self.max_events)

    def wait(self, duration_ms: int) -> None:
        """Let the world go on for a while."""
        self.run_for(duration_ms)

    def elapsed_ms(self) -> int:
        """Return virtual milliseconds since the beginning."""
        return self._now // 1_000

    def run_in_background(self) -> None:
        """Do nothing: the simulated world goes on only while a question is asked."""

    def kill_now(self, host: str, reason: str = "killed by the test") -> None:
        """Kill a host at this moment."""
        self._die(self._hosts[host], reason)

    def freeze_now(self, host: str, duration_ms: float) -> None:
        """Stop a host for a while at this moment."""
        self._freeze(self._hosts[host], int(duration_ms * 1_000))

    def schedule(self, at_ms: float, action: Callable[[], None]) -> None:
        """Have something done at a moment of the run; what it raises ends the run."""
        self._at(int(at_ms * 1_000) - self._now, action)

    def work(self, duration_us: int) -> None:
        """Let the step that is under way take so much longer. Called by what stands in for costly user code."""
        self._worked_us += duration_us

    def longest_backlog(self) -> tuple[int, str]:
        """Return the most frames of one living host that another one has not acknowledged, and whose they are."""
        alive = [host for host in self._hosts.values() if host.is_alive]
        backlogs = (
            (host.kernel.backlog(peer.name), f"{host.name} for {peer.name}") for host in alive for peer in alive
        )
        return max(backlogs, default=(0, ""))

    def check_leaks(self, expected: tuple[str, ...] = ("head",)) -> None:
        """Assert that nothing but the expected hosts lives, and that they have nothing left to do.

        Raises:
            SimulationHangError: If something was left behind.
        """
        left = [name for name in self.hosts if name not in expected]
        if left:
            what = f"hosts were left behind: {', '.join(left)}"
            raise self._hung(what)
        for name in expected:
            host = self._hosts.get(name)
            if host is not None and host.is_alive and host.kernel.has_mail:
                what = f"host {name} has unhandled events"
                raise self._hung(what)

    def close(self) -> None:
        """End everything at once."""
        for host in self._hosts.values():
            host.is_alive = False
        self._events.clear()
        self._works.close()

    # ---------------------------------------------------------------------------------------------------- HostSystem
    def clock(self) -> int:
        """Return virtual epoch milliseconds."""
        return EPOCH_MS + (self._now + self._worked_us) // 1_000

    def monotonic_ms(self, host: str) -> int:
        """Return virtual milliseconds since some moment, another one for each host."""
        return self._now // 1_000 + zlib.crc32(host.encode()) % 10_000_000

    def stopwatch_us(self, host: str) -> int:
        """Return microseconds that work seems to take: any number of them, so that batches are cut anywhere."""
        self._stopwatch_us += self._stopwatch_random.choice(self.faults.stopwatch_us)
        return self._stopwatch_us

    def processor_us(self, host: str) -> int:
        """Nothing takes processor time here."""
        return 0

    def transmit(self, frame: Frame, *, again: bool) -> bool:
        """Send a frame into the weather."""
        faults = self.faults
        chance = self._random.random
        if faults.pickle_messages:
            frame = frame._replace(parcels=copied(frame.parcels))
        begins_ms, ends_ms = faults.weather_ms
        if not begins_ms <= self.now_ms < ends_ms:
            self._at(self._draw(faults.travel_ms), self._arrive, frame)
            return True
        if faults.loss and chance() < faults.loss:
            self._tell(frame.source, f"lost {frame.destination} #{frame.sequence}")
            return True
        copies = 2 if faults.duplication and chance() < faults.duplication else 1
        for _ in range(copies):
            held_up = faults.reordering and chance() < faults.reordering
            self._at(self._draw(faults.held_up_ms if held_up else faults.travel_ms), self._arrive, frame)
        return True

    def spawn(self, parent: str, command: SpawnHost) -> None:
        """Start a child process."""
        if command.host in self._hosts or command.host in self._dead:
            message = "a host's name must be fresh"
            raise InternalError(message, host=command.host, parent=parent)
        if self.faults.pickle_messages:
            command = SpawnHost(command.host, copied(command.actors), command.resources, command.avoid)
        self._create(None if command.resources.get("detached") else parent, command)

    def stop(self, parent: str, host: str) -> None:
        """Tell a child to end."""
        self._at(self._draw(self.faults.travel_ms), self._stop, host)

    def kill(self, parent: str, host: str, reason: str) -> None:
        """Kill a child, soon or late."""
        late = self.faults.late_kill and self._random.random() < self.faults.late_kill
        delay = self._draw(self.faults.late_kill_ms if late else self.faults.travel_ms)
        self._tell(host, f"to be killed: {reason}")
        self._at(delay, self._kill, host, reason)

    def ping(self, source: str, host: str) -> None:
        """Ask for a sign of life; the frozen and the dead do not answer."""
        self._at(self._draw(self.faults.travel_ms), self._ping_arrives, source, host)

    def offload(self, host: str, actor: str, work: Offload) -> None:
        """Do the work at some later time, tell its end later still."""
        if work.kind != "io":
            self._cancellable.add((host, actor, work.name, work.token))
        self._at(self._draw(self.faults.offload_ms), self._do_offloaded, self._hosts[host], actor, work)

    def cancel_offload(self, host: str, actor: str, command: CancelOffload) -> None:
        """Work that has not begun never will."""
        self._cancellable.discard((host, actor, command.name, command.token))

    # --------------------------------------------------------------------------------------------------------- events
    def _at(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + delay, self._count, action, arguments))

    def _draw(self, between_ms: Range) -> int:
        """Microseconds, evenly from a range of milliseconds."""
        low, high = between_ms
        return int((low + (high - low) * self._random.random()) * 1_000)

    def _run(self, predicate: Callable[[], bool], deadline: int, max_events: int) -> None:
        events = self._events
        with Interrupts() as interrupts:
            for _ in range(max_events):
                if predicate():
                    return
                if not events or events[0][0] > deadline:
                    self._now = deadline
                    return
                time, _, action, arguments = heapq.heappop(events)
                self._now = time
                interrupts.begin()
                action(*arguments)
                interrupts.end()
        what = f"{max_events} events passed without an end"
        raise self._hung(what)

    def _create(self, parent: str | None, command: SpawnHost) -> None:
        kernel = HostKernel(command.host, self, self._timing)
        host = self._hosts[command.host] = SimHost(command.host, parent, kernel, command.actors)
        if parent is not None:
            self._hosts[parent].children.append(command.host)
            host.node = self._place(self._hosts[parent], command)
            is_untold = self.faults.node_untold and self._random.random() < self.faults.node_untold
            host.told_node = "" if is_untold else host.node
        self._at(self._draw(self.faults.spawn_ms), self._begin, host)

    def _place(self, parent: SimHost, command: SpawnHost) -> str:
        """Choose a node: in turn, and one to be avoided only if there is no other."""
        if command.resources.get("colocate") or not self.faults.num_nodes:
            return parent.node
        self._num_placed += 1
        nodes = [f"node-{(self._num_placed + i) % self.faults.num_nodes}" for i in range(self.faults.num_nodes)]
        return next((node for node in nodes if node not in command.avoid), nodes[0])

    def node_of(self, host: str) -> str:
        """Return the node of a living host; empty if it is on none."""
        return self._hosts[host].node

    def _begin(self, host: SimHost) -> None:
        if not host.is_alive or self._defer(host, self._begin, host):
            return
        self._tell(host.name, "starts")
        host.started = True
        try:
            actors = tuple((actor, functools.partial(build_checked, build)) for actor, build in host.actors)
            host.kernel.start(actors, host.node)
        except HostKilled:
            self._die(host, "killed while starting")
            return
        self._wake(host)

    def _wake(self, host: SimHost, delay: int = 0) -> None:
        """Plan a turn, unless an earlier one is planned."""
        time = max(self._now + delay, host.busy_until, host.frozen_until)
        if host.started and host.is_alive and (host.turn_at is None or host.turn_at > time):
            host.turn_at = time
            self._at(time - self._now, self._turn, host, time)

    def _turn(self, host: SimHost, planned: int) -> None:
        if host.turn_at != planned or not host.is_alive:
            return  # replaced by an earlier one
        host.turn_at = None
        if host.frozen_until > self._now:
            self._wake(host)
            return
        kernel = host.kernel
        self._worked_us = 0
        try:
            wait_ms = kernel.run_turn(EPOCH_MS + self._now // 1_000, self._now // 1_000)
        except HostKilled:
            self._die(host, "killed by the plan")
            return
        finally:
            worked, self._worked_us = self._worked_us, 0
        if kernel.exit_reason is not None:
            self._die(host, kernel.exit_reason)
            return
        low, high = self.faults.step_us if wait_ms == 0 else self.faults.turn_us
        host.busy_until = self._now + worked + int(low + (high - low) * self._random.random())
        if wait_ms is not None:
            self._wake(host, wait_ms * 1_000)

    def _arrive(self, frame: Frame) -> None:
        host = self._hosts.get(frame.destination)
        if host is None or not host.is_alive or not host.started or self._defer(host, self._arrive, frame):
            return
        host.kernel.receive(frame)
        self._wake(host)

    def _deliver_ask(self, host: SimHost, actor: str, request: Any, answers: list[Any]) -> None:
        if not host.is_alive:
            return
        if not host.started:
            self._at(1_000, self._deliver_ask, host, actor, request, answers)
        elif not self._defer(host, self._deliver_ask, host, actor, request, answers):
            host.kernel.ask(actor, request, answers.append)
            self._wake(host)

    def _stop(self, name: str) -> None:
        host = self._hosts.get(name)
        if host is None or not host.is_alive:
            return
        if not host.started:
            self._die(host, "stopped")
        elif not self._defer(host, self._stop, name):
            host.kernel.stop()
            self._wake(host)

    def _kill(self, name: str, reason: str) -> None:
        host = self._hosts.get(name)
        if host is not None and host.is_alive:
            self._die(host, reason)

    def _ping_arrives(self, source: str, name: str) -> None:
        host = self._hosts.get(name)
        if host is None or not host.is_alive or not host.started or self._defer(host, self._ping_arrives, source, name):
            return
        step_ms = max(0, host.busy_until - self._now) // 1_000
        self._at(self._draw(self.faults.travel_ms), self._pong_arrives, source, name, step_ms, host.told_node)

    def _pong_arrives(self, source: str, name: str, step_ms: int, node: str) -> None:
        host = self._hosts.get(source)
        if host is None or not host.is_alive:
            return
        if not self._defer(host, self._pong_arrives, source, name, step_ms, node):
            host.kernel.pinged(name, step_ms, "simulated step" if step_ms else "", None, node)
            self._wake(host)

    def _do_offloaded(self, host: SimHost, actor: str, work: Offload) -> None:
        if not host.is_alive:
            self._do_stray(host, work)
            return
        if self._defer(host, self._do_offloaded, host, actor, work):
            return
        if work.kind != "io":
            key = (host.name, actor, work.name, work.token)
            if key not in self._cancellable:
                return
            self._cancellable.discard(key)
        slept = 0
        result: Any = None
        failure: BaseException | None = None
        try:
            self._on_point(host.name, f"io.{work.name}.before")
            try:
                result, slept = self._works.do(work)
            except BaseException as error:
                raise_from_outside(error)
                failure = error
            self._on_point(host.name, f"io.{work.name}.after")
        except HostKilled:
            self._die(host, f"killed by the plan during {work.name}")
            return
        completed = OffloadCompleted(work.name, work.token, result, failure)
        self._at(slept + self._draw(self.faults.completion_ms), self._completion_arrives, host, actor, completed)

    def _do_stray(self, host: SimHost, work: Offload) -> None:
        """A write that was on its way when its sender died."""
        if self.faults.stray_work and self._random.random() < self.faults.stray_work:
            self._tell(host.name, f"stray {work.name}")
            with contextlib.suppress(Exception, HostKilled, SystemExit, GeneratorExit):
                self._works.do(work)

    def _completion_arrives(self, host: SimHost, actor: str, completed: OffloadCompleted) -> None:
        if host.is_alive and not self._defer(host, self._completion_arrives, host, actor, completed):
            host.kernel.post(actor, completed)
            self._wake(host)

    def _notice(self, parent: SimHost, name: str, reason: str, node: str) -> None:
        if parent.is_alive and not self._defer(parent, self._notice, parent, name, reason, node):
            parent.kernel.child_terminated(name, reason, node)
            self._wake(parent)

    def _defer(self, host: SimHost, action: Callable[..., None], *arguments: Any) -> bool:
        """Put off what happens to a frozen host until it wakes; the order is kept."""
        if host.frozen_until <= self._now:
            return False
        self._at(host.frozen_until - self._now, action, *arguments)
        return True

    # --------------------------------------------------------------------------------------------------------- faults
    def _on_point(self, name: str, point: str) -> None:
        self.points[point] += 1
        self._tell(name, point)
        if name in self.faults.immortal:
            return
        self.mortal_points[point] += 1
        passing = (point, self.mortal_points[point])
        if passing in self._kills_at or (self.strikes is not None and self.strikes(point)):
            self.num_kills += 1
            self.killed_at.append(passing)
            raise HostKilled
        probability = self.faults.kill_probability
        if probability and self.num_kills < self.faults.max_kills and self._random.random() < probability:
            self.num_kills += 1
            raise HostKilled

    def _mortals(self) -> list[SimHost]:
        return [h for h in self._hosts.values() if h.is_alive and h.name not in self.faults.immortal]

    def _kill_any(self) -> None:
        mortals = self._mortals()
        if mortals:
            self.num_kills += 1
            self._die(mortals[int(self._random.random() * len(mortals))], "killed at random")

    def _kill_any_node(self) -> None:
        nodes = sorted({host.node for host in self._mortals() if host.node})
        if nodes:
            self.kill_node_now(nodes[int(self._random.random() * len(nodes))])

    def kill_node_now(self, node: str) -> None:
        """Give up everything on a node at this moment; it ends now, or a little later."""
        reason = f"{node} is lost"
        for host in [host for host in self._mortals() if host.node == node]:
            self.num_kills += 1
            leak = self._draw(self.faults.node_leak_ms)
            if not leak:
                self._die(host, reason)
                continue
            self._tell(host.name, f"is left behind on {node} for {leak / 1_000} ms")
            self._at(leak, self._kill, host.name, reason)
            parent = None if host.parent is None else self._hosts.get(host.parent)
            if parent is not None and parent.node != node:
                self._at(self._draw(self.faults.notice_ms), self._notice, parent, host.name, reason, host.told_node)

    def _freeze_any(self) -> None:
        mortals = self._mortals()
        if mortals:
            self._freeze(mortals[int(self._random.random() * len(mortals))], self._draw(self.faults.freeze_ms))

    def _freeze(self, host: SimHost, duration: int) -> None:
        self.num_freezes += 1
        self._tell(host.name, f"freezes for {duration / 1_000} ms")
        host.frozen_until = max(host.frozen_until, self._now + duration)

    def _die(self, host: SimHost, reason: str) -> None:
        self._tell(host.name, f"ends: {reason}")
        host.is_alive = False
        del self._hosts[host.name]
        self._dead.add(host.name)
        for child in host.children:
            self._at(self._draw(self.faults.orphan_ms), self._kill, child, f"its parent {host.name} has ended")
        parent = self._hosts.get(host.parent) if host.parent is not None else None
        if parent is not None:
            self._at(self._draw(self.faults.notice_ms), self._notice, parent, host.name, reason, host.told_node)

    # ---------------------------------------------------------------------------------------------------------- story
    def _tell(self, host: str, what: str) -> None:
        self._story.tell(self._now, host, what)

    def _hung(self, what: str) -> SimulationHangError:
        message = f"{what}; hosts alive: {', '.join(self.hosts) or 'none'}; the last events:\n{self.story()}\n"
        return SimulationHangError(message, seed=self.seed, virtual_ms=self._now // 1_000)


def _host_gone(address: Address) -> HostGoneError:
    message = "the host is gone"
    return HostGoneError(message, host=address.host)
