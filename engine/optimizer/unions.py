"""Unions of unions are one: SQL writes ``a UNION ALL b UNION ALL c`` as two, and a hundred of them would be a hundred
operators, with rows that go through all of those above their own.

Source: Calcite's ``UnionMergeRule``.
"""

from __future__ import annotations

from dataclasses import replace

from ..plan.plan import FORWARD, Node, Select, Union
from .rewriting import readers_of, rewritten

__all__ = ["merge_unions"]

Roots = tuple[Node, ...]


def merge_unions(roots: Roots, _parallelism: int | None) -> Roots:
    """Make one union of those that only another union reads, with the same columns."""
    readers = readers_of(roots)
    asked_for = {root.id for root in roots}

    def merged(node: Node) -> Node:
        if not isinstance(node, Union):
            return node
        inputs: list[Node] = []
        for one in node.inputs:
            below = one
            while _is_as_below(below) and is_read_once(below):
                below = below.inputs[0]
            is_merged = isinstance(below, Union) and is_read_once(below) and below.schema == node.schema
            inputs += below.inputs if is_merged else (one,)
        if len(inputs) == len(node.inputs):
            return node
        return replace(node, inputs=tuple(inputs), ships=(FORWARD,) * len(inputs))

    def is_read_once(node: Node) -> bool:
        return len(readers[node.id]) == 1 and node.id not in asked_for

    return rewritten(roots, merged)


def _is_as_below(node: Node) -> bool:
    """Whether a projection gives the columns of its input as they are."""
    if not isinstance(node, Select) or node.schema is None or node.inputs[0].schema is None:
        return False
    is_same = node.schema.equals(node.inputs[0].schema)
    return is_same and all(value.structure == ("col", name) for name, value in node.columns.items())
