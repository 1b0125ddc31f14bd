"""The cells of state with a time to live: over any backend's own cells, whose parts are units.

A unit is ``(value, timestamp_ms)``. What has expired is forgotten where it is read, so that a cell never gives the same
expired value twice. Each access also asks the state's `TtlCleanup` to look at a few more entries.

As in Flink, an expired value is returned once if it has not been cleaned up before and the visibility says so; it also
takes part in a reduction then, but never in the time of what comes out of it.

Source: Flink's ``TtlValueState``, ``TtlListState``, ``TtlMapState``, ``TtlReduceFunction``, ``TtlAggregateFunction``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .handles import is_shared
from .kinds import ABSENT
from .layouts import ELEMENTS, ENTRIES, ONE, Layout, Merge
from .ttl import StateTtlConfig, TtlCleanup

__all__ = ["merger_of_units", "ttl_cell"]


def ttl_cell(
    cell: Any, layout: Layout, absent: Any, config: StateTtlConfig, cleanup: TtlCleanup, now_ms: Callable[[], int]
) -> Any:
    """Return the cell of a state with a time to live.

    Args:
        cell: The backend's own over the state's table; it stores units and knows nothing of time. One of a single
            value gives None for a key without it.
        layout: Of what a key holds.
        absent: Of one value: what a key without it gives.
        config: The time to live.
        cleanup: The state's clean-up; one per state.
        now_ms: The clock.
    """
    return _CELLS[layout](cell, absent, config, cleanup, now_ms)


class _TtlHandle:
    """What the handles share: the clock, and who cleans up."""

    __slots__ = ("_cleanup", "_handle", "_now_ms", "_returns_expired", "_ttl_ms", "_updates_on_read")

    def __init__(
        self,
        handle: Any,
        absent: Any,
        config: StateTtlConfig,
        cleanup: TtlCleanup,
        now_ms: Callable[[], int],
    ) -> None:
        self._handle = handle
        self._cleanup = cleanup
        self._now_ms = now_ms
        self._ttl_ms = config.ttl_ms
        self._updates_on_read = config.updates_on_read
        self._returns_expired = config.returns_expired

    def _access(self) -> int:
        """The time of this access."""
        now_ms = self._now_ms()
        self._cleanup.accessed(now_ms)
        return now_ms

    def clear(self) -> None:
        self._handle.clear()


class TtlValueState(_TtlHandle):
    """One unit per key."""

    __slots__ = ("_absent", "_is_shared")

    def __init__(
        self, handle: Any, absent: Any, config: StateTtlConfig, cleanup: TtlCleanup, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(handle, absent, config, cleanup, now_ms)
        self._absent = absent
        self._is_shared = is_shared(absent)

    def _read(self, now_ms: int) -> Any:
        """The value, if it may be seen; an expired one is forgotten."""
        unit = self._handle.value()
        if unit is None:
            return ABSENT
        value, timestamp_ms = unit
        if timestamp_ms + self._ttl_ms <= now_ms:
            self._handle.clear()
            return value if self._returns_expired else ABSENT
        if self._updates_on_read and timestamp_ms != now_ms:
            self._handle.update((value, now_ms))
        return value

    def value(self) -> Any:
        value = self._read(self._access())
        if value is not ABSENT:
            return value
        return self._absent if self._is_shared else copy.deepcopy(self._absent)

    def update(self, value: Any) -> None:
        self._handle.update((value, self._access()))

    def fold(self, combine: Callable[[Any, Any], Any], value: Any) -> None:
        now_ms = self._access()
        self._handle.update((combine(self._read(now_ms), value), now_ms))


class TtlListState(_TtlHandle):
    """`headrace.state.keyed.descriptors.ListState` with a time to live of each element."""

    __slots__ = ()

    def get(self) -> list[Any]:
        now_ms = self._access()
        units = self._handle.get()
        cutoff_ms = now_ms - self._ttl_ms
        live = [unit for unit in units if unit[1] > cutoff_ms]
        if self._updates_on_read and live:
            self._handle.update([(value, now_ms) for value, _ in live])
        elif len(live) < len(units):
            self._handle.update(live)
        return [value for value, _ in (units if self._returns_expired else live)]

    def add(self, value: Any) -> None:
        self._handle.add((value, self._access()))

    def add_all(self, values: Iterable[Any]) -> None:
        now_ms = self._access()
        self._handle.add_all([(value, now_ms) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        now_ms = self._access()
        self._handle.update([(value, now_ms) for value in values])


class TtlMapState(_TtlHandle):
    """`headrace.state.keyed.descriptors.MapState` with a time to live of each entry."""

    __slots__ = ()

    def _read(self, key: Any, now_ms: int) -> Any:
        unit = self._handle.get(key)
        return ABSENT if unit is None else self._visible(key, unit, now_ms)

    def _visible(self, key: Any, unit: Any, now_ms: int) -> Any:
        """An entry's value, if it may be seen; an expired one is forgotten."""
        value, timestamp_ms = unit
        if timestamp_ms + self._ttl_ms <= now_ms:
            self._handle.remove(key)
            return value if self._returns_expired else ABSENT
        if self._updates_on_read and timestamp_ms != now_ms:
            self._handle.put(key, (value, now_ms))
        return value

    def get(self, key: Any) -> Any:
        value = self._read(key, self._access())
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        self._handle.put(key, (value, self._access()))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        now_ms = self._access()
        self._handle.put_all({key: (value, now_ms) for key, value in entries.items()})

    def remove(self, key: Any) -> None:
        self._access()
        self._handle.remove(key)

    def contains(self, key: Any) -> bool:
        return self._read(key, self._access()) is not ABSENT

    def _entries(self) -> list[tuple[Any, Any]]:
        now_ms = self._access()
        visible = ((key, self._visible(key, unit, now_ms)) for key, unit in list(self._handle.items()))
        return [(key, value) for key, value in visible if value is not ABSENT]

    def keys(self) -> Iterator[Any]:
        return iter([key for key, _ in self._entries()])

    def values(self) -> Iterator[Any]:
        return iter([value for _, value in self._entries()])

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._entries())

    def is_empty(self) -> bool:
        return not self._entries()


_CELLS: dict[Layout, Any] = {ONE: TtlValueState, ELEMENTS: TtlListState, ENTRIES: TtlMapState}


def merger_of_units(merge: Merge, config: StateTtlConfig, now_ms: Callable[[], int]) -> Merge:
    """Make a merge of parts one of units.

    Args:
        merge: Of parts.
        config: Their time to live.
        now_ms: The clock.
    """

    def merge_units(held: tuple[Any, int], more: tuple[Any, int]) -> tuple[Any, int]:
        time_ms = now_ms()
        cutoff_ms = config.cutoff_ms(time_ms)
        if not config.returns_expired:
            # One that has expired plays no part; two that have stay what they are, to be forgotten when they are read.
            if held[1] <= cutoff_ms:
                return more
            if more[1] <= cutoff_ms:
                return held
        return merge(held[0], more[0]), time_ms

    return merge_units
