"""One host as one process: the Ray actor, the loop that drives its kernel, and the launcher of child processes.

Ray's promises that are relied on: an actor is a process; a call usually arrives; the end of the process ends the call
that runs in it. Order, exactly-once and retries are the business of links and machines, so every actor has
``max_restarts=0`` and ``max_task_retries=0``.

Each actor serves its calls in separate concurrency groups. In *loop* one call, ``run``, drives the kernel until the
host ends; its end, seen by the caller, is the death watch (10 to 100 ms after a kill -9). *mailbox* takes
frames and never waits for anything. *vitals* answers pings, also while user code runs. *ask* holds the questions of
clients until they are answered.

Hosts find each other by name, as ``headrace:<cluster>:<host>`` in the namespace ``headrace``. Looking up, starting
and killing are calls to Ray's control store that may take long when that is down; they happen beside the loop, never
in it. A child is killed by its process id where that is on the same machine, as nothing else reaches a stopped
process at once. If this process dies, Ray ends its children, as their owner is gone.

Bytes that cannot be read are the death of the receiving host, with the reason in its last words; a call that fails
would go unnoticed.

Source: Ray's ``max_restarts`` and ``max_task_retries`` (fault tolerance of actors);
``docs/design/001-machines-and-hosts.md``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from headrace.engine.cluster.standbys import is_head
from headrace.engine.errors import ConfigurationError, InternalError
from headrace.engine.kernel.link import BARE, Frame, LinkTiming
from headrace.engine.kernel.machine import CancelOffload, Offload, OffloadCompleted, SpawnHost
from headrace.engine.protocol.messages import RequestFailed
from headrace.engine.protocol.observation_messages import OBSERVER_ACTOR
from headrace.state.reading.program_pickles import dump_program, load_program

from ..hosts.garbage import LOOK_MS, SparingCollector
from ..hosts.host import HostKernel, MachineFactory
from ..hosts.host_system import ProcessClocks, SteadyClock, Ticks
from ..hosts.log_files import (
    EVENTS_VARIABLE,
    HostLogs,
    cluster_log_folder,
    remove_old_logs,
    write_events_to_stderr,
)
from ..hosts.observer import HostObserver, LoopThread
from ..hosts.offloads import OffloadPools
from ..hosts.wire import decode, encode

__all__ = ["NAMESPACE", "HostSpec", "Launcher", "RayHost", "actor_name", "end_host"]

NAMESPACE = "headrace"

TIMING = LinkTiming(ack_delay_ms=200, retry_ms=1_000, max_retry_ms=10_000, give_up_ms=86_400_000)
"""Ray hardly ever loses a call, but a receiver looks at its mail only between two steps, and a step may take as long as
the job's settings allow. So none is given up for being silent; whether a peer is gone is asked of Ray before each
retransmission. A call costs both ends many times what is in it, so an acknowledgement waits for one that goes
anyway: where data flows credit does, and what is kept until then is bounded by it."""

NUM_ASK_THREADS = 16
"""Clients that can wait for answers of one host at the same time."""

SWITCH_INTERVAL_S = 0.001
"""How long the loop may keep the interpreter from the thread that takes frames; Python's default, 5 ms, would be
added to each hop.
"""

IDLE_MS = 60_000
"""A loop without timers looks around this often."""

MAX_REASON_LENGTH = 600

NODE_LABEL = "ray.io/node-id"
"""The label by which Ray itself names each node."""


def actor_name(cluster: str, host: str) -> str:
    """Return the name under which Ray knows a host."""
    return f"headrace:{cluster}:{host}"


def end_host(cluster: str, host: str) -> str:
    """Ask Ray to end a host of a cluster, wherever it is; says so if there is one."""
    import ray

    try:
        ray.kill(ray.get_actor(actor_name(cluster, host), namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return ""  # Ray knows that it has ended
    return f"asked Ray to end {host}"


# ------------------------------------------------------------------------------------------------------------- children
@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a host's process is told at its start."""

    cluster: str
    host: str
    # Pairs of actor name and factory, pickled by cloudpickle.
    actors: bytes
    # Whether children reserve cores in Ray.
    reserve: bool


class _Child:
    """A process that this one has started and watches."""

    __slots__ = ("handle", "is_detached", "is_over", "kill_reason", "node", "pid", "ping_under_way")

    def __init__(self, *, is_detached: bool) -> None:
        self.handle: Any = None
        # It has no parent and outlives this process.
        self.is_detached = is_detached
        # Known once it has started.
        self.pid: int | None = None
        self.node = ""
        # Why it was killed by us, if it was.
        self.kill_reason: str | None = None
        self.is_over = False
        self.ping_under_way = False


