"""How the state of a plan's operators grows on a stream that never ends, and which clause would bound it.

What keeps rows of an input is as large as the table that this input is: a stream that only gains rows is a table
without bound, that of a GROUP BY has a row for each key. Keys that go with time never end. Inputs that end bound all
that is behind them.

What is kept for keys and rows, however long ago they came, may have a time to live; what goes by event time goes with
the watermark. A time to live bounds what an operator keeps, and not its table: nothing takes back what is out.

Source: Flink's documentation ("Dynamic Tables", restrictions of queries; "Table API: performance tuning"); its
``table.exec.state.ttl``, ``StateTtlHint``, ``StateMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from headrace.state.errors import ProgramError

from ..frames.frame_calls import Neighbour
from ..plan.match_nodes import MatchRecognize
from ..plan.plan import Aggregation, Distinct, FilterColumns, Node, OverGroups, Select, Sort, TableSource, Union, walk
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
from .rewriting import once_per_node, rewritten
from .stream_traits import columns_above, is_temporal_sort, is_timed, takes_back

__all__ = [
    "SETTING",
    "Growth",
    "State",
    "can_expire",
    "states_of",
    "ttl_text",
    "ttls_of",
    "with_time_to_live",
]


SETTING = "table.exec.state.ttl"

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


class Growth(IntEnum):
    """How large something becomes; of two the greater one counts."""

    BOUNDED = 0
    PER_KEY = 1
    PER_TIME = 2
    UNBOUNDED = 3

    @property
    def text(self) -> str:
        """For people."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class State:
    """What an operator keeps.

    Attributes:
        node: The operator.
        growth: How it grows.
        what: What is kept.
        remedy: What would bound it; None unless it is unbounded.
    """

    node: Node
    growth: Growth
    what: str
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.node.name}: {self.growth.text}: {self.what}"


_WINDOWS = "GROUP BY window_start, window_end of TUMBLE, HOP, CUMULATE or SESSION, whose state goes when a window ends"
_JOINS = (
    "say in ON how near the event times of both are, or that their windows are the same; or aggregate below the join; "
    "or join the versions of a table by FOR SYSTEM_TIME AS OF"
)
_WAITING = "rows until the watermark has passed them"
_FRAMES = "RANGE BETWEEN INTERVAL ... PRECEDING AND CURRENT ROW, whose rows go with time"
_OVER = "ORDER BY the event time of rows that only come, without LEAD, NTILE and frames behind the row; or a Top-N"
_TTL = f"SET '{SETTING}', or a hint STATE_TTL, after which what was not written is forgotten, and with it exactness"
_TOP = "put the Top-N on rows that only come, or above GROUP BY"


_KEEPS_NOTHING = (
    Scan, TableSource, EventTime, ProcessingTime, FilterColumns, Select, Expand, Union, LocalAggregation, WindowRows,
    JoinResult,
)  # fmt: skip


def states_of(*roots: Node) -> Iterator[State]:
    """Yield what the operators of plans keep, those that keep something, inputs first."""
    for node in walk(*roots):
        found = _state_of(node)
        if found is not None:
            yield _while_it_lives(found) if can_expire(node) else found


def _while_it_lives(state: State) -> State:
    """The same with what the time to live comes to: what is not written goes with time."""
    ttls = ttls_of(state.node)
    text = ttl_text(ttls)
    what = f"{state.what}; time to live {text}" if text else state.what
    if state.growth is not Growth.UNBOUNDED:
        return replace(state, what=what)
    if all(one or size is not Growth.UNBOUNDED for one, size in zip(ttls, map(_size, state.node.inputs), strict=True)):
        return replace(state, growth=Growth.PER_TIME, what=what, remedy=None)
    return replace(state, what=what, remedy=f"{state.remedy}; or {_TTL}")


def _state_of(node: Node) -> State | None:
    if isinstance(node, (Aggregation, Distinct)):
        keys = _keys_of(node)
        if not keys and isinstance(node, Aggregation):
            return State(node, Growth.BOUNDED, "one row of aggregates")
        size, what = (
            _size(node),
            f"{'aggregates' if isinstance(node, Aggregation) else 'a count'} for each {_list(keys)}",
        )
        if size is Growth.UNBOUNDED:
            passing = [name for name in keys if name in _passing(node.inputs[0])]
            return State(node, size, f"{what}; {_list(passing)} goes with time, and its values never end", _WINDOWS)
        return State(node, size, what)
    if isinstance(node, TopN):
        return _of_top(node)
    if isinstance(node, TemporalJoin):
        return _of_temporal_join(node)
    if isinstance(node, IntervalJoin):
        what = "rows of both inputs until the watermark has passed them"
        return State(node, _unless_bounded(node, Growth.PER_TIME), what)
    if isinstance(node, (TableJoin, MultiJoin, SharedJoins)):
        return _of_join(node)
    if isinstance(node, WindowAggregation):
        each = "".join(f"{name}, " for name in _keys_of(node))
        return State(node, _unless_bounded(node, Growth.PER_TIME), f"aggregates for each {each}window until it ends")
    if isinstance(node, OverGroups):
        return _of_over(node)
    if isinstance(node, MatchRecognize):
        return _of_match(node)
    if isinstance(node, Sort):
        return State(node, _unless_bounded(node, Growth.PER_TIME), _WAITING) if is_temporal_sort(node) else None
    if isinstance(node, LookupJoin):
        return None if node.way is None else State(node, Growth.BOUNDED, "rows that wait for the table's answer")
    if isinstance(node, _KEEPS_NOTHING):
        return None
    message = f"{node.name} cannot be run on a stream: nothing says what it keeps"
    raise ProgramError(message, hint="TableEnvironment.create(mode='batch') runs it")


