"""Tables over a state database: keyed ones, whose rows are values, and columnar ones, whose rows are runs.

::

    state id (2 bytes) | key group (2) | [namespace] | key                   a value, an accumulator, a timer
    state id (2 bytes) | key group (2) | [namespace] | key | map key         an entry of a map
    state id (2 bytes) | key group (2) | [namespace] | key | index           an element of a list
    state id (2 bytes) | 0xffff        | namespace | number (8)              a run of record batches, as an Arrow stream

Key groups come first, so that a rescale takes whole ranges. A run holds rows of many key groups, as the operator gave
it: cutting every run into one piece per key group would make columns of single rows. A restore with other key groups
filters runs instead, in one vectorised pass over each.

A namespace is dropped by deleting its ranges; which key groups have rows of it is known (`RowFormat.index`), and
rebuilt after a restore by skipping from namespace to namespace.

Source: Flink's ``RocksDBKeyedStateBackend`` (layout), ``RocksDBMapState``, ``RocksDBListState``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import CheckpointCorruptError, InternalError, TypeMismatchError
from ...keyed.columns_evolution import can_become, fitted
from ...keyed.contract import Namespace
from ...keyed.declarations import columns_text, declare_form
from ...keyed.evolution import migration, of_part
from ...keyed.kinds import StateDescriptor, layout_of_kind
from ...keys.column_hashing import hash_columns
from ...keys.key_groups import KeyGroupRange, key_groups_of
from ...reading.arrow_reading import read_arrow_stream
from ...values.type_sources import type_of_hint
from .cache import RowPool
from .database import Database, SlotMemory, new_batch
from .encoding import (
    decode_key,
    decode_value,
    encode_namespace,
    encode_value,
    next_prefix,
    original_key,
    past_key,
    skip_key,
    split_namespace,
    split_row,
)
from .entries import EntryRows
from .rows import NamespaceRows, RowFormat, Rows, WindowRows, forget_if_empty

__all__ = ["RocksDBColumnarTable", "RocksDBTable", "decoded_run"]

_COLUMNAR_GROUP = b"\xff\xff"
_BATCH_BYTES = 4 << 20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class RocksDBTable:
    """(namespace, key) -> value, list or map.

    Args:
        name: The state's.
        number: Its id in this database.
        form: Its facts (`headrace.state.keyed.declarations.form_of`).
        pool: The database's cache.
        is_restored: Whether the database may have rows of it.
    """

    kind = "keyed"

    def __init__(self, name: str, number: int, form: Mapping[str, Any], pool: RowPool, *, is_restored: bool) -> None:
        self.name = name
        self.number = number
        # What the program declared, or the checkpoint it was restored from until then.
        self.form = dict(form)
        self.declared = False
        self.windowed: bool = form["windowed"]
        self.layout = layout_of_kind(form["descriptor"])
        # Whether a key has a row per element or entry.
        self._has_entries = self.layout.has_rows_of_parts
        self._pool = pool
        self._format = RowFormat(name, number.to_bytes(2, "big"), self.windowed)
        self._is_restored = is_restored
        # Namespaces' mappings: kept by those that use them, and by the pool while there are cached entries.
        self._spaces: weakref.WeakValueDictionary[Namespace, WindowRows] = weakref.WeakValueDictionary()
        self._all = NamespaceRows(pool, self._format)
        # Lists and maps with cached entries.
        self._entries: dict[tuple[Namespace, Any], EntryRows] = {}
        # The row that the next sweep begins with; None for the first.
        self._unswept: bytes | None = None
        if is_restored and self.windowed:
            self._find_namespaces()

    def _bounds(self) -> tuple[bytes, bytes]:
        first, last = self._pool.key_groups
        prefix = self._format.prefix
        return prefix + first.to_bytes(2, "big"), prefix + (last + 1).to_bytes(2, "big")

    def _find_namespaces(self) -> None:
        index, counts, start = self._format.index, self._format.counts, self._pool.key_groups.start
        first, past = self._bounds()
        for prefix, num_rows in self._pool.database.distinct_prefixes(first, past, _namespace_end, self.name):
            namespace = split_namespace(prefix, 4)[0]
            bit = 1 << (int.from_bytes(prefix[2:4], "big") - start)
            known = counts.pop(namespace, None) if namespace in index else 0
            if known is not None and num_rows is not None and not self._has_entries:
                counts[namespace] = known + num_rows
            index[namespace] = index.get(namespace, 0) | bit

    # -------------------------------------------------------------------------------------------------------- declare
    def declare(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None:
        """Bring what was restored to the form that the program has declared.

        Raises:
            CheckpointMismatchError: If that cannot be.
        """
        if self._is_restored:
            change = migration(self.form, descriptor, now_ms)
            if change is not None:
                self._rewrite(change)
        declare_form(self.form, descriptor, self.windowed)
        value_type = type_of_hint(descriptor.value_type)
        has_ttl = descriptor.ttl is not None
        self._format.lower = of_part(has_ttl, value_type.lower)
        self._format.lift = of_part(has_ttl, value_type.lift)
        self.declared = True

    def _rewrite(self, change: Callable[[Any], Any]) -> None:
        """Change the stored form of every row; nothing is cached yet."""
        database, batch = self._pool.database, new_batch()
        for row_key, data in database.scan((self._bounds(),), self.name):
            original, key, is_kept = split_row(data)
            batch.put(row_key, encode_value(change(decode_value(original)), key, keeps_key=is_kept))
            if batch.size_in_bytes() > _BATCH_BYTES:
                database.write(batch, self.name)
                batch = new_batch()
        if len(batch):
            database.write(batch, self.name)

    # ---------------------------------------------------------------------------------------------------- namespaces
    def namespace(self, namespace: Namespace) -> MutableMapping[Any, Any]:
        """The live mapping of one namespace, made on first use; of lists and maps each access handles all of one.

        Raises:
            InternalError: If the state is not windowed and the namespace is not None.
        """
        if not self.windowed and namespace is not None:
            message = f"state {self.name!r} is not windowed; it has no namespace {namespace}"
            raise InternalError(message)
        if self._has_entries:
            return _WholeEntries(self, namespace)
        if not self.windowed:
            return self._all
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = WindowRows(self._pool, self._format, namespace)
        return space

    def find(self, namespace: Namespace) -> MutableMapping[Any, Any] | None:
        """The mapping of a namespace of values, if it may hold anything."""
        if not self.windowed:
            return self._all if namespace is None else None
        space = self._spaces.get(namespace)
        return self.namespace(namespace) if space is None and namespace in self._format.index else space

    def look_up(self, namespace: Namespace, key: Any, default: Any) -> Any:
        """What a key holds in a namespace; for those who only look."""
        return self.namespace(namespace).get(key, default)

    def expect(self, keys: Sequence[Any]) -> None:
        """These keys are about to be current: if it is a value that functions ask for, have it there."""
        if self.declared and not self.windowed and not self._has_entries:
            self._all.expect(keys)

    def some_keys(self, namespace: Namespace) -> Iterable[Any]:
        """The keys of a namespace, for those who look at the first ones."""
        return iter(self.namespace(namespace))

    def entries(self, namespace: Namespace, key: Any) -> EntryRows:
        """The entries of a key's map, or the elements of its list; not to be kept over other accesses."""
        rows = self._entries.get((namespace, key))
        return EntryRows(self._pool, self._format, namespace, key, self._entries) if rows is None else rows

    def clear_entries(self, namespace: Namespace, key: Any) -> None:
        """Forget a key's map or list."""
        self.entries(namespace, key).clear()
        if self.windowed and namespace in self._format.index:
            forget_if_empty(self._pool, self._format, namespace, self._pool.located(key)[0])

    def namespaces(self) -> list[Namespace]:
        names: dict[Namespace, None] = {None: None}
        if self.windowed:
            cached = [name for name, _ in self._entries] if self._has_entries else self._spaces.keys()
            names = dict.fromkeys((*self._format.index, *cached))
        counts, spaces = self._format.counts, self._spaces
        return [name for name in names if (name not in spaces and counts.get(name)) or self.namespace(name)]

    def keys_of_entries(self, namespace: Namespace) -> Iterator[Any]:
        """The keys that have a list or map in a namespace."""
        cached = {rows.prefix: key for (other, key), rows in list(self._entries.items()) if other == namespace}
        for key in cached.values():
            if self.entries(namespace, key):
                yield key
        start = 4 + len(self._format.namespace_bytes(namespace))
        past = b""
        for row_key, data in self._pool.database.scan(self._ranges_of(namespace), self.name):
            if row_key < past:
                continue
            last = row_key[: skip_key(row_key, start)]
            past = past_key(last)
            if last not in cached:
                kept, is_kept = original_key(data)
                yield kept[0] if is_kept else decode_key(row_key, start)[0]

    def _ranges_of(self, namespace: Namespace) -> list[tuple[bytes, bytes]]:
        if not self.windowed:
            return [self._bounds()]
        key_groups, start = self._format.index.get(namespace, 0), self._pool.key_groups.start
        encoded, ranges = self._format.namespace_bytes(namespace), []
        for number in range(key_groups.bit_length()):
            if key_groups >> number & 1:
                first = self._format.prefix + (start + number).to_bytes(2, "big") + encoded
                ranges.append((first, next_prefix(first)))
        return ranges

    def drop(self, namespace: Namespace) -> None:
        if self._has_entries:
            for (other, _), rows in list(self._entries.items()):
                if other == namespace:
                    self._pool.forget(rows)
            for first, past in self._ranges_of(namespace):
                self._pool.database.delete_range(first, past, self.name)
            self._format.index.pop(namespace, None)
            return
        space = self.find(namespace)
        if space is not None:
            space.clear()
            if self.windowed:
                self._spaces.pop(namespace, None)

    # ------------------------------------------------------------------------------------------------------- clean-up
    def sweep(self, num_entries: int, cutoff_ms: int) -> None:
        database = self._pool.database
        first, past = self._bounds()
        if self._unswept is None:
            self._pool.flush_state(self._format)
        position, expired = self._unswept or first, []
        self._unswept = None
        for num_seen, (row_key, data) in enumerate(database.scan(((position, past),), self.name)):
            if num_seen == num_entries:
                self._unswept = row_key
                break
            if decode_value(data)[1] <= cutoff_ms:
                expired.append((row_key, data))
        if not expired:
            return
        batch = new_batch()
        by_prefix = {rows.prefix: rows for rows in self._entries.values()} if self._entries else {}
        for row_key, data in expired:
            start = _namespace_end(row_key) if self.windowed else 4
            if self._has_entries:
                start = skip_key(row_key, start)
                rows: Rows | None = by_prefix.get(row_key[:start])
            else:
                rows = self._spaces.get(split_namespace(row_key, 4)[0]) if self.windowed else self._all
            if rows is None or rows.forget_expired(rows.key_of(row_key, data, start)):
                batch.delete(row_key)
        database.write(batch, self.name)
        if self.windowed:
            for prefix in {row_key[: _namespace_end(row_key)] for row_key, _ in expired}:
                namespace = split_namespace(prefix, 4)[0]
                self._format.counts.pop(namespace, None)
                forget_if_empty(self._pool, self._format, namespace, int.from_bytes(prefix[2:4], "big"))


