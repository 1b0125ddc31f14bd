"""Which rules plans of table programs go through, and in which order: for streams, and for bounded data.

What only tables have (`headrace.engine.plan.table_nodes`) is said for bounded data in nodes of data sets, so that every
executor of those runs it (`headrace.engine.optimizer.bounded_tables`). For streams it is the other way round: what SQL
says by places becomes a Top-N, and groups by the borders of windows become aggregation in windows.

Source: Flink's ``FlinkStreamProgram`` and ``FlinkBatchProgram``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..columns.expressions import Expression, col
from ..plan.plan import Node, Select, walk
from ..plan.table_nodes import EventTime, Scan, SourceTime
from .bounded_joins import find_bounded_joins
from .bounded_tables import BoundedTables
from .chains import find_multi_joins, merge_unions
from .common_expressions import compute_once
from .join_filters import conditions_into_joins, filters_below_joins
from .optimizer import Roots, Rule, push_filters
from .rewriting import noted, readers_of, rewritten
from .shared_plans import share_sub_plans
from .table_columns import fields_before_conditions, prune_table_columns
from .top_n import drop_places, find_top_n
from .window_aggregation import filters_below_windows, find_window_aggregation

__all__ = ["as_data_sets", "as_streams"]


def as_streams(new_id: Callable[[], int], *, shares: bool = True, multi_joins: bool = False) -> tuple[Rule, ...]:
    """Return what is done to a plan before streams are made of it, in this order.

    Args:
        new_id: Numbers the nodes that are added.
        shares: Whether equal sub-plans become one.
        multi_joins: Whether chains of joins become one, also where no hint says so.
    """
    return (
        Rule("unions of unions", merge_unions),
        _filters(new_id),
        Rule("filters below windows", filters_below_windows),
        Rule("filters below windows to sources", push_filters),
        Rule("first rows of groups", find_top_n),
        Rule("aggregation in windows", find_window_aggregation),
        Rule("joins of rows near in time", find_bounded_joins),
        *_sharing(shares=shares),
        Rule("conditions of pairs into joins", conditions_into_joins),
        Rule("no places that nobody reads", drop_places),
        Rule("only columns that are read", prune_table_columns),
        Rule("fields before conditions", functools.partial(fields_before_conditions, new_id=new_id)),
        Rule("one join of many", functools.partial(find_multi_joins, is_enabled=multi_joins)),
        Rule("nothing costly computed twice", functools.partial(compute_once, new_id=new_id)),
        Rule("watermarks to sources", _watermarks_into_sources),
    )


def _sharing(*, shares: bool) -> tuple[Rule, ...]:
    """Before columns are left out: what is read of one place by several is all that they read."""
    return (Rule("equal sub-plans", share_sub_plans),) if shares else ()


def _filters(new_id: Callable[[], int]) -> Rule:
    """Conditions towards sources, past joins of joins."""

    def apply(roots: Roots, parallelism: int | None) -> Roots:
        while True:
            roots = push_filters(roots, parallelism)
            roots, has_moved = filters_below_joins(roots, new_id)
            if not has_moved:
                return roots

    return Rule("filters to sources", apply)


def _watermarks_into_sources(roots: tuple[Node, ...], _parallelism: int | None) -> tuple[Node, ...]:
    """Let sources make the watermarks of tables that are only computed columns away from them, and read for nothing
    else.

    So each split has a watermark of its own, and reading two of them side by side makes no row of either late; and what
    holds event time back can be named (`headrace.jobs.event_time`).

    Source: Flink's ``PushWatermarkIntoTableSourceScanRule``, ``SupportsWatermarkPushDown``.
    """
    readers = readers_of(roots)
    times: dict[int, SourceTime] = {}
    moved: set[int] = set()
    for node in walk(*roots):
        if isinstance(node, EventTime):
            steps, scan = _way_down(node, readers)
            if isinstance(scan, Scan) and len(readers[scan.id]) == 1 and scan.table.makes_watermarks:
                times[scan.id] = SourceTime(steps, node.column, node.delay_ms)
                moved.add(node.id)

    def visit(node: Node) -> Node:
        if isinstance(node, Scan) and node.id in times:
            return noted(replace(node, time=times[node.id]), f"makes the watermarks of {times[node.id].column}")
        return replace(node, is_of_source=True) if isinstance(node, EventTime) and node.id in moved else node

    return rewritten(roots, visit)


def _way_down(node: EventTime, readers: dict[int, list[Node]]) -> tuple[tuple[Mapping[str, Expression], ...], Node]:
    """What is computed of rows until their time is known, the first step first; and where the rows come from."""
    steps: list[Mapping[str, Expression]] = []
    wanted, below = frozenset((node.column,)), node.inputs[0]
    while isinstance(below, Select) and len(readers[below.id]) == 1:
        columns = {name: below.columns.get(name, col(name)) for name in sorted(wanted)}
        steps.insert(0, columns)
        wanted = frozenset[str]().union(*(value.columns_used() for value in columns.values()))
        below = below.inputs[0]
    return tuple(steps), below


def as_data_sets(
    new_id: Callable[[], int], source: Callable[[Scan], Node], now_ms: Callable[[], int], *, shares: bool = True
) -> tuple[Rule, ...]:
    """Say everything in nodes of data sets.

    Args:
        new_id: Numbers the nodes that are added.
        source: Makes the rows of a table.
        now_ms: The clock: processing time is one moment for all rows of a query.
        shares: Whether equal sub-plans become one.
    """
    lowering = BoundedTables(new_id, source, now_ms)

    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return rewritten(roots, lowering.of)

    return (
        _filters(new_id),
        *_sharing(shares=shares),
        Rule("only columns that are read", prune_table_columns),
        Rule("tables as data sets", apply),
    )
