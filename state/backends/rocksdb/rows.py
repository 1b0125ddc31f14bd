"""Rows of a state database as mappings, with a write-back cache of Python objects in front.

`Rows` is a live ``MutableMapping`` over a set of rows: those of one namespace (`NamespaceRows`, `WindowRows`), or the
entries of one key's map or list (`headrace.state.backends.rocksdb.entries`). It keeps two dictionaries: *dirty* holds
what the database does not have yet (a value, or `ABSENT` for a deleted one), *clean* what it has (`ABSENT` where it has
nothing). A hot key therefore costs a dictionary access and no serialisation. When dirty ones are written is decided in
`headrace.state.backends.rocksdb.cache`.

Iteration streams: it takes the dirty entries as of its start and a consistent view of the database, and never holds
more than that. What changes meanwhile is not seen.

Invariants: a row in the database whose key is not in *dirty* is current; an entry in *clean* equals the database;
``WindowRows`` know which key groups of their namespace may have rows, so that short-lived namespaces cost no search.

Source: Flink's ``RocksDBValueState``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, MutableMapping, Sequence, ValuesView
from operator import itemgetter
from typing import Any

from ...errors import TypeMismatchError
from ...keyed.contract import Namespace
from ...reading.program_classes import own_classes_in
from ...values.sharing import types_of
from .cache import ABSENT, RowPool
from .database import new_batch
from .row_encoding import (
    decode_key,
    decode_value,
    encode_namespace,
    encode_value,
    is_plain,
    next_prefix,
    original_key,
)

__all__ = [
    "NamespaceRows",
    "RowFormat",
    "Rows",
    "WindowRows",
    "forget_if_empty",
]

_MISS: Any = object()

_MAX_SINGLE_DELETES = 64
"""Up to so many rows are deleted one by one: tombstones of ranges slow down every later read."""

_DIRECT = frozenset((int, str, bytes))

_TRIAL_BATCHES = 64
_MIN_FETCHED = 16
"""Fewer rows are left to those who ask for them; so many are read first."""
_MAX_FETCHED_BYTES = 1 << 20


def _next_length(length: int, found: Sequence[bytes | None]) -> int:
    """How many rows to read after some: more if these were there, and small."""
    sizes = [len(data) for data in found if data is not None]
    if sum(sizes) > _MAX_FETCHED_BYTES:
        return max(1, length // 4)
    return 4 * length if 2 * len(sizes) >= len(found) and 8 * sum(sizes) <= _MAX_FETCHED_BYTES else length


class RowFormat:
    """What all rows of one state have in common.

    Args:
        state: Its name, for errors.
        prefix: The two bytes that its rows begin with.
        windowed: Whether a namespace is part of its rows' keys.
    """

    __slots__ = ("counts", "index", "key_classes", "lift", "lower", "prefix", "state", "windowed")

    def __init__(self, state: str, prefix: bytes, windowed: bool) -> None:
        self.state = state
        self.prefix = prefix
        self.windowed = windowed
        # The program's own classes among those of keys and map keys that were written.
        self.key_classes: set[type] = set()
        # Turn a value into what is stored, and back; None if that is the same.
        self.lower: Callable[[Any], Any] | None = None
        self.lift: Callable[[Any], Any] | None = None
        # Namespaces that may have rows in the database; of each the key groups, as bits from the first one owned.
        self.index: dict[Namespace, int] = {}
        # How many keys those namespaces have that nothing is cached of, as far as somebody has asked.
        self.counts: dict[Namespace, int] = {}

    def namespace_bytes(self, namespace: Namespace) -> bytes:
        """Return a namespace's part of a row's key."""
        return encode_namespace(namespace) if self.windowed else b""

    def encode(self, value: Any, key: Any) -> bytes:
        """Return a row's value."""
        return self.encode_row(value, key, keeps_key=type(key) not in _DIRECT and not is_plain(key))

    def encode_row(self, value: Any, key: Any, *, keeps_key: bool) -> bytes:
        """Return a row's value, maybe with the key that it is to give back.

        Raises:
            TypeMismatchError: If it cannot be stored; names the state.
        """
        stored = value if self.lower is None else self.lower(value)
        if keeps_key:
            self.key_classes |= own_classes_in((key,))
        try:
            return encode_value(stored, key, keeps_key=keeps_key)
        except TypeMismatchError as error:
            error.context.setdefault("state", self.state)
            raise

    def decode(self, data: bytes) -> Any:
        """Return the inverse."""
        value = decode_value(data)
        return value if self.lift is None else self.lift(value)


