"""Keyed state in RocksDB: larger than memory, with checkpoints that write only what has changed.

One database per subtask, in a local directory of its own that is gone when the subtask is
(`headrace.state.files.local_directories`). What is used often is kept as Python objects in front of it
(`headrace.state.backends.rocksdb.rows`); the database itself is never more than a cache of checkpoint plus changes, so
it has no log and is thrown away by every restart.

A snapshot writes what is cached, flushes memtables and links files: that is the synchronous part. A sorted file that
the *base* checkpoint holds already is named again instead of stored again. The base is told by the one that takes the
snapshot: it is known to be complete, and its files are kept until the new checkpoint has ended
(`headrace.state.checkpoints.storage` argues why). Which files the base holds is known from its own upload
(`snapshot_stored`) or from the restore.

Source: Flink's ``RocksDBKeyedStateBackend``, ``RocksDBKeyedStateBackendBuilder``.
"""

from __future__ import annotations

import base64
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...checkpoints.snapshot import FileKind, RestoredPart, SnapshotPart, StateFile
from ...errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from ...files.local_directories import LocalDirectory
from ...identifiers import OperatorId
from ...keyed.contract import Namespace
from ...keyed.declarations import DeclaredStates, is_same_form, restored_form
from ...keyed.layouts import ELEMENTS, Merge
from ...keys.key_classes import (
    KEY_CLASSES,
    check_noted_classes,
    has_renamed_classes,
    has_shared_names,
    merged_notes,
    renamed_notes,
)
from ...keys.key_groups import KeyGroupRange
from ...reading.arrow_reading import read_arrow_schema
from .cache import RowPool
from .collection_cells import rocksdb_cell
from .columnar import RocksDBColumnarTable
from .database import Database, SlotMemory
from .files import (
    FORMAT_VERSION,
    RestoredDatabase,
    copy_owned,
    copy_renamed,
    delete_foreign,
    group_parts,
    open_restored,
    snapshot_parts,
)
from .tables import RocksDBTable

__all__ = ["RocksDBKeyedStateBackend"]

_MISSING: Any = object()


