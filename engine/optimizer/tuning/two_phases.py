"""GROUP BY in two phases: in front of the shuffle a batch is folded to a row for each key.

The second phase keeps the same state as if it were alone, so that a query goes on from its checkpoints whatever is
chosen. Where an aggregate cannot be folded there is one phase, and the plan says why.

Source: Flink's ``TwoStageOptimizedAggregateRule``, ``table.optimizer.agg-phase-strategy``.
"""

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
from .choices import Phases

__all__ = ["in_two_phases"]


def in_two_phases(phases: Phases, num_subtasks: int, new_id: Callable[[], int]) -> Rule:
    """Return the rule that puts a first phase in front of groups.

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
