"""The entries of one key's map, or the elements of its list, as rows of a state database.

All of a key's entries lie next to each other, behind what the key's prefix says; an element's key is its index.

Source: Flink's ``RocksDBMapState`` and ``RocksDBListState``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...keyed.contract import Namespace
from .cache import ABSENT, RowPool
from .row_encoding import (
    decode_key,
    is_plain,
    original_key,
    past_key,
)
from .rows import RowFormat, Rows, forget_if_empty

__all__ = ["EntryRows"]


class EntryRows(Rows):
    """The entries of one key's map, or the elements of its list by index.

    Args:
        pool: The cache.
        row_format: The state's.
        namespace: The namespace.
        key: The key.
        registry: Holds all of a state that have cached entries, by (namespace, key).
    """

    __slots__ = ("_is_plain", "_key_group", "_name", "_namespace", "_next", "_prefix", "_registry")

    def __init__(
        self,
        pool: RowPool,
        row_format: RowFormat,
        namespace: Namespace,
        key: Any,
        registry: dict[tuple[Namespace, Any], EntryRows],
    ) -> None:
        super().__init__(pool, row_format)
        self._name = (namespace, key)
        self._is_plain = is_plain(key)
        self._registry = registry
        self._key_group, group, encoded = pool.located(key)
        self._namespace = namespace
        self._prefix = row_format.prefix + group + row_format.namespace_bytes(namespace) + encoded
        # The index of the next element of a list; None if that is not known.
        self._next: int | None = None

    @staticmethod
    def key_of(row_key: bytes, data: bytes, start: int) -> Any:
        kept, is_kept = original_key(data)
        return kept[1] if is_kept else decode_key(row_key, start)[0]

    def _encode(self, value: Any, key: Any) -> bytes:
        if self._is_plain and is_plain(key):
            return self.format.encode(value, None)
        return self.format.encode_row(value, (self._name[1], key), keeps_key=True)

    def _are_plain_numbers(self, keys: list[Any], values: list[Any]) -> bool:
        return self._is_plain and super()._are_plain_numbers(keys, values)

    @property
    def prefix(self) -> bytes:
        """What the keys of all its rows begin with."""
        return self._prefix

    def activated(self) -> None:
        self._registry[self._name] = self

    def deactivated(self) -> None:
        del self._registry[self._name]

    def _may_have_rows(self) -> bool:
        return not self.format.windowed or self._namespace in self.format.index

    def _row_key(self, key: Any) -> bytes | None:
        return self._prefix + self._pool.encoded(key, self.format.prefix) if self._may_have_rows() else None

    def _row_keys(self, keys: list[Any]) -> list[bytes]:
        prefix, encoded, place = self._prefix, self._pool.encoded, self.format.prefix
        return [prefix + encoded(key, place) for key in keys]

    def _ranges(self) -> Sequence[tuple[bytes, bytes]]:
        return ((self._prefix, past_key(self._prefix)),)

    def _key_start(self) -> int:
        return len(self._prefix)

    def write_into(self, batch: Any) -> None:
        if self.format.windowed and not self._only_deletes():
            bit = 1 << (self._key_group - self._pool.key_groups.start)
            self.format.index[self._namespace] = self.format.index.get(self._namespace, 0) | bit
        super().write_into(batch)

    def _only_deletes(self) -> bool:
        return all(value is ABSENT for value in self._dirty.values())

    def flushed(self) -> None:
        had_deletes = bool(self._dirty) and self._only_deletes()
        super().flushed()
        self._forget_if_empty(had_deletes)

    def turned(self) -> None:
        had_deletes = bool(self._dirty) and self._only_deletes()
        super().turned()
        self._forget_if_empty(had_deletes)

    def _forget_if_empty(self, had_deletes: bool) -> None:
        """Entry by entry a namespace may have become empty: that is looked for here, once for many of them."""
        if had_deletes and self.format.windowed and self._namespace in self.format.index:
            forget_if_empty(self._pool, self.format, self._namespace, self._key_group)

    def clear(self) -> None:
        super().clear()
        self._next = 0

    # ---------------------------------------------------------------------------------------------------- as a list
    def forget_length(self) -> None:
        """Forget where the next element goes, as elements have been set by index: it is found out anew."""
        self._next = None

    def append(self, value: Any) -> None:
        """Add an element after the last one."""
        index = self._next
        if index is None:
            index = self._next_index()
        self[index] = value
        self._next = index + 1

    def _next_index(self) -> int:
        last = max(self._dirty, default=-1)
        if self._may_have_rows():
            ((first, past),) = self._ranges()
            row_key = self._pool.database.last_key(first, past, self.format.state)
            if row_key is not None:
                last = max(last, decode_key(row_key, len(self._prefix))[0])
        return last + 1

    def elements(self) -> list[Any]:
        """Return the elements, in order."""
        return [value for _, value in sorted(self.stream(), key=_index_of)]


def _index_of(entry: tuple[Any, Any]) -> Any:
    return entry[0]
