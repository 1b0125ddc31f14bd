"""Subqueries in expressions: a value, EXISTS, IN, and comparisons with ANY or ALL of a query's rows.

A subquery becomes a join of the rows around it, by what it says of them (`headrace.sql.correlation`), so each of its
groups is computed once. What has no partner has the value of a group without rows: NULL,
0 for a count. Where rows are only let through, semi and anti joins do it; elsewhere the join is a left one, and the
condition a value of SQL's three: IN is NULL if there is no match and a NULL is involved.

Source: Calcite's ``SubQueryRemoveRule``, ``RelDecorrelator``; Neumann, Kemper: "Unnesting Arbitrary Queries".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.conditionals import Case, if_else
from headrace.engine.columns.expressions import Expression, col, lit
from headrace.engine.columns.kernels import Value, compute
from headrace.engine.functions.aggregates.built_in import count
from headrace.engine.functions.aggregates.built_in import max as max_of
from headrace.engine.functions.aggregates.built_in import min as min_of
from headrace.engine.plan.plan import Node

from .contract import Queries
from .correlation import Correlation, with_rows_around
from .expressions import ExpressionBinder
from .functions import operators as sql
from .functions.coercion import together
from .functions.contract import KernelCall, Typed, literal_of
from .parsing.errors import SqlError
from .parsing.sql_types import sql_name
from .relations import Builder, Relation
from .scope import NestedScope, Scope, ScopeColumn

__all__ = ["Correlated", "Subqueries", "SubqueryTest", "own_subqueries", "subquery_test"]

_TRUE = literal_of(True, pa.bool_())


@dataclass(frozen=True)
class Correlated:
    """The rows of a subquery.

    Attributes:
        relation: Its rows; the columns that they carry along are among those of the plan.
        values: What it selects.
        around: What it says of the rows around it; None if it cannot say anything.
        empty: Of an aggregate without GROUP BY, what it is if there are no rows; None for other subqueries.
        is_single: Whether there is one row at most for equal keys.
        may_be_dropped: Whether HAVING may drop the row of an aggregate without GROUP BY.
    """

    relation: Relation
    values: Sequence[Typed]
    around: Correlation | None
    empty: pa.Scalar | None = None
    is_single: bool = False
    may_be_dropped: bool = False

    @property
    def keys(self) -> Sequence[tuple[Typed, Typed]]:
        """What equals what: of the row around it, and of the columns here."""
        return () if self.around is None else self.around.keys

    @property
    def carried(self) -> Mapping[str, Typed]:
        """The columns here that keys go by."""
        return {} if self.around is None else self.around.carried

    def beside(self, builder: Builder, rows: Node, node: Node) -> Node:
        """Return a plan made of the subquery's, beside the rows around it."""
        return with_rows_around(builder, node, None if self.around is None else self.around.around, rows)


class SubqueryTest(NamedTuple):
    """A condition that asks a subquery.

    Attributes:
        query: The subquery.
        value: What is looked for in it; None for EXISTS.
        is_not: Whether it must not be there.
    """

    query: Any
    value: Any
    is_not: bool


def subquery_test(tree: Any, *, is_not: bool = False) -> SubqueryTest | None:
    """Return the test that a condition is: IN (SELECT ...), [NOT] EXISTS (SELECT ...); None if it is none.

    NOT IN is none: a NULL among the values makes it true for no row.
    """
    if isinstance(tree, exp.Paren):
        return subquery_test(tree.this, is_not=is_not)
    if isinstance(tree, exp.Not):
        return subquery_test(tree.this, is_not=not is_not)
    if isinstance(tree, exp.Exists):
        return SubqueryTest(tree.this, None, is_not)
    if is_not:
        return None
    if isinstance(tree, exp.In) and tree.args.get("query") is not None:
        return SubqueryTest(tree.args["query"], tree.this, False)
    if isinstance(tree, exp.EQ) and isinstance(tree.expression, exp.Any):
        return SubqueryTest(tree.expression.this, tree.this, False)
    return None


