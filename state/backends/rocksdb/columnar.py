"""Columnar tables over a state database: each row is a run of record batches.

::

    state id (2 bytes) | 0xffff        | namespace | number (8)              a run of record batches, as an Arrow stream

A run holds rows of many key groups, as the operator gave it: cutting every run into one piece per key group would make
columns of single rows. A restore with other key groups filters runs instead, in one vectorised pass over each. Where
rows of keyed tables lie says `headrace.state.backends.rocksdb.tables`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ...checkpoints.snapshot import FileKind
from ...errors import CheckpointCorruptError, InternalError, TypeMismatchError
from ...keyed.contract import Namespace
from ...keyed.declarations import columns_text
from ...keyed.evolution import can_become, fitted
from ...keys.column_hashing import hash_columns
from ...keys.key_groups import KeyGroupRange, key_groups_of
from ...reading.arrow_reading import read_arrow_stream
from .cache import RowPool
from .database import Database, SlotMemory, new_batch
from .row_encoding import (
    encode_namespace,
    next_prefix,
    split_namespace,
)

__all__ = ["RocksDBColumnarTable", "decoded_run"]

_COLUMNAR_GROUP = b"\xff\xff"
_BATCH_BYTES = 4 << 20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


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

    kind = FileKind.COLUMNAR

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
    """Return the run in a row; one that was written before the state had other columns is fitted to those it has now.

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
