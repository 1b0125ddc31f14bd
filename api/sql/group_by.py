"""Expressions of a query with GROUP BY: what is a key, what is an aggregate, and what is computed of both.

Invariant: an expression over groups reads keys and results of aggregates only; anything else is refused by its name.

Source: SQL:2016; Flink's legacy group windows ("Group Window Functions").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col
from headrace.engine.functions.aggregates.contract import Aggregate

from .constructors import JSON_AGGREGATES, json_aggregate
from .expressions import ExpressionBinder, is_aggregate_call
from .functions.aggregates import aggregate_call
from .functions.contract import Typed
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlError
from .scope import Scope

__all__ = ["GROUPING", "GroupedBinder", "has_aggregates", "window_call"]

_BORDERS = {"START": "start", "END": "end", "ROWTIME": "time", "PROCTIME": "time"}
_LEGACY = ("TUMBLE", "HOP", "SESSION")

GROUPING = ("GROUPING", "GROUPING_ID", "GROUP_ID")
"""Functions that tell which keys are not in the set that a row is of, and how many equal sets stand before it."""


def has_aggregates(tree: Any, functions: FunctionRegistry) -> bool:
    """Return whether an aggregate is called in an expression, but not over a window or in a subquery."""
    if isinstance(tree, (exp.Window, exp.Subquery, exp.Query)):
        return False
    if is_aggregate_call(tree, functions):
        return True
    return isinstance(tree, exp.Expression) and any(has_aggregates(one, functions) for one in tree.iter_expressions())


def window_call(tree: Any) -> bool:
    """Return whether it is a group window as it was written once: ``TUMBLE(t, INTERVAL ...)`` in GROUP BY."""
    return isinstance(tree, exp.Anonymous) and str(tree.name).upper() in _LEGACY


class GroupedBinder(ExpressionBinder):
    """Makes expressions over groups.

    Args:
        inner: Makes those over the rows.
        keys: The columns of the groups' keys, by the structure of the expression that each is.
        taken: Names of columns that are taken.
        window: The columns of a group window's start, end and time; None without one.
        grouping: Makes GROUPING(...) of the places of keys, and GROUP_ID() of None.

    Attributes:
        aggregates: What has been asked for, by the name of its column.
    """

    def __init__(
        self,
        inner: ExpressionBinder,
        keys: Mapping[tuple[Any, ...], Typed],
        taken: set[str],
        window: Mapping[str, Typed] | None = None,
        grouping: Callable[[list[int] | None], Typed] | None = None,
    ) -> None:
        super().__init__(Scope(()), inner.functions, inner.text)
        self.aggregates: dict[str, Aggregate] = {}
        self._inner = inner
        self._keys = keys
        self._taken = taken
        self._window = window or {}
        self._grouping = grouping
        self._known: dict[tuple[Any, ...], Typed] = {}

    def bind(self, tree: Any) -> Typed:
        with self.text.at(tree):
            if is_aggregate_call(tree, self.functions):
                return self._aggregate(tree)
            found = self._border(tree) or self._bits(tree)
            if found is not None:
                return found
            key = self._key(tree)
            return self._bind(tree) if key is None else key

    def _key(self, tree: Any) -> Typed | None:
        """The key that an expression over rows is; None if it is none."""
        if has_aggregates(tree, self.functions) or isinstance(tree, (exp.Literal, exp.Interval)):
            return None
        try:
            found = self._inner.bind(tree)
        except SqlError:
            if isinstance(tree, exp.Column):
                raise
            return None
        return self._keys.get(found.expression.structure)

    def column(self, tree: Any) -> Typed:
        message = f"{tree.sql()} is neither in GROUP BY nor in an aggregate"
        raise SqlError(message, hint="add it to GROUP BY, or aggregate it: MAX(...)")

    def _border(self, tree: Any) -> Typed | None:
        """TUMBLE_START(...) and its like."""
        if not isinstance(tree, exp.Anonymous):
            return None
        kind, _, border = str(tree.name).upper().rpartition("_")
        if kind not in _LEGACY or border not in _BORDERS:
            return None
        if not self._window:
            message = f"{tree.name.upper()} needs {kind}(...) in GROUP BY"
            raise SqlError(message)
        return self._window[_BORDERS[border]]

    def _bits(self, tree: Any) -> Typed | None:
        """GROUPING(...): which keys are not in the set that a row is of."""
        if not isinstance(tree, exp.Anonymous) or str(tree.name).upper() not in GROUPING or self._grouping is None:
            return None
        if str(tree.name).upper() == "GROUP_ID":
            if tree.expressions:
                message = "GROUP_ID takes no arguments"
                raise SqlError(message, hint="GROUPING_ID takes expressions of GROUP BY")
            return self._grouping(None)
        if not tree.expressions:
            message = f"{tree.name.upper()} takes expressions of GROUP BY"
            raise SqlError(message)
        known = list(self._keys)
        places = []
        for one in tree.expressions:
            with self.text.at(one):
                structure = self._inner.bind(one).expression.structure
                if structure not in known:
                    message = f"{one.sql()} is not in GROUP BY"
                    raise SqlError(message, hint=f"{tree.name.upper()} takes expressions of GROUP BY")
            places.append(known.index(structure))
        return self._grouping(places)

    def _aggregate(self, tree: Any) -> Typed:
        condition = None
        call = tree
        if isinstance(tree, exp.Filter):
            condition = self._inner.condition(tree.expression.this)
            call = tree.this
        arguments = list(call.expressions)
        distinct = bool(arguments) and isinstance(arguments[0], exp.Distinct)
        if distinct:
            arguments = list(arguments[0].expressions)
        if not arguments and str(call.name).upper() == "COUNT":
            message = "COUNT needs an argument"
            raise SqlError(message)
        function = self.functions.aggregate(str(call.name))
        if function.name in JSON_AGGREGATES:
            function, given = json_aggregate(self._inner.bind, function, call)
        else:
            given = [self._inner.bind(one) for one in arguments if not isinstance(one, exp.Star)]
        made = aggregate_call(function, given, condition, distinct=distinct)
        return made.result(*(self._part(part) for part in made.parts))

    def _part(self, aggregate: Aggregate) -> Typed:
        argument = None if aggregate.argument is None else aggregate.argument.structure
        # Those with settings of their own tell them in their texts.
        structure = (type(aggregate).__qualname__, aggregate.name, repr(aggregate), argument)
        if structure not in self._known:
            name = f"$agg{len(self.aggregates)}"
            self.aggregates[name] = aggregate
            kind = aggregate.output_type(self._inner.scope.schema)
            self._known[structure] = Typed(col(name), pa.int64() if pa.types.is_null(kind) else kind)
        return self._known[structure]
