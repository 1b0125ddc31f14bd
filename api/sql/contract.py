"""What the clauses of a query need of each other: tables by name, and queries inside queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .expressions import ExpressionBinder
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlText
from .relations import Builder, Relation
from .scope import Scope

__all__ = ["Queries", "Tables"]


class Tables(Protocol):
    """Finds tables by name."""

    def relation(self, name: str, queries: Any, options: Mapping[str, str] | None = None) -> Relation | None:
        """Return the rows of a table or view; None if there is none. A view is bound by ``queries``.

        A table of CREATE TABLE may be read with other options.
        """
        ...

    def primary_key(self, name: str) -> tuple[str, ...] | None:
        """Return the columns of a table's PRIMARY KEY; None if it has none, or is no table."""
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

    def correlated(
        self, tree: Any, known: dict[str, Relation], outer: ExpressionBinder, *, is_test: bool = False
    ) -> Any:
        """Return the rows of a subquery, a `headrace.sql.subqueries.Correlated`.

        Args:
            tree: The query.
            known: Queries that WITH has given names.
            outer: Makes expressions over the rows around it.
            is_test: Whether it only matters which rows there are.
        """
        ...

    def new_name(self, prefix: str) -> str:
        """Return a name for a column that no other column has."""
        ...

    def binder(self, scope: Scope) -> ExpressionBinder:
        """Return what makes expressions over a scope."""
        ...
