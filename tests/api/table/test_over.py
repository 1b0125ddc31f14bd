"""OVER in SQL: batch mode gives what DuckDB gives, and a stream gives the same rows, each once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from campaigns import campaign, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from query_kit import FailsNowAndThen

from headrace import RestartStrategies
from headrace.connectors.datagen import GeneratorSource
from headrace.table import TableEnvironment, udf

# Where rows of one time are told apart, none are equal in the order.
BY_TIME = (
    "ORDER BY ts",
    "PARTITION BY k ORDER BY ts",
    "PARTITION BY k, s ORDER BY ts",
    "PARTITION BY k ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '3' SECOND PRECEDING AND CURRENT ROW",
    "ORDER BY ts RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW",
    "PARTITION BY k ORDER BY ts RANGE BETWEEN CURRENT ROW AND CURRENT ROW",
)
BY_PLACE = (
    "PARTITION BY k ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ORDER BY ts ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
    "PARTITION BY k ORDER BY ts ROWS 1 PRECEDING",
)
IN_BATCH = (
    "PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND INTERVAL '2' SECOND FOLLOWING",
    "PARTITION BY k ORDER BY ts DESC RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW",
    "PARTITION BY k ORDER BY v RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "PARTITION BY k ORDER BY v DESC RANGE BETWEEN 2 PRECEDING AND UNBOUNDED FOLLOWING",
    "PARTITION BY k ORDER BY v NULLS LAST RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "PARTITION BY k ORDER BY v DESC NULLS FIRST RANGE BETWEEN 1 PRECEDING AND CURRENT ROW",
    "PARTITION BY k ORDER BY id ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    "partition by k order by id rows between 2 preceding and 1 following",
    "PARTITION BY k ORDER BY s",
    "PARTITION BY k",
)
AGGREGATES = """
    SELECT id, COUNT(*) OVER w AS n, COUNT(v) OVER w AS c, SUM(v) OVER w AS total, MIN(x) OVER w AS low,
           MAX(s) OVER w AS high, COUNT(DISTINCT v) OVER w AS d, SUM(v) OVER w + id AS t FROM e
"""
PLACES = """
    SELECT id, RANK() OVER w AS r, DENSE_RANK() OVER w AS d, SUM(CAST(x AS DECIMAL(9, 2))) OVER w AS m FROM e
"""
NEIGHBOURS = """
    SELECT id, LAG(v) OVER w AS a, LAG(s, 2) OVER w AS b, LAG(v, 1, 7) OVER w AS c, ROW_NUMBER() OVER w AS n,
           FIRST_VALUE(id) OVER w AS f, LAST_VALUE(id) OVER w AS l FROM e
"""
SHARES = """
    SELECT id, PERCENT_RANK() OVER w AS p, CUME_DIST() OVER w AS c FROM e
"""
TILES = """
    SELECT id, NTILE(3) OVER w AS t, NTILE(7) OVER w + id AS u, CUME_DIST() OVER w * 2 AS c FROM e
