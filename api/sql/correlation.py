"""What a subquery says of the rows around it.

What its WHERE says to be equal there and here becomes the keys of a join. Where more is named of the rows around, the
different values that they have come to the subquery as a table of their own: its rows are joined with them, and all
steps that follow carry them along, so that a group, an order and a place are those of one row around.

Source: Neumann, Kemper: "Unnesting Arbitrary Queries"; Calcite's ``RelDecorrelator`` (value generators).
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.conditionals import if_else
from headrace.engine.columns.expressions import col, lit
from headrace.engine.optimizer.rewriting import rewritten
from headrace.engine.plan.plan import Node

from .contract import Queries
from .expressions import STANDS_FOR, ExpressionBinder, is_aggregate_call
from .functions import operators as sql
from .functions.coercion import cast_to, together
from .functions.contract import Typed, literal_of
from .parsing.errors import SqlError
from .parsing.sql_types import sql_name
from .relations import Builder, Relation
from .scope import NestedScope, Scope, ScopeColumn

__all__ = ["Around", "Correlation", "with_rows_around"]

_STRICT = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between)
_OPERANDS = (exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Around(Node):
    """Stands for the different values that the rows around a subquery have, until those rows are known.

    Attributes:
        values: What each column is of a row around.
        known: Columns of which only values that are not NULL matter.
    """

    values: Mapping[str, Typed]
    known: tuple[str, ...]


def with_rows_around(builder: Builder, node: Node, around: Around | None, rows: Node) -> Node:
    """Return the plan of a subquery in which the rows around it stand where a placeholder did."""
    if around is None:
        return node
    values = builder.selected(rows, around.values)
    for name in around.known:
        values = builder.filtered(values, col(name).is_not_null())
    different = builder.distinct(values)
    return rewritten((node,), lambda one: different if one.id == around.id else one)[0]


class Correlation:
    """The columns of the query around a subquery that it names.

    Args:
        queries: Makes plans.
        outer: Makes expressions over the rows around.
        others: What of the subquery may name them beside FROM and WHERE.
        keeps_conditions: Whether conditions of both rows may stay what they are, for a join that asks them.

    Attributes:
        keys: What equals what: of the row around, and of the columns that are carried.
        conditions: What else is said of both rows.
        carried: The columns of the subquery that keys go by.
        around: What the subquery's plan has in place of the rows around; None if it needs none.
    """

    def __init__(
        self, queries: Queries, outer: ExpressionBinder, others: Sequence[Any], *, keeps_conditions: bool
    ) -> None:
        self.keys: list[tuple[Typed, Typed]] = []
        self.conditions: list[Any] = []
        self.carried: dict[str, Typed] = {}
        self.around: Around | None = None
        self._queries = queries
        self._text = queries.text
        self._builder = queries.builder
        self._outer = outer
        self._others = list(others)
        self._keeps_conditions = keeps_conditions

    def applied(self, relation: Relation, foreign: Sequence[Any], asked: Sequence[Any]) -> Relation:
        """Return the subquery's rows with the columns by which they belong to rows around.

        Args:
            relation: Its rows.
            foreign: What its WHERE says that cannot be said of them alone.
            asked: What its WHERE says with subqueries.

        Raises:
            SqlError: If a name means nothing here or there.
        """
        own = self._queries.binder(relation.scope)
        pairs, rest = self._equations(foreign, own)
        named = [one for tree in (*asked, *self._others) for one in self._named(tree, own)]
        if not named and (self._keeps_conditions or not rest):
            self.conditions = rest
            return self._with_keys(relation, pairs)
        return self._with_values(relation, pairs, rest, named)

    # -- equations -----------------------------------------------------------------------------------------------------

    def _equations(self, foreign: Sequence[Any], own: ExpressionBinder) -> tuple[list[tuple[Typed, Typed]], list[Any]]:
        """What is equal there and here, and everything else; what is said of the row around alone is a key, too."""
        pairs, rest = [], []
        for part in foreign:
            with self._text.at(part):
                pair = _equal_around(part, own, self._outer)
                if pair is not None:
                    pairs.append(pair)
                elif _is_bound(part, self._outer):
                    self.keys.append((self._outer.condition(part), literal_of(True, pa.bool_())))
                else:
                    if self._keeps_conditions:
                        nested = NestedScope(own.scope, self._outer.scope)
                        self._queries.binder(nested).condition(part)
                    rest.append(part)
        return pairs, rest

    def _with_keys(self, relation: Relation, pairs: Sequence[tuple[Typed, Typed]]) -> Relation:
        if self._keeps_conditions:
            self.keys += pairs
            return relation
        for around, own in pairs:
            name = self._queries.new_name("$equal")
            self.carried[name] = own
            self.keys.append((around, Typed(col(name), own.kind)))
        node = self._builder.extended(relation.node, self.carried)
        self.carried = {name: Typed(col(name), one.kind) for name, one in self.carried.items()}
        scope = Scope((*relation.scope.columns, *_hidden(self.carried)))
        return Relation(node, scope)

    # -- values of the rows around -------------------------------------------------------------------------------------

    def _with_values(
        self, relation: Relation, pairs: Sequence[tuple[Typed, Typed]], rest: Sequence[Any],
        named: Sequence[tuple[exp.Column, Typed]],
    ) -> Relation:  # fmt: skip
        """The rows beside each of the different values around for which the conditions are true."""
        own = self._queries.binder(relation.scope)
        values: dict[str, Typed] = {}
        known = [self._column(values, around) for around, _ in pairs]
        for part in rest:
            columns = [self._marked(values, *one) for one in self._named(part, own)]
            known += columns if _is_strict(part) else []
        for column, value in named:
            self._marked(values, column, value)
        for name, value in values.items():
            here = Typed(col(name), value.kind)
            self.carried[name] = here
            self.keys += [(value, here)] if name in known else _same(value, here)
        schema = pa.schema([pa.field(name, value.kind) for name, value in values.items()])
        self.around = self._builder.placeholder(Around, schema, values=values, known=tuple(dict.fromkeys(known)))
        scope = Scope(_hidden(self.carried))
        keys = [(here, self.carried[name]) for (_, here), name in zip(pairs, known, strict=False)]
        everything = literal_of(1, pa.int32())

        def condition(both: Scope) -> Typed | None:
            binder = self._queries.binder(both)
            found = None
            for part in rest:
                value = binder.condition(part)
                found = value if found is None else sql.both(found, value)
            return found

        joined = Relation(self.around, scope)
        return self._builder.joined(relation, joined, keys or [(everything, everything)], "inner", condition)

    def _column(self, values: dict[str, Typed], value: Typed) -> str:
        """The column that a value of the rows around has in the subquery."""
        for name, one in values.items():
            if one.expression.structure == value.expression.structure:
                return name
        if pa.types.is_nested(value.kind):
            message = f"a column of type {sql_name(value.kind)} of the query around it is not supported in a subquery"
            raise SqlError(message, hint="name its parts instead, or join the tables in FROM")
        name = self._queries.new_name("$around")
        values[name] = value
        return name

    def _marked(self, values: dict[str, Typed], column: exp.Column, value: Typed) -> str:
        """As `_column`; the tree means it from here on."""
        with self._text.at(column):
            value = cast_to(value, pa.int32()) if pa.types.is_null(value.kind) else value
            name = self._column(values, value)
        column.meta[STANDS_FOR] = _hidden_column(name, value.kind)
        return name

    def _named(self, tree: Any, own: ExpressionBinder) -> Iterator[tuple[exp.Column, Typed]]:
        """The columns of the query around that a tree names, and what they are there."""
        for column in tree.find_all(exp.Column):
            if isinstance(column.this, exp.Star) or _is_bound(column, own):
                continue
            query = _query_inside(column, tree)
            if query is not None and not _is_of_outside(column, query):
                continue
            is_of_other_table = bool(column.table) and all(one.table != column.table for one in own.scope.columns)
            if (query is not None or not is_of_other_table) and not _is_bound(column, self._outer):
                continue  # what binds it says what is there
            self._require_own_aggregate(column, tree, own)
            yield column, self._outer.bind(column)

    def _require_own_aggregate(self, column: exp.Column, tree: Any, own: ExpressionBinder) -> None:
        """An aggregate of columns of the query around alone is one of that query's groups."""
        call: Any = column
        while call is not tree and not is_aggregate_call(call, self._queries.functions):
            call = call.parent
        if not is_aggregate_call(call, self._queries.functions):
            return
        if not any(_is_bound(one, own) for one in call.find_all(exp.Column)):
            message = f"{call.sql()} is an aggregate of the query around, which is not supported in a subquery"
            raise self._text.error(message, call, hint="compute it in a query in FROM")


