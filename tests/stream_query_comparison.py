"""Generated queries over streams with event time: the tables in files, and what each mode makes of a query."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from stream_query_generator import TABLES_OF_STREAMS, random_streams

from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

__all__ = ["answer_of", "as_value", "tables_for", "write_streams"]

Answer = Counter[Any] | str


def write_streams(folder: Path, seed: Any) -> Path:
    """Write the tables of a seed, one file each, whose rows are read a few at a time."""
    draw = random.Random(f"pieces {seed}")
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


def answer_of(query: str, folder: Path, mode: str, parallelism: int = 2, **options: Any) -> Answer:
    """Return the final rows of a query, or why there are none."""
    chosen = {"actor_system": "sim", "seed": 0, **options} if mode == "streaming" else options
    return _told(lambda: _rows_of(query, folder, mode, parallelism, chosen))


def _rows_of(query: str, folder: Path, mode: str, parallelism: int, options: dict[str, Any]) -> Counter[Any]:
    with TableEnvironment.create(mode=mode, parallelism=parallelism, **options) as env:
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
