"""State in the subtask's own memory: dictionaries and runs of record batches, written to Arrow files for checkpoints.

A snapshot copies dictionaries shallowly when their values are immutable by type, one level deeper when they are lists
or dicts of such values, and encodes the rest on the spot; bytes are made later, on another thread.

*Files.* One Arrow IPC file per state, rows sorted by key group, so that a subtask with other key groups reads a range.
Keyed: ``key_group, [window_start, window_end,] key, value``. Columnar: ``headrace.key_group, headrace.window_start,
headrace.window_end`` and the table's own columns. The schema's metadata ``headrace.state`` (JSON) says how to read keys
and values.

What a restore brought and the program has not asked for (yet) is kept and is part of every later snapshot: functions
may declare state at their first record. States that change their type must be declared in ``open``, so that all
subtasks have changed it before the next checkpoint.

Source: Flink's ``HeapKeyedStateBackend``; rows E4 to E8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.backend import Namespace, RestoredPart, SnapshotPart
from headrace.state.descriptors import (
    NO_KEY,
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
    type_text,
)
from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    InternalError,
    ProgramError,
    StateAccessError,
)
from headrace.state.evolution import stored_form
from headrace.state.handles import plain_handle
from headrace.state.heap_operator import HeapOperatorStateBackend
from headrace.state.heap_tables import COLUMNAR_PREFIX, HeapColumnarTable, HeapTable, columns_text
from headrace.state.identifiers import OperatorId
from headrace.state.keygroups import KeyGroupRange
from headrace.state.snapshot import StateFile
from headrace.state.state_files import FORMAT_VERSION, read_state_file
from headrace.state.ttl import TtlCleanup
from headrace.state.ttl_handles import merger, ttl_handle

__all__ = ["FORMAT_VERSION", "HeapKeyedStateBackend", "HeapOperatorStateBackend"]


def no_clock() -> int:
    """The clock of a backend that was given none.

    Raises:
        InternalError: Always.
    """
    message = "state with a time to live needs a backend with a clock"
    raise InternalError(message)


_HINT = "give changed state a new name, or the operator a new uid"
_FORM = ("descriptor", "value_type", "windowed", "value_schema", "map_key_schema", "ttl")
_MISSING: Any = object()


class HeapKeyedStateBackend:
    """All keyed state of one operator subtask, in memory.

    Args:
        operator: The operator's uid, for errors.
        key_groups: The key groups this subtask owns.
        max_parallelism: How many key groups there are in all.
        now_ms: The clock; only state with a time to live needs one.

    Attributes:
        current_key: The key that user handles read and write; `NO_KEY` outside of a keyed call. Set by the operator,
            before each record.
        current_namespace: The window that windowed handles read and write; None outside of windows.
    """

    def __init__(
        self,
        operator: OperatorId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        now_ms: Callable[[], int] = no_clock,
    ) -> None:
        self.operator = operator
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.now_ms = now_ms
        self.current_key: Any = NO_KEY
        self.current_namespace: Namespace = None
        # By state; those that clean up for every record, once more.
        self._cleanups: dict[str, TtlCleanup] = {}
        self._cleanups_of_records: list[TtlCleanup] = []
        # By name, in order of declaration; restored ones first.
        self._tables: dict[str, HeapTable | HeapColumnarTable] = {}

    # -------------------------------------------------------------------------------------------------------- declare
    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> HeapTable:
        """The table of a state, made or restored on first use.

        Raises:
            ProgramError: If the name was declared before, as another kind of state.
            CheckpointMismatchError: If the restored checkpoint has another kind or type of state under that name.
        """
        known = self._tables.get(descriptor.name)
        if isinstance(known, HeapTable) and known.is_declared_as(descriptor, windowed):
            return known
        wanted = HeapTable.form_of(descriptor, windowed)
        if known is None:
            known = self._tables[descriptor.name] = HeapTable(descriptor.name, wanted)
        elif not isinstance(known, HeapTable) or (known.descriptor_kind, known.windowed) != (descriptor.kind, windowed):
            self._refuse(known, f"{descriptor.kind}{' windowed' if windowed else ''} state")
        assert isinstance(known, HeapTable)
        if not known.declared:
            try:
                known.declare(descriptor, self.now_ms)
            except CheckpointMismatchError as error:
                error.message = f"the checkpoint has state {descriptor.name!r} of another type: {error.message}"
                error.context = {"operator": self.operator, "state": descriptor.name, **error.context}
                error.hint = error.hint or _HINT
                raise
        elif any(wanted[fact] is not None and wanted[fact] != known.form[fact] for fact in stored_form(descriptor)):
            typed = f" of {type_text(descriptor.value_type)}" if descriptor.value_type is not None else ""
            self._refuse(known, f"{descriptor.kind} state{typed}{' with a time to live' if wanted['ttl'] else ''}")
        return known

    def columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> HeapColumnarTable:
        """The columnar table of a state, made or restored on first use; key groups come from ``key_columns``.

        Raises:
            ProgramError: If the name was declared before with other columns, or a key column is not in ``schema``.
            CheckpointMismatchError: If the restored checkpoint has other columns under that name.
        """
        missing = [column for column in key_columns if schema.get_field_index(column) < 0]
        if missing or not key_columns:
            message = (
                f"columnar state {name!r} needs key columns among its columns {schema.names}; got {list(key_columns)}"
            )
            raise ProgramError(message, operator=self.operator)
        known = self._tables.get(name)
        if known is None:
            known = HeapColumnarTable(name, schema, tuple(key_columns))
            self._tables[name] = known
        elif (
            not isinstance(known, HeapColumnarTable)
            or known.key_columns != tuple(key_columns)
            or not known.schema.equals(schema)
        ):
            self._refuse(known, f"columnar state ({columns_text(schema)}) with key {list(key_columns)}")
        assert isinstance(known, HeapColumnarTable)
        known.declared = True
        return known

    def _refuse(self, known: HeapTable | HeapColumnarTable, wanted: str) -> None:
        if isinstance(known, HeapTable):
            typed = f" of {known.value_type}" if known.value_type is not None else ""
            timed = " with a time to live" if known.form["ttl"] else ""
            there = f"{known.descriptor_kind}{' windowed' if known.windowed else ''} state{typed}{timed}"
        else:
            there = f"columnar state ({columns_text(known.schema)}) with key {list(known.key_columns)}"
        if known.declared:
            message = f"state {known.name!r} is declared twice: as {there} and as {wanted}"
            raise ProgramError(message, operator=self.operator)
        message = f"the checkpoint has {there} under the name {known.name!r}; the program declares {wanted}"
        raise CheckpointMismatchError(message, operator=self.operator, hint=_HINT)

    # -------------------------------------------------------------------------------------------------------- handles
    def value_state(self, descriptor: ValueStateDescriptor, *, windowed: bool = False) -> ValueState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        handle: ValueState = self._handle(descriptor, windowed)
        return handle

    def list_state(self, descriptor: ListStateDescriptor, *, windowed: bool = False) -> ListState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        handle: ListState = self._handle(descriptor, windowed)
        return handle

    def map_state(self, descriptor: MapStateDescriptor, *, windowed: bool = False) -> MapState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        handle: MapState = self._handle(descriptor, windowed)
        return handle

    def reducing_state(self, descriptor: ReducingStateDescriptor, *, windowed: bool = False) -> ReducingState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        handle: ReducingState = self._handle(descriptor, windowed)
        return handle

    def aggregating_state(self, descriptor: AggregatingStateDescriptor, *, windowed: bool = False) -> AggregatingState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        handle: AggregatingState = self._handle(descriptor, windowed)
        return handle

    def _handle(self, descriptor: StateDescriptor, windowed: bool) -> Any:
        table = self.table(descriptor, windowed=windowed)
        if descriptor.ttl is None:
            return plain_handle(self, table, descriptor, windowed)
        cleanup = self._cleanups.get(descriptor.name)
        if cleanup is None:
            cleanup = self._cleanups[descriptor.name] = TtlCleanup(table, descriptor.ttl)
            if cleanup.runs_for_every_record:
                self._cleanups_of_records.append(cleanup)
        return ttl_handle(descriptor, cleanup, self.now_ms, lambda plain: plain_handle(self, table, plain, windowed))

    def merge_namespaces(self, descriptor: StateDescriptor, target: Namespace, sources: Iterable[Namespace]) -> None:
        """Move the current key's state of some windows into another window: ``target``'s first, then the sources'.

        Raises:
            ProgramError: If the state is not a list, reducing or aggregating state, or its aggregate cannot merge.
            StateAccessError: If there is no current key.
        """
        merge = merger(descriptor, self.now_ms)
        table, key = self.table(descriptor, windowed=True), self.current_key
        if key is NO_KEY:
            message = f"windows of state {descriptor.name!r} were merged where there is no current key"
            raise StateAccessError(message, operator=self.operator)
        missing: Any = _MISSING
        for source in sources:
            space = table.find(source)
            if source == target or space is None:
                continue
            merged = space.pop(key, missing)
            if not space:
                table.drop(source)
            if merged is missing:
                continue
            into = table.namespace(target)
            held = into.get(key, missing)
            into[key] = merged if held is missing else merge(held, merged)

    def batch_processed(self, num_records: int) -> None:
        """The operator has processed that many records: sweep what is swept for every record."""
        if self._cleanups_of_records:
            now_ms = self.now_ms()
            for cleanup in self._cleanups_of_records:
                cleanup.processed(num_records, now_ms)

    # ------------------------------------------------------------------------------------------------------ snapshots
    def snapshot_stored(self, checkpoint_id: int, files: Iterable[StateFile]) -> None:
        """Every snapshot is complete in itself: nothing to remember."""

    def snapshot(self, base_checkpoint: int = 0) -> list[SnapshotPart]:
        """The synchronous part of a snapshot: a consistent view as of now. States without a key write nothing.

        Raises:
            TypeMismatchError: If a value cannot be stored; maybe only from a part's ``write``.
        """
        parts = []
        for table in self._tables.values():
            facts = {
                "format_version": FORMAT_VERSION,
                "state": table.name,
                "kind": table.kind,
                "key_groups": [self.key_groups.start, self.key_groups.end],
                "max_parallelism": self.max_parallelism,
            }
            part = table.snapshot(facts, self.max_parallelism, self.now_ms)
            if part is not None:
                parts.append(part)
        return parts

    def restore(self, parts: Iterable[RestoredPart]) -> None:
        """Load what earlier subtasks wrote, keeping only the key groups owned here. Called once, before first use.

        Raises:
            CheckpointMismatchError: If the parts have another max parallelism, contradict each other or hold values
                that cannot be built.
            CheckpointCorruptError: If a part cannot be decoded.
        """
        for part in parts:
            data, facts = read_state_file(part, self.operator)
            try:
                if facts["max_parallelism"] != self.max_parallelism:
                    there = facts["max_parallelism"]
                    message = f"the checkpoint has max parallelism {there}; the operator has {self.max_parallelism}"
                    raise CheckpointMismatchError(message, operator=self.operator, state=part.state)
                table = self._restored_table(part, data, facts)
                owned = self._owned(data)
                if owned.num_rows:
                    table.load(owned) if isinstance(table, HeapColumnarTable) else table.load(owned, facts)
            except CheckpointError as error:
                error.context = {"operator": self.operator, "state": part.state, **error.context}
                raise
            except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
                message = f"a state file cannot be decoded: {error!r}"
                raise CheckpointCorruptError(message, operator=self.operator, state=part.state) from error

    def tables(self) -> Mapping[str, HeapTable | HeapColumnarTable]:
        """All tables by name."""
        return self._tables

    def close(self) -> None:
        """Nothing is held but memory."""

    def _restored_table(
        self, part: RestoredPart, data: pa.Table, facts: dict[str, Any]
    ) -> HeapTable | HeapColumnarTable:
        fresh: HeapTable | HeapColumnarTable
        if part.kind == "columnar":
            schema = pa.schema(list(data.schema)[len(COLUMNAR_PREFIX) :])
            fresh = HeapColumnarTable(part.state, schema, tuple(facts["key_columns"]))
        else:
            fresh = HeapTable(part.state, {fact: facts[fact] for fact in _FORM})
        known = self._tables.setdefault(part.state, fresh)
        same = type(known) is type(fresh) and (
            (known.schema, known.key_columns) == (fresh.schema, fresh.key_columns)
            if isinstance(known, HeapColumnarTable) and isinstance(fresh, HeapColumnarTable)
            else _declaration(known) == _declaration(fresh)
        )
        if not same:
            message = f"the checkpoint's files disagree about what state {part.state!r} is"
            raise CheckpointMismatchError(
                message,
                operator=self.operator,
                source_subtask=part.source_subtask,
                hint="declare state in open(), so that all subtasks know it alike",
            )
        return known

    def _owned(self, data: pa.Table) -> pa.Table:
        """The rows of own key groups: a contiguous piece, for files are sorted."""
        key_groups = data.column(0).to_numpy()
        if len(key_groups) and (np.diff(key_groups) < 0).any():
            message = "rows are not sorted by key group"
            raise ValueError(message)
        first = int(np.searchsorted(key_groups, self.key_groups.start, "left"))
        last = int(np.searchsorted(key_groups, self.key_groups.end, "right"))
        return data.slice(first, last - first)


def _declaration(table: HeapTable | HeapColumnarTable) -> dict[str, Any] | None:
    return table.form if isinstance(table, HeapTable) else None
