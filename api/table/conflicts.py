"""Several rows of a query with one PRIMARY KEY of the table that they are written into: ON CONFLICT.

A table that is written by its PRIMARY KEY has one row of each. Where the key does not tell the query's rows apart, a
row that is taken back would take another one with it. ``DO DEDUPLICATE`` and ``DO NOTHING`` put a Top-N of one row
below the table, which knows all rows of a key: the last that came is written, or the first. ``DO ERROR`` puts one there
that ends the job when a key has several rows (`headrace.engine.changelog.one_row`). Where the key tells the rows apart
there is nothing to resolve, and nothing is added.

Source: FLIP-558; Flink's ``SinkUpsertMaterializer``.
"""

from __future__ import annotations

from headrace.engine.optimizer.upsert_keys import upsert_keys
from headrace.engine.plan.plan import Node

from ..sql.parsing.errors import SqlError
from ..sql.parsing.statements import Conflict
from ..sql.relations import Builder, Relation
from .catalog import CatalogTable

__all__ = ["is_told_apart", "without_conflicts"]


def is_told_apart(root: Node, table: CatalogTable) -> bool:
    """Whether the PRIMARY KEY of a table is known to tell the rows of an optimised query apart."""
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
