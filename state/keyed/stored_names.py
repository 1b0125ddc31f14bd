"""What the state of an operator is called where it is kept, if that is not what the program calls it.

An operator over columns names its state by the columns of its records, and those have the names of one query text. With
`StoredNames` the backend keeps the same state under names that a planner has chosen, so that a query whose text has
changed finds what it has kept. The operator knows nothing of it.

Invariant: two columns of a state have different names where they are kept, as they have in the program (*trusted*).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .contract import ColumnarTable, KeyedStateBackend

__all__ = ["StoredNames"]


@dataclass(frozen=True)
class StoredNames:
    """Names by those of the operator; what is not named here keeps its name.

    Attributes:
        states: Of columnar states.
        columns: Of their columns, by the operator's name of the state; those without one are of all states. One that is
            made of parts, ``name$part``, may be given for all its parts.
    """

    states: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def over(self, backend: KeyedStateBackend) -> Any:
        """Return the backend, with columnar states that go by the operator's names, and whose columns may have
        changed since they were written.
        """
        return _NamedState(backend, self)

    def of_state(self, name: str) -> str:
        """Return where a state is kept."""
        return self.states.get(name, name)

    def of_column(self, state: str, name: str) -> str:
        """Return where a column of a state is kept."""
        known = {**self.columns.get("", {}), **self.columns.get(state, {})}
        if name in known:
            return known[name]
        whole, mark, part = name.rpartition("$")
        return f"{known[whole]}${part}" if mark and whole in known else name


class _NamedState:
    """A keyed backend under other names; all but columnar states is the backend's own."""

    def __init__(self, backend: KeyedStateBackend, names: StoredNames) -> None:
        self._backend = backend
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def columnar_table(
        self, name: str, schema: pa.Schema, key_columns: tuple[str, ...], *, evolves: bool = False
    ) -> ColumnarTable:
        """Return the table; its columns have the names under which they are kept."""
        stored = {one: self._names.of_column(name, one) for one in schema.names}
        fields = [one.with_name(stored[one.name]) for one in schema]
        keys = tuple(stored[one] for one in key_columns)
        return self._backend.columnar_table(self._names.of_state(name), pa.schema(fields), keys, evolves=True)