class Launcher:
    """Starts, kills and watches child processes, in a thread of its own. All methods return at once, from any thread.

    Args:
        cluster: Part of the actors' names.
        reserve: Whether to reserve cores; a Ray of our own is not shared with anyone, so there is nothing to reserve.
        on_started: Called with host and actor handle once it exists; from another thread.
        on_ended: Called once with host, reason and node (empty if that is not known) when it has ended; from another
            thread.
    """

    def __init__(
        self,
        cluster: str,
        *,
        reserve: bool,
        on_started: Callable[[str, Any], None],
        on_ended: Callable[[str, str, str], None],
    ) -> None:
        self._cluster = cluster
        self._reserve = reserve
        self._on_started = on_started
        self._on_ended = on_ended
        self._children: dict[str, _Child] = {}
        # The machine that this process is on.
        self.node: str = ray.get_runtime_context().get_node_id()
        # One thread: what is ordered for one child happens in that order.
        self._control = ThreadPoolExecutor(1, thread_name_prefix="headrace-launcher")

    def spawn(self, command: SpawnHost) -> None:
        child = self._children[command.host] = _Child(is_detached=bool(command.resources.get("detached")))
        self._control.submit(self._create, command, child)

    def stop(self, host: str) -> None:
        child = self._children.get(host)
        if child is None or child.is_over:
            return
        if child.pid is None:
            self.kill(host, "stopped")  # it has not begun; it may be waiting for a machine that never comes
        else:
            self._control.submit(self._call, child, "stop")

    def kill(self, host: str, reason: str) -> None:
        child = self._children.get(host)
        if child is not None and not child.is_over:
            child.kill_reason = reason
            self._kill(child)

    def _kill(self, child: _Child) -> None:
        if child.pid is not None and child.node == self.node:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        else:
            self._control.submit(self._kill_by_ray, child)

    def ping(self, host: str, on_pulse: Callable[[int, str, int, str], None]) -> None:
        """Ask a child for a sign of life; not again while an earlier question is unanswered."""
        child = self._children.get(host)
        if child is not None and child.handle is not None and not child.ping_under_way:
            child.ping_under_way = True
            child.handle.ping.remote().future().add_done_callback(functools.partial(self._on_pong, child, on_pulse))

    def close(self, *, also_detached: bool = False) -> None:
        for host, child in list(self._children.items()):
            if also_detached or not child.is_detached:
                self.kill(host, "the cluster was closed")
        self._control.shutdown(wait=True)

    def _create(self, command: SpawnHost, child: _Child) -> None:
        if child.kill_reason is not None:
            self._over(command.host, child, child.kill_reason)
            return
        options: dict[str, Any] = {"num_cpus": command.resources.get("cpu", 0.0) if self._reserve else 0.0}
        if command.resources.get("colocate"):
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=False)
        elif command.avoid:  # on one of these only if no other has room now
            elsewhere = NodeLabelSchedulingStrategy(hard={}, soft={NODE_LABEL: NotIn(*command.avoid)})
            options["scheduling_strategy"] = elsewhere
        elif command.resources.get("spread"):
            options["scheduling_strategy"] = "SPREAD"  # on different machines, where there are any
        if child.is_detached:
            options["lifetime"] = "detached"
        try:
            spec = HostSpec(self._cluster, command.host, dump_program(command.actors), self._reserve)
            name = actor_name(self._cluster, command.host)
            handle = _actor_class().options(name=name, namespace=NAMESPACE, **options).remote(spec)
            child.handle = handle
            if child.is_detached:
                handle.run_detached.remote()
            else:
                handle.run.remote().future().add_done_callback(
                    functools.partial(self._on_run_ended, command.host, child)
                )
            handle.identity.remote().future().add_done_callback(functools.partial(self._on_identity, child))
        except Exception as error:
            self._over(command.host, child, f"could not be started: {error!r}")
            return
        self._on_started(command.host, handle)

    def _on_run_ended(self, host: str, child: _Child, future: Future[Any]) -> None:
        error = future.exception()
        reason = child.kill_reason or _describe_death(child.pid, error) if error is not None else str(future.result())
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            # The process has nothing left to do. If Ray has only lost sight of it, it lives, and has to end.
            lives_on = isinstance(error, ActorUnavailableError)
            self._control.submit(self._kill if lives_on else self._kill_by_ray, child)
        self._over(host, child, reason)

    def _on_identity(self, child: _Child, future: Future[Any]) -> None:
        if future.exception() is None:
            self._identified(child, *future.result())

    def _on_pong(self, child: _Child, on_pulse: Callable[[int, str, int, str], None], future: Future[Any]) -> None:
        child.ping_under_way = False
        if future.exception() is None:
            step_ms, doing, node, pid = future.result()
            self._identified(child, node, pid)
            on_pulse(step_ms, doing, pid, node)

    def _identified(self, child: _Child, node: str, pid: int) -> None:
        """Note who it is. Each of its answers says so, since any other one may have been lost."""
        if child.pid is not None:
            return
        child.node, child.pid = node, pid
        if child.kill_reason is not None and not child.is_over:
            self._kill(child)  # ordered while it was starting, when a request may get lost

    def _over(self, host: str, child: _Child, reason: str) -> None:
        if not child.is_over:
            child.is_over = True
            self._children.pop(host, None)
            self._on_ended(host, reason, child.node)

    def _call(self, child: _Child, method: str) -> None:
        if child.handle is not None:
            getattr(child.handle, method).remote()

    def _kill_by_ray(self, child: _Child) -> None:
        # After `ray.shutdown` the call would start a Ray of its own; whatever was ours has ended with the old one.
        if child.handle is not None and ray.is_initialized():
            with contextlib.suppress(RayActorError, ValueError):
                ray.kill(child.handle, no_restart=True)


