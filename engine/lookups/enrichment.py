"""Enrichment: for each record, the rows that an outside table has for its key, with a cache.

An `AsyncWaitOperator` whose function is called with the record's key, and only if the cache of this subtask does not
know the key. What it finds is joined to the record: an inner lookup drops records without a row, a left one keeps
them. The cache is memory of one attempt, in no snapshot; after a restore it is empty.

An entry is as old as the answer it holds, by the injected clock, however often it is read; of too many the one that
was used least recently goes. Several records of one key that is not known yet ask for it each.

Source: Flink's ``LookupFunction``, ``AsyncLookupFunction``, ``DefaultLookupCache``; FLIP-221, for the names of metrics,
too.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..columns.records import Batch
from ..errors import ConfigurationError, TypeMismatchError
from ..functions.async_functions import AsyncRetryStrategy
from ..functions.contract import Function
from ..functions.keys import KeySelector
from ..functions.life import refuse_life
from ..functions.operator import OperatorContext
from ..functions.user_function import keys_of, raise_in_function
from ..kernel.config import parse_duration_ms
from ..operators.async_operator import AsyncRequest, AsyncWaitOperator

__all__ = ["AsyncLookupFunction", "CachedRows", "LookupCache", "LookupFunction", "LookupOperator", "RowJoin"]


class LookupFunction(Function, ABC):
    """Finds rows by key, in a thread: it may block."""

    @abstractmethod
    def lookup(self, key: Any) -> Any:
        """Return the rows of ``key``: a list of them, one row that is no list, or None for none."""


class AsyncLookupFunction(Function, ABC):
    """Finds rows by key, on the event loop."""

    @abstractmethod
    async def async_lookup(self, key: Any) -> Any:
        """As `LookupFunction.lookup`."""


@dataclass(frozen=True, slots=True)
class LookupCache:
    """What a lookup remembers, in each subtask.

    Attributes:
        max_rows: Keys remembered at most; None for no bound.
        expire_after_write: How long an answer is good: milliseconds or a text such as ``"10 min"``; None for ever.
        cache_missing_key: Whether it is remembered that a key has no row.

    Raises:
        ConfigurationError: If a number is not positive.
    """

    max_rows: int | None = 10_000
    expire_after_write: Any = None
    cache_missing_key: bool = True

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            message = f"max_rows of a lookup cache must be at least 1; got {self.max_rows!r}"
            raise ConfigurationError(message)
        if self.expire_after_write is not None and parse_duration_ms(self.expire_after_write) < 1:
            message = f"expire_after_write of a lookup cache must be positive; got {self.expire_after_write!r}"
            raise ConfigurationError(message)


class CachedRows:
    """The rows of known keys.

    Args:
        settings: What to remember.
    """

    __slots__ = ("_caches_missing", "_entries", "_expires_ms", "_max_rows", "_written")

    def __init__(self, settings: LookupCache) -> None:
        self._max_rows = settings.max_rows
        after = settings.expire_after_write
        self._expires_ms: int | None = None if after is None else parse_duration_ms(after)
        self._caches_missing = settings.cache_missing_key
        # Key -> when it was written (epoch ms) and its rows; the least recently used first.
        self._entries: OrderedDict[Any, tuple[int, list[Any]]] = OrderedDict()
        # (when, key) of all writes, oldest first, where entries expire; an entry that was written again is there twice.
        self._written: deque[tuple[int, Any]] = deque()

    def get(self, key: Any, now_ms: int) -> list[Any] | None:
        """Return the rows of a key; None if they are not known."""
        self._expire(now_ms)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: Any, rows: list[Any], now_ms: int) -> None:
        """Remember the rows of a key."""
        self._expire(now_ms)
        if not rows and not self._caches_missing:
            self._entries.pop(key, None)  # it had rows once
            return
        self._entries[key] = (now_ms, rows)
        self._entries.move_to_end(key)
        if self._expires_ms is not None:
            self._written.append((now_ms, key))
        if self._max_rows is not None and len(self._entries) > self._max_rows:
            self._entries.popitem(last=False)

    def _expire(self, now_ms: int) -> None:
        if self._expires_ms is None:
            return
        written, entries, last_ms = self._written, self._entries, now_ms - self._expires_ms
        while written and written[0][0] <= last_ms:
            at, key = written.popleft()
            entry = entries.get(key)
            if entry is not None and entry[0] == at:
                del entries[key]

    def __len__(self) -> int:
        return len(self._entries)


class RowJoin:
    """Joins a record and a row as dicts: the row's fields are added to the record's, or replace them.

    A record or row that is no dict gives the pair ``(record, row)``, unless there are ``fields``.

    Args:
        fields: The row's fields to add, None for all. With them a record without a row gets None for each, and records
            and rows must be dicts.
    """

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        self._fields = None if fields is None else tuple(fields)

    def __call__(self, record: Any, row: Any | None) -> Any:
        fields = self._fields
        if not isinstance(record, dict) or not (row is None or isinstance(row, dict)):
            if fields is not None:
                what, value = ("the record", record) if not isinstance(record, dict) else ("the row found", row)
                message = f"fields can be looked up for dicts in dicts only; {what} is {value!r}"
                raise TypeMismatchError(message, hint="pass join= instead of fields=")
            return (record, row)
        if fields is None:
            return record if row is None else {**record, **row}
        if row is None:
            return {**record, **dict.fromkeys(fields)}
        missing = [name for name in fields if name not in row]
        if missing:
            message = f"the row that was looked up has no field {missing[0]!r}; its fields are {list(row)}"
            raise TypeMismatchError(message)
        return {**record, **{name: row[name] for name in fields}}


class LookupOperator(AsyncWaitOperator):
    """Joins records with the rows that a function finds for their keys. Metrics are in the group ``lookup``.

    Args:
        function: LookupFunction, AsyncLookupFunction, or a callable of a key.
        key_selector: Finds keys.
        is_left: Whether a record without a row is kept; else it is dropped.
        join: Takes a record and one of its rows, or None; gives what is emitted.
        cache: What to remember; None for nothing.
        ordered: As in `AsyncWaitOperator`; so for those below.
        capacity: Most records under way at once.
        timeout_ms: How long all attempts may take; 0 for ever.
        retry: When attempts are repeated; its predicate on results gets the rows.
    """

    def __init__(
        self,
        function: Any,
        key_selector: KeySelector,
        *,
        is_left: bool,
        join: Callable[[Any, Any | None], Any],
        cache: LookupCache | None,
        ordered: bool,
        capacity: int,
        timeout_ms: int,
        retry: AsyncRetryStrategy | None = None,
    ) -> None:
        super().__init__(
            function,
            ordered=ordered,
            capacity=capacity,
            timeout_ms=timeout_ms,
            retry=retry,
            methods=("async_lookup", "lookup"),
        )
        self._key_selector = key_selector
        self._is_left = is_left
        refuse_life(join, "the join of a lookup")
        self._join = join
        self._cache_settings = cache

    def open(self, context: OperatorContext) -> None:
        self._cache = None if self._cache_settings is None else CachedRows(self._cache_settings)
        group = context.metrics.add_group("lookup")
        self._hits, self._misses = group.counter("hit_count"), group.counter("miss_count")
        self._loads, self._failures = group.counter("load_count"), group.counter("num_load_failures")
        cache = self._cache
        if cache is not None:
            group.gauge("num_cached_records", lambda: len(cache))
        super().open(context)

    def _arguments(self, batch: Batch) -> list[Any]:
        return keys_of(self._key_selector, batch, self.context)

    def _begin(self, request: AsyncRequest) -> None:
        cache = self._cache
        if cache is None:
            super()._begin(request)
            return
        try:
            rows = cache.get(request.argument, self.context.now_ms())
        except TypeError as error:
            message = f"a lookup key must be hashable; got {request.argument!r}"
            raise TypeMismatchError(message) from error
        if rows is None:
            self._misses.inc()
            super()._begin(request)
        else:
            self._hits.inc()
            request.results = self._joined(request.value, rows)
            self._queue.completed(request)

    def _ended(self, request: AsyncRequest, result: Any, error: BaseException | None) -> None:
        (self._loads if error is None else self._failures).inc()
        super()._ended(request, result, error)

    def _found(self, request: AsyncRequest, result: Any) -> list[Any]:
        is_one_row = result is not None and not isinstance(result, list) and not inspect.isawaitable(result)
        return [result] if is_one_row else super()._found(request, result)

    def _results(self, request: AsyncRequest, found: list[Any]) -> list[Any]:
        if self._cache is not None:
            self._cache.put(request.argument, found, self.context.now_ms())
        return self._joined(request.value, found)

    def _batch_of(self, rows: list[Any], times: list[int | None]) -> Batch:
        return super()._batch_of(rows, times).tangled()  # with rows of the cache, or one row in many records

    def _joined(self, record: Any, rows: list[Any]) -> list[Any]:
        join = self._join
        try:
            if rows:
                return [join(record, row) for row in rows]
            return [join(record, None)] if self._is_left else []
        except BaseException as error:
            name = getattr(join, "__qualname__", type(join).__name__)
            raise_in_function(error, name, self.context, record=record)