def _of_top(node: TopN) -> State:
    keys, below = _keys_of(node), _size(node.inputs[0])
    each = f" for each {_list(keys)}" if keys else ""
    if (takes_back(node.inputs[0]) or node.refuses_others) and not node.of_upserts:
        remedy = _TOP if below is Growth.UNBOUNDED else None
        return State(node, below, f"all rows of its input{each}, as any of them may be taken back", remedy)
    if _size(node) is Growth.UNBOUNDED:
        return State(node, Growth.UNBOUNDED, f"the first rows{each}, which goes with time and never ends", _WINDOWS)
    return State(node, _size(node), f"the first rows{each}")


def _of_join(node: TableJoin | MultiJoin | SharedJoins) -> State:
    sizes = [_size(one) for one in node.inputs]
    largest, is_of_two = max(sizes), isinstance(node, TableJoin)
    whole = "both inputs" if is_of_two else "all inputs"
    if largest is not Growth.UNBOUNDED:
        return State(node, largest, f"all rows of {whole}")
    names = ("left", "right") if is_of_two else [f"{number}." for number in range(1, len(sizes) + 1)]
    endless = [name for name, size in zip(names, sizes, strict=True) if size is largest]
    inputs = whole if len(endless) == len(sizes) else f"the {' and the '.join(endless)} input"
    return State(node, largest, f"all rows of {inputs}, for ever", _JOINS)


def _of_temporal_join(node: TemporalJoin) -> State:
    keys, versions = node.right_key.names or (), node.inputs[1]
    what = f"{_WAITING}, and the last version of each {_list(keys)}"
    passing = [name for name in keys if name in _passing(versions)]
    if passing and _size(versions) is Growth.UNBOUNDED:
        what = f"{what}; {_list(passing)} goes with time, and its values never end"
        return State(node, Growth.UNBOUNDED, what, "join by keys that do not go with time")
    return State(node, _unless_bounded(node, Growth.PER_KEY if _size(versions) else Growth.PER_TIME), what)


def _of_match(node: MatchRecognize) -> State:
    keys = _keys_of(node)
    what = f"{_WAITING}, and the rows of matches under way{f' for each {_list(keys)}' if keys else ''}"
    if node.within_ms is None and _size(node.inputs[0]) is Growth.UNBOUNDED:
        return State(node, Growth.UNBOUNDED, what, "PATTERN (...) WITHIN INTERVAL ..., after which a match is given up")
    return State(node, _unless_bounded(node, Growth.PER_TIME), what)


def _of_over(node: OverGroups) -> State:
    """All rows if they change, else what `headrace.engine.timed.kept.kept_for` says is kept."""
    keys, rows = _keys_of(node), node.inputs[0]
    if not is_timed(node):
        each = f" for each {_list(keys)}" if keys else ""
        what = f"all rows of its input{each}: those of a partition are computed anew when one of them changes"
        return State(node, _size(rows), what, _OVER if _size(rows) is Growth.UNBOUNDED else None)
    if _is_by_distance(node):
        return State(node, _unless_bounded(node, Growth.PER_TIME), "rows until the watermark has passed their frames")
    sees_rows = (node.frame is not None and node.frame.low is not None) or any(
        isinstance(one, Neighbour) for one in node.columns.values()
    )
    past = "the last rows" if sees_rows else "what aggregates have come to"
    if not keys:
        return State(node, _unless_bounded(node, Growth.PER_TIME), f"{_WAITING}, and {past}")
    what = f"{_WAITING}, and {past} for each {_list(keys)}"
    passing = [name for name in keys if name in _passing(rows)]
    if passing and _size(rows) is Growth.UNBOUNDED:
        what = f"{what}; {_list(passing)} goes with time, and its values never end"
        return State(node, Growth.UNBOUNDED, what, _FRAMES)
    return State(node, _unless_bounded(node, Growth.PER_KEY), what)


def _unless_bounded(node: Node, growth: Growth) -> Growth:
    return growth if any(_size(one) for one in node.inputs) else Growth.BOUNDED


