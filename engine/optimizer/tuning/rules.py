"""The rules that tune a plan of streams, behind those of `headrace.engine.optimizer.table_rules`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...changelog.local_aggregate import why_in_one_phase
from ...plan.plan import Aggregation, Distinct, Node
from ...plan.table_nodes import LocalAggregation
from ..growth import ttls_of
from ..optimizer import Roots, Rule
from ..rewriting import noted, rewritten
from ..stream_traits import takes_back
from .choices import MiniBatches, Phases, Tuning
from .shared_joins import share_rows_of_joins
from .split_distinct import split_distinct

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
        _in_two_phases(tuning.phases, tuning.num_subtasks, new_id),
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


def _in_two_phases(phases: Phases, num_subtasks: int, new_id: Callable[[], int]) -> Rule:
    """Return the rule that puts a first phase in front of groups: there a batch is folded to a row a key.

    The second phase keeps the same state as if it were alone, so that a query goes on from its checkpoints whatever is
    chosen. Where an aggregate cannot be folded there is one phase, and the plan says why.

    Source: Flink's ``TwoStageOptimizedAggregateRule``, ``table.optimizer.agg-phase-strategy``.

    Args:
        phases: What was asked for.
        num_subtasks: How many each operator has.
        new_id: Numbers the nodes that are added.
    """

    def visit(node: Node) -> Node:
        if not isinstance(node, (Aggregation, Distinct)) or phases is Phases.ONE_PHASE:
            return node
        rows, aggregates = node.inputs[0], node.aggregates if isinstance(node, Aggregation) else {}
        assert rows.schema is not None
        keys = tuple(rows.schema.names) if isinstance(node, Distinct) else () if node.key is None else node.key.names
        why = why_in_one_phase(keys or (), aggregates, rows.schema, takes_back=takes_back(rows))
        if why is None and takes_back(rows) and any(ttls_of(node)):
            why = "with a time to live, what takes back a record that has expired is looked at by itself"
        if why is not None:
            return noted(node, f"in one phase: {why}")
        if phases is Phases.AUTO and num_subtasks == 1:
            return node
        name = f"LocalGroupAggregate by {', '.join(keys)}" if keys else "LocalGroupAggregate"
        local = LocalAggregation(
            id=new_id(), name=name, inputs=(rows,), schema=rows.schema, keys=keys or (), aggregates=aggregates,
            adapts=phases is Phases.AUTO,
        )  # fmt: skip
        return noted(replace(node, inputs=(local,)), "GlobalGroupAggregate: merges what is folded below")

    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return rewritten(roots, visit)

    return Rule("groups in two phases", apply)
