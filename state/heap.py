"""State in the subtask's own memory: dictionaries and runs of record batches, written to Arrow files for checkpoints.

Keyed tables are ``namespace -> key -> value`` dictionaries; the mapping an operator gets is the dictionary itself. A
snapshot copies dictionaries shallowly when their values are immutable by type, one level deeper when they are lists or
dicts of such values, and encodes the rest on the spot; bytes are made later, on another thread. Runs of columnar
tables are immutable, so copying lists of them is enough.

*Files.* One Arrow IPC file per state, rows sorted by key group, so that a subtask with other key groups reads a range.
Keyed: ``key_group, [window_start, window_end,] key, value``. Columnar: ``headrace.key_group, headrace.window_start,
headrace.window_end`` and the table's own columns. Operator state: ``value``. The schema's metadata ``headrace.state``
(JSON) says how to read keys and values.

What a restore brought and the program has not asked for (yet) is kept and is part of every later snapshot: functions
may declare state at their first record.

Source: Flink's ``HeapKeyedStateBackend``, ``CopyOnWriteStateTable``, ``DefaultOperatorStateBackend``; rows E4 to E8.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
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
    TypeMismatchError,
)
from headrace.state.handles import (
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
)
from headrace.state.identifiers import OperatorId
from headrace.state.keygroups import KeyGroupRange, hash_columns, hash_keys, key_groups_of
from headrace.state.serde import decode_values, encode_values

__all__ = ["FORMAT_VERSION", "HeapKeyedStateBackend", "HeapOperatorStateBackend"]

FORMAT_VERSION = 1
"""Of state files; a restore refuses newer ones."""

_FACTS = b"headrace.state"
_COLUMNAR_PREFIX = (
    pa.field("headrace.key_group", pa.int32()),
    pa.field("headrace.window_start", pa.int64()),
    pa.field("headrace.window_end", pa.int64()),
)


# ----------------------------------------------------------------------------------------------------------- freezing
_CLOCKS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
_IMMUTABLE = frozenset((int, float, bool, str, bytes, type(None), complex, Decimal, *_CLOCKS))


def _are_immutable(values: Sequence[Any]) -> bool:
    """Whether nothing can change any of the values, judging by their types; tuples are looked into."""
    kinds = set(map(type, values))
    if kinds <= _IMMUTABLE:
        return True
    if not kinds <= _IMMUTABLE | {tuple}:
        return False
    inner = chain.from_iterable(value for value in values if type(value) is tuple)
    return _are_immutable(list(inner))


def _freeze(values: list[Any]) -> list[Any] | None:
    """The values, safe from later changes, or None if only encoding them makes them so. ``values`` is a fresh list."""
    if _are_immutable(values):
        return values
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {list}:
        if _are_immutable(list(chain.from_iterable(value for value in values if value is not None))):
            return [None if value is None else value.copy() for value in values]
    elif kinds == {dict}:
        present = [value for value in values if value is not None]
        if _are_immutable(list(chain.from_iterable(value.values() for value in present))):
            return [None if value is None else value.copy() for value in values]
    return None


class _Column:
    """Values on their way into a file: frozen now, encoded now or when the file is written."""

    __slots__ = ("_encoded", "_frozen", "_state")

    def __init__(self, values: list[Any], state: str) -> None:
        self._state = state
        self._frozen = _freeze(values)
        self._encoded = self._encode(values) if self._frozen is None else None

    def encode(self) -> tuple[pa.Array, Any]:
        """The column and its encoding."""
        if self._encoded is not None:
            return self._encoded
        assert self._frozen is not None
        return self._encode(self._frozen)

    def _encode(self, values: list[Any]) -> tuple[pa.Array, Any]:
        try:
            return encode_values(values)
        except TypeMismatchError as error:
            error.context = {"state": self._state, **error.context}
            raise


def _write_file(table: pa.Table, facts: dict[str, Any]) -> bytes:
    schema = table.schema.with_metadata(
        {**(table.schema.metadata or {}), _FACTS: json.dumps(facts, sort_keys=True).encode()}
    )
    table = table.replace_schema_metadata(schema.metadata).unify_dictionaries()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _read_file(part: RestoredPart, operator: str) -> tuple[pa.Table, dict[str, Any]]:
    """Open a state file and check that it is what its name in the manifest says.

    Raises:
        CheckpointCorruptError: If it is no such file.
        CheckpointMismatchError: If a newer version wrote it.
    """
    context: dict[str, Any] = {"operator": operator, "state": part.state, "source_subtask": part.source_subtask}
    try:
        table = pa.ipc.open_file(pa.BufferReader(part.data)).read_all()
        facts = json.loads(table.schema.metadata[_FACTS])
        version, kind, state = int(facts["format_version"]), facts["kind"], facts["state"]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        message = f"a state file cannot be decoded: {error!r}"
        raise CheckpointCorruptError(message, **context) from error
    if version > FORMAT_VERSION:
        message = f"a state file has format version {version}; this Headrace reads up to {FORMAT_VERSION}"
        raise CheckpointMismatchError(message, **context)
    if (kind, state) != (part.kind, part.state):
        message = f"a state file holds {kind} state {state!r} where its manifest says {part.kind} state {part.state!r}"
        raise CheckpointCorruptError(message, **context)
    return table.unify_dictionaries(), facts


def _windows(namespaces: Iterable[Namespace], sizes: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """The columns window_start and window_end: each namespace's bounds repeated; null for the namespace None."""
    bounds = list(namespaces)
    columns = []
    for side in (0, 1):
        single = pa.array([None if bound is None else bound[side] for bound in bounds], pa.int64())
        columns.append(single.take(pa.array(np.repeat(np.arange(len(bounds)), sizes))))
    return columns[0], columns[1]