"""
OF_ALL = [
    (SHARES, "PARTITION BY k ORDER BY v"), (SHARES, "ORDER BY ts DESC"), (TILES, "PARTITION BY k ORDER BY ts"),
    (TILES, "PARTITION BY s ORDER BY v DESC, id"),
]  # fmt: skip
IN_ANY_MODE = [
    *((AGGREGATES, window) for window in BY_TIME), *((AGGREGATES, window) for window in BY_PLACE),
    *((PLACES, window) for window in BY_TIME[:3]), (NEIGHBOURS, "PARTITION BY k ORDER BY ts"),
]  # fmt: skip

number = st.one_of(st.none(), st.integers(0, 3))
rows_of = st.lists(
    st.tuples(number, number, st.sampled_from([None, 1.5, -2.25, 0.0]), st.sampled_from([None, "a", "b", ""]),
              st.integers(0, 6)), min_size=1, max_size=25,
)  # fmt: skip
SAMPLE = [(i * 5 % 3 or None, i * 7 % 4 or None, (None, 1.5, -2.25)[i % 3], ("a", None, "b", "")[i * 3 % 4], i // 3 % 7)
          for i in range(40)]  # fmt: skip


def table_of(rows: list[Any], *, unique: bool) -> pa.Table:
    """The table ``e``; its times are in seconds, or no two of them are equal."""
    columns = list(zip(*rows, strict=True))
    times = [row[4] * 1_000 + (place * 17 % 1_000 if unique else 0) for place, row in enumerate(rows)]
    kinds = [pa.int64(), pa.int64(), pa.float64(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns[:4], kinds, strict=True)]
    arrays += [pa.array(range(len(rows))), pa.array(times, pa.timestamp("ms"))]
    return pa.table(arrays, names=["k", "v", "x", "s", "id", "ts"])


def query_of(calls: str, window: str) -> str:
    return calls.replace("OVER w", f"OVER ({window})")


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_duckdb(query: str, table: pa.Table) -> Counter[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        connection.register("e", table)
        # DuckDB's FIRST_VALUE takes nulls, and it gives sums of more digits.
        return multiset(connection.sql(query).to_arrow_table())


def in_batch_mode(query: str, table: pa.Table) -> Counter[Any]:
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        env.create_temporary_view("e", table, event_time="ts")
        return multiset(env.execute_sql(query).to_arrow())


class Rows:
    """Gives rows of a table by their numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        return self._table.slice(start, length).combine_chunks().to_batches()[0]


def on_a_stream(query: str, table: pa.Table, size: int = 3, delay: str = "20 s", **options: Any) -> Counter[Any]:
    """The changes that a stream gives, all of which insert."""
    with TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options}) as env:
        source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=2, batch_size=size)
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view("e", stream, event_time="ts", delay=delay)
        changes = list(env.execute_sql(query).collect())
    assert {kind for kind, *_ in changes} == {"+I"}
    return Counter(tuple(row) for _, *row in changes)


@pytest.mark.parametrize(("calls", "window"), [*IN_ANY_MODE, *OF_ALL, *((AGGREGATES, window) for window in IN_BATCH)])
def test_batch_gives_what_duckdb_gives(calls, window):
    table = table_of(SAMPLE, unique="ROWS" in window or calls in (NEIGHBOURS, TILES))
    query = query_of(calls, window)
    assert in_batch_mode(query, table) == by_duckdb(query, table)


@pytest.mark.parametrize(("calls", "window"), IN_ANY_MODE)
@pytest.mark.sampled(3)
def test_a_stream_gives_what_batch_gives(calls, window):
    table = table_of(SAMPLE, unique="ROWS" in window or calls in (NEIGHBOURS, TILES))
    query = query_of(calls, window)
    assert on_a_stream(query, table) == in_batch_mode(query, table)


@given(case=st.sampled_from([*IN_ANY_MODE, *OF_ALL, *((AGGREGATES, window) for window in IN_BATCH)]), rows=rows_of)
def test_batch_gives_what_duckdb_gives_of_any_rows(case, rows):
    calls, window = case
    table = table_of(rows, unique="ROWS" in window or calls in (NEIGHBOURS, TILES))
    query = query_of(calls, window)
    assert in_batch_mode(query, table) == by_duckdb(query, table)


@given(case=st.sampled_from(IN_ANY_MODE), rows=rows_of, size=st.integers(1, 5), seed=st.integers(0, 9))
def test_a_stream_gives_what_duckdb_gives_of_any_rows(case, rows, size, seed):
    calls, window = case
    table = table_of(rows, unique="ROWS" in window or calls in (NEIGHBOURS, TILES))
    query = query_of(calls, window)
    found = on_a_stream(query, table, size, parallelism=3, actor_system="sim", seed=seed)
    assert found == by_duckdb(query, table)


def test_nulls_are_passed_over_by_first_and_last_value():
    query = query_of("SELECT id, FIRST_VALUE(v) OVER w AS f, LAST_VALUE(v) OVER w AS l FROM e",
                     "ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW")  # fmt: skip
    table = table_of([(1, v, None, None, at) for at, v in enumerate([None, 1, None, 2, None, None, None])], unique=True)
    wanted = Counter([(0, None, None), (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 2), (6, None, None)])
    assert in_batch_mode(query, table) == wanted
    assert on_a_stream(query, table) == wanted


