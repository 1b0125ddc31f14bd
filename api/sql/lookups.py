"""Lookup joins: FOR SYSTEM_TIME AS OF the processing time of the row that is joined.

What is joined is a table of a connector that can be asked for rows by key, or a view that selects columns and rows of
one. Each row is joined with what the table has for its key when the row comes.

Source: Flink's documentation ("Lookup Join").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.engine.optimizer.stream_traits import renamed_below
from headrace.engine.plan.plan import FORWARD, FilterColumns, Node, Select, walk
from headrace.engine.plan.table_nodes import EventTime, LookupJoin, LookupWay, Scan, TableJoin

from .functions.contract import Typed
from .parsing.errors import SqlError
from .relations import Builder, Relation
from .scope import Scope
from .temporal import of_rows

__all__ = ["goes_by_clock", "lookup_join"]


def goes_by_clock(time: Typed, scope: Scope) -> bool:
    """Whether a value is the processing time of some rows."""
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
    return Relation(made, Scope(of_rows(joined.scope.columns, left.scope.columns)))


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
