"""What the clauses of a query need of each other: tables by name, and queries inside queries."""

from __future__ import annotations

from typing import Any, Protocol

from .expressions import ExpressionBinder
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlText
from .relations import Builder, Relation
from .scope import Scope

__all__ = ["Queries", "Tables"]


class Tables(Protocol):
    """Finds tables by name."""

    def relation(self, name: str, queries: Any) -> Relation | None:
        """Return the rows of a table or view; None if there is none. A view is bound by ``queries``."""
        ...

    def names(self) -> list[str]:
        """Return the names of all."""
        ...


class Queries(Protocol):
    """Makes plans of queries: `headrace.sql.query.QueryBinder`, as clauses see it."""

    tables: Tables
    functions: FunctionRegistry
    builder: Builder
    text: SqlText

    def bind(self, tree: Any, known: dict[str, Relation] | None = None) -> Relation:
        """Return the plan of a query."""
        ...

    def values(self, tree: Any) -> Relation:
        """Return the rows of VALUES."""
        ...

    def binder(self, scope: Scope) -> ExpressionBinder:
        """Return what makes expressions over a scope."""
        ...
