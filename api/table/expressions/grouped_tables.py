"""Rows of a table that are grouped, in windows or not, or that have windows to look at: what `select` makes of them.

They know of a table what `QueriedTable` says, and give tables of its kind.

Source: PyFlink's ``GroupedTable``, ``GroupWindowedTable``, ``WindowGroupedTable``, ``OverWindowedTable``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.engine.errors import ProgramError
from headrace.engine.operators.expanding import Unnest

from ...sql.parsing.sql_types import sql_name
from .expression import Expression, as_expression, col, expr
from .rendering import Rendering, WindowPart, quoted
from .table_windows import GroupWindow, OverWindow

__all__ = [
    "AggregatedTable",
    "AggregatedWindows",
    "Given",
    "GroupedTable",
    "OverWindowedTable",
    "QueriedTable",
    "WindowGroupedTable",
    "WindowedTable",
    "expression_of",
    "listed",
    "require_apart",
    "spread",
    "unnested",
]

Given = Expression | str
"""An expression; a text is one of SQL."""


class QueriedTable(Protocol):
    """A table that queries are written over."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, by the names of the query."""
        ...

    def select(self: T, *columns: Given) -> T:
        """Return rows of computed columns."""
        ...

    def add_columns(self: T, *columns: Given) -> T:
        """Return the rows with further columns behind."""
        ...

    def rendering(self) -> Rendering:
        """Return a query over this table, to be written."""
        ...

    def queried(self: T, text: str, rendering: Rendering) -> T:
        """Return the rows of a query, in which this one is called ``table``."""
        ...


T = TypeVar("T", bound=QueriedTable)


def expression_of(given: Given) -> Expression:
    """Return an expression itself, and that of a text of SQL."""
    return expr(given) if isinstance(given, str) else as_expression(given)


def listed(columns: Iterable[Given], rendering: Rendering) -> str:
    """Return columns as SELECT lists them."""
    return ", ".join(expression_of(one).sql(rendering) for one in columns)


def spread(table: T, names: Sequence[str]) -> T:
    """Return the fields of a table's last column, if it is a ROW, as columns; the first ones have other names.

    Raises:
        ProgramError: If there are more names than fields.
    """
    result = table.schema[-1]
    if not pa.types.is_struct(result.type):
        _require_names(names, 1)
        return table
    fields = [field.name for field in result.type]
    _require_names(names, len(fields))
    parts = [
        col(result.name).get(old).alias(new) for old, new in zip(fields, [*names, *fields[len(names) :]], strict=True)
    ]
    return table.select(*map(col, table.schema.names[:-1]), *parts)


def unnested(table: T, names: Sequence[str]) -> T:
    """Return a row for each element of the arrays in a table's last column; the first columns of it have other names.

    Raises:
        ProgramError: If there are no arrays, more names than columns, or two columns of one name.
    """
    rows, others = table.schema[-1], table.schema.names[:-1]
    kinds = None if pa.types.is_map(rows.type) else Unnest.kinds_of(rows.type)
    if kinds is None:
        message = f"flat_aggregate takes a function that gives rows; {rows.name!r} is {sql_name(rows.type)}"
        raise ProgramError(message, hint="udtaf makes one")
    _require_names(names, len(kinds))
    all_names = [*names, *list(kinds)[len(names) :]]
    require_apart(others, all_names, "alias names the columns of the function's rows")
    columns = [f"`table`.{quoted(one)}" for one in others] + [f"`$rows`.{quoted(one)}" for one in all_names]
    called = f"`$rows`({', '.join(map(quoted, all_names))})"
    text = f"SELECT {', '.join(columns)} FROM `table` CROSS JOIN UNNEST({quoted(rows.name)}) AS {called}"
    return table.queried(text, table.rendering())


def require_apart(left: Sequence[str], right: Sequence[str], hint: str) -> None:
    """See that no column is there twice.

    Raises:
        ProgramError: If one is.
    """
    both = [name for name in right if name in left]
    if both:
        message = f"there are two columns {both[0]!r}"
        raise ProgramError(message, hint=hint)


def _require_names(names: Sequence[str], count: int) -> None:
    if len(names) > count:
        message = f"the function gives {count} column{'s' * (count != 1)} and gets {len(names)} names"
        raise ProgramError(message)