def _check_owned(key_groups: npt.NDArray[np.int32], facts: dict[str, Any], keys: Any) -> None:
    """State of a foreign key would be lost at the next restore: better no checkpoint than that one."""
    first, last = facts["key_groups"]
    foreign = np.flatnonzero((key_groups < first) | (key_groups > last))
    if len(foreign):
        index = int(foreign[0])
        key = keys[index] if isinstance(keys, list) else keys.slice(index, 1).to_pylist()[0]
        message = (
            f"a subtask that owns key groups {first} to {last} has a key of group {key_groups[index]}: {key!r:.200}"
        )
        raise InternalError(
            message,
            state=facts["state"],
            hint="the same key must always hash alike: check its class and the key selector",
        )


# ------------------------------------------------------------------------------------------------------------- tables
class _HeapTable:
    """(namespace, key) -> value in dictionaries."""

    kind = "keyed"

    def __init__(self, name: str, descriptor_kind: str, value_type: str | None, windowed: bool) -> None:
        self.name = name
        # What the program declared, or the checkpoint it was restored from until then.
        self.descriptor_kind = descriptor_kind
        self.value_type = value_type
        self.windowed = windowed
        self.declared = False
        self._spaces: dict[Namespace, dict[Any, Any]] = {}

    def namespace(self, namespace: Namespace) -> dict[Any, Any]:
        space = self._spaces.get(namespace)
        if space is None:
            if namespace is not None and not self.windowed:
                message = f"state {self.name!r} is not windowed; it has no namespace {namespace}"
                raise InternalError(message)
            space = self._spaces[namespace] = {}
        return space

    def namespaces(self) -> list[Namespace]:
        return [namespace for namespace, space in self._spaces.items() if space]

    def drop(self, namespace: Namespace) -> None:
        self._spaces.pop(namespace, None)

    def snapshot(self, facts: dict[str, Any], max_parallelism: int) -> SnapshotPart | None:
        """The synchronous part; None if there is nothing to write."""
        spaces = [(namespace, space) for namespace, space in self._spaces.items() if space]
        if not spaces:
            return None
        sizes = [len(space) for _, space in spaces]
        keys: list[Any] = []
        values: list[Any] = []
        for _, space in spaces:
            keys.extend(space)
            values.extend(space.values())
        facts = {**facts, "descriptor": self.descriptor_kind, "value_type": self.value_type, "windowed": self.windowed}
        namespaces = [namespace for namespace, _ in spaces]
        # Keys are hashable and so, by contract, never change; encoding them can wait.
        write = functools.partial(
            self._write, facts, namespaces, sizes, keys, _Column(values, self.name), max_parallelism
        )
        return SnapshotPart(self.name, self.kind, facts, write)

    @staticmethod
    def _write(
        facts: dict[str, Any],
        namespaces: list[Namespace],
        sizes: list[int],
        keys: list[Any],
        values: _Column,
        max_parallelism: int,
    ) -> bytes:
        key_groups = key_groups_of(hash_keys(keys), max_parallelism)
        _check_owned(key_groups, facts, keys)
        key_column, key_encoding = encode_values(keys)
        value_column, value_encoding = values.encode()
        columns: dict[str, pa.Array] = {"key_group": pa.array(key_groups)}
        if facts["windowed"]:
            columns["window_start"], columns["window_end"] = _windows(namespaces, sizes)
        columns["key"] = key_column
        columns["value"] = value_column
        table = pa.table(columns).take(pa.array(np.argsort(key_groups, kind="stable")))
        return _write_file(table, {**facts, "key_encoding": key_encoding, "value_encoding": value_encoding})

    def load(self, table: pa.Table, facts: dict[str, Any]) -> None:
        """Add the rows of one file; ``table`` holds owned key groups only."""
        keys = decode_values(table.column("key"), facts["key_encoding"])
        values = decode_values(table.column("value"), facts["value_encoding"])
        if not self.windowed:
            self.namespace(None).update(zip(keys, values, strict=True))
            return
        starts, ends = table.column("window_start").to_pylist(), table.column("window_end").to_pylist()
        for start, end, key, value in zip(starts, ends, keys, values, strict=True):
            self.namespace(None if start is None else (start, end))[key] = value


