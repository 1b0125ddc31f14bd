"""The managed memory of one slot: its share of what its TaskManager has, and who holds how much of it.

Three things live within the share: the state databases (cache, write buffers, the objects in front of them; they bound
themselves, see `headrace.state.backends.rocksdb.database`), columnar state in memory, which is counted here run by run,
and the input that operators of a batch sort, which is spilled when its part is full. Columnar state cannot be put
aside, so what does not fit is refused, with an error that says whose it is and what helps. The alternative is the
operating system's: it kills the process, and says nothing.

A slot whose operators both sort and keep state has a part for each, as Flink's consumer weights have it; operators that
sort have equal parts of theirs.

Values that functions keep as Python objects are not counted: what they weigh is unknown without walking them.

Invariant: what the accounts of a slot hold is, in sum, at most the share; an account that is closed holds nothing.

Source: Flink's ``MemoryManager`` (reserved memory of operators within a slot's managed memory), and
``taskmanager.memory.managed.consumer-weights``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ManagedMemoryError

__all__ = [
    "DEFAULT_SHARE_BYTES",
    "MIN_DATABASE_BYTES",
    "MIN_SORT_BYTES",
    "ManagedMemory",
    "MemoryAccount",
    "MemoryUse",
    "bytes_text",
]

DEFAULT_SHARE_BYTES = 256 << 20
"""A slot's share where nothing is known of the machine."""

MIN_DATABASE_BYTES = 8 << 20
"""A slot's databases need so much to work with."""

MIN_SORT_BYTES = 1 << 20
"""An operator that sorts its input needs so much."""

OPERATOR_WEIGHT = STATE_BACKEND_WEIGHT = 70
"""Flink's defaults."""

_HINT = (
    "give TaskManagers more (managed_memory_bytes of the environment), let fewer slots share it"
    " (slots_per_task_manager), use a larger parallelism, or keep state on disk: env.set_state_backend('rocksdb')"
)


def bytes_text(num_bytes: int) -> str:
    """Return a number of bytes for people: ``1.5 GiB``."""
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1_024:
            return f"{size:g} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1_024
    return f"{size:.1f} TiB"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the subtasks that share a slot use its managed memory for.

    Attributes:
        num_sorting: Operators that sort their input.
        keeps_state: Whether there is state in databases or columns.
    """

    num_sorting: int = 0
    keeps_state: bool = True

    def state_bytes(self, share_bytes: int) -> int:
        """Return the part of a slot's share that is for state."""
        if not self.num_sorting:
            return share_bytes
        weight = STATE_BACKEND_WEIGHT if self.keeps_state else 0
        return share_bytes * weight // (OPERATOR_WEIGHT + weight)


_STATE_ALONE = MemoryUse()


class ManagedMemory:
    """What the tasks of one slot hold, all together.

    Args:
        share_bytes: The slot's share; None bounds nothing, and counts all the same.
    """

    def __init__(self, share_bytes: int | None = None) -> None:
        self.share_bytes = share_bytes
        # In all accounts; and of that, for columnar state.
        self.used_bytes = 0
        self.state_bytes = 0

    def account(self, use: MemoryUse = _STATE_ALONE) -> MemoryAccount:
        """Return the account of one operator subtask.

        Args:
            use: What the slot's memory is for: state has no more than its part, also while nothing is sorted.
        """
        return MemoryAccount(self, use)

    def database_bytes(self, wanted: int | None, use: MemoryUse = _STATE_ALONE) -> int:
        """Return what the state databases of the slot may take, all together.

        Args:
            wanted: What the program says; None for what is for state.
            use: What else the slot's memory is for.

        Raises:
            ManagedMemoryError: If that is more than the share, or the share too little to work with.
        """
        if self.share_bytes is None:
            return use.state_bytes(DEFAULT_SHARE_BYTES) if wanted is None else wanted
        share = self.share_bytes
        if wanted is not None and wanted > share:
            message = (
                f"the state backend is to take {bytes_text(wanted)} of managed memory per slot;"
                f" a slot's share is {bytes_text(share)}"
            )
            hint = "leave the backend's managed_memory_bytes out, or give TaskManagers more or fewer slots"
            raise ManagedMemoryError(message, hint=hint)
        part = use.state_bytes(share)
        if part < MIN_DATABASE_BYTES:
            least = bytes_text(MIN_DATABASE_BYTES)
            message = f"RocksDB needs {least} of managed memory; a slot's share is {bytes_text(share)}"
            if part < share:
                message += f", of which {bytes_text(share - part)} are for sorting"
            hint = "give TaskManagers more (managed_memory_bytes of the environment), or fewer slots"
            raise ManagedMemoryError(message, hint=hint)
        return part if wanted is None else wanted

    def sort_bytes(self, database_bytes: int | None, use: MemoryUse) -> int:
        """Return what each operator of the slot that sorts its input may take.

        Args:
            database_bytes: What databases take if the program says so; else None.
            use: How many such operators there are, and whether there is state beside them.
        """
        share = DEFAULT_SHARE_BYTES if self.share_bytes is None else self.share_bytes
        for_state = use.state_bytes(share) if database_bytes is None else database_bytes
        return max(0, share - for_state) // max(1, use.num_sorting)