def forget_if_empty(pool: RowPool, row_format: RowFormat, namespace: Namespace, key_group: int) -> None:
    """Namespaces come and go: one that has no row in a key group must not be remembered there."""
    index = row_format.index
    first = row_format.prefix + key_group.to_bytes(2, "big") + row_format.namespace_bytes(namespace)
    if next(pool.database.scan(((first, next_prefix(first)),), row_format.state), None) is None:
        left = index.get(namespace, 0) & ~(1 << (key_group - pool.key_groups.start))
        if left:
            index[namespace] = left
        else:
            index.pop(namespace, None)


class _Items(ItemsView[Any, Any]):
    _mapping: Rows

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.stream()


class _Values(ValuesView[Any]):
    _mapping: Rows

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.stream())


class Rows(MutableMapping[Any, Any]):
    """A live mapping over rows.

    Args:
        pool: The cache.
        row_format: The state's.
    """

    __slots__ = ("__weakref__", "_clean", "_dirty", "_pool", "format", "is_active")

    def __init__(self, pool: RowPool, row_format: RowFormat) -> None:
        self._pool = pool
        self.format = row_format
        self._dirty: dict[Any, Any] = {}
        self._clean: dict[Any, Any] = {}
        # Whether the pool knows of it, which it does while there are cached entries.
        self.is_active = False

    # Which rows there are; by subclasses.
    @abstractmethod
    def _row_key(self, key: Any) -> bytes | None:
        """The key of an entry's row; None if the database cannot have it."""

    @abstractmethod
    def _row_keys(self, keys: list[Any]) -> list[bytes]:
        """The keys of rows that are about to be written."""

    @abstractmethod
    def _ranges(self) -> Sequence[tuple[bytes, bytes]]:
        """Ranges of the database that hold all rows and no others."""

    @abstractmethod
    def _key_start(self) -> int:
        """Where in a row's key an entry's key begins."""

    def _may_have_rows(self) -> bool:
        """Whether the database may have any rows."""
        return True

    @staticmethod
    def key_of(row_key: bytes, data: bytes, start: int) -> Any:
        """Return the key of an entry, whose encoding begins at ``start`` in its row's key."""
        key, is_kept = original_key(data)
        return key if is_kept else decode_key(row_key, start)[0]

    def activated(self) -> None:
        """Note that the pool knows of it from now on."""

    def deactivated(self) -> None:
        """Note that the pool has let go of it."""

    # --------------------------------------------------------------------------------------------------------- reading
    def _find(self, key: Any) -> Any:
        """The value, or `ABSENT`."""
        value = self._dirty.get(key, _MISS)
        if value is _MISS:
            value = self._clean.get(key, _MISS)
            if value is _MISS:
                value = self._load(key)
        return value

    def _load(self, key: Any) -> Any:
        row_key = self._row_key(key)
        if row_key is None:
            return ABSENT
        pool = self._pool
        data = pool.database.get(row_key, self.format.state)
        value = ABSENT if data is None else self.format.decode(data)
        self._clean[key] = value
        pool.left -= 1
        if pool.left < 0 or not self.is_active:
            pool.check(self, key, value)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._dirty.get(key, _MISS)
        if value is _MISS:
            value = self._clean.get(key, _MISS)
            if value is _MISS:
                value = self._load(key)
        return default if value is ABSENT else value

    def __getitem__(self, key: Any) -> Any:
        value = self._find(key)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not ABSENT

    # --------------------------------------------------------------------------------------------------------- writing
    def __setitem__(self, key: Any, value: Any) -> None:
        self._dirty[key] = value
        pool = self._pool
        pool.left -= 1
        if pool.left < 0 or not self.is_active:
            pool.check(self, key, value)

    def _discard(self, key: Any) -> None:
        """Forget an entry that is there or may be."""
        if self._may_have_rows():
            self[key] = ABSENT
        else:
            self._dirty.pop(key, None)
            self._clean.pop(key, None)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is ABSENT:
            raise KeyError(key)
        self._discard(key)

    def pop(self, key: Any, default: Any = _MISS) -> Any:
        value = self._find(key)
        if value is ABSENT:
            if default is _MISS:
                raise KeyError(key)
            return default
        self._discard(key)
        return value

    def clear(self) -> None:
        """Forget all entries."""
        if self._may_have_rows():
            self._delete_rows()
        self._pool.forget(self)

    def _delete_rows(self) -> None:
        database, state = self._pool.database, self.format.state
        batch, left = new_batch(), _MAX_SINGLE_DELETES
        for first, past in self._ranges():
            for row_key, _ in database.scan(((first, past),), state):
                if left == 0:
                    batch.delete_range(first, past)
                    break
                left -= 1
                batch.delete(row_key)
        if len(batch):
            database.write(batch, state)

    # ------------------------------------------------------------------------------------------------------- iteration
    def stream(self) -> Iterator[tuple[Any, Any]]:
        """Return the entries as of now."""
        dirty = dict(self._dirty)
        database, state = self._pool.database, self.format.state
        rows = database.scan(self._ranges() if self._may_have_rows() else (), state)
        return self._merged(dirty, rows)

    def _merged(self, dirty: dict[Any, Any], rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for key, value in dirty.items():
            if value is not ABSENT:
                yield key, value
        start, decode, key_of = self._key_start(), self.format.decode, self.key_of
        for row_key, data in rows:
            key = key_of(row_key, data, start)
            if key not in dirty:
                yield key, decode(data)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.stream())

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def __len__(self) -> int:
        count = sum(value is not ABSENT for value in self._dirty.values())
        if self._may_have_rows():
            replaced = set(self._row_keys(list(self._dirty)))
            rows = self._pool.database.scan(self._ranges(), self.format.state)
            count += sum(row_key not in replaced for row_key, _ in rows)
        return count

    def __bool__(self) -> bool:
        return next(self.stream(), None) is not None

    # ----------------------------------------------------------------------------------------------------- for the pool
    @property
    def num_cached(self) -> int:
        """How many entries are cached."""
        return len(self._dirty) + len(self._clean)

    @property
    def num_dirty(self) -> int:
        """How many of them are to be written."""
        return len(self._dirty)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        return bool(self._dirty)

    def write_into(self, batch: Any) -> None:
        """Add what is dirty to a batch of writes."""
        dirty, put = self._dirty, batch.put
        keys, values = list(dirty), list(dirty.values())
        row_keys = self._row_keys(keys)
        if self._are_plain_numbers(keys, values):
            encoded = {value: self.format.encode(value, None) for value in set(values)}
            for row_key, value in zip(row_keys, values, strict=True):
                put(row_key, encoded[value])
            return
        encode = self._encode
        for row_key, key, value in zip(row_keys, keys, values, strict=True):
            if value is ABSENT:
                batch.delete(row_key)
            else:
                put(row_key, encode(value, key))

    def _are_plain_numbers(self, keys: list[Any], values: list[Any]) -> bool:
        """Whether equal values have equal rows, whatever their keys: counters do, and many of them are equal."""
        return types_of(values) == {int} and self.format.lower is None and _DIRECT.issuperset(map(type, keys))

    def _encode(self, value: Any, key: Any) -> bytes:
        return self.format.encode(value, key)

    def flushed(self) -> None:
        """Note that what was dirty is in the database."""
        if self._dirty:
            if self._clean:
                self._clean.update(self._dirty)
                self._dirty = {}
            else:
                self._clean, self._dirty = self._dirty, {}

    def turned(self) -> None:
        """Note that what was dirty is in the database, and is what stays cached."""
        self._clean, self._dirty = self._dirty, {}

    def forget_cached(self) -> None:
        """Forget all that is cached."""
        self._dirty, self._clean = {}, {}

    def forget_expired(self, key: Any) -> bool:
        """Forget a row that has expired. Gives whether it is the newest of its key, and then to be deleted in the
        database.
        """
        if key in self._dirty:
            return False
        self._clean.pop(key, None)
        return True


