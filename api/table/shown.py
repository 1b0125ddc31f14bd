"""What SHOW and DESCRIBE tell: names of a catalog, statements, columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.credentials import masked

from ..sql.functions.registry import FunctionRegistry
from ..sql.parsing.sql_types import sql_name
from ..sql.parsing.statements import Show
from ..sql.scope import ScopeColumn
from .catalog import Catalogs, CatalogView, TemporaryView
from .result import StatementResult, TableResult

__all__ = ["described", "shown"]


def described(columns: Sequence[ScopeColumn]) -> TableResult:
    """Return the columns of a table, with their types, and which ones are times."""
    return StatementResult(pa.table({
        "name": [one.name for one in columns],
        "type": [sql_name(one.kind) for one in columns],
        "extras": [_time_of(one) for one in columns],
    }))  # fmt: skip


def shown(
    statement: Show, catalogs: Catalogs, functions: FunctionRegistry, jobs: Callable[[], TableResult]
) -> TableResult:
    """Return what a SHOW statement asks for.

    Args:
        statement: The statement.
        catalogs: The names of the program.
        functions: Its functions.
        jobs: Gives the jobs of its cluster.
    """
    what, name = statement.what, statement.name
    if what == "jobs":
        return jobs()
    if what in ("current catalog", "current database"):
        return StatementResult.of_texts(f"{what} name", [catalogs.current[what == "current database"]])
    if what in ("create table", "create view"):
        assert name is not None
        entry = catalogs.table(name) if what == "create table" else catalogs.view(name)
        return StatementResult.of_texts("result", [masked(entry.text.text.strip().rstrip(";"))])
    names = _names(what, name, catalogs, functions)
    if statement.like is not None:
        is_like = pc.match_like(pa.array(names, pa.string()), statement.like).to_pylist()
        names = [one for one, found in zip(names, is_like, strict=True) if found != statement.is_negated]
    return StatementResult.of_texts(f"{what[:-1]} name", names)


def _names(what: str, name: str | None, catalogs: Catalogs, functions: FunctionRegistry) -> list[str]:
    if what == "functions":
        return functions.names()
    if what == "catalogs":
        return sorted(catalogs.catalogs)
    if what == "databases":
        return catalogs.databases(name)
    return catalogs.names((CatalogView, TemporaryView) if what == "views" else (), name)


def _time_of(column: ScopeColumn) -> str:
    return "event time" if column.is_event_time else "processing time" if column.is_processing_time else ""
