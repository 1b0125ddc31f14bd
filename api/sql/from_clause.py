"""FROM and WHERE: tables, windows over them, subqueries, joins.

Conditions that say which columns of two tables are equal become the keys of their join, whether they stand in ON or in
WHERE; so tables that a comma separates are joined as well as others. What is left is a filter.

Source: SQL:2016; Flink's documentation ("Joins", "Windowing table-valued functions").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col
from headrace.engine.errors import nearest

from .contract import Queries
from .expressions import conjuncts
from .functions import operators as sql
from .functions.coercion import together
from .functions.contract import Typed, literal_of
from .grouping import has_aggregates
from .parsing.errors import SqlError
from .relations import Relation
from .scope import Scope
from .windows import is_window_function, window_arguments, window_of

__all__ = ["FromClause"]

_SIDES = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


class FromClause:
    """The tables of one SELECT, and what WHERE says of them."""

    def __init__(self, queries: Queries, known: dict[str, Relation]) -> None:
        self._queries = queries
        self._text = queries.text
        self._builder = queries.builder
        self._known = known

    def bound(self, tree: exp.Select) -> Relation:
        """Return the rows that the SELECT begins with."""
        clause = tree.args.get("from_")
        where = tree.args.get("where")
        pool = conjuncts(None if where is None else where.this)
        if clause is None:
            relation = Relation(self._builder.constant(pa.table({"$one": pa.array([True])})), Scope(()))
        else:
            relation = self.table(clause.this)
            joins = [*(clause.this.args.get("joins") or ()), *(tree.args.get("joins") or ())]
            self._require_one_meaning(joins)
            for i, join in enumerate(joins):
                # A join behind that gives rows of its right table alone: WHERE drops them, a condition below does not.
                is_kept = any((one.args.get("side") or "").upper() in ("RIGHT", "FULL") for one in joins[i + 1 :])
                with self._text.at(join):
                    relation = self._joined(relation, join, [] if is_kept else pool)
        return self._filtered(relation, pool)

    def _require_one_meaning(self, joins: list[Any]) -> None:
        """JOIN binds more than a comma; where it gives rows of its right table alone, that makes a difference."""
        commas = [i for i, one in enumerate(joins) if not any(one.args.get(name) for name in ("side", "kind", "on"))]
        for one in joins[commas[0] :] if commas else ():
            side = (one.args.get("side") or "").upper()
            if side in ("RIGHT", "FULL"):
                message = f"{side} JOIN behind a comma is not supported"
                raise self._text.error(message, one, hint="write JOIN in place of the comma")

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self, tree: Any) -> Relation:
        """Return the rows of a table, a subquery, or windows over one, under its alias."""
        with self._text.at(tree):
            alias = tree.args.get("alias")
            names = [] if alias is None else [one.name for one in alias.args.get("columns") or ()]
            if isinstance(tree, exp.Subquery):
                relation = self._queries.bind(tree.this, self._known)
                return self._under(relation, tree.alias or None, names)
            if isinstance(tree, exp.Values):
                return self._under(self._queries.values(tree), tree.alias or None, names)
            if not isinstance(tree, exp.Table):
                message = f"{type(tree).__name__.upper()} in FROM is not supported"
                raise SqlError(message)
            return self._of_table(tree, names)

    def _under(self, relation: Relation, alias: str | None, names: list[str]) -> Relation:
        if alias is None:
            return Relation(relation.node, Scope(replace(one, table=None) for one in relation.scope.columns))
        return Relation(relation.node, relation.scope.under(alias, names))

    def _of_table(self, tree: exp.Table, names: list[str]) -> Relation:
        for argument, word in (("version", "FOR SYSTEM_TIME AS OF"), ("sample", "TABLESAMPLE"), ("pivots", "PIVOT")):
            if tree.args.get(argument):
                message = f"{word} is not supported"
                raise SqlError(message)
        if isinstance(tree.this, exp.Anonymous):
            call = tree.this
            if str(call.name).upper() == "TABLE" and len(call.expressions) == 1:
                call = call.expressions[0]
            if not is_window_function(call):
                message = f"{call.name}(...) is no table"
                raise SqlError(message, hint="TUMBLE, HOP, CUMULATE and SESSION make windows of a table")
            return self._under(self._windowed(call), tree.alias or None, names)
        name = ".".join(part.name for part in tree.parts)
        return self._under(self.named(name), tree.alias or name.rpartition(".")[2], names)

    def named(self, name: str) -> Relation:
        """Return the rows of a table, a view, or a query that WITH gave a name."""
        if name in self._known:
            return self._known[name]
        found = self._queries.tables.relation(name, self._queries)
        if found is None:
            there = sorted({*self._known, *self._queries.tables.names()})
            message = f"there is no table {name!r}"
            raise SqlError(message, hint=nearest(name, there) or f"there are {', '.join(there) or 'none'}")
        return found

    def _windowed(self, call: exp.Anonymous) -> Relation:
        kind, given = window_arguments(call)
        data = given["DATA"]
        relation = self.named(".".join(part.name for part in data.parts)) if isinstance(data, exp.Table) else None
        if relation is None:
            message = f"{kind.value} takes a table first: TABLE name"
            raise SqlError(message)
        return self._builder.windowed_relation(relation, window_of(kind, given, relation.scope, self._text))

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _joined(self, left: Relation, tree: exp.Join, pool: list[Any]) -> Relation:
        side, kind, method = ((tree.args.get(name) or "").upper() for name in ("side", "kind", "method"))
        if method or kind in ("SEMI", "ANTI"):
            message = f"{method or kind} JOIN is not supported"
            raise SqlError(message)
        how = _SIDES.get(side)
        if how is None:
            message = f"{side} JOIN is not supported"
            raise SqlError(message)
        if tree.this.args.get("joins"):
            message = "a join inside a join is not supported"
            raise SqlError(message, hint="write it as a subquery: JOIN (SELECT ... FROM a JOIN b ON ...) AS t ON ...")
        right = self.table(tree.this)
        said = [*conjuncts(tree.args.get("on")), *self._using(tree, left, right)]
        if how == "inner":
            # What WHERE says of both tables may be said here: it makes keys of it.
            both = Scope((*left.scope.columns, *right.scope.columns))
            usable = [one for one in pool if self._is_of(one, both) and not self._is_of(one, left.scope)
                      and not self._is_of(one, right.scope)]  # fmt: skip
            said += usable
            pool[:] = [one for one in pool if one not in usable]
        keys, rest = self._keys(said, left, right)
        if not keys:
            one = literal_of(1, pa.int32())
            keys = [(one, one)]
        joined = self._builder.joined(
            left, right, keys, how, lambda scope: None if how == "inner" else self._all(rest, scope)
        )
        return self._kept(joined, rest) if how == "inner" else joined

    def _using(self, tree: exp.Join, left: Relation, right: Relation) -> list[Any]:
        if tree.args.get("using"):
            message = "USING is not supported"
            raise SqlError(message, hint="write ON a.id = b.id")
        return []

    def _is_of(self, tree: Any, scope: Scope) -> bool:
        """Whether a condition can be said over a scope."""
        if tree.find(exp.Subquery, exp.Query) is not None:
            return False
        try:
            self._queries.binder(scope).bind(tree)
        except SqlError:
            return False
        return True

    def _keys(self, said: list[Any], left: Relation, right: Relation) -> tuple[list[tuple[Typed, Typed]], list[Any]]:
        """What is equal in both tables, and what else is said."""
        keys: list[tuple[Typed, Typed]] = []
        rest = []
        for tree in said:
            pair = self._pair(tree, left.scope, right.scope)
            if pair is None:
                rest.append(tree)
            else:
                keys.append(pair)
        return keys, rest

    def _pair(self, tree: Any, left: Scope, right: Scope) -> tuple[Typed, Typed] | None:
        if not isinstance(tree, exp.EQ):
            return None
        is_doubtful = [self._is_of(one, left) and self._is_of(one, right) for one in (tree.this, tree.expression)]
        if all(is_doubtful):
            return None
        for one, other in ((tree.this, tree.expression), (tree.expression, tree.this)):
            if self._is_of(one, left) and self._is_of(other, right) and _names(one) and _names(other):
                values = [self._queries.binder(left).bind(one), self._queries.binder(right).bind(other)]
                with self._text.at(tree):
                    same = together(values)
                return same[0], same[1]
        return None

    def _all(self, trees: list[Any], scope: Scope) -> Typed | None:
        found: Typed | None = None
        for tree in trees:
            value = self._queries.binder(scope).condition(tree)
            found = value if found is None else sql.both(found, value)
        return found

    def _kept(self, relation: Relation, trees: list[Any]) -> Relation:
        condition = self._all(trees, relation.scope)
        if condition is None:
            return relation
        return Relation(self._builder.filtered(relation.node, condition.expression), relation.scope)

    # -- WHERE ---------------------------------------------------------------------------------------------------------

    def _filtered(self, relation: Relation, pool: list[Any]) -> Relation:
        plain = [one for one in pool if _subquery_test(one) is None]
        relation = self._kept(relation, plain)
        for tree in pool:
            test = _subquery_test(tree)
            if test is not None:
                with self._text.at(tree):
                    relation = self._tested(relation, test)
        return relation

    def _tested(self, relation: Relation, test: _Test) -> Relation:
        """The rows that IN (SELECT ...) or EXISTS (SELECT ...) lets through."""
        query, value, is_not = test
        if value is not None and is_not:
            message = "NOT IN (SELECT ...) is not supported: a NULL among its values makes it true for no row"
            raise SqlError(message, hint="write NOT EXISTS (SELECT ... WHERE a = b)")
        inner_tree = query.this if isinstance(query, exp.Subquery) else query
        keys: list[tuple[Typed, Typed]] = []
        if value is not None:
            inner = self._queries.bind(inner_tree, self._known)
            if len(inner.scope.columns) != 1:
                message = f"IN takes a query of one column; it has {len(inner.scope.columns)}"
                raise SqlError(message)
            given = Typed(col(inner.scope.columns[0].column), inner.scope.columns[0].kind)
            same = together([self._queries.binder(relation.scope).bind(value), given])
            keys.append((same[0], same[1]))
        else:
            inner, keys = self._correlated(relation, inner_tree)
        how = "anti" if is_not else "semi"
        if not keys:
            keys = [(literal_of(1, pa.int32()), literal_of(1, pa.int32()))]
        return self._builder.joined(relation, inner, keys, how, lambda _scope: None)

    def _correlated(self, outer: Relation, tree: Any) -> tuple[Relation, list[tuple[Typed, Typed]]]:
        """The rows of a subquery, and what of them equals columns of the query around it."""
        if not isinstance(tree, exp.Select) or tree.args.get("group") is not None:
            message = "EXISTS takes a plain SELECT"
            raise SqlError(message)
        inner_tree = tree.copy()
        where = inner_tree.args.get("where")
        inner_tree.set("where", None)
        inner_from = FromClause(self._queries, self._known)
        for argument, word in (("having", "HAVING"), ("limit", "LIMIT"), ("offset", "OFFSET")):
            if tree.args.get(argument) is not None:
                message = f"{word} is not supported in EXISTS"
                raise self._text.error(message, tree.args[argument])
        for one in tree.expressions:
            if has_aggregates(one, self._queries.functions):
                message = "an aggregate without GROUP BY is not supported in EXISTS: it always gives a row"
                raise self._text.error(message, one)
        parts = conjuncts(None if where is None else where.this)
        inner = inner_from.bound(inner_tree)
        own, keys = [], []
        for part in parts:
            if self._is_of(part, inner.scope):
                own.append(part)
                continue
            pair = self._pair(part, outer.scope, inner.scope)
            if pair is None:
                message = f"{part.sql()} is not supported in EXISTS: of the outer query only equal columns are"
                raise self._text.error(message, part)
            keys.append(pair)
        return self._kept(inner, own), keys


def _names(tree: Any) -> bool:
    return tree.find(exp.Column) is not None


class _Test(NamedTuple):
    """A condition that asks a subquery.

    Attributes:
        query: The subquery.
        value: What is looked for in it; None for EXISTS.
        is_not: Whether it must not be there.
    """

    query: Any
    value: Any
    is_not: bool


def _subquery_test(tree: Any, *, is_not: bool = False) -> _Test | None:
    if isinstance(tree, exp.Paren):
        return _subquery_test(tree.this, is_not=is_not)
    if isinstance(tree, exp.Not):
        return _subquery_test(tree.this, is_not=not is_not)
    if isinstance(tree, exp.Exists):
        return _Test(tree.this, None, is_not)
    if isinstance(tree, exp.In) and tree.args.get("query") is not None:
        return _Test(tree.args["query"], tree.this, is_not)
    return None
