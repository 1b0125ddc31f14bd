"""The contract between decision logic and the actor systems: events in, commands out.

Everything that decides (Dispatcher, ResourceManager, JobManager, CheckpointCoordinator, TaskManager, Slot) is a
*machine*: a plain class whose ``handle`` takes one event and returns the commands to carry out. It does no I/O, reads
no clock, starts no thread and draws no random number. A *host* (one process in production, one object in the simulator)
runs any number of machines, gives each a mailbox, and carries out their commands. What the simulator exercises is
therefore what runs in production.

Messages between machines on different hosts travel over a link (`.link`) that restores order and drops
duplicates, so a machine sees the messages of one peer host in the order sent, each once, until that host is gone. A
machine must still treat every control message as idempotent and every id in it as possibly stale: the peer may have
been replaced.

Source: sans-I/O protocol design; dask's ``WorkerState``; Flink's ``RpcEndpoint`` with fencing tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

__all__ = [
    "Address",
    "Asked",
    "CancelOffload",
    "CancelTimer",
    "Command",
    "HostPinged",
    "HostTerminated",
    "KillHost",
    "Machine",
    "Offload",
    "OffloadCompleted",
    "OffloadKind",
    "PingHost",
    "Reply",
    "Send",
    "SpawnHost",
    "StartTimer",
    "Started",
    "StepOutcome",
    "SteppingMachine",
    "StopHost",
    "kind_of",
]


class Address(NamedTuple):
    """Where a machine lives: ``host`` is a process and a failure domain, its name is never reused; ``actor`` a name
    within it.
    """

    host: str
    actor: str

    def __str__(self) -> str:
        return f"{self.actor}@{self.host}"


# ----------------------------------------------------------------------------------------------------------------
# commands
@dataclass(frozen=True, slots=True)
class Send:
    """Tell ``message`` to the machine at ``to``; nothing is said about whether or when it arrives."""

    to: Address
    message: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the ask ``ask_id`` that came in an `Asked` event. Answering twice is harmless: the first answer counts."""

    ask_id: str
    value: Any


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Deliver ``message`` to this machine after ``delay_ms``; a timer of the same ``key`` is replaced."""

    key: str
    delay_ms: int
    message: Any


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer ``key``, if it runs."""

    key: str


OffloadKind = Literal["io", "blocking", "coroutine"]
"""Where offloaded work runs: the engine's own I/O in a few threads kept for it; a user's blocking call in a thread of
its own; a coroutine on the host's one event loop. So a hundred slow calls of a user never hold up a snapshot."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Run work outside the mailbox; its end comes back as `OffloadCompleted` with the same ``name`` and ``token``.

    Args:
        name: What the work is, for logs and as the name of a protocol point, e.g. ``"publish_checkpoint"``.
        token: Tells the machine which of its requests has ended: a frozen dataclass whose type says what the work was,
            as machines go by that (`kind_of`); echoed, never read.
        work: A call without arguments that does I/O; of kind ``coroutine`` it gives an awaitable. It must not touch
            the machine.
        kind: Where it runs.
    """

    name: str
    token: Any
    work: Callable[[], Any]
    kind: OffloadKind = "io"


@dataclass(frozen=True, slots=True)
class CancelOffload:
    """Give up work whose end is not wanted any more: a coroutine is cancelled, a call that has begun in a thread goes
    on.

    Its `OffloadCompleted` may come all the same.
    """

    name: str
    token: Any


@dataclass(frozen=True, slots=True)
class SpawnHost:
    """Start a child host that runs the given machines; this machine becomes its parent and is told by `HostTerminated`.

    Args:
        host: The new host's name; must be fresh.
        actors: Pairs of actor name and a call that builds the machine on that host (pickled by cloudpickle where
            hosts are processes). The call receives the machine's own `Address`.
        resources: What the host needs: ``{"cpu": 1.0}``; for a child that must run beside its parent,
            ``{"colocate": 1.0}``; for one that has no parent and outlives this machine, whose end is not told,
            ``{"detached": 1.0}``, and ``{"spread": 1.0}`` if it should be on another machine than its like.
        avoid: Nodes that it is to be started on only if no other one has room.
    """

    host: str
    actors: tuple[tuple[str, Callable[[Address], Any]], ...]
    resources: dict[str, float] = field(default_factory=dict)
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopHost:
    """Let a child host (or, without a name, this host) end in order; its machines' ``close`` is called."""

    host: str | None = None


@dataclass(frozen=True, slots=True)
class KillHost:
    """End a child host at once, by process id where it is a process: it may be stuck in user code or stopped by a
    signal.
    """

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class PingHost:
    """Ask a host for a sign of life. It answers outside its machines' loop, as `HostPinged`, even while user code
    runs.
    """

    host: str


Command = Send | Reply | StartTimer | CancelTimer | Offload | CancelOffload | SpawnHost | StopHost | KillHost | PingHost


# ------------------------------------------------------------------------------------------------------------------
# events
@dataclass(frozen=True, slots=True)
class Started:
    """The first event of every machine. ``node`` is the machine its host runs on, as the host itself knows it; empty if
    it knows of none.
    """

    address: Address
    node: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A client outside the actor system asks; answer with `Reply`, now or later."""

    ask_id: str
    request: Any


@dataclass(frozen=True, slots=True)
class OffloadCompleted:
    """Offloaded work has ended, with ``result`` or with ``error`` (then ``result`` is None)."""

    name: str
    token: Any
    result: Any
    error: BaseException | None


def kind_of(event: Any) -> type:
    """Return what tells a machine which handler an event is for: its type; of offloaded work that of the token."""
    return type(event.token if isinstance(event, OffloadCompleted) else event)


@dataclass(frozen=True, slots=True)
class HostTerminated:
    """A child host has ended. ``reason`` is ``"stopped"`` for an orderly end, else what is known of its death.
    ``node`` is the machine it ran on, empty if that is not known.
    """

    host: str
    reason: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class HostPinged:
    """A sign of life of ``host``.

    Attributes:
        step_ms: How long its current step has been running, in milliseconds; 0 when it is between steps.
        doing: What the step is doing (operator and subtask), for the error message.
        pid: Process id, where the host is a process of its own.
        node: The machine it runs on; empty if that is not known.
    """

    host: str
    step_ms: int
    doing: str
    pid: int | None = None
    node: str = ""


class Machine(Protocol):
    """Decision logic with a mailbox.

    Contract:
        * ``handle`` returns quickly and raises only on a bug (*asserted*: the host dies with the traceback and its
        parent is told).
        * Unknown or stale messages are ignored, not errors (*trusted*).
        * A machine that has a method ``check`` without arguments says with it whether its state fits together, between
          two events (*asserted* by the simulator, after each).
    """

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one event (a message of another machine, or one of the events above).

        Args:
            event: The message or event.
            now_ms: The host's clock, epoch milliseconds UTC; it may jump, so deadlines are kept with timers.
        """
        ...


@dataclass(slots=True)
class StepOutcome:
    """What one step of a `SteppingMachine` gave.

    Attributes:
        commands: To be carried out, in order.
        runnable: True when another step would do something now.
        wake_at_ms: Otherwise, the time at which a step is wanted at the latest; None to wait for a message.
    """

    commands: list[Command]
    runnable: bool
    wake_at_ms: int | None = None


class SteppingMachine(Machine, Protocol):
    """A machine that also works when its mailbox is empty: a slot. All messages are handled before each step."""

    def step(self, now_ms: int) -> StepOutcome:
        """Do one bounded piece of work."""
        ...
