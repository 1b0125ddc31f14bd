"""OVER: what a row's group comes to, and where in it the row is.

Source: SQL:2016; Flink's documentation ("Over Aggregation", "Top-N", "Deduplication").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import nearest
from headrace.engine.frames.frame_calls import (
    Frame,
    Place,
    cume_dist,
    dense_rank,
    lag,
    lead,
    ntile,
    percent_rank,
    rank,
    row_number,
)
from headrace.engine.plan.plan import Order

from .constructors import JSON_AGGREGATES
from .contract import Queries
from .expressions import ExpressionBinder, interval_ms, is_aggregate_call, whole_number
from .functions.aggregates import AGGREGATES, aggregate_call
from .functions.catalogue import ABSENT, absent
from .functions.contract import Typed, constant
from .functions.operators import is_null
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlError, SqlText
from .parsing.names import COUNT_WINDOW
from .relations import Relation, unique_names
from .scope import Scope
from .window_functions import require_time

__all__ = [
    "CountWindow",
    "OverBinder",
    "frame_of",
    "orders_of",
    "over_calls",
    "unusual_nulls",
    "with_named_windows",
]

_PLACES: dict[str, Callable[..., Place]] = {"ROW_NUMBER": row_number, "RANK": rank, "DENSE_RANK": dense_rank}
_SHARES: dict[str, Callable[..., Place]] = {"NTILE": ntile, "PERCENT_RANK": percent_rank, "CUME_DIST": cume_dist}
_NEIGHBOURS = {"LAG": lag, "LEAD": lead}
_BY_ORDER = (*_PLACES, *_SHARES, *_NEIGHBOURS)


def over_calls(tree: Any) -> list[Any]:
    """Return the calls over windows in an expression, but not those in its subqueries."""
    if not isinstance(tree, exp.Expression):
        return []
    return [one for one in tree.walk(prune=lambda one: isinstance(one, exp.Query)) if isinstance(one, exp.Window)]


def with_named_windows(tree: exp.Select, text: SqlText) -> exp.Select:
    """Return a SELECT in which the windows of its WINDOW clause stand where they are named.

    Raises:
        SqlError: If one is made of another, or two have one name.
    """
    named: dict[str, exp.Window] = {}
    for one in tree.args.get("windows") or ():
        if one.name in named or one.args.get("alias") is not None:
            what = "is there twice" if one.name in named else "is made of another one, which is not supported"
            message = f"window {one.name!r} {what}"
            raise text.error(message, one)
        named[one.name] = one
    if not named:
        return tree
    made = tree.copy()
    made.set("windows", None)
    for call in made.find_all(exp.Window):
        alias = call.args.get("alias")
        if alias is not None and alias.name in named:
            call.set("alias", None)
            for part in ("partition_by", "order", "spec"):
                given = named[alias.name].args.get(part)
                copied = [one.copy() for one in given] if isinstance(given, list) else given and given.copy()
                call.set(part, copied)
    return made


def unusual_nulls(tree: Any) -> bool | None:
    """Return whether an expression of ORDER BY wants nulls first, if that is not where its order has them; None if it
    is.

    An order has them first, or last if it is descending. Elsewhere they get by whether the value is NULL, before it.
    """
    first = tree.args.get("nulls_first")
    return bool(first) if first is not None and bool(first) == bool(tree.args.get("desc")) else None


def orders_of(trees: Sequence[Any], binder: ExpressionBinder) -> list[tuple[Typed, bool]]:
    """Return the values that rows go by, and whether each is ascending."""
    found = []
    for tree in trees:
        value, first = binder.bind(tree.this), unusual_nulls(tree)
        if first is not None:
            found.append((is_null(value), not first))
        found.append((value, not tree.args.get("desc")))
    return found


class _Call(NamedTuple):
    """A call over a window.

    Attributes:
        text: What it is known by.
        tree: Where it stands.
        name: Of the function, in capitals.
        arguments: What it is called with.
        is_distinct: Whether equal arguments count once.
        step: What calls have in common that one step computes: groups, order, and the frame or what has none.
    """

    text: str
    tree: exp.Window
    name: str
    arguments: list[Typed]
    is_distinct: bool
    step: tuple[Any, ...]


class OverBinder:
    """Adds columns for the calls over windows of a SELECT; those over one window come of one step.

    Args:
        queries: Makes plans.
        relation: The rows.
        binder: Makes expressions over them.
        apart: Columns by which rows are apart for every call, beside its own PARTITION BY.
    """

    def __init__(
        self, queries: Queries, relation: Relation, binder: ExpressionBinder, apart: Sequence[Typed] = ()
    ) -> None:
        self._apart = list(apart)
        self._queries = queries
        self._text = queries.text
        self._relation = relation
        self._binder = binder
        self._results: dict[str, Typed] = {}
        # When rows have come to the first step that goes by processing time.
        self._clock: Typed | None = None

    def bound(self, trees: list[Any]) -> tuple[Relation, ExpressionBinder]:
        """Return the rows with those columns, and what makes expressions over them."""
        calls = {call.sql(): call for tree in trees for call in over_calls(tree)}
        steps: dict[Any, list[_Call]] = {}
        for text, tree in calls.items():
            with self._text.at(tree):
                call = self._call(text, tree)
                steps.setdefault(call.step, []).append(call)
        for step in steps.values():
            with self._text.at(step[0].tree):
                self._add(step)
        return self._relation, _Known(self._binder, self._results)

    def _call(self, text: str, tree: exp.Window) -> _Call:
        if tree.args.get("alias") is not None:
            message = f"there is no window {tree.args['alias'].name!r}"
            raise SqlError(message, hint="WINDOW name AS (PARTITION BY ... ORDER BY ...) says what it is")
        function = tree.this
        if not isinstance(function, exp.Anonymous):
            message = f"{type(function).__name__.upper()} beside OVER is not supported"
            raise SqlError(message)
        name, given = str(function.name).upper(), list(function.expressions)
        if name not in _BY_ORDER and not self._queries.functions.is_aggregate(name):
            if name in ABSENT:
                raise absent(name)
            there = [*_BY_ORDER, *AGGREGATES]
            message = f"there is no function {name} that is called over a window"
            raise SqlError(message, hint=nearest(name, there) or f"there are {', '.join(there)}")
        if name in JSON_AGGREGATES:
            message = f"{name} over a window is not supported"
            raise SqlError(message, hint="GROUP BY gathers values, and a join puts them beside the rows")
        is_distinct = bool(given) and isinstance(given[0], exp.Distinct)
        if is_distinct and name in _BY_ORDER:
            message = f"{name} takes no DISTINCT"
            raise SqlError(message)
        if is_distinct:
            given = list(given[0].expressions)
        arguments = [self._binder.bind(one) for one in given if not isinstance(one, exp.Star)]
        order = tree.args.get("order")
        if order is None and name in _BY_ORDER:
            message = f"{name} goes by an order"
            raise SqlError(message, hint="write ORDER BY in OVER (...)")
        # A place may become a Top-N, and goes by no frame; neither do shares and neighbours.
        kind: Any = (
            text if name in _PLACES else "shares" if name in _SHARES else "neighbours" if name in _NEIGHBOURS
            else frame_of(tree, self._text)
        )  # fmt: skip
        parts = [one.sql() for one in tree.args.get("partition_by") or ()]
        return _Call(
            text, tree, name, arguments, is_distinct, (tuple(parts), "" if order is None else order.sql(), kind)
        )

    def _add(self, calls: list[_Call]) -> None:
        """A step for calls that are over the same window."""
        tree = calls[0].tree
        order = tree.args.get("order")
        keys = [*self._apart, *(self._binder.bind(one) for one in tree.args.get("partition_by") or ())]
        sorted_by = self._by_clock(orders_of([] if order is None else order.expressions, self._binder))
        values = keys + [value for value, _ in sorted_by]
        arguments = [one for call in calls for one in call.arguments]
        node, names = self._queries.builder.with_keys(self._relation, [*values, *arguments])
        orders = [
            Order(name, ascending)
            for name, (_, ascending) in zip(names[len(keys) : len(values)], sorted_by, strict=True)
        ]
        taken = set() if node.schema is None else set(node.schema.names)
        specs: dict[str, Any] = {}
        kinds: dict[str, pa.DataType] = {}
        own = iter(names[len(values) :])
        for call in calls:
            with self._text.at(call.tree):
                made, result = self._specs(call, [next(own) for _ in call.arguments])
            columns = unique_names(["$over"] * len(made), taken)
            taken |= set(columns)
            for column, (spec, kind) in zip(columns, made, strict=True):
                specs[column], kinds[column] = spec, kind
            self._results[call.text] = result(*(Typed(col(column), kinds[column]) for column in columns))
        frame = calls[0].step[2]
        made_node = self._queries.builder.over(
            node, names[: len(keys)], orders, specs, kinds, frame if isinstance(frame, Frame) else None
        )
        self._relation = Relation(made_node, self._relation.scope)

    def _by_clock(self, orders: list[tuple[Typed, bool]]) -> list[tuple[Typed, bool]]:
        """An order by processing time alone as one by when rows come here, which is their event time then."""
        known = self._relation.scope.columns if self._binder.scope.clock is None else (
            *self._relation.scope.columns, self._binder.scope.clock
        )  # fmt: skip
        times = {("col", one.column) for one in known if one.is_processing_time}
        if len(orders) != 1 or orders[0][0].expression.structure not in times:
            return orders
        if self._clock is None:
            self._relation, clock = self._queries.builder.stamped(self._relation, sets_time=True)
            self._clock = clock.value
        return [(self._clock, orders[0][1])]

    def _specs(self, call: _Call, names: list[str]) -> tuple[list[tuple[Any, pa.DataType]], Any]:
        """What is computed, with its types, and what is made of it."""
        name, arguments = call.name, call.arguments
        columns = [Typed(col(column), one.kind, one.constant) for column, one in zip(names, arguments, strict=True)]
        if name in _PLACES or name in _SHARES:
            return [_place(name, columns)], lambda value: value
        if name in _NEIGHBOURS:
            if not columns:
                message = f"{name} needs an argument"
                raise SqlError(message)
            offset = 1 if len(columns) < 2 else constant(columns[1], "the offset")
            default = None if len(columns) < 3 else constant(columns[2], "the default")
            spec = _NEIGHBOURS[name](columns[0].expression, offset, default)
            return [(spec, columns[0].kind)], lambda value: value
        made = aggregate_call(self._queries.functions.aggregate(name), columns, None, distinct=call.is_distinct)
        schema = pa.schema([pa.field(column, one.kind) for column, one in zip(names, arguments, strict=True)])
        return [(part, part.output_type(schema)) for part in made.parts], made.result


def _place(name: str, arguments: list[Typed]) -> tuple[Any, pa.DataType]:
    if len(arguments) != (name == "NTILE"):
        message = f"{name} takes {'one argument' if name == 'NTILE' else 'no arguments'}; got {len(arguments)}"
        raise SqlError(message)
    spec = (_PLACES | _SHARES)[name](*(constant(one, "the number of parts") for one in arguments))
    return spec, pa.float64() if name in ("PERCENT_RANK", "CUME_DIST") else pa.int64()


def frame_of(tree: exp.Window, text: SqlText) -> Frame | None:
    """Return which rows the aggregate of an OVER call sees; None for SQL's own frame.

    Raises:
        SqlError: If it means nothing.
    """
    spec = tree.args.get("spec")
    if spec is None:
        return None
    kind = str(spec.args.get("kind")).upper()
    if kind not in ("ROWS", "RANGE"):
        message = f"{kind} BETWEEN is not supported"
        raise text.error(message, tree, hint="ROWS BETWEEN and RANGE BETWEEN are")
    is_range = kind == "RANGE"
    low = _bound(spec, "start", text, is_range=is_range)
    high = 0 if spec.args.get("end") is None else _bound(spec, "end", text, is_range=is_range)
    order = tree.args.get("order")
    if order is None and (low, high) != (None, None):
        message = f"{kind} BETWEEN goes by an order"
        raise text.error(message, tree, hint="write ORDER BY in OVER (...)")
    if is_range and (low or high) and order is not None and len(order.expressions) != 1:
        message = "RANGE BETWEEN with a distance goes by one column"
        raise text.error(message, order)
    if low is not None and high is not None and low > high:
        message = "a frame cannot end before it begins"
        raise text.error(message, tree)
    if is_range and (low, high) == (None, 0):
        return None  # SQL's own
    return Frame(low, high, is_range)


def _bound(spec: Any, which: str, text: SqlText, *, is_range: bool) -> int | None:
    value, side = spec.args.get(which), str(spec.args.get(f"{which}_side")).upper()
    if value == "CURRENT ROW":
        return 0
    if value == "UNBOUNDED":
        return None
    with text.at(value):
        size = whole_number(value)
        if size is None and not is_range:
            message = "ROWS BETWEEN takes whole numbers"
            raise SqlError(message, hint="RANGE BETWEEN takes an interval")
        size = interval_ms(value) if size is None else size
    return -size if side == "PRECEDING" else size


class CountWindow(NamedTuple):
    """Windows of so many rows of each key, in the order of their time: frames of the rows that fill a window.

    What has been kept of a key are the rows that the next windows have in common with the last one, and those that
    have come since; all rows if some are taken back, or an aggregate does not fold.

    Attributes:
        time: What rows go by: their time, or the number that it has given them.
        size: How many rows a window has.
        slide: How many rows behind the one before each begins; the first one begins with the first row.
        keys: The other expressions of GROUP BY.

    Source: Flink's ``CountSlidingWindowAssigner``; windows that are not full give nothing.
    """

    time: Any
    size: int
    slide: int
    keys: tuple[Any, ...]

    @classmethod
    def of(cls, trees: Sequence[Any]) -> CountWindow | None:
        """Return the one that GROUP BY names; None without one."""
        for one in trees:
            if isinstance(one, exp.Anonymous) and one.name == COUNT_WINDOW:
                time, size, slide = one.expressions
                keys = tuple(key for key in trees if key is not one)
                return cls(time, int(size.name), int(slide.name), keys)
        return None

    def require_time(self, binder: ExpressionBinder) -> None:
        """See that rows have an order by the time.

        Raises:
            SqlError: If it is no time attribute.
        """
        structure = binder.bind(self.time).expression.structure
        column = next((one for one in binder.scope.columns if structure == ("col", one.column)), None)
        if column is None:
            message = "a window in GROUP BY is of a column"
            raise SqlError(message)
        require_time(column)

    @property
    def place(self) -> exp.Window:
        """The number of a row among those of its key."""
        return self._over(exp.Anonymous(this="ROW_NUMBER"), None)

    def of_frames(self, tree: Any, functions: FunctionRegistry) -> Any:
        """Return an expression over groups as one over the frame that each row ends.

        Raises:
            SqlError: If an aggregate has a FILTER.
        """
        frame = exp.WindowSpec(
            kind="ROWS", start=exp.Literal.number(self.size - 1), start_side="PRECEDING", end="CURRENT ROW"
        )

        def framed(one: Any) -> Any:
            if not is_aggregate_call(one, functions):
                return one
            if isinstance(one, exp.Filter):
                message = "FILTER in windows of so many rows is not supported"
                raise SqlError(message, hint="aggregate a CASE, if_then_else(...), which is NULL for the others")
            return self._over(one.copy(), frame)

        return tree.copy().transform(framed, copy=False)

    def _over(self, call: exp.Expression, frame: exp.WindowSpec | None) -> exp.Window:
        return exp.Window(
            this=call,
            partition_by=[key.copy() for key in self.keys],
            order=exp.Order(expressions=[exp.Ordered(this=self.time.copy())]),
            spec=None if frame is None else frame.copy(),
        )

    def is_end(self, place: Typed) -> Expression:
        """Return whether a row is the last one of a window, by its number."""
        number = place.expression
        return (number >= self.size) & ((number - self.size) % self.slide == 0)


class _Known(ExpressionBinder):
    """Makes expressions in which calls over windows are columns already."""

    def __init__(self, inner: ExpressionBinder, results: dict[str, Typed]) -> None:
        super().__init__(Scope(()), inner.functions, inner.text)
        self._inner = inner
        self._results = results

    def bind(self, tree: Any) -> Typed:
        if isinstance(tree, exp.Window):
            return self._results[tree.sql()]
        if not over_calls(tree):
            return self._inner.bind(tree)
        return super().bind(tree)
