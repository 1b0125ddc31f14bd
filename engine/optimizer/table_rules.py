"""Which rules plans of table programs go through, and in which order: for streams, and for bounded data.

What only tables have (`headrace.engine.plan.table_nodes`) is said for bounded data in nodes of data sets, so that every
executor of those runs it (`headrace.engine.optimizer.bounded_tables`). For streams it is the other way round: what SQL
says by places becomes a Top-N, and groups by the borders of windows become aggregation in windows.

Source: Flink's ``FlinkStreamProgram`` and ``FlinkBatchProgram``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..plan.plan import Node
from ..plan.table_nodes import Scan
from .bounded_joins import find_bounded_joins
from .bounded_tables import BoundedTables
from .chains import find_multi_joins, merge_unions
from .common_expressions import compute_once
from .join_filters import conditions_into_joins, filters_below_joins
from .optimizer import Roots, Rule, push_filters
from .rewriting import rewritten
from .shared_plans import share_sub_plans
from .source_times import watermarks_into_sources
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
        Rule("watermarks to sources", watermarks_into_sources),
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
