"""The handles that user functions hold, over the heap backend's dictionaries.

A handle is bound to one table once and reads the backend's ``current_key`` at every call: that, and one dictionary
access, is all it does per record. A windowed handle finds the dictionary of the backend's ``current_namespace`` first;
it makes none by reading, and drops one that it has emptied. In-place changes of lists and maps are theirs alone: what
goes out is a copy or a value.

Source: Flink's ``HeapValueState``, ``HeapListState``, ``HeapMapState``, ``HeapReducingState``,
``HeapAggregatingState``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ..errors import StateAccessError
from .descriptors import (
    NO_KEY,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

__all__ = ["plain_handle"]

_ABSENT: Any = object()
_PLAIN = (int, float, str, bytes, bool, type(None))
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class _Keyed(Protocol):
    """What a handle needs of its backend."""

    operator: Any
    current_key: Any
    current_namespace: Any


class _Table(Protocol):
    """What a handle needs of its table."""

    def namespace(self, namespace: Any) -> dict[Any, Any]: ...

    def find(self, namespace: Any) -> dict[Any, Any] | None: ...

    def drop(self, namespace: Any) -> None: ...


def plain_handle(backend: _Keyed, table: _Table, descriptor: StateDescriptor, windowed: bool) -> Any:
    """Return the handle over a heap table, by the descriptor's kind; its time to live plays no part.

    Args:
        backend: Whose current key and namespace count.
        table: Where the state is.
        descriptor: What it is.
        windowed: Whether it is one of windows.
    """
    plain, of_windows = _HANDLES[descriptor.kind]
    return (of_windows if windowed else plain)(backend, table, descriptor)


class _Handle:
    """Binds a descriptor to a table of the backend."""

    __slots__ = ("_backend", "_descriptor", "_mapping", "_present", "_table")

    def __init__(self, backend: _Keyed, table: _Table, descriptor: StateDescriptor) -> None:
        self._backend = backend
        self._table = table
        self._descriptor = descriptor
        self._bind()

    def _bind(self) -> None:
        # To write to and to look at: the one dictionary of a state without windows, which lives as long as the table.
        self._mapping = self._present = self._table.namespace(None)

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


class _Windowed(_Handle):
    """Reads and writes at the current namespace instead."""

    __slots__ = ()

    def _bind(self) -> None:
        """Bind nothing: the dictionary is found at every call."""

    def _namespace(self) -> Any:
        namespace = self._backend.current_namespace
        if namespace is None:
            message = f"state {self._descriptor.name!r} of windows was used where there is no current window"
            hint = "use it only while a window is fired, triggered or cleared"
            raise StateAccessError(message, hint=hint, operator=self._backend.operator)
        return namespace

    @property
    def _mapping(self) -> dict[Any, Any]:  # type: ignore[override]
        return self._table.namespace(self._namespace())

    @property
    def _present(self) -> Mapping[Any, Any]:  # type: ignore[override]
        return self._table.find(self._namespace()) or _EMPTY

    def clear(self) -> None:
        key, namespace = self._key(), self._namespace()
        space = self._table.find(namespace)
        if space is not None:
            space.pop(key, None)
            if not space:
                self._table.drop(namespace)


class HeapValueState(_Handle):
    """`headrace.state.keyed.descriptors.ValueState` on the heap."""

    __slots__ = ("_default", "_has_plain_default")

    def __init__(self, backend: _Keyed, table: _Table, descriptor: ValueStateDescriptor) -> None:
        super().__init__(backend, table, descriptor)
        self._default = descriptor.default
        self._has_plain_default = isinstance(descriptor.default, _PLAIN)

    def value(self) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        value = self._present.get(key, _ABSENT)
        if value is _ABSENT:
            return self._default if self._has_plain_default else copy.deepcopy(self._default)
        return value

    def update(self, value: Any) -> None:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        self._mapping[key] = value


class HeapListState(_Handle):
    """`headrace.state.keyed.descriptors.ListState` on the heap."""

    __slots__ = ()

    def __init__(self, backend: _Keyed, table: _Table, descriptor: ListStateDescriptor) -> None:
        super().__init__(backend, table, descriptor)

    def get(self) -> list[Any]:
        return list(self._present.get(self._key(), ()))

    def add(self, value: Any) -> None:
        key, mapping = self._key(), self._mapping
        values = mapping.get(key)
        if values is None:
            mapping[key] = [value]
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
    """`headrace.state.keyed.descriptors.MapState` on the heap."""

    __slots__ = ()

    def __init__(self, backend: _Keyed, table: _Table, descriptor: MapStateDescriptor) -> None:
        super().__init__(backend, table, descriptor)

    def _entries(self) -> dict[Any, Any]:
        """The current key's entries, to look at; an empty dict that is not kept if there are none."""
        return self._present.get(self._key()) or {}

    def get(self, key: Any) -> Any:
        return self._entries().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._mapping.setdefault(self._key(), {})[key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
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
    """`headrace.state.keyed.descriptors.ReducingState` on the heap."""

    __slots__ = ("_reduce",)

    def __init__(self, backend: _Keyed, table: _Table, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(backend, table, descriptor)
        self._reduce = descriptor.reducer()

    def get(self) -> Any:
        return self._present.get(self._key())

    def add(self, value: Any) -> None:
        key, mapping = self._key(), self._mapping
        old = mapping.get(key, _ABSENT)
        mapping[key] = value if old is _ABSENT else self._reduce(old, value)


class HeapAggregatingState(_Handle):
    """`headrace.state.keyed.descriptors.AggregatingState` on the heap; the accumulator is the state."""

    __slots__ = ("_function",)

    def __init__(self, backend: _Keyed, table: _Table, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(backend, table, descriptor)
        self._function = descriptor.aggregate_function

    def get(self) -> Any:
        accumulator = self._present.get(self._key(), _ABSENT)
        return None if accumulator is _ABSENT else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        key, mapping = self._key(), self._mapping
        accumulator = mapping.get(key, _ABSENT)
        if accumulator is _ABSENT:
            accumulator = self._function.create_accumulator()
        mapping[key] = self._function.add(value, accumulator)


class WindowedValueState(_Windowed, HeapValueState):
    """A value per key and window."""

    __slots__ = ()


class WindowedListState(_Windowed, HeapListState):
    """A list per key and window."""

    __slots__ = ()


class WindowedMapState(_Windowed, HeapMapState):
    """A map per key and window."""

    __slots__ = ()


class WindowedReducingState(_Windowed, HeapReducingState):
    """A folded value per key and window."""

    __slots__ = ()


class WindowedAggregatingState(_Windowed, HeapAggregatingState):
    """An aggregate per key and window."""

    __slots__ = ()


_HANDLES: dict[str, tuple[Any, Any]] = {
    "value": (HeapValueState, WindowedValueState),
    "list": (HeapListState, WindowedListState),
    "map": (HeapMapState, WindowedMapState),
    "reducing": (HeapReducingState, WindowedReducingState),
    "aggregating": (HeapAggregatingState, WindowedAggregatingState),
}
