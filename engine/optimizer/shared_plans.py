"""Sub-plans that are equal are one: what is written twice in a query, or in the INSERTs of one job, is run once.

Equal is what is of one kind, with equal content, over the same inputs. Content is compared part by part, functions of
Python and tables by being the same object: two functions of one name, or of one text, are never taken for one.

Source: Flink's ``table.optimizer.reuse-sub-plan-enabled``, ``SubplanReuseUtil``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

import pyarrow as pa

from ..plan.plan import Node, walk
from ..plan.table_nodes import Scan
from .rewriting import noted, rewritten

__all__ = ["share_sub_plans"]

_OF_NODES = frozenset(("id", "name", "inputs", "broadcasts", "notes"))
_PACKAGE = __name__.partition(".")[0]


def share_sub_plans(roots: tuple[Node, ...], _parallelism: int | None) -> tuple[Node, ...]:
    """Let all who read equal sub-plans read one of them."""
    first: dict[Hashable, Node] = {}
    times: dict[int, int] = {}

    def visit(node: Node) -> Node:
        if node.broadcasts or node.placeholders:
            return node
        one = first.setdefault((type(node), content_of(node), tuple(map(id, node.inputs))), node)
        times[id(one)] = times.get(id(one), 0) + 1
        return one

    made = rewritten(roots, visit)
    shared = {id(node) for node in first.values() if times[id(node)] > 1}
    tops = _tops_of(made, shared)
    return rewritten(made, lambda node: noted(node, "is there once for all who read it") if node.id in tops else node)


def _tops_of(roots: tuple[Node, ...], shared: set[int]) -> set[int]:
    """The ids of shared nodes that somebody reads who is not shared: of those below them nothing need be said."""
    read = [parent for node in walk(*roots) if id(node) not in shared for parent in node.parents]
    return {node.id for node in (*roots, *read) if id(node) in shared}


def content_of(value: Any) -> Hashable:
    """Return what a part of a plan says: equal for what is equal, and else not."""
    if isinstance(value, Node):
        fields = [one.name for one in dataclasses.fields(value) if one.name not in _OF_NODES]
        return tuple((name, _content_of_field(value, name)) for name in fields)
    if value is None or isinstance(value, (Enum, pa.DataType)):
        return value
    if isinstance(value, (bool, int, float, str, bytes)):
        return (type(value), repr(value))
    if isinstance(value, pa.Schema):
        return (*((one.name, one.type, one.nullable) for one in value), repr(value.metadata))
    if isinstance(value, pa.Scalar):
        return (value.type, repr(value.as_py()))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(content_of, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(map(content_of, value))
    if isinstance(value, Mapping):
        return tuple((content_of(name), content_of(one)) for name, one in value.items())
    if isinstance(value, functools.partial):
        return (content_of(value.func), content_of(value.args), content_of(value.keywords))
    return _content_of_object(value)


def _content_of_field(node: Node, name: str) -> Hashable:
    is_table = isinstance(node, Scan) and name == "table"
    return id(getattr(node, name)) if is_table else content_of(getattr(node, name))


def _content_of_object(value: Any) -> Hashable:
    """Objects of ours by what they hold, all others by being the same."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != _PACKAGE:
        return id(value)
    slots = [name for one in kind.__mro__ for name in _names(getattr(one, "__slots__", ()))]
    names = sorted({*getattr(value, "__dict__", ()), *slots})
    return (kind, *((name, content_of(getattr(value, name))) for name in names if hasattr(value, name)))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
