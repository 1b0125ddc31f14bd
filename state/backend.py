"""What a state backend must offer: tables for the engine, handles for user functions, snapshots for checkpoints.

Keyed state is held in *tables*. A table maps (namespace, key) to a value; the namespace is None or a window
``(start_ms, end_ms)``. Tables are namespace-first because that is how they are used: a window fires as a whole, a
function without windows has one namespace. *Columnar tables* hold runs of Arrow record batches per namespace for
vectorised operators. User functions never see a table; they get handles bound to the backend's current key.

Snapshots are taken in two parts: ``snapshot()`` is the short synchronous part and returns `SnapshotPart`s, whose
    ``write`` produces
the bytes later, outside the mailbox, and must not see changes made after ``snapshot()`` returned.

Source: Flink's ``KeyedStateBackend``, ``OperatorStateBackend``, ``StateDescriptor``; row E4 to E11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from headrace.state.descriptors import StateDescriptor, ValueState, ValueStateDescriptor
from headrace.state.keygroups import KeyGroupRange

__all__ = [
    "ColumnarTable",
    "KeyedStateBackend",
    "ListStateHandle",
    "Namespace",
    "OperatorStateBackend",
    "RestoredPart",
    "SnapshotPart",
    "StateTable",
]

Namespace = tuple[int, int] | None
"""None, or a window's start and end in epoch milliseconds (for count windows: two counters)."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """One state of one operator subtask, ready to be written as one immutable file.

    Attributes:
        state: The state's name; unique within the operator.
        kind: ``keyed`` (rows of key group, namespace, key, value), ``columnar`` (record batches with a
            key-group column), ``list`` (redistributed on rescale) or ``union`` (every subtask receives all).
        metadata: JSON-able facts that a restore checks: descriptor, types, format version.
        write: Gives the file's bytes (an Arrow IPC file); called once, maybe on another thread.
    """

    state: str
    kind: str
    metadata: dict[str, Any]
    write: Callable[[], bytes] = field(compare=False)


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """One file of a checkpoint, read and verified, on its way into a backend."""

    state: str
    kind: str
    metadata: dict[str, Any]
    data: bytes
    source_subtask: int
    """The subtask that wrote it; elements of ``list`` parts are dealt out over the new subtasks by (source_subtask,
    index).
    """


class StateTable(Protocol):
    """(namespace, key) -> value, for engine operators that manage keys and namespaces themselves.

    Contract: the mapping of a namespace is live (changes are state), may be kept until ``drop``, and is a plain
        mapping: the caller
    mutates values only by assigning them anew (*trusted*).
    """

    name: str

    def namespace(self, namespace: Namespace) -> MutableMapping[Any, Any]:
        """The live mapping of one namespace, made on first use."""
        ...

    def namespaces(self) -> Iterable[Namespace]:
        """The namespaces that hold at least one key, in no order; safe to drop while iterating."""
        ...

    def drop(self, namespace: Namespace) -> None:
        """Forget a namespace with all its keys; nothing happens if it is not there."""
        ...


class ColumnarTable(Protocol):
    """namespace -> runs of record batches, for vectorised operators. A run is never changed, only replaced."""

    name: str

    def append(self, namespace: Namespace, run: pa.RecordBatch) -> None:
        """Add a run; its schema is the table's."""
        ...

    def runs(self, namespace: Namespace) -> list[pa.RecordBatch]:
        """The runs of one namespace, oldest first."""
        ...

    def replace(self, namespace: Namespace, runs: list[pa.RecordBatch]) -> None:
        """Put other runs in place of a namespace's, e.g. after merging them."""
        ...

    def namespaces(self) -> Iterable[Namespace]:
        """The namespaces that hold at least one run."""
        ...

    def drop(self, namespace: Namespace) -> None:
        """Forget a namespace."""
        ...


class KeyedStateBackend(Protocol):
    """All keyed state of one operator subtask, for the key groups it owns."""

    key_groups: KeyGroupRange
    """The key groups this subtask owns; a key outside of them is a routing bug."""
    max_parallelism: int
    current_key: Any
    """The key that user handles read and write; `NO_KEY` (state.descriptors) outside of a keyed call."""

    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> StateTable:
        """The table of a state, made or restored on first use; ``windowed`` tells whether its namespaces are
        windows.
        """
        ...

    def columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> ColumnarTable:
        """The columnar table of a state; its key groups are computed from ``key_columns``."""
        ...

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """A handle for user functions, bound to the current key. Raises StateAccessError when used outside a key."""
        ...

    def snapshot(self) -> list[SnapshotPart]:
        """The synchronous part of a snapshot: a consistent view of everything as of now."""
        ...

    def restore(self, parts: Iterable[RestoredPart]) -> None:
        """Load what earlier subtasks wrote, keeping only the key groups owned here. Called once, before first use.

        Raises:
            CheckpointMismatchError: If types or kinds differ from what the program then declares.
            CheckpointCorruptError: If a part cannot be decoded.
        """
        ...


class ListStateHandle(Protocol):
    """Operator state: a list of values that belong to the subtask, not to a key."""

    def get(self) -> list[Any]:
        """The values; after a restore, this subtask's share (``list``) or all (``union``)."""
        ...

    def update(self, values: list[Any]) -> None:
        """Replace the values."""
        ...


class OperatorStateBackend(Protocol):
    """All non-keyed state of one operator subtask."""

    def list_state(self, name: str) -> ListStateHandle:
        """State whose elements are dealt out over the subtasks on rescale (row E6)."""
        ...

    def union_list_state(self, name: str) -> ListStateHandle:
        """State that every subtask receives in full on restore (row E7)."""
        ...

    def snapshot(self) -> list[SnapshotPart]:
        """The synchronous part of a snapshot."""
        ...

    def restore(self, parts: Iterable[RestoredPart], subtask: int, parallelism: int) -> None:
        """Load what earlier subtasks wrote. Called once, before first use."""
        ...
