"""Simulated processes: what the simulator knows of one, and how machines are built in it."""

from __future__ import annotations

from typing import Any

from headrace.engine.kernel.machine import Address, Command
from headrace.state.reading.program_pickles import dump_program, load_program

from ..hosts.host import HostKernel, MachineFactory

__all__ = ["HostKilled", "SimHost", "build_checked", "copied"]


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
