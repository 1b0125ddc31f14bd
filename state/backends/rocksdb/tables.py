"""Keyed tables over a state database, whose rows are values, elements of lists or entries of maps.

::

    state id (2 bytes) | key group (2) | [namespace] | key                   a value, an accumulator, a timer
    state id (2 bytes) | key group (2) | [namespace] | key | map key         an entry of a map
    state id (2 bytes) | key group (2) | [namespace] | key | index           an element of a list

Key groups come first, so that a rescale takes whole ranges. Rows of columnar tables lie beside them
(`headrace.state.backends.rocksdb.columnar`).

A namespace is dropped by deleting its ranges; which key groups have rows of it is known (`RowFormat.index`), and
rebuilt after a restore by skipping from namespace to namespace.

Source: Flink's ``RocksDBKeyedStateBackend`` (layout), ``RocksDBMapState``, ``RocksDBListState``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from ...checkpoints.snapshot import FileKind
from ...errors import InternalError
from ...keyed.contract import Namespace
from ...keyed.declarations import declare_form
from ...keyed.evolution import migration, of_part
from ...keyed.kinds import StateDescriptor, layout_of_kind
from ...keys.key_classes import KEY_CLASSES, merged_notes, notes_of
from ...values.type_sources import type_of_hint
from .cache import RowPool
from .database import new_batch
from .entries import EntryRows
from .row_encoding import (
    decode_key,
    decode_value,
    encode_value,
    next_prefix,
    original_key,
    past_key,
    skip_key,
    split_namespace,
    split_row,
)
from .rows import NamespaceRows, RowFormat, Rows, WindowRows, forget_if_empty

__all__ = ["RocksDBTable"]

_BATCH_BYTES = 4 << 20


class RocksDBTable:
    """(namespace, key) -> value, list or map.

    Args:
        name: The state's.
        number: Its id in this database.
        form: Its facts (`headrace.state.keyed.declarations.form_of`).
        pool: The database's cache.
        is_restored: Whether the database may have rows of it.
    """

    kind = FileKind.KEYED

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

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint says of it: its form, and the classes of its keys."""
        classes = merged_notes(self.form.get(KEY_CLASSES), notes_of(self._format.key_classes))
        return {**self.form, KEY_CLASSES: classes} if classes else self.form

    def note_key_classes(self) -> None:
        """Have the pool know which of several classes of one name its rows' keys are of."""
        pool = self._pool
        for _, data in pool.database.scan((self._bounds(),), self.name):
            key, is_kept = original_key(data)
            if is_kept and self._has_entries:
                pool.encoded(key[0])
                pool.encoded(key[1], self._format.prefix)
            elif is_kept:
                pool.encoded(key)

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
        """Return the live mapping of one namespace, made on first use; of lists and maps each access handles all of
        one.

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
        """Return the mapping of a namespace of values, if it may hold anything."""
        if not self.windowed:
            return self._all if namespace is None else None
        space = self._spaces.get(namespace)
        return self.namespace(namespace) if space is None and namespace in self._format.index else space

    def look_up(self, namespace: Namespace, key: Any, default: Any) -> Any:
        """Return what a key holds in a namespace; for those who only look."""
        return self.namespace(namespace).get(key, default)

    def expect(self, keys: Sequence[Any]) -> None:
        """Have the values of these keys there, as they are about to be current, if functions ask for most of them."""
        if self.declared and not self.windowed and not self._has_entries:
            self._all.expect(keys)

    def some_keys(self) -> Iterable[Any]:
        """Return the keys of all namespaces, for those who look at the first ones: however many namespaces
        there are.
        """
        return (key for namespace in self._names() for key in self.namespace(namespace))

    def entries(self, namespace: Namespace, key: Any) -> EntryRows:
        """Return the entries of a key's map, or the elements of its list; not to be kept over other accesses."""
        rows = self._entries.get((namespace, key))
        return EntryRows(self._pool, self._format, namespace, key, self._entries) if rows is None else rows

    def clear_entries(self, namespace: Namespace, key: Any) -> None:
        """Forget a key's map or list."""
        self.entries(namespace, key).clear()
        if self.windowed and namespace in self._format.index:
            forget_if_empty(self._pool, self._format, namespace, self._pool.located(key)[0])

    def namespaces(self) -> list[Namespace]:
        counts, spaces = self._format.counts, self._spaces
        return [name for name in self._names() if (name not in spaces and counts.get(name)) or self.namespace(name)]

    def _names(self) -> dict[Namespace, None]:
        """The namespaces that may hold something."""
        if not self.windowed:
            return {None: None}
        cached = [name for name, _ in self._entries] if self._has_entries else self._spaces.keys()
        return dict.fromkeys((*self._format.index, *cached))

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
