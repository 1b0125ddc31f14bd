"""All hosts in one process, on one event loop: instant start, breakpoints, small jobs.

The hosts are the same kernels and machines as anywhere, the clock is real, offloaded work runs in threads and on an
event loop beside this one. This loop has no thread of its own: the thread that asks drives it until the answer is
there, so a breakpoint in a user function stops in the thread that called ``execute``. `run_in_background` gives it a
thread for programs that go on with something else meanwhile.

Before each step of a slot all messages anywhere in the process are handled. So supervision is never starved by user
code, whatever it takes, and timers run on ticks that do not count stalls: a step of a minute, or an hour in the
debugger, expires nothing.

What it cannot do: a user function that never returns cannot be killed, as there is no process to kill; `KillHost`
only drops a host between steps. There is one core. Source: Flink's ``MiniCluster``.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine.errors import InternalError
from headrace.engine.kernel.link import Frame, LinkTiming
from headrace.engine.kernel.machine import Address, CancelOffload, Offload, OffloadCompleted, SpawnHost
from headrace.engine.protocol.observation_messages import OBSERVER_ACTOR, ObservedTask

from ..hosts.host import HostKernel, MachineFactory
from ..hosts.host_system import (
    AskTimedOutError,
    HostGoneError,
    ProcessClocks,
    SteadyClock,
    Ticks,
)
from ..hosts.interrupts import Interrupts
from ..hosts.log_files import HostLogs
from ..hosts.observer import HostObserver, LoopThread
from ..hosts.offloads import OffloadPools

__all__ = ["LocalSystem"]

LOOK_AGAIN_S = 0.05
"""How often one who waits while another thread drives the loop looks whether it has to take over."""


class _LocalHost:
    """A host that is an object."""

    __slots__ = ("actors", "answers", "children", "kernel", "observer", "parent", "wake_at", "wants_step")

    def __init__(
        self,
        parent: str | None,
        kernel: HostKernel,
        actors: tuple[tuple[str, MachineFactory], ...],
        observer: HostObserver,
    ) -> None:
        self.parent = parent
        self.kernel = kernel
        self.observer = observer
        # What it will run; empty once started.
        self.actors = actors
        self.children: list[str] = []
        # Questions put to it that it may not have answered yet.
        self.answers: list[_Answer] = []
        # When its next turn is wanted (ticks); None if only when something arrives.
        self.wake_at: int | None = 0
        # Whether one of its machines wants a step.
        self.wants_step = False


class _Answer:
    """A question on its way."""

    __slots__ = ("done", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.done = threading.Event()

    def give(self, value: Any) -> None:
        self.value = value
        self.done.set()


class LocalSystem(ProcessClocks):
    """Hosts in this process.

    Args:
        timing: Of the links; nothing is ever lost here, so it hardly matters.
    """

    name = "local"
    point: Callable[[str, str], None] | None = None

    def __init__(self, timing: LinkTiming = LinkTiming(retry_ms=5_000)) -> None:
        self._timing = timing
        self._hosts: dict[str, _LocalHost] = {}
        self._used_names: set[str] = set()
        # Hosts with something to handle, in the order it came.
        self._with_mail: deque[str] = deque()
        self._queued: set[str] = set()
        # Hosts that want a step, in turn.
        self._steppers: deque[str] = deque()
        self.clock = SteadyClock()
        self._ticks = Ticks()
        self._ticks_ms = 0
        # What other threads want done on the loop; the condition wakes the loop.
        self._inbox: deque[Callable[[], None]] = deque()
        self._arrival = threading.Condition()
        # Held by the thread that drives the loop.
        self._driver = threading.Lock()
        # Which one that was last.
        self._driving: LoopThread | None = None
        self._background: threading.Thread | None = None
        self._offloads = OffloadPools(self._offload_ended)
        self._closed = False
        # What has ended the thread in the background, if anything has.
        self._failure: BaseException | None = None
        # What is logged, if somebody may want to read it.
        self._logs: HostLogs | None = None
        self._log_folder: tempfile.TemporaryDirectory[str] | None = None

    # ----------------------------------------------------------------------------------------------------- for the user
    @property
    def hosts(self) -> list[str]:
        """The hosts that live, oldest first."""
        return list(self._hosts)

    def fresh_id(self) -> str:
        """Return an id for a job."""
        return uuid.uuid4().hex

    def start(self, host: str, actors: tuple[tuple[str, MachineFactory], ...]) -> None:
        """Start a host that has no parent."""
        self._submit(lambda: self._create(None, SpawnHost(host, actors)))

    def ask(self, address: Address, request: Any, timeout_ms: int) -> Any:
        """Ask a machine; drives the loop until it answers, unless another thread does.

        Raises:
            HostGoneError: If the host is not there, or ends before it answers, or this system was closed.
            AskTimedOutError: If no answer comes within ``timeout_ms``.
            InternalError: If the thread in the background has ended.
        """
        if self._failure is not None:
            message = f"the thread that drove the local system has ended: {self._failure!r}"
            raise InternalError(message) from self._failure
        if address.actor == OBSERVER_ACTOR:
            return self._observe(address.host, request)
        answer = _Answer()
        self._submit(lambda: self._put_question(address, request, answer))
        self._drive_until(answer.done.is_set, time.monotonic() + timeout_ms / 1_000, answer.done)
        if not answer.done.is_set() and self._closed:
            message = "the local system was closed"
            raise HostGoneError(message, asked=str(address), request=type(request).__name__)
        if not answer.done.is_set():
            message = f"no answer within {timeout_ms} ms"
            raise AskTimedOutError(message, asked=str(address), request=type(request).__name__)
        if isinstance(answer.value, HostGoneError):
            raise answer.value
        return answer.value

    def _observe(self, name: str, request: Any) -> Any:
        """Look at a host from beside, in the thread that asks."""
        host = self._hosts.get(name)
        if host is None:
            raise _host_gone(name)
        return host.observer.answer(request)

    def wait(self, duration_ms: int) -> None:
        """Drive the loop for a while, or let another thread do so."""
        deadline = time.monotonic() + duration_ms / 1_000
        self._drive_until(lambda: False, deadline)

    def elapsed_ms(self) -> int:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def keep_logs(self) -> None:
        """Write what is logged in this process to a file, until `close`: one for all hosts."""
        self._log_folder = tempfile.TemporaryDirectory(prefix="headrace-logs-")
        folder = Path(self._log_folder.name)
        self._logs = HostLogs(folder, "local", self._observe_all, lambda: self._driving and self._driving.identifier)
        self._logs.start(sets_level=False)

    def _observe_all(self) -> list[ObservedTask]:
        return [task for host in list(self._hosts.values()) for task in host.kernel.observe()]

    def run_in_background(self) -> None:
        """Give the loop a thread of its own, until `close`. May be repeated."""
        if self._background is None and not self._closed:
            self._background = threading.Thread(target=self._drive_for_ever, name="headrace-local", daemon=True)
            self._background.start()

    def close(self) -> None:
        """Drop all hosts and threads. May be repeated."""
        self._closed = True
        if self._logs is not None and self._log_folder is not None:
            self._logs.close()
            self._log_folder.cleanup()
        with self._arrival:
            self._arrival.notify_all()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join(LOOK_AGAIN_S * 100)
        self._hosts.clear()
        self._inbox.clear()
        self._offloads.close()

    # ------------------------------------------------------------------------------------------------------- HostSystem
    def transmit(self, frame: Frame, *, again: bool) -> bool:
        """Hand a frame over."""
        host = self._hosts.get(frame.destination)
        if host is None:
            return frame.destination not in self._used_names  # else it has ended, and never comes back
        host.kernel.receive(frame)
        self._has_mail(frame.destination)
        return True

    def spawn(self, parent: str, command: SpawnHost) -> None:
        """Make a child; it starts in its first turn."""
        self._create(None if command.resources.get("detached") else parent, command)

    def stop(self, parent: str, host: str) -> None:
        """Let a child end in order."""
        if host in self._hosts:
            self._hosts[host].kernel.stop()
            self._has_mail(host)

    def kill(self, parent: str, host: str, reason: str) -> None:
        """Drop a child."""
        self._submit(lambda: self._end(host, reason))

    def ping(self, source: str, host: str) -> None:
        """Do nothing: all hosts share one loop, and live while it runs."""
        if host in self._hosts:
            self._submit(lambda: self._pong(source, host))

    def offload(self, host: str, actor: str, work: Offload) -> None:
        """Run it in a thread or on the event loop of coroutines."""
        self._offloads.run(host, actor, work)

    def cancel_offload(self, host: str, actor: str, command: CancelOffload) -> None:
        """Give it up."""
        self._offloads.cancel(host, actor, command)

    # --------------------------------------------------------------------------------------------------------- the loop
    def _submit(self, action: Callable[[], None]) -> None:
        """Have something done on the loop; from any thread."""
        with self._arrival:
            self._inbox.append(action)
            self._arrival.notify_all()

    def _drive_until(self, is_done: Callable[[], bool], deadline: float, done: threading.Event | None = None) -> None:
        """Drive the loop, or wait while another thread does, until done or past the deadline (monotonic seconds)."""
        done = done or threading.Event()
        while not is_done() and not self._closed:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            if self._driver.acquire(blocking=False):
                try:
                    with Interrupts() as interrupts:
                        self._drive(is_done, deadline, interrupts)
                finally:
                    self._driver.release()
            else:
                done.wait(min(left_s, LOOK_AGAIN_S))

    def _drive_for_ever(self) -> None:
        try:
            while not self._closed:
                with self._driver:
                    self._drive(lambda: False, None, Interrupts())
        except BaseException as error:  # the thread that asks must be told, and nothing may look alive
            self._failure = error
            for name in list(self._hosts):
                self._end(name, f"the thread that drove it has ended: {error!r}")
            raise

    def _drive(self, is_done: Callable[[], bool], deadline: float | None, interrupts: Interrupts) -> None:
        """Run turns until done, closed or past the deadline (monotonic seconds)."""
        self._driving = LoopThread.this()
        while not self._closed:
            with interrupts.held_up():
                for _ in range(len(self._inbox)):
                    self._inbox.popleft()()
            if is_done():
                return
            with interrupts.held_up():
                has_turn = self._next_turn()
            if not has_turn and not self._inbox:
                self._sleep(deadline)
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _next_turn(self) -> bool:
        """Do the next turn; gives whether there was one."""
        self._ticks_ms = self._ticks.advance()
        for name, host in self._hosts.items():
            if host.wake_at is not None and host.wake_at <= self._ticks_ms:
                self._has_mail(name)
        if not self._with_mail and not self._steppers:
            return False
        self._turn(may_step=not self._with_mail)
        return True

    def _sleep(self, deadline: float | None) -> None:
        wakes = [host.wake_at for host in self._hosts.values() if host.wake_at is not None]
        wait_ms = max(0, min(wakes) - self._ticks_ms) if wakes else 1_000
        if deadline is not None:
            wait_ms = min(wait_ms, max(0, int((deadline - time.monotonic()) * 1_000)) + 1)
        with self._arrival:
            if not self._inbox and not self._closed:
                self._arrival.wait(wait_ms / 1_000)
        self._ticks_ms = self._ticks.advance(wait_ms)

    def _turn(self, *, may_step: bool) -> None:
        """One turn of the host whose turn it is."""
        if may_step:
            name = self._steppers.popleft()
        else:
            name = self._with_mail.popleft()
            self._queued.discard(name)
        host = self._hosts.get(name)
        if host is None:
            return
        if may_step:
            host.wants_step = False
        kernel = host.kernel
        try:
            if host.actors:
                actors, host.actors = host.actors, ()
                kernel.start(actors)
            wait_ms = kernel.run_turn(self.clock(), self._ticks_ms, may_step=may_step)
        except BaseException:  # from outside: what it was doing is left half way, so it must not go on
            self._end(name, f"host {name} was interrupted in the middle of a turn")
            raise
        if kernel.exit_reason is not None:
            self._end(name, kernel.exit_reason)
            return
        host.wake_at = None
        if wait_ms:
            host.wake_at = self._ticks_ms + wait_ms
        elif wait_ms == 0:
            if kernel.has_mail or not kernel.wants_step(self.clock()):
                self._has_mail(name)
            elif not host.wants_step:
                host.wants_step = True
                self._steppers.append(name)

    def _has_mail(self, name: str) -> None:
        if name not in self._queued:
            self._queued.add(name)
            self._with_mail.append(name)

    # ---------------------------------------------------------------------------------------------------- on the loop
    def _create(self, parent: str | None, command: SpawnHost) -> None:
        if command.host in self._used_names:
            message = "a host's name must be fresh"
            raise InternalError(message, host=command.host, parent=parent)
        self._used_names.add(command.host)
        kernel = HostKernel(command.host, self, self._timing)
        observer = HostObserver(
            kernel.observe,
            lambda: self._driving,
            "",
            lambda: self._logs,
            kernel.tap,
            kernel.key_selector,
            kernel.rejected,
        )
        self._hosts[command.host] = _LocalHost(parent, kernel, command.actors, observer)
        if parent is not None:
            self._hosts[parent].children.append(command.host)
        self._has_mail(command.host)

    def _end(self, name: str, reason: str) -> None:
        host = self._hosts.pop(name, None)
        if host is None:
            return
        self._offloads.forget(name)
        for child in host.children:
            self._submit(lambda child=child: self._end(child, f"its parent {name} has ended"))  # type: ignore[misc]
        for answer in host.answers:
            if not answer.done.is_set():
                answer.give(_host_gone(name))
        parent = self._hosts.get(host.parent) if host.parent is not None else None
        if parent is not None:
            parent.kernel.child_terminated(name, reason)
            self._has_mail(parent.kernel.name)

    def _put_question(self, address: Address, request: Any, answer: _Answer) -> None:
        host = self._hosts.get(address.host)
        if host is None:
            answer.give(_host_gone(address.host))
            return
        if host.actors:  # not started yet
            self._has_mail(address.host)
            self._submit(lambda: self._put_question(address, request, answer))
            return
        host.answers = [earlier for earlier in host.answers if not earlier.done.is_set()]
        host.answers.append(answer)
        host.kernel.ask(address.actor, request, answer.give)
        self._has_mail(address.host)

    def _pong(self, source: str, host: str) -> None:
        if source in self._hosts:
            self._hosts[source].kernel.pinged(host, 0, "")
            self._has_mail(source)

    def _offload_ended(self, host: str, actor: str, completed: OffloadCompleted) -> None:
        """In the thread that did the work."""
        self._submit(lambda: self._completed(host, actor, completed))

    def _completed(self, host: str, actor: str, completed: OffloadCompleted) -> None:
        if host in self._hosts:
            self._hosts[host].kernel.post(actor, completed)
            self._has_mail(host)


def _host_gone(host: str) -> HostGoneError:
    message = "the host is gone"
    return HostGoneError(message, host=host)
