"""ORDER BY event time on a stream: rows come in the order of DuckDB's answer while the stream goes on."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from campaigns import campaign, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from query_kit import FailsNowAndThen, Rows

from headrace.connectors.datagen import GeneratorSource
from headrace.table import TableEnvironment, udf

SAMPLE = [(i * 7 % 4 or None, i * 29 % 40) for i in range(40)]
QUERIES = [
    "SELECT id, v FROM e ORDER BY ts, v DESC, id",
    "SELECT id + 1 AS n FROM e WHERE v > 0 ORDER BY ts, id DESC",
    "SELECT id, v FROM (SELECT ts AS moment, id, v FROM e) ORDER BY moment, id",
    "SELECT ts, id, v * 2 AS w FROM e ORDER BY 1, w, id",
    "SELECT id, s FROM (SELECT id, ts, SUM(v) OVER (PARTITION BY v ORDER BY ts) AS s FROM e) ORDER BY ts, id",
    "SELECT n FROM (SELECT id + 1 AS n, v FROM (SELECT * FROM e ORDER BY ts, id) WHERE v > 1) WHERE n > 3",
]


def table_of(rows: list[Any]) -> pa.Table:
    """The table ``e``; its times are seconds."""
    values, times = zip(*rows, strict=True)
    at = pa.array([1_000 * time for time in times], pa.timestamp("ms"))
    return pa.table({"id": range(len(rows)), "v": pa.array(values, pa.int64()), "ts": at})


def by_duckdb(query: str, table: pa.Table) -> list[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        connection.register("e", table)
        return connection.execute(query).fetchall()


def stream_of(env: TableEnvironment, table: pa.Table, size: int = 3, delay: str = "50 s") -> TableEnvironment:
    source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=2, batch_size=size)
    stream = env.stream_environment.from_source(source, type_info=table.schema)
    env.create_temporary_view("e", stream, event_time="ts", delay=delay)
    return env


def rows_of(env: TableEnvironment, query: str) -> list[Any]:
    """The changes in the order in which they come, all of which insert."""
    changes = list(env.execute_sql(query).collect())
    assert {kind for kind, *_ in changes} <= {"+I"}
    return [tuple(row) for _, *row in changes]


@pytest.mark.parametrize("query", QUERIES)
def test_rows_come_in_order(query):
    table = table_of(SAMPLE)
    with stream_of(TableEnvironment.create(parallelism=3, actor_system="local"), table) as env:
        assert rows_of(env, query) == by_duckdb(query, table)


@given(
    query=st.sampled_from(QUERIES), size=st.integers(1, 5), seed=st.integers(0, 9),
    rows=st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 9)), min_size=1, max_size=25),
)  # fmt: skip
@settings(max_examples=examples(15))
def test_and_so_do_any(query, rows, size, seed):
    table = table_of(rows)
    with stream_of(TableEnvironment.create(parallelism=3, actor_system="sim", seed=seed), table, size) as env:
        assert rows_of(env, query) == by_duckdb(query, table)


@pytest.mark.parametrize("backend", ["hashmap", campaign("rocksdb")])
def test_a_file_is_in_order_whatever_fails(tmp_path, backend):
    """Each row is written once, and those of each file are in order, as are the files."""
    table, out = table_of([(i % 5, i * 29 % 150) for i in range(150)]), tmp_path / "out"
    fails = udf(FailsNowAndThen(tmp_path / "calls", {40, 90, 200}), result_type="BIGINT")
    with stream_of(TableEnvironment.create(parallelism=3, actor_system="local"), table, delay="200 s") as env:
        env.create_temporary_function("now_and_then", fails)
        for key, value in {
            "execution.checkpointing.interval": "5 ms", "execution.checkpointing.dir": str(tmp_path / "c"),
            "state.backend.type": backend, "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "9", "restart-strategy.fixed-delay.delay": "1 ms",
        }.items():  # fmt: skip
            env.execute_sql(f"SET '{key}' = '{value}'")
        env.execute_sql(f"""CREATE TABLE o (id BIGINT, n BIGINT)
            WITH ('connector' = 'filesystem', 'path' = '{out}', 'format' = 'json')""")
        env.execute_sql("INSERT INTO o SELECT now_and_then(id), v FROM e ORDER BY ts, id")
    parts = [[json.loads(line)["id"] for line in path.read_text().splitlines()] for path in sorted(out.glob("part-*"))]
    assert (tmp_path / "calls").stat().st_size > 200
    assert [one for part in parts for one in part] == [one for one, _ in by_duckdb("SELECT id, v FROM e ORDER BY ts",
                                                                                   table)]  # fmt: skip


def test_late_rows_are_left_out():
    table = pa.table({"id": range(6), "v": [0] * 6,
                      "ts": pa.array([0, 50_000, 10_000, 60_000, 49_000, 55_000], pa.timestamp("ms"))})  # fmt: skip
    with TableEnvironment.create(parallelism=1, actor_system="local") as env:
        source = GeneratorSource.batches(Rows(table), 6, number_of_splits=1, batch_size=1)
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view("e", stream, event_time="ts", delay="10 s")
        assert rows_of(env, "SELECT id FROM e ORDER BY ts") == [(0,), (1,), (5,), (3,)]


def test_rows_in_order_go_on_with_their_event_time():
    query = """SELECT window_start, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end"""
    query = f"WITH r AS (SELECT * FROM e ORDER BY ts) {query}"
    table = table_of(SAMPLE)
    with stream_of(TableEnvironment.create(parallelism=2, actor_system="local"), table) as env:
        assert sorted(n for _, n in rows_of(env, query)) == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("query", "waits"),
    [
        ("SELECT id, ts FROM e ORDER BY ts, id", True),
        ("SELECT id, ts FROM e ORDER BY ts DESC", False),
        ("SELECT id, ts FROM e ORDER BY id, ts", False),
        ("SELECT ts, COUNT(*) AS n FROM e GROUP BY ts ORDER BY ts", False),
        ("SELECT ts, id FROM e ORDER BY ts LIMIT 3", False),
    ],
)
def test_a_plan_says_whether_rows_wait(query, waits):
    with stream_of(TableEnvironment.create(parallelism=2, actor_system="local"), table_of(SAMPLE)) as env:
        state = env.explain_sql(query).partition("== State ==")[2]
        assert ("order by ts" in state and "rows until the watermark has passed them" in state) == waits
        assert env.execute_sql(query).to_arrow().num_rows in (3, 40)
