"""Which names mean which columns: the tables of a FROM clause, by their aliases, and what they have.

A column has two names: what the query calls it, and what it is called in the plan, where names are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.engine.columns.expressions import col, lit
from headrace.engine.errors import nearest

from .functions.contract import Typed
from .parsing.errors import SqlError

__all__ = ["NestedScope", "Scope", "ScopeColumn"]


@dataclass(frozen=True)
class ScopeColumn:
    """A column that a query can name.

    Attributes:
        table: The alias of its table; None if it has none.
        name: What the query calls it.
        column: What it is called in the plan.
        kind: Its type.
        is_event_time: Whether it is the event time of its rows.
        is_processing_time: Whether it is the clock's time, by which windows, OVER and lookups may go.
        is_untyped: Whether it is a NULL that nothing has given a type; ``kind`` is what it has if nothing does.
        is_hidden: Whether no name means it: a step of its own needs it.
        window: Which window's start, end or time it is: ``start``, ``end``, ``time``; None for other columns.
    """

    table: str | None
    name: str
    column: str
    kind: pa.DataType
    is_event_time: bool = False
    window: str | None = None
    is_untyped: bool = False
    is_processing_time: bool = False
    is_hidden: bool = False

    @property
    def value(self) -> Typed:
        """The column as a value."""
        return Typed(lit(None), pa.null()) if self.is_untyped else Typed(col(self.column), self.kind)


class Scope:
    """The columns that can be named in a place of a query.

    Args:
        columns: The columns.
        clock: The column that PROCTIME() is; None where there is none.
    """

    def __init__(self, columns: Iterable[ScopeColumn], clock: ScopeColumn | None = None) -> None:
        self.columns = tuple(columns)
        self.clock = clock

    @property
    def schema(self) -> pa.Schema:
        """The columns as the plan has them."""
        columns = self.columns if self.clock is None else (*self.columns, self.clock)
        return pa.schema([pa.field(one.column, one.kind) for one in columns])

    def without_time(self) -> Scope:
        """Return the same columns, of which none is the event time any more."""
        return Scope(replace(one, is_event_time=False) for one in self.columns)

    def under(self, alias: str, names: Sequence[str] = ()) -> Scope:
        """Return the same columns as those of a table with an alias, and with other names if there are any.

        Raises:
            SqlError: If there are not as many names as columns.
        """
        if names and len(names) != len(self.columns):
            message = f"{alias} has {len(self.columns)} columns and gets {len(names)} names"
            raise SqlError(message)
        new = names or [one.name for one in self.columns]
        return Scope(replace(one, table=alias, name=name) for one, name in zip(self.columns, new, strict=True))

    def of_table(self, alias: str) -> list[ScopeColumn]:
        """Return the columns of one table.

        Raises:
            SqlError: If there is no such table here.
        """
        found = [one for one in self.columns if one.table == alias]
        if not found:
            tables = list(dict.fromkeys(one.table for one in self.columns if one.table is not None))
            message = f"there is no table {alias!r} here"
            raise SqlError(message, hint=nearest(alias, tables) or f"the tables are {', '.join(tables) or 'none'}")
        return found

    def there(self, column: ScopeColumn) -> ScopeColumn:
        """Return a column, if it is one of these.

        Raises:
            SqlError: If it is none of them.
        """
        if not any(one.column == column.column for one in self.columns):
            message = f"there is no column {column.name!r} here"
            raise SqlError(message)
        return column

    def find(self, parts: Sequence[str]) -> tuple[ScopeColumn, Sequence[str]]:
        """Return the column that a name means, and the fields of it that follow: ``t.a.b.c``.

        A table's name comes first if it is one; else the first part is a column.

        Raises:
            SqlError: If there is no such column, or several.
        """
        if len(parts) > 1:
            found = [one for one in self.columns if one.table == parts[0] and one.name == parts[1]]
            if found:
                return self._only(found, ".".join(parts[:2])), parts[2:]
        found = [one for one in self.columns if one.name == parts[0] and not one.is_hidden]
        if found:
            return self._only(found, parts[0]), parts[1:]
        if len(parts) > 1 and any(one.table == parts[0] for one in self.columns):
            there = [one.name for one in self.of_table(parts[0])]
            message = f"table {parts[0]!r} has no column {parts[1]!r}"
            raise SqlError(message, hint=nearest(parts[1], there) or f"it has {', '.join(there)}")
        names = list(dict.fromkeys(one.name for one in self.columns if not one.is_hidden))
        message = f"there is no column {'.'.join(parts)!r} here"
        raise SqlError(message, hint=nearest(parts[0], names) or f"there are {', '.join(names) or 'none'}")

    def _only(self, found: list[ScopeColumn], name: str) -> ScopeColumn:
        if len({one.column for one in found}) > 1:
            tables = [f"{one.table}.{one.name}" for one in found if one.table]
            message = f"{name!r} could be {' or '.join(tables) or 'several columns'}"
            raise SqlError(message, hint="write the table before it")
        return found[0]


class NestedScope(Scope):
    """The columns of a subquery, and behind them those of the query around it.

    Args:
        own: Where a name is looked for first.
        around: Where it is looked for if it means nothing there.
    """

    def __init__(self, own: Scope, around: Scope) -> None:
        super().__init__((*own.columns, *around.columns))
        self._own = own
        self._around = around

    def find(self, parts: Sequence[str]) -> tuple[ScopeColumn, Sequence[str]]:
        """Return the column that a name means: of the subquery, or else of the query around it."""
        try:
            return self._own.find(parts)
        except SqlError:
            return self._around.find(parts)
