"""What is known of the rows of a plan's node on a stream: whether they change, what their event time is, their windows.

Source: Flink's ``FlinkChangelogModeInferenceProgram``, ``FlinkRelMdWindowProperties``; its types of time attributes.
"""

from __future__ import annotations

from typing import Any

from ..columns.expressions import Expression
from ..errors import ProgramError
from ..frames.frame_calls import Frame, Neighbour, Share
from ..functions.aggregates.contract import Aggregate
from ..plan.match_nodes import MatchRecognize
from ..plan.plan import Aggregation, Distinct, FilterColumns, Node, OverGroups, Select, Sort, TableSource, Union
from ..plan.table_nodes import (
    EventTime,
    Expand,
    IntervalJoin,
    JoinResult,
    LocalAggregation,
    LookupJoin,
    MultiJoin,
    ProcessingTime,
    Scan,
    SharedJoins,
    TableJoin,
    TemporalJoin,
    TopN,
    WindowAggregation,
    WindowRows,
)
from .rewriting import once_per_node

__all__ = [
    "columns_above",
    "drops_late_rows",
    "event_times",
    "has_event_time",
    "is_folded",
    "is_in_order",
    "is_temporal_sort",
    "is_timed",
    "read_as_streams",
    "renamed_below",
    "takes_back",
    "window_columns",
]

_PASSED_ON = (FilterColumns, Expand, LocalAggregation, Union, Sort, OverGroups)
_ONLY_ADDS = (
    *_PASSED_ON, Distinct, EventTime, IntervalJoin, MatchRecognize, ProcessingTime, Select, TableSource, TemporalJoin,
    WindowAggregation, WindowRows,
)  # fmt: skip
"""What takes rows back only where rows are taken back below it."""


def read_as_streams(node: Node) -> tuple[Node, ...]:
    """Return the inputs of a node that are read as streams; the table of a lookup is asked."""
    return node.inputs[:1] if isinstance(node, LookupJoin) else node.inputs


@once_per_node
def takes_back(node: Node) -> bool:
    """Return whether rows of a node may be updated or deleted later.

    Raises:
        ProgramError: If that is not known of nodes of its type, as they cannot be run on a stream.
    """
    if isinstance(node, Scan):
        return bool(node.table.gives_changes)
    if isinstance(node, (Aggregation, TopN)):
        return not (isinstance(node, TopN) and _keeps_first_to_come(node))
    if isinstance(node, TableJoin):
        is_inner = node.how in ("inner", "semi")
        return not is_inner or any(takes_back(one) for one in node.inputs)
    if isinstance(node, MultiJoin):
        return any(step.how == "left" for step in node.steps) or any(takes_back(one) for one in node.inputs)
    if isinstance(node, JoinResult):
        return node.chain.takes_back or any(takes_back(one) for one in node.sides)
    if isinstance(node, SharedJoins):
        return any(chain.takes_back for chain in node.chains) or any(takes_back(one) for one in node.inputs)
    if isinstance(node, OverGroups):
        return not is_timed(node)
    if isinstance(node, LookupJoin):
        return takes_back(node.inputs[0])
    if not isinstance(node, _ONLY_ADDS):
        message = f"{node.name} cannot be run on a stream: nothing says whether its rows are taken back"
        raise ProgramError(message, hint="TableEnvironment.create(mode='batch') runs it")
    return any(takes_back(one) for one in node.inputs)


def _keeps_first_to_come(node: TopN) -> bool:
    """Whether its rows never change: the first to arrive of rows that only come."""
    return not node.orders and not node.latest_first and not takes_back(node.inputs[0])


def drops_late_rows(node: Node) -> bool:
    """Return whether rows that the watermark has passed are not counted."""
    if isinstance(node, OverGroups):
        return is_timed(node)
    if isinstance(node, Sort):
        return is_temporal_sort(node)
    return isinstance(node, (WindowAggregation, IntervalJoin, TemporalJoin))


def is_temporal_sort(node: Sort) -> bool:
    """Return whether rows can be given in order while the stream goes on: those that only come, by their event time
    first.
    """
    rows, first = node.inputs[0], node.orders[0]
    is_by_time = first.ascending and first.column in event_times(rows) and has_event_time(rows)
    return is_by_time and not takes_back(rows)


def is_in_order(node: Node) -> bool:
    """Return whether rows come in the order of a sort by event time."""
    while isinstance(node, (Select, FilterColumns, Expand)):
        node = node.inputs[0]
    return isinstance(node, Sort) and is_temporal_sort(node)


