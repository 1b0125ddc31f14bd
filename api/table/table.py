"""A table under way: a query that nothing has been asked of yet.

Source: PyFlink's ``Table``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..sql.relations import Relation
from .result import TableResult

__all__ = ["Table"]


class Table:
    """A query; made by `TableEnvironment.sql_query`."""

    def __init__(self, relation: Relation, run: Callable[[Relation], TableResult]) -> None:
        self.relation = relation
        self._run = run

    @property
    def schema(self) -> pa.Schema:
        """The columns, by the names of the query."""
        return pa.schema([pa.field(one.name, one.kind) for one in self.relation.scope.columns])

    def execute(self) -> TableResult:
        """Return the rows; they are made when they are asked for."""
        return self._run(self.relation)

    def to_arrow(self) -> pa.Table:
        """Run the query to its end and return the table that it comes to."""
        return self.execute().to_arrow()

    def to_pandas(self) -> Any:
        """Return the same as a pandas data frame."""
        return self.execute().to_pandas()