def test_averages_are_of_flinks_types():
    query = query_of("SELECT id, AVG(v) OVER w AS a, AVG(x) OVER w AS b FROM e", "ORDER BY ts")
    table = table_of([(1, 1, 1.5, None, 0), (1, 2, 2.0, None, 1), (1, 2, None, None, 2)], unique=True)
    wanted = Counter([(0, 1, 1.5), (1, 1, 1.75), (2, 1, 1.75)])
    assert in_batch_mode(query, table) == wanted
    assert on_a_stream(query, table) == wanted


def test_rows_go_on_with_their_event_time():
    query = """
        WITH r AS (SELECT ts, SUM(v) OVER (PARTITION BY k ORDER BY ts) AS s FROM e)
        SELECT window_start, COUNT(*) AS n, MAX(s) AS m
        FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '2' SECOND)) GROUP BY window_start, window_end
    """
    table = table_of(SAMPLE, unique=False)
    assert on_a_stream(query, table) == in_batch_mode(query, table)


def test_windows_have_names():
    window = "PARTITION BY k ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
    table = table_of(SAMPLE, unique=True)
    query = f"{AGGREGATES} WHERE v > 1 WINDOW w AS ({window}), other AS (ORDER BY ts)"
    assert in_batch_mode(query, table) == by_duckdb(query, table)
    assert on_a_stream(query, table) == by_duckdb(query, table)
    for broken, message in (
        ("SELECT SUM(v) OVER u AS s FROM e WINDOW w AS (ORDER BY ts)", "there is no window 'u'"),
        ("SELECT SUM(v) OVER w AS s FROM e WINDOW w AS (ORDER BY ts), w AS (ORDER BY id)", "is there twice"),
    ):
        with pytest.raises(Exception, match=message):
            in_batch_mode(broken, table)


def test_calls_over_one_window_are_one_step():
    query = query_of(AGGREGATES, "PARTITION BY k ORDER BY ts")
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("e", table_of(SAMPLE, unique=False), event_time="ts")
        plan = env.explain_sql(query).partition("== Plan of")[2].partition("== State")[0]
    assert plan.count("over $over") == 1


CHANGING = [
    *OF_ALL,
    *((AGGREGATES, window) for window in IN_BATCH), (PLACES, "PARTITION BY k ORDER BY v DESC, id"),
    (NEIGHBOURS, "PARTITION BY k ORDER BY id DESC"), (NEIGHBOURS.replace("LAG", "LEAD"), "PARTITION BY k ORDER BY ts"),
]  # fmt: skip


def at_the_end_of_a_stream(query: str, table: pa.Table, size: int = 3, **options: Any) -> Counter[Any]:
    """The table that the changes of a stream come to."""
    with TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options}) as env:
        source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=1, batch_size=size)
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view("e", stream, event_time="ts", delay="20 s")
        return multiset(env.execute_sql(query).to_arrow())


@pytest.mark.parametrize(("calls", "window"), CHANGING)
@pytest.mark.sampled(3)
def test_in_any_other_order_a_stream_comes_to_what_batch_gives(calls, window):
    table = table_of(SAMPLE, unique=calls is not AGGREGATES)
    query = query_of(calls, window)
    assert at_the_end_of_a_stream(query, table) == in_batch_mode(query, table)


@given(case=st.sampled_from(CHANGING), rows=rows_of, size=st.integers(1, 5), seed=st.integers(0, 9))
@settings(max_examples=examples(40))
def test_and_of_any_rows(case, rows, size, seed):
    calls, window = case
    table = table_of(rows, unique=calls is not AGGREGATES)
    query = query_of(calls, window)
    found = at_the_end_of_a_stream(query, table, size, parallelism=3, actor_system="sim", seed=seed)
    assert found == in_batch_mode(query, table)


