"""Reads the states of a checkpoint outside of any job: row by row, the same for both backends.

A checkpoint's files are copied to a local directory, and verified on the way, before anything is read: state databases
are opened there and never where they are stored; state files are mapped into memory. Nothing is unpickled that is not
plain unless the reader says so (`headrace.state.open.values`).

Rows come by subtask, key group, namespace and key, in the order of the keys' encoding; elements of a list in the list's
order, entries of a map by their keys. So the same state gives the same rows whatever backend kept it. Memory is bounded
by one key group of a heap backend's file, and by nothing of a database but a row.

Source: Flink's State Processor API (``KeyedStateInputFormat``, ``ListStateInputFormat``); FLIP-43.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rocksdict import Options

from ..backends.heap.tables import COLUMNAR_PREFIX
from ..backends.rocksdb.columnar import decoded_run
from ..backends.rocksdb.database import Database, SlotMemory
from ..backends.rocksdb.files import group_parts, open_restored
from ..backends.rocksdb.row_encoding import (
    decode_key,
    decode_value,
    encode_key,
    encode_namespace,
    next_prefix,
    original_key,
    past_key,
    skip_key,
    split_namespace,
)
from ..checkpoints.snapshot import RestoredPart, StateFile
from ..checkpoints.state_files import read_state_file
from ..checkpoints.storage import CheckpointStorage
from ..errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from ..files.local_directories import LocalDirectory, LocalFile
from ..keyed.contract import Namespace
from ..keyed.layouts import ELEMENTS, ENTRIES, Layout
from ..keys.column_hashing import hash_columns
from ..keys.key_groups import KeyGroupRange, key_groups_of
from ..reading.plain_values import fraction_of
from ..values.encoding import decode_values
from .stored_states import StoredState, columns_of
from .values import Opaque, Unpickle

__all__ = [
    "EVERYTHING",
    "Row",
    "Selection",
    "SnapshotReader",
    "encoded_key",
    "number_of",
]

_CACHE_BYTES = 16 << 20
_ALL_GROUPS = KeyGroupRange(0, (1 << 16) - 1)


class Row(NamedTuple):
    """One value, element or entry of a state.

    Attributes:
        subtask: Whose it was.
        key_group: Of its key; -1 for state without a key.
        namespace: Its window or time; None for none.
        key: Its key; of a broadcast map the entry's.
        inner: A map's key, or the place of an element in its list; None otherwise.
        value: The value, in its stored form.
        updated_ms: When it was written last, with a time to live; None otherwise.
    """

    subtask: int
    key_group: int
    namespace: Namespace
    key: Any
    inner: Any
    value: Any
    updated_ms: int | None


def encoded_key(key: Any) -> bytes:
    """Return the bytes by which keys are compared and put in order; those of opaque ones follow all others."""
    return b"\xff" + key.data if isinstance(key, Opaque) else encode_key(key)


Number = int | float | Fraction


def number_of(encoded: bytes) -> Number | None:
    """Return the number that an encoded key is; None if it is none.

    Raises:
        CheckpointCorruptError: If it begins as one and is none.
    """
    if encoded[0] in b"\x14\x15\x16\x21":
        number: Number = decode_key(encoded)[0]
        return number
    if encoded[0] != 0x22:
        return None
    try:
        return fraction_of(encoded[1:-1].decode())
    except ValueError as error:
        message = f"a key is no fraction: {error}"
        raise CheckpointCorruptError(message) from error


_TUPLE = b"\x05"
_NAN_RANK = 0x24
"""Behind all numbers and what is encoded like one."""


@functools.lru_cache(maxsize=64)
def _in_order(encoded: bytes) -> tuple[int, Any]:
    """What keys of one type are put in order by: tuples part by part, numbers as such wherever they stand."""
    number = number_of(encoded)
    if number is not None:
        return (_NAN_RANK, 0) if number != number else (encode_key(0)[0], number)
    if encoded[:1] != _TUPLE:
        return encoded[0], encoded
    parts, start = [], 1
    while encoded[start]:
        end = skip_key(encoded, start)
        parts.append(_in_order(encoded[start:end]))
        start = end
    return _TUPLE[0], tuple(parts)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to read.

    Attributes:
        keys: Encoded keys (`encoded_key`) with the key group of each; None for all keys.
        low: The lowest encoded key; None for no bound.
        high: What keys are below; None for no bound.
        numbers: The bounds once more, if they are numbers (`number_of`): whole and other numbers are encoded apart from
            each other, so that numbers are compared as such.
        key_groups: The key groups.
        subtasks: The subtasks; None for all.
    """

    keys: dict[bytes, int] | None = None
    low: bytes | None = None
    high: bytes | None = None
    numbers: tuple[Number | None, Number | None] | None = None
    key_groups: KeyGroupRange = _ALL_GROUPS
    subtasks: frozenset[int] | None = None

    @property
    def looks_at_keys(self) -> bool:
        """Whether keys decide."""
        return self.keys is not None or self.low is not None or self.high is not None

    def has_key(self, encoded: bytes) -> bool:
        """Return whether a key is among those meant."""
        if self.keys is not None and encoded not in self.keys:
            return False
        if self.numbers is not None:
            (low, high), number = self.numbers, number_of(encoded)
            return number is not None and (low is None or low <= number) and (high is None or number < high)
        bound = self.high if self.low is None else self.low
        if bound is None:
            return True
        if encoded[:1] != bound[:1]:
            return False  # of another type
        if bound[:1] == _TUPLE:
            place = _in_order(encoded)
            return (self.low is None or _in_order(self.low) <= place) and (
                self.high is None or place < _in_order(self.high)
            )
        return not ((self.low is not None and encoded < self.low) or (self.high is not None and encoded >= self.high))

    def has_group(self, key_group: int) -> bool:
        """Return whether some key of a key group may be meant."""
        return self.key_groups.contains(key_group) and (self.keys is None or key_group in self.keys.values())

    def has_groups(self, groups: tuple[int, int] | None) -> bool:
        """Return whether some key of a range of key groups may be meant."""
        if groups is None:
            return True
        if not self.key_groups.overlaps(*groups):
            return False
        return self.keys is None or any(groups[0] <= group <= groups[1] for group in self.keys.values())

    def has_subtask(self, subtask: int) -> bool:
        """Return whether a subtask is meant."""
        return self.subtasks is None or subtask in self.subtasks