def _equal_around(tree: Any, own: ExpressionBinder, outer: ExpressionBinder) -> tuple[Typed, Typed] | None:
    if not isinstance(tree, exp.EQ):
        return None
    for here, there in ((tree.this, tree.expression), (tree.expression, tree.this)):
        if _has_names(here) and _is_bound(here, own) and not _is_bound(there, own) and _is_bound(there, outer):
            same = together([outer.bind(there), own.bind(here)])
            return same[0], same[1]
    return None


def _hidden_column(name: str, kind: pa.DataType) -> ScopeColumn:
    return ScopeColumn(None, name, name, kind, is_hidden=True)


def _hidden(columns: Mapping[str, Typed]) -> Iterator[ScopeColumn]:
    return (_hidden_column(name, one.kind) for name, one in columns.items())


def _query_inside(column: Any, tree: Any) -> Any:
    """The outermost query inside a tree that a column stands in; None if it stands in none."""
    found, one = None, column
    while one is not tree:
        one = one.parent
        if isinstance(one, exp.Query) and not isinstance(one, exp.Subquery):
            found = one
    return found


def _is_of_outside(column: exp.Column, query: Any) -> bool:
    """Whether a column has a table's name before it that a query inside gives no table."""
    inside = {one.alias_or_name for one in query.find_all(exp.Table, exp.Subquery, exp.Lateral, exp.Unnest, exp.CTE)}
    return bool(column.table) and column.table not in inside


def _is_strict(tree: Any) -> bool:
    """Whether a condition is true for no row where one of its columns is NULL."""
    if not isinstance(tree, _STRICT):
        return False
    return all(isinstance(one, _OPERANDS) for one in tree.walk() if one is not tree)


def _same(around: Typed, here: Typed) -> list[tuple[Typed, Typed]]:
    """What is equal if two values are, or are both NULL."""
    filler = lit(_filler(here.kind), here.kind)
    filled = [Typed(if_else(one.expression.is_null(), filler, one.expression), one.kind) for one in (around, here)]
    return [(sql.is_null(around), sql.is_null(here)), (filled[0], filled[1])]


def _filler(kind: pa.DataType) -> Any:
    """A value of a type."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b""
    if pa.types.is_decimal(kind):
        return decimal.Decimal(0)
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_date32(kind):
        return pa.scalar(0, pa.int32()).cast(kind).as_py()
    return pa.scalar(0, pa.int64()).cast(kind).as_py()


def _has_names(tree: Any) -> bool:
    return tree.find(exp.Column) is not None


def _is_bound(tree: Any, binder: ExpressionBinder) -> bool:
    try:
        binder.bind(tree)
    except SqlError:
        return False
    return True