class RocksDBKeyedStateBackend(DeclaredStates[RocksDBTable, RocksDBColumnarTable]):
    """All keyed state of one operator subtask, in a database.

    Args:
        operator: The operator's uid, for errors.
        subtask: The subtask's index, for errors.
        key_groups: The key groups this subtask owns.
        max_parallelism: How many key groups there are in all.
        now_ms: The clock.
        memory: What the slot's databases share.
        local_root: Where local directories are made; None for the default place.
        max_cached_entries: How many entries are kept as Python objects at most; None for as many as fit.

    Raises:
        StorageError: From every method that reads or writes, if the database or its disk fails.
    """

    def __init__(
        self,
        operator: OperatorId,
        subtask: int,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        now_ms: Callable[[], int],
        memory: SlotMemory,
        local_root: str | None = None,
        max_cached_entries: int | None = None,
    ) -> None:
        super().__init__(operator, key_groups, max_parallelism, now_ms)
        self.subtask = subtask
        self._memory = memory
        self._max_cached_entries = max_cached_entries
        self._context: dict[str, Any] = {"operator": operator, "subtask": subtask}
        self._local_root = local_root
        # Made at first use, or by a restore.
        self._directory: LocalDirectory | None = None
        self._database: Database | None = None
        self._dispose: Callable[[], Any] = _nothing
        self._pool: RowPool | None = None
        self._next_number = 1
        # What tables of the operator hold beside their runs.
        self._table_bytes = 0
        self._num_snapshots = 0
        # Checkpoint id -> its sorted files by name, of those that may be a base.
        self._stored: dict[int, dict[str, StateFile]] = {}

    def _own_directory(self) -> LocalDirectory:
        if self._directory is None:
            self._directory = LocalDirectory.make(self._local_root, f"{self.operator}-{self.subtask}")
        return self._directory

    def _own(self, database: Database) -> Database:
        self._database = database
        # In this order, whether `close` or the collector comes first: a database that lost its files would wait for
        # them to come back.
        self._dispose = weakref.finalize(self, _dispose, database, self._own_directory())
        return database

    def _opened(self) -> RowPool:
        if self._pool is None:
            database = self._database
            if database is None:
                path = f"{self._own_directory().path}/db"
                database = self._own(Database(path, self._memory, is_restored=False, context=self._context))
            self._pool = RowPool(
                database, self._memory, self.key_groups, self.max_parallelism, self._max_cached_entries
            )
        return self._pool

    # --------------------------------------------------------------------------------------------------------- states
    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _make_table(self, name: str, form: dict[str, Any]) -> RocksDBTable:
        return RocksDBTable(name, self._take_number(), form, self._opened(), is_restored=False)

    def _make_columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> RocksDBColumnarTable:
        return self._columnar(name, self._take_number(), schema, key_columns, False)

    def _columnar(
        self, name: str, number: int, schema: pa.Schema, key_columns: Iterable[str], is_restored: bool
    ) -> RocksDBColumnarTable:
        return RocksDBColumnarTable(
            name, number, schema, tuple(key_columns), self._opened(), self._memory, is_restored=is_restored
        )

    def _make_cell(self, table: RocksDBTable, absent: Any) -> Any:
        return rocksdb_cell(self, table, absent)

    def expect(self, keys: Sequence[Any]) -> None:
        """Read what values of these keys will be asked for, all at once."""
        for table in self._tables.values():
            if isinstance(table, RocksDBTable):
                table.expect(keys)

    def _move(self, table: RocksDBTable, source: Namespace, target: Namespace, merge: Merge) -> None:
        key = self.current_key
        if table.layout is ELEMENTS:  # row by row, without those that are there
            moved = table.entries(source, key).elements()
            table.clear_entries(source, key)
            for element in moved:
                table.entries(target, key).append(element)
            return
        has_rows = table.layout.has_rows_of_parts
        space = table.namespace(source) if has_rows else table.find(source)
        merged = _MISSING if space is None else space.pop(key, _MISSING)
        if space is not None and not has_rows and not space:
            table.drop(source)
        if merged is _MISSING:
            return
        into = table.namespace(target)
        held = into.get(key, _MISSING)
        into[key] = merged if held is _MISSING else table.layout.merged(held, merged, merge)

    # ------------------------------------------------------------------------------------------------------ snapshots
    def snapshot(self, base_checkpoint: int = 0) -> list[SnapshotPart]:
        """Take the synchronous part of a snapshot; see `headrace.state.keyed.contract.KeyedStateBackend.snapshot`.

        Raises:
            TypeMismatchError: If a value cannot be stored.
        """
        self._stored = {number: files for number, files in self._stored.items() if number >= base_checkpoint}
        if self._database is None:
            return []
        self._opened().flush()
        states = []
        for table in self._tables.values():
            if isinstance(table, RocksDBColumnarTable):
                table.flush()
                form: dict[str, Any] = {
                    "key_columns": list(table.key_columns),
                    "schema": base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
                }
            else:
                form = table.facts()
            states.append({**form, "name": table.name, "id": table.number, "kind": table.kind.value})
        if self._database.is_empty():
            return []
        self._num_snapshots += 1
        path = f"{self._own_directory().path}/snapshot-{self._num_snapshots}"
        names = self._database.checkpoint(path)
        directory = LocalDirectory(path, None, self._own_directory())
        facts = {
            "format_version": FORMAT_VERSION,
            "backend": "rocksdb",
            "key_groups": [self.key_groups.start, self.key_groups.end],
            "max_parallelism": self.max_parallelism,
            "states": states,
        }
        return snapshot_parts(directory, names, facts, self._stored.get(base_checkpoint, {}))

    def snapshot_stored(self, checkpoint_id: int, files: Iterable[StateFile]) -> None:
        """Note that a snapshot has been stored: its checkpoint may become a base."""
        self._stored[checkpoint_id] = {
            file.metadata["name"]: file for file in files if file.metadata["name"].endswith(".sst")
        }

    def restore(self, parts: Iterable[RestoredPart]) -> None:
        """Load what earlier subtasks wrote, keeping only the key groups owned here. Called once, before first use.

        Raises:
            CheckpointMismatchError: If the parts are of another backend, have another max parallelism or contradict
                each other.
            CheckpointCorruptError: If files are missing or cannot be read.
        """
        databases = group_parts(parts, self.operator, self.max_parallelism, self.key_groups)
        if not databases:
            return
        base = max(databases, key=lambda database: _overlap(database.key_groups, self.key_groups))
        states: dict[str, dict[str, Any]] = {}
        try:
            self._own(open_restored(base, f"{self._own_directory().path}/db", self._memory, self._context))
            self._next_number = max([self._next_number, *(state["id"] + 1 for state in base.states)])
            for state in base.states:
                self._check_keys(state)
                is_renamed = state["kind"] == FileKind.KEYED and has_renamed_classes(state)
                states[state["name"]] = self._adopt_renamed(state) if is_renamed else state
                if not is_renamed:
                    self._adopt(state, base.key_groups)
            self._stored.update(base.stored)
            for other in databases:
                if other is not base:
                    self._copy(other, states)
        except CheckpointError as error:
            error.context = {**self._context, **error.context}
            raise
        for name, state in states.items():
            if state["kind"] == FileKind.KEYED:
                table = RocksDBTable(name, state["id"], restored_form(state), self._opened(), is_restored=True)
                if has_shared_names(state):
                    table.note_key_classes()
                self._tables[name] = table

    def _check_keys(self, state: Mapping[str, Any]) -> None:
        try:
            check_noted_classes(state)
        except CheckpointError as error:
            error.context = {"state": state["name"], **error.context}
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            message = f"what is said of the keys of a state cannot be decoded: {error!r:.300}"
            raise CheckpointCorruptError(message, state=state["name"]) from error

    def _adopt(self, state: dict[str, Any], held: KeyGroupRange) -> None:
        """Take over a state of the database that is now this subtask's own and holds some key groups."""
        assert self._database is not None
        name, number = state["name"], state["id"]
        is_wider = not (self.key_groups.start <= held.start and held.end <= self.key_groups.end)
        if state["kind"] == FileKind.COLUMNAR:
            columnar = self._columnar(name, number, _schema_of(state), state["key_columns"], True)
            self._tables[name] = columnar
            if is_wider:
                columnar.narrow()
        elif is_wider:
            delete_foreign(self._database, number, self.key_groups, name)

    def _adopt_renamed(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same, of a state whose keys' classes have other names now: all rows are written anew."""
        assert self._database is not None
        number = self._take_number()
        copy_renamed(self._database, self._database, number, state, self.key_groups, self.max_parallelism)
        old = state["id"].to_bytes(2, "big")
        self._database.delete_range(old + b"\x00\x00", old + b"\xff\xff", state["name"])
        return {**state, "id": number, KEY_CLASSES: renamed_notes(state[KEY_CLASSES])}

    def _copy(self, other: RestoredDatabase, states: dict[str, dict[str, Any]]) -> None:
        """Copy what is owned out of a database that is not this subtask's own; adds the states it brings."""
        assert self._database is not None
        directory = self._own_directory().make_child(f"restored-{other.source_subtask}")
        source = open_restored(other, f"{directory.path}/db", self._memory, self._context)
        try:
            for state in other.states:
                self._check_keys(state)
                name, number = state["name"], state["id"]
                is_renamed = state["kind"] == FileKind.KEYED and has_renamed_classes(state)
                if is_renamed:
                    state = {**state, KEY_CLASSES: renamed_notes(state[KEY_CLASSES])}
                elif not self.key_groups.overlaps(*other.key_groups):
                    continue
                known = states.get(name)
                if known is None:
                    known = states[name] = {**state, "id": self._take_number()}
                    if state["kind"] == FileKind.COLUMNAR:
                        schema = _schema_of(state)
                        self._tables[name] = self._columnar(name, known["id"], schema, state["key_columns"], False)
                elif not is_same_form({**known, "id": number}, state):
                    message = f"the checkpoint's files disagree about what state {name!r} is"
                    hint = "declare state in open(), so that all subtasks know it alike"
                    raise CheckpointMismatchError(message, hint=hint, source_subtask=other.source_subtask)
                elif KEY_CLASSES in state:
                    known[KEY_CLASSES] = merged_notes(known.get(KEY_CLASSES), state[KEY_CLASSES])
                table = self._tables.get(name)
                if isinstance(table, RocksDBColumnarTable):
                    table.rescaled(source, number.to_bytes(2, "big") + b"\xff\xff")
                elif is_renamed:
                    copy_renamed(source, self._database, known["id"], state, self.key_groups, self.max_parallelism)
                else:
                    copy_owned(source, number, self._database, known["id"], self.key_groups, name)
        finally:
            source.close()
            directory.close()

    # --------------------------------------------------------------------------------------------- for snapshot writers
    def stored_table(self, name: str, form: dict[str, Any]) -> RocksDBTable:
        """Return a new table that takes values in their stored form, as it would have been restored and not declared.

        Args:
            name: The state's; there must be none.
            form: Its facts, as `headrace.state.keyed.declarations.form_of` gives them.
        """
        table = self._tables[name] = self._make_table(name, dict(form))
        return table

    def drop_state(self, name: str) -> None:
        """Forget a restored state with everything it holds."""
        table = self._tables.pop(name, None)
        if table is not None and self._database is not None:
            prefix = table.number.to_bytes(2, "big")
            self._database.delete_range(prefix, (table.number + 1).to_bytes(2, "big"), name)

    def managed_bytes(self) -> int | None:
        """Return its part of the slot's cache, and what is kept as objects and as runs in front of it."""
        if self._database is None or self._pool is None:
            return None
        columnar = sum(table.num_bytes for table in self._tables.values() if isinstance(table, RocksDBColumnarTable))
        return self._memory.cache_share() + self._pool.num_bytes() + columnar + self._table_bytes

    def table_room(self) -> int | None:
        """Return its part of the slot's memory for tables."""
        self._opened()
        return self._memory.table_share()

    def hold_tables(self, num_bytes: int, what: str) -> None:
        """Count what tables hold; what is too much they put aside themselves."""
        self._table_bytes = num_bytes

    def close(self) -> None:
        """Close the database and remove its directory. A second call does nothing."""
        self._dispose()
        if self._directory is not None:
            self._directory.close()


def _dispose(database: Database, directory: LocalDirectory) -> None:
    try:
        database.close()
    finally:
        directory.close()


def _nothing() -> None:
    """There is no database yet."""


def _overlap(one: KeyGroupRange, other: KeyGroupRange) -> int:
    return min(one.end, other.end) - max(one.start, other.start)


def _schema_of(state: dict[str, Any]) -> pa.Schema:
    return read_arrow_schema(state["schema"], f"the schema of state {state['name']!r:.200}")
