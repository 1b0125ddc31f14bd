"""What a state backend must offer: tables for the engine, handles for user functions, snapshots for checkpoints.

Keyed state is held in *tables*. A table maps (namespace, key) to a value; the namespace is None or a window
``(start_ms, end_ms)``. Tables are namespace-first because that is how they are used: a window fires as a whole, a
function without windows has one namespace. *Columnar tables* hold runs of Arrow record batches per namespace for
vectorised operators. User functions never see a table; they get handles bound to the backend's current key and, where
the state is one of windows, to its current namespace.

State with a time to live is held as *units*: pairs ``(value, timestamp_ms)`` in place of a value, of each list element
or of each map entry's value. A backend stores them like any other tuples; what they mean is in
`headrace.state.keyed.ttl`, the handles over them in `headrace.state.keyed.ttl_handles`. All a backend adds is
`StateTable.sweep`.

Snapshots are taken in two parts: ``snapshot()`` is the short synchronous part and returns `SnapshotPart`s, whose
``write`` produces the bytes later, outside the mailbox, and must not see changes made after ``snapshot()`` returned.

Source: Flink's ``KeyedStateBackend``, ``OperatorStateBackend``, ``StateDescriptor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ..checkpoints.snapshot import RestoredPart, SnapshotPart, StateFile
from ..keys.key_groups import KeyGroupRange
from ..type_variables import UK, UV, T
from .descriptors import MapState, MapStateDescriptor
from .kinds import StateDescriptor

__all__ = [
    "BroadcastState",
    "ColumnarTable",
    "KeyedStateBackend",
    "ListStateHandle",
    "Namespace",
    "OperatorStateBackend",
    "StateTable",
]

Namespace = tuple[int, int] | None
"""None, or a window's start and end in epoch milliseconds (for count windows: two counters). The global window is
``(MIN_TIMESTAMP, MAX_WATERMARK.timestamp_ms)`` of `headrace.engine.columns.records`.
"""


class StateTable(Protocol):
    """(namespace, key) -> value, for engine operators that manage keys and namespaces themselves.

    Contract: the mapping of a namespace is live (changes are state), may be kept until ``drop``, and is a plain
    mapping: the caller mutates values only by assigning them anew (*trusted*). A table that windowed handles write to
    is theirs alone: they drop a namespace when they have cleared its last key (*trusted*).
    """

    name: str

    def namespace(self, namespace: Namespace) -> MutableMapping[Any, Any]:
        """Return the live mapping of one namespace, made on first use."""
        ...

    def namespaces(self) -> Iterable[Namespace]:
        """Return the namespaces that hold at least one key, in no order; safe to drop while iterating."""
        ...

    def drop(self, namespace: Namespace) -> None:
        """Forget a namespace with all its keys; nothing happens if it is not there."""
        ...

    def sweep(self, num_entries: int, cutoff_ms: int) -> None:
        """Look at some entries of a state with a time to live and forget what has expired.

        An entry is what the backend stores as one: all of a (namespace, key), or one entry of its map. Each call goes
        on where the last one ended and begins anew after the last entry, so that enough calls see everything.

        Args:
            num_entries: How many entries to look at, at most.
            cutoff_ms: Units (of values, list elements, map entries) with this timestamp or an earlier one have expired.

        Guarantees: what has not expired is unchanged; memory and disk of what has is given back, by compaction at the
        latest.
        """
        ...


class ColumnarTable(Protocol):
    """namespace -> runs of record batches, for vectorised operators. A run is never changed, only replaced."""

    name: str
    schema: pa.Schema

    def append(self, namespace: Namespace, run: pa.RecordBatch) -> None:
        """Add a run; its schema is the table's."""
        ...

    def runs(self, namespace: Namespace) -> list[pa.RecordBatch]:
        """Return the runs of one namespace, oldest first."""
        ...

    def replace(self, namespace: Namespace, runs: list[pa.RecordBatch]) -> None:
        """Put other runs in place of a namespace's, e.g. after merging them."""
        ...

    def num_runs(self, namespace: Namespace) -> int:
        """Return how many runs a namespace has."""
        ...

    def read(self, namespace: Namespace, places: Iterable[int]) -> list[pa.RecordBatch]:
        """Return some runs of a namespace, by their places among all of it; only these are read."""
        ...

    def replace_last(self, namespace: Namespace, place: int, runs: Iterable[pa.RecordBatch]) -> None:
        """Put other runs in place of a namespace's last ones, from a place on.

        A backend that has room on disk keeps none of the new runs in memory: ``runs`` may come one by one, and may be
        made of runs that are read while they come.
        """
        ...

    def namespaces(self) -> Iterable[Namespace]:
        """Return the namespaces that hold at least one run."""
        ...

    def drop(self, namespace: Namespace) -> None:
        """Forget a namespace."""
        ...


