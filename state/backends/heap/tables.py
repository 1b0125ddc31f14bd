"""The heap backend's tables: dictionaries of keyed state, and runs of record batches.

Keyed tables are ``namespace -> key -> value`` dictionaries; the mapping an operator gets is the dictionary itself. Runs
of columnar tables are immutable, so copying lists of them is enough for a snapshot.

A restored table that has not been declared holds values in their stored form (records lowered to dicts, see
`headrace.state.keyed.evolution`) and writes them as they came. Declaring it brings them to the declared form and lifts
them, all at once, so that a checkpoint that does not fit is refused before the first record.

Source: Flink's ``CopyOnWriteStateTable``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...checkpoints.snapshot import FileKind, SnapshotPart
from ...checkpoints.state_files import FrozenColumn, write_state_file
from ...errors import InternalError, TypeMismatchError
from ...keyed.contract import Namespace
from ...keyed.declarations import columns_text, declare_form
from ...keyed.evolution import fitted, migration, of_part, of_whole
from ...keyed.kinds import StateDescriptor, layout_of_kind
from ...keyed.layouts import ENTRIES, NOTHING
from ...keyed.managed_memory import MemoryAccount
from ...keyed.ttl import StateTtlConfig
from ...keys.column_hashing import hash_columns
from ...keys.hashing import hash_keys, with_one_nan
from ...keys.key_classes import KEY_CLASSES, check_key_classes, notes_of
from ...keys.key_groups import key_groups_of
from ...reading.program_classes import own_classes_in
from ...values.encoding import decode_values, encode_values
from ...values.sharing import shown
from ...values.type_sources import type_of_hint
from ...values.types import Change

__all__ = ["COLUMNAR_PREFIX", "HeapColumnarTable", "HeapTable"]

COLUMNAR_PREFIX = (
    pa.field("headrace.key_group", pa.int32()),
    pa.field("headrace.window_start", pa.int64()),
    pa.field("headrace.window_end", pa.int64()),
)
_ABSENT: Any = object()


_MAX_WASTE_BYTES = 64 << 10


def _num_bytes(runs: Iterable[pa.RecordBatch]) -> int:
    return sum(run.nbytes for run in runs)


def _of_its_own(run: pa.RecordBatch) -> pa.RecordBatch:
    """A small piece of a large batch would keep all of that in memory, and count for little: it is copied."""
    if run.get_total_buffer_size() <= 2 * run.nbytes + _MAX_WASTE_BYTES:
        return run
    return run.take(pa.array(np.arange(run.num_rows)))


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
            f"a subtask that owns key groups {first} to {last} has a key of group {key_groups[index]}: {shown(key)}"
        )
        raise InternalError(
            message,
            state=facts["state"],
            hint="the same key must always hash alike: check its class and the key selector",
        )


class HeapTable:
    """(namespace, key) -> value in dictionaries.

    Args:
        name: The state's.
        form: Its facts: ``descriptor`` (the kind), ``value_type``, ``windowed`` and its stored form.
    """

    kind = FileKind.KEYED

    def __init__(self, name: str, form: Mapping[str, Any]) -> None:
        self.name = name
        # What the program declared, or the checkpoint it was restored from until then.
        self.form = dict(form)
        self.layout = layout_of_kind(form["descriptor"])
        self.value_type: str | None = form["value_type"]
        self.windowed: bool = form["windowed"]
        self.ttl: StateTtlConfig | None = None
        self.declared = False
        # Turns all that a key holds into what is stored; None if that is the same, as while the table is undeclared.
        self._lower: Change | None = None
        self._spaces: dict[Namespace, dict[Any, Any]] = {}
        # What a sweep has still to look at in this round: keys of the namespace at hand, and further namespaces.
        self._unswept_keys: list[Any] = []
        self._unswept: list[Namespace] = []
        self._swept: Namespace = None

    def declare(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None:
        """Bring what was restored to the form that the program has declared.

        Raises:
            CheckpointMismatchError: If that cannot be.
        """
        if self._spaces:
            change = migration(self.form, descriptor, now_ms)
            lift = of_part(descriptor.ttl is not None, type_of_hint(descriptor.value_type).lift)
            for of_one in (change, lift):
                step = of_whole(self.layout, of_one)
                if step is not None:
                    for space in self._spaces.values():
                        for key, stored in space.items():
                            space[key] = step(stored)
        self.declared = True
        declare_form(self.form, descriptor, self.windowed)
        self.value_type = self.form["value_type"]
        self.ttl = descriptor.ttl
        self._lower = of_whole(self.layout, of_part(self.ttl is not None, type_of_hint(descriptor.value_type).lower))

    def namespace(self, namespace: Namespace) -> dict[Any, Any]:
        space = self._spaces.get(namespace)
        if space is None:
            if namespace is not None and not self.windowed:
                message = f"state {self.name!r} is not windowed; it has no namespace {namespace}"
                raise InternalError(message)
            space = self._spaces[namespace] = {}
        return space

    def find(self, namespace: Namespace) -> dict[Any, Any] | None:
        """Return the mapping of a namespace, if there is one."""
        return self._spaces.get(namespace)

    def look_up(self, namespace: Namespace, key: Any, default: Any) -> Any:
        """Return what a key holds in a namespace, without making one; for those who only look."""
        space = self._spaces.get(namespace)
        return default if space is None else space.get(key, default)

    def some_keys(self) -> Iterable[Any]:
        """Return the keys of all namespaces, for those who look at the first ones: however many namespaces
        there are.
        """
        return chain.from_iterable(self._spaces.values())

    def namespaces(self) -> list[Namespace]:
        return [namespace for namespace, space in self._spaces.items() if space]

    def drop(self, namespace: Namespace) -> None:
        self._spaces.pop(namespace, None)

    def sweep(self, num_entries: int, cutoff_ms: int) -> None:
        live, spaces, has_begun_anew = self.layout.live, self._spaces, False
        while num_entries > 0:
            if not self._unswept_keys:
                if not self._unswept:
                    if has_begun_anew:
                        return
                    has_begun_anew = True
                    self._unswept = list(spaces)
                    continue
                self._swept = self._unswept.pop()
                self._unswept_keys = list(spaces.get(self._swept, ()))
                continue
            keys = self._unswept_keys[-num_entries:]
            del self._unswept_keys[-num_entries:]
            num_entries -= len(keys)
            space = spaces.get(self._swept)
            if space is None:
                self._unswept_keys.clear()
                continue
            for key in keys:
                stored = space.get(key, _ABSENT)
                if stored is _ABSENT:
                    continue
                left = live(stored, cutoff_ms)
                if left is NOTHING:
                    del space[key]
                elif left is not stored:
                    space[key] = left
            if not space and self.windowed:
                del spaces[self._swept]

    def snapshot(self, facts: dict[str, Any], max_parallelism: int, now_ms: Callable[[], int]) -> SnapshotPart | None:
        """Return the synchronous part; None if there is nothing to write."""
        spaces = [(namespace, self._without_expired(space, now_ms)) for namespace, space in self._spaces.items()]
        spaces = [(namespace, space) for namespace, space in spaces if space]
        if not spaces:
            return None
        sizes = [len(space) for _, space in spaces]
        keys: list[Any] = []
        values: list[Any] = []
        for _, space in spaces:
            keys.extend(space)
            values.extend(space.values())
        facts = {**facts, **self.form}
        facts.pop(KEY_CLASSES, None)  # those of what was restored
        classes = own_classes_in(chain.from_iterable(values)) if self.layout is ENTRIES else set()
        namespaces = [namespace for namespace, _ in spaces]
        try:
            column = FrozenColumn(values if self._lower is None else list(map(self._lower, values)), self.name)
        except TypeMismatchError as error:
            error.context.setdefault("state", self.name)
            raise
        # Keys are hashable and so, by contract, never change; encoding them can wait.
        write = functools.partial(self._write, facts, namespaces, sizes, keys, classes, column, max_parallelism)
        return SnapshotPart(self.name, self.kind, facts, write)

    def _without_expired(self, space: dict[Any, Any], now_ms: Callable[[], int]) -> dict[Any, Any]:
        if self.ttl is None or not self.ttl.cleanup.in_full_snapshot:
            return space
        live_part, cutoff_ms = self.layout.live, self.ttl.cutoff_ms(now_ms())
        live = ((key, live_part(stored, cutoff_ms)) for key, stored in space.items())
        return {key: stored for key, stored in live if stored is not NOTHING}

    @staticmethod
    def _write(
        facts: dict[str, Any],
        namespaces: list[Namespace],
        sizes: list[int],
        keys: list[Any],
        classes: set[type],
        values: FrozenColumn,
        max_parallelism: int,
    ) -> bytes:
        classes = classes | own_classes_in(keys)
        if classes:
            facts[KEY_CLASSES] = notes_of(classes)  # and so in the manifest, which a restore can be tried out with
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
        return write_state_file(table, {**facts, "key_encoding": key_encoding, "value_encoding": value_encoding})

    def load(self, table: pa.Table, facts: dict[str, Any]) -> None:
        """Add the rows of one file; ``table`` holds owned key groups only."""
        keys = with_one_nan(decode_values(table.column("key"), facts["key_encoding"]))
        check_key_classes(keys)
        values = decode_values(table.column("value"), facts["value_encoding"])
        if not self.windowed:
            self.namespace(None).update(zip(keys, values, strict=True))
            return
        starts, ends = table.column("window_start").to_pylist(), table.column("window_end").to_pylist()
        for start, end, key, value in zip(starts, ends, keys, values, strict=True):
            self.namespace(None if start is None else (start, end))[key] = value


class HeapColumnarTable:
    """namespace -> runs of record batches.

    Args:
        name: The state's.
        schema: Of its runs.
        key_columns: Whose values decide about key groups.
        account: Where what it holds is counted; a run that does not fit raises ManagedMemoryError, and is not taken.
    """

    kind = FileKind.COLUMNAR

    def __init__(self, name: str, schema: pa.Schema, key_columns: tuple[str, ...], account: MemoryAccount) -> None:
        self.name = name
        self.schema = schema.remove_metadata()
        self.key_columns = key_columns
        self.declared = False
        self._account = account
        self._runs: dict[Namespace, list[pa.RecordBatch]] = {}

    def append(self, namespace: Namespace, run: pa.RecordBatch) -> None:
        self._check(run)
        run = _of_its_own(run)
        self._account.take(run.nbytes, self.name)
        self._runs.setdefault(namespace, []).append(run)

    def runs(self, namespace: Namespace) -> list[pa.RecordBatch]:
        return list(self._runs.get(namespace, ()))

    def replace(self, namespace: Namespace, runs: list[pa.RecordBatch]) -> None:
        for run in runs:
            self._check(run)
        runs = [_of_its_own(run) for run in runs]
        self._account.take(_num_bytes(runs) - _num_bytes(self._runs.get(namespace, ())), self.name)
        if runs:
            self._runs[namespace] = runs
        else:
            self._runs.pop(namespace, None)

    def num_runs(self, namespace: Namespace) -> int:
        return len(self._runs.get(namespace, ()))

    def read(self, namespace: Namespace, places: Iterable[int]) -> list[pa.RecordBatch]:
        runs = self._runs.get(namespace, ())
        return [runs[place] for place in places]

    def replace_last(self, namespace: Namespace, place: int, runs: Iterable[pa.RecordBatch]) -> None:
        self.replace(namespace, [*self._runs.get(namespace, ())[:place], *runs])

    def namespaces(self) -> list[Namespace]:
        return list(self._runs)

    def drop(self, namespace: Namespace) -> None:
        self._account.take(-_num_bytes(self._runs.pop(namespace, ())), self.name)

    def evolve(self, schema: pa.Schema) -> None:
        """Have other columns, which its runs can become."""
        self.schema = schema.remove_metadata()
        for namespace, runs in list(self._runs.items()):
            self.replace(namespace, [fitted(run, self.schema) for run in runs])

    def _check(self, run: pa.RecordBatch) -> None:
        if not run.schema.equals(self.schema):
            wanted = columns_text(self.schema)
            message = (
                f"a run of columnar state {self.name!r} has schema {columns_text(run.schema)}; it must be {wanted}"
            )
            raise TypeMismatchError(message)

    def snapshot(self, facts: dict[str, Any], max_parallelism: int, now_ms: Callable[[], int]) -> SnapshotPart | None:
        """Return the synchronous part; None if there is nothing to write."""
        captured = [(namespace, list(runs)) for namespace, runs in self._runs.items()]
        if not any(run.num_rows for _, runs in captured for run in runs):
            return None
        facts = {**facts, "key_columns": list(self.key_columns), "columns": columns_text(self.schema)}
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
        table = pa.Table.from_arrays([*prefix, *rows.columns], schema=pa.schema([*COLUMNAR_PREFIX, *schema]))
        return write_state_file(table.take(pa.array(np.argsort(key_groups, kind="stable"))), facts)

    def load(self, table: pa.Table) -> None:
        """Add the rows of one file, as one run per namespace; ``table`` holds owned key groups only."""
        bounds = pa.StructArray.from_arrays(
            [table.column(1).combine_chunks(), table.column(2).combine_chunks()], ["start", "end"]
        )
        where: dict[Namespace, list[int]] = {}
        for index, bound in enumerate(zip(bounds.field(0).to_pylist(), bounds.field(1).to_pylist(), strict=True)):
            where.setdefault(None if bound[0] is None else bound, []).append(index)
        rows = table.select(range(len(COLUMNAR_PREFIX), table.num_columns)).replace_schema_metadata(None)
        for namespace, indices in where.items():
            for run in rows.take(pa.array(indices)).combine_chunks().to_batches():
                self.append(namespace, run)