class NamespaceRows(Rows):
    """All keys of a state that is not windowed.

    Rows that are about to be asked for are fetched at once where that pays: now and then a batch goes without, to see
    whether its rows are asked for at all.
    """

    __slots__ = ("_fetches", "_num_batches", "_num_loaded", "_num_missing")

    def __init__(self, pool: RowPool, row_format: RowFormat) -> None:
        super().__init__(pool, row_format)
        # Whether batches are fetched for; batches so far. Of the last one without: rows that were not there, and those
        # that were asked for one by one.
        self._fetches = False
        self._num_batches = 0
        self._num_missing = self._num_loaded = 0

    def expect(self, keys: Sequence[Any]) -> None:
        """Fetch the rows of keys that come next, if such rows were asked for before."""
        is_trial = self._num_batches % _TRIAL_BATCHES == 0
        if self._num_batches % _TRIAL_BATCHES == 1:
            self._fetches = self._num_loaded > 0 and 2 * self._num_loaded >= self._num_missing
        self._num_batches += 1
        if not is_trial and not self._fetches:
            return
        missing = set(keys).difference(self._dirty).difference(self._clean)
        if is_trial:
            self._num_missing, self._num_loaded = len(missing), 0
        elif len(missing) >= _MIN_FETCHED:
            self._fetch(list(missing))

    def _fetch(self, keys: list[Any]) -> None:
        pool, clean, state = self._pool, self._clean, self.format.state
        rows = sorted(zip(self._row_keys(keys), keys, strict=True), key=itemgetter(0))
        at, length = 0, _MIN_FETCHED
        while at < len(rows):
            some = rows[at : at + min(length, pool.rows_to_fetch())]
            at += len(some)
            value: Any = ABSENT
            found = pool.database.get_all([row_key for row_key, _ in some], state)
            length = _next_length(length, found)
            for (_, key), data in zip(some, found, strict=True):
                value = clean[key] = ABSENT if data is None else self.format.decode(data)
            pool.left -= len(some)
            pool.check(self, some[-1][1], value)
            if self._clean is not clean:  # there was no room for these and others
                return

    def _load(self, key: Any) -> Any:
        self._num_loaded += 1
        return super()._load(key)

    def _row_key(self, key: Any) -> bytes | None:
        _, group, encoded = self._pool.located(key)
        return self.format.prefix + group + encoded

    def _row_keys(self, keys: list[Any]) -> list[bytes]:
        return self._pool.row_keys(keys, self.format.prefix)

    def _ranges(self) -> Sequence[tuple[bytes, bytes]]:
        first, last = self._pool.key_groups
        prefix = self.format.prefix
        return ((prefix + first.to_bytes(2, "big"), prefix + (last + 1).to_bytes(2, "big")),)

    def _key_start(self) -> int:
        return 4


