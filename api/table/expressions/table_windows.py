"""Windows of the Table API: those that groups go by, and those that OVER looks at.

``Tumble.over(lit(10).minutes).on(col("at")).alias("w")`` is a window of `Table.window`;
``Over.partition_by(col("a")).order_by(col("at")).alias("w")`` is one of `Table.over_window`. What they mean is said in
SQL.

Source: PyFlink's ``pyflink.table.window``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.engine.errors import ProgramError

from ...sql.parsing.names import COUNT_WINDOW
from .expression import Expression, col
from .rendering import Rendering, WindowPart, quoted

__all__ = [
    "CURRENT_RANGE",
    "CURRENT_ROW",
    "UNBOUNDED_RANGE",
    "UNBOUNDED_ROW",
    "GroupWindow",
    "Over",
    "OverWindow",
    "Session",
    "Slide",
    "Tumble",
    "row_interval",
]


@dataclass(frozen=True)
class GroupWindow:
    """Windows that rows are grouped by; made by `Tumble`, `Slide` and `Session`.

    Attributes:
        function: What they are in SQL.
        lengths: Its intervals, in SQL's order; numbers of rows of windows that count them.
        time: The event time of the rows.
        name: What the window is called in the query.
    """

    function: str
    lengths: tuple[Expression | Bound, ...]
    time: Expression | None = None
    name: str | None = None

    def on(self, time: Expression) -> GroupWindow:
        """Say which column is the event time."""
        return replace(self, time=time)

    def alias(self, name: str) -> GroupWindow:
        """Give the window a name, for `Table.group_by` and ``col("w").start``."""
        return replace(self, name=name)

    def texts(self, rendering: Rendering) -> tuple[str, dict[WindowPart, str]]:
        """Return the window as it stands in GROUP BY, and its parts: one of so many rows has none.

        Raises:
            ProgramError: If it has no time or no name, or a length is of rows and another one of time.
        """
        if self.time is None or self.name is None:
            missing = "time" if self.time is None else "name"
            message = f"a window is of a time and has a name; this {self.function} window has no {missing}"
            raise ProgramError(message, hint='Tumble.over(lit(10).minutes).on(col("at")).alias("w")')
        if any(isinstance(one, Bound) for one in self.lengths):
            size, slide = self.lengths[-1], self.lengths[0]
            counts = ", ".join(str(_number_of_rows(one, self.function)) for one in (size, slide))
            return f"{quoted(COUNT_WINDOW)}({self.time.sql(rendering)}, {counts})", {}
        times = [one for one in self.lengths if isinstance(one, Expression)]
        arguments = ", ".join(one.sql(rendering) for one in (self.time, *times))
        parts = {
            WindowPart(self.name, part): f"{self.function}_{part}({arguments})" for part in ("START", "END", "ROWTIME")
        }
        return f"{self.function}({arguments})", parts


def _number_of_rows(length: Expression | Bound, function: str) -> int:
    if function == "SESSION" or not isinstance(length, Bound) or length.num_rows is None:
        what = "sessions go by time" if function == "SESSION" else "both lengths of a window are of rows, or of time"
        message = f"{what}; got {length!r}"
        raise ProgramError(message, hint="Slide.over(row_interval(10)).every(row_interval(5))")
    if length.num_rows == 0:
        message = "a window has one row at least, and begins one row behind the one before at least"
        raise ProgramError(message)
    return length.num_rows


class Tumble:
    """Windows of one length, one behind the other."""

    @staticmethod
    def over(size: Expression | Bound) -> GroupWindow:
        """Return windows of a length: ``lit(10).minutes``, or of so many rows of each key, ``row_interval(10)``.

        A window of rows gives its result when it is full, and has no start, end or time.
        """
        return GroupWindow("TUMBLE", (size,))


class Slide:
    """Windows of one length that begin at equal distances: ``Slide.over(lit(10).minutes).every(lit(1).minutes)``."""

    @staticmethod
    def over(size: Expression | Bound) -> Slide:
        """Return windows of a length, or of so many rows of each key: ``row_interval(10)``."""
        return Slide(size)

    def __init__(self, size: Expression | Bound) -> None:
        self._size = size

    def every(self, slide: Expression | Bound) -> GroupWindow:
        """Say at which distances they begin: of time or, where windows count them, of rows."""
        return GroupWindow("HOP", (slide, self._size))


class Session:
    """Windows that end when nothing has come for a while."""

    @staticmethod
    def with_gap(gap: Expression) -> GroupWindow:
        """Return windows that end after a gap."""
        return GroupWindow("SESSION", (gap,))


@dataclass(frozen=True)
class Bound:
    """Where a window of OVER begins or ends.

    Attributes:
        text: In SQL, without PRECEDING and FOLLOWING.
        is_of_rows: Whether it counts rows; else it goes by the order's values.
        num_rows: How many; None for an end of the partition or the row itself.
    """

    text: str
    is_of_rows: bool
    num_rows: int | None = None


UNBOUNDED_ROW = Bound("UNBOUNDED", is_of_rows=True)
CURRENT_ROW = Bound("CURRENT ROW", is_of_rows=True)
UNBOUNDED_RANGE = Bound("UNBOUNDED", is_of_rows=False)
CURRENT_RANGE = Bound("CURRENT ROW", is_of_rows=False)


def row_interval(rows: int) -> Bound:
    """Return a number of rows, for `Tumble`, `Slide`, `OverWindow.preceding` and `OverWindow.following`."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        message = f"a number of rows is 0 or more; got {rows!r}"
        raise ProgramError(message)
    return Bound(str(rows), is_of_rows=True, num_rows=rows)


