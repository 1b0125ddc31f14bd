"""Joins with FOR SYSTEM_TIME AS OF: by the event time of the row that is joined, and by the clock.

By event time it is a temporal join. What is joined must have versions. A table has them if it has a PRIMARY KEY and a
WATERMARK: each of its rows is the version of its key from its event time on. So has a query that keeps the last row of
each key by event time (``ROW_NUMBER() OVER (PARTITION BY key ORDER BY time DESC)``, where it is 1): the versions are
the rows below it.

By processing time it is a lookup join. What is joined is a table of a connector that can be asked for rows by key, or a
view that selects columns and rows of one. Each row is joined with what the table has for its key when the row comes.

Source: Flink's documentation ("Temporal Joins", "Versioned Tables", "Lookup Join").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.engine.columns.expressions import lit
from headrace.engine.optimizer.rewriting import name_above, nodes_below
from headrace.engine.optimizer.stream_traits import renamed_below
from headrace.engine.optimizer.top_n import find_top_n
from headrace.engine.plan.plan import FORWARD, FilterColumns, Node, Select, walk
from headrace.engine.plan.table_nodes import EventTime, LookupJoin, LookupWay, Scan, TableJoin, TemporalJoin, TopN

from .contract import Queries
from .functions.contract import Typed
from .parsing.errors import SqlError
from .relations import Builder, Relation
from .scope import Scope, ScopeColumn

__all__ = ["goes_by_clock", "lookup_join", "temporal_join"]

_HOW = (
    "a table with PRIMARY KEY and WATERMARK has versions; so has a view of ROW_NUMBER() OVER (PARTITION BY key "
    "ORDER BY time DESC) where it is 1"
)


def temporal_join(
    queries: Queries, left: Relation, right: Relation, keys: Sequence[tuple[Typed, Typed]], how: str,
    condition: Callable[[Scope], Typed | None], *, time: Typed, primary_key: Sequence[str] | None,
) -> Relation:  # fmt: skip
    """Return rows with the versions that were valid at their times.

    Args:
        queries: Makes nodes.
        left: The rows.
        right: What has versions.
        keys: What is equal, of both.
        how: ``inner`` or ``left``.
        condition: What must be true of a row and its version, or it has none, over the scope of both.
        time: The time of rows, over the scope of the left relation.
        primary_key: Of the right table; None if it is a query.

    Raises:
        SqlError: If there are no versions, or they are of other keys.
    """
    structure = time.expression.structure
    is_time = any(one.is_event_time and structure == ("col", one.column) for one in left.scope.columns)
    if not is_time:
        message = "FOR SYSTEM_TIME AS OF takes the event time of the table before it, or its processing time"
        raise SqlError(message, hint="it is the column of WATERMARK FOR, or that of PROCTIME(), as it is")
    times = [one for one in right.scope.columns if one.is_event_time]
    if not times:
        message = "what is joined by FOR SYSTEM_TIME AS OF has no event time"
        raise SqlError(message, hint=_HOW)
    named = [other.expression.structure for _, other in keys]
    if not keys or any(one[0] != "col" for one in named):
        message = "a temporal join is by columns that are equal: the whole key of the versions"
        raise SqlError(message, hint=_HOW)
    names = {str(one[1]) for one in named}
    if primary_key is None:
        right = Relation(_versions_below(queries.builder, right.node, names, times[0]), right.scope)
    elif names != set(primary_key):
        message = (
            f"a temporal join is by the PRIMARY KEY ({', '.join(primary_key)}); it is by {', '.join(sorted(names))}"
        )
        raise SqlError(message)
    joined = queries.builder.joined(left, right, keys, how, condition)
    node = joined.node
    assert isinstance(node, TableJoin)
    made = TemporalJoin(
        id=node.id, name=f"{how} temporal join", inputs=node.inputs, schema=node.schema, ships=node.ships,
        left_key=node.left_key, right_key=node.right_key, how=how, projection=node.projection,
        condition=node.condition, times=(str(structure[1]), times[0].column),
    )  # fmt: skip
    return Relation(made, Scope(_of_rows(joined.scope.columns, left.scope.columns)))


def _versions_below(builder: Builder, node: Node, names: set[str], time: ScopeColumn) -> Node:
    """The rows of which a query keeps the last one of each key, with the columns of the query.

    Raises:
        SqlError: If the query is another one.
    """
    found, path = nodes_below(find_top_n((node,), None)[0])
    if not isinstance(found, TopN) or found.limit != 1 or found.offset or found.key is None:
        message = "what is joined by FOR SYSTEM_TIME AS OF has no versions"
        raise SqlError(message, hint=_HOW)
    order = found.orders[0] if len(found.orders) == 1 else None
    if order is None or order.ascending or name_above(str(order.column), path) != time.column:
        message = "versions are the last rows by event time"
        raise SqlError(message, hint=_HOW)
    if {name_above(name, path) for name in found.key.names or ()} != names:
        message = f"a temporal join is by the key of the versions; it is by {', '.join(sorted(names))}"
        raise SqlError(message, hint="PARTITION BY has those columns and no others")
    rows = found.inputs[0]
    if found.number is not None:
        rows = builder.extended(rows, {found.number: Typed(lit(1, pa.int64()), pa.int64())})
    for one in reversed(path):
        rows = replace(one, inputs=(rows,))
    return rows


def goes_by_clock(time: Typed, scope: Scope) -> bool:
    """Return whether a value is the processing time of some rows."""
    structure = time.expression.structure
    return any(one.is_processing_time and structure == ("col", one.column) for one in scope.columns)


def lookup_join(
    builder: Builder, left: Relation, right: Relation, keys: Sequence[tuple[Typed, Typed]], how: str,
    condition: Callable[[Scope], Typed | None], way: LookupWay | None = None,
) -> Relation:  # fmt: skip
    """Return rows with what a table has for their keys when they come.

    Args:
        builder: Makes nodes.
        left: The rows.
        right: The table.
        keys: What is equal, of both.
        how: ``inner`` or ``left``.
        condition: What else is true, over the scope of both.
        way: How the hint of the table says that it is asked.

    Raises:
        SqlError: If it is no table that can be asked, or it cannot be asked by these keys.
    """
    if not keys:
        message = "a lookup is by columns that are equal: ON a.k = t.k"
        raise SqlError(message)
    for _, own in keys:
        structure = own.expression.structure
        if structure[0] != "col" or not _is_of_table(right.node, str(structure[1])):
            message = "a lookup is by columns of the table as they are"
            raise SqlError(message, hint="compute with the other side: ON CAST(a.k AS INT) = t.k")
    joined = builder.joined(left, right, keys, how, condition)
    node = joined.node
    assert isinstance(node, TableJoin)
    notes: tuple[str, ...] = ()
    if way is not None:
        table = next(one.table for one in walk(right.node) if isinstance(one, Scan))
        is_memory = not table.waits_for_answers
        notes = (f"hint LOOKUP changes nothing: {table.name} answers from memory" if is_memory else str(way),)
        way = None if is_memory or not (way.is_async or way.retry) else way
    made = LookupJoin(
        id=node.id, name=f"{how} lookup join", inputs=node.inputs, schema=node.schema, ships=(FORWARD, FORWARD),
        left_key=node.left_key, right_key=node.right_key, how=how, projection=node.projection,
        condition=node.condition, way=way, notes=(*node.notes, *notes),
    )  # fmt: skip
    return Relation(made, Scope(_of_rows(joined.scope.columns, left.scope.columns)))


def _is_of_table(node: Node, column: str) -> bool:
    """Whether a column is one that the table has.

    Raises:
        SqlError: If it is no table that can be asked.
    """
    name: str | None = column
    while isinstance(node, (Select, FilterColumns, EventTime)):
        if isinstance(node, Select) and name is not None:
            name = renamed_below(node, name)
        node = node.inputs[0]
    if not isinstance(node, Scan):
        message = "FOR SYSTEM_TIME AS OF processing time asks a table of a connector; this is a query"
        hint = "join it without FOR SYSTEM_TIME AS OF, which follows later versions too, or give its rows event time"
        raise SqlError(message, hint=f"{hint}: docs/guide/sql-joins.md")
    if not node.table.can_look_up:
        message = f"a table with connector {node.table.name!r} cannot be looked up"
        raise SqlError(message, hint="tables of filesystem and jdbc can; join others without FOR SYSTEM_TIME AS OF")
    return name is not None


def _of_rows(columns: Sequence[ScopeColumn], left: Sequence[ScopeColumn]) -> list[ScopeColumn]:
    """Return the columns of rows with others, whose times are those of the rows."""
    return [
        replace(
            one, is_event_time=place < len(left) and left[place].is_event_time,
            is_processing_time=place < len(left) and left[place].is_processing_time,
        )
        for place, one in enumerate(columns)
    ]  # fmt: skip
