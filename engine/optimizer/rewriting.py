"""How rules of the optimiser look at a plan and change it.

Source: Flink's ``flink-optimizer``, ``PlanNode`` visitors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..plan.plan import BulkIteration, DeltaIteration, IterationInput, Node, walk

__all__ = ["noted", "readers_of", "rewritten"]

N = TypeVar("N", bound=Node)


def readers_of(roots: tuple[Node, ...]) -> dict[int, list[Node]]:
    """By the id of a node, who reads its result; an iteration reads the roots of its step plan."""
    readers: dict[int, list[Node]] = {}
    for node in walk(*roots):
        for parent in (*node.parents, *node.step_roots):
            readers.setdefault(parent.id, []).append(node)
    return readers


def noted(node: N, note: str) -> N:
    """Return the node with a note on what was decided."""
    return replace(node, notes=(*node.notes, note))


def rewritten(roots: tuple[Node, ...], visit: Callable[[Node], Node]) -> tuple[Node, ...]:
    """Return the plan with ``visit`` applied to every node, parents first; each node is given with its new parents.

    Placeholders of iterations are never changed.
    """
    made: dict[int, Node] = {}
    for node in walk(*roots):
        if isinstance(node, IterationInput):
            made[id(node)] = node
            continue
        current = node.with_parents(tuple(made[id(parent)] for parent in node.parents))
        if isinstance(current, BulkIteration):
            termination = None if current.termination is None else made[id(current.termination)]
            result = made[id(current.result)]
            if result is not current.result or termination is not current.termination:
                current = replace(current, result=result, termination=termination)
        elif isinstance(current, DeltaIteration):
            delta, workset = made[id(current.delta)], made[id(current.next_workset)]
            if delta is not current.delta or workset is not current.next_workset:
                current = replace(current, delta=delta, next_workset=workset)
        made[id(node)] = visit(current)
    return tuple(made[id(root)] for root in roots)
