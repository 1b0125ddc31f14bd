"""The tables that statements name, as plans: rows of connectors, computed columns, event time, views.

Source: Flink's ``CatalogSourceTable``, ``ExpandingPreparingTable``, ``SchemaResolver``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.errors import nearest

from ..sql.clock import asks_clock, with_clock
from ..sql.expressions import interval_ms
from ..sql.parsing.errors import SqlError, SqlText, place_of
from ..sql.parsing.names import path_of
from ..sql.parsing.sql_types import sql_name
from ..sql.parsing.statements import WatermarkSpec
from ..sql.query import QueryBinder
from ..sql.relations import Builder, Relation
from ..sql.scope import Scope, ScopeColumn
from .catalog import Catalogs, CatalogTable, CatalogView, Entry, ObjectPath, TemporaryTable, TemporaryView

__all__ = ["StatementTables"]


class StatementTables:
    """The tables of catalogs as one statement sees them: what it names twice is one part of its plan.

    Args:
        catalogs: All tables.
        builder: Makes nodes.
    """

    def __init__(self, catalogs: Catalogs, builder: Builder) -> None:
        self._catalogs = catalogs
        self._builder = builder
        self._known: dict[ObjectPath, Relation] = {}
        # Views that are being bound, each inside the one before.
        self._under_way: list[ObjectPath] = []
        # Where names are looked up: in a view, where it was made.
        self._home: tuple[str, str] = catalogs.current
        # Whether views are being bound that the one to be bound is made of.
        self._goes_down = False

    def names(self) -> list[str]:
        """Return the names of all tables and views."""
        return self._catalogs.names(database=path_of(self._home))

    def primary_key(self, name: str) -> tuple[str, ...] | None:
        """Return the columns of a table's PRIMARY KEY; None if it has none, or is no table that CREATE TABLE made."""
        entry = self._catalogs.find(self._catalogs.path_of(name, self._home))
        return (entry.statement.primary_key or None) if isinstance(entry, CatalogTable) else None

    def relation(self, name: str, queries: QueryBinder, options: Mapping[str, str] | None = None) -> Relation | None:
        """Return the rows of a table or view; None if there is none.

        Raises:
            SqlError: If there are options, and it is no table that CREATE TABLE made.
        """
        if options:
            return self._with_options(name, queries, options)
        path = self._catalogs.path_of(name, self._home)
        if path in self._under_way:
            message = f"view {path.name!r} is made of itself"
            raise SqlError(message)
        if path not in self._known:
            entry = self._catalogs.find(path)
            if entry is None:
                if path[:2] != self._home:
                    raise self._catalogs.absent(path, "table")
                return None
            self._bind_views_below(path, queries)
            self._under_way.append(path)
            try:
                self._known[path] = self.made(path.name, entry, queries)
            finally:
                self._under_way.pop()
        return self._known[path]

    def _with_options(self, name: str, queries: QueryBinder, options: Mapping[str, str]) -> Relation | None:
        """The rows of a table with other options: a part of the plan of its own."""
        path = self._catalogs.path_of(name, self._home)
        entry = self._catalogs.find(path)
        if entry is None:
            return self.relation(name, queries)
        if not isinstance(entry, CatalogTable):
            message = f"hint OPTIONS is of tables that CREATE TABLE made; {path.name!r} is another one"
            raise SqlError(message, hint="put it into the query of the view")
        return self.made(path.name, entry.with_options(options), queries)

    def _bind_views_below(self, path: ObjectPath, queries: QueryBinder) -> None:
        """Bind the views that a view is made of, the lowest first: chains of them may exhaust Python's stack.

        What one of them has against it is said where it is named.
        """
        if self._goes_down:
            return
        self._goes_down = True
        try:
            for lower in self._views_below(path):
                if lower not in self._known:
                    self.relation(str(lower), queries)
        except SqlError:
            return
        finally:
            self._goes_down = False

    def _views_below(self, path: ObjectPath) -> list[ObjectPath]:
        """The views that a view is made of, each behind those it is made of itself."""
        order: dict[ObjectPath, None] = {}
        stack = [(path, False)]
        seen = {path}
        while stack:
            one, is_done = stack.pop()
            entry = None if is_done else self._catalogs.find(one)
            if is_done:
                order[one] = None
            elif isinstance(entry, CatalogView):
                below = [self._catalogs.path_of(name, entry.home) for name in _names_in(entry)]
                stack += [(one, True), *((lower, False) for lower in below if lower not in seen)]
                seen.update(below)
        return [one for one in order if one != path]

    def made(self, name: str, entry: Entry, queries: QueryBinder) -> Relation:
        """Return the rows of a table or view, whether or not a catalog has it."""
        if isinstance(entry, CatalogView):
            return self._of_view(name, entry, queries.over(entry.text))
        if isinstance(entry, TemporaryTable):
            return self._of_rows(name, entry)
        if isinstance(entry, TemporaryView):
            return Relation(entry.relation.node, entry.relation.scope.under(name, ()))
        return self._of_table(name, entry, queries.over(entry.text))

    def _of_view(self, name: str, view: CatalogView, queries: QueryBinder) -> Relation:
        home, self._home = self._home, view.home
        try:
            relation = queries.bind(view.statement.query.tree)
        finally:
            self._home = home
        return Relation(relation.node, relation.scope.under(name, view.statement.columns))

    def _of_rows(self, name: str, entry: TemporaryTable) -> Relation:
        node = self._builder.scan(name, entry.connector, entry.schema)
        if entry.event_time is not None:
            node = self._builder.event_time(node, entry.event_time, entry.delay_ms)
        return Relation(
            node,
            Scope(
                ScopeColumn(name, one.name, one.name, one.type, one.name == entry.event_time) for one in entry.schema
            ),
        )

    def _of_table(self, name: str, table: CatalogTable, queries: QueryBinder) -> Relation:
        statement = table.statement
        node = self._builder.scan(name, table.connector, table.physical)
        relation = Relation(node, Scope(ScopeColumn(name, one.name, one.name, one.type) for one in table.physical))
        clock = None
        if asks_clock(*(one.computed for one in statement.columns)):
            relation, clock = with_clock(self._builder, relation)
        binder = queries.binder(relation.scope)
        computed = {one.name: binder.bind(one.computed) for one in statement.columns if one.computed is not None}
        node = self._builder.extended(relation.node, computed)
        clocks = {new for new, one in computed.items() if clock and one.expression.structure == ("col", clock.column)}
        kinds = {**{one.name: one.type for one in table.physical}, **{new: one.kind for new, one in computed.items()}}
        time = None
        if statement.watermark is not None:
            time, delay_ms = watermark_of(statement.watermark, kinds, table.text)
            if time in clocks:
                message = f"{time!r} is processing time, which has no watermark"
                raise table.text.error(message, place_of(statement.watermark.expression))
            node = self._builder.event_time(node, time, delay_ms)
        columns = (
            ScopeColumn(
                name,
                one.name,
                one.name,
                kinds[one.name],
                is_event_time=one.name == time,
                is_processing_time=one.name in clocks,
            )
            for one in statement.columns
        )
        return Relation(node, Scope(columns))