def own_subqueries(tree: Any) -> Iterator[Any]:
    """Yield the subqueries of an expression, but not those inside of them."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        is_in = isinstance(one, exp.In) and one.args.get("query") is not None
        is_compared = isinstance(one, exp.Binary) and isinstance(one.expression, (exp.All, exp.Any))
        if is_in or is_compared or isinstance(one, (exp.Subquery, exp.Exists)):
            yield one
        elif isinstance(one, exp.Expression):
            waiting += reversed(list(one.iter_expressions()))


def query_of(tree: Any) -> Any:
    """Return the query in parentheses."""
    while isinstance(tree, (exp.Subquery, exp.Paren)) and not any(
        tree.args.get(part) for part in ("with_", "order", "limit", "offset")
    ):
        tree = tree.this
    return tree


def _parts_of(value: Any) -> list[Any]:
    """The values of a row that is written down, ``(a, b)`` or ``ROW(a, b)``; itself of any other value."""
    is_row = isinstance(value, exp.Anonymous) and str(value.this).upper() == "ROW"
    return list(value.expressions) if is_row or isinstance(value, exp.Tuple) else [value]


@dataclass
class _Join:
    """A subquery that waits to be joined.

    Attributes:
        node: Its rows, of which there is one for equal keys.
        inner: Where they come from.
        keys: What is equal: of the row around, and of the columns of ``carried``.
        carried: Columns here that keys go by.
        columns: What its columns are called in the result, and here, and their types.
    """

    node: Node
    inner: Correlated
    keys: Sequence[tuple[Typed, Typed]]
    carried: Mapping[str, Typed]
    columns: dict[str, tuple[str, pa.DataType]]


class Subqueries:
    """The subqueries of some expressions over the same rows.

    What binds the expressions meets subqueries and is given columns for them; `attach` joins what has those columns.

    Args:
        queries: Makes plans.
        known: Queries that WITH has given names.
    """

    def __init__(self, queries: Queries, known: dict[str, Relation]) -> None:
        self._queries = queries
        self._builder = queries.builder
        self._text = queries.text
        self._known = known
        self._found: dict[int, tuple[Any, Typed]] = {}
        self._joins: list[_Join] = []

    # -- rows that are let through -------------------------------------------------------------------------------------

    def tested(self, relation: Relation, test: SubqueryTest) -> Relation | None:
        """Return the rows that a test lets through; None if it is no semi or anti join."""
        outer = self._queries.binder(relation.scope)
        inner = self._queries.correlated(query_of(test.query), self._known, outer, is_test=True)
        if inner.empty is not None or not relation.scope.columns:
            return None  # The row of a SELECT without FROM has no columns that could be joined.
        keys = list(inner.keys)
        if test.value is not None:
            given = _parts_of(test.value) if len(inner.values) > 1 else [test.value]
            if len(given) != len(inner.values):
                message = f"IN takes a query of {_columns(len(given))}; it has {len(inner.values)}"
                raise SqlError(message)
            for one, value in zip(given, inner.values, strict=True):
                same = together([outer.bind(one), value])
                keys.append((same[0], same[1]))
        count_left = len(relation.scope.columns)
        conditions = () if inner.around is None else inner.around.conditions

        def condition(both: Scope) -> Typed | None:
            own, around = Scope(both.columns[count_left:]), Scope(both.columns[:count_left])
            binder = self._queries.binder(NestedScope(own, around))
            found: Typed | None = None
            for part in conditions:
                value = binder.condition(part)
                found = value if found is None else sql.both(found, value)
            return found

        how = "anti" if test.is_not else "semi"
        beside = inner.beside(self._builder, relation.node, inner.relation.node)
        return self._builder.joined(
            relation, Relation(beside, inner.relation.scope), keys or _EVERYTHING, how, condition
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, tree: Any, binder: ExpressionBinder) -> Typed:
        """Return what a subquery is in an expression; its columns are there after `attach`.

        Raises:
            SqlError: If it cannot be computed.
        """
        if id(tree) not in self._found:
            self._found[id(tree)] = (tree, self._value(tree, binder))
        return self._found[id(tree)][1]

    def attach(self, relation: Relation) -> Relation:
        """Return the rows with the columns of all subqueries that have been met."""
        if not self._joins:
            return relation
        node = relation.node
        for one in self._joins:
            assert node.schema is not None
            left = Relation(node, _as_they_are(node.schema))
            columns = {new: Typed(col(name), kind) for new, (name, kind) in one.columns.items()}
            right_node = one.inner.beside(self._builder, relation.node, one.node)
            right_node = self._builder.selected(right_node, {**one.carried, **columns})
            scope = Scope(ScopeColumn(None, name, name, value.kind) for name, value in columns.items())
            node = self._builder.joined(left, Relation(right_node, scope), one.keys, "left", lambda _both: None).node
        self._joins.clear()
        return Relation(node, relation.scope.without_time())

    def _value(self, tree: Any, binder: ExpressionBinder) -> Typed:
        if isinstance(tree, exp.Exists):
            return self._exists(self._inner(tree.this, binder))
        if isinstance(tree, exp.In):
            return self._in(tree, binder)
        if isinstance(tree, exp.Subquery):
            return self._scalar(self._inner(tree, binder))
        return self._compared(tree, binder)

    def _inner(self, tree: Any, binder: ExpressionBinder) -> Correlated:
        found: Correlated = self._queries.correlated(query_of(tree), self._known, binder)
        return found

    def _only_value(self, inner: Correlated, what: str) -> Typed:
        if len(inner.values) != 1:
            message = f"{what} takes a query of one column; it has {len(inner.values)}"
            raise SqlError(message)
        return inner.values[0]

    def _joined(
        self, node: Node, inner: Correlated, columns: dict[str, pa.DataType],
        pairs: Sequence[tuple[Typed, Typed]] = (), carried: Mapping[str, Typed] | None = None,
    ) -> dict[str, Typed]:  # fmt: skip
        """Have columns of rows of which there is one for equal keys joined; returns them, null where there is none."""
        named = {f"{self._queries.new_name('$sub')}_{name.strip('$')}": (name, kind) for name, kind in columns.items()}
        keys = [*inner.keys, *pairs] or _EVERYTHING
        self._joins.append(_Join(node, inner, keys, {**inner.carried, **(carried or {})}, named))
        return {name: Typed(col(new), kind) for new, (name, kind) in named.items()}

    def _with_value(self, inner: Correlated, value: Typed) -> Node:
        """The rows of a subquery with a value as column ``$value``, and the keys."""
        return self._builder.selected(inner.relation.node, {**inner.carried, "$value": value})

    def _scalar(self, inner: Correlated) -> Typed:
        value = _known_type(self._only_value(inner, "a subquery that is a value"))
        node = self._with_value(inner, value)
        if inner.is_single:
            node = self._builder.extended(node, {"$there": _TRUE})
            found = self._joined(node, inner, {"$value": value.kind, "$there": pa.bool_()})
            if inner.empty is None or not inner.empty.is_valid:
                return found["$value"]
            missing = lit(inner.empty.as_py(), value.kind)
            given = if_else(found["$there"].expression.is_null(), missing, found["$value"].expression)
            return Typed(given, value.kind)
        if pa.types.is_nested(value.kind):
            message = f"a subquery that is a value of type {sql_name(value.kind)} is not supported"
            raise SqlError(message, hint="ORDER BY ... LIMIT 1 says which row is meant")
        one_each = self._builder.aggregated(node, list(inner.carried), {"$n": count(), "$value": min_of("$value")})
        found = self._joined(one_each, inner, {"$value": value.kind, "$n": pa.int64()})
        checked = (found["$value"].expression, found["$n"].expression)
        return Typed(KernelCall("SINGLE_VALUE", _single, checked, value.kind), value.kind)

    def _exists(self, inner: Correlated) -> Typed:
        if inner.empty is not None:
            self._require_row(inner)
            return _TRUE
        there = self._builder.aggregated(inner.relation.node, list(inner.carried), {})
        assert there.schema is not None
        name = there.schema.names[-1]
        found = self._joined(there, inner, {name: pa.int64()})
        return Typed(found[name].expression.fill_null(0) > 0, pa.bool_())

    def _in(self, tree: exp.In, binder: ExpressionBinder) -> Typed:
        if len(_parts_of(tree.this)) > 1:
            message = "IN of several columns stands in WHERE, alone or beside AND"
            raise SqlError(message, hint="EXISTS (SELECT ... WHERE a = x AND b = y) stands anywhere")
        return self._is_any(binder.bind(tree.this), self._inner(tree.args["query"], binder))

    def _is_any(self, value: Typed, inner: Correlated) -> Typed:
        """IN: true if there is an equal value; NULL if there is none, but a NULL on either side."""
        wanted, given = map(_known_type, together([value, self._only_value(inner, "IN")]))
        if inner.empty is not None:
            return self._with_one_row("equal", wanted, inner)
        node = self._with_value(inner, given)
        numbers = self._numbers(node, inner, {"$n": count(), "$known": count("$value")})
        equal = self._builder.filtered(node, col("$value").is_not_null())
        equal = self._builder.aggregated(equal, [*inner.carried, "$value"], {"$hits": count()})
        here = Typed(col("$value"), given.kind)
        found = self._joined(equal, inner, {"$hits": pa.int64()}, [(wanted, here)], {"$value": here})
        is_equal = found["$hits"].expression.is_not_null()
        return _three_valued(numbers, wanted, is_equal, lit(True))

    def _with_one_row(self, function: str, wanted: Typed, inner: Correlated) -> Typed:
        self._require_row(inner)
        return sql.compare(function, wanted, self._scalar(inner))

    def _require_row(self, inner: Correlated) -> None:
        """An aggregate without GROUP BY always gives a row, unless HAVING drops it."""
        if inner.may_be_dropped:
            message = "an aggregate with HAVING and without GROUP BY is not supported here"
            raise SqlError(message, hint="write SELECT ... FROM (SELECT MAX(a) AS m, COUNT(*) AS n FROM t) WHERE n > 1")

    def _numbers(self, node: Node, inner: Correlated, aggregates: dict[str, Any]) -> dict[str, Typed]:
        """Aggregates of the rows with equal keys."""
        assert node.schema is not None
        grouped = self._builder.aggregated(node, list(inner.carried), aggregates)
        return self._joined(grouped, inner, {name: one.output_type(node.schema) for name, one in aggregates.items()})

    def _compared(self, tree: Any, binder: ExpressionBinder) -> Typed:
        """A comparison with ANY or ALL: the least and the greatest value say what it is."""
        is_all = isinstance(tree.expression, exp.All)
        inner = self._inner(tree.expression.this, binder)
        value = binder.bind(tree.this)
        if isinstance(tree, exp.EQ) and not is_all:
            return self._is_any(value, inner)
        if isinstance(tree, exp.NEQ) and is_all:
            return sql.opposite(self._is_any(value, inner))
        word = "ALL" if is_all else "ANY"
        function = _COMPARISONS.get(type(tree))
        if function is None:
            message = f"{word} stands behind a comparison"
            raise SqlError(message)
        wanted, given = map(_known_type, together([value, self._only_value(inner, word)]))
        if inner.empty is not None:
            return self._with_one_row(function, wanted, inner)
        node = self._with_value(inner, given)
        parts = {"$n": count(), "$known": count("$value"), "$low": min_of("$value"), "$high": max_of("$value")}
        numbers = self._numbers(node, inner, parts)
        low, high = numbers["$low"], numbers["$high"]
        if function in ("equal", "not_equal"):
            # = ALL: equal to the least and to the greatest. <> ANY is the opposite.
            is_same = sql.both(sql.compare("equal", wanted, low), sql.compare("equal", wanted, high))
            decided, result = (sql.opposite(is_same), not is_all)
        else:
            is_up = function in ("greater", "greater_equal")
            border = high if is_up == is_all else low
            holds = sql.compare(function, wanted, border)
            decided, result = (sql.opposite(holds), False) if is_all else (holds, True)
        return _three_valued(numbers, wanted, decided.expression, lit(result))


_EVERYTHING = [(literal_of(1, pa.int32()), literal_of(1, pa.int32()))]

_COMPARISONS = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}


def _three_valued(numbers: dict[str, Typed], wanted: Typed, decided: Expression, result: Expression) -> Typed:
    """``result`` where a value decides it; its opposite if none does, NULL if a NULL may be one that does."""
    num_rows, known = numbers["$n"].expression, numbers["$known"].expression
    is_empty = num_rows.is_null() | (num_rows == 0)
    has_null = wanted.expression.is_null() | (known < num_rows)
    nothing = lit(None, pa.bool_())
    # Of no rows ANY is false and ALL true: the opposite of what one value would make it.
    return Typed(Case((is_empty, ~result, decided, result, has_null, nothing, ~result)), pa.bool_())


def _known_type(value: Typed) -> Typed:
    return Typed(lit(None, pa.int32()), pa.int32()) if pa.types.is_null(value.kind) else value


def _as_they_are(schema: pa.Schema) -> Scope:
    return Scope(ScopeColumn(None, one.name, one.name, one.type) for one in schema)


def _columns(number: int) -> str:
    return "one column" if number == 1 else f"{number} columns"


def _single(value: Value, num_rows: Value) -> Value:
    """The kernel of a subquery that is a value: fails where it has several rows."""
    most = compute().max(num_rows).as_py()
    if most is not None and most > 1:
        message = f"a subquery that is a value has {most} rows; it may have one"
        raise ValueError(message)
    return value