class MemoryAccount:
    """What one operator subtask holds. Made by `ManagedMemory.account`.

    Args:
        memory: Its slot's.
        use: What that is for.
    """

    __slots__ = ("_memory", "_state_bytes", "_use", "is_used", "used_bytes")

    def __init__(self, memory: ManagedMemory, use: MemoryUse) -> None:
        self._memory = memory
        self._use = use
        # Bytes, and how many of them are columnar state; and whether there was ever something to count.
        self.used_bytes = 0
        self._state_bytes = 0
        self.is_used = False

    def take(self, num_bytes: int, state: str) -> None:
        """Count what is about to be held; what is negative is let go of.

        Raises:
            ManagedMemoryError: If it is more than there is; then nothing is counted.
        """
        memory, share = self._memory, self._memory.share_bytes
        self.is_used = True
        for_state = 0 if share is None else self._use.state_bytes(share)
        if num_bytes > 0 and share is not None and memory.state_bytes + num_bytes > for_state:
            others = memory.state_bytes - self._state_bytes
            beside = f", other operators of the slot hold {bytes_text(others)}" if others else ""
            message = (
                f"columnar state {state!r} does not fit into memory: it needs {bytes_text(num_bytes)} more,"
                f" its operator holds {bytes_text(self._state_bytes)}{beside},"
                f" and the slot's share of managed memory is {bytes_text(share)}"
            )
            if for_state < share:
                message += f", of which {bytes_text(share - for_state)} are for sorting"
            raise ManagedMemoryError(message, hint=_HINT)
        memory.used_bytes += num_bytes
        memory.state_bytes += num_bytes
        self.used_bytes += num_bytes
        self._state_bytes += num_bytes

    def reserve(self, wanted: int, least: int) -> int:
        """Take what is free of some memory that can do with less.

        Args:
            wanted: So many bytes at most.
            least: So many at least.

        Returns:
            How many were taken.

        Raises:
            ManagedMemoryError: If even those are not free.
        """
        memory, share = self._memory, self._memory.share_bytes
        free = wanted if share is None else share - memory.used_bytes
        if min(wanted, free) < least:
            message = (
                f"sorting input needs {bytes_text(least)} of managed memory; {bytes_text(max(0, min(wanted, free)))}"
                f" are there for it, of the slot's share of {bytes_text(share or wanted)}"
            )
            raise ManagedMemoryError(message, hint=_HINT)
        self.is_used = True
        taken = min(wanted, free)
        memory.used_bytes += taken
        self.used_bytes += taken
        return taken

    def close(self) -> None:
        """Give back all that is held. A second call does nothing."""
        self._memory.used_bytes -= self.used_bytes
        self._memory.state_bytes -= self._state_bytes
        self.used_bytes = self._state_bytes = 0
