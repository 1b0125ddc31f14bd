"""The rules that tune a plan of streams, behind those of `headrace.engine.optimizer.table_rules`."""

from __future__ import annotations

from collections.abc import Callable

from ...plan.plan import Node
from ..optimizer import Roots, Rule
from ..rewriting import noted, rewritten
from .choices import MiniBatches, Tuning
from .shared_joins import share_rows_of_joins
from .split_distinct import split_distinct
from .two_phases import in_two_phases

__all__ = ["as_tuned"]


def as_tuned(new_id: Callable[[], int], tuning: Tuning) -> tuple[Rule, ...]:
    """Return what is done to a plan of streams last, in this order.

    Args:
        new_id: Numbers the nodes that are added.
        tuning: What was chosen.
    """
    return (
        split_distinct(tuning.num_buckets, new_id),
        _joins_together(new_id, is_enabled=tuning.shares_rows_of_joins),
        _in_mini_batches(tuning.mini_batches),
        in_two_phases(tuning.phases, tuning.num_subtasks, new_id),
    )


def _joins_together(new_id: Callable[[], int], *, is_enabled: bool) -> Rule:
    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return share_rows_of_joins(roots, new_id, is_enabled=is_enabled)

    return Rule("rows of joins kept once", apply)


def _in_mini_batches(mini_batches: MiniBatches | None) -> Rule:
    """The rule that says in the plan where rows wait; `headrace.table.lowering` has them wait there."""

    def visit(node: Node) -> Node:
        if mini_batches is None or not mini_batches.wait_for(node):
            return node
        return noted(node, f"mini-batch: rows wait up to {mini_batches.latency_ms} ms, or until {mini_batches.size} do")

    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return rewritten(roots, visit)

    return Rule("mini-batches", apply)
