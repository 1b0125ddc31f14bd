"""The cache of a state database: which rows are kept as Python objects, and when they are written.

It is one pool for all rows of a database, bounded by entries and by an estimate of bytes within the slot's managed
memory. When it is full it *turns*: dirty entries are written and become the clean ones, the old clean ones go. What is
used at least once per turn stays, which is LRU without a list to keep in order on every access. Before a snapshot
everything dirty is written.

Source: the two-generation scheme is that of 2Q's hot and cold queues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...errors import HeadraceError, InternalError
from ...values.key_groups import KeyGroupRange, hash_key, hash_keys, key_groups_of
from .database import Database, SlotMemory, new_batch
from .encoding import encode_key

if TYPE_CHECKING:
    from .rows import RowFormat, Rows

__all__ = ["ABSENT", "MAX_CACHED_ENTRIES", "RowPool", "estimated_bytes"]

ABSENT: Any = object()
"""In a cache: there is no such entry."""

MAX_CACHED_ENTRIES = 100_000
"""A turn writes at most so many rows, about 0.3 s of work: it is also what a snapshot may have to write."""
MIN_CACHED_ENTRIES = 64
_ENTRY_BYTES = 250
"""Of a cached entry besides its value: a slot in a dictionary, the key, the objects of small mappings."""
_MAPPING_ENTRIES = 3
"""A mapping with cached entries takes as much memory as so many more of them."""
_LARGE_VALUE_BYTES = 64 << 10
_MAX_UNCHECKED = 256
"""Accesses between two looks at how large values are."""
_MAX_REMEMBERED_KEYS = 16_384
_BATCH_BYTES = 4 << 20


def estimated_bytes(value: Any, depth: int = 4) -> int:
    """About how much memory a value takes; of containers some elements are looked at."""
    size = sys.getsizeof(value, 64)
    if depth and type(value) in (list, tuple, dict, set, frozenset) and value:
        count = len(value)
        sampled = list(islice(value.items() if type(value) is dict else value, 8))
        size += count * sum(estimated_bytes(element, depth - 1) for element in sampled) // len(sampled)
    elif hasattr(value, "__dict__"):
        size += estimated_bytes(vars(value), depth - 1) if depth else 200
    return size


class RowPool:
    """The cache of one database.

    Args:
        database: Where rows are.
        memory: The slot's.
        key_groups: The key groups the subtask owns.
        max_parallelism: How many key groups there are.
        max_entries: How many entries are cached at most.
    """

    def __init__(
        self,
        database: Database,
        memory: SlotMemory,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        max_entries: int = MAX_CACHED_ENTRIES,
    ) -> None:
        self.database = database
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._memory = memory
        self._max_entries = max_entries
        # Rows with cached entries; insertion order. Nothing else keeps them.
        self.active: dict[int, Rows] = {}
        # Accesses that may have added an entry until the next check; the other accesses since the last turn.
        self.left = 0
        self._granted = 0
        self._num_added = 0
        # Moving average of the estimated bytes of values.
        self._value_bytes = 0.0
        # Key -> (key group, its two bytes, encoded key) of the keys met last.
        self._keys: dict[Any, tuple[int, bytes, bytes]] = {}

    # ----------------------------------------------------------------------------------------------------------- keys
    def located(self, key: Any) -> tuple[int, bytes, bytes]:
        """A key's key group, the same as two bytes, and its encoding."""
        found = self._keys.get(key)
        if found is None:
            found = self._locate(key, hash_key(key) % self.max_parallelism)
        return found

    def _locate(self, key: Any, key_group: int) -> tuple[int, bytes, bytes]:
        first, last = self.key_groups
        if not first <= key_group <= last:
            # State of a foreign key would be lost at the next restore: better no state than that.
            message = f"a subtask that owns key groups {first} to {last} has a key of group {key_group}: {key!r:.200}"
            hint = "the same key must always hash alike: check its class and the key selector"
            raise InternalError(message, hint=hint)
        if len(self._keys) >= _MAX_REMEMBERED_KEYS:
            self._keys.clear()
        found = self._keys[key] = (key_group, key_group.to_bytes(2, "big"), encode_key(key))
        return found

    def locate_all(self, keys: Sequence[Any]) -> list[tuple[int, bytes, bytes]]:
        """As `located`, for many keys at once."""
        known = self._keys
        new = [key for key in keys if key not in known]
        if not new:
            return [known[key] for key in keys]
        if len(new) > _MAX_REMEMBERED_KEYS // 2:
            groups = key_groups_of(hash_keys(keys), self.max_parallelism).tolist()
            return [self._locate(key, group) for key, group in zip(keys, groups, strict=True)]
        groups = key_groups_of(hash_keys(new), self.max_parallelism).tolist()
        found = {key: self._locate(key, group) for key, group in zip(new, groups, strict=True)}
        return [found.get(key) or known.get(key) or self.located(key) for key in keys]

    # ---------------------------------------------------------------------------------------------------------- memory
    def check(self, rows: Rows, value: Any) -> None:
        """Entries have been added: see that there are not too many. ``rows`` is about to have or has one."""
        if not rows.is_active:
            rows.is_active = True
            self.active[id(rows)] = rows
            rows.activated()
            self.left -= _MAPPING_ENTRIES
        if self.left >= 0:
            return
        self._num_added += self._granted - self.left
        if value is not ABSENT:
            size = estimated_bytes(value)
            # Growing values must be noticed at once, shrinking ones may take their time.
            self._value_bytes = max(float(size), self._value_bytes + (size - self._value_bytes) / 16)
        limit = self._limit()
        if self._num_added >= limit:
            num_cached = self._num_cached()
            if 2 * num_cached >= limit:
                self.turn()
                num_cached = self._num_cached()
            self._num_added = min(num_cached, limit // 2)
        self._granted = max(min(limit // 16, _MAX_UNCHECKED, limit - self._num_added), 1)
        self.left = self._granted

    def _num_cached(self) -> int:
        return sum(rows.num_cached for rows in self.active.values()) + _MAPPING_ENTRIES * len(self.active)

    def num_bytes(self) -> int:
        """About how many bytes the cached entries take."""
        return int(self._num_cached() * (self._value_bytes + _ENTRY_BYTES))

    def _limit(self) -> int:
        by_bytes = int(self._memory.object_share() / (self._value_bytes + _ENTRY_BYTES))
        least = MIN_CACHED_ENTRIES if self._value_bytes < _LARGE_VALUE_BYTES else 4
        return min(self._max_entries, max(by_bytes, least))

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

    def flush_state(self, row_format: RowFormat) -> None:
        """As `flush`, of one state."""
        dirty = [rows for rows in self.active.values() if rows.format is row_format and rows.is_dirty]
        self._write(dirty)
        for rows in dirty:
            rows.flushed()

    def forget(self, rows: Rows) -> None:
        """Rows have been dropped."""
        rows.forget_cached()
        if rows.is_active:
            self._deactivate(rows)

    def _deactivate(self, rows: Rows) -> None:
        rows.is_active = False
        del self.active[id(rows)]
        rows.deactivated()

    def _write(self, written: Iterable[Rows]) -> None:
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