class GroupedTable(Generic[T]):
    """Groups of rows; made by ``Table.group_by``."""

    def __init__(self, table: T, keys: Sequence[Given]) -> None:
        named = [one for one in map(expression_of, keys) if one.is_named]
        self._table = table.add_columns(*named) if named else table
        new = self._table.schema.names[len(table.schema) :]
        names = iter(new)
        self._keys = [col(next(names)) if one.is_named else one for one in map(expression_of, keys)]

    def select(self, *columns: Given) -> T:
        """Return a row for each group, of its keys and aggregates: ``col("price").max.alias("best")``."""
        return self._selected(columns)

    def _selected(self, columns: Sequence[Given], having: str = "") -> T:
        rendering = self._table.rendering()
        keys = ", ".join(one.sql(rendering) for one in self._keys)
        grouped = f" GROUP BY {keys}" if keys else ""
        return self._table.queried(f"SELECT {listed(columns, rendering)} FROM `table`{grouped}{having}", rendering)

    def aggregate(self, function: Given) -> AggregatedTable[T]:
        """Aggregate the groups by one function; `AggregatedTable.select` says what becomes of its result.

        Args:
            function: ``f(col("a")).alias("b")``; ``alias("b", "c")`` names the columns of a ROW that it gives.
        """
        given = expression_of(function)
        return AggregatedTable(spread(self.select(*self._keys, given), given.names))

    def flat_aggregate(self, function: Given) -> AggregatedTable[T]:
        """Aggregate the groups by one function that gives rows; `AggregatedTable.select` says what becomes of them.

        It is not asked about no rows: where there are none, or none any more, there is no group.

        Args:
            function: ``f(col("a")).alias("b", "c")`` of one made by `udtaf`; ``alias`` names the columns of its rows.
        """
        given = expression_of(function)
        having = "" if self._keys else " HAVING COUNT(*) > 0"
        return AggregatedTable(unnested(self._selected([*self._keys, given], having), given.names))


class AggregatedTable(Generic[T]):
    """Groups and what a function makes of them; made by `GroupedTable.aggregate` and `GroupedTable.flat_aggregate`."""

    def __init__(self, table: T) -> None:
        self._table = table

    def select(self, *columns: Given) -> T:
        """Return the rows of the groups: of their keys, and the columns of what the function gives."""
        return self._table.select(*columns)


class WindowedTable(Generic[T]):
    """Rows in windows; made by ``Table.window``."""

    def __init__(self, table: T, window: GroupWindow) -> None:
        self._table = table
        self._window = window

    def group_by(self, *keys: Given) -> WindowGroupedTable[T]:
        """Group the rows by the window, ``col("w")``, and further keys."""
        return WindowGroupedTable(self._table, self._window, [expression_of(one) for one in keys])


class WindowGroupedTable(Generic[T]):
    """Groups of windows; made by `WindowedTable.group_by`."""

    def __init__(self, table: T, window: GroupWindow, keys: Sequence[Expression]) -> None:
        if all(one.column != window.name for one in keys):
            message = f"group_by names the window: col({window.name!r})"
            raise ProgramError(message)
        self._table = table
        self._window = window
        self._keys = keys

    def select(self, *columns: Given) -> T:
        """Return a row for each group: ``col("w").start``, its keys, its aggregates."""
        rendering = self._table.rendering()
        window, rendering.windows = self._window.texts(rendering)
        keys = [window if one.column == self._window.name else one.sql(rendering) for one in self._keys]
        text = f"SELECT {listed(columns, rendering)} FROM `table` GROUP BY {', '.join(keys)}"
        return self._table.queried(text, rendering)

    def aggregate(self, function: Given) -> AggregatedWindows[T]:
        """Aggregate the groups by one function; `AggregatedWindows.select` says what becomes of its result.

        Args:
            function: ``f(col("a")).alias("b")``; ``alias("b", "c")`` names the columns of a ROW that it gives.
        """
        return self._aggregated(expression_of(function), spread)

    def flat_aggregate(self, function: Given) -> AggregatedWindows[T]:
        """Aggregate the groups by one function that gives rows; see `GroupedTable.flat_aggregate`.

        Args:
            function: ``f(col("a")).alias("b", "c")`` of one made by `udtaf`; ``alias`` names the columns of its rows.
        """
        return self._aggregated(expression_of(function), unnested)

    def _aggregated(self, given: Expression, as_columns: Callable[[T, Sequence[str]], T]) -> AggregatedWindows[T]:
        name = str(self._window.name)
        parts = {part: f"$window_{part.part.lower()}" for part in self._window.texts(self._table.rendering())[1]}
        borders = [Expression(part).alias(column) for part, column in parts.items()]
        keys = [one for one in self._keys if one.column != name]
        made = as_columns(self.select(*borders, *keys, given), given.names)
        return AggregatedWindows(made, {part: quoted(column) for part, column in parts.items()})


class AggregatedWindows(Generic[T]):
    """Groups of windows and what a function makes of them; made by `WindowGroupedTable.aggregate` and its neighbour."""

    def __init__(self, table: T, parts: dict[WindowPart, str]) -> None:
        self._table = table
        self._parts = parts

    def select(self, *columns: Given) -> T:
        """Return the rows of the groups: ``col("w").start``, their keys, and the columns of what the function gives."""
        rendering = self._table.rendering()
        rendering.windows = self._parts
        return self._table.queried(f"SELECT {listed(columns, rendering)} FROM `table`", rendering)


class OverWindowedTable(Generic[T]):
    """Rows with windows that aggregates look at; made by ``Table.over_window``."""

    def __init__(self, table: T, windows: Sequence[OverWindow]) -> None:
        self._table = table
        self._windows = windows

    def select(self, *columns: Given) -> T:
        """Return a row for each row: ``col("price").sum.over(col("w"))``."""
        rendering = self._table.rendering()
        parts: dict[WindowPart, str] = dict(one.part(rendering) for one in self._windows)
        rendering.windows = parts
        return self._table.queried(f"SELECT {listed(columns, rendering)} FROM `table`", rendering)
