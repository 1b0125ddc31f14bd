"""Joins of rows near in event time, and of rows of one window: insert-only on streams, and what DuckDB gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment

INTERVALS = (
    "SELECT a.id, b.id FROM a, b WHERE a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '4' SECOND AND b.ts",
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k AND b.ts > a.ts - INTERVAL '2' SECOND "
    "AND b.ts < a.ts + INTERVAL '3' SECOND AND a.v <> b.v",
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k AND a.ts = b.ts",
    "SELECT a.id, b.id FROM a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '5' SECOND "
    "AND a.v < b.v",
    "SELECT a.id, b.id FROM a RIGHT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts",
    "SELECT a.id, x.id FROM a JOIN a AS x ON a.k = x.k AND a.v = x.v AND a.ts BETWEEN x.ts - INTERVAL '1' SECOND "
    "AND x.ts + INTERVAL '1' SECOND",
)
"""On streams all of them only gain rows, and keep rows for a time."""

TUMBLED = "SELECT id, k, v, window_start, window_end FROM TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' SECOND))"
PLAIN = (
    "SELECT *, time_bucket(INTERVAL '5' SECOND, ts) AS window_start, "
    "time_bucket(INTERVAL '5' SECOND, ts) + INTERVAL '5' SECOND AS window_end FROM {}"
)
ON = "l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end"
GROUPS = "SELECT k, window_start, window_end, COUNT(*) AS n, MAX(v) AS v FROM ({}) GROUP BY k, window_start, window_end"
WINDOWS = (
    f"SELECT l.id, r.id FROM (A) AS l JOIN (B) AS r ON {ON}",
    f"SELECT l.id, r.id, l.window_start FROM (A) AS l LEFT JOIN (B) AS r ON {ON} AND l.v < r.v",
    f"SELECT l.id, r.id FROM (A) AS l FULL JOIN (B) AS r ON {ON}",
    "SELECT id FROM (A) AS l WHERE EXISTS (SELECT 1 FROM (B) AS r WHERE "
    "r.k = l.k AND r.window_start = l.window_start AND r.window_end = l.window_end)",
    "SELECT id FROM (A) AS l WHERE NOT EXISTS (SELECT 1 FROM (B) AS r WHERE "
    "r.k = l.k AND r.window_start = l.window_start AND r.window_end = l.window_end)",
    f"SELECT l.k, l.n, r.n FROM (C) AS l JOIN (D) AS r ON {ON} AND l.n >= r.n",
)

rows_of = st.lists(
    st.tuples(st.sampled_from([None, 1, 2]), st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 20)),
    min_size=1, max_size=20,
)  # fmt: skip
SAMPLE = (
    [((i * 5 % 3) or None, (i * 7 % 4) or None, i * 3 % 21) for i in range(25)],
    [((i * 4 % 3) or None, (i * 5 % 4) or None, i * 5 % 21) for i in range(20)],
)


def tables_of(*sides: list[Any]) -> dict[str, pa.Table]:
    made = {}
    for name, rows in zip("ab", sides, strict=True):
        k, v, ts = zip(*rows, strict=True)
        made[name] = pa.table({
            "id": range(len(rows)), "k": pa.array(k, pa.int64()), "v": pa.array(v, pa.int64()),
            "ts": pa.array([700 * time for time in ts], pa.timestamp("ms")),
        })  # fmt: skip
    return made


def query_of(shape: str, rows: str) -> str:
    """A shape over the windows of both tables, in a dialect."""
    parts = {"(A)": f"({rows.format('a')})", "(B)": f"({rows.format('b')})"}
    parts |= {"(C)": f"({GROUPS.format(rows.format('a'))})", "(D)": f"({GROUPS.format(rows.format('b'))})"}
    for name, part in parts.items():
        shape = shape.replace(name, part)
    return shape


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_duckdb(query: str, tables: dict[str, pa.Table]) -> Counter[Any]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return multiset(connection.sql(query).to_arrow_table())


class Rows:
    """Gives rows of a table by their numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        return self._table.slice(start, length).combine_chunks().to_batches()[0]


def streams(
    tables: dict[str, pa.Table], size: int = 3, delay: str = "25 s", number_of_splits: int = 2, **options: Any
) -> TableEnvironment:
    env = TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options})
    for name, table in tables.items():
        source = GeneratorSource.batches(
            Rows(table), table.num_rows, number_of_splits=number_of_splits, batch_size=size
        )
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view(name, stream, event_time="ts", delay=delay)
    return env


