"""The handles of state with a time to live: over any backend's plain handles, whose values are units.

A unit is ``(value, timestamp_ms)``. What has expired is forgotten where it is read, so that a handle never gives the
same expired value twice. Reducing and aggregating state is a unit that is read, folded into and written, over the plain
handle of a value. Each access also asks the state's `TtlCleanup` to look at a few more entries.

As in Flink, an expired value is returned once if it has not been cleaned up before and the visibility says so; it also
takes part in a reduction then, but never in the time of what comes out of it.

Source: Flink's ``TtlValueState``, ``TtlListState``, ``TtlMapState``, ``TtlReduceFunction``, ``TtlAggregateFunction``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..errors import ProgramError
from .descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from .ttl import StateTtlConfig, TtlCleanup

__all__ = ["merger", "ttl_handle"]

_ABSENT: Any = object()


def ttl_handle(
    descriptor: StateDescriptor,
    cleanup: TtlCleanup,
    now_ms: Callable[[], int],
    plain_handle: Callable[[StateDescriptor], Any],
) -> Any:
    """Return the handle of a state with a time to live.

    Args:
        descriptor: The state, with its ``ttl``.
        cleanup: Its clean-up; one per state.
        now_ms: The clock.
        plain_handle: Makes the backend's own handle over the state's table for a descriptor of kind ``value``, ``list``
            or ``map``; it stores units and knows nothing of time.
    """
    config = descriptor.ttl
    assert config is not None
    kind: Any
    plain: StateDescriptor
    if isinstance(descriptor, ListStateDescriptor):
        kind, plain = TtlListState, ListStateDescriptor(descriptor.name)
    elif isinstance(descriptor, MapStateDescriptor):
        kind, plain = TtlMapState, MapStateDescriptor(descriptor.name)
    else:
        plain = ValueStateDescriptor(descriptor.name)
        if isinstance(descriptor, ValueStateDescriptor):
            kind = TtlValueState
        else:
            kind = TtlReducingState if isinstance(descriptor, ReducingStateDescriptor) else TtlAggregatingState
    return kind(plain_handle(plain), descriptor, config, cleanup, now_ms)


class _TtlHandle:
    """What the handles share: the clock, and who cleans up."""

    __slots__ = ("_cleanup", "_handle", "_now_ms", "_returns_expired", "_ttl_ms", "_updates_on_read")

    def __init__(
        self,
        handle: Any,
        descriptor: Any,
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


class _Single(_TtlHandle):
    """One unit per key."""

    __slots__ = ()

    def _read(self, now_ms: int) -> Any:
        """The value, if it may be seen; an expired one is forgotten."""
        unit = self._handle.value()
        if unit is None:
            return _ABSENT
        value, timestamp_ms = unit
        if timestamp_ms + self._ttl_ms <= now_ms:
            self._handle.clear()
            return value if self._returns_expired else _ABSENT
        if self._updates_on_read and timestamp_ms != now_ms:
            self._handle.update((value, now_ms))
        return value


class TtlValueState(_Single):
    """`headrace.state.keyed.descriptors.ValueState` with a time to live."""

    __slots__ = ("_default",)

    def __init__(
        self,
        handle: Any,
        descriptor: ValueStateDescriptor,
        config: StateTtlConfig,
        cleanup: TtlCleanup,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(handle, descriptor, config, cleanup, now_ms)
        self._default = descriptor.default

    def value(self) -> Any:
        value = self._read(self._access())
        return copy.deepcopy(self._default) if value is _ABSENT else value

    def update(self, value: Any) -> None:
        self._handle.update((value, self._access()))


class TtlReducingState(_Single):
    """`headrace.state.keyed.descriptors.ReducingState` with a time to live."""

    __slots__ = ("_reduce",)

    def __init__(
        self,
        handle: Any,
        descriptor: ReducingStateDescriptor,
        config: StateTtlConfig,
        cleanup: TtlCleanup,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(handle, descriptor, config, cleanup, now_ms)
        self._reduce = descriptor.reducer()

    def get(self) -> Any:
        value = self._read(self._access())
        return None if value is _ABSENT else value

    def add(self, value: Any) -> None:
        now_ms = self._access()
        old = self._read(now_ms)
        self._handle.update((value if old is _ABSENT else self._reduce(old, value), now_ms))


class TtlAggregatingState(_Single):
    """`headrace.state.keyed.descriptors.AggregatingState` with a time to live."""

    __slots__ = ("_function",)

    def __init__(
        self,
        handle: Any,
        descriptor: AggregatingStateDescriptor,
        config: StateTtlConfig,
        cleanup: TtlCleanup,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(handle, descriptor, config, cleanup, now_ms)
        self._function = descriptor.aggregate_function

    def get(self) -> Any:
        accumulator = self._read(self._access())
        return None if accumulator is _ABSENT else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        now_ms = self._access()
        accumulator = self._read(now_ms)
        if accumulator is _ABSENT:
            accumulator = self._function.create_accumulator()
        self._handle.update((self._function.add(value, accumulator), now_ms))


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
        return _ABSENT if unit is None else self._visible(key, unit, now_ms)

    def _visible(self, key: Any, unit: Any, now_ms: int) -> Any:
        """An entry's value, if it may be seen; an expired one is forgotten."""
        value, timestamp_ms = unit
        if timestamp_ms + self._ttl_ms <= now_ms:
            self._handle.remove(key)
            return value if self._returns_expired else _ABSENT
        if self._updates_on_read and timestamp_ms != now_ms:
            self._handle.put(key, (value, now_ms))
        return value

    def get(self, key: Any) -> Any:
        value = self._read(key, self._access())
        return None if value is _ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        self._handle.put(key, (value, self._access()))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        now_ms = self._access()
        self._handle.put_all({key: (value, now_ms) for key, value in entries.items()})

    def remove(self, key: Any) -> None:
        self._access()
        self._handle.remove(key)

    def contains(self, key: Any) -> bool:
        return self._read(key, self._access()) is not _ABSENT

    def _entries(self) -> list[tuple[Any, Any]]:
        now_ms = self._access()
        visible = ((key, self._visible(key, unit, now_ms)) for key, unit in list(self._handle.items()))
        return [(key, value) for key, value in visible if value is not _ABSENT]

    def keys(self) -> Iterator[Any]:
        return iter([key for key, _ in self._entries()])

    def values(self) -> Iterator[Any]:
        return iter([value for _, value in self._entries()])

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._entries())

    def is_empty(self) -> bool:
        return not self._entries()