@dataclass(frozen=True)
class OverWindow:
    """What an aggregate looks at for each row; made by `Over`.

    Attributes:
        keys: The rows that belong together have these equal.
        orders: What they go by.
        begins: How far back it reaches.
        ends: How far ahead.
        name: What it is called in the query.
    """

    keys: tuple[Expression, ...] = ()
    orders: tuple[Expression, ...] = ()
    begins: Bound | None = None
    ends: Bound | None = None
    name: str | None = None

    def order_by(self, *orders: Expression) -> OverWindow:
        """Say what the rows go by."""
        return replace(self, orders=orders)

    def preceding(self, begins: Bound | Expression) -> OverWindow:
        """Say how far back it reaches: ``UNBOUNDED_RANGE``, ``row_interval(5)``, ``lit(10).minutes``."""
        return replace(self, begins=_bound(begins))

    def following(self, ends: Bound | Expression) -> OverWindow:
        """Say how far ahead it reaches; up to the row itself, if nothing is said."""
        return replace(self, ends=_bound(ends))

    def alias(self, name: str) -> OverWindow:
        """Give the window a name, for ``col("price").sum.over(col("w"))``."""
        return replace(self, name=name)

    def part(self, rendering: Rendering) -> tuple[WindowPart, str]:
        """Return the window as it stands in OVER.

        Raises:
            ProgramError: If it has no name, or counts rows at one end only.
        """
        if self.name is None:
            message = "a window of over_window has a name"
            raise ProgramError(message, hint='Over.partition_by(col("a")).order_by(col("at")).alias("w")')
        words = []
        if self.keys:
            words.append(f"PARTITION BY {', '.join(one.sql(rendering) for one in self.keys)}")
        if self.orders:
            words.append(f"ORDER BY {', '.join(one.sql(rendering) for one in self.orders)}")
        if self.begins is not None or self.ends is not None:
            words.append(self._frame())
        return WindowPart(self.name, "OVER"), " ".join(words)

    def _frame(self) -> str:
        begins = self.begins or UNBOUNDED_RANGE
        ends = self.ends or Bound("CURRENT ROW", is_of_rows=begins.is_of_rows)
        if begins.is_of_rows != ends.is_of_rows:
            message = f"window {self.name!r} counts rows at one end and goes by values at the other"
            raise ProgramError(message)
        kind = "ROWS" if begins.is_of_rows else "RANGE"
        return f"{kind} BETWEEN {_end(begins, 'PRECEDING')} AND {_end(ends, 'FOLLOWING')}"


def _bound(given: Bound | Expression) -> Bound:
    return given if isinstance(given, Bound) else Bound(given.sql(Rendering()), is_of_rows=False)


def _end(bound: Bound, side: str) -> str:
    return bound.text if bound.text == "CURRENT ROW" else f"{bound.text} {side}"


class Over:
    """Windows that an aggregate looks at for each row."""

    @staticmethod
    def partition_by(*keys: Expression | str) -> OverWindow:
        """Return windows of rows that have these equal."""
        return OverWindow(keys=tuple(col(one) if isinstance(one, str) else one for one in keys))

    @staticmethod
    def order_by(*orders: Expression) -> OverWindow:
        """Return windows of all rows, by an order."""
        return OverWindow(orders=orders)