class _WholeEntries(MutableMapping[Any, Any]):
    """The lists or maps of a namespace, each as one value: for those who look at state as a whole."""

    def __init__(self, table: RocksDBTable, namespace: Namespace) -> None:
        self._table = table
        self._namespace = namespace

    def __getitem__(self, key: Any) -> Any:
        rows = self._table.entries(self._namespace, key)
        value = self._table.layout.whole(rows.stream())
        if not value:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        rows = self._table.entries(self._namespace, key)
        rows.clear()
        for inner, item in self._table.layout.parts(value):
            rows[inner] = item
        rows.forget_length()

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._table.clear_entries(self._namespace, key)

    def __iter__(self) -> Iterator[Any]:
        return self._table.keys_of_entries(self._namespace)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), self) is not self


def _namespace_end(row_key: bytes) -> int:
    return 5 if row_key[4] == 0 else 21


# ----------------------------------------------------------------------------------------------------- columnar tables
class _Run:
    """A run of a columnar table."""

    __slots__ = ("batch", "is_checked", "is_stored", "last_read", "num_bytes", "number")

    def __init__(self, number: int, batch: pa.RecordBatch | None, *, is_stored: bool) -> None:
        # Its place in the order of runs, and in the database.
        self.number = number
        # The run itself, if it is in memory; only one that is stored may be not.
        self.batch = batch
        self.is_stored = is_stored
        # Whether its row is known to be what it should be: it was made here, or has been read and validated.
        self.is_checked = batch is not None
        self.num_bytes = 0 if batch is None else batch.nbytes
        # What was read last of a run that is not in memory, to recognise it when it is put back.
        self.last_read: Any = None