@pytest.mark.parametrize(
    "window", ["PARTITION BY k ORDER BY n", "ORDER BY n, k ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING"]
)
def test_rows_that_change_are_taken_back(window):
    query = f"""
        SELECT k, s, n, SUM(n) OVER w AS t, LEAD(n) OVER w AS l FROM (
            SELECT k, s, COUNT(*) AS n, MAX(v) AS v FROM e WHERE k IS NOT NULL GROUP BY k, s
        ) WINDOW w AS ({window})
    """
    table = table_of(SAMPLE, unique=True)
    # Rows that are equal in the order are told apart by it.
    query = query.replace("ORDER BY n", "ORDER BY n, s")
    assert at_the_end_of_a_stream(query, table) == in_batch_mode(query, table)


@pytest.mark.parametrize("backend", [campaign("heap"), campaign("rocksdb")])
def test_shares_of_rows_that_change_go_on_through_failures(backend, tmp_path):
    query = """
        SELECT {shaky} AS k, n, v, NTILE(3) OVER w AS t, PERCENT_RANK() OVER w AS p, CUME_DIST() OVER w AS c
        FROM (SELECT k, id % 9 AS r, COUNT(*) AS n, MAX(v) AS v FROM e WHERE k IS NOT NULL GROUP BY k, id % 9)
        WINDOW w AS (PARTITION BY k ORDER BY n, v, r)
    """
    table = table_of(SAMPLE * 3, unique=True)
    with TableEnvironment.create(parallelism=3, actor_system="sim", seed=7) as env:
        streams = env.stream_environment
        streams.set_state_backend(backend)
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=2, batch_size=3)
        env.create_temporary_view("e", streams.from_source(source, type_info=table.schema))
        shaky = FailsNowAndThen(tmp_path / "calls", (30, 90, 200))
        env.create_temporary_function("shaky", udf(shaky, result_type="BIGINT"))
        found = multiset(env.execute_sql(query.format(shaky="shaky(k)")).to_arrow())
    assert (tmp_path / "calls").stat().st_size > 200
    assert found == by_duckdb(query.format(shaky="k"), table)


def test_a_plan_says_what_a_changing_over_keeps():
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        source = GeneratorSource.batches(Rows(table_of(SAMPLE, unique=True)), len(SAMPLE), batch_size=3)
        kind = table_of(SAMPLE, unique=True).schema
        env.create_temporary_view("e", env.stream_environment.from_source(source, type_info=kind))
        plan = env.explain_sql("SELECT k, LEAD(v) OVER (PARTITION BY k ORDER BY v) AS l FROM e")
    assert "all rows of its input for each k" in plan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("SUM(v) OVER (ORDER BY ts ROWS BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW)", "takes whole numbers"),
        ("SUM(v) OVER (ORDER BY ts ROWS BETWEEN CURRENT ROW AND 1 PRECEDING)", "cannot end before it begins"),
        ("SUM(v) OVER (ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", "goes by an order"),
        ("SUM(v) OVER (ORDER BY ts, id RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "goes by one column"),
        ("SUM(v) OVER (ORDER BY s RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "times or whole numbers"),
        ("RANK() OVER (PARTITION BY k)", "RANK goes by an order"),
        ("LAG() OVER (ORDER BY ts)", "LAG needs an argument"),
        ("NTILE(4) OVER (PARTITION BY k)", "NTILE goes by an order"),
        ("NTILE() OVER (ORDER BY ts)", "NTILE takes one argument; got 0"),
        ("NTILE(id) OVER (ORDER BY ts)", "the number of parts must be a literal"),
        ("NTILE(0) OVER (ORDER BY ts)", "whole number of parts, 1 or more; got 0"),
        ("CUME_DIST(id) OVER (ORDER BY ts)", "CUME_DIST takes no arguments; got 1"),
        ("LAST_VALUE(DISTINCT v) OVER (ORDER BY ts)", r"LAST_VALUE\(DISTINCT \.\.\.\) is not supported"),
    ],
)
def test_what_means_nothing_is_refused(call, message):
    with TableEnvironment.create(mode="batch") as env, pytest.raises(Exception, match=message):
        env.create_temporary_view("e", table_of(SAMPLE, unique=True), event_time="ts")
        env.execute_sql(f"SELECT {call} AS c FROM e").to_arrow()