def _names_in(view: CatalogView) -> list[str]:
    """The tables and views that a view names; not what WITH gives the name."""
    tree = view.statement.query.tree
    own = {one.alias for one in tree.find_all(exp.CTE)}
    named = (table for table in tree.find_all(exp.Table) if not isinstance(table.this, exp.Anonymous))
    return [path_of(part.name for part in table.parts) for table in named if table.name not in own]


def watermark_of(spec: WatermarkSpec, kinds: dict[str, pa.DataType], text: SqlText) -> tuple[str, int]:
    """Return the event time of a table and how far behind it its watermark is.

    Raises:
        SqlError: If there is no such column, it is no time, or the watermark is anything but it less an interval.
    """
    place = place_of(spec.expression)
    kind = kinds.get(spec.column)
    if kind is None or not pa.types.is_timestamp(kind):
        message = (
            f"there is no column {spec.column!r}" if kind is None
            else f"the event time is a TIMESTAMP; {spec.column!r} is {sql_name(kind)}"
        )  # fmt: skip
        raise text.error(message, place, hint=nearest(spec.column, list(kinds)))
    tree: Any = spec.expression
    while isinstance(tree, exp.Paren):
        tree = tree.this
    column, delay = (tree.this, tree.expression) if isinstance(tree, exp.Sub) else (tree, None)
    if not isinstance(column, exp.Column) or column.name != spec.column:
        message = f"a watermark is {spec.column}, or {spec.column} less an interval"
        raise text.error(message, place, hint=f"{spec.column} - INTERVAL '5' SECOND")
    with text.at(tree):
        return spec.column, 0 if delay is None else interval_ms(delay)
