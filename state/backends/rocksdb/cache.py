"""The cache of a state database: which rows are kept as Python objects, and when they are written.

It is one pool for all rows of a database, bounded by an estimate of bytes within the slot's managed memory, and of what
is dirty by entries. When it is full it *turns*: dirty entries are written and become the clean ones, the old clean ones
go. What is used at least once per turn stays, which is LRU without a list to keep in order on every access. When only
too much is dirty, that is written and stays, as it is before a snapshot. So state that fits into memory is read once.

Source: the two-generation scheme is that of 2Q's hot and cold queues.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Protocol

from ...errors import HeadraceError, InternalError, TypeMismatchError
from ...keys.hashing import hash_key, hash_keys
from ...keys.key_groups import KeyGroupRange, key_groups_of
from ...values.sharing import shown, types_of
from .database import Database, SlotMemory, new_batch
from .row_encoding import encode_key, encode_key_with_classes, encode_keys

__all__ = ["ABSENT", "MAX_DIRTY_ENTRIES", "CachedRows", "RowPool", "estimated_bytes"]

ABSENT: Any = object()
"""In a cache: there is no such entry."""

MAX_DIRTY_ENTRIES = 100_000
"""So many rows are written at once at most, about 0.2 s of work: it is also what a snapshot may have to write."""
MIN_CACHED_ENTRIES = 64
_SLOT_BYTES = 100
"""Of a cached entry besides its key and value: slots in dictionaries, which have room for more."""
_MAPPING_ENTRIES = 6
"""A mapping with cached entries takes as much memory as so many more of them."""
_LARGE_VALUE_BYTES = 64 << 10
_MAX_UNCHECKED = 256
"""Accesses between two looks at how large values are."""
_MAX_REMEMBERED_KEYS = 16_384
_DIRECT = frozenset((int, str, bytes))
_MIN_VECTOR_KEYS = 16
"""Fewer keys are located one by one."""
_BATCH_BYTES = 4 << 20
_MAX_FETCHED_ROWS = 1_024
_FETCHED_BYTES = 1 << 20


def estimated_bytes(value: Any, depth: int = 4) -> int:
    """About how much memory a value takes; of containers some elements are looked at."""
    size = sys.getsizeof(value, 64)
    if depth and isinstance(value, (list, tuple, dict, set, frozenset, deque)) and value:
        count = len(value)
        sampled = list(islice(value.items() if isinstance(value, dict) else value, 8))
        size += count * sum(estimated_bytes(element, depth - 1) for element in sampled) // len(sampled)
    elif is_dataclass(value) and depth:
        size += sum(estimated_bytes(getattr(value, field.name, None), depth - 1) for field in fields(value))
    elif hasattr(value, "__dict__"):
        size += estimated_bytes(vars(value), depth - 1) if depth else 200
    return size


class _Named(Protocol):
    """The state that rows are of."""

    state: str


class CachedRows(Protocol):
    """Rows as the cache knows them; `headrace.state.backends.rocksdb.rows.Rows` are what there is.

    Attributes:
        is_active: Whether the cache knows of them, which it does while there are cached entries.
    """

    is_active: bool

    @property
    def format(self) -> _Named:
        """What all rows of their state have in common."""

    @property
    def num_cached(self) -> int:
        """How many entries are cached."""

    @property
    def num_dirty(self) -> int:
        """How many of them are to be written."""

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""

    def activated(self) -> None:
        """Note that the cache knows of them from now on."""

    def deactivated(self) -> None:
        """Note that the cache has let go of them."""

    def write_into(self, batch: Any) -> None:
        """Add what is dirty to a batch of writes."""

    def flushed(self) -> None:
        """What was dirty is in the database."""

    def turned(self) -> None:
        """What was dirty is in the database, and is what stays cached."""

    def forget_cached(self) -> None:
        """Forget all that is cached."""


class RowPool:
    """The cache of one database.

    Args:
        database: Where rows are.
        memory: The slot's.
        key_groups: The key groups the subtask owns.
        max_parallelism: How many key groups there are.
        max_entries: How many entries are cached at most, and dirty; None for as many as there is memory for, and
            `MAX_DIRTY_ENTRIES`.
    """

    def __init__(
        self,
        database: Database,
        memory: SlotMemory,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        max_entries: int | None = None,
    ) -> None:
        self.database = database
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._memory = memory
        self._max_entries = max_entries
        self._max_dirty = max_entries or MAX_DIRTY_ENTRIES
        # Rows with cached entries; insertion order. Nothing else keeps them.
        self.active: dict[int, CachedRows] = {}
        # Accesses that may have added an entry until the next check, of how many; the others since the last count. And
        # how many entries were cached and dirty then.
        self.left = 0
        self._granted = 0
        self._num_added = 0
        self._num_cached = self._num_dirty = 0
        # Moving average of the estimated bytes of keys and values.
        self._entry_bytes = 0.0
        # Key -> (key group, its two bytes, encoded key) of the keys met last.
        self._keys: dict[Any, tuple[int, bytes, bytes]] = {}
        # The classes that encodings name one after the other, and the encodings' places by their names: a program has
        # few of them. A place is a state's prefix for keys of maps, empty for keys.
        self._classes: set[tuple[bytes, tuple[type, ...]]] = set()
        self._by_names: dict[tuple[bytes, tuple[str, ...]], tuple[type, ...]] = {}

    # ----------------------------------------------------------------------------------------------------------- keys
    def located(self, key: Any) -> tuple[int, bytes, bytes]:
        """Return a key's key group, the same as two bytes, and its encoding."""
        found = self._keys.get(key)
        if found is None:
            found = self._locate(key, hash_key(key) % self.max_parallelism)
        return found

    def _locate(self, key: Any, key_group: int) -> tuple[int, bytes, bytes]:
        self._check_owned(key_group, key)
        if len(self._keys) >= _MAX_REMEMBERED_KEYS:
            self._keys.clear()
        found = self._keys[key] = (key_group, key_group.to_bytes(2, "big"), self.encoded(key))
        return found

    def encoded(self, key: Any, place: bytes = b"") -> bytes:
        """Return a key's encoding, in which classes have their names only.

        Args:
            key: The key, or one of a map.
            place: Of keys of a map what its state's rows begin with.

        Raises:
            TypeMismatchError: If two classes of one name would make two keys one.
        """
        if type(key) in _DIRECT:
            return encode_key(key)
        data, classes = encode_key_with_classes(key)
        if classes and (place, classes) not in self._classes:
            self._check_names(place, classes)
        return data

    def _check_names(self, place: bytes, classes: tuple[type, ...]) -> None:
        names = tuple(f"{one.__module__}.{one.__qualname__}" for one in classes)
        others = self._by_names.setdefault((place, names), classes)
        for name, one, other in zip(names, classes, others, strict=True):
            if one is not other:
                message = f"keys are of two classes {name}, which the rows of a state database do not tell apart"
                raise TypeMismatchError(message, hint="give the classes different names, or use HashMapStateBackend")
        self._classes.add((place, classes))

    def _check_owned(self, key_group: int, key: Any) -> None:
        first, last = self.key_groups
        if not first <= key_group <= last:
            # State of a foreign key would be lost at the next restore: better no state than that.
            message = f"a subtask that owns key groups {first} to {last} has a key of group {key_group}: {shown(key)}"
            hint = "the same key must always hash alike: check its class and the key selector"
            raise InternalError(message, hint=hint)

    def row_keys(self, keys: Sequence[Any], prefix: bytes, namespace: bytes = b"") -> list[bytes]:
        """Return the keys of rows: prefix, key group, namespace and the key's encoding."""
        if len(keys) < _MIN_VECTOR_KEYS:
            return [prefix + group + namespace + encoded for _, group, encoded in map(self.located, keys)]
        groups = key_groups_of(hash_keys(keys), self.max_parallelism).tolist()
        heads = {group: prefix + group.to_bytes(2, "big") + namespace for group in set(groups)}
        for group in heads:
            if not self.key_groups.contains(group):
                self._check_owned(group, keys[groups.index(group)])
        return [heads[group] + encoded for group, encoded in zip(groups, self._encoded(keys), strict=True)]

    def _encoded(self, keys: Sequence[Any]) -> list[bytes]:
        return encode_keys(keys) if _DIRECT.issuperset(types_of(keys)) else list(map(self.encoded, keys))

    # ---------------------------------------------------------------------------------------------------------- memory
    def check(self, rows: CachedRows, key: Any, value: Any) -> None:
        """See that there are not too many, as entries have been added. ``rows`` is about to have or has this one."""
        if not rows.is_active:
            rows.is_active = True
            self.active[id(rows)] = rows
            rows.activated()
            self.left -= _MAPPING_ENTRIES
        if self.left >= 0:
            return
        self._num_added += self._granted - self.left
        if value is not ABSENT:
            size = estimated_bytes(value) + estimated_bytes(key)
            # Growing values must be noticed at once, shrinking ones may take their time.
            self._entry_bytes = max(float(size), self._entry_bytes + (size - self._entry_bytes) / 16)
        limit = self._limit()
        if self._room(limit) <= 0:
            self._make_room(limit)
        self._granted = max(min(limit // 16, _MAX_UNCHECKED, self._room(limit)), 1)
        self.left = self._granted

    def _room(self, limit: int) -> int:
        """How many more entries there may be for sure."""
        return min(limit - self._num_cached, self._max_dirty - self._num_dirty) - self._num_added

    def _make_room(self, limit: int) -> None:
        """Count what was only bounded before, and write and let go of what is too much."""
        num_cached = self._count()
        num_dirty = sum(rows.num_dirty for rows in self.active.values())
        if 4 * num_cached >= 3 * limit:
            self.turn()
            # What has just been used stays, for half of a turn at least.
            num_cached, num_dirty = min(self._count(), limit // 2), 0
        elif 4 * num_dirty >= 3 * self._max_dirty:
            self.flush()
            num_dirty = 0
        self._num_cached, self._num_dirty, self._num_added = num_cached, num_dirty, 0

    def _count(self) -> int:
        return sum(rows.num_cached for rows in self.active.values()) + _MAPPING_ENTRIES * len(self.active)

    def num_bytes(self) -> int:
        """About how many bytes the cached entries take."""
        return int(self._count() * (self._entry_bytes + _SLOT_BYTES))

    def _limit(self) -> int:
        by_bytes = int(self._memory.object_share() / (self._entry_bytes + _SLOT_BYTES))
        least = MIN_CACHED_ENTRIES if self._entry_bytes < _LARGE_VALUE_BYTES else 4
        limit = max(by_bytes, least)
        return limit if self._max_entries is None else min(self._max_entries, limit)

    def rows_to_fetch(self) -> int:
        """Return how many rows to read at once: no more than the cache has room for, nor many large ones."""
        by_bytes = int(_FETCHED_BYTES / max(self._entry_bytes, _FETCHED_BYTES / _MAX_FETCHED_ROWS))
        return max(1, min(by_bytes, self._limit() // 4))

    def turn(self) -> None:
        """Write what is dirty; it is what stays cached."""
        self._write(self.active.values())
        for rows in list(self.active.values()):
            rows.turned()
            if not rows.num_cached:
                self._deactivate(rows)

    def flush(self) -> None:
        """Write what is dirty; everything stays cached. Called before a snapshot."""
        self._write(self.active.values())
        for rows in self.active.values():
            rows.flushed()

    def flush_state(self, row_format: _Named) -> None:
        """Flush as `flush` does, of one state."""
        dirty = [rows for rows in self.active.values() if rows.format is row_format and rows.is_dirty]
        self._write(dirty)
        for rows in dirty:
            rows.flushed()

    def forget(self, rows: CachedRows) -> None:
        """Forget rows that have been dropped."""
        rows.forget_cached()
        if rows.is_active:
            self._deactivate(rows)

    def _deactivate(self, rows: CachedRows) -> None:
        rows.is_active = False
        del self.active[id(rows)]
        rows.deactivated()

    def _write(self, written: Iterable[CachedRows]) -> None:
        batch = new_batch()
        state = ""
        for rows in written:
            if rows.is_dirty:
                state = rows.format.state
                try:
                    rows.write_into(batch)
                except HeadraceError as error:
                    error.context.setdefault("state", state)
                    raise
                if batch.size_in_bytes() > _BATCH_BYTES:
                    self.database.write(batch, state)
                    batch = new_batch()
        if len(batch):
            self.database.write(batch, state)