def is_timed(node: OverGroups) -> bool:
    """Return whether each row of OVER can be given once, when the watermark has passed it.

    That takes rows that only come, in the order of their event time, whose columns ask for no row behind them.
    """
    rows = node.inputs[0]
    if len(node.orders) != 1 or not node.orders[0].ascending or node.orders[0].column not in event_times(rows):
        return False
    if any(map(_asks_for_rows_behind, node.columns.values())) or takes_back(rows):
        return False
    aggregates = [one for one in node.columns.values() if isinstance(one, Aggregate)]
    return not aggregates or (_ends_with_its_row(node.frame) and all(map(is_folded, aggregates)))


def _asks_for_rows_behind(spec: Any) -> bool:
    """Whether a place or neighbour goes by rows behind its own."""
    return isinstance(spec, Share) or (isinstance(spec, Neighbour) and spec.offset > 0)


def _ends_with_its_row(frame: Frame | None) -> bool:
    """Whether a frame has no row behind its own, and where its end is before it, a beginning."""
    if frame is None:
        return True
    return frame.high == 0 or (frame.high is not None and frame.high < 0 and frame.low is not None)


def is_folded(spec: Aggregate) -> bool:
    """Return whether an aggregate over frames is folded on arrays, as it is by event time."""
    from ..frames.folds import folds

    return folds(spec)


@once_per_node
def has_event_time(node: Node) -> bool:
    """Return whether rows come with the event time of their table or window."""
    if isinstance(node, OverGroups) and not is_timed(node):
        return False
    if isinstance(node, (EventTime, WindowRows, WindowAggregation)):
        return True
    if isinstance(node, ProcessingTime):
        return node.sets_time or has_event_time(node.inputs[0])
    if isinstance(node, (TemporalJoin, LookupJoin)):
        return has_event_time(node.inputs[0])
    if isinstance(node, (IntervalJoin, MatchRecognize)):
        return bool(event_times(node))
    return isinstance(node, (Select, *_PASSED_ON)) and all(map(has_event_time, node.inputs))


@once_per_node
def event_times(node: Node) -> frozenset[str]:
    """Return the columns that are the event time of a node's rows."""
    if isinstance(node, EventTime):
        return frozenset((node.column,))
    if isinstance(node, ProcessingTime):
        return frozenset((node.column,)) if node.sets_time else event_times(node.inputs[0])
    if isinstance(node, (WindowRows, WindowAggregation)):
        return frozenset(name for name in node.names[2:] if name is not None)
    if isinstance(node, Select):
        return frozenset(columns_above(node, dict.fromkeys(event_times(node.inputs[0]), "")))
    if isinstance(node, (TemporalJoin, IntervalJoin, LookupJoin)):
        if node.how in ("right", "full"):
            return frozenset()  # rows without a left row have no time of one
        below = event_times(node.inputs[0])
        below = below if isinstance(node, LookupJoin) else below & {node.times[0]}
        return frozenset(name for side, column, name in node.projection if side == 0 and column in below)
    if isinstance(node, MatchRecognize):
        times = {("col", name) for name, look in node.looks.items() if look.how == "rowtime"}
        return frozenset(name for name, value in node.measures.items() if value.structure in times)
    if isinstance(node, OverGroups) and not is_timed(node):
        return frozenset()
    if isinstance(node, _PASSED_ON):
        return frozenset.intersection(*map(event_times, node.inputs))
    return frozenset()


@once_per_node
def window_columns(node: Node) -> dict[str, str]:
    """Return the columns of a node that are borders of the windows its rows are in: ``start``, ``end``, ``time``."""
    if isinstance(node, (WindowRows, WindowAggregation)):
        return {
            name: border for name, border in zip(node.names, ("start", "end", "time"), strict=True) if name is not None
        }
    if isinstance(node, Select):
        return columns_above(node, window_columns(node.inputs[0]))
    if isinstance(node, (FilterColumns, Sort, OverGroups, ProcessingTime)):
        return window_columns(node.inputs[0])
    if isinstance(node, (IntervalJoin, LookupJoin)) and node.how in ("inner", "left", "semi", "anti"):
        below = window_columns(node.inputs[0])
        return {name: below[column] for side, column, name in node.projection if side == 0 and column in below}
    return {}


def columns_above(node: Select, below: dict[str, str]) -> dict[str, str]:
    """Return what columns are called above a projection, as far as they come through as they are."""
    kept = {name: what for name, what in below.items() if node.keep and name not in node.columns}
    chosen = ((new, _column_of(value)) for new, value in node.columns.items())
    return kept | {new: below[column] for new, column in chosen if column is not None and column in below}


def renamed_below(node: Select, name: str) -> str | None:
    """Return what a column of a projection is called below it; None if it is computed."""
    if name not in node.columns:
        return name if node.keep else None
    return _column_of(node.columns[name])


def _column_of(value: Expression) -> str | None:
    return str(value.structure[1]) if value.structure[0] == "col" else None
