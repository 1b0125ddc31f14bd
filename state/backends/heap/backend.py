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

Source: Flink's ``HeapKeyedStateBackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from ...checkpoints.snapshot import FileKind, RestoredPart, SnapshotPart, StateFile
from ...checkpoints.state_files import FORMAT_VERSION, read_state_file
from ...errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    InternalError,
)
from ...identifiers import OperatorId
from ...keyed.contract import Namespace
from ...keyed.declarations import DeclaredStates, is_same_form, restored_form
from ...keyed.handles import heap_cell
from ...keyed.layouts import Merge
from ...keyed.managed_memory import ManagedMemory, MemoryAccount
from ...keys.hashing import hash_keys, with_one_nan
from ...keys.key_classes import check_noted_classes, has_renamed_classes
from ...keys.key_groups import KeyGroupRange, key_groups_of
from ...values.encoding import decode_values
from .operator_state import HeapOperatorStateBackend
from .tables import COLUMNAR_PREFIX, HeapColumnarTable, HeapTable

__all__ = ["FORMAT_VERSION", "HeapKeyedStateBackend", "HeapOperatorStateBackend"]


def no_clock() -> int:
    """Return the clock of a backend that was given none.

    Raises:
        InternalError: Always.
    """
    message = "state with a time to live needs a backend with a clock"
    raise InternalError(message)


_MISSING: Any = object()


class HeapKeyedStateBackend(DeclaredStates[HeapTable, HeapColumnarTable]):
    """All keyed state of one operator subtask, in memory.

    Args:
        operator: The operator's uid, for errors.
        key_groups: The key groups this subtask owns.
        max_parallelism: How many key groups there are in all.
        now_ms: The clock; only state with a time to live needs one.
        account: Where columnar state is counted; None bounds nothing.
    """

    def __init__(
        self,
        operator: OperatorId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        now_ms: Callable[[], int] = no_clock,
        account: MemoryAccount | None = None,
    ) -> None:
        super().__init__(operator, key_groups, max_parallelism, now_ms)
        self._account = account or ManagedMemory().account()
        # What tables of the operator hold beside their runs.
        self._table_bytes = 0

    def _make_table(self, name: str, form: dict[str, Any]) -> HeapTable:
        return HeapTable(name, form)

    def _make_columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> HeapColumnarTable:
        return HeapColumnarTable(name, schema, key_columns, self._account)

    def _make_cell(self, table: HeapTable, absent: Any) -> Any:
        return heap_cell(self, table, table.layout, absent, table.windowed)

    def _move(self, table: HeapTable, source: Namespace, target: Namespace, merge: Merge) -> None:
        space = table.find(source)
        if space is None:
            return
        merged = space.pop(self.current_key, _MISSING)
        if not space:
            table.drop(source)
        if merged is _MISSING:
            return
        into = table.namespace(target)
        held = into.get(self.current_key, _MISSING)
        into[self.current_key] = merged if held is _MISSING else table.layout.merged(held, merged, merge)

    # ------------------------------------------------------------------------------------------------------ snapshots
    def snapshot_stored(self, checkpoint_id: int, files: Iterable[StateFile]) -> None:
        """Remember nothing: every snapshot is complete in itself."""

    def snapshot(self, base_checkpoint: int = 0) -> list[SnapshotPart]:
        """Take the synchronous part of a snapshot: a consistent view as of now. States without a key write nothing.

        Raises:
            TypeMismatchError: If a value cannot be stored; maybe only from a part's ``write``.
        """
        parts = []
        for table in self._tables.values():
            facts = {
                "format_version": FORMAT_VERSION,
                "state": table.name,
                "kind": table.kind.value,
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
                check_noted_classes(facts)
                table = self._restored_table(part, data, facts)
                is_renamed = part.kind is FileKind.KEYED and has_renamed_classes(facts)
                owned = self._owned_anew(data, facts) if is_renamed else self._owned(data)
                if owned.num_rows:
                    table.load(owned) if isinstance(table, HeapColumnarTable) else table.load(owned, facts)
            except CheckpointError as error:
                error.context = {"operator": self.operator, "state": part.state, **error.context}
                raise
            except (
                pa.ArrowException,
                AttributeError,
                KeyError,
                IndexError,
                MemoryError,
                TypeError,
                ValueError,
            ) as error:
                message = f"a state file cannot be decoded: {error!r:.300}"
                raise CheckpointCorruptError(message, operator=self.operator, state=part.state) from error

    def table_room(self) -> int | None:
        """Return None: what would be put aside would stay in memory."""
        return None

    def hold_tables(self, num_bytes: int, what: str) -> None:
        """Count what tables hold; see `headrace.state.keyed.contract.KeyedStateBackend.hold_tables`.

        Raises:
            ManagedMemoryError: If it is more than there is.
        """
        if num_bytes != self._table_bytes:
            self._account.take(num_bytes - self._table_bytes, what)
            self._table_bytes = num_bytes

    def managed_bytes(self) -> int | None:
        """Return what columnar state holds, and tables beside it."""
        return self._account.used_bytes if self._account.is_used else None

    def close(self) -> None:
        """Count the memory no more; nothing else is held."""
        self._account.close()

    def _restored_table(
        self, part: RestoredPart, data: pa.Table, facts: dict[str, Any]
    ) -> HeapTable | HeapColumnarTable:
        fresh: HeapTable | HeapColumnarTable
        if part.kind is FileKind.COLUMNAR:
            schema = pa.schema(list(data.schema)[len(COLUMNAR_PREFIX) :])
            fresh = HeapColumnarTable(part.state, schema, tuple(facts["key_columns"]), self._account)
        else:
            fresh = HeapTable(part.state, restored_form(facts))
        known = self._tables.setdefault(part.state, fresh)
        same = type(known) is type(fresh) and (
            (known.schema, known.key_columns) == (fresh.schema, fresh.key_columns)
            if isinstance(known, HeapColumnarTable) and isinstance(fresh, HeapColumnarTable)
            else is_same_form(_declaration(known), _declaration(fresh))
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

    def _owned_anew(self, data: pa.Table, facts: dict[str, Any]) -> pa.Table:
        """The rows of own key groups, where these are not those that keys were hashed to."""
        keys = with_one_nan(decode_values(data.column("key"), facts["key_encoding"]))
        key_groups = key_groups_of(hash_keys(keys), self.max_parallelism)
        first, last = self.key_groups
        return data.filter(pa.array((key_groups >= first) & (key_groups <= last)))


def _declaration(table: HeapTable | HeapColumnarTable) -> dict[str, Any]:
    return table.form if isinstance(table, HeapTable) else {}
