"""OVER: what a row's group comes to, and where in it the row is.

Source: SQL:2016; Flink's documentation ("Over Aggregation", "Top-N", "Deduplication").
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col
from headrace.engine.partitions.ranking import dense_rank, lag, lead, rank, row_number
from headrace.engine.plan.plan import Order

from .contract import Queries
from .expressions import ExpressionBinder
from .functions.aggregates import aggregate_call
from .functions.contract import Typed, constant
from .parsing.errors import SqlError
from .relations import Relation, unique_names
from .scope import Scope

__all__ = ["OverBinder", "over_calls", "require_usual_nulls"]

_PLACES = {"ROW_NUMBER": row_number, "RANK": rank, "DENSE_RANK": dense_rank}
_NEIGHBOURS = {"LAG": lag, "LEAD": lead}


def over_calls(tree: Any) -> list[Any]:
    """Return the calls over windows in an expression."""
    return list(tree.find_all(exp.Window)) if isinstance(tree, exp.Expression) else []


def require_usual_nulls(tree: Any) -> None:
    """Check that an expression of ORDER BY has nulls where an order has them: first, or last if it is descending.

    Raises:
        SqlError: If they are asked for at the other end.
    """
    first = tree.args.get("nulls_first")
    if first is not None and bool(first) == bool(tree.args.get("desc")):
        message = f"NULLS {'FIRST' if first else 'LAST'} is not supported with this direction"
        raise SqlError(message, hint="nulls come first in ascending order, last in descending order")


class OverBinder:
    """Adds columns for the calls over windows of a SELECT."""

    def __init__(self, queries: Queries, relation: Relation, binder: ExpressionBinder) -> None:
        self._queries = queries
        self._text = queries.text
        self._relation = relation
        self._binder = binder
        self._results: dict[str, Typed] = {}

    def bound(self, trees: list[Any]) -> tuple[Relation, ExpressionBinder]:
        """Return the rows with those columns, and what makes expressions over them."""
        for tree in trees:
            for call in over_calls(tree):
                with self._text.at(call):
                    self._add(call)
        return self._relation, _Known(self._binder, self._results)

    def _add(self, call: exp.Window) -> None:
        text = call.sql()
        if text in self._results:
            return
        order = call.args.get("order")
        values = [self._binder.bind(one) for one in call.args.get("partition_by", ())]
        sorted_by = [] if order is None else order.expressions
        values += [self._binder.bind(one.this) for one in sorted_by]
        arguments = [] if call.this is None else self._arguments(call)
        node, names = self._queries.builder.with_keys(self._relation, [*values, *arguments])
        count = len(values) - len(sorted_by)
        for one in sorted_by:
            with self._text.at(one):
                require_usual_nulls(one)
        orders = [
            Order(name, not one.args.get("desc"))
            for name, one in zip(names[count : len(values)], sorted_by, strict=True)
        ]
        spec, kind, result = self._spec(call, names[len(values) :], arguments)
        taken = set() if node.schema is None else set(node.schema.names)
        column = unique_names(["$over"], taken)[0]
        made = self._queries.builder.over(
            node, names[:count], orders, {column: spec}, {column: kind}, _rows(call.args.get("spec"))
        )
        self._relation = Relation(made, self._relation.scope)
        self._results[text] = result(Typed(col(column), kind))

    def _arguments(self, call: exp.Window) -> list[Typed]:
        function = call.this.this if isinstance(call.this, exp.Filter) else call.this
        return [self._binder.bind(one) for one in function.expressions if not isinstance(one, exp.Star)]

    def _spec(self, call: exp.Window, names: list[str], arguments: list[Typed]) -> Any:
        """What is computed, its type, and what is made of it."""
        if not isinstance(call.this, exp.Anonymous):
            message = f"{type(call.this).__name__.upper()} beside OVER is not supported"
            raise SqlError(message)
        name = str(call.this.name).upper()
        columns = [Typed(col(column), one.kind, one.constant) for column, one in zip(names, arguments, strict=True)]
        if name in _PLACES:
            if call.args.get("order") is None:
                message = f"{name} goes by an order"
                raise SqlError(message, hint="write ORDER BY in OVER (...)")
            return _PLACES[name](), pa.int64(), lambda value: value
        if name in _NEIGHBOURS:
            offset = 1 if len(columns) < 2 else constant(columns[1], "the offset")
            default = None if len(columns) < 3 else constant(columns[2], "the default")
            return _NEIGHBOURS[name](columns[0].expression, offset, default), columns[0].kind, lambda value: value
        made = aggregate_call(name, columns[0] if columns else None, None, distinct=False)
        if len(made.parts) != 1:
            message = f"{name} OVER is not supported"
            raise SqlError(message, hint="divide SUM by COUNT, both OVER the same window")
        schema = pa.schema([pa.field(column, one.kind) for column, one in zip(names, arguments, strict=True)])
        return made.parts[0], made.parts[0].output_type(schema), made.result


def _rows(spec: Any) -> tuple[int | None, int | None] | None:
    if spec is None:
        return None
    if str(spec.args.get("kind")).upper() != "ROWS":
        if spec.args.get("start") == "UNBOUNDED" and spec.args.get("end") in ("CURRENT ROW", None):
            return None
        message = "OVER (... RANGE BETWEEN ...) is not supported with bounds"
        raise SqlError(message, hint="ROWS BETWEEN is")
    return _bound(spec, "start"), 0 if spec.args.get("end") is None else _bound(spec, "end")


def _bound(spec: Any, which: str) -> int | None:
    value, side = spec.args.get(which), spec.args.get(f"{which}_side")
    if value == "CURRENT ROW":
        return 0
    if value == "UNBOUNDED":
        return None
    count = int(value.name)
    return -count if side == "PRECEDING" else count


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
