"""PROCTIME(): the clock's time as a column, in SELECT and in CREATE TABLE.

A column that is PROCTIME() and nothing else is a time attribute, as it is called there: windows, OVER and lookups go by
it. Where it is a value, that is the time at which the row passed the place that asks for it.

Source: Flink's documentation ("Time Attributes", "Processing Time").
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from headrace.engine.columns.expressions import col

from .functions.contract import Typed
from .parsing.errors import SqlError
from .relations import Builder, Relation
from .scope import Scope, ScopeColumn

__all__ = ["CLOCK", "asks_clock", "clock_of", "with_clock"]

CLOCK = "PROCTIME"


def asks_clock(*trees: Any) -> bool:
    """Return whether expressions call PROCTIME(), outside of subqueries."""
    return any(_asks(tree) for tree in trees)


def _asks(tree: Any) -> bool:
    if not isinstance(tree, exp.Expression) or isinstance(tree, (exp.Subquery, exp.Query)):
        return False
    if isinstance(tree, exp.Anonymous) and str(tree.name).upper() == CLOCK:
        return True
    return any(_asks(one) for one in tree.iter_expressions())


def with_clock(builder: Builder, relation: Relation) -> tuple[Relation, ScopeColumn]:
    """Return rows over which PROCTIME() can be said, and the column that it is."""
    stamped, clock = builder.stamped(relation)
    return Relation(stamped.node, Scope(stamped.scope.columns, clock)), clock


def clock_of(scope: Scope) -> Typed:
    """Return what PROCTIME() is over some columns.

    Raises:
        SqlError: If it cannot be said there.
    """
    if scope.clock is None:
        message = f"{CLOCK}() here is not supported"
        raise SqlError(
            message, hint="it stands in SELECT of rows that are not grouped, and AS a column of CREATE TABLE"
        )
    return Typed(col(scope.clock.column), scope.clock.kind)