class RocksDBColumnarTable:
    """namespace -> runs of record batches; the newest ones are in memory too.

    Args:
        name: The state's.
        number: Its id in this database.
        schema: Of its runs.
        key_columns: Whose values decide about key groups.
        pool: The database's cache.
        memory: The slot's.
        is_restored: Whether the database may have runs of it.
    """

    kind = "columnar"

    def __init__(
        self,
        name: str,
        number: int,
        schema: pa.Schema,
        key_columns: tuple[str, ...],
        pool: RowPool,
        memory: SlotMemory,
        *,
        is_restored: bool,
    ) -> None:
        self.name = name
        self.number = number
        self.schema = schema.remove_metadata()
        self.key_columns = key_columns
        self.declared = False
        self._pool = pool
        self._memory = memory
        self._prefix = number.to_bytes(2, "big") + _COLUMNAR_GROUP
        self._runs: dict[Namespace, list[_Run]] = {}
        self._next_number = 0
        # Bytes of the runs in memory.
        self.num_bytes = 0
        # What the rows of all runs begin with; made when it is needed.
        self._head: bytes | None = None
        if is_restored:
            for row_key, _ in pool.database.scan(((self._prefix, next_prefix(self._prefix)),), name):
                namespace, start = split_namespace(row_key, 4)
                run = _Run(int.from_bytes(row_key[start : start + 8], "big"), None, is_stored=True)
                self._runs.setdefault(namespace, []).append(run)
                self._next_number = max(self._next_number, run.number + 1)

    def append(self, namespace: Namespace, run: pa.RecordBatch) -> None:
        self._check(run)
        self._runs.setdefault(namespace, []).append(self._new_run(run))
        self._make_room()

    def _new_run(self, batch: pa.RecordBatch) -> _Run:
        run = _Run(self._next_number, batch, is_stored=False)
        self._next_number += 1
        self.num_bytes += run.num_bytes
        return run

    def runs(self, namespace: Namespace) -> list[pa.RecordBatch]:
        return [self._read(namespace, run) for run in self._runs.get(namespace, ())]

    def _read(self, namespace: Namespace, run: _Run) -> pa.RecordBatch:
        if run.batch is not None:
            return run.batch
        batch = None if run.last_read is None else run.last_read()
        if batch is None:
            batch = self._decoded(namespace, run, self._pool.database.get(self._row_key(namespace, run), self.name))
            run.last_read = weakref.ref(batch)
        return batch

    def _decoded(self, namespace: Namespace, run: _Run, data: bytes | None) -> pa.RecordBatch:
        if data is None:
            message = f"a run of columnar state {self.name!r} is not in its database"
            raise CheckpointCorruptError(message, namespace=namespace)
        if not run.is_checked:
            run.is_checked = True
            return decoded_run(data, self.schema, self.key_columns)
        if self._head is None:
            self._head = _encoded_head(self.schema)
        if data.startswith(self._head):  # what comes before the rows is the same for all runs
            return pa.ipc.read_record_batch(pa.py_buffer(data).slice(len(self._head)), self.schema)
        return decoded_run(data, self.schema, self.key_columns)

    def num_runs(self, namespace: Namespace) -> int:
        return len(self._runs.get(namespace, ()))

    def read(self, namespace: Namespace, places: Iterable[int]) -> list[pa.RecordBatch]:
        runs = self._runs.get(namespace, [])
        chosen = [runs[place] for place in places]
        asked = [run for run in chosen if run.batch is None]
        found = self._pool.database.get_all([self._row_key(namespace, run) for run in asked], self.name)
        rows = iter(found)
        return [run.batch if run.batch is not None else self._decoded(namespace, run, next(rows)) for run in chosen]

    def replace_last(self, namespace: Namespace, place: int, runs: Iterable[pa.RecordBatch]) -> None:
        added: list[_Run] = []
        waiting: list[pa.RecordBatch] = []
        writes = new_batch()

        def write() -> None:
            check_owned(
                pa.Table.from_batches(waiting, self.schema).select(self.key_columns).combine_chunks(),
                self.key_columns, self._pool.key_groups, self._pool.max_parallelism, self.name,
            )  # fmt: skip
            self._pool.database.write(writes, self.name)
            waiting.clear()

        for columns in runs:
            self._check(columns)
            run = _Run(self._next_number, None, is_stored=True)
            run.is_checked = True
            self._next_number += 1
            writes.put(self._row_key(namespace, run), _encoded(columns))
            added.append(run)
            waiting.append(columns)
            if writes.size_in_bytes() > _BATCH_BYTES:
                write()
                writes = new_batch()
        if waiting:
            write()
        held = self._runs.get(namespace, [])
        self._delete(namespace, held[place:])
        if held[:place] or added:
            self._runs[namespace] = [*held[:place], *added]
        else:
            self._runs.pop(namespace, None)

    def replace(self, namespace: Namespace, runs: list[pa.RecordBatch]) -> None:
        for batch in runs:
            self._check(batch)
        kept: list[_Run] = []
        old = self._runs.pop(namespace, [])
        for batch in runs:
            same = [
                run for run in old if run.batch is batch or (run.last_read is not None and run.last_read() is batch)
            ]
            # A run that stays keeps its row, if it stays in order too.
            if same and (not kept or kept[-1].number < same[0].number) and same[0] not in kept:
                kept.append(same[0])
            else:
                kept.append(self._new_run(batch))
        self._delete(namespace, [run for run in old if run not in kept])
        if kept:
            self._runs[namespace] = kept
        self._make_room()

    def namespaces(self) -> list[Namespace]:
        return list(self._runs)

    def drop(self, namespace: Namespace) -> None:
        self._delete(namespace, self._runs.pop(namespace, []))

    def _delete(self, namespace: Namespace, runs: list[_Run]) -> None:
        batch = new_batch()
        for run in runs:
            self.num_bytes -= run.num_bytes if run.batch is not None else 0
            if run.is_stored:
                batch.delete(self._row_key(namespace, run))
        if len(batch):
            self._pool.database.write(batch, self.name)

    def _row_key(self, namespace: Namespace, run: _Run) -> bytes:
        return self._prefix + encode_namespace(namespace) + run.number.to_bytes(8, "big")

    def evolve(self, schema: pa.Schema) -> None:
        """Have other columns, which its runs can become; each does when it is read."""
        self.schema = schema.remove_metadata()
        self._head = None

    def _check(self, run: pa.RecordBatch) -> None:
        if not run.schema.equals(self.schema):
            wanted, given = columns_text(self.schema), columns_text(run.schema)
            message = f"a run of columnar state {self.name!r} has schema {given}; it must be {wanted}"
            raise TypeMismatchError(message)

    def _make_room(self) -> None:
        """Take runs out of memory, those of the oldest namespaces first, when there are too many bytes of them."""
        limit = self._memory.object_share() // 2
        if self.num_bytes <= limit:
            return
        for namespace, runs in list(self._runs.items()):
            self._store(namespace, runs)
            for run in runs:
                if run.batch is not None:
                    self.num_bytes -= run.num_bytes
                    run.last_read, run.batch = weakref.ref(run.batch), None
            if 2 * self.num_bytes <= limit:
                break

    def _store(self, namespace: Namespace, runs: Iterable[_Run]) -> None:
        batch = new_batch()
        for run in runs:
            if not run.is_stored:
                assert run.batch is not None
                self._put(batch, namespace, run, run.batch)
                run.is_stored = True
        if len(batch):
            self._pool.database.write(batch, self.name)

    def _put(self, writes: Any, namespace: Namespace, run: _Run, columns: pa.RecordBatch) -> None:
        check_owned(columns, self.key_columns, self._pool.key_groups, self._pool.max_parallelism, self.name)
        writes.put(self._row_key(namespace, run), _encoded(columns))

    def flush(self) -> None:
        """Write what the database does not have yet."""
        for namespace, runs in self._runs.items():
            self._store(namespace, runs)

    def rescaled(self, source: Database, prefix: bytes) -> None:
        """Take over, from another database, the rows of owned key groups.

        Args:
            source: The database.
            prefix: What the keys of the state's runs begin with there.
        """
        for row_key, data in source.scan(((prefix, next_prefix(prefix)),), self.name):
            owned = self._owned(decoded_run(data, self.schema, self.key_columns))
            if owned.num_rows:
                namespace = split_namespace(row_key, 4)[0]
                self.replace_last(namespace, self.num_runs(namespace), [owned])

    def narrow(self) -> None:
        """Forget the rows of key groups that are no longer owned; runs are read one by one."""
        for namespace, runs in list(self._runs.items()):
            kept, writes = [], new_batch()
            for run in runs:
                row_key = self._row_key(namespace, run)
                batch = self._decoded(namespace, run, self._pool.database.get(row_key, self.name))
                owned = self._owned(batch)
                if not owned.num_rows:
                    writes.delete(row_key)
                    continue
                kept.append(run)
                if owned.num_rows < batch.num_rows:
                    self._put(writes, namespace, run, owned)
                if writes.size_in_bytes() > _BATCH_BYTES:
                    self._pool.database.write(writes, self.name)
                    writes = new_batch()
            if len(writes):
                self._pool.database.write(writes, self.name)
            self._runs[namespace] = kept
            if not kept:
                del self._runs[namespace]

    def _owned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = key_groups_of(
            hash_columns([batch.column(name) for name in self.key_columns]), self._pool.max_parallelism
        )
        first, last = self._pool.key_groups
        is_owned = (groups >= first) & (groups <= last)
        return batch if is_owned.all() else batch.filter(pa.array(is_owned))


