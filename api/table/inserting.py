"""Rows that are written into tables: what they become there, and several tables that are written in one job.

A table that is written by its PRIMARY KEY has one row of each. Where the key does not tell the query's rows apart, a
row that is taken back would take another one with it. ON CONFLICT says what is done: ``DO DEDUPLICATE`` and
``DO NOTHING`` put a Top-N of one row below the table, which knows all rows of a key: the last that came is written, or
the first. ``DO ERROR`` puts one there that ends the job when a key has several rows
(`headrace.engine.changelog.one_row`). Where the key tells the rows apart there is nothing to resolve, and nothing is
added.

Source: Flink's documentation ("INSERT Statement"), ``DynamicSinkUtils``, ``StatementSet``, ``SinkUpsertMaterializer``;
FLIP-558.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.engine.columns.expressions import lit
from headrace.engine.errors import ProgramError, nearest
from headrace.engine.optimizer.upsert_keys import upsert_keys
from headrace.engine.plan.plan import Node

from ..sql.functions.casts import cast
from ..sql.functions.coercion import cast_to
from ..sql.functions.contract import Typed
from ..sql.parsing.errors import SqlError
from ..sql.parsing.sql_types import sql_name
from ..sql.parsing.statements import Conflict
from ..sql.relations import Builder, Relation, renamed
from ..sql.scope import Scope, ScopeColumn
from .catalog import CatalogTable

if TYPE_CHECKING:
    from .result import TableResult
    from .table import Table, TablePipeline

__all__ = ["Insertion", "StatementSet", "is_told_apart", "rows_of_table", "without_conflicts"]


Insertion = tuple[CatalogTable, Relation]
"""A table, and rows with its columns."""


class Inserts(Protocol):
    """What a statement set needs of its environment: `headrace.table.TableEnvironment`."""

    def insert_of(self, text: str) -> Insertion:
        """Return what an INSERT writes."""
        ...

    def insert_into(self, table: str, relation: Relation) -> Insertion:
        """Return rows as they are written into a table of the catalog."""
        ...

    def write_all(self, inserts: list[Insertion]) -> TableResult:
        """Write rows into tables in one job, to their end."""
        ...

    def explained_writing(self, inserts: Sequence[Insertion]) -> str:
        """Return how the rows are made."""
        ...


class StatementSet:
    """Writes several tables in one job; made by `TableEnvironment.create_statement_set`."""

    def __init__(self, environment: Inserts) -> None:
        self._environment = environment
        self._inserts: list[Insertion] = []

    def add_insert(self, table: str, rows: Table) -> StatementSet:
        """Add rows for a table of the catalog, by the places of their columns.

        Raises:
            SqlError: If there is no such table, or they do not fit.
        """
        self._inserts.append(self._environment.insert_into(table, rows.relation))
        return self

    def add(self, pipeline: TablePipeline) -> StatementSet:
        """Add what `Table.insert_into` gives."""
        return self.add_insert(pipeline.table, pipeline.rows)

    def add_insert_sql(self, text: str) -> StatementSet:
        """Add an INSERT."""
        self._inserts.append(self._environment.insert_of(text))
        return self

    def execute(self) -> TableResult:
        """Write all, to their end; the set is empty then.

        Raises:
            ProgramError: If nothing has been added.
        """
        inserts, self._inserts = self._added(), []
        return self._environment.write_all(inserts)

    def explain(self) -> str:
        """Return how the rows are made, as EXPLAIN shows it; nothing is run, and the set stays as it is.

        Raises:
            ProgramError: If nothing has been added.
        """
        return self._environment.explained_writing(self._added())

    def print_explain(self) -> None:
        """Write the same to standard output."""
        sys.stdout.write(f"{self.explain()}\n")

    def _added(self) -> list[Insertion]:
        if not self._inserts:
            message = "the statement set is empty"
            raise ProgramError(message, hint="add_insert and add_insert_sql add to it")
        return self._inserts


def rows_of_table(table: CatalogTable, columns: Sequence[str], relation: Relation, builder: Builder) -> Relation:
    """Return rows with the columns of a table.

    Args:
        table: The table.
        columns: Which of its columns the rows are for, in their order; none for all.
        relation: The rows.
        builder: Makes nodes.

    Raises:
        SqlError: If they do not fit.
    """
    name, schema = table.statement.name, table.written
    told = [one.name for one in table.statement.columns if one.metadata is not None and not one.is_virtual]
    if told:
        message = f"column {told[0]!r} of table {name!r} is metadata, which its connector does not write"
        raise SqlError(message, hint="METADATA VIRTUAL is read, and left out of what is written")
    given = columns or tuple(schema.names)
    unknown = [column for column in given if column not in schema.names]
    if unknown:
        message = f"table {name!r} takes no column {unknown[0]!r}"
        raise SqlError(message, hint=nearest(unknown[0], schema.names))
    doubled = [column for column in given if given.count(column) > 1]
    if doubled:
        message = f"table {name!r} gets column {doubled[0]!r} twice"
        raise SqlError(message)
    if len(given) != len(relation.scope.columns):
        message = f"table {name!r} gets {len(given)} columns; the query has {len(relation.scope.columns)}"
        raise SqlError(message)
    values = dict(zip(given, renamed(relation, given).values(), strict=True))
    stored = {field.name: _for_column(name, field, values.get(field.name)) for field in schema}
    scope = Scope(ScopeColumn(None, field.name, field.name, field.type) for field in schema)
    return Relation(builder.selected(relation.node, stored), scope)


def _for_column(table: str, field: pa.Field, value: Typed | None) -> Typed:
    if value is None:
        return Typed(lit(None, field.type), field.type)
    if not _can_be_stored(value.kind, field.type):
        types = f"is {sql_name(field.type)}; the query gives {sql_name(value.kind)}"
        message = f"column {field.name!r} of table {table!r} {types}"
        raise SqlError(message, hint="CAST it")
    # Fields of rows are told by their places: those of ROW(...) have no names of their own.
    return cast(value, field.type) if pa.types.is_nested(field.type) else cast_to(value, field.type)


def _can_be_stored(kind: pa.DataType, column: pa.DataType) -> bool:
    """Whether a column takes values of a type: its own, numbers for numbers, times for times, NULL.

    So it is within rows, arrays and maps. Integers take integers only: what others have behind the point would be lost.
    """
    if kind == column or pa.types.is_null(kind):
        return True
    is_ = pa.types
    numbers = [is_.is_integer(one) or is_.is_floating(one) or is_.is_decimal(one) for one in (kind, column)]
    times = [is_.is_timestamp(one) for one in (kind, column)]
    if is_.is_integer(column) and not is_.is_integer(kind):
        return False
    if is_.is_struct(kind) and is_.is_struct(column) and kind.num_fields == column.num_fields:
        return all(_can_be_stored(one.type, other.type) for one, other in zip(kind, column, strict=True))
    if is_.is_list(kind) and is_.is_list(column):
        return _can_be_stored(kind.value_type, column.value_type)
    if is_.is_map(kind) and is_.is_map(column):
        pairs = ((kind.key_type, column.key_type), (kind.item_type, column.item_type))
        return all(_can_be_stored(one, other) for one, other in pairs)
    return all(numbers) or all(times)


def is_told_apart(root: Node, table: CatalogTable) -> bool:
    """Return whether the PRIMARY KEY of a table is known to tell the rows of an optimised query apart."""
    own = set(table.connector.primary_key)
    return any(set(key) <= own for key in upsert_keys(root))


def without_conflicts(
    table: CatalogTable,
    relation: Relation,
    conflict: Conflict,
    builder: Builder,
    optimized: Node,
    *,
    is_batch: bool,
) -> Relation:
    """Return rows of which each has a PRIMARY KEY of its own.

    Args:
        table: Where they are written.
        relation: The rows, with the columns of the table.
        conflict: What ON CONFLICT says.
        builder: Makes nodes.
        optimized: How they are made.
        is_batch: Whether the rows are bounded, and have no order of arrival.

    Raises:
        SqlError: If the table is not written by a key, or what is said cannot be done.
    """
    name, key = table.statement.name, table.connector.primary_key
    if not table.connector.applies_by_key:
        message = f"ON CONFLICT is for tables that are written by their PRIMARY KEY; {name!r} is not"
        raise SqlError(message, hint="leave it out, or write into a table of 'jdbc' with a PRIMARY KEY")
    if is_told_apart(optimized, table):
        return relation
    if is_batch:
        message = "ON CONFLICT in batch mode is not supported: rows have no order in which they come"
        raise SqlError(
            message, hint="choose a row: ROW_NUMBER() OVER (PARTITION BY the key ORDER BY ...) with WHERE n = 1"
        )
    node = builder.one_of_key(
        relation.node, key, latest_first=conflict.action != "NOTHING", refuses_others=conflict.action == "ERROR"
    )
    return Relation(node, relation.scope)