def on_a_stream(query: str, tables: dict[str, pa.Table], size: int = 3, **options: Any) -> Counter[Any]:
    """The changes that a stream gives, all of which insert."""
    with streams(tables, size, **options) as env:
        changes = list(env.execute_sql(query).collect())
    assert {kind for kind, *_ in changes} <= {"+I"}
    return Counter(tuple(row) for _, *row in changes)


@pytest.mark.parametrize("query", INTERVALS)
def test_rows_near_in_time_are_joined_as_by_duckdb(query):
    tables = tables_of(*SAMPLE)
    assert on_a_stream(query, tables) == by_duckdb(query, tables)


@pytest.mark.parametrize("shape", WINDOWS)
def test_rows_of_one_window_are_joined_as_by_duckdb(shape):
    tables = tables_of(*SAMPLE)
    assert on_a_stream(query_of(shape, TUMBLED), tables) == by_duckdb(query_of(shape, PLAIN), tables)


@given(query=st.sampled_from([*INTERVALS, *WINDOWS]), rows=rows_of, others=rows_of, size=st.integers(1, 5),
       seed=st.integers(0, 9))  # fmt: skip
def test_joins_of_any_rows_give_what_duckdb_gives(query, rows, others, size, seed):
    tables = tables_of(rows, others)
    found = on_a_stream(query_of(query, TUMBLED), tables, size, parallelism=3, actor_system="sim", seed=seed)
    assert found == by_duckdb(query_of(query, PLAIN), tables)


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("a.ts BETWEEN b.ts - INTERVAL '4' SECOND AND b.ts", "inner interval join"),
        ("a.ts >= b.ts", "inner join"),
        ("a.ts >= b.ts AND a.ts <= b.ts + INTERVAL '1' HOUR", "inner interval join"),
        ("a.ts BETWEEN a.ts AND b.ts", "inner join"),
        ("a.id BETWEEN b.id AND b.id + 1", "inner join"),
        ("CAST(a.ts AS DATE) BETWEEN CAST(b.ts AS DATE) AND CAST(b.ts AS DATE)", "inner join"),
        ("CAST(a.ts AS STRING) BETWEEN CAST(b.ts AS STRING) AND CAST(b.ts AS STRING)", "inner join"),
    ],
)
def test_a_join_is_bounded_if_its_condition_bounds_it_both_ways(condition, name):
    with streams(tables_of(*SAMPLE)) as env:
        plan = env.explain_sql(f"SELECT a.id FROM a JOIN b ON a.k = b.k AND {condition}")
    assert f"+- {name}" in plan.partition("== Plan of streams ==")[2]


def test_rows_are_kept_for_as_long_as_a_cast_cuts_their_times():
    query = "SELECT a.id, b.id FROM a LEFT JOIN b ON a.k = b.k AND {} BETWEEN {} AND {}"
    times = ("CAST(a.ts AS TIMESTAMP(0))", "CAST(b.ts AS TIMESTAMP(0))", "CAST(b.ts AS TIMESTAMP(0))")
    plain = ("date_trunc('second', a.ts)", "date_trunc('second', b.ts)", "date_trunc('second', b.ts)")
    tables = {
        name: pa.table({"id": range(30), "k": [1] * 30, "ts": pa.array(range(0, 6_000, 200), pa.timestamp("ms"))})
        for name in "ab"
    }
    found = on_a_stream(query.format(*times), tables, delay="0 s", number_of_splits=1, parallelism=1)
    assert found == by_duckdb(query.format(*plain), tables)


def test_pairs_go_on_with_the_event_time_of_their_left_rows():
    query = """
        WITH j AS (SELECT a.ts, b.ts AS other, b.v FROM a JOIN b ON a.k = b.k
                   AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts + INTERVAL '2' SECOND)
        SELECT window_start, COUNT(*) AS n, SUM(v) AS s
        FROM TABLE(TUMBLE(TABLE j, DESCRIPTOR({}), INTERVAL '3' SECOND)) GROUP BY window_start, window_end
    """
    tables = tables_of(*SAMPLE)
    plain = """
        SELECT time_bucket(INTERVAL '3' SECOND, a.ts) AS w, COUNT(*), SUM(b.v) FROM a JOIN b ON a.k = b.k
        AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts + INTERVAL '2' SECOND GROUP BY w
    """
    assert on_a_stream(query.format("ts"), tables) == by_duckdb(plain, tables)
    with pytest.raises(ProgramError, match="'other' is not the event time of these rows"):
        on_a_stream(query.format("other"), tables)
