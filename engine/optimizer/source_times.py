"""Event time where rows are read: the watermark of a table goes into its source.

So each split has a watermark of its own, and reading two of them side by side makes no row of either late; and what
holds event time back can be named (`headrace.jobs.event_time`).

Source: Flink's ``PushWatermarkIntoTableSourceScanRule``, ``SupportsWatermarkPushDown``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..columns.expressions import Expression, col
from ..plan.plan import Node, Select, walk
from ..plan.table_nodes import EventTime, Scan, SourceTime
from .rewriting import noted, readers_of, rewritten

__all__ = ["watermarks_into_sources"]


def watermarks_into_sources(roots: tuple[Node, ...], _parallelism: int | None) -> tuple[Node, ...]:
    """Let sources make the watermarks of tables that are only computed columns away from them, and read for nothing
    else.
    """
    readers = readers_of(roots)
    times: dict[int, SourceTime] = {}
    moved: set[int] = set()
    for node in walk(*roots):
        if isinstance(node, EventTime):
            steps, scan = _way_down(node, readers)
            if isinstance(scan, Scan) and len(readers[scan.id]) == 1 and scan.table.makes_watermarks:
                times[scan.id] = SourceTime(steps, node.column, node.delay_ms)
                moved.add(node.id)

    def visit(node: Node) -> Node:
        if isinstance(node, Scan) and node.id in times:
            return noted(replace(node, time=times[node.id]), f"makes the watermarks of {times[node.id].column}")
        return replace(node, is_of_source=True) if isinstance(node, EventTime) and node.id in moved else node

    return rewritten(roots, visit)


def _way_down(node: EventTime, readers: dict[int, list[Node]]) -> tuple[tuple[Mapping[str, Expression], ...], Node]:
    """What is computed of rows until their time is known, the first step first; and where the rows come from."""
    steps: list[Mapping[str, Expression]] = []
    wanted, below = frozenset((node.column,)), node.inputs[0]
    while isinstance(below, Select) and len(readers[below.id]) == 1:
        columns = {name: below.columns.get(name, col(name)) for name in sorted(wanted)}
        steps.insert(0, columns)
        wanted = frozenset[str]().union(*(value.columns_used() for value in columns.values()))
        below = below.inputs[0]
    return tuple(steps), below