EVERYTHING = Selection()


class _ReaderMemory(SlotMemory):
    """Of databases that are only read: nothing in the background."""

    def options(self) -> Options:
        options = super().options()
        options.set_disable_auto_compactions(True)
        return options


class SnapshotReader:
    """Reads the files of one checkpoint. Local copies are kept until it is closed.

    Args:
        storage: Where the checkpoint is.
        local_directory: Where copies go; None for the default place.
    """

    def __init__(self, storage: CheckpointStorage, local_directory: str | None = None) -> None:
        self.storage = storage
        self._local_root = local_directory
        self._directory: LocalDirectory | None = None
        # Local copies by their path in the checkpoint.
        self._copies: dict[str, LocalFile] = {}
        # Open databases by operator and subtask.
        self._databases: dict[tuple[str, int], Database] = {}
        self._memory: SlotMemory | None = None

    def close(self) -> None:
        """Close databases and remove the local copies. A second call does nothing."""
        for database in self._databases.values():
            database.close()
        self._databases.clear()
        self._copies.clear()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _own_directory(self) -> LocalDirectory:
        if self._directory is None:
            self._directory = LocalDirectory.make(self._local_root, "snapshot")
        return self._directory

    def copied(self, file: StateFile) -> LocalFile:
        """Return a verified local copy of a file.

        Raises:
            CheckpointCorruptError: If it is not what the manifest says.
            StorageError: If it, or the local disk, cannot be read or written.
        """
        copy = self._copies.get(file.path)
        if copy is None:
            directory = self._own_directory()
            target = os.path.join(directory.path, f"{len(self._copies)}-{file.path.rpartition('/')[2]}")
            self.storage.data_files.fetch_part(file, target)
            copy = self._copies[file.path] = LocalFile(target, directory)
        return copy

    def _table(self, state: StoredState, subtask: int, file: StateFile) -> tuple[pa.Table, dict[str, Any]]:
        with pa.memory_map(self.copied(file).path) as mapped:
            part = RestoredPart(file.state, file.kind, file.metadata, mapped.read_buffer(), subtask)
            return read_state_file(part, state.operator)

    def _database(self, state: StoredState, subtask: int) -> Database:
        key = (str(state.operator), subtask)
        database = self._databases.get(key)
        if database is None:
            parts = [
                RestoredPart(file.state, file.kind, file.metadata, b"", subtask, self.copied(file))
                for file in state.files[subtask]
            ]
            most = max(part.metadata["max_parallelism"] for part in parts)
            (restored,) = group_parts(parts, state.operator, most, KeyGroupRange(0, most))
            if self._memory is None:
                self._memory = _ReaderMemory(4 * _CACHE_BYTES)
            path = os.path.join(self._own_directory().path, f"database-{len(self._databases)}")
            context = {"operator": state.operator, "subtask": subtask}
            database = self._databases[key] = open_restored(restored, path, self._memory, context)
        return database

    # ------------------------------------------------------------------------------------------------------- keyed rows
    def rows(self, state: StoredState, selection: Selection, unpickle: Unpickle) -> Iterator[Row]:
        """The rows of a state; not of columnar ones.

        Args:
            state: The state.
            selection: Which rows; key groups and keys mean nothing for state without a key.
            unpickle: What becomes of pickled values.

        Raises:
            CheckpointCorruptError: If a file is damaged.
            CheckpointMismatchError: If keys or values can only be told from each other by unpickling.
        """
        try:
            yield from self._rows(state, selection, unpickle)
        except CheckpointError as error:
            error.context = {"operator": state.operator, "state": state.name, **error.context}
            raise
        except _DAMAGE as error:
            message = f"a file of a state cannot be decoded: {error!r:.300}"
            raise CheckpointCorruptError(message, operator=state.operator, state=state.name) from error

    def _rows(self, state: StoredState, selection: Selection, unpickle: Unpickle) -> Iterator[Row]:
        for subtask, files in sorted(state.files.items()):
            if not selection.has_subtask(subtask):
                continue
            if not state.is_keyed:
                yield from self._operator_rows(state, subtask, files[0], unpickle)
                if state.is_broadcast:
                    return  # every subtask has the same
            elif state.backend == "heap":
                for file in files:
                    if selection.has_groups(file.key_groups):
                        yield from self._heap_rows(state, subtask, file, selection, unpickle)
            elif any(selection.has_groups(file.key_groups) for file in files):
                yield from self._database_rows(state, subtask, selection, unpickle)

    def _operator_rows(self, state: StoredState, subtask: int, file: StateFile, unpickle: Unpickle) -> Iterator[Row]:
        table, facts = self._table(state, subtask, file)
        values = decode_values(table.column("value"), facts["value_encoding"], unpickle)
        if not state.is_broadcast:
            for index, value in enumerate(values):
                yield Row(subtask, -1, None, None, index, value, None)
            return
        keys = decode_values(table.column("key"), facts["key_encoding"], unpickle)
        for key, value in sorted(zip(keys, values, strict=True), key=_by_key):
            yield Row(subtask, -1, None, key, None, value, None)

    def _heap_rows(
        self, state: StoredState, subtask: int, file: StateFile, selection: Selection, unpickle: Unpickle
    ) -> Iterator[Row]:
        table, facts = self._table(state, subtask, file)
        groups = table.column("key_group").to_numpy()
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(groups)], strict=True):
            key_group = int(groups[start])
            if not selection.has_group(key_group):
                continue
            block = table.slice(start, end - start)
            keys = decode_values(block.column("key"), facts["key_encoding"], unpickle)
            encoded = list(map(encoded_key, keys))
            if selection.looks_at_keys:
                if any(isinstance(key, Opaque) for key in keys):
                    _refuse_closed(state, subtask)
                kept = [index for index, key in enumerate(encoded) if selection.has_key(key)]
                if not kept:
                    continue
                block = block.take(pa.array(kept))
                keys, encoded = [keys[index] for index in kept], [encoded[index] for index in kept]
            values = decode_values(block.column("value"), facts["value_encoding"], unpickle)
            namespaces: list[Namespace] = [None] * len(keys)
            if state.windowed:
                bounds = zip(
                    block.column("window_start").to_pylist(), block.column("window_end").to_pylist(), strict=True
                )
                namespaces = [None if first is None else (first, past) for first, past in bounds]
            order = sorted(
                zip(map(encode_namespace, namespaces), encoded, range(len(keys)), strict=True), key=itemgetter(0, 1)
            )
            for _, _, index in order:
                place = (subtask, key_group, namespaces[index], keys[index])
                for inner, unit in _in_order_of_places(state.layout, values[index]):
                    yield Row(*place, inner, *_split(unit, state))

    def _database_rows(
        self, state: StoredState, subtask: int, selection: Selection, unpickle: Unpickle
    ) -> Iterator[Row]:
        database = self._database(state, subtask)
        held = KeyGroupRange(*state.files[subtask][0].metadata["key_groups"])
        prefix = state.numbers[subtask].to_bytes(2, "big")
        layout = state.layout
        has_entries = layout.has_rows_of_parts
        last, index = b"", 0
        for row_key, data in database.scan(_ranges(prefix, held, selection, state.windowed), state.name):
            namespace, start = split_namespace(row_key, 4) if state.windowed else (None, 4)
            end = skip_key(row_key, start) if has_entries or selection.looks_at_keys else len(row_key)
            if selection.looks_at_keys and not selection.has_key(row_key[start:end]):
                continue
            kept, is_kept = original_key(data, unpickle)
            if selection.looks_at_keys and isinstance(kept, Opaque):
                _refuse_closed(state, subtask)
            inner: Any = None
            if has_entries:
                if is_kept and isinstance(kept, Opaque):
                    _refuse_closed(state, subtask)
                key, inner = kept if is_kept else (decode_key(row_key, start)[0], decode_key(row_key, end)[0])
                if layout is ELEMENTS:
                    index = index + 1 if row_key[:end] == last else 0
                    last, inner = row_key[:end], index
            else:
                key = kept if is_kept else decode_key(row_key, start)[0]
            unit = decode_value(data, unpickle)
            if state.has_ttl and isinstance(unit, Opaque):
                _refuse_closed(state, subtask)
            yield Row(subtask, int.from_bytes(row_key[2:4], "big"), namespace, key, inner, *_split(unit, state))

    # --------------------------------------------------------------------------------------------------------- columnar
    def columnar_schema(self, state: StoredState) -> pa.Schema:
        """Return the columns of columnar state."""
        encoded = state.form.get("schema")
        if encoded is not None:
            return columns_of(encoded)
        subtask, files = next(iter(state.files.items()))
        table, _ = self._table(state, subtask, files[0])
        return pa.schema(list(table.schema)[len(COLUMNAR_PREFIX) :])

    def columnar_batches(
        self, state: StoredState, selection: Selection
    ) -> Iterator[tuple[int, pa.Array, pa.Array, pa.Array, pa.RecordBatch]]:
        """The rows of columnar state, in no order within a subtask.

        Returns:
            Pieces of it: subtask, key groups, starts and ends of windows, and the state's own columns.
        """
        try:
            yield from self._columnar_batches(state, selection)
        except _DAMAGE as error:
            message = f"a file of columnar state cannot be decoded: {error!r:.300}"
            raise CheckpointCorruptError(message, operator=state.operator, state=state.name) from error

    def _columnar_batches(
        self, state: StoredState, selection: Selection
    ) -> Iterator[tuple[int, pa.Array, pa.Array, pa.Array, pa.RecordBatch]]:
        for subtask, files in sorted(state.files.items()):
            if not selection.has_subtask(subtask) or not selection.has_groups(files[0].key_groups):
                continue
            pieces = self._heap_pieces if state.backend == "heap" else self._database_pieces
            for groups, starts, ends, batch in pieces(state, subtask):
                numbers = groups.to_numpy()
                is_meant = np.isin(numbers, [g for g in np.unique(numbers).tolist() if selection.has_group(g)])
                if is_meant.all():
                    yield subtask, groups, starts, ends, batch
                elif is_meant.any():
                    mask = pa.array(is_meant)
                    kept = (column.filter(mask) for column in (groups, starts, ends, batch))
                    yield (subtask, *kept)

    def _heap_pieces(self, state: StoredState, subtask: int) -> Iterator[tuple[pa.Array, pa.Array, pa.Array, Any]]:
        for file in state.files[subtask]:
            table, _ = self._table(state, subtask, file)
            for batch in table.to_batches():
                own = batch.select(list(range(len(COLUMNAR_PREFIX), batch.num_columns)))
                yield batch.column(0), batch.column(1), batch.column(2), own.replace_schema_metadata(None)

    def _database_pieces(self, state: StoredState, subtask: int) -> Iterator[tuple[pa.Array, pa.Array, pa.Array, Any]]:
        database = self._database(state, subtask)
        most = int(state.files[subtask][0].metadata["max_parallelism"])
        prefix = state.numbers[subtask].to_bytes(2, "big") + b"\xff\xff"
        schema = self.columnar_schema(state).remove_metadata()
        for row_key, data in database.scan(((prefix, next_prefix(prefix)),), state.name):
            namespace = split_namespace(row_key, 4)[0]
            batch = decoded_run(data, schema, state.key_columns)
            groups = key_groups_of(hash_columns([batch.column(name) for name in state.key_columns]), most)
            bounds: Sequence[int | None] = (None, None) if namespace is None else namespace
            starts, ends = (pa.array([bound] * batch.num_rows, pa.int64()) for bound in bounds)
            yield pa.array(groups), starts, ends, batch