class WindowRows(Rows):
    """All keys of one namespace of a windowed state; knows how many there are, once somebody has asked."""

    __slots__ = ("_count", "_encoded", "_namespace")

    def __init__(self, pool: RowPool, row_format: RowFormat, namespace: Namespace) -> None:
        super().__init__(pool, row_format)
        self._namespace = namespace
        self._encoded = encode_namespace(namespace)
        # How many keys there are; None if that is not known.
        self._count: int | None = row_format.counts.get(namespace) if namespace in row_format.index else 0

    def _may_have_rows(self) -> bool:
        return self._namespace in self.format.index

    def _row_key(self, key: Any) -> bytes | None:
        key_groups = self.format.index.get(self._namespace)
        if key_groups is None:
            return None
        number, group, encoded = self._pool.located(key)
        if not key_groups >> (number - self._pool.key_groups.start) & 1:
            return None
        return self.format.prefix + group + self._encoded + encoded

    def _row_keys(self, keys: list[Any]) -> list[bytes]:
        return self._pool.row_keys(keys, self.format.prefix, self._encoded)

    def _ranges(self) -> Sequence[tuple[bytes, bytes]]:
        key_groups, start = self.format.index.get(self._namespace, 0), self._pool.key_groups.start
        prefix, ranges = self.format.prefix, []
        for number in range(key_groups.bit_length()):
            if key_groups >> number & 1:
                first = prefix + (start + number).to_bytes(2, "big") + self._encoded
                ranges.append((first, next_prefix(first)))
        return ranges

    def _key_start(self) -> int:
        return 4 + len(self._encoded)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._count is not None:
            if self._find(key) is ABSENT:
                self._count += value is not ABSENT
            else:
                self._count -= value is ABSENT
        super().__setitem__(key, value)

    def _discard(self, key: Any) -> None:
        if self._may_have_rows():
            self[key] = ABSENT
        elif self._dirty.pop(key, _MISS) is not _MISS and self._count is not None:
            self._count -= 1

    def forget_expired(self, key: Any) -> bool:
        is_newest = super().forget_expired(key)
        if is_newest and self._count is not None:
            self._count -= 1
        return is_newest

    def clear(self) -> None:
        if self._count == 0 and len(self._dirty) <= _MAX_SINGLE_DELETES:
            # What the database has is what is about to be deleted there: no need to look for it.
            if self._dirty and self._may_have_rows():
                batch = new_batch()
                for row_key in self._row_keys(list(self._dirty)):
                    batch.delete(row_key)
                self._pool.database.write(batch, self.format.state)
            self._pool.forget(self)
        else:
            super().clear()
        self.format.index.pop(self._namespace, None)
        self.format.counts.pop(self._namespace, None)
        self._count = 0

    def deactivated(self) -> None:
        if self._count is not None and self._namespace in self.format.index:
            self.format.counts[self._namespace] = self._count

    def __len__(self) -> int:
        if self._count is None:
            self._count = super().__len__()
            if self._namespace in self.format.index:
                self.format.counts[self._namespace] = self._count
        return self._count

    def __bool__(self) -> bool:
        return len(self) > 0

    def write_into(self, batch: Any) -> None:
        start, key_groups = self._pool.key_groups.start, self.format.index.get(self._namespace, 0)
        for row_key in self._row_keys(list(self._dirty)):
            key_groups |= 1 << (int.from_bytes(row_key[2:4], "big") - start)
        self.format.index[self._namespace] = key_groups
        super().write_into(batch)
