"""FROM and WHERE: tables, windows over them, subqueries, joins.

Conditions that say which columns of two tables are equal become the keys of their join, whether they stand in ON or in
WHERE; so tables that a comma separates are joined as well as others. What is left is a filter.

Source: SQL:2016; Flink's documentation ("Joins", "Windowing table-valued functions").
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col
from headrace.engine.errors import nearest
from headrace.engine.plan.table_nodes import TableJoin

from .contract import Queries
from .correlation import Correlation
from .expressions import conjuncts
from .functions import operators as sql
from .functions.coercion import cast_to, together
from .functions.contract import Typed, literal_of
from .hints import LookupHints, StateTtls, multi_joined, table_options
from .match import matched
from .parsing.errors import SqlError
from .parsing.names import path_of
from .relations import Builder, Relation, unique_names
from .scope import Scope, ScopeColumn
from .subqueries import Subqueries, own_subqueries, subquery_test
from .table_functions import is_lateral, with_rows
from .temporal_joins import goes_by_clock, lookup_join, temporal_join
from .window_functions import is_window_function, window_arguments, window_of, windowed

__all__ = ["FromClause"]

_SIDES = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


class _Shared(NamedTuple):
    """A column that both tables of a join have, and by which they are joined."""

    name: str
    left: Typed
    right: Typed


class FromClause:
    """The tables of one SELECT, and what WHERE says of them.

    Args:
        queries: Makes plans.
        known: Queries that WITH has given names.
        correlation: Of a subquery, what it says of the rows around it.
        ttls: What hints say of times to live; None for nothing.
    """

    def __init__(
        self,
        queries: Queries,
        known: dict[str, Relation],
        correlation: Correlation | None = None,
        ttls: StateTtls | None = None,
    ) -> None:
        self._correlation = correlation
        self._ttls = ttls
        self._queries = queries
        self._text = queries.text
        self._builder = queries.builder
        self._known = known

    def bound(self, tree: exp.Select) -> Relation:
        """Return the rows that the SELECT begins with."""
        clause = tree.args.get("from_")
        where = tree.args.get("where")
        said = conjuncts(None if where is None else where.this)
        pool = list(said)
        self._lookup_hints, self._multi_joined = LookupHints(tree, self._text), multi_joined(tree)
        if clause is None:
            relation = self._one_row()
        else:
            relation = self.table(clause.this)
            joins = [*(clause.this.args.get("joins") or ()), *(tree.args.get("joins") or ())]
            if tree.args.get("match") is not None:
                relation = self._matched(relation, tree.args["match"], joins)
            self._require_one_meaning(joins)
            for i, join in enumerate(joins):
                # A join behind that gives rows of its right table alone: WHERE drops them, a condition below does not.
                is_kept = any((one.args.get("side") or "").upper() in ("RIGHT", "FULL") for one in joins[i + 1 :])
                with self._text.at(join):
                    relation = self._joined(relation, join, [] if is_kept else pool)
        self._lookup_hints.require_used()
        for one in said:
            if one not in pool:
                self._queries.binder(relation.scope).condition(one)  # A name of one table may be one of a later, too.
        return self._filtered(relation, pool)

    def _matched(self, relation: Relation, clause: Any, joins: list[Any]) -> Relation:
        if joins:
            message = "MATCH_RECOGNIZE is of one table"
            raise self._text.error(message, clause, hint="join in a view, or in WITH, before it or behind it")
        return matched(self._queries, relation, clause)

    def _one_row(self) -> Relation:
        return Relation(self._builder.constant(pa.table({"$one": pa.array([True])})), Scope(()))

    def _require_one_meaning(self, joins: list[Any]) -> None:
        """JOIN binds more than a comma; where it gives rows of its right table alone, that makes a difference."""
        said = ("side", "kind", "on", "using", "method")
        commas = [i for i, one in enumerate(joins) if not any(one.args.get(name) for name in said)]
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
            if is_lateral(tree):
                return with_rows(self._queries, self._one_row(), tree, is_outer=False)
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
        return self._under(self._named(tree), tree.alias or tree.name, names)

    def _named(self, tree: exp.Table) -> Relation:
        """The rows of a table, a view, or a query that WITH gave a name."""
        name, options = path_of(part.name for part in tree.parts), table_options(tree, self._text)
        if name in self._known:
            if options:
                message = f"hint OPTIONS is of tables that CREATE TABLE made; {name!r} is a query of WITH"
                raise SqlError(message)
            return self._known[name]
        found = self._queries.tables.relation(name, self._queries, options)
        if found is None:
            there = sorted({*self._known, *self._queries.tables.names()})
            message = f"there is no table {name!r}"
            raise SqlError(message, hint=nearest(name, there) or f"there are {', '.join(there) or 'none'}")
        return found

    def _windowed(self, call: exp.Anonymous) -> Relation:
        kind, given = window_arguments(call)
        data = given["DATA"]
        relation = self._named(data) if isinstance(data, exp.Table) else None
        if relation is None:
            message = f"{kind.value} takes a table first: TABLE name"
            raise SqlError(message)
        return windowed(self._builder, relation, window_of(kind, given, relation.scope, self._text))

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _joined(self, left: Relation, tree: exp.Join, pool: list[Any]) -> Relation:
        side, kind, method = ((tree.args.get(name) or "").upper() for name in ("side", "kind", "method"))
        if method not in ("", "NATURAL") or kind in ("SEMI", "ANTI"):
            message = f"{method or kind} JOIN is not supported"
            raise SqlError(message)
        how = _SIDES.get(side)
        if how is None:
            message = f"{side} JOIN is not supported"
            raise SqlError(message)
        if isinstance(tree.this, exp.Table) and tree.this.args.get("version") is not None:
            return self._temporal(left, tree, how, pool)
        if is_lateral(tree.this):
            return self._lateral(left, tree, how)
        if tree.this.args.get("joins"):
            message = "a join inside a join is not supported"
            raise SqlError(message, hint="write it as a subquery: JOIN (SELECT ... FROM a JOIN b ON ...) AS t ON ...")
        right = self.table(tree.this)
        shared = self._shared(tree, left.scope, right.scope)
        said = conjuncts(tree.args.get("on"))
        if how == "inner":
            # What WHERE says of both tables may be said here: it makes keys of it.
            both = Scope((*left.scope.columns, *right.scope.columns))
            usable = [one for one in pool if self._is_of(one, both) and not self._is_of(one, left.scope)
                      and not self._is_of(one, right.scope)]  # fmt: skip
            said += usable
            pool[:] = [one for one in pool if one not in usable]
            if self._correlation is not None:
                around = [one for one in said if not self._is_of(one, both)]
                said = [one for one in said if one not in around]
                pool += around
        keys, rest = self._keys(said, left, right)
        keys = [*((one, other) for _, one, other in shared), *keys]
        if not keys:
            one = literal_of(1, pa.int32())
            keys = [(one, one)]
        joined = self._builder.joined(
            left, right, keys, how, lambda scope: None if how == "inner" else self._all(rest, scope)
        )
        if (tree.this.alias or tree.this.name) in self._multi_joined and isinstance(joined.node, TableJoin):
            joined = Relation(replace(joined.node, hinted_multi=True), joined.scope)
        if self._ttls is not None:
            ttls = self._ttls.of(left.scope), self._ttls.of(right.scope)
            joined = Relation(replace(joined.node, ttls_ms=ttls if any(one is not None for one in ttls) else ()),
                              joined.scope)  # fmt: skip
        return _with_shared(self._builder, self._kept(joined, rest) if how == "inner" else joined, shared, how)

    def _shared(self, tree: exp.Join, left: Scope, right: Scope) -> list[_Shared]:
        """What USING and NATURAL say of both tables: names, and what they are on either side."""
        for one in tree.args.get("using") or ():
            with self._text.at(one):
                right.find([one.name])
                left.find([one.name])
        names = [one.name for one in tree.args.get("using") or ()]
        if (tree.args.get("method") or "").upper() == "NATURAL":
            of_right = {one.name for one in right.columns}
            names = [one.name for one in left.columns if one.name in of_right and not one.is_hidden]
        found = []
        for name in dict.fromkeys(names):
            sides = [self._queries.binder(scope).bind(exp.column(name, quoted=True)) for scope in (left, right)]
            found.append(_Shared(name, *together(sides)))
        return found

    def _lateral(self, left: Relation, tree: exp.Join, how: str) -> Relation:
        """Rows with what is made of them: UNNEST(...), LATERAL TABLE(...)."""
        said = conjuncts(tree.args.get("on"))
        if how == "left":
            said = [one for one in said if not (isinstance(one, exp.Boolean) and one.this)]
        if how not in ("inner", "left") or (how == "left" and said):
            what = "a condition" if how == "left" else f"{how.upper()} JOIN"
            message = f"{what} beside rows that are made of a row is not supported"
            raise SqlError(message, hint="write LEFT JOIN ... ON TRUE, or CROSS JOIN ... with WHERE")
        return self._kept(with_rows(self._queries, left, tree.this, is_outer=how == "left"), said)

    def _temporal(self, left: Relation, tree: exp.Join, how: str, pool: list[Any]) -> Relation:
        """Rows with the versions of a table that were valid at their times: FOR SYSTEM_TIME AS OF."""
        version = tree.this.args["version"]
        if how not in ("inner", "left"):
            message = f"{how.upper()} JOIN with FOR SYSTEM_TIME AS OF is not supported"
            raise SqlError(message, hint="JOIN and LEFT JOIN are")
        table = tree.this.copy()
        table.set("version", None)
        right = self.table(table)
        name = path_of(part.name for part in tree.this.parts)
        if tree.args.get("using"):
            message = "USING with FOR SYSTEM_TIME AS OF is not supported"
            raise SqlError(message, hint="write ON a.id = b.id")
        keys, rest = self._keys(conjuncts(tree.args.get("on")), left, right)
        with self._text.at(version.expression):
            time = self._queries.binder(left.scope).bind(version.expression)
        if goes_by_clock(time, left.scope):
            # What WHERE says first of the rows alone is asked before the table is.
            first = list(itertools.takewhile(lambda one: self._is_of(one, left.scope), pool))
            del pool[: len(first)]
            left = self._kept(left, first)
            way = self._lookup_hints.of(tree.this.alias or name, name)
            with self._text.at(tree.this):
                joined = lookup_join(self._builder, left, right, keys, how, functools.partial(self._all, rest), way)
            return joined
        said = rest if how == "left" else []  # behind an inner join it is a filter
        with self._text.at(version.expression):
            key = None if name in self._known else self._queries.tables.primary_key(name)
            joined = temporal_join(
                self._queries, left, right, keys, how, functools.partial(self._all, said), time=time, primary_key=key
            )
        return joined if said else self._kept(joined, rest)

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
        binder = self._queries.binder(scope)
        return sql.all_of([binder.condition(tree) for tree in trees]) if trees else None

    def _kept(self, relation: Relation, trees: list[Any]) -> Relation:
        condition = self._all(trees, relation.scope)
        if condition is None:
            return relation
        return Relation(self._builder.filtered(relation.node, condition.expression), relation.scope)

    # -- WHERE ---------------------------------------------------------------------------------------------------------

    def _filtered(self, relation: Relation, pool: list[Any]) -> Relation:
        asked = [one for one in pool if next(own_subqueries(one), None) is not None]
        plain = [one for one in pool if one not in asked]
        if self._correlation is None:
            relation = self._kept(relation, plain)
        else:
            own = [one for one in plain if self._is_of(one, relation.scope)]
            foreign = [one for one in plain if one not in own]
            relation = self._correlation.applied(self._kept(relation, own), foreign, asked)
        for tree in asked:
            with self._text.at(tree):
                relation = self._asked(relation, tree)
        return relation

    def _asked(self, relation: Relation, tree: Any) -> Relation:
        """The rows for which a condition with subqueries is true."""
        subqueries = Subqueries(self._queries, self._known)
        test = subquery_test(tree)
        found = None if test is None else subqueries.tested(relation, test)
        if found is not None:
            return found
        binder = self._queries.binder(relation.scope)
        binder.subqueries = subqueries
        condition = binder.condition(tree)
        attached = subqueries.attach(relation)
        return Relation(self._builder.filtered(attached.node, condition.expression), attached.scope)


def _with_shared(builder: Builder, joined: Relation, shared: list[_Shared], how: str) -> Relation:
    """The rows of a join with its shared columns once, before the others; a table's name before them means its own."""
    if not shared:
        return joined
    assert joined.node.schema is not None
    names = {one.name for one in shared}
    columns = [replace(one, is_hidden=one.is_hidden or one.name in names) for one in joined.scope.columns]
    made = {}
    for new, one in zip(unique_names([one.name for one in shared], joined.node.schema.names), shared, strict=True):
        sides = [
            Typed(col(here.column), here.kind)
            for here in joined.scope.columns
            if here.name == one.name and not here.is_hidden
        ]
        made[new] = cast_to(sides[-1 if how == "right" else 0], one.left.kind)
        if how == "full":
            made[new] = sql.coalesced(*(cast_to(side, one.left.kind) for side in sides))
    merged = [ScopeColumn(None, one.name, new, made[new].kind) for one, new in zip(shared, made, strict=True)]
    return Relation(builder.extended(joined.node, made), Scope((*merged, *columns)))


def _names(tree: Any) -> bool:
    return tree.find(exp.Column) is not None