@once_per_node
def _size(node: Node) -> Growth:
    """How large a node's table becomes."""
    if isinstance(node, Scan):
        return Growth.BOUNDED if node.table.is_bounded else Growth.UNBOUNDED
    if isinstance(node, TableSource):
        return Growth.BOUNDED
    if isinstance(node, (Aggregation, Distinct, TopN)):
        below, keys = _size(node.inputs[0]), _keys_of(node)
        if not keys and not isinstance(node, Distinct):
            return Growth.BOUNDED
        has_end = below is not Growth.UNBOUNDED
        return below if has_end else Growth.UNBOUNDED if _passing(node.inputs[0]) & set(keys) else Growth.PER_KEY
    if isinstance(node, LookupJoin) or (isinstance(node, TableJoin) and node.how in ("semi", "anti")):
        return _size(node.inputs[0])
    if isinstance(node, JoinResult):
        given = [one for one, step in zip(node.sides[1:], node.chain.steps, strict=True) if step.gives_pairs]
        return max(_size(one) for one in (node.sides[0], *given))
    return max((_size(one) for one in node.inputs), default=Growth.UNBOUNDED)


def _keys_of(node: Node) -> tuple[str, ...]:
    if isinstance(node, Distinct):
        return () if node.schema is None else tuple(node.schema.names)
    key = getattr(node, "key", None)
    return () if key is None else key.names or ()


@once_per_node
def _passing(node: Node) -> frozenset[str]:
    """The columns whose values go with time, so that there are always new ones."""
    below = [_passing(one) for one in node.inputs]
    if isinstance(node, (EventTime, ProcessingTime)):
        return below[0] | {node.column}
    if isinstance(node, WindowRows):
        return below[0] | set(node.names)
    if isinstance(node, WindowAggregation):
        return frozenset(name for name in node.names if name is not None) | (below[0] & set(_keys_of(node)))
    if isinstance(node, Select):
        return frozenset(columns_above(node, dict.fromkeys(below[0], "")))
    if isinstance(node, (TableJoin, TemporalJoin, IntervalJoin, LookupJoin, MultiJoin)):
        return frozenset(name for side, column, name in node.projection if column in below[side])
    if isinstance(node, JoinResult):
        sides = [_passing(one) for one in node.sides]
        return frozenset(name for side, column, name in node.chain.projection if column in sides[side])
    if isinstance(node, SharedJoins):
        return frozenset()
    if isinstance(node, Aggregation):
        return below[0] & set(_keys_of(node))
    return frozenset.union(frozenset(), *below)


def _list(names: list[str] | tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


# --------------------------------------------------------------------------------------------------------- time to live


def can_expire(node: Node) -> bool:
    """Return whether what a node keeps may have a time to live."""
    if isinstance(node, OverGroups):
        return not (is_timed(node) and _is_by_distance(node))
    return isinstance(node, (Aggregation, Distinct, TopN, TableJoin, TemporalJoin))


def _is_by_distance(node: OverGroups) -> bool:
    """Whether frames begin so long before a row, so that rows go with the watermark."""
    return node.frame is not None and node.frame.is_range and node.frame.low is not None


def ttls_of(node: Node) -> tuple[int, ...]:
    """Return how long what a node keeps of each input lives that is not written, in milliseconds; 0 for ever."""
    return tuple(one or 0 for one in node.ttls_ms) or (0,) * len(node.inputs)


def with_time_to_live(
    roots: tuple[Node, ...], default_ms: int, said: Mapping[int, tuple[int, ...]] | None = None
) -> tuple[Node, ...]:
    """Return plans of streams whose nodes say how long what they keep lives.

    Args:
        roots: The plans.
        default_ms: For nodes of which no hint says it.
        said: Of nodes, by their ids, whatever else says.
    """

    def visit(node: Node) -> Node:
        if not can_expire(node):
            return replace(node, ttls_ms=()) if node.ttls_ms else node
        hinted = node.ttls_ms or (None,) * len(node.inputs)
        ttls = (said or {}).get(node.id, tuple(default_ms if one is None else one for one in hinted))
        return node if ttls == ttls_of(node) else replace(node, ttls_ms=ttls)

    return rewritten(roots, visit)


def _duration_text(duration_ms: int) -> str:
    """A duration for people, as SET takes it."""
    for unit, milliseconds in _UNITS:
        if duration_ms and duration_ms % milliseconds == 0:
            return f"{duration_ms // milliseconds} {unit}"
    return f"{duration_ms} ms"


def ttl_text(ttls: tuple[int, ...]) -> str:
    """Return times to live for people; empty if all lives for ever."""
    if not any(ttls):
        return ""
    texts = [_duration_text(one) if one else "for ever" for one in ttls]
    if len(set(texts)) == 1:
        return texts[0]
    return ", ".join(f"{side} {text}" for side, text in zip(("left", "right"), texts, strict=True))