_DAMAGE = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading damaged files may come to, where nothing has said it better."""


def _ranges(prefix: bytes, held: KeyGroupRange, selection: Selection, windowed: bool) -> list[tuple[bytes, bytes]]:
    """What to scan of a keyed state: keys, if they are known; else key groups."""
    groups = KeyGroupRange(max(held.start, selection.key_groups.start), min(held.end, selection.key_groups.end))
    if selection.keys is None:
        if not windowed and (selection.low is not None or selection.high is not None):
            ranges = []
            for group in range(groups.start, groups.end + 1):
                first = prefix + group.to_bytes(2, "big")
                if selection.numbers is not None:
                    low, high = map(_least_whole, selection.numbers, (b"\x14", b"\x17"))
                    ranges += [(first + low, first + high), (first + b"\x21", first + b"\x23")]
                    continue
                bound = selection.low or selection.high or b""
                low, high = bound[:1], next_prefix(bound[:1])  # all keys of that type
                if low != _TUPLE:  # whose parts may be numbers, which are not encoded in their order
                    low, high = selection.low or low, selection.high or high
                ranges.append((first + low, first + high))
            return ranges
        return [(prefix + groups.start.to_bytes(2, "big"), next_prefix(prefix + groups.end.to_bytes(2, "big")))]
    wanted = sorted((group, key) for key, group in selection.keys.items() if groups.contains(group))
    if windowed:
        firsts = [prefix + group.to_bytes(2, "big") for group in sorted({group for group, _ in wanted})]
        return [(first, next_prefix(first)) for first in firsts]
    firsts = [prefix + group.to_bytes(2, "big") + key for group, key in wanted]
    return [(first, past_key(first)) for first in firsts]


def _least_whole(bound: Number | None, otherwise: bytes) -> bytes:
    """The encoding of the least whole number that is not below a bound."""
    return otherwise if bound is None or not math.isfinite(bound) else encode_key(math.ceil(bound))


def _in_order_of_places(layout: Layout, stored: Any) -> Iterable[tuple[Any, Any]]:
    """What a key holds as single values, each with its place."""
    parts = layout.parts(stored)
    return sorted(parts, key=_by_key) if layout is ENTRIES else parts


def _by_key(entry: tuple[Any, Any]) -> bytes:
    return encoded_key(entry[0])


def _split(unit: Any, state: StoredState) -> tuple[Any, int | None]:
    return (unit[0], unit[1]) if state.has_ttl else (unit, None)


def _refuse_closed(state: StoredState, subtask: int) -> None:
    message = f"state {state.name!r} has keys or values that only unpickling tells apart"
    hint = "read it with allow_pickle=True, if you trust the writer of the checkpoint"
    raise CheckpointMismatchError(message, hint=hint, operator=state.operator, subtask=subtask)