class KeyedStateBackend(Protocol):
    """All keyed state of one operator subtask, for the key groups it owns.

    Contract: declaring a state (a table or handle) checks it against what was restored under its name: kind, windowed
    or not, declared types (`headrace.state.keyed.evolution`), time to live. What was stored in an older form is brought
    to the declared one before the call returns or, at the latest, when it is read.
    """

    key_groups: KeyGroupRange
    """The key groups this subtask owns; a key outside of them is a routing bug."""
    max_parallelism: int
    current_key: Any
    """The key that user handles read and write; `NO_KEY` (state.descriptors) outside of a keyed call."""
    current_namespace: Namespace
    """The window that windowed handles read and write, set by the operator; None outside of windows."""
    now_ms: Callable[[], int]
    """The injected clock: what a time to live is measured by, epoch milliseconds UTC."""

    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> StateTable:
        """Return the table of a state, made or restored on first use; ``windowed`` tells whether its namespaces are
        windows.

        Of a descriptor with a time to live the caller reads and writes units, and asks for `StateTable.sweep` itself.
        """
        ...

    def columnar_table(
        self, name: str, schema: pa.Schema, key_columns: tuple[str, ...], *, evolves: bool = False
    ) -> ColumnarTable:
        """Return the columnar table of a state; its key groups are computed from ``key_columns``.

        Args:
            name: The state's.
            schema: Of its runs.
            key_columns: Some of its columns.
            evolves: Whether a restored state may have other columns beside those of the key: what it lacks is null,
                what is not asked for is left out.
        """
        ...

    def handle(self, descriptor: StateDescriptor, *, windowed: bool = False) -> Any:
        """Return what user functions hold of a state, bound to the current key.

        Args:
            descriptor: The state, of any kind.
            windowed: Whether the handle reads and writes at (current key, current namespace), else at (current key,
                None).

        Raises:
            ProgramError: If it is no descriptor of such state.
            StateAccessError: Not here, but by the handle's methods, when used outside of a key or, windowed, outside
                of a namespace.
        """
        ...

    def merge_namespaces(self, descriptor: StateDescriptor, target: Namespace, sources: Iterable[Namespace]) -> None:
        """Move the current key's state of some windows into another window: what ``target`` holds comes first, then
        the sources' in order. The sources hold nothing of the key afterwards; ``target`` among them is passed over.

        Raises:
            ProgramError: If state of its kind cannot be merged.
            StateAccessError: If there is no current key.
        """
        ...

    def expect(self, keys: Sequence[Any]) -> None:
        """Note that records of these keys come next. Called before each batch; changes nothing but how fast it is."""
        ...

    def batch_processed(self, num_records: int) -> None:
        """Note that the operator has processed that many records, after each batch. States whose clean-up runs for
        every record do it now.
        """
        ...

    def snapshot(self, base_checkpoint: int = 0) -> list[SnapshotPart]:
        """Take the synchronous part of a snapshot: a consistent view of everything as of now.

        Args:
            base_checkpoint: A complete checkpoint whose files are still there, and will be until the snapshot's own
                checkpoint has ended: parts may be files of it. 0 for none.
        """
        ...

    def snapshot_stored(self, checkpoint_id: int, files: Iterable[StateFile]) -> None:
        """Note that the parts of a snapshot have been written, as these files, in order, for that checkpoint; it may
        still fail. If it completes it can be the base of a later one.
        """
        ...

    def restore(self, parts: Iterable[RestoredPart]) -> None:
        """Load what earlier subtasks wrote, keeping only the key groups owned here. Called once, before first use.

        Raises:
            CheckpointMismatchError: If types or kinds differ from what the program then declares.
            CheckpointCorruptError: If a part cannot be decoded.
        """
        ...

    def queryable_states(self) -> dict[str, StateDescriptor]:
        """Return the states that clients may ask for, as declared by now, by the name they are asked for under."""
        ...

    def tables(self) -> Mapping[str, StateTable | ColumnarTable]:
        """Return all tables by name, with restored ones that were not asked for yet; for test harnesses and tools."""
        ...

    def table_room(self) -> int | None:
        """Return how many bytes tables of the operator may hold in memory beside their runs, before it puts a part of
        them aside; None if the backend keeps all in memory anyway, so that it would help nobody.
        """
        ...

    def hold_tables(self, num_bytes: int, what: str) -> None:
        """Count what tables hold in memory beside their runs, all together and as of now.

        Args:
            num_bytes: So many bytes.
            what: Which tables these are, for errors.

        Raises:
            ManagedMemoryError: If it is more than there is, and cannot be put aside.
        """
        ...

    def managed_bytes(self) -> int | None:
        """Give how many bytes of its slot's managed memory it holds, as far as that is counted; None if nothing is."""
        ...

    def close(self) -> None:
        """Let go of files and memory; the backend is of no use afterwards. A second call does nothing."""
        ...


