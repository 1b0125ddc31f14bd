"""The cells of the heap backend: what a key holds, in a dictionary, to read and write.

A cell is bound to one table once and reads the backend's ``current_key`` at every call: that, and one dictionary
access, is all it does per record. It does not ask whether there is a current key where the dictionary tells: that
refuses `NO_KEY`, which cannot be hashed. A windowed cell finds the dictionary of the backend's ``current_namespace``
first; it makes none by reading, and drops one that it has emptied. In-place changes of lists and maps are theirs alone:
what goes out is a copy or a value. There is one for each layout; kinds of state make their handles of them
(`headrace.state.keyed.kinds.StateDescriptor.handle`).

Source: Flink's ``HeapValueState``, ``HeapListState``, ``HeapMapState``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ..errors import StateAccessError
from .kinds import ABSENT, NO_KEY
from .layouts import ELEMENTS, ENTRIES, ONE, Layout

__all__ = ["heap_cell", "is_shared"]

_PLAIN = (int, float, str, bytes, bool, type(None))
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class _Keyed(Protocol):
    """What a cell needs of its backend."""

    operator: Any
    current_key: Any
    current_namespace: Any


class _Table(Protocol):
    """What a cell needs of its table."""

    name: str

    def namespace(self, namespace: Any) -> dict[Any, Any]: ...

    def find(self, namespace: Any) -> dict[Any, Any] | None: ...

    def drop(self, namespace: Any) -> None: ...


def is_shared(value: Any) -> bool:
    """Return whether a value of a cell without one need not be copied for each use: it cannot change."""
    return value is ABSENT or isinstance(value, _PLAIN)


def heap_cell(backend: _Keyed, table: _Table, layout: Layout, absent: Any, windowed: bool) -> Any:
    """Return the cell over a table of dictionaries.

    Args:
        backend: Whose current key and namespace count.
        table: Where the state is.
        layout: Of what a key holds.
        absent: Of one value: what a key without it gives.
        windowed: Whether it is one of windows.
    """
    plain, of_windows = _CELLS[layout]
    return (of_windows if windowed else plain)(backend, table, absent)


class _Handle:
    """Binds a table of the backend."""

    __slots__ = ("_backend", "_mapping", "_present", "_table")

    def __init__(self, backend: _Keyed, table: _Table, absent: Any) -> None:
        self._backend = backend
        self._table = table
        self._bind()

    def _bind(self) -> None:
        # To write to and to look at: the one dictionary of a state without windows, which lives as long as the table.
        self._mapping = self._present = self._table.namespace(None)

    def _key(self) -> Any:
        key = self._backend.current_key
        if key is NO_KEY:
            raise self._outside()
        return key

    def _check_key(self) -> None:
        """A dictionary has refused the current key: that there is none is an error of its own."""
        if self._backend.current_key is NO_KEY:
            raise self._outside() from None

    def _outside(self) -> StateAccessError:
        message = f"keyed state {self._table.name!r} was used where there is no current key"
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
        self._check_key()
        if namespace is None:
            message = f"state {self._table.name!r} of windows was used where there is no current window"
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

    __slots__ = ("_copies_default", "_default")

    def __init__(self, backend: _Keyed, table: _Table, absent: Any) -> None:
        super().__init__(backend, table, absent)
        self._default = absent
        self._copies_default = not is_shared(absent)

    def value(self) -> Any:
        try:
            value = self._present.get(self._backend.current_key, self._default)
        except TypeError:
            self._check_key()
            raise
        return copy.deepcopy(value) if self._copies_default and value is self._default else value

    def update(self, value: Any) -> None:
        try:
            self._mapping[self._backend.current_key] = value
        except TypeError:
            self._check_key()
            raise

    def fold(self, combine: Callable[[Any, Any], Any], value: Any) -> None:
        key, mapping = self._key(), self._mapping
        mapping[key] = combine(mapping.get(key, ABSENT), value)


class HeapListState(_Handle):
    """`headrace.state.keyed.descriptors.ListState` on the heap."""

    __slots__ = ()

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


class WindowedValueState(_Windowed, HeapValueState):
    """A value per key and window."""

    __slots__ = ()


class WindowedListState(_Windowed, HeapListState):
    """A list per key and window."""

    __slots__ = ()


class WindowedMapState(_Windowed, HeapMapState):
    """A map per key and window."""

    __slots__ = ()


_CELLS: dict[Layout, tuple[Any, Any]] = {
    ONE: (HeapValueState, WindowedValueState),
    ELEMENTS: (HeapListState, WindowedListState),
    ENTRIES: (HeapMapState, WindowedMapState),
}
