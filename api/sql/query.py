"""From the tree of a query to a plan.

A SELECT is made in the order in which SQL means it: FROM and its joins, WHERE, GROUP BY and aggregates, HAVING, OVER,
the columns, DISTINCT. Set operations, ORDER BY and LIMIT come behind. What is not supported is refused by its name.

Source: SQL:2016; Flink's documentation ("Queries"); Calcite's ``SqlToRelConverter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col, lit
from headrace.engine.plan.plan import Order

from .contract import Tables
from .expressions import STANDS_FOR, ExpressionBinder, whole_number
from .from_clause import FromClause
from .functions.coercion import cast_to, common_type
from .functions.contract import Typed
from .functions.registry import FunctionRegistry
from .grouping import GroupedBinder, has_aggregates, window_call
from .over import OverBinder, over_calls, require_usual_nulls
from .parsing.errors import SqlError, SqlText
from .parsing.understood import require_understood
from .relations import Builder, Relation, plain, unique_names
from .scope import Scope, ScopeColumn
from .windows import legacy_window

__all__ = ["QueryBinder"]

_REFUSED = {
    "match": "MATCH_RECOGNIZE",
    "qualify": "QUALIFY",
    "connect": "CONNECT BY",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "into": "SELECT INTO",
}


class QueryBinder:
    """Makes plans of queries.

    Args:
        tables: What names of tables mean.
        functions: What calls mean.
        builder: Makes nodes.
        text: Of the statement, for errors.
    """

    def __init__(self, tables: Tables, functions: FunctionRegistry, builder: Builder, text: SqlText) -> None:
        self.tables = tables
        self.functions = functions
        self.builder = builder
        self.text = text

    def over(self, text: SqlText) -> QueryBinder:
        """Return the same for another text: that of a view."""
        return QueryBinder(self.tables, self.functions, self.builder, text)

    def bind(self, tree: Any, known: dict[str, Relation] | None = None) -> Relation:
        """Return the plan of a query.

        Args:
            tree: SELECT, VALUES, a set operation.
            known: Queries that WITH has given names.

        Raises:
            SqlError: If it cannot be run, with the place.
        """
        if known is None:
            require_understood(tree, self.text)
        with self.text.at(tree):
            known = self._with(tree, dict(known or {}))
            if isinstance(tree, exp.Subquery):
                return self._ordered(self.bind(tree.this, known), tree)
            if isinstance(tree, exp.Union):
                return self._ordered(self._united(tree, known), tree)
            if isinstance(tree, exp.Values):
                return self._ordered(self.values(tree), tree)
            if not isinstance(tree, exp.Select):
                message = f"{type(tree).__name__.upper()} is not supported"
                raise SqlError(message)
            return _Select(self, tree, known).bound()

    def binder(self, scope: Scope) -> ExpressionBinder:
        """Return what makes expressions over a scope."""
        return ExpressionBinder(scope, self.functions, self.text)

    def _with(self, tree: Any, known: dict[str, Relation]) -> dict[str, Relation]:
        clause = tree.args.get("with_")
        if clause is None:
            return known
        if clause.args.get("recursive"):
            message = "WITH RECURSIVE is not supported"
            raise SqlError(message)
        for one in clause.expressions:
            relation = self.bind(one.this, known)
            names = [column.name for column in one.args["alias"].columns]
            known[one.alias] = Relation(relation.node, relation.scope.under(one.alias, names))
        return known

    def values(self, tree: exp.Values) -> Relation:
        """Return the rows of VALUES."""
        binder = self.binder(Scope(()))
        rows = [[binder.bind(one) for one in row.expressions] for row in tree.expressions]
        if len({len(row) for row in rows}) != 1:
            message = "the rows of VALUES have as many values each"
            raise SqlError(message)
        kinds = [common_type([one.kind for one in column]) for column in zip(*rows, strict=True)]
        names = [f"EXPR${i}" for i in range(len(kinds))]
        unit = pa.record_batch({"$": pa.array([True])})
        columns = [
            pa.concat_arrays([cast_to(one, kind).expression.evaluate(unit) for one in column])
            for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
        ]
        node = self.builder.constant(pa.table(columns, names=names))
        scope = Scope(ScopeColumn(None, name, name, kind) for name, kind in zip(names, kinds, strict=True))
        return Relation(node, scope)

    # -- set operations, order -----------------------------------------------------------------------------------------

    def _united(self, tree: exp.Union, known: dict[str, Relation]) -> Relation:
        sides = [self.bind(one, known) for one in (tree.this, tree.expression)]
        widths = [len(side.scope.columns) for side in sides]
        if widths[0] != widths[1]:
            message = f"UNION needs as many columns on both sides; there are {widths[0]} and {widths[1]}"
            raise SqlError(message)
        pairs = list(zip(*(side.scope.columns for side in sides), strict=True))
        kinds = [common_type([one.kind for one in pair]) for pair in pairs]
        names = [one.name for one in sides[0].scope.columns]
        columns = unique_names(names)
        nodes = [
            self.builder.selected(side.node, {
                column: cast_to(Typed(col(one.column), one.kind), kind)
                for column, one, kind in zip(columns, side.scope.columns, kinds, strict=True)
            })
            for side in sides
        ]  # fmt: skip
        node = self.builder.united(nodes)
        if tree.args.get("distinct", True):
            node = self.builder.distinct(node)
        scope = Scope(
            ScopeColumn(None, name, column, kind, is_event_time=all(one.is_event_time for one in pair))
            for name, column, kind, pair in zip(names, columns, kinds, pairs, strict=True)
        )
        return Relation(node, scope)

    def _ordered(self, relation: Relation, tree: Any) -> Relation:
        """The rows by ORDER BY, LIMIT and OFFSET of a query whose columns are all there."""
        orders = self.orders(tree.args.get("order"), relation.scope, self.binder(relation.scope))
        return self.cut(relation, orders, tree)

    def orders(self, clause: Any, scope: Scope, binder: ExpressionBinder) -> list[Order]:
        """Return the columns of an ORDER BY; a number counts the columns of the result."""
        orders = []
        for one in [] if clause is None else clause.expressions:
            with self.text.at(one):
                orders.append(_order(one, scope, binder))
        return orders

    def cut(self, relation: Relation, orders: Sequence[Order], tree: Any) -> Relation:
        """Return the rows in an order, or the first of them."""
        limit, offset = self._count(tree.args.get("limit"), "LIMIT"), self._count(tree.args.get("offset"), "OFFSET")
        node = relation.node
        if limit == 0:
            node = self.builder.filtered(node, lit(False, pa.bool_()))
        elif limit is not None:
            skipped = offset or 0
            node = self.builder.top(node, orders, limit + skipped, skipped)
        elif offset is not None:
            message = "OFFSET needs a LIMIT"
            raise self.text.error(message, tree.args["offset"])
        elif orders:
            node = self.builder.sorted(node, orders)
        return Relation(node, relation.scope)

    def _count(self, clause: Any, word: str) -> int | None:
        if clause is None:
            return None
        number = clause.expression if clause.expression is not None else clause.args.get("count")
        count = whole_number(number)
        if count is None:
            message = f"{word} takes a whole number"
            raise self.text.error(message, clause)
        return count


def _order(tree: Any, scope: Scope, binder: ExpressionBinder) -> Order:
    value = tree.this
    if isinstance(value, exp.Literal) and not value.is_string:
        place = int(value.name)
        if not 1 <= place <= len(scope.columns):
            message = f"ORDER BY {place}: there are {len(scope.columns)} columns"
            raise SqlError(message)
        column = scope.columns[place - 1].column
    else:
        structure = binder.bind(value).expression.structure
        if structure[0] != "col":
            message = "ORDER BY takes columns of the result"
            raise SqlError(message, hint="give the expression a name in SELECT")
        column = structure[1]
    return _by(column, tree)


def _by(column: str, tree: Any) -> Order:
    require_usual_nulls(tree)
    return Order(column, not tree.args.get("desc"))


class _Select:
    """One SELECT under way."""

    def __init__(self, queries: QueryBinder, tree: exp.Select, known: dict[str, Relation]) -> None:
        self._queries = queries
        self._builder = queries.builder
        self._functions = queries.functions
        self._text = queries.text
        self._tree = tree
        self._known = known

    def bound(self) -> Relation:
        tree = self._tree
        for argument, word in _REFUSED.items():
            if tree.args.get(argument):
                message = f"{word} is not supported"
                raise self._text.error(message, tree)
        relation = FromClause(self._queries, self._known).bound(tree)
        projections = self._projections(relation.scope)
        having = tree.args.get("having")
        is_grouped = tree.args.get("group") is not None or having is not None
        binder: ExpressionBinder
        if is_grouped or any(has_aggregates(one, self._functions) for one, _ in projections):
            relation, binder, projections = self._grouped(relation, projections, having)
        else:
            binder = self._queries.binder(relation.scope)
        if any(over_calls(one) for one, _ in projections):
            relation, binder = OverBinder(self._queries, relation, binder).bound([one for one, _ in projections])
        return self._selected(relation, binder, projections)

    # -- the columns ---------------------------------------------------------------------------------------------------

    def _projections(self, scope: Scope) -> list[tuple[Any, str]]:
        """What is selected, and what it is called; ``*`` has become the columns it stands for."""
        found: list[tuple[Any, str]] = []
        for one in self._tree.expressions:
            with self._text.at(one):
                stars = _columns_of_star(one, scope)
            if stars is not None:
                found += [(_column_tree(column), column.name) for column in stars]
                continue
            name = one.alias if isinstance(one, exp.Alias) else _own_name(one)
            tree = one.this if isinstance(one, exp.Alias) else one
            found.append((tree, name or f"EXPR${len(found)}"))
        return found

    def _selected(self, relation: Relation, binder: ExpressionBinder, projections: list[tuple[Any, str]]) -> Relation:
        names = [name for _, name in projections]
        columns = unique_names(names)
        values = [binder.bind(tree) for tree, _ in projections]
        sources = {one.column: one for one in relation.scope.columns}
        scope = Scope(
            _of_result(name, column, value, sources) for name, column, value in zip(names, columns, values, strict=True)
        )
        chosen = {column: cast_null(value) for column, value in zip(columns, values, strict=True)}
        helpers: dict[str, Typed] = {}
        is_distinct = self._tree.args.get("distinct") is not None
        orders = self._orders(binder, scope, chosen, helpers, is_distinct=is_distinct)
        node = self._builder.selected(relation.node, {**chosen, **helpers})
        if is_distinct:
            node = self._builder.distinct(node)
        cut = self._queries.cut(Relation(node, scope), orders, self._tree)
        if not helpers:
            return cut
        return Relation(self._builder.selected(cut.node, plain(scope.columns)), scope)

    def _orders(self, binder: ExpressionBinder, scope: Scope, chosen: dict[str, Typed], helpers: dict[str, Typed], *,
                is_distinct: bool) -> list[Order]:  # fmt: skip
        """The columns of ORDER BY: of the result, or helpers that are computed beside it."""
        orders = []
        clause = self._tree.args.get("order")
        for one in [] if clause is None else clause.expressions:
            with self._text.at(one):
                try:
                    orders.append(_order(one, scope, self._queries.binder(scope)))
                    continue
                except SqlError:
                    if isinstance(one.this, exp.Literal) or is_distinct:
                        raise
                value = binder.bind(one.this)
                same = [
                    name for name, known in chosen.items() if known.expression.structure == value.expression.structure
                ]
                name = same[0] if same else unique_names([f"$order{len(helpers)}"], chosen)[0]
                if not same:
                    helpers[name] = value
                orders.append(_by(name, one))
        return orders

    # -- groups --------------------------------------------------------------------------------------------------------

    def _grouped(
        self, relation: Relation, projections: list[tuple[Any, str]], having: Any
    ) -> tuple[Relation, ExpressionBinder, list[tuple[Any, str]]]:
        """Rows of groups, and what makes expressions over them."""
        trees = self._group_trees(projections)
        windows = [one for one in trees if window_call(one)]
        trees = [one for one in trees if not window_call(one)]
        inner = self._queries.binder(relation.scope)
        values = [inner.bind(one) for one in trees]
        window: dict[str, Typed] = {}
        if windows:
            relation, window, names = self._legacy(relation, inner, windows, values)
            inner = self._queries.binder(relation.scope)
            values += [window["start"], window["end"], window["time"]]
            node = relation.node
        else:
            node, names = self._builder.with_keys(relation, values)
        keys = {
            value.expression.structure: Typed(col(name), value.kind) for value, name in zip(values, names, strict=True)
        }
        by_border = {border: keys[value.expression.structure] for border, value in window.items()}
        binder = GroupedBinder(inner, keys, set(names), by_border)
        # What is asked for is known when everything has been bound once.
        for tree, _ in projections:
            if not over_calls(tree):
                binder.bind(tree)
            else:
                for one in over_calls(tree):
                    for part in (*one.args.get("partition_by", ()), *_order_trees(one), *one.this.expressions):
                        if not isinstance(part, exp.Star):
                            binder.bind(part)
        condition = None if having is None else binder.condition(having.this)
        for one in [] if self._tree.args.get("order") is None else self._tree.args["order"].expressions:
            if has_aggregates(one.this, self._functions):
                binder.bind(one.this)
        grouped = self._builder.aggregated(node, names, binder.aggregates)
        if condition is not None:
            grouped = self._builder.filtered(grouped, condition.expression)
        scope = Scope(self._of_groups(relation.scope, names, values, keys))
        return Relation(grouped, scope), binder, projections

    def _of_groups(self, scope: Scope, names: Sequence[str], values: Sequence[Typed], keys: Any) -> list[ScopeColumn]:
        sources = {one.column: one for one in scope.columns}
        result = []
        for name, value in zip(names, values, strict=True):
            structure = value.expression.structure
            known = sources.get(structure[1]) if structure[0] == "col" else None
            result.append(
                ScopeColumn(None, name, name, value.kind) if known is None
                else replace(known, column=name, is_event_time=known.window == "time")
            )  # fmt: skip
        return result

    def _group_trees(self, projections: list[tuple[Any, str]]) -> list[Any]:
        clause = self._tree.args.get("group")
        if clause is None:
            return []
        for word in ("grouping_sets", "cube", "rollup", "totals", "all"):
            if clause.args.get(word):
                message = f"GROUP BY {word.upper().replace('_', ' ')} is not supported"
                raise self._text.error(message, clause)
        trees = []
        for one in clause.expressions:
            if isinstance(one, exp.Literal) and not one.is_string and 1 <= int(one.name) <= len(projections):
                trees.append(projections[int(one.name) - 1][0])
            else:
                trees.append(one)
        return trees

    def _legacy(
        self, relation: Relation, inner: ExpressionBinder, windows: list[Any], values: Sequence[Typed]
    ) -> tuple[Relation, dict[str, Typed], list[str]]:
        """The rows in a group window, its columns, and what all columns are called that the groups go by."""
        if len(windows) > 1:
            message = "GROUP BY takes one window"
            raise self._text.error(message, windows[1])
        tree = windows[0]
        with self._text.at(tree):
            time = inner.bind(tree.expressions[0]).expression.structure
            column = next((one for one in relation.scope.columns if time == ("col", one.column)), None)
            if column is None:
                message = "a window in GROUP BY is of a column"
                raise SqlError(message)
            extended, names = self._builder.with_keys(relation, list(values))
            window = legacy_window(tree, column, self._text, tuple(names))
        relation = self._queries.builder.windowed_relation(Relation(extended, relation.scope), window)
        borders = relation.scope.columns[-3:]
        found = {one.window or "": Typed(col(one.column), one.kind) for one in borders}
        return relation, found, [*names, *(one.column for one in borders)]


def cast_null(value: Typed) -> Typed:
    """A NULL that nothing gives a type is an INT, as in Flink's results of no type."""
    return cast_to(value, pa.int32()) if pa.types.is_null(value.kind) else value