def _describe_death(pid: int | None, error: BaseException) -> str:
    text = " ".join(str(error).split())
    _, found, detail = text.partition("The actor is dead because ")
    told, is_guess, _ = (detail if found else text).partition(" Some common causes include")
    guess = " It was killed, perhaps for want of memory, or it crashed." if is_guess else ""
    process = "its process" if pid is None else f"process {pid}"
    return f"{process} died: {told[:MAX_REASON_LENGTH]}{guess}"


# ---------------------------------------------------------------------------------------------------------- a process
class _Process(ProcessClocks):
    """What a host's process has besides its kernel: the loop, and the kernel's `HostSystem`."""

    point: Callable[[str, str], None] | None = None

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._kernel = HostKernel(spec.host, self, TIMING)
        # The loop's thread; None before it runs.
        self._thread: LoopThread | None = None
        self.observer = HostObserver(
            self._kernel.observe,
            lambda: self._thread,
            spec.host,
            tap_channels=self._kernel.tap,
            key_selector=self._kernel.key_selector,
            rejected=self._kernel.rejected,
        )
        self.clock = SteadyClock()
        self._arrival = threading.Condition()
        # What the loop is to do, from other threads; and whether it sleeps, or is about to.
        self._inbox: deque[Callable[[], None]] = deque()
        self._is_waiting = False
        # Frames in the inbox, by source and sequence: what is sent again to a host in a long step is not kept twice.
        self._arrived: set[tuple[str, int]] = set()
        # When the turn that is running began (monotonic seconds); None between turns.
        self._turn_began: float | None = None
        self._collector = SparingCollector()
        # Handles by host, and frames for hosts that are being looked up or started.
        self._handles: dict[str, Any] = {}
        self._unresolved: dict[str, list[Frame]] = {}
        self._resolver = ThreadPoolExecutor(1, thread_name_prefix="headrace-resolver")
        self._offloads = OffloadPools(self._offload_ended)
        self._launcher = Launcher(
            spec.cluster, reserve=spec.reserve, on_started=self._child_started, on_ended=self._child_ended
        )

    # ------------------------------------------------------------------------------------------------------- the loop
    def run(self) -> str:
        """Drive the kernel until the host ends; returns why."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread = thread = LoopThread.this()
        kernel = self._kernel
        _keep_logs(self._spec, kernel, lambda: thread.identifier)
        try:
            actors: tuple[tuple[str, MachineFactory], ...] = load_program(self._spec.actors)
        except Exception as error:
            return f"the machines of host {kernel.name} could not be unpickled: {error!r}"
        kernel.start(actors, self._launcher.node)
        self._collector.start()
        ticks = Ticks()
        inbox = self._inbox
        wait_ms: int | None = 0
        while True:
            slept_ms = 0
            if wait_ms != 0 and not inbox:
                slept_ms = IDLE_MS if wait_ms is None else wait_ms
                with self._arrival:
                    self._is_waiting = True  # before the last look, see `submit`
                    if not inbox:
                        self._arrival.wait(slept_ms / 1_000)
                    self._is_waiting = False
            self._turn_began = time.monotonic()
            try:
                while inbox:
                    inbox.popleft()()
            except Exception as error:
                return f"a frame for host {kernel.name} could not be read: {error!r}"
            now_ms = self.clock()
            self._collector.turn(now_ms)
            wait_ms = kernel.run_turn(now_ms, ticks.advance(slept_ms))
            self._turn_began = None
            if kernel.exit_reason is not None:
                self._launcher.close()
                return kernel.exit_reason

    def submit(self, action: Callable[[], None]) -> None:
        """Have something done on the loop; from any thread."""
        self._inbox.append(action)
        if self._is_waiting:
            with self._arrival:
                self._arrival.notify()

    def deliver(self, source: str, sequence: int, ack: int, parts: tuple[Any, ...]) -> None:
        """Take a frame, from any thread."""
        if sequence != BARE:
            if (source, sequence) in self._arrived:
                return
            self._arrived.add((source, sequence))
        self.submit(functools.partial(self._receive, source, sequence, ack, parts))

    def _receive(self, source: str, sequence: int, ack: int, parts: tuple[Any, ...]) -> None:
        """Take a frame apart, on the loop."""
        self._arrived.discard((source, sequence))
        self._kernel.receive(Frame(source, self._kernel.name, sequence, ack, decode(parts)))

    def ask(self, actor: str, request: Any, on_reply: Callable[[Any], None]) -> None:
        """Put a question, from any thread."""
        self.submit(lambda: self._kernel.ask(actor, request, on_reply))

    def end(self) -> None:
        """End in order, from any thread."""
        self.submit(self._kernel.stop)

    def identity(self) -> tuple[str, int]:
        """The node and the process id; from any thread."""
        return self._launcher.node, os.getpid()

    def pulse(self) -> tuple[int, str]:
        """How long the present turn has been running, in milliseconds, and what it is doing; from any thread."""
        began = self._turn_began
        if began is None:
            return 0, ""
        lasts_ms = int((time.monotonic() - began) * 1_000)
        if lasts_ms >= LOOK_MS:
            self._collector.look()
        return lasts_ms, self._kernel.doing

    # ---------------------------------------------------------------------------------------- HostSystem, on the loop
    def transmit(self, frame: Frame, *, again: bool) -> bool:
        """Call the receiving host; what happens to the call is the link's business."""
        handle = self._handles.get(frame.destination)
        if handle is None or again:
            self._look_up(frame)
        else:
            handle.deliver.remote(frame.source, frame.sequence, frame.ack, *encode(frame.parcels))
        return True

    def spawn(self, parent: str, command: SpawnHost) -> None:
        """Start a child beside the loop; frames for it wait until it has a name."""
        self._unresolved[command.host] = []
        self._launcher.spawn(command)

    def stop(self, parent: str, host: str) -> None:
        """Let a child end in order."""
        self._launcher.stop(host)

    def kill(self, parent: str, host: str, reason: str) -> None:
        """Kill a child."""
        self._launcher.kill(host, reason)

    def ping(self, source: str, host: str) -> None:
        """Ask a child for a sign of life."""
        self._launcher.ping(host, lambda *pulse: self.submit(lambda: self._kernel.pinged(host, *pulse)))

    def offload(self, host: str, actor: str, work: Offload) -> None:
        """Run it in a thread or on the event loop of coroutines."""
        self._offloads.run(host, actor, work)

    def cancel_offload(self, host: str, actor: str, command: CancelOffload) -> None:
        """Give it up."""
        self._offloads.cancel(host, actor, command)

    # --------------------------------------------------------------------------------------------------------- inside
    def _look_up(self, frame: Frame) -> None:
        waiting = self._unresolved.get(frame.destination)
        if waiting is not None:
            waiting.append(frame)
            return
        self._unresolved[frame.destination] = [frame]
        self._resolver.submit(self._resolve, frame.destination)

    def _resolve(self, host: str) -> None:
        """In the resolver's thread."""
        handle: Any = None
        is_known = True
        try:
            handle = ray.get_actor(actor_name(self._spec.cluster, host), namespace=NAMESPACE)
        except ValueError:
            pass  # not there yet, or not any more
        except Exception:
            is_known = False
        self.submit(lambda: self._resolved(host, handle, is_known=is_known))

    def _resolved(self, host: str, handle: Any, *, is_known: bool) -> None:
        frames = self._unresolved.pop(host, [])
        if handle is not None:
            self._handles[host] = handle
            for frame in frames:
                handle.deliver.remote(frame.source, frame.sequence, frame.ack, *encode(frame.parcels))
        elif is_known and self._handles.pop(host, None) is not None:
            self._kernel.abandon(host)  # it was there once, and names are never used again

    def _child_started(self, host: str, handle: Any) -> None:
        self.submit(lambda: self._resolved(host, handle, is_known=True))

    def _child_ended(self, host: str, reason: str, node: str) -> None:
        self.submit(lambda: self._bury(host, reason, node))

    def _bury(self, host: str, reason: str, node: str) -> None:
        self._handles.pop(host, None)
        self._unresolved.pop(host, None)
        self._kernel.child_terminated(host, reason, node)

    def _offload_ended(self, _host: str, actor: str, completed: OffloadCompleted) -> None:
        """In the thread that did the work."""
        self.submit(lambda: self._kernel.post(actor, completed))