def check_owned(
    batch: pa.RecordBatch | pa.Table,
    key_columns: tuple[str, ...],
    owned: KeyGroupRange,
    max_parallelism: int,
    state: str,
) -> None:
    """See that all rows are of owned key groups: others would be lost at the next restore.

    Raises:
        InternalError: If not.
    """
    groups = key_groups_of(hash_columns([batch.column(name) for name in key_columns]), max_parallelism)
    if len(groups) and not (owned.start <= groups.min() and groups.max() <= owned.end):
        message = f"a subtask that owns key groups {owned.start} to {owned.end} has rows of others"
        hint = "the same key must always hash alike: check the key selector"
        raise InternalError(message, state=state, hint=hint)


def _encoded(batch: pa.RecordBatch) -> bytes:
    return b"".join((_encoded_head(batch.schema), batch.serialize(), _END_OF_STREAM))


def _encoded_head(schema: pa.Schema) -> bytes:
    """What a stream of runs of a schema begins with, before the first one."""
    return schema.serialize().to_pybytes()


def decoded_run(data: bytes, schema: pa.Schema, key_columns: tuple[str, ...]) -> pa.RecordBatch:
    """The run in a row; one that was written before the state had other columns is fitted to those it has now.

    Raises:
        CheckpointCorruptError: If it is none, or of a schema that cannot become this one.
    """
    found, batches = read_arrow_stream(data, "a run of columnar state")
    if len(batches) == 1 and not found.equals(schema) and can_become(found, schema, key_columns):
        return fitted(batches[0], schema)
    if not found.equals(schema) or len(batches) != 1:
        message = (
            f"a run of columnar state has {len(batches)} batches of schema {columns_text(found):.400}, "
            f"not one of {columns_text(schema)}"
        )
        raise CheckpointCorruptError(message)
    return batches[0]
