"""What tables and views there are, in memory: what a program has created, by name.

Source: Flink's ``GenericInMemoryCatalog``, ``CatalogTable``, ``CatalogView``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.errors import nearest

from ..sql.expressions import interval_ms
from ..sql.parsing.errors import SqlError, SqlText, place_of
from ..sql.parsing.statements import CreateTable, CreateView, WatermarkSpec
from ..sql.parsing.types import sql_name
from ..sql.query import QueryBinder
from ..sql.relations import Builder, Relation
from ..sql.scope import Scope, ScopeColumn
from .connectors.contract import TableConnector

__all__ = ["Catalog", "CatalogTable", "CatalogView", "StatementTables", "TemporaryTable"]


@dataclass(frozen=True)
class CatalogTable:
    """A table that CREATE TABLE made.

    Attributes:
        statement: What it said, what LIKE took over included.
        text: The text that the statement is of.
        connector: What its rows come from, or go to.
    """

    statement: CreateTable
    text: SqlText
    connector: TableConnector

    @property
    def physical(self) -> pa.Schema:
        """The columns that the connector gives."""
        return pa.schema([pa.field(one.name, one.kind) for one in self.statement.columns if one.kind is not None])


@dataclass(frozen=True)
class CatalogView:
    """A view that CREATE VIEW made: its query is bound anew wherever it is used."""

    statement: CreateView
    text: SqlText


@dataclass(frozen=True)
class TemporaryTable:
    """Rows that a program has at hand, under a name.

    Attributes:
        connector: Gives them.
        schema: Their columns.
        event_time: The column that is their event time, if one is.
        delay_ms: How far behind it the watermark is.
    """

    connector: TableConnector
    schema: pa.Schema
    event_time: str | None = None
    delay_ms: int = 0


Entry = CatalogTable | CatalogView | TemporaryTable


@dataclass
class Catalog:
    """Tables and views by name."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def add(self, name: str, entry: Entry, *, if_not_exists: bool = False) -> None:
        """Give a table or view a name.

        Raises:
            SqlError: If the name is taken.
        """
        if name in self.entries:
            if if_not_exists:
                return
            message = f"there is a table or view {name!r} already"
            raise SqlError(message, hint="CREATE TABLE IF NOT EXISTS, or DROP it")
        self.entries[name] = entry

    def drop(self, kind: str, name: str, *, if_exists: bool) -> None:
        """Forget a table or a view.

        Raises:
            SqlError: If there is none of the name, or it is of the other kind.
        """
        entry = self.entries.get(name)
        if entry is None:
            if if_exists:
                return
            message = f"there is no {kind} {name!r}"
            raise SqlError(message, hint=nearest(name, list(self.entries)))
        if (kind == "view") != isinstance(entry, CatalogView):
            message = f"{name!r} is a {'view' if kind == 'table' else 'table'}"
            raise SqlError(message)
        del self.entries[name]

    def names(self, kind: type | None = None) -> list[str]:
        """Return the names of all, or of tables or views only, in order."""
        return sorted(name for name, entry in self.entries.items() if kind is None or isinstance(entry, kind))

    def table(self, name: str) -> CatalogTable:
        """Return a table.

        Raises:
            SqlError: If there is none of the name.
        """
        found = self.entries.get(name)
        if not isinstance(found, CatalogTable):
            message = f"there is no table {name!r}" if found is None else f"{name!r} is no table that CREATE TABLE made"
            raise SqlError(message, hint=nearest(name, self.names(CatalogTable)))
        return found


class StatementTables:
    """The tables of a catalog as one statement sees them: what it names twice is one part of its plan.

    Args:
        catalog: All tables.
        builder: Makes nodes.
    """

    def __init__(self, catalog: Catalog, builder: Builder) -> None:
        self._catalog = catalog
        self._builder = builder
        self._known: dict[str, Relation] = {}
        self._under_way: list[str] = []

    def names(self) -> list[str]:
        """Return the names of all tables and views."""
        return self._catalog.names()

    def relation(self, name: str, queries: QueryBinder) -> Relation | None:
        """Return the rows of a table or view; None if there is none."""
        entry = self._catalog.entries.get(name)
        if entry is None:
            return None
        if name in self._under_way:
            message = f"view {name!r} is made of itself"
            raise SqlError(message)
        if name not in self._known:
            self._under_way.append(name)
            try:
                self._known[name] = self._made(name, entry, queries)
            finally:
                self._under_way.pop()
        return self._known[name]

    def _made(self, name: str, entry: Entry, queries: QueryBinder) -> Relation:
        if isinstance(entry, CatalogView):
            return self._of_view(entry, queries.over(entry.text))
        if isinstance(entry, TemporaryTable):
            return self._of_rows(name, entry)
        return self._of_table(entry, queries.over(entry.text))

    def _of_view(self, view: CatalogView, queries: QueryBinder) -> Relation:
        relation = queries.bind(view.statement.query.tree)
        return Relation(relation.node, relation.scope.under(view.statement.name, view.statement.columns))

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

    def _of_table(self, table: CatalogTable, queries: QueryBinder) -> Relation:
        statement = table.statement
        node = self._builder.scan(statement.name, table.connector, table.physical)
        scope = Scope(ScopeColumn(statement.name, one.name, one.name, one.type) for one in table.physical)
        binder = queries.binder(scope)
        computed = {one.name: binder.bind(one.computed) for one in statement.columns if one.computed is not None}
        node = self._builder.extended(node, computed)
        kinds = {**{one.name: one.type for one in table.physical}, **{name: one.kind for name, one in computed.items()}}
        time = None
        if statement.watermark is not None:
            time, delay_ms = watermark_of(statement.watermark, kinds, table.text)
            node = self._builder.event_time(node, time, delay_ms)
        columns = (
            ScopeColumn(statement.name, one.name, one.name, kinds[one.name], is_event_time=one.name == time)
            for one in statement.columns
        )
        return Relation(node, Scope(columns))


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


EntryMaker = Callable[[], Entry]
