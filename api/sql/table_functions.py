"""Rows of a row: elements of arrays and maps (UNNEST), and functions of Python that give tables (LATERAL TABLE).

Source: SQL:2016, "<collection derived table>"; Flink's documentation ("Joins": "Array, Multiset and Map Expansion",
"Table Function").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from headrace.engine.errors import nearest
from headrace.engine.operators.expanding import Expansion, Unnest

from .contract import Queries
from .functions.contract import Typed
from .parsing.errors import SqlError
from .parsing.sql_types import sql_name
from .relations import Relation, unique_names
from .scope import Scope, ScopeColumn

__all__ = ["is_lateral", "with_rows"]


def is_lateral(tree: Any) -> bool:
    """Return whether a part of FROM is made of each row before it."""
    return isinstance(tree, (exp.Unnest, exp.Lateral))


def with_rows(queries: Queries, left: Relation, tree: Any, *, is_outer: bool) -> Relation:
    """Return each row with the rows that are made of it.

    Args:
        queries: Makes expressions.
        left: The rows before it in FROM.
        tree: UNNEST(...) or LATERAL TABLE(...).
        is_outer: Whether a row of which nothing is made comes with nulls.

    Raises:
        SqlError: If it cannot be expanded.
    """
    alias = tree.args.get("alias")
    given = [] if alias is None else [one.name for one in alias.args.get("columns") or ()]
    taken = [] if left.node.schema is None else left.node.schema.names
    arguments, names, make = (_unnest if isinstance(tree, exp.Unnest) else _called)(queries, left, tree)
    if isinstance(tree, exp.Unnest) and isinstance(tree.args.get("offset"), exp.Identifier):
        given = [*given, tree.args["offset"].name] if given else given
    if given and len(given) != len(names):
        message = f"{tree.alias or 'it'} has {len(names)} columns and gets {len(given)} names"
        raise SqlError(message)
    columns = unique_names(given or names, taken)
    expansion: Expansion = make(arguments, columns)
    expansion.is_outer = is_outer
    node = queries.builder.expanded(left.node, expansion)
    new = (
        ScopeColumn(tree.alias or None, name, column, expansion.fields.field(column).type)
        for name, column in zip(given or names, columns, strict=True)
    )
    return Relation(node, Scope((*left.scope.columns, *new)))


def _unnest(queries: Queries, left: Relation, tree: exp.Unnest) -> Any:
    if len(tree.expressions) != 1:
        message = "UNNEST takes one array or map"
        raise SqlError(message, hint="write CROSS JOIN UNNEST(...) for each")
    with queries.text.at(tree.expressions[0]):
        value = queries.binder(left.scope).bind(tree.expressions[0])
        kinds = Unnest.kinds_of(value.kind)
        if kinds is None:
            message = f"UNNEST takes an array or a map; got {sql_name(value.kind)}"
            raise SqlError(message)
    is_numbered = bool(tree.args.get("offset"))
    names = [*kinds, *(["ORDINALITY"] if is_numbered else [])]

    def make(arguments: Sequence[Typed], columns: Sequence[str]) -> Expansion:
        return Unnest(arguments[0].expression, value.kind, columns, is_numbered=is_numbered)

    return [value], names, make


def _called(queries: Queries, left: Relation, tree: exp.Lateral) -> Any:
    call = tree.this
    is_table = isinstance(call, exp.Anonymous) and str(call.name).upper() == "TABLE" and len(call.expressions) == 1
    call = call.expressions[0] if is_table else call
    if not isinstance(call, exp.Anonymous) or not is_table:
        message = "LATERAL takes a function that gives a table"
        raise SqlError(message, hint="write LATERAL TABLE(f(column)) AS t(a, b)")
    with queries.text.at(call):
        function = queries.functions.table_function(str(call.name))
        if function is None:
            there = queries.functions.table_functions()
            message = f"there is no table function {call.name}"
            others = "functions that give tables are made by udtf(...); versions are joined by FOR SYSTEM_TIME AS OF"
            raise SqlError(message, hint=nearest(call.name, there) or others)
        arguments = [queries.binder(left.scope).bind(one) for one in call.expressions]
        function.require(len(arguments))
    return arguments, list(function.names), function.make
