"""What tests of queries share: tables, how they are given to a program, and what DuckDB makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from headrace.connectors.datagen import GeneratorSource
from headrace.table import TableEnvironment

SAMPLE = (
    [(1, 2, "x"), (None, 1, "xy"), (1, 3, None), (2, None, "yz"), (2, 2, ""), (3, 0, "x"), (1, 2, "x"), (4, 4, " x")]
    * 3,
    [(1, 3), (2, 1), (None, 2), (1, 2), (4, 0), (4, 4)] * 2,
)


def tables_of(rows: list[Any], others: list[Any]) -> dict[str, pa.Table]:
    """The tables ``l`` and ``r``, and ``u`` in which no two rows are equal in their order."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = [pa.int64(), pa.int64(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    unique = pa.array([f"{i:03}" for i in range(len(rows))])
    second = list(zip(*others, strict=True)) or [(), ()]
    return {
        "l": pa.table(arrays, names=["a", "b", "c"]),
        "u": pa.table([*arrays[:2], unique], names=["a", "b", "c"]),
        "r": pa.table([pa.array(column, pa.int64()) for column in second], names=["a", "d"]),
    }


def with_tables(env: TableEnvironment, tables: dict[str, pa.Table]) -> TableEnvironment:
    for name, table in tables.items():
        env.create_temporary_view(name, table)
    return env


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_duckdb(query: str, tables: dict[str, pa.Table]) -> Counter[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        for name, table in tables.items():
            # Tables of its own: it has conditions that it cannot ask of Arrow's.
            connection.register(f"arrow_{name}", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow_{name}")
        return multiset(connection.sql(query).to_arrow_table())


def in_small_batches(env: TableEnvironment, tables: dict[str, pa.Table], rows: int) -> TableEnvironment:
    """The tables as streams of two splits whose rows come a few at a time."""
    for name, table in tables.items():
        source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=2, batch_size=rows)
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view(name, stream)
    return env


class Rows:
    """Gives rows of a table by their numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        part = self._table.slice(start, length).combine_chunks()
        return part.to_batches()[0]


def in_batch_mode(query: str, tables: dict[str, pa.Table], parallelism: int = 3) -> Counter[Any]:
    """What batch mode gives."""
    with with_tables(TableEnvironment.create(mode="batch", parallelism=parallelism), tables) as env:
        return multiset(env.execute_sql(query).to_arrow())


def in_streaming_mode(
    query: str, tables: dict[str, pa.Table], rows: int = 3, seed: int = 0, settings: Mapping[str, str] | None = None
) -> Counter[Any]:
    """What the changes of a stream come to, on the simulator."""
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=seed), tables, rows) as env:
        for key, value in (settings or {}).items():
            env.execute_sql(f"SET '{key}' = '{value}'")
        return multiset(env.execute_sql(query).to_arrow())


class FailsNowAndThen:
    """A function that fails at some of its calls; how many there were is kept in a file."""

    def __init__(self, path, at):
        self._path = path
        self._at = at

    def __call__(self, value):
        with self._path.open("ab") as file:
            file.write(b".")
        if self._path.stat().st_size in self._at:
            message = "now"
            raise RuntimeError(message)
        return value
