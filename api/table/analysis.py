"""EXPLAIN ANALYZE: what the operators of a job have done, and why windows that are open do not fire yet.

Source: PostgreSQL's ``EXPLAIN ANALYZE``; the numbers are those of Flink's web dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.engine.optimizer.plan_text import explain_tree
from headrace.engine.plan.plan import Node
from headrace.engine.protocol.views import JobView, OperatorView, VertexView

from ..jobs.event_time import explain_event_time
from ..jobs.progress import format_watermark, summary_line

__all__ = ["analyzed_batches", "analyzed_job"]

_HEADS = ("operator", "subtasks", "rows in", "rows out", "late", "processor", "busy", "backpr.", "watermark")
_MOST_OF_A_NAME = 60
_LATE = "num_late_records_dropped"


def analyzed_job(view: JobView) -> list[str]:
    """Return what the operators of a job of streams have done, as lines for people.

    Rows are those of the current attempts. ``processor`` is what the operator itself has used in all subtasks;
    ``busy`` and ``backpr.`` are the task's shares of time at the last report, and ``watermark`` the lowest of it.
    """
    has_ended = view.state.is_terminal
    rows = [_HEADS, *(row for vertex in view.vertices for row in _rows_of(vertex, has_ended=has_ended))]
    lines = [summary_line(view), "", *_aligned(rows)]
    if not has_ended:
        lines += ["", *explain_event_time(view).splitlines()]
    return lines


def analyzed_batches(roots: tuple[Node, ...], told: Mapping[int, Mapping[str, Any]], seconds: float) -> list[str]:
    """Return how bounded data went through a plan, as lines for people.

    Args:
        roots: The plan as it was run.
        told: By node, its ``rows``, and the ``seconds`` of it and of what ran in one with it.
        seconds: Of the whole.
    """

    def note(node: Node) -> str:
        if node.id not in told:
            return "(in one with the next)"
        return f"({told[node.id]['rows']:,} rows, {told[node.id]['seconds'] * 1_000:,.1f} ms)"

    return [f"{seconds:.3f} s", "", *explain_tree(roots, note).splitlines()]


def _rows_of(vertex: VertexView, *, has_ended: bool) -> Iterator[tuple[str, ...]]:
    for number, operator in enumerate(vertex.operators):
        is_first = number == 0
        name = operator.name if len(operator.name) <= _MOST_OF_A_NAME else f"{operator.name[: _MOST_OF_A_NAME - 3]}..."
        shares = ("", "")
        if is_first and not has_ended:
            shares = (f"{vertex.busy:.0%}", f"{vertex.backpressured:.0%}")
        watermark = format_watermark(vertex.watermark_ms) if is_first else ""
        yield (
            name if is_first else f"  {name}",
            str(vertex.parallelism) if is_first else "",
            *(_count(operator, counter) for counter in ("num_records_in", "num_records_out", _LATE)),
            _used(operator),
            *shares,
            watermark,
        )


def _count(operator: OperatorView, counter: str) -> str:
    number = int(operator.metrics.get(counter, 0))
    return "" if counter == _LATE and not number else f"{number:,}"


def _used(operator: OperatorView) -> str:
    used_us = operator.metrics.get("processor.used_us")
    return "" if used_us is None else f"{used_us / 1_000:,.0f} ms"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Columns side by side: the first and the last to the left, numbers to the right."""
    used = [column for column in range(len(_HEADS)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    ends = (0, len(_HEADS) - 1)
    for row in rows:
        cells = [row[i].ljust(widths[i]) if i in ends else row[i].rjust(widths[i]) for i in used]
        yield "  ".join(cells).rstrip()
