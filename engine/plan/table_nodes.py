"""What only tables have: named tables, event time, windows of rows, rows of rows, joins with conditions, Top-N.

A plan of a table program is made of these and of the nodes of data sets. Streams are made of it by
`headrace.table.lowering`. For bounded data the rules of `headrace.engine.optimizer.table_rules` say these nodes in
those of data sets, so that every executor of data sets runs them.

Source: Flink's ``FlinkLogicalTableSourceScan``, ``FlinkLogicalWatermarkAssigner``,
``FlinkLogicalTableFunctionScan``, ``FlinkLogicalExpand``, ``FlinkLogicalJoin``, ``FlinkLogicalRank``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..columns.expressions import Expression
from ..functions.aggregates.contract import Aggregate
from ..multi_joins.join_step import JoinChain, JoinStep
from ..operators.expanding import Expansion
from .group_nodes import Grouped
from .join_nodes import KeyMatch
from .nodes import GroupKey, Node, Order

__all__ = [
    "EventTime",
    "Expand",
    "IntervalJoin",
    "JoinResult",
    "LocalAggregation",
    "LookupJoin",
    "LookupWay",
    "MultiJoin",
    "ProcessingTime",
    "ProjectedJoin",
    "Scan",
    "SharedJoins",
    "SourceTime",
    "TableJoin",
    "TemporalJoin",
    "TopN",
    "WindowAggregation",
    "WindowKind",
    "WindowRows",
    "WindowSpec",
]


@dataclass(frozen=True)
class SourceTime:
    """How a source finds the event times of its rows.

    Attributes:
        steps: What is computed of a source's columns, one step of what the last one gave, until the time is known; each
            step gives only the columns that the next one reads.
        column: The one that is the time, a timestamp.
        delay_ms: How far the watermark is behind the latest.
    """

    steps: tuple[Mapping[str, Expression], ...]
    column: str
    delay_ms: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Scan(Node):
    """The rows of a named table.

    Attributes:
        table: What the catalog knows of it; it makes a source for each way to run a plan.
        condition: Rows for which it is not true need not be given; None for all.
        time: The event time that its source gives the rows; None if it gives none.
    """

    table: Any
    condition: Expression | None = None
    time: SourceTime | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EventTime(Node):
    """The same rows; a column is their event time, and the watermark is so far behind the latest.

    Attributes:
        column: A timestamp.
        delay_ms: At least 0.
        is_of_source: Whether the source below has done it.
    """

    column: str
    delay_ms: int
    is_of_source: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ProcessingTime(Node):
    """The same rows with the clock's time behind them, as they pass here.

    Attributes:
        column: What it is called.
        sets_time: Whether it is the rows' event time from here on, with watermarks by the clock.
    """

    column: str
    sets_time: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LocalAggregation(Node):
    """The same rows, or what batches of them come to for an aggregation above, which takes both.

    Attributes:
        keys: Its keys.
        aggregates: Its aggregates.
        adapts: Whether rows go on as they are where folding them does not pay.
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    adapts: bool


class WindowKind(Enum):
    """How windows lie."""

    TUMBLE = "TUMBLE"
    HOP = "HOP"
    CUMULATE = "CUMULATE"
    SESSION = "SESSION"


