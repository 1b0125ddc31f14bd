"""From the tree of a query to a plan.

A SELECT is made in the order in which SQL means it: FROM and its joins, WHERE, GROUP BY and aggregates, HAVING, OVER,
the columns, DISTINCT. Set operations, ORDER BY and LIMIT come behind. What is not supported is refused by its name.

Source: SQL:2016; Flink's documentation ("Queries"); Calcite's ``SqlToRelConverter``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.conditionals import if_else
from headrace.engine.columns.expressions import col, lit
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.optimizer.stream_traits import is_folded, is_timed
from headrace.engine.plan.plan import Node, Order, OverGroups

from .clock import asks_clock, with_clock
from .contract import Tables
from .correlation import Correlation
from .expressions import STANDS_FOR, ExpressionBinder, is_aggregate_call, whole_number
from .from_clause import FromClause
from .functions.coercion import cast_to, common_type
from .functions.contract import Typed
from .functions.registry import FunctionRegistry
from .group_by import GroupedBinder, has_aggregates, window_call
from .grouping_sets import expanded_keys, key_sets
from .hints import StateTtls, hint_notes
from .order_by import OrderBy, orders_of_result
from .over_clauses import CountWindow, OverBinder, over_calls, with_named_windows
from .parsing.errors import SqlError, SqlText
from .parsing.understood import require_understood
from .relations import Builder, Relation, plain, unique_names
from .scope import Scope, ScopeColumn
from .set_operations import set_operation
from .subqueries import Correlated, Subqueries, own_subqueries
from .window_functions import legacy_window, windowed

__all__ = ["QueryBinder"]

_REFUSED = {
    "connect": "CONNECT BY",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "into": "SELECT INTO",
}


_NO_LIMIT = 1 << 62
"""Of OFFSET without LIMIT: more rows than there can be."""

_COUNTS = ("count", "count_distinct")


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
        self._names = itertools.count()

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
            if isinstance(tree, exp.SetOperation):
                sides = [self.bind(one, known) for one in (tree.this, tree.expression)]
                return self._ordered(set_operation(self.builder, tree, sides), tree)
            if isinstance(tree, exp.Values):
                return self._ordered(self.values(tree), tree)
            if not isinstance(tree, exp.Select):
                message = f"{type(tree).__name__.upper()} is not supported"
                raise SqlError(message)
            return _Select(self, tree, known).bound()

    def correlated(
        self, tree: Any, known: dict[str, Relation], outer: ExpressionBinder, *, is_test: bool = False
    ) -> Correlated:
        """Return the rows of a subquery, and what of them equals what of the rows around it.

        Args:
            tree: The query.
            known: Queries that WITH has given names.
            outer: Makes expressions over the rows around it.
            is_test: Whether it only matters which rows there are.

        Raises:
            SqlError: If it cannot be run, with the place.
        """
        if isinstance(tree, exp.Select):
            with self.text.at(tree):
                return _Select(self, tree, self._with(tree, dict(known)), outer).correlated(is_test=is_test)
        relation = self.bind(tree, known)
        return Correlated(relation, [one.value for one in relation.scope.columns], None)

    def new_name(self, prefix: str) -> str:
        """Return a name for a column that no other column of the statement has."""
        return f"{prefix}{next(self._names)}"

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

    def _ordered(self, relation: Relation, tree: Any) -> Relation:
        """The rows by ORDER BY, LIMIT and OFFSET of a query whose columns are all there."""
        scope = relation.scope
        orders, helpers = orders_of_result(self, tree, scope)
        cut = self.cut(Relation(self.builder.extended(relation.node, helpers), scope), orders, tree)
        return Relation(self.builder.selected(cut.node, plain(scope.columns)), scope) if helpers else cut

    def cut(self, relation: Relation, orders: Sequence[Order], tree: Any, keys: Sequence[str] = ()) -> Relation:
        """Return the rows in an order, or the first of them, or the first of each group of equal keys."""
        limit, offset = self.count(tree.args.get("limit"), "LIMIT"), self.count(tree.args.get("offset"), "OFFSET")
        node = relation.node
        if limit == 0:
            node = self.builder.filtered(node, lit(False, pa.bool_()))
        elif limit is not None:
            skipped = offset or 0
            node = self.builder.top(node, orders, limit + skipped, skipped, keys)
        elif offset is not None:
            node = self.builder.top(node, orders, _NO_LIMIT, offset, keys)
        elif orders:
            node = self.builder.sorted(node, orders)
        return Relation(node, relation.scope)

    def count(self, clause: Any, word: str) -> int | None:
        """Return the number of LIMIT or OFFSET; None without one."""
        if clause is None:
            return None
        number = clause.expression if clause.expression is not None else clause.args.get("count")
        count = whole_number(number)
        if count is None:
            message = f"{word} takes a whole number"
            raise self.text.error(message, clause)
        return count


class _Select:
    """One SELECT under way."""

    def __init__(
        self, queries: QueryBinder, tree: exp.Select, known: dict[str, Relation], outer: ExpressionBinder | None = None
    ) -> None:
        self._outer = outer
        # Of a subquery: the columns by which its rows belong to rows around it, which all steps carry along.
        self._carried: dict[str, Typed] = {}
        self._queries = queries
        self._builder = queries.builder
        self._functions = queries.functions
        self._text = queries.text
        # Names in a subquery may get meanings.
        self._tree = with_named_windows(tree if outer is None else tree.copy(), queries.text)
        self._known = known
        # How long groups live that are not written, if a hint says so.
        self._ttl: int | None = None
        # The column that PROCTIME() is, if it is asked for.
        self._clock: ScopeColumn | None = None

    def bound(self) -> Relation:
        """Return the rows of the SELECT."""
        return self._over_rows(self._rows())

    def _rows(self, correlation: Correlation | None = None) -> Relation:
        """The rows that FROM and WHERE say."""
        tree = self._tree
        for argument, word in _REFUSED.items():
            if tree.args.get(argument):
                message = f"{word} is not supported"
                raise self._text.error(message, tree)
        ttls = StateTtls(tree, self._text)
        relation = FromClause(self._queries, self._known, correlation, ttls).bound(tree)
        ttls.require_known(relation.scope)
        self._ttl = ttls.of(relation.scope) if self._is_grouped(tree.expressions) or tree.args.get("distinct") else None
        notes = (*hint_notes(tree, relation.scope, self._text), *ttls.notes())
        if notes:
            relation = Relation(self._builder.noted(relation.node, notes), relation.scope)
        if asks_clock(*tree.expressions, tree.args.get("order"), tree.args.get("qualify")):
            relation, self._clock = with_clock(self._builder, relation)
        return relation

    def _over_rows(self, relation: Relation) -> Relation:
        projections = self._projections(relation.scope)
        having = self._tree.args.get("having")
        counted = CountWindow.of(self._group_trees())
        if counted is not None:
            return self._in_count_windows(relation, projections, counted)
        binder: ExpressionBinder
        qualify = self._qualify(projections, relation.scope)
        trees = [*(tree for tree, _ in projections), *([] if qualify is None else [qualify])]
        if self._is_grouped(trees):
            relation, binder = self._grouped(relation, projections, having, trees=trees)
        else:
            binder = self._queries.binder(relation.scope)
            relation = self._with_subqueries(relation, binder, trees)
        if any(map(over_calls, trees)):
            over = OverBinder(self._queries, relation, binder, tuple(self._carried.values()))
            relation, binder = over.bound(trees)
        if qualify is not None:
            condition = binder.condition(qualify)
            relation = Relation(self._builder.filtered(relation.node, condition.expression), relation.scope)
        return self._selected(relation, binder, projections)

    def _qualify(self, projections: list[tuple[Any, str]], scope: Scope) -> Any:
        """The condition of QUALIFY, in which columns of SELECT that no table has have become what they are; None
        without one.
        """
        clause = self._tree.args.get("qualify")
        if clause is None:
            return None
        there = {one.name for one in scope.columns}
        named = {name: tree for tree, name in projections if name not in there}
        condition = exp.Paren(this=clause.this.copy())
        for one in list(condition.find_all(exp.Column)):
            if one.name in named and not one.table and one.find_ancestor(exp.Query) is None:
                one.replace(exp.Paren(this=named[one.name].copy()))
        if not over_calls(condition):
            message = "QUALIFY goes by a call of OVER"
            raise self._text.error(message, clause, hint="WHERE is a condition of rows, HAVING one of groups")
        return condition

    def _is_grouped(self, trees: Iterable[Any]) -> bool:
        if self._tree.args.get("group") is not None or self._tree.args.get("having") is not None:
            return True
        return any(has_aggregates(one, self._functions) for one in trees)

    # -- subqueries ----------------------------------------------------------------------------------------------------

    def _with_subqueries(self, relation: Relation, binder: ExpressionBinder, trees: list[Any]) -> Relation:
        """The rows with columns for the subqueries of what is selected and ordered by, which the binder then knows."""
        self._meet_subqueries(binder, trees)
        assert isinstance(binder.subqueries, Subqueries)
        return binder.subqueries.attach(relation)

    def _meet_subqueries(self, binder: ExpressionBinder, trees: list[Any]) -> None:
        binder.subqueries = Subqueries(self._queries, self._known)
        order = self._tree.args.get("order")
        for tree in [*trees, *([] if order is None else order.expressions)]:
            for one in own_subqueries(tree):
                binder.bind(one)

    def correlated(self, *, is_test: bool) -> Correlated:
        """Return the rows as those of a subquery."""
        assert self._outer is not None
        tree = self._tree
        is_cut = any(tree.args.get(one) for one in ("limit", "offset"))
        is_plain = not (
            is_cut or any(map(over_calls, (*tree.expressions, tree.args.get("qualify"))))
            or self._is_grouped(tree.expressions)
        )  # fmt: skip
        clauses = (tree.args.get(one) for one in ("group", "having", "order", "qualify"))
        others = [*tree.expressions, *(one for one in clauses if one is not None)]
        keeps = is_test and is_plain
        around = Correlation(self._queries, self._outer, others, keeps_conditions=keeps)
        relation = self._rows(around)
        projections = self._projections(relation.scope)
        self._carried = around.carried
        if keeps:
            binder = self._queries.binder(relation.scope)
            relation = self._with_subqueries(relation, binder, [tree for tree, _ in projections])
            return Correlated(relation, [binder.bind(tree) for tree, _ in projections], around)
        if tree.args.get("group") is None and self._is_grouped(tree.expressions):
            return self._one_group(relation, projections, around)
        found = self._over_rows(relation)
        limit = tree.args.get("limit")
        values = [one.value for one in found.scope.columns]
        is_single = limit is not None and self._queries.count(limit, "LIMIT") == 1
        return Correlated(found, values, around, is_single=is_single)

    def _one_group(self, relation: Relation, projections: list[tuple[Any, str]], around: Correlation) -> Correlated:
        """Aggregates without GROUP BY: a row for each group of equal keys, and what they are of no rows."""
        if len(projections) != 1:
            message = f"a subquery that is a value takes a query of one column; it has {len(projections)}"
            raise SqlError(message)
        if self._tree.args.get("offset") or self._queries.count(self._tree.args.get("limit"), "LIMIT") == 0:
            message = "LIMIT 0 and OFFSET are not supported behind an aggregate without GROUP BY"
            raise SqlError(message)
        if self._tree.args.get("qualify"):
            message = "QUALIFY is not supported behind an aggregate without GROUP BY in a subquery"
            raise self._text.error(message, self._tree.args["qualify"], hint="HAVING is a condition of the group")
        having = self._tree.args.get("having")
        grouped, binder = self._grouped(relation, projections, having, drops=False)
        value = cast_null(binder.bind(projections[0][0]))
        if having is not None:
            kept = binder.condition(having.this).expression
            value = Typed(if_else(kept, value.expression, lit(None, value.kind)), value.kind)
        used = value.expression.columns_used()
        if used & set(self._carried):
            message = "a column of the query around it beside an aggregate is not supported in a subquery"
            raise SqlError(message, hint="compute with it outside: (SELECT COUNT(*) FROM ...) + a")
        if not used <= set(binder.aggregates):
            message = "a subquery inside an aggregate's subquery is not supported"
            raise SqlError(message, hint="write the inner one in FROM")
        nothing = pa.record_batch({
            name: pa.array([_of_nothing(one)], one.output_type(relation.node.schema))
            for name, one in binder.aggregates.items()
        } or {"$": pa.array([True])})  # fmt: skip
        empty = value.expression.evaluate(nothing)[0]
        node = self._builder.extended(grouped.node, {"$one": value})
        one = Typed(col("$one"), value.kind)
        return Correlated(
            Relation(node, grouped.scope), [one], around, empty, is_single=True, may_be_dropped=having is not None
        )

    # -- the columns ---------------------------------------------------------------------------------------------------

    def _projections(self, scope: Scope) -> list[tuple[Any, str]]:
        """What is selected, and what it is called; ``*`` has become the columns it stands for."""
        found: list[tuple[Any, str]] = []
        for one in self._tree.expressions:
            with self._text.at(one):
                stars = _columns_of_star(one, scope)
                if stars is not None and not stars:
                    message = "* stands for the columns of FROM, and there are none"
                    raise SqlError(message)
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
        clock = () if self._clock is None else (self._clock,)
        sources = {one.column: one for one in (*relation.scope.columns, *clock)}
        scope = Scope(
            _of_result(name, column, value, sources) for name, column, value in zip(names, columns, values, strict=True)
        )
        chosen = {column: cast_null(value) for column, value in zip(columns, values, strict=True)}
        by = OrderBy(self._queries, self._tree, binder, scope, chosen)
        orders = by.bound()
        carried = {name: Typed(col(name), one.kind) for name, one in self._carried.items()}
        node = self._builder.selected(relation.node, {**chosen, **by.beside, **carried})
        if self._tree.args.get("distinct") is not None:
            node = self._with_ttl(self._builder.distinct(node))
        node = self._builder.extended(node, by.behind)
        if self._outer is not None and self._tree.args.get("limit") is None:
            orders = []  # nobody sees it
        cut = self._queries.cut(Relation(node, scope), orders, self._tree, list(carried))
        if not by.beside and not by.behind:
            return cut
        return Relation(self._builder.selected(cut.node, {**plain(scope.columns), **carried}), scope)

    # -- groups --------------------------------------------------------------------------------------------------------

    def _grouped(
        self, relation: Relation, projections: list[tuple[Any, str]], having: Any, *, trees: list[Any] | None = None,
        drops: bool = True,
    ) -> tuple[Relation, GroupedBinder]:  # fmt: skip
        """Rows of groups, and what makes expressions over them: those of SELECT, or of SELECT and QUALIFY."""
        asked = [tree for tree, _ in projections] if trees is None else trees
        trees = self._group_trees()
        windows = [one for one in trees if window_call(one)]
        inner = self._queries.binder(relation.scope)
        sets = key_sets(
            [one for one in trees if not window_call(one)], lambda one: _counted(one, projections), inner.bind
        )
        values = sets.values
        window: dict[str, Typed] = {}
        number = None
        if windows:
            if not sets.is_plain:
                message = "a window in GROUP BY beside sets of keys is not supported"
                raise self._text.error(message, windows[0], hint="group the rows of TABLE(TUMBLE(...))")
            relation, window, names = self._legacy(relation, inner, windows, values)
            inner = self._queries.binder(relation.scope)
            values = [*values, window["start"], window["end"], window["time"]]
            node = relation.node
        else:
            node, names = self._builder.with_keys(relation, values)
        if not sets.is_plain:
            node, names, number = expanded_keys(self._builder, node, names, sets)
        keys = {
            value.expression.structure: Typed(col(name), value.kind) for value, name in zip(values, names, strict=True)
        } | {one.expression.structure: one for one in self._carried.values()}
        by_border = {border: keys[value.expression.structure] for border, value in window.items()}
        binder = GroupedBinder(inner, keys, set(names), by_border, lambda places: sets.grouping(places, number or ""))
        # What is asked for is known when everything has been bound once.
        self._meet_subqueries(binder, asked)
        for tree in asked:
            self._meet_groups(binder, tree)
        condition = None if having is None else binder.condition(having.this)
        for one in [] if self._tree.args.get("order") is None else self._tree.args["order"].expressions:
            if has_aggregates(one.this, self._functions):
                binder.bind(one.this)
        numbered = [*names, *([] if number is None else [number]), *(one for one in self._carried if one not in names)]
        grouped = self._with_ttl(self._builder.aggregated(node, numbered, binder.aggregates))
        assert isinstance(binder.subqueries, Subqueries)
        found = binder.subqueries.attach(Relation(grouped, Scope(self._of_groups(relation.scope, names, values, keys))))
        if condition is not None and drops:
            found = Relation(self._builder.filtered(found.node, condition.expression), found.scope)
        return found, binder

    def _meet_groups(self, binder: GroupedBinder, tree: Any) -> None:
        """Tell of the aggregates of an expression, of calls of OVER in it those of their parts."""
        if not over_calls(tree) or is_aggregate_call(tree, self._functions):
            binder.bind(tree)
            return
        if isinstance(tree, exp.Window):
            arguments = tree.this.expressions
            if arguments and isinstance(arguments[0], exp.Distinct):
                arguments = arguments[0].expressions
            for part in (*tree.args.get("partition_by", ()), *_order_trees(tree), *arguments):
                if not isinstance(part, exp.Star):
                    binder.bind(part)
            return
        for one in tree.iter_expressions():
            if over_calls(one) or has_aggregates(one, self._functions):
                self._meet_groups(binder, one)

    def _in_count_windows(
        self, relation: Relation, projections: list[tuple[Any, str]], window: CountWindow
    ) -> Relation:
        """Groups of so many rows: of the rows that end one, with aggregates over its rows."""
        binder = self._queries.binder(relation.scope)
        window.require_time(binder)
        self._tree = self._tree.copy()
        self._tree.set("group", exp.Group(expressions=list(window.keys)))
        # Refuses what is neither a key nor of an aggregate.
        _, grouped = self._grouped(relation, projections, None)
        self._tree.set("group", None)
        place, over = window.place, OverBinder(self._queries, relation, binder)
        relation, known = over.bound([place])
        number = known.bind(place)
        assert isinstance(relation.node, OverGroups)
        if not (is_timed(relation.node) and all(map(is_folded, grouped.aggregates.values()))):
            # Rows of one time that are taken back and given anew may come in another order: frames go by the number.
            column = ScopeColumn(None, "$number", number.expression.structure[1], number.kind, is_hidden=True)
            relation = Relation(relation.node, Scope([*relation.scope.columns, column], relation.scope.clock))
            over = OverBinder(self._queries, relation, self._queries.binder(relation.scope))
            window = window._replace(time=_column_tree(column))
        framed = [(window.of_frames(tree, self._functions), name) for tree, name in projections]
        relation, known = over.bound([tree for tree, _ in framed])
        ends = self._builder.filtered(relation.node, window.is_end(number))
        return self._selected(Relation(ends, relation.scope), known, framed)

    def _with_ttl(self, node: Node) -> Node:
        """Groups that live as long as the hint says."""
        return node if self._ttl is None else replace(node, ttls_ms=(self._ttl,))

    def _of_groups(self, scope: Scope, names: Sequence[str], values: Sequence[Typed], keys: Any) -> list[ScopeColumn]:
        sources = {one.column: one for one in scope.columns}
        result = []
        for name, value in zip(names, values, strict=True):
            structure = value.expression.structure
            known = sources.get(structure[1]) if structure[0] == "col" else None
            result.append(
                ScopeColumn(None, name, name, value.kind) if known is None
                else replace(known, column=name, is_event_time=known.window == "time", is_processing_time=False)
            )  # fmt: skip
        return result

    def _group_trees(self) -> list[Any]:
        clause = self._tree.args.get("group")
        if clause is None:
            return []
        for word in ("grouping_sets", "cube", "rollup", "totals", "all"):
            if clause.args.get(word):
                message = f"GROUP BY ... WITH {word.upper().replace('_', ' ')} is not supported"
                raise self._text.error(message, clause, hint="write GROUP BY CUBE (a, b), ROLLUP or GROUPING SETS")
        return list(clause.expressions)

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
        relation = windowed(self._builder, Relation(extended, relation.scope), window)
        borders = relation.scope.columns[-3:]
        found = {one.window or "": Typed(col(one.column), one.kind) for one in borders}
        return relation, found, [*names, *(one.column for one in borders)]


def _of_nothing(aggregate: Aggregate) -> Any:
    """What an aggregate of no rows is in SQL: null, but for counts and functions of the program."""
    if aggregate.name in ("user_defined", "distinct"):
        return aggregate.result(aggregate.create())
    return 0 if aggregate.name in _COUNTS else None


def _counted(tree: Any, projections: list[tuple[Any, str]]) -> Any:
    """What an expression of GROUP BY stands for: a number counts the columns of SELECT."""
    place = whole_number(tree)
    return projections[place - 1][0] if place is not None and 1 <= place <= len(projections) else tree


def cast_null(value: Typed) -> Typed:
    """Make a NULL that nothing gives a type an INT, as in Flink's results of no type."""
    return cast_to(value, pa.int32()) if pa.types.is_null(value.kind) else value


def _of_result(name: str, column: str, value: Typed, sources: dict[str, ScopeColumn]) -> ScopeColumn:
    structure = value.expression.structure
    source = sources.get(structure[1]) if structure[0] == "col" else None
    if pa.types.is_null(value.kind):
        return ScopeColumn(None, name, column, pa.int32(), is_untyped=True)
    kind = value.kind
    if source is None:
        return ScopeColumn(None, name, column, kind)
    return replace(source, table=None, name=name, column=column, kind=kind, is_untyped=False, is_hidden=False)


def _columns_of_star(tree: Any, scope: Scope) -> list[ScopeColumn] | None:
    if isinstance(tree, exp.Star):
        return [one for one in scope.columns if not one.is_hidden]
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
