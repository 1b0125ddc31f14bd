"""The handles that user functions hold, over the heap backend's dictionaries.

A handle is bound to one table once and reads the backend's ``current_key`` at every call: that, and one dictionary
access, is all it does per record. In-place changes of lists and maps are theirs alone: what goes out is a copy or a
value.

Source: Flink's ``HeapValueState``, ``HeapListState``, ``HeapMapState``, ``HeapReducingState``,
``HeapAggregatingState``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from headrace.state.descriptors import (
    NO_KEY,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.errors import StateAccessError

__all__ = ["HeapAggregatingState", "HeapListState", "HeapMapState", "HeapReducingState", "HeapValueState"]

_ABSENT: Any = object()
_PLAIN = (int, float, str, bytes, bool, type(None))


class _Keyed(Protocol):
    """What a handle needs of its backend."""

    operator: Any
    current_key: Any


class _Handle:
    """Binds a descriptor to a table of the backend."""

    __slots__ = ("_backend", "_descriptor", "_mapping")

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: StateDescriptor) -> None:
        self._backend = backend
        self._mapping = mapping
        self._descriptor = descriptor

    def _key(self) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        return key

    def _outside(self) -> StateAccessError:
        message = f"keyed state {self._descriptor.name!r} was used where there is no current key"
        hint = "use keyed state only while a record of a keyed stream or a timer is processed, not in open() or close()"
        return StateAccessError(message, hint=hint, operator=self._backend.operator)

    def clear(self) -> None:
        self._mapping.pop(self._key(), None)


class HeapValueState(_Handle):
    """`headrace.state.descriptors.ValueState` on the heap."""

    __slots__ = ("_default", "_has_plain_default")

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: ValueStateDescriptor) -> None:
        super().__init__(backend, mapping, descriptor)
        self._default = descriptor.default
        self._has_plain_default = isinstance(descriptor.default, _PLAIN)

    def value(self) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        value = self._mapping.get(key, _ABSENT)
        if value is _ABSENT:
            return self._default if self._has_plain_default else copy.deepcopy(self._default)
        return value

    def update(self, value: Any) -> None:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        self._mapping[key] = value


class HeapListState(_Handle):
    """`headrace.state.descriptors.ListState` on the heap."""

    __slots__ = ()

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: ListStateDescriptor) -> None:
        super().__init__(backend, mapping, descriptor)

    def get(self) -> list[Any]:
        return list(self._mapping.get(self._key(), ()))

    def add(self, value: Any) -> None:
        key = self._key()
        values = self._mapping.get(key)
        if values is None:
            self._mapping[key] = [value]
        else:
            values.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        added = list(values)
        if added:
            self._mapping.setdefault(self._key(), []).extend(added)

    def update(self, values: Iterable[Any]) -> None:
        replaced = list(values)
        if replaced:
            self._mapping[self._key()] = replaced
        else:
            self.clear()


class HeapMapState(_Handle):
    """`headrace.state.descriptors.MapState` on the heap."""

    __slots__ = ()

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: MapStateDescriptor) -> None:
        super().__init__(backend, mapping, descriptor)

    def _entries(self) -> dict[Any, Any]:
        """The current key's entries, to look at; an empty dict that is not kept if there are none."""
        return self._mapping.get(self._key()) or {}

    def get(self, key: Any) -> Any:
        return self._entries().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._mapping.setdefault(self._key(), {})[key] = value

    def put_all(self, entries: dict[Any, Any]) -> None:
        if entries:
            self._mapping.setdefault(self._key(), {}).update(entries)

    def remove(self, key: Any) -> None:
        entries = self._entries()
        entries.pop(key, None)
        if not entries:
            self.clear()

    def contains(self, key: Any) -> bool:
        return key in self._entries()

    def keys(self) -> Iterator[Any]:
        return iter(list(self._entries()))

    def values(self) -> Iterator[Any]:
        return iter(list(self._entries().values()))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._entries().items()))

    def is_empty(self) -> bool:
        return not self._entries()


class HeapReducingState(_Handle):
    """`headrace.state.descriptors.ReducingState` on the heap."""

    __slots__ = ("_reduce",)

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: ReducingStateDescriptor) -> None:
        super().__init__(backend, mapping, descriptor)
        self._reduce = descriptor.reducer()

    def get(self) -> Any:
        return self._mapping.get(self._key())

    def add(self, value: Any) -> None:
        key = self._key()
        old = self._mapping.get(key, _ABSENT)
        self._mapping[key] = value if old is _ABSENT else self._reduce(old, value)


class HeapAggregatingState(_Handle):
    """`headrace.state.descriptors.AggregatingState` on the heap; the accumulator is the state."""

    __slots__ = ("_function",)

    def __init__(self, backend: _Keyed, mapping: dict[Any, Any], descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(backend, mapping, descriptor)
        self._function = descriptor.aggregate_function

    def get(self) -> Any:
        accumulator = self._mapping.get(self._key(), _ABSENT)
        return None if accumulator is _ABSENT else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        key = self._key()
        accumulator = self._mapping.get(key, _ABSENT)
        if accumulator is _ABSENT:
            accumulator = self._function.create_accumulator()
        self._mapping[key] = self._function.add(value, accumulator)