def merger(descriptor: StateDescriptor, now_ms: Callable[[], int]) -> Callable[[Any, Any], Any]:
    """Return what makes one of what two windows hold for a key: for ``merge_namespaces``.

    Args:
        descriptor: The state; with a time to live, both sides hold units.
        now_ms: The clock.

    Returns:
        A function of what the target holds and what a source holds; the first may be a list that is
        extended in place.

    Raises:
        ProgramError: If the state is not one that merges.
    """
    if isinstance(descriptor, ListStateDescriptor):
        return _extended
    merge: Any
    if isinstance(descriptor, ReducingStateDescriptor):
        merge = descriptor.reducer()
    elif isinstance(descriptor, AggregatingStateDescriptor):
        merge = getattr(descriptor.aggregate_function, "merge", None)
        if not callable(merge):
            message = f"state {descriptor.name!r} of windows that merge needs an aggregate function with merge()"
            raise ProgramError(message, state=descriptor.name)
    else:
        message = f"{descriptor.kind} state {descriptor.name!r} cannot be that of windows that merge"
        hint = "list, reducing and aggregating state can be merged"
        raise ProgramError(message, hint=hint, state=descriptor.name)
    function: Callable[[Any, Any], Any] = merge
    return function if descriptor.ttl is None else _merger_of_units(function, descriptor.ttl, now_ms)


def _extended(held: list[Any], more: list[Any]) -> list[Any]:
    held.extend(more)
    return held


def _merger_of_units(
    merge: Callable[[Any, Any], Any], config: StateTtlConfig, now_ms: Callable[[], int]
) -> Callable[[Any, Any], Any]:
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
