"""ORDER BY: what rows go by, and the columns that only it reads.

An expression of ORDER BY is a column of the result, computed of the result, or computed of the rows beside the result;
a number counts the columns of the result. What is no column of the result becomes a *helper*, which is left out behind.

Source: SQL:2016, "<order by clause>"; Flink's documentation ("ORDER BY clause").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlglot import exp

from headrace.engine.columns.expressions import col
from headrace.engine.plan.plan import Order

from .contract import Queries
from .expressions import ExpressionBinder, whole_number
from .functions.contract import Typed
from .functions.operators import is_null
from .over_clauses import unusual_nulls
from .parsing.errors import SqlError
from .relations import plain, unique_names
from .scope import Scope

__all__ = ["OrderBy", "orders_of_result"]


def orders_of_result(queries: Queries, tree: Any, scope: Scope) -> tuple[list[Order], dict[str, Typed]]:
    """Return what the rows of a query go by whose columns are all there, and the helpers.

    Args:
        queries: Makes expressions.
        tree: What may have an ORDER BY.
        scope: The columns of the result.
    """
    orders: list[Order] = []
    helpers: dict[str, Typed] = {}
    for one in _clauses(tree):
        with queries.text.at(one):
            value = _value(one, scope, queries.binder(scope))
            orders += _by(one, value, lambda made: _helper_of(made, plain(scope.columns), helpers))
    return orders, helpers


class OrderBy:
    """ORDER BY of a SELECT.

    Args:
        queries: Makes expressions.
        tree: The SELECT.
        binder: Makes expressions over the rows, or the groups, that the result is made of.
        scope: The columns of the result.
        chosen: What they are made of.

    Attributes:
        beside: Helpers that are computed of the rows, beside the result.
        behind: Helpers that are computed of the result.
    """

    def __init__(
        self, queries: Queries, tree: exp.Select, binder: ExpressionBinder, scope: Scope, chosen: dict[str, Typed]
    ) -> None:
        self._queries = queries
        self._tree = tree
        self._binder = binder
        self._scope = scope
        self._chosen = chosen
        self._is_distinct = tree.args.get("distinct") is not None
        self.beside: dict[str, Typed] = {}
        self.behind: dict[str, Typed] = {}

    def bound(self) -> list[Order]:
        """Return what the rows go by.

        Raises:
            SqlError: If it cannot be ordered so, with the place.
        """
        orders = []
        result = self._queries.binder(self._scope)
        for one in _clauses(self._tree):
            with self._queries.text.at(one):
                is_short = isinstance(one.this, exp.Literal) or (
                    isinstance(one.this, exp.Column) and not one.this.table
                )
                if (is_short or self._is_distinct) and _is_bound(one.this, result):
                    orders += _by(one, _value(one, self._scope, result), self._column_of_result)
                elif _is_bound(one.this, self._binder) or not _is_bound(one.this, result):
                    orders += _by(one, self._binder.bind(one.this), self._column_beside)
                else:
                    orders += _by(one, result.bind(one.this), self._column_of_result)
        return orders

    def _column_of_result(self, value: Typed) -> str:
        return _helper_of(value, plain(self._scope.columns), self.behind, self.beside)

    def _column_beside(self, value: Typed) -> str:
        made: dict[str, Typed] = {}
        column = _helper_of(value, {**self._chosen, **self.beside}, made, self.behind)
        if made and self._is_distinct:
            message = "ORDER BY of SELECT DISTINCT goes by what is selected"
            raise SqlError(message, hint="select what it goes by, too")
        self.beside.update(made)
        return column


def _clauses(tree: Any) -> list[Any]:
    clause = tree.args.get("order")
    return [] if clause is None else list(clause.expressions)


def _value(tree: Any, scope: Scope, binder: ExpressionBinder) -> Typed:
    """What an expression of ORDER BY is; a number counts the columns of the result."""
    value = tree.this
    if not isinstance(value, exp.Literal) or value.is_string:
        return binder.bind(value)
    place = whole_number(value) or 0
    if not 1 <= place <= len(scope.columns):
        message = f"ORDER BY {value.name}: there are {len(scope.columns)} columns"
        raise SqlError(message)
    return Typed(col(scope.columns[place - 1].column), scope.columns[place - 1].kind)


def _helper_of(value: Typed, known: dict[str, Typed], helpers: dict[str, Typed], taken: Iterable[str] = ()) -> str:
    """The column that a value is, or the helper that it becomes."""
    structure = value.expression.structure
    for name, one in (*known.items(), *helpers.items()):
        if one.expression.structure == structure:
            return name
    name = unique_names([f"$order{len(helpers)}"], [*taken, *known, *helpers])[0]
    helpers[name] = value
    return name


def _by(tree: Any, value: Typed, column_of: Callable[[Typed], str]) -> list[Order]:
    """The order by a value; nulls that are wanted at its other end are there by whether it is NULL."""
    first = unusual_nulls(tree)
    nulls = [] if first is None else [Order(column_of(is_null(value)), not first)]
    return [*nulls, Order(column_of(value), not tree.args.get("desc"))]


def _is_bound(tree: Any, binder: ExpressionBinder) -> bool:
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return True
    try:
        binder.bind(tree)
    except SqlError:
        return False
    return True