@dataclass(frozen=True)
class WindowSpec:
    """Windows of a time column.

    Attributes:
        kind: How they lie.
        time_column: The event time.
        size_ms: How long they are; the gap of sessions.
        step_ms: From the begin of one to that of the next (HOP), or how much longer each is (CUMULATE).
        offset_ms: What is added to the multiples of size or step at which they begin.
        partition: Columns whose values have sessions of their own.
    """

    kind: WindowKind
    time_column: str
    size_ms: int
    step_ms: int
    offset_ms: int = 0
    partition: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WindowRows(Node):
    """Each row once for every window it falls in, with ``window_start``, ``window_end``, ``window_time`` behind.

    Rows without a time fall in none. Those of a session are known when it has ended.
    """

    window: WindowSpec
    names: tuple[str, str, str]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WindowAggregation(Grouped):
    """Built-in aggregates per key and window of event time, given once when the window has ended.

    Attributes:
        window: The windows.
        aggregates: By the name of the result.
        names: What the columns of a window's start, end and time are called here; None for those that are not wanted.
    """

    window: WindowSpec
    aggregates: Mapping[str, Aggregate]
    names: tuple[str | None, str | None, str | None]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Expand(Node):
    """Each row so often as an expansion says, with its columns behind.

    Attributes:
        expansion: What is made of a row.
    """

    expansion: Expansion


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ProjectedJoin(KeyMatch):
    """Pairs of rows with equal keys, neither of them null, for which a condition is true.

    Attributes:
        how: ``inner``, ``left``, ``right``, ``full``, ``semi``, ``anti``.
        projection: ``(side 0 or 1, column, name in the result)`` of each column.
        condition: Over the names of the result; None if the keys say all.
    """

    how: str
    projection: tuple[tuple[int, str, str], ...]
    condition: Expression | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TableJoin(ProjectedJoin):
    """All pairs, kept up to date.

    Attributes:
        hinted_multi: Whether a hint says that it and others are to be one operator.
    """

    hinted_multi: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MultiJoin(Node):
    """Rows of all inputs with one key in common, one joined after the other, kept up to date.

    Attributes:
        keys: Of each input.
        steps: How all inputs but the first are joined.
        projection: ``(input, column, name in the result)`` of each column.
    """

    keys: tuple[GroupKey, ...]
    steps: tuple[JoinStep, ...]
    projection: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SharedJoins(Node):
    """Joins of several inputs by one key that read some of them in common: the rows of each input are kept once.

    Its rows are those of several tables; who reads it reads a `JoinResult` of it.

    Attributes:
        keys: Of each input.
        chains: The joins.
    """

    keys: tuple[GroupKey, ...]
    chains: tuple[JoinChain, ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class JoinResult(Node):
    """What one of several joins gives.

    Attributes:
        number: Which one.
    """

    number: int

    @property
    def joins(self) -> SharedJoins:
        """All of them."""
        (joins,) = self.inputs
        assert isinstance(joins, SharedJoins)
        return joins

    @property
    def chain(self) -> JoinChain:
        """How it is joined."""
        return self.joins.chains[self.number]

    @property
    def sides(self) -> tuple[Node, ...]:
        """What is joined, in this order."""
        return tuple(self.joins.inputs[at] for at in self.chain.inputs)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TemporalJoin(ProjectedJoin):
    """Each row of the first input with the version of its key that was valid at its time: the latest until then.

    It is ``inner`` or ``left``. The rows of the second input are versions; where the condition is not true of the one
    that was valid, there is none.

    Attributes:
        times: The columns of event time, of the first and of the second input.
    """

    times: tuple[str, str]


@dataclass(frozen=True)
class LookupWay:
    """How a table is asked, if not by a task that waits for each answer. None is what the settings say.

    Attributes:
        is_async: Whether several questions are under way at once.
        is_ordered: Whether rows keep their order.
        capacity: Questions under way at most.
        timeout_ms: How long an answer may take, with all attempts.
        retry: How often keys without a row are asked for again, and how long after each answer; None for never.
    """

    is_async: bool
    is_ordered: bool | None = None
    capacity: int | None = None
    timeout_ms: int | None = None
    retry: tuple[int, int] | None = None

    def __str__(self) -> str:
        said = []
        if self.is_async:
            said.append("asynchronously")
        if self.is_ordered is not None:
            said.append("in order" if self.is_ordered else "in any order between watermarks")
        if self.capacity is not None:
            said.append(f"{self.capacity} questions at once")
        if self.timeout_ms is not None:
            said.append(f"within {self.timeout_ms} ms")
        if self.retry is not None:
            said.append(f"up to {self.retry[0]} times more, after {self.retry[1]} ms, for keys without a row")
        return "asks " + ", ".join(said)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LookupJoin(ProjectedJoin):
    """Each row of the first input with the rows that the second one has for its key when it comes.

    It is ``inner`` or ``left``. The second input is a table outside, with selections and conditions above it; on a
    stream it is not read but asked.

    Attributes:
        way: How it is asked; None if the task waits for each answer.
    """

    way: LookupWay | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IntervalJoin(ProjectedJoin):
    """Pairs whose event times are near enough to each other; ``inner``, without a further condition.

    Attributes:
        times: The columns of event time, of the first and of the second input.
        low_ms: How far the second row's time is from the first one's at least; may be negative.
        high_ms: How far at most.
    """

    times: tuple[str, str]
    low_ms: int
    high_ms: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TopN(Grouped):
    """The first rows of each group in an order.

    Attributes:
        orders: The order.
        limit: The place of the last row that counts, from 1.
        offset: How many rows before are left out.
        number: The column that gets a row's place; None for none.
        latest_first: Whether of rows that are equal in that order the one that came last is first.
        refuses_others: Whether a group of more rows than one is an error, when all that has come is known.
        of_upserts: Whether the input tells of each key its new row, or that it has none, and not what it replaces: the
            last row of each key, which is all there is.
    """

    orders: tuple[Order, ...]
    limit: int
    offset: int = 0
    number: str | None = None
    latest_first: bool = False
    refuses_others: bool = False
    of_upserts: bool = False
