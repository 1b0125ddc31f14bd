"""Generated queries, asked in both modes and of DuckDB: where the answers differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
from query_generator import QueryGenerator, random_rows, random_settings
from query_kit import by_duckdb, in_batch_mode, in_streaming_mode, tables_of

from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.errors import SqlError

__all__ = ["Answer", "broken_thirds", "mismatches"]

Answer = Counter[Any] | str


def answered(ask: Callable[[], Counter[Any]]) -> Answer:
    """The rows of a query, or why there are none."""
    try:
        return ask()
    except SqlError as error:
        return f"refused: {error.message.splitlines()[0]}"
    except HeadraceError as error:
        return f"failed: {type(error).__name__}: {error}"
    except duckdb.Error as error:
        return f"failed in DuckDB: {error}"


def mismatches(seed: Any, modes: tuple[str, ...] = ("batch", "streaming")) -> Iterator[tuple[str, str, Answer, Answer]]:
    """Yield query, mode, answer and what DuckDB answers, where they differ.

    Where DuckDB has no answer, as it compares texts with numbers otherwise, each mode is to have that of the first.
    """
    tables, query = tables_of(*random_rows(seed)), QueryGenerator(seed).query()
    expected = answered(lambda: by_duckdb(query, tables))
    settings = random_settings(seed)
    runs = {
        "batch": lambda: in_batch_mode(query, tables),
        "streaming": lambda: in_streaming_mode(query, tables, settings=settings),
    }
    has_none = isinstance(expected, str)
    for mode in modes:
        found = answered(runs[mode])
        if has_none and mode == modes[0]:
            expected = found
        if found != expected:
            yield query, mode, found, expected


def broken_thirds(seed: Any) -> Iterator[tuple[str, str, Answer, Answer]]:
    """Yield a query if the rows by what a condition is are not all rows."""
    tables = tables_of(*random_rows(seed))
    source, condition = QueryGenerator(f"thirds {seed}").filtered()
    thirds = (condition, f"NOT ({condition})", f"({condition}) IS NULL")
    every = f"SELECT * FROM {source}"
    parts = [answered(lambda one=one: in_batch_mode(f"{every} WHERE {one}", tables)) for one in thirds]
    together: Any = next((part for part in parts if isinstance(part, str)), None) or sum(parts, Counter())
    expected = answered(lambda: in_batch_mode(every, tables))
    if together != expected:
        yield f"{every} WHERE {condition}", "thirds", together, expected
