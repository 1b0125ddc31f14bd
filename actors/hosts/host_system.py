"""What the hosts of an actor system need from it, and its errors and clocks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.link import Frame
from headrace.engine.kernel.machine import (
    CancelOffload,
    Offload,
    SpawnHost,
)

__all__ = [
    "AskTimedOutError",
    "HostGoneError",
    "HostSystem",
    "ProcessClocks",
    "SteadyClock",
    "Ticks",
    "process_monotonic_ms",
]


LOOK_MS = 1_000
"""How often the steady clock looks at the system's."""

CORRECTION_MS = 10
"""By how much it follows at each look."""


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
        """Return epoch milliseconds UTC."""
        ...

    def monotonic_ms(self, host: str) -> int:
        """Return milliseconds of a host's clock that never goes back and does not stop; another one on each machine."""
        ...

    def stopwatch_us(self, host: str) -> int:
        """Return microseconds of a clock that only tells how long work of the calling thread takes."""
        ...

    def processor_us(self, host: str) -> int:
        """Return microseconds of processor time that the calling thread has had."""
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
    """Return milliseconds of a clock that never goes back, and that goes on while process or machine sleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


class _RunQueue:
    """How long the thread that has made it was ready to run and had to wait, as others had the processors.

    Source: Linux's ``/proc/PID/schedstat``, the second number.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):  # another system
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """Nanoseconds since the thread began; 0 where the system does not say it."""
        return 0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1])

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.run_queue = _RunQueue()


_THIS_THREAD = _ThisThread()


class ProcessClocks:
    """The clocks of hosts that are processes of a machine, or parts of this one; a part of `HostSystem`."""

    def monotonic_ms(self, _host: str) -> int:
        """Return milliseconds of the machine's clock, also while it sleeps."""
        return process_monotonic_ms()

    def stopwatch_us(self, _host: str) -> int:
        """Return microseconds of a clock that only tells how long work takes; it stands still while the calling thread
        could go on and the machine is busy with others.
        """
        return (time.perf_counter_ns() - _THIS_THREAD.run_queue.waited_ns()) // 1_000

    def processor_us(self, _host: str) -> int:
        """Return microseconds of processor time that the calling thread has had."""
        return time.thread_time_ns() // 1_000


class SteadyClock:
    """Epoch milliseconds that neither jump nor go back: what a process takes for the time of day.

    All that waits for a time asks this clock: timers, polls, buffers, rates, idleness, pauses. Were it the system's
    own, a clock that is set back an hour would stop all of them for an hour, and one that is set forward would let them
    all expire. So it is read once, and goes on by the machine's monotonic clock. When the two have come apart it
    follows the system's clock slowly, by one millisecond in a hundred.

    Args:
        wall_ms: The system's clock, epoch milliseconds.
        monotonic_ms: A clock that never goes back, and goes on while the machine sleeps.
    """

    def __init__(self, wall_ms: Callable[[], int] | None = None, monotonic_ms: Callable[[], int] | None = None) -> None:
        self._wall_ms = wall_ms or (lambda: time.time_ns() // 1_000_000)
        self._monotonic_ms = monotonic_ms or process_monotonic_ms
        self._looked_ms = self._monotonic_ms()
        # What to add to the monotonic clock; changed by looks.
        self._offset_ms = self._wall_ms() - self._looked_ms
        self._told_ms = self._looked_ms + self._offset_ms

    def __call__(self) -> int:
        """The time now."""
        now_ms = self._monotonic_ms()
        elapsed_ms = now_ms - self._looked_ms
        if elapsed_ms >= LOOK_MS:
            self._looked_ms = now_ms
            most_ms = elapsed_ms // (LOOK_MS // CORRECTION_MS)
            apart_ms = self._wall_ms() - now_ms - self._offset_ms
            self._offset_ms += max(-most_ms, min(apart_ms, most_ms))
        self._told_ms = max(self._told_ms, now_ms + self._offset_ms)
        return self._told_ms


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
