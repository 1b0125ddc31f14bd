"""Which keyed state backend a program runs on: its description, and the one place that makes it.

A description is a small value that travels with the job; the backend itself, and the library behind it, are met only in
the slot: ``import headrace`` loads no RocksDB.

Source: Flink's ``StateBackend``, ``HashMapStateBackend``, ``EmbeddedRocksDBStateBackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..checkpoints.snapshot import KEYED_KINDS, FileKind, RestoredPart
from ..errors import CheckpointMismatchError, ConfigurationError
from ..identifiers import OperatorId
from ..keyed.contract import KeyedStateBackend
from ..keyed.managed_memory import MIN_DATABASE_BYTES, ManagedMemory, MemoryUse
from ..keys.key_groups import KeyGroupRange
from .heap.backend import HeapKeyedStateBackend

__all__ = [
    "BACKENDS",
    "HashMapStateBackend",
    "RocksDBStateBackend",
    "check_memory",
    "make_keyed_backend",
    "restore_keyed_backend",
]

BACKENDS = ("heap", "rocksdb")


@dataclass(frozen=True, slots=True)
class HashMapStateBackend:
    """Keyed state as Python objects in the slots' memory; every checkpoint writes all of it. The default."""


@dataclass(frozen=True, slots=True)
class RocksDBStateBackend:
    """Keyed state in RocksDB on the slots' local disks; checkpoints write only what has changed.

    Attributes:
        managed_memory_bytes: Memory of one slot for state, all in all: the databases' cache and write buffers and what
            is kept as Python objects in front of them. None for the slot's share of its TaskManager's managed memory,
            which more than that is refused for.
        local_directory: Where the databases are, on each machine; None for the system's directory for temporary files.
            A fast local disk is best; what is in it is never needed after a crash.

    Raises:
        ConfigurationError: If the memory is below 8 MiB.
    """

    managed_memory_bytes: int | None = None
    local_directory: str | None = None

    def __post_init__(self) -> None:
        check_memory(self.managed_memory_bytes)


def check_memory(managed_memory_bytes: int | None) -> None:
    """See that a slot's managed memory is enough to work with; None leaves it to the slot.

    Raises:
        ConfigurationError: If not.
    """
    if managed_memory_bytes is None:
        return
    if type(managed_memory_bytes) is not int or managed_memory_bytes < MIN_DATABASE_BYTES:
        message = f"managed_memory_bytes must be at least 8 MiB ({MIN_DATABASE_BYTES}); got {managed_memory_bytes!r}"
        raise ConfigurationError(message)


def make_keyed_backend(
    name: str,
    operator: OperatorId,
    subtask: int,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    now_ms: Callable[[], int],
    *,
    slot: str = "",
    managed_memory_bytes: int | None = None,
    memory: ManagedMemory | None = None,
    use: MemoryUse | None = None,
    local_directory: str | None = None,
) -> KeyedStateBackend:
    """Make the keyed state backend of one operator subtask. Called by tasks and by test harnesses.

    Args:
        name: One of `BACKENDS`.
        operator: The operator's uid.
        subtask: Its subtask.
        key_groups: The key groups it owns.
        max_parallelism: How many there are.
        now_ms: The clock.
        slot: Tells the slots of one process apart: backends of one slot share its memory.
        managed_memory_bytes: What databases may take of the slot's memory; None for its share.
        memory: The slot's; None bounds nothing but databases.
        use: What it is for; None for state alone.
        local_directory: Where local files go; None for the default place.

    Raises:
        ConfigurationError: If there is no such backend.
        ManagedMemoryError: If the slot has less memory than databases are to have.
        StorageError: If the local disk fails.
    """
    memory = memory or ManagedMemory()
    if name == "heap":
        return HeapKeyedStateBackend(operator, key_groups, max_parallelism, now_ms, memory.account(use or MemoryUse()))
    if name != "rocksdb":
        message = f"the state backend must be one of {', '.join(BACKENDS)}; got {name!r}"
        raise ConfigurationError(message)
    from .rocksdb.backend import RocksDBKeyedStateBackend
    from .rocksdb.database import SlotMemory

    shared = SlotMemory.of_slot(slot, memory.database_bytes(managed_memory_bytes, use or MemoryUse()))
    return RocksDBKeyedStateBackend(operator, subtask, key_groups, max_parallelism, now_ms, shared, local_directory)


def restore_keyed_backend(
    backend: KeyedStateBackend, name: str, parts: Iterable[RestoredPart], operator: OperatorId
) -> None:
    """Restore a backend from the keyed parts of a checkpoint, which must be of the same backend.

    Args:
        backend: A fresh one.
        name: Which one it is.
        parts: All parts; others than keyed ones are passed over.
        operator: The operator's uid.

    Raises:
        CheckpointMismatchError: If the checkpoint was taken with another backend.
        CheckpointCorruptError: If the parts cannot be read.
    """
    keyed = [part for part in parts if part.kind in KEYED_KINDS]
    for part in keyed:
        there = "rocksdb" if part.kind is FileKind.DATABASE else "heap"
        if there != name:
            message = f"the checkpoint's keyed state is of the backend {there!r}; the program has the backend {name!r}"
            hint = f'call env.set_state_backend("{there}"), the backend that the checkpoint was taken with'
            raise CheckpointMismatchError(message, hint=hint, operator=operator, state=part.state)
    if keyed:
        backend.restore(keyed)
