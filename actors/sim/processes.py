"""Simulated processes: what the simulator knows of one, how machines are built in it, how it does offloaded work."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from headrace.engine.kernel.machine import Address, Command, Offload
from headrace.state.reading.program_pickles import dump_program, load_program

from ..hosts.host import HostKernel, MachineFactory

__all__ = ["HostKilled", "OffloadedWorks", "SimHost", "build_checked", "copied"]


class HostKilled(BaseException):
    """Unwinds a simulated process that dies in the middle of something."""

    strikes_from_outside = True


class SimHost:
    """A simulated process."""

    __slots__ = (
        "actors",
        "busy_until",
        "children",
        "frozen_until",
        "is_alive",
        "kernel",
        "name",
        "node",
        "parent",
        "started",
        "told_node",
        "turn_at",
    )

    def __init__(
        self, name: str, parent: str | None, kernel: HostKernel, actors: tuple[tuple[str, MachineFactory], ...]
    ) -> None:
        self.name = name
        self.parent = parent
        self.kernel = kernel
        self.actors = actors
        # Where it is; empty if on no node. And where its parent is told that it is.
        self.node = ""
        self.told_node = ""
        self.children: list[str] = []
        self.is_alive = True
        # False while the process is starting.
        self.started = False
        # Nothing happens in it before these times (microseconds).
        self.frozen_until = 0
        self.busy_until = 0
        # When its next turn is planned; None if it waits for something to arrive.
        self.turn_at: int | None = None


def copied(value: Any) -> Any:
    """Return it as it arrives in another process."""
    return load_program(dump_program(value))


def build_checked(build: MachineFactory, address: Address) -> Any:
    """Build a machine; one that can check itself does so after each event."""
    machine: Any = build(address)
    check = getattr(machine, "check", None)
    if check is not None:
        handle = machine.handle

        def handle_and_check(event: Any, now_ms: int) -> list[Command]:
            commands: list[Command] = handle(event, now_ms)
            check()
            return commands

        machine.handle = handle_and_check
    return machine


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that does not wait: time goes on at once."""

    # Virtual seconds.
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time but is measured."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class OffloadedWorks:
    """Does offloaded work at one moment, while what its coroutines sleep is measured.

    They run on an event loop on which time goes on by itself, as fast as somebody waits for it.
    """

    def __init__(self) -> None:
        # Made for the first coroutine.
        self._loop: _VirtualLoop | None = None

    def do(self, work: Offload) -> tuple[Any, int]:
        """Do a work; gives its result, and how long a coroutine has slept for it (microseconds)."""
        if work.kind != "coroutine":
            return work.work(), 0
        if self._loop is None:
            self._loop = _VirtualLoop()
        before = self._loop.time()
        result = self._loop.run_until_complete(_awaited(work))
        return result, int((self._loop.time() - before) * 1_000_000)

    def close(self) -> None:
        """Close the loop."""
        if self._loop is not None:
            self._loop.close()


async def _awaited(work: Offload) -> Any:
    return await work.work()
