"""The cells of lists and maps over a state database; that of one value is `headrace.state.keyed.handles` over its rows.

An element of a list and an entry of a map are a row each, so that adding to a long list or changing one entry of a
large map costs one row, not all of them. Reading a list, or all of a map, streams its rows. A map's keys come in the
order of their encodings, not of insertion.

Source: Flink's ``RocksDBListState``, ``RocksDBMapState``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from ...errors import StateAccessError
from ...keyed.contract import Namespace
from ...keyed.handles import heap_cell
from ...keyed.kinds import NO_KEY
from ...keyed.layouts import ELEMENTS, ENTRIES, Layout
from .entries import EntryRows
from .tables import RocksDBTable

__all__ = ["rocksdb_cell"]


class _Keyed(Protocol):
    """What a cell needs of its backend."""

    operator: Any
    current_key: Any
    current_namespace: Namespace


def rocksdb_cell(backend: _Keyed, table: RocksDBTable, absent: Any) -> Any:
    """Return the cell over a table of a database.

    Args:
        backend: Whose current key and namespace count.
        table: Where the state is.
        absent: Of one value: what a key without it gives.
    """
    if not table.layout.has_rows_of_parts:
        return heap_cell(backend, table, table.layout, absent, table.windowed)  # type: ignore[arg-type]
    return _CELLS[table.layout](backend, table)


class _EntriesHandle:
    """Binds a table of entries to the backend's current key and, if windowed, its current namespace.

    Args:
        backend: Whose current key and namespace count.
        table: Where the state is.
    """

    __slots__ = ("_backend", "_table", "_windowed")

    def __init__(self, backend: _Keyed, table: RocksDBTable) -> None:
        self._backend = backend
        self._table = table
        self._windowed = table.windowed

    def _where(self) -> tuple[Namespace, Any]:
        key = self._backend.current_key
        if key is NO_KEY:
            message = f"keyed state {self._table.name!r} was used where there is no current key"
            hint = "use keyed state only while a record of a keyed stream or a timer is processed, not in open()"
            raise StateAccessError(message, hint=hint, operator=self._backend.operator)
        if not self._windowed:
            return None, key
        namespace = self._backend.current_namespace
        if namespace is None:
            message = f"state {self._table.name!r} of windows was used where there is no current window"
            hint = "use it only while a window is fired, triggered or cleared"
            raise StateAccessError(message, hint=hint, operator=self._backend.operator)
        return namespace, key

    def _rows(self) -> EntryRows:
        return self._table.entries(*self._where())

    def clear(self) -> None:
        self._table.clear_entries(*self._where())


class RocksDBListState(_EntriesHandle):
    """`headrace.state.keyed.descriptors.ListState`, a row per element."""

    __slots__ = ()

    def get(self) -> list[Any]:
        return self._rows().elements()

    def add(self, value: Any) -> None:
        self._rows().append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        rows = self._rows()
        for value in list(values):
            rows.append(value)

    def update(self, values: Iterable[Any]) -> None:
        replaced = list(values)
        if not replaced:
            self.clear()
            return
        rows = self._rows()
        rows.clear()
        for value in replaced:
            rows.append(value)


class RocksDBMapState(_EntriesHandle):
    """`headrace.state.keyed.descriptors.MapState`, a row per entry."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        return self._rows().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._rows()[key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        rows = self._rows()
        for key, value in entries.items():
            rows[key] = value

    def remove(self, key: Any) -> None:
        self._rows().pop(key, None)

    def contains(self, key: Any) -> bool:
        return key in self._rows()

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self._rows().stream())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self._rows().stream())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return self._rows().stream()

    def is_empty(self) -> bool:
        return not self._rows()


_CELLS: dict[Layout, Any] = {ELEMENTS: RocksDBListState, ENTRIES: RocksDBMapState}
