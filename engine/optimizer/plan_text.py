"""A plan for people and for tools: every node with how its inputs come to it, and what the optimiser decided.

Source: Flink's ``PlanJSONDumpGenerator``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..plan.plan import Iteration, Node, record_shape, walk

__all__ = ["explain_json", "explain_text", "explain_tree"]


def _type_of(node: Node) -> str:
    if node.schema is None:
        return "objects"
    fields = ", ".join(f"{field.name}: {field.type}" for field in node.schema)
    return f"{record_shape(node.schema)}s of {fields}"


def explain_text(roots: tuple[Node, ...]) -> str:
    """Describe a plan, parents before those who read them; step plans of iterations are indented.

    Args:
        roots: The sinks.
    """
    lines: list[str] = []
    _describe(roots, lines, "", set())
    return "\n".join(lines)


def _describe(roots: tuple[Node, ...], lines: list[str], indent: str, done: set[int]) -> None:
    for node in walk(*roots, into_iterations=False):
        if node.id in done:
            continue
        done.add(node.id)
        flags = [name for name, is_set in (("combined", node.combine), ("sorted", node.is_sorted)) if is_set]
        if node.is_shared:
            flags.append("shared")
        suffix = f" [{', '.join(flags)}]" if flags else ""
        lines.append(f"{indent}#{node.id} {node.operator}: {node.name}{suffix}")
        lines.append(f"{indent}   gives {_type_of(node)}{_partitions(node)}")
        for index, parent in enumerate(node.inputs):
            ship = repr(node.ships[index]) if index < len(node.ships) else "forward"
            lines.append(f"{indent}   from #{parent.id} by {ship}")
        lines += [f"{indent}   broadcast {name!r} from #{parent.id}" for name, parent in node.broadcasts]
        lines += [f"{indent}   * {note}" for note in node.notes]
        if isinstance(node, Iteration):
            lines.append(f"{indent}   at most {node.max_iterations} times:")
            _describe(node.step_roots, lines, f"{indent}     ", done)


def explain_tree(roots: tuple[Node, ...], note: Callable[[Node], str] | None = None) -> str:
    """Draw a plan as a tree, the roots on top; what is read twice is drawn once.

    Args:
        roots: The roots.
        note: What is said behind each node; None for nothing.
    """
    lines: list[str] = []
    drawn: set[int] = set()

    def draw(node: Node, first: str, rest: str) -> None:
        again = " (as above)" if node.id in drawn else ""
        behind = "" if note is None else f" {note(node)}"
        lines.append(f"{first}{node.name}{behind}{again}")
        if node.id in drawn:
            return
        drawn.add(node.id)
        lines.extend(f"{rest}   * {one}" for one in node.notes)
        for i, parent in enumerate(node.inputs):
            is_last = i == len(node.inputs) - 1
            draw(parent, f"{rest}+- ", f"{rest}{'   ' if is_last else '|  '}")

    for root in roots:
        draw(root, "", "")
    return "\n".join(lines)


def _partitions(node: Node) -> str:
    return "" if node.parallelism is None else f" in {node.parallelism} partitions"


def explain_json(roots: tuple[Node, ...]) -> str:
    """Describe a plan as JSON: ``{"nodes": [...]}`` with ids, operators, types, inputs, ships and notes."""
    return json.dumps({"nodes": [_as_dict(node) for node in walk(*roots, into_iterations=False)]}, indent=2)


def _as_dict(node: Node) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": node.id,
        "operator": node.operator,
        "name": node.name,
        "type": _type_of(node),
        "parallelism": node.parallelism,
        "inputs": [
            {"id": parent.id, "ship": repr(node.ships[index]) if index < len(node.ships) else "forward"}
            for index, parent in enumerate(node.inputs)
        ],
        "broadcasts": [{"name": name, "id": parent.id} for name, parent in node.broadcasts],
        "combined": node.combine,
        "sorted": node.is_sorted,
        "shared": node.is_shared,
        "decisions": list(node.notes),
    }
    if isinstance(node, Iteration):
        described["max_iterations"] = node.max_iterations
        inner = walk(*node.step_roots, into_iterations=False)
        described["step"] = [_as_dict(one) for one in inner]
    return described