def _keep_logs(spec: HostSpec, kernel: HostKernel, thread: Callable[[], int | None]) -> None:
    """Write what is logged in this process to its own file; a machine without a place for it has none."""
    try:
        HostLogs(cluster_log_folder(spec.cluster), spec.host, kernel.observe, thread).start(sets_level=True)
        if is_head(spec.host):
            remove_old_logs()
    except (ConfigurationError, OSError) as error:
        logging.getLogger("headrace.logs").warning("host %s keeps no log: %s", spec.host, error)


class RayHost:
    """The actor: what can be called from outside, each method in the threads of its group.

    Args:
        spec: What to run.
    """

    def __init__(self, spec: HostSpec) -> None:
        if os.environ.get(EVENTS_VARIABLE) == "1":
            write_events_to_stderr()
        self._process = _Process(spec)

    @ray.method(concurrency_group="loop")
    def run(self) -> str:
        """Run the host until it ends; returns why."""
        return self._process.run()

    @ray.method(concurrency_group="vitals")
    def run_detached(self) -> None:
        """Run as `run` does, for a host that outlives the process that started it."""
        threading.Thread(target=self._run_and_exit, name="headrace-loop", daemon=True).start()

    @ray.method(concurrency_group="mailbox", num_returns=0)
    def deliver(self, source: str, sequence: int, ack: int, *parts: Any) -> None:
        """Take a frame, see `headrace.engine.kernel.link.Frame`."""
        self._process.deliver(source, sequence, ack, parts)

    @ray.method(concurrency_group="vitals")
    def ping(self) -> tuple[int, str, str, int]:
        """Give a sign of life: how long the present turn has been running (ms), what it is doing, node, process id."""
        return (*self._process.pulse(), *self._process.identity())

    @ray.method(concurrency_group="vitals")
    def identity(self) -> tuple[str, int]:
        """Say the node and the process id."""
        return self._process.identity()

    @ray.method(concurrency_group="vitals")
    def stop(self) -> None:
        """End in order."""
        self._process.end()

    @ray.method(concurrency_group="ask")
    def ask(self, actor: str, request: bytes, timeout_s: float) -> bytes | None:
        """Put a question to a machine; the pickled answer, or None if there was none in time."""
        question = load_program(request)
        if actor == OBSERVER_ACTOR:
            return dump_program(self._process.observer.answer(question))
        answers: list[Any] = []
        answered = threading.Event()

        def on_reply(value: Any) -> None:
            answers.append(value)
            answered.set()

        self._process.ask(actor, question, on_reply)
        if not answered.wait(timeout_s):
            return None
        try:
            return dump_program(answers[0])
        except Exception as error:
            message = f"the answer cannot be pickled: {error!r}"
            return dump_program(RequestFailed(InternalError(message, machine=actor)))

    def _run_and_exit(self) -> None:
        self._process.run()
        os._exit(0)


@functools.cache
def _actor_class() -> Any:
    groups = {"loop": 1, "mailbox": 1, "vitals": 1, "ask": NUM_ASK_THREADS}
    return ray.remote(
        max_restarts=0, max_task_retries=0, num_cpus=0, concurrency_groups=groups, enable_task_events=False
    )(RayHost)
