"""What the hosts of an actor system need from it, and its errors and clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.link import Frame
from headrace.engine.machine import (
    CancelOffload,
    Offload,
    SpawnHost,
)

__all__ = ["AskTimedOutError", "HostGoneError", "HostSystem", "Ticks", "process_monotonic_ms"]


class HostGoneError(ClusterUnavailableError):
    """The host that was asked is not there, or ended before it answered."""


class AskTimedOutError(ClusterUnavailableError):
    """No answer came in time; whether the question arrived is not known."""


class HostSystem(Protocol):
    """What a kernel needs from its actor system.

    All calls return at once; what they start is told to the kernel later.
    """

    @property
    def point(self) -> Callable[[str, str], None] | None:
        """Called with host and name at each protocol point; may raise to kill the host there. None in production."""
        ...

    def clock(self) -> int:
        """Epoch milliseconds UTC."""
        ...

    def monotonic_ms(self, host: str) -> int:
        """Milliseconds of a host's clock that never goes back and does not stop; another one on each machine."""
        ...

    def transmit(self, frame: Frame, *, again: bool) -> bool:
        """Give a frame to the network.

        Args:
            frame: The frame.
            again: Whether it was sent before.

        Returns:
            False if the destination is known to be gone for good.
        """
        ...

    def spawn(self, parent: str, command: SpawnHost) -> None:
        """Start a child; its end is told by `HostKernel.child_terminated`."""
        ...

    def stop(self, parent: str, host: str) -> None:
        """Tell a child to end in order."""
        ...

    def kill(self, parent: str, host: str, reason: str) -> None:
        """End a child at once."""
        ...

    def ping(self, source: str, host: str) -> None:
        """Ask for a sign of life, told by `HostKernel.pinged`, or never."""
        ...

    def offload(self, host: str, actor: str, work: Offload) -> None:
        """Run work where its kind says, then `HostKernel.post` its `OffloadCompleted`."""
        ...

    def cancel_offload(self, host: str, actor: str, command: CancelOffload) -> None:
        """Give up work, if that is still possible."""
        ...


def process_monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back, and that goes on while process or machine sleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


class Ticks:
    """Milliseconds that a process was awake: never goes back and does not count stalls.

    Timers run on it. A loop that was held up for a minute by one step of user code, a breakpoint or a stopped process
    must not find all its timeouts expired at once, before it has read a single one of the messages that would have
    stopped them.

    Args:
        stall_ms: Time between two looks, over the time meant to sleep, that counts at most.
    """

    def __init__(self, stall_ms: int = 1_000) -> None:
        self._stall_ns = stall_ms * 1_000_000
        self._last_ns = time.monotonic_ns()
        self._ticks_ns = 0

    def advance(self, slept_ms: int = 0) -> int:
        """Look at the clock after having meant to sleep ``slept_ms``; returns the ticks so far."""
        now_ns = time.monotonic_ns()
        self._ticks_ns += min(now_ns - self._last_ns, slept_ms * 1_000_000 + self._stall_ns)
        self._last_ns = now_ns
        return self._ticks_ns // 1_000_000
