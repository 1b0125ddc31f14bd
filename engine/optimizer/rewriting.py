"""How rules of the optimiser look at a plan and change it.

Source: Flink's ``flink-optimizer``, ``PlanNode`` visitors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from ..errors import ProgramError
from ..plan.plan import BulkIteration, DeltaIteration, IterationInput, Node, Select, walk
from ..plan.table_nodes import Expand

__all__ = ["name_above", "nodes_below", "noted", "once_per_node", "readers_of", "rewritten"]

N = TypeVar("N", bound=Node)
T = TypeVar("T")


def readers_of(roots: tuple[Node, ...]) -> dict[int, list[Node]]:
    """By the id of a node, who reads its result; an iteration reads the roots of its step plan."""
    readers: dict[int, list[Node]] = {}
    for node in walk(*roots):
        for parent in (*node.parents, *node.step_roots):
            readers.setdefault(parent.id, []).append(node)
    return readers


def nodes_below(node: Node, kinds: tuple[type[Node], ...] = (Select,)) -> tuple[Node, list[Node]]:
    """Return the first node below that is none of some kinds, and those above it, the highest first."""
    path: list[Node] = []
    while isinstance(node, kinds):
        path.append(node)
        node = node.inputs[0]
    return node, path


def name_above(name: str, path: list[Node]) -> str | None:
    """Return what a column is called above some projections; None if it does not come through as it is."""
    for node in reversed(path):
        if isinstance(node, Expand):
            continue
        assert isinstance(node, Select)
        found = [new for new, value in node.columns.items() if value.structure == ("col", name)]
        if not found:
            if node.keep and name not in node.columns:
                continue
            return None
        name = found[0]
    return name


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


def once_per_node(trait: Callable[[Node], T]) -> Callable[[Node], T]:
    """Let what a node is, by what its inputs are, be found once for each node.

    A plan is no tree: if every level asked below, a table joined with itself thirty times over would be asked a
    thousand million times. Nodes never change, so what was found holds as long as they live. The lowest are asked
    first, so that a long chain of them does not exhaust Python's stack.

    Args:
        trait: Asks the same of some of the node's inputs, by its own name; it may raise `ProgramError`, which is raised
            again only for who asks for it.
    """
    found: WeakKeyDictionary[Node, T] = WeakKeyDictionary()

    @functools.wraps(trait)
    def known(node: Node) -> T:
        if node not in found:
            for below in _not_yet(node, found):
                try:
                    found[below] = trait(below)
                except ProgramError:
                    continue  # maybe nobody needs to know
        return found[node] if node in found else trait(node)

    return known


def _not_yet(node: Node, found: WeakKeyDictionary[Node, T]) -> list[Node]:
    """The node and what is below it, inputs first, without what is known and what lies behind that."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(node, False)]
    while stack:
        one, is_done = stack.pop()
        if is_done:
            order.append(one)
        elif id(one) not in seen and one not in found:
            seen.add(id(one))
            stack.append((one, True))
            stack += [(below, False) for below in reversed(one.inputs)]
    return order