class ListStateHandle(Protocol[T]):
    """Operator state: a list of values that belong to the subtask, not to a key."""

    def get(self) -> list[T]:
        """Return the values; after a restore, this subtask's share (``list``) or all (``union``)."""
        ...

    def update(self, values: Iterable[T]) -> None:
        """Replace the values."""
        ...

    def add(self, value: T) -> None:
        """Append one value."""
        ...

    def add_all(self, values: Iterable[T]) -> None:
        """Append several values."""
        ...

    def clear(self) -> None:
        """Forget all values."""
        ...


class BroadcastState(MapState[UK, UV], Protocol[UK, UV]):
    """Operator state: a map of which every subtask holds an equal copy.

    Contract: all subtasks make the same changes in the same order (*trusted*): an operator changes it on account
    of broadcast records only, and by nothing that differs between subtasks.
    """


class OperatorStateBackend(Protocol):
    """All non-keyed state of one operator subtask."""

    def list_state(self, name: str, value_type: Any = None) -> ListStateHandle:
        """State whose elements are dealt out over the subtasks on rescale.

        Args:
            name: Unique among the operator's operator state.
            value_type: The declared type of the elements, if any; as in a keyed state's descriptor.
        """
        ...

    def union_list_state(self, name: str, value_type: Any = None) -> ListStateHandle:
        """State that every subtask receives in full on restore; else as `list_state`."""
        ...

    def broadcast_state(self, descriptor: MapStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """Return a map of which every subtask holds an equal copy. Every subtask writes its copy into a snapshot; on
        restore subtask i reads copy i modulo their number.
        """
        ...

    def snapshot(self) -> list[SnapshotPart]:
        """Take the synchronous part of a snapshot."""
        ...

    def restore(
        self, parts: Iterable[RestoredPart], subtask: int, parallelism: int, *, is_undealt: bool = False
    ) -> None:
        """Load what earlier subtasks wrote. Called once, before first use."""
        ...