def _of_result(name: str, column: str, value: Typed, sources: dict[str, ScopeColumn]) -> ScopeColumn:
    structure = value.expression.structure
    source = sources.get(structure[1]) if structure[0] == "col" else None
    kind = pa.int32() if pa.types.is_null(value.kind) else value.kind
    if source is None:
        return ScopeColumn(None, name, column, kind)
    return ScopeColumn(None, name, column, kind, source.is_event_time, source.window)


def _columns_of_star(tree: Any, scope: Scope) -> list[ScopeColumn] | None:
    if isinstance(tree, exp.Star):
        return list(scope.columns)
    if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star):
        return scope.of_table(tree.table)
    return None


def _column_tree(column: ScopeColumn) -> exp.Column:
    table = None if column.table is None else exp.to_identifier(column.table, quoted=True)
    tree = exp.Column(this=exp.to_identifier(column.name, quoted=True), table=table)
    tree.meta[STANDS_FOR] = column
    return tree


def _own_name(tree: Any) -> str | None:
    if isinstance(tree, exp.Dot):
        return str(tree.expression.name)
    return tree.name if isinstance(tree, exp.Column) else None


def _order_trees(window: Any) -> list[Any]:
    order = window.args.get("order")
    return [] if order is None else [one.this for one in order.expressions]