class _HeapColumnarTable:
    """namespace -> runs of record batches."""

    kind = "columnar"

    def __init__(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> None:
        self.name = name
        self.schema = schema.remove_metadata()
        self.key_columns = key_columns
        self.declared = False
        self._runs: dict[Namespace, list[pa.RecordBatch]] = {}

    def append(self, namespace: Namespace, run: pa.RecordBatch) -> None:
        self._check(run)
        self._runs.setdefault(namespace, []).append(run)

    def runs(self, namespace: Namespace) -> list[pa.RecordBatch]:
        return list(self._runs.get(namespace, ()))

    def replace(self, namespace: Namespace, runs: list[pa.RecordBatch]) -> None:
        for run in runs:
            self._check(run)
        if runs:
            self._runs[namespace] = list(runs)
        else:
            self._runs.pop(namespace, None)

    def namespaces(self) -> list[Namespace]:
        return list(self._runs)

    def drop(self, namespace: Namespace) -> None:
        self._runs.pop(namespace, None)

    def _check(self, run: pa.RecordBatch) -> None:
        if not run.schema.equals(self.schema):
            wanted = _one_line(self.schema)
            message = f"a run of columnar state {self.name!r} has schema {_one_line(run.schema)}; it must be {wanted}"
            raise TypeMismatchError(message)

    def snapshot(self, facts: dict[str, Any], max_parallelism: int) -> SnapshotPart | None:
        """The synchronous part; None if there is nothing to write."""
        captured = [(namespace, list(runs)) for namespace, runs in self._runs.items()]
        if not any(run.num_rows for _, runs in captured for run in runs):
            return None
        facts = {**facts, "key_columns": list(self.key_columns), "columns": _one_line(self.schema)}
        write = functools.partial(self._write, facts, captured, self.schema, self.key_columns, max_parallelism)
        return SnapshotPart(self.name, self.kind, facts, write)

    @staticmethod
    def _write(
        facts: dict[str, Any],
        captured: list[tuple[Namespace, list[pa.RecordBatch]]],
        schema: pa.Schema,
        key_columns: tuple[str, ...],
        max_parallelism: int,
    ) -> bytes:
        runs = [run.replace_schema_metadata(None) for _, runs in captured for run in runs]
        sizes = [sum(run.num_rows for run in runs) for _, runs in captured]
        rows = pa.Table.from_batches(runs, schema)
        columns = [rows.column(name).combine_chunks() for name in key_columns]
        key_groups = key_groups_of(hash_columns(columns), max_parallelism)
        _check_owned(key_groups, facts, rows)
        prefix = [pa.array(key_groups), *_windows((namespace for namespace, _ in captured), sizes)]
        table = pa.Table.from_arrays([*prefix, *rows.columns], schema=pa.schema([*_COLUMNAR_PREFIX, *schema]))
        return _write_file(table.take(pa.array(np.argsort(key_groups, kind="stable"))), facts)

    def load(self, table: pa.Table) -> None:
        """Add the rows of one file, as one run per namespace; ``table`` holds owned key groups only."""
        bounds = pa.StructArray.from_arrays(
            [table.column(1).combine_chunks(), table.column(2).combine_chunks()], ["start", "end"]
        )
        where: dict[Namespace, list[int]] = {}
        for index, bound in enumerate(zip(bounds.field(0).to_pylist(), bounds.field(1).to_pylist(), strict=True)):
            where.setdefault(None if bound[0] is None else bound, []).append(index)
        rows = table.select(range(len(_COLUMNAR_PREFIX), table.num_columns)).replace_schema_metadata(None)
        for namespace, indices in where.items():
            for run in rows.take(pa.array(indices)).combine_chunks().to_batches():
                self.append(namespace, run)


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


# ------------------------------------------------------------------------------------------------------ keyed backend
class HeapKeyedStateBackend:
    """All keyed state of one operator subtask, in memory.

    Args:
        operator: The operator's uid, for errors.
        key_groups: The key groups this subtask owns.
        max_parallelism: How many key groups there are in all.

    Attributes:
        current_key: The key that user handles read and write; `NO_KEY` outside of a keyed call. Set by the operator,
            before each record.
    """

    def __init__(self, operator: OperatorId, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        self.operator = operator
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.current_key: Any = NO_KEY
        # By name, in order of declaration; restored ones first.
        self._tables: dict[str, _HeapTable | _HeapColumnarTable] = {}

    # -------------------------------------------------------------------------------------------------------- declare
    def table(self, descriptor: StateDescriptor, *, windowed: bool = False) -> _HeapTable:
        """The table of a state, made or restored on first use.

        Raises:
            ProgramError: If the name was declared before, as another kind of state.
            CheckpointMismatchError: If the restored checkpoint has another kind or type of state under that name.
        """
        name, value_type = descriptor.name, type_text(descriptor.value_type)
        known = self._tables.get(name)
        if known is None:
            known = _HeapTable(name, descriptor.kind, value_type, windowed)
            self._tables[name] = known
        elif not isinstance(known, _HeapTable) or (known.descriptor_kind, known.windowed) != (
            descriptor.kind,
            windowed,
        ):
            self._refuse(known, f"{descriptor.kind}{' windowed' if windowed else ''} state")
        elif known.value_type != value_type:
            if known.value_type is not None and value_type is not None:
                self._refuse(known, f"{descriptor.kind} state of {value_type}")
            known.value_type = value_type if value_type is not None else known.value_type
        assert isinstance(known, _HeapTable)
        known.declared = True
        return known

    def columnar_table(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...]) -> _HeapColumnarTable:
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
            known = _HeapColumnarTable(name, schema, tuple(key_columns))
            self._tables[name] = known
        elif (
            not isinstance(known, _HeapColumnarTable)
            or known.key_columns != tuple(key_columns)
            or not known.schema.equals(schema)
        ):
            self._refuse(known, f"columnar state ({_one_line(schema)}) with key {list(key_columns)}")
        assert isinstance(known, _HeapColumnarTable)
        known.declared = True
        return known

    def _refuse(self, known: _HeapTable | _HeapColumnarTable, wanted: str) -> None:
        if isinstance(known, _HeapTable):
            typed = f" of {known.value_type}" if known.value_type is not None else ""
            there = f"{known.descriptor_kind}{' windowed' if known.windowed else ''} state{typed}"
        else:
            there = f"columnar state ({_one_line(known.schema)}) with key {list(known.key_columns)}"
        if known.declared:
            message = f"state {known.name!r} is declared twice: as {there} and as {wanted}"
            raise ProgramError(message, operator=self.operator)
        message = f"the checkpoint has {there} under the name {known.name!r}; the program declares {wanted}"
        raise CheckpointMismatchError(
            message, operator=self.operator, hint="give changed state a new name, or the operator a new uid"
        )

    # -------------------------------------------------------------------------------------------------------- handles
    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        return HeapValueState(self, self.table(descriptor).namespace(None), descriptor)

    def list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        return HeapListState(self, self.table(descriptor).namespace(None), descriptor)

    def map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        return HeapMapState(self, self.table(descriptor).namespace(None), descriptor)

    def reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        return HeapReducingState(self, self.table(descriptor).namespace(None), descriptor)

    def aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """A handle bound to the current key; raises StateAccessError when used outside a key."""
        return HeapAggregatingState(self, self.table(descriptor).namespace(None), descriptor)

    # ------------------------------------------------------------------------------------------------------ snapshots
    def snapshot(self) -> list[SnapshotPart]:
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
            part = table.snapshot(facts, self.max_parallelism)
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
            data, facts = _read_file(part, self.operator)
            try:
                if facts["max_parallelism"] != self.max_parallelism:
                    there = facts["max_parallelism"]
                    message = f"the checkpoint has max parallelism {there}; the operator has {self.max_parallelism}"
                    raise CheckpointMismatchError(message, operator=self.operator, state=part.state)
                table = self._restored_table(part, data, facts)
                owned = self._owned(data)
                if owned.num_rows:
                    table.load(owned) if isinstance(table, _HeapColumnarTable) else table.load(owned, facts)
            except CheckpointError as error:
                error.context = {"operator": self.operator, "state": part.state, **error.context}
                raise
            except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError) as error:
                message = f"a state file cannot be decoded: {error!r}"
                raise CheckpointCorruptError(message, operator=self.operator, state=part.state) from error

    def _restored_table(
        self, part: RestoredPart, data: pa.Table, facts: dict[str, Any]
    ) -> _HeapTable | _HeapColumnarTable:
        fresh: _HeapTable | _HeapColumnarTable
        if part.kind == "columnar":
            schema = pa.schema(list(data.schema)[len(_COLUMNAR_PREFIX) :])
            fresh = _HeapColumnarTable(part.state, schema, tuple(facts["key_columns"]))
        else:
            fresh = _HeapTable(part.state, facts["descriptor"], facts["value_type"], facts["windowed"])
        known = self._tables.setdefault(part.state, fresh)
        same = type(known) is type(fresh) and (
            (known.schema, known.key_columns) == (fresh.schema, fresh.key_columns)
            if isinstance(known, _HeapColumnarTable) and isinstance(fresh, _HeapColumnarTable)
            else _declaration(known) == _declaration(fresh)
        )
        if not same:
            message = f"the checkpoint's files disagree about what state {part.state!r} is"
            raise CheckpointMismatchError(message, operator=self.operator, source_subtask=part.source_subtask)
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


