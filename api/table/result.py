"""What a statement gives: rows that come, and the table that they come to.

Source: Flink's ``TableResult``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.changelog.final_table import apply_changes
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import ProgramError

from ..arguments.absent_names import absence_of
from ..arguments.checks import whole
from ..jobs.client import JobClient
from ..jobs.notebook_output import LiveOutput, require_notebook
from ..sql.parsing.sql_types import sql_name
from .connectors.changelog import text_of

__all__ = ["RowsResult", "StatementResult", "TableResult"]


class TableResult(ABC):
    """The result of a statement. Rows are made when they are asked for; a job runs once for each time."""

    if not TYPE_CHECKING:  # who checks types says himself that there is no such method

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(absence_of("TableResult", name), name=name, obj=self)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns."""

    @property
    def is_query(self) -> bool:
        """Whether it runs when it is asked for; else it is there already."""
        return False

    @property
    def has_order(self) -> bool:
        """Whether the query says in which order its rows are."""
        return False

    def in_order(self, table: pa.Table) -> pa.Table:
        """Return rows of the result in the order that the query says, if it says one."""
        return table

    def get_job_client(self) -> JobClient | None:
        """Return the client of the job that an INSERT over streams has started; None of all else."""
        return None

    def wait(self, timeout_ms: int | None = None) -> None:
        """Wait for the end of the job that an INSERT has started; all else is there already, or runs when asked for.

        Args:
            timeout_ms: Milliseconds; None waits without end.

        Raises:
            TimeoutError: If it has not ended by then; it goes on.
            JobFailedError: If it failed.
        """
        client = self.get_job_client()
        if client is not None:
            client.result(None if timeout_ms is None else timeout_ms / 1_000)

    @abstractmethod
    def changes(self) -> Iterator[Batch]:
        """Yield batches of changes as they come."""

    def collect(self) -> Iterator[tuple[Any, ...]]:
        """Yield the changes as tuples, the kind of each in front: ``("+I", 1, "a")``.

        Of a query over streams this ends when they do.
        """
        for batch in self.changes():
            kinds = [0] * batch.num_rows if batch.row_kinds is None else batch.row_kinds.tolist()
            rows = zip(*(column.to_pylist() for column in batch.columns.columns), strict=True)
            for kind, row in zip(kinds, rows, strict=True):
                yield (RowKind(kind).short, *row)

    def to_arrow(self) -> pa.Table:
        """Return the table that the changes come to, when they have ended.

        Rows are in no order, unless the query ends with ORDER BY. A stream's rows are in that order if they have the
        columns that it goes by.
        """
        return self.in_order(apply_changes(self.changes(), self.schema))

    def to_pandas(self) -> Any:
        """Return the same as a pandas data frame."""
        return self.to_arrow().to_pandas()

    def live(self, limit: int = 50) -> LiveOutput:
        """Run the query, and show the table that its rows come to below the cell, as they come; the kernel stays free.

        Args:
            limit: How many rows are shown.

        Returns:
            What shows them, with ``stop()``, ``wait()`` and, of a query over streams, the job's ``client``.

        Raises:
            ProgramError: Outside of a notebook, and of a statement that is no query.
        """
        message = "live() shows the rows of a query, and this statement is none"
        hint = None if self.get_job_client() is None else "get_job_client().live() shows the job that it has started"
        raise ProgramError(message, hint=hint)

    def print(self) -> None:
        """Write the changes to standard output as they come, under the names and types of the columns."""
        heads = ", ".join(f"{field.name} {sql_name(field.type)}" for field in self.schema)
        sys.stdout.write(f"op[{heads}]\n")
        for kind, *row in self.collect():
            sys.stdout.write(f"{text_of(kind, row)}\n")
            sys.stdout.flush()


class RowsResult(TableResult):
    """The rows of a query.

    Args:
        schema: Their columns.
        run: Runs the query, and yields batches of changes.
        finish: Puts the final table in order; None if the query says none.
        live: Runs the query, and shows so many rows of the table that it comes to in a notebook.
    """

    def __init__(
        self,
        schema: pa.Schema,
        run: Callable[[], Iterator[Batch]],
        finish: Callable[[pa.Table], pa.Table] | None = None,
        live: Callable[[TableResult, int], LiveOutput] | None = None,
    ) -> None:
        self._schema = schema
        self._live = live
        self._run = run
        self._finish = finish

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def changes(self) -> Iterator[Batch]:
        """Run the query; yield batches of changes as they come."""
        return self._run()

    @property
    def is_query(self) -> bool:
        """True."""
        return True

    def live(self, limit: int = 50) -> LiveOutput:
        """Run the query, and show the table that its rows come to below the cell; see `TableResult.live`."""
        if self._live is None:
            return super().live(limit)
        whole("limit", limit, 1, None)
        require_notebook()
        return self._live(self, limit)

    @property
    def has_order(self) -> bool:
        """Whether the query ends with ORDER BY; a stream's rows need to have the columns that it goes by."""
        return self._finish is not None

    def in_order(self, table: pa.Table) -> pa.Table:
        """Return rows in the order of ORDER BY."""
        return table if self._finish is None else self._finish(table)


class StatementResult(TableResult):
    """What a statement without rows of its own tells: names, columns, a plan, OK.

    Args:
        table: What it tells.
        client: The job that it has started.
    """

    def __init__(self, table: pa.Table, client: JobClient | None = None) -> None:
        self._table = table
        self._client = client

    @classmethod
    def of_texts(cls, name: str, texts: list[str]) -> StatementResult:
        """Return one column of texts."""
        return cls(pa.table({name: pa.array(texts, pa.string())}))

    @classmethod
    def of_job(cls, client: JobClient) -> StatementResult:
        """Return the id of a job that goes on."""
        return cls(pa.table({"job id": pa.array([client.get_job_id()], pa.string())}), client)

    def get_job_client(self) -> JobClient | None:
        """Return the client of the job that an INSERT over streams has started."""
        return self._client

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    def changes(self) -> Iterator[Batch]:
        """Yield the rows."""
        for batch in self._table.combine_chunks().to_batches():
            yield Batch.of_columns(batch)
