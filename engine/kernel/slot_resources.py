"""What a TaskManager finds on its machine, and what of the machine's memory its slots manage.

The figures are gathered outside (``actors``) once, when a TaskManager starts, and travel with its registration.

Source: Flink's ``HardwareDescription``, ``TaskExecutorMemoryConfiguration`` and
``taskmanager.memory.managed.fraction``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.state.keyed.managed_memory import DEFAULT_SHARE_BYTES

__all__ = ["MANAGED_FRACTION", "Examine", "MachineResources", "NetworkInterface", "managed_memory_bytes"]

MANAGED_FRACTION = 0.4
"""Of a machine's memory so much is managed; the rest is for Python objects, batches in flight and other programs."""


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """An interface, with its addresses as text."""

    name: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineResources:
    """What a machine, or the container that a TaskManager runs in, has and has left.

    Attributes:
        cores: Processors that may be used.
        memory_bytes: Memory in all: the container's limit if that is less than the machine's.
        available_memory_bytes: What of it is free, or can be made so at once.
        disk: The directory in which slots keep local files.
        disk_bytes: How large its disk is.
        free_disk_bytes: What of it is free for this user.
        interfaces: Network interfaces that are up and have an address.
        host_name: The machine's name.
    """

    cores: float
    memory_bytes: int
    available_memory_bytes: int
    disk: str
    disk_bytes: int
    free_disk_bytes: int
    interfaces: tuple[NetworkInterface, ...] = ()
    host_name: str = ""


Examine = Callable[[str | None], MachineResources]
"""Looks at the machine it is called on, given the directory for local files (None for the usual one)."""


def managed_memory_bytes(configured: int, num_slots: int, cpu_per_slot: float, machine: MachineResources | None) -> int:
    """Return the managed memory of a TaskManager.

    Args:
        configured: What the cluster's settings say; 0 for a part of the machine's memory.
        num_slots: Its slots: several TaskManagers on one machine get as much as one with all their slots would.
        cpu_per_slot: Cores that each of them reserves; where none are reserved it counts as one.
        machine: What it runs on, if that is known.
    """
    if configured:
        return configured
    if machine is None or machine.memory_bytes <= 0:
        return num_slots * DEFAULT_SHARE_BYTES
    part = min(1.0, num_slots * (cpu_per_slot or 1.0) / max(machine.cores, 1.0))
    return int(MANAGED_FRACTION * part * machine.memory_bytes)
