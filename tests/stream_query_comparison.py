"""Generated queries over streams with event time: the tables in files, and what each mode makes of a query."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from query_generator import random_settings
from stream_query_generator import TABLES_OF_STREAMS, StreamQueryGenerator, random_streams

from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

__all__ = ["answer_of", "as_value", "broken_thirds", "tables_for", "unlike", "write_streams"]

Answer = Counter[Any] | str


def write_streams(folder: Path, seed: Any, pieces: int = 0) -> Path:
    """Write the tables of a seed, one file each, whose rows are read a few at a time: how many, another number says."""
    draw = random.Random(f"pieces {seed}{pieces or ''}")
    for name, table in random_streams(seed).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name / "rows.parquet", row_group_size=draw.randint(1, 25))
    return folder


def tables_for(folder: Path) -> list[str]:
    """Return statements that create the tables, as both engines read them."""
    return [
        f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{folder}/{name}', "
        "'format' = 'parquet')"
        for name, columns in TABLES_OF_STREAMS.items()
    ]


def as_value(value: Any) -> Any:
    """Return a value in the form in which answers are compared: times as texts, decimals as numbers."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return float(value) if isinstance(value, decimal.Decimal) else value


def answer_of(
    query: str, folder: Path, mode: str, parallelism: int = 2, settings: Mapping[str, str] | None = None, **options: Any
) -> Answer:
    """Return the final rows of a query, or why there are none."""
    chosen = {"actor_system": "sim", "seed": 0, **options} if mode == "streaming" else options
    return _told(lambda: _rows_of(query, folder, mode, parallelism, settings or {}, chosen))


def unlike(query: str, folders: Sequence[Path], seed: Any) -> dict[str, Answer]:
    """Return what must not make a difference and does, beside batch mode's answer; without an oracle.

    Args:
        query: The query.
        folders: Twice the same tables, cut into other pieces.
        seed: Draws settings and placements.
    """
    draw, settings = random.Random(f"ways {seed}"), random_settings(seed)
    expected = answer_of(query, folders[0], "batch", draw.randint(1, 3))
    runs: dict[str, Callable[[], Answer]] = {
        f"pieces {place}, parallelism {parallelism}": partial(
            answer_of, query, folder, "streaming", parallelism, seed=draw.randrange(100)
        )
        for place, (folder, parallelism) in enumerate(zip(folders, (1, 3), strict=True))
    }
    runs[f"{settings}"] = partial(answer_of, query, folders[1], "streaming", draw.randint(1, 3), settings)
    answers = {way: run() for way, run in runs.items()}
    found = {way: answer for way, answer in answers.items() if answer != expected}
    return {"batch": expected, **found} if found or isinstance(expected, str) else {}


def broken_thirds(folder: Path, seed: Any) -> dict[str, Answer]:
    """Return a query and what its parts come to, if the rows by what a condition is are not all rows."""
    rows, condition = StreamQueryGenerator(f"thirds {seed}").filtered()
    every = f"SELECT * FROM {rows}"
    parts = [
        answer_of(f"{every} WHERE {one}", folder, "streaming", 1)
        for one in (condition, f"NOT ({condition})", f"({condition}) IS NULL")
    ]
    together: Any = next((part for part in parts if isinstance(part, str)), None) or sum(parts, Counter())
    expected = answer_of(every, folder, "streaming", 3)
    return {} if together == expected else {f"{every} WHERE {condition}": together, "all": expected}


def _rows_of(
    query: str, folder: Path, mode: str, parallelism: int, settings: Mapping[str, str], options: dict[str, Any]
) -> Counter[Any]:
    with TableEnvironment.create(mode=mode, parallelism=parallelism, **options) as env:
        for key, value in settings.items():
            env.execute_sql(f"SET '{key}' = '{value}'")
        for statement in tables_for(folder):
            env.execute_sql(statement)
        table = env.execute_sql(query).to_arrow()
    return Counter(tuple(map(as_value, row)) for row in zip(*(one.to_pylist() for one in table.columns), strict=True))


def _told(ask: Callable[[], Counter[Any]]) -> Answer:
    try:
        return ask()
    except SqlError as error:
        return f"refused: {error.message.splitlines()[0]}"
    except HeadraceError as error:
        return f"failed: {type(error).__name__}: {error}"
