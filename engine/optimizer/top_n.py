"""Top-N on streams: what SQL says by the places of rows, and places that nobody reads.

Source: Flink's ``FlinkLogicalRankRule``, ``RedundantRankNumberColumnRemoveRule``.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..columns.expressions import Call, Expression
from ..frames.frame_calls import Place, row_number
from ..plan.plan import FilterColumns, Node, Order, OverGroups, Select, walk
from ..plan.table_nodes import ProcessingTime, TopN
from .join_filters import all_of, conditions_of
from .optimizer import Roots
from .rewriting import name_above, nodes_below, noted, rewritten
from .stream_traits import renamed_below

__all__ = ["drop_places", "find_top_n"]


def find_top_n(roots: Roots, _parallelism: int | None) -> Roots:
    """Make a Top-N of a filter on a row's place in its group: ``WHERE row_number <= 10``."""
    return rewritten(roots, lambda node: _top_n(node) if isinstance(node, FilterColumns) else node)


def _top_n(node: FilterColumns) -> Node:
    over, path = nodes_below(node.inputs[0])
    if not isinstance(over, OverGroups) or len(over.columns) != 1 or not over.orders:
        return node
    (number, spec), = over.columns.items()  # fmt: skip
    if not isinstance(spec, Place) or spec.name != row_number().name:
        return node
    name = name_above(number, path)
    conditions = conditions_of(node.condition)
    limits = [limit for one in conditions if (limit := _limit(one, name)) is not None]
    if name is None or not limits:
        return node
    rest = [one for one in conditions if _limit(one, name) is None]
    orders, latest_first = _orders_of_arrival(over)
    by = ", ".join(map(repr, orders)) or ("last arrival" if latest_first else "arrival")
    top: Node = TopN(
        id=over.id, name=f"first {min(limits)} by {by}", inputs=over.inputs, schema=over.schema, ships=over.ships,
        key=over.key, orders=orders, limit=min(limits), number=number, latest_first=latest_first,
    )  # fmt: skip
    for above in reversed(path):
        top = above.with_parents((top,))
    if not rest:
        return top
    return replace(node, inputs=(top,), condition=all_of(rest))


def _orders_of_arrival(over: OverGroups) -> tuple[tuple[Order, ...], bool]:
    """What rows go by, and whether of equal ones the last to come is first.

    An order by the clock alone is that in which they come: no time is needed for it. Where OVER is between, they come
    as it gives them, and go by their times; those of one millisecond still as they come.
    """
    name = over.orders[0].column if len(over.orders) == 1 else None
    clock, path = nodes_below(over.inputs[0], (Select, OverGroups))
    for node in path:
        name = renamed_below(node, name) if isinstance(node, Select) and name is not None else name
    if not isinstance(clock, ProcessingTime) or not clock.sets_time or name != clock.column:
        return over.orders, False
    is_arrival = not any(isinstance(one, OverGroups) for one in path)
    return () if is_arrival else over.orders, not over.orders[0].ascending


def _limit(condition: Expression, name: str | None) -> int | None:
    """The last place that a condition lets through; None if it is about something else."""
    if not isinstance(condition, Call) or len(condition.arguments) != 2:
        return None
    left, right = condition.arguments
    function = condition.function
    if right.structure == ("col", name):
        left, right = right, left
        function = {
            "greater_equal": "less_equal", "greater": "less", "less_equal": "greater_equal", "less": "greater"
        }.get(function, function)  # fmt: skip
    if left.structure != ("col", name) or right.structure[0] != "lit":
        return None
    number = getattr(right, "scalar", pa.scalar(None)).as_py()
    if not isinstance(number, int) or function not in ("less_equal", "less", "equal"):
        return None
    if function == "equal":
        return 1 if number == 1 else None
    last = number if function == "less_equal" else number - 1
    return last if last >= 1 else None


def drop_places(roots: Roots, _parallelism: int | None) -> Roots:
    """Leave out a row's place among the first of its group where nobody reads it: a place changes often."""
    read: dict[int, set[str]] = {}
    for node in walk(*roots):
        for parent in node.inputs:
            read.setdefault(parent.id, set()).update(_columns_read(node, parent))
    by_root = {root.id for root in roots}

    def visit(node: Node) -> Node:
        is_read = node.id in by_root or not isinstance(node, TopN) or node.number in read.get(node.id, ())
        if is_read or not isinstance(node, TopN) or node.number is None or node.schema is None:
            return node
        schema = pa.schema([field for field in node.schema if field.name != node.number])
        return noted(replace(node, number=None, schema=schema), "gives no places: nobody reads them")

    return rewritten(roots, visit)


def _columns_read(node: Node, parent: Node) -> set[str]:
    """The columns of an input that a node reads or passes on."""
    if isinstance(node, Select) and not node.keep:
        return set().union(*(value.columns_used() for value in node.columns.values()))
    return set() if parent.schema is None else set(parent.schema.names)
