"""Projections between two nodes of a plan: what is below them, and what columns are called above."""

from __future__ import annotations

from ..plan.plan import Node, Select
from ..plan.table_nodes import Expand

__all__ = ["name_above", "nodes_below"]


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