def _declaration(table: _HeapTable | _HeapColumnarTable) -> tuple[Any, ...] | None:
    return (table.descriptor_kind, table.value_type, table.windowed) if isinstance(table, _HeapTable) else None


# --------------------------------------------------------------------------------------------------- operator backend
class _HeapList:
    """One list or union list state."""

    def __init__(self, kind: str, values: list[Any]) -> None:
        self.kind = kind
        self.values = values
        # This subtask's deal of a restored union list: what it writes while the program has not declared the state.
        self.share = values
        self.declared = False

    def get(self) -> list[Any]:
        return list(self.values)

    def update(self, values: list[Any]) -> None:
        self.values = list(values)


class HeapOperatorStateBackend:
    """All non-keyed state of one operator subtask, in memory.

    Args:
        operator: The operator's uid, for errors.
    """

    def __init__(self, operator: OperatorId) -> None:
        self.operator = operator
        self._states: dict[str, _HeapList] = {}

    def list_state(self, name: str) -> _HeapList:
        """State whose elements are dealt out over the subtasks on restore (row E6)."""
        return self._state(name, "list")

    def union_list_state(self, name: str) -> _HeapList:
        """State that every subtask receives in full on restore (row E7).

        A subtask that then keeps all elements writes them all, so that the next restore has each as many times as
        there were subtasks: users keep what is theirs, by ``update``.
        """
        return self._state(name, "union")

    def _state(self, name: str, kind: str) -> _HeapList:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = _HeapList(kind, [])
        elif state.kind != kind:
            if state.declared:
                message = f"operator state {name!r} is declared twice: as {state.kind} and as {kind} state"
                raise ProgramError(message, operator=self.operator)
            message = (
                f"the checkpoint has {state.kind} state under the name {name!r}; the program declares {kind} state"
            )
            raise CheckpointMismatchError(message, operator=self.operator)
        state.declared = True
        return state

    def snapshot(self) -> list[SnapshotPart]:
        """The synchronous part of a snapshot. Empty lists write nothing.

        Raises:
            TypeMismatchError: If a value cannot be stored; maybe only from a part's ``write``.
        """
        parts = []
        for name, state in self._states.items():
            values = state.values if state.declared else state.share
            if values:
                facts = {"format_version": FORMAT_VERSION, "state": name, "kind": state.kind}
                write = functools.partial(_write_list, facts, _Column(list(values), name))
                parts.append(SnapshotPart(name, state.kind, facts, write))
        return parts

    def restore(self, parts: Iterable[RestoredPart], subtask: int, parallelism: int) -> None:
        """Load what earlier subtasks wrote. Called once, before first use.

        Args:
            parts: Those of *all* earlier subtasks: elements are dealt out by their place in the whole list.
            subtask: This subtask's index.
            parallelism: How many subtasks there are now.

        Raises:
            CheckpointMismatchError: If the parts contradict each other or hold values that cannot be built.
            CheckpointCorruptError: If a part cannot be decoded.
        """
        merged: dict[str, tuple[str, list[Any]]] = {}
        for part in sorted(parts, key=lambda part: part.source_subtask):
            data, facts = _read_file(part, self.operator)
            kind, values = merged.setdefault(part.state, (part.kind, []))
            if kind != part.kind:
                message = f"the checkpoint's files disagree about what state {part.state!r} is"
                raise CheckpointMismatchError(message, operator=self.operator, source_subtask=part.source_subtask)
            try:
                values.extend(decode_values(data.column("value"), facts["value_encoding"]))
            except KeyError as error:
                message = f"a state file cannot be decoded: {error!r}"
                raise CheckpointCorruptError(message, operator=self.operator, state=part.state) from error
        for name, (kind, values) in merged.items():
            share = values[subtask::parallelism]
            state = self._states[name] = _HeapList(kind, share if kind == "list" else values)
            state.share = share


def _write_list(facts: dict[str, Any], values: _Column) -> bytes:
    column, encoding = values.encode()
    return _write_file(pa.table({"value": column}), {**facts, "value_encoding": encoding})
