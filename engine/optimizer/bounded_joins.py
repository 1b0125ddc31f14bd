"""Joins on streams whose rows can be forgotten: those of rows near in event time, and those of one window.

A join is by interval if its condition says how far the event times of its two rows can be from each other, both ways.
The condition itself stays; the bounds say how long rows are kept. A join by the borders of windows is one by interval,
too: both rows are in windows that end at one time.

Source: Flink's ``IntervalJoinUtil``, ``WindowJoinUtil``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..columns.expressions import Call, Expression
from ..plan.plan import FilterColumns, Node
from ..plan.table_nodes import IntervalJoin, TableJoin
from .join_filters import conditions_of
from .rewriting import rewritten
from .stream_traits import event_times, takes_back, window_columns

__all__ = ["find_bounded_joins"]

Roots = tuple[Node, ...]
_Bounds = tuple[tuple[str, str], int, int]
"""The columns of event time of both sides, and how far the second one is from the first at least and at most."""


def find_bounded_joins(roots: Roots, _parallelism: int | None) -> Roots:
    """Make interval joins of joins whose rows can be forgotten."""
    return rewritten(roots, _bounded)


def _bounded(node: Node) -> Node:
    if isinstance(node, TableJoin):
        return _of(node, node.condition) or node
    if isinstance(node, FilterColumns) and isinstance(node.inputs[0], TableJoin) and node.inputs[0].how == "inner":
        join = _of(node.inputs[0], node.condition)
        return node if join is None else replace(node, inputs=(join,))
    return node


def _of(node: TableJoin, condition: Expression | None) -> Node | None:
    if any(takes_back(one) for one in node.inputs):
        return None
    bounds = _of_windows(node) or (None if condition is None else _of_times(node, condition))
    if bounds is None:
        return None
    times, low_ms, high_ms = bounds
    what = "window" if low_ms == high_ms == 0 and times[0] in window_columns(node.inputs[0]) else "interval"
    return IntervalJoin(
        id=node.id, name=f"{node.how} {what} join", inputs=node.inputs, schema=node.schema, ships=node.ships,
        left_key=node.left_key, right_key=node.right_key, how=node.how, projection=node.projection,
        condition=node.condition, times=times, low_ms=low_ms, high_ms=high_ms,
    )  # fmt: skip


def _of_windows(node: TableJoin) -> _Bounds | None:
    """The ends of windows, if start and end of both sides are among the keys."""
    borders = [window_columns(one) for one in node.inputs]
    pairs = zip(node.left_key.names or (), node.right_key.names or (), strict=True)
    equal = {
        borders[0][left]: (left, right)
        for left, right in pairs
        if left in borders[0] and borders[0][left] == borders[1].get(right)
    }
    if "start" not in equal or "end" not in equal:
        return None
    # Of rows whose event time is that of their window it stays so.
    times = [[name for name, what in one.items() if what == "time"] for one in borders]
    if times[0] and times[1]:
        return (times[0][0], times[1][0]), 0, 0
    return equal["end"], 0, 0


def _of_times(node: TableJoin, condition: Expression) -> _Bounds | None:
    sides: dict[str, tuple[int, str]] = {}
    own = [event_times(one) for one in node.inputs]
    for side, column, name in node.projection:
        if column in own[side]:
            sides[name] = (side, column)
    lows: dict[tuple[str, str], int] = {}
    highs: dict[tuple[str, str], int] = {}
    for part in conditions_of(condition):
        for times, least in _least_distances(part, sides):
            # That the first is not further behind than so much is a bound for the second from above.
            if times[0][0] == 0:
                pair = (times[0][1], times[1][1])
                lows[pair] = max(lows.get(pair, least), least)
            else:
                pair = (times[1][1], times[0][1])
                highs[pair] = min(highs.get(pair, -least), -least)
    for pair in lows.keys() & highs.keys():
        if lows[pair] <= highs[pair]:
            return pair, lows[pair], highs[pair]
    return None


_Side = tuple[int, str]


def _least_distances(part: Expression, sides: dict[str, _Side]) -> Iterator[tuple[tuple[_Side, _Side], int]]:
    """Pairs of times of which the second is so many milliseconds behind the first at least."""
    if not isinstance(part, Call) or len(part.arguments) != 2:
        return
    ends = {"less_equal": [(0, 1)], "less": [(0, 1)], "greater_equal": [(1, 0)], "greater": [(1, 0)],
            "equal": [(0, 1), (1, 0)]}.get(part.function, [])  # fmt: skip
    moved = [_moved(one) for one in part.arguments]
    for early, late in ends:
        one, other = moved[early], moved[late]
        if one is None or other is None or one[0] not in sides or other[0] not in sides:
            continue
        first, second = sides[one[0]], sides[other[0]]
        if first[0] != second[0]:
            # one + a <= other + b: the other is at least a - b behind, but for what casts have cut.
            yield (first, second), one[1] - other[1] - one[2] - other[2]


def _moved(value: Expression) -> tuple[str, int, int] | None:
    """A column, how many milliseconds are added to it, and how many casts may have cut; None for anything else."""
    name = str(value.structure[0]).rpartition(".")[2]
    if name == "col":
        return str(value.structure[1]), 0, 0
    children = value.children
    if name == "cast" and children:
        found, cut = _moved(children[0]), _cut_by(value)
        return None if found is None or cut is None else (found[0], found[1], found[2] + cut)
    if name in ("add", "subtract") and len(children) >= 2:
        found, span = _moved(children[0]), _milliseconds(children[1])
        if found is not None and span is not None:
            return found[0], found[1] + (span if name == "add" else -span), found[2]
    return None


def _cut_by(cast: Expression) -> int | None:
    """How many milliseconds of a time a cast may leave out; None if it makes no time of it: a day, a text."""
    kind = dict(cast.options)["to"] if isinstance(cast, Call) else None
    if kind is None or not pa.types.is_timestamp(kind):
        return None
    return 1_000 if kind.unit == "s" else 1


def _milliseconds(value: Expression) -> int | None:
    scalar: Any = getattr(value, "scalar", None)
    if scalar is None or not pa.types.is_duration(scalar.type):
        return None
    return int(scalar.cast(pa.duration("ms")).value)
