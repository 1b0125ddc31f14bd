"""Processing time in SQL: what goes by the clock loses nothing and gives nothing twice, whatever the clock says.

What a window has depends on the clock, so results are compared with what holds of every run: a row is in the windows
that its time says, and over all windows each row is counted as often as it is in some.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from campaigns import campaign
from query_kit import FailsNowAndThen

from headrace import RestartStrategies, RocksDBStateBackend
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, Tumble, col, lit, udf

NUM_ROWS = 600
NUM_KEYS = 5
MILLISECOND = dt.timedelta(milliseconds=1)


class Rows:
    """Rows in no order of time: number and key."""

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + length)
        return pa.record_batch({"id": numbers, "k": numbers * 31 % NUM_KEYS})


def environment(parallelism=2, batch_size=20, rows_per_second=None, **options):
    """An environment with the rows as view ``r``, and with the clock beside them as view ``e``."""
    env = TableEnvironment.create(parallelism=parallelism, **{"actor_system": "local", **options})
    source = GeneratorSource.batches(Rows(), NUM_ROWS, rows_per_second, number_of_splits=2, batch_size=batch_size)
    env.create_temporary_view("r", env.stream_environment.from_source(source, type_info=Rows()(0, 1).schema))
    env.execute_sql("CREATE VIEW e AS SELECT *, PROCTIME() AS p FROM r")
    return env


def per_key(rows, times=1):
    totals = Counter()
    for row in rows:
        totals[row["k"]] += row["n"]
    return totals == Counter(dict.fromkeys(range(NUM_KEYS), times * NUM_ROWS // NUM_KEYS))


# ------------------------------------------------------------------------------------------------------------- windows

WINDOWS = {
    "TUMBLE(TABLE e, DESCRIPTOR(p), INTERVAL '0.010' SECOND)": (10, 10, 1),
    "HOP(TABLE e, DESCRIPTOR(p), INTERVAL '0.005' SECOND, INTERVAL '0.020' SECOND)": (20, 5, 4),
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_counted_in_the_windows_that_its_time_says(window, seed):
    size, step, times = WINDOWS[window]
    query = f"""
        SELECT k, window_start, window_end, window_time, COUNT(*) AS n, MIN(p) AS f, MAX(p) AS l FROM TABLE({window})
        GROUP BY k, window_start, window_end, window_time
    """
    with environment(actor_system="sim", seed=seed, rows_per_second=4_000) as env:
        found = env.execute_sql(query).to_arrow()
    rows = found.to_pylist()
    assert found.schema.field("window_start").type == pa.timestamp("ms")
    assert found.schema.field("window_time").type == pa.timestamp("ms", "UTC")
    assert len({row["window_start"] for row in rows}) > 3
    assert per_key(rows, times)
    for row in rows:
        start, end = (row[name].replace(tzinfo=dt.timezone.utc) for name in ("window_start", "window_end"))
        assert end - start == size * MILLISECOND
        assert start.microsecond // 1_000 % step == 0
        assert start <= row["f"] <= row["l"] < end
        assert row["window_time"] == end - MILLISECOND


def test_windows_that_grow_and_sessions_have_each_row():
    with environment(actor_system="sim", seed=7, rows_per_second=4_000) as env:
        rows = (
            env.execute_sql("""
            SELECT k, window_start AS s, window_end AS e, COUNT(*) AS n
            FROM TABLE(CUMULATE(TABLE e, DESCRIPTOR(p), INTERVAL '0.010' SECOND, INTERVAL '0.040' SECOND))
            GROUP BY k, window_start, window_end
        """)
            .to_arrow()
            .to_pylist()
        )
        last = {}
        for row in sorted(rows, key=lambda row: row["e"]):
            assert row["n"] >= last.get((row["k"], row["s"]), {"n": 0})["n"]
            last[row["k"], row["s"]] = row
        assert per_key(last.values())
        sessions = (
            env.execute_sql("""
            SELECT k, COUNT(*) AS n, MIN(p) AS f, MAX(p) AS l, window_start AS s, window_end AS e
            FROM TABLE(SESSION(TABLE e PARTITION BY k, DESCRIPTOR(p), INTERVAL '0.008' SECOND))
            GROUP BY k, window_start, window_end
        """)
            .to_arrow()
            .to_pylist()
        )
    assert per_key(sessions)
    for row in sessions:
        assert row["f"] == row["s"].replace(tzinfo=dt.timezone.utc)
        assert row["l"] + 8 * MILLISECOND == row["e"].replace(tzinfo=dt.timezone.utc)


def test_windows_in_group_by_and_those_of_the_table_api_go_by_the_clock():
    with environment() as env:
        old = env.execute_sql("""
            SELECT k, COUNT(*) AS n, TUMBLE_PROCTIME(p, INTERVAL '1' SECOND) AS t FROM e
            GROUP BY k, TUMBLE(p, INTERVAL '1' SECOND)
        """).to_arrow()
        table = env.from_path("e").window(Tumble.over(lit(1).seconds).on(col("p")).alias("w"))
        new = table.group_by(col("w"), col("k")).select(col("k"), col("id").count.alias("n")).to_arrow()
    assert old.schema.field("t").type == pa.timestamp("ms", "UTC")
    assert per_key(old.to_pylist())
    assert per_key(new.to_pylist())


def test_windows_of_windows_and_joins_of_windows_go_on_by_the_clock():
    with environment(actor_system="sim", seed=3, rows_per_second=4_000) as env:
        env.execute_sql("""
            CREATE VIEW w AS SELECT k, window_start AS s, window_end AS e, window_time AS t, COUNT(*) AS n
            FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(p), INTERVAL '0.010' SECOND))
            GROUP BY k, window_start, window_end, window_time
        """)
        rows = (
            env.execute_sql("""
            SELECT k, SUM(n) AS n FROM TABLE(TUMBLE(TABLE w, DESCRIPTOR(t), INTERVAL '0.020' SECOND))
            GROUP BY k, window_start, window_end
        """)
            .to_arrow()
            .to_pylist()
        )
        assert per_key(rows)
        join = "SELECT a.k, a.n FROM w AS a JOIN w AS b ON a.k = b.k AND a.s = b.s AND a.e = b.e"
        assert "inner window join" in env.explain_sql(join)
        assert per_key(env.execute_sql(join).to_arrow().to_pylist())


# ---------------------------------------------------------------------------------------------------- order of arrival


def test_rows_go_by_their_arrival():
    with environment(actor_system="sim", seed=1, parallelism=3) as env:
        rows = (
            env.execute_sql("""
            SELECT id, k, p, COUNT(*) OVER w AS n, LAG(id) OVER w AS b, SUM(id) OVER w AS s FROM e
            WINDOW w AS (PARTITION BY k ORDER BY p)
        """)
            .to_arrow()
            .to_pylist()
        )
        two = env.execute_sql("""
            SELECT id, COUNT(*) OVER (PARTITION BY k ORDER BY p ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM e
        """).to_arrow()
    assert sorted(row["id"] for row in rows) == list(range(NUM_ROWS))
    for key in range(NUM_KEYS):
        own = {row["id"]: row for row in rows if row["k"] == key}
        chain = [next(row for row in own.values() if row["b"] is None)]
        following = {row["b"]: row for row in own.values()}
        while chain[-1]["id"] in following:
            chain.append(following[chain[-1]["id"]])
        assert len(chain) == len(own)
        assert sorted(chain, key=lambda row: row["n"]) == chain
        assert max(row["n"] for row in chain) == len(own)
        assert max(row["s"] for row in chain) == sum(own)
    assert Counter(two["n"].to_pylist()) == Counter({2: NUM_ROWS - NUM_KEYS, 1: NUM_KEYS})


@pytest.mark.parametrize("column", ["p", "PROCTIME()"])
def test_the_first_and_the_last_row_of_a_key_are_those_that_came_so(column):
    top = "SELECT id, k, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {}) AS n FROM e) WHERE n <= {}"
    with environment(parallelism=1) as env:
        both = [top.format(f"{column} {order}", 2) for order in ("ASC", "DESC")]
        first, last = (env.execute_sql(query).to_arrow().to_pylist() for query in both)
        plan = env.explain_sql(top.format(column, 1))
        kinds = {kind for kind, *_ in env.execute_sql(top.format(column, 1)).collect()}
        # All rows of a key are given in the order of their numbers by one subtask of each of two splits.
        halves = [
            [number for number in range(NUM_ROWS) if number * 31 % NUM_KEYS == key and number // 20 % 2 == split]
            for key in range(NUM_KEYS) for split in range(2)
        ]  # fmt: skip
    assert "by arrival" in plan
    assert "processing time" not in plan.partition("== Plan of streams ==")[2]
    assert kinds == {"+I"}
    assert Counter((row["k"], row["n"]) for row in first) == Counter((k, n) for k in range(NUM_KEYS) for n in (1, 2))
    ends = {number for half in halves for number in (*half[:2], *half[-2:])}
    assert {row["id"] for row in first} <= {number for half in halves for number in half[:2]}
    assert {row["id"] for row in last} <= ends
    assert not {row["id"] for row in first} & {row["id"] for row in last}


def test_the_last_row_of_a_key_is_the_last_also_among_those_of_one_millisecond():
    with environment(actor_system="sim", seed=2, parallelism=3) as env:
        rows = (
            env.execute_sql("""
            SELECT k, c FROM (
                SELECT k, COUNT(*) OVER (PARTITION BY k ORDER BY p ROWS UNBOUNDED PRECEDING) AS c,
                       ROW_NUMBER() OVER (PARTITION BY k ORDER BY p DESC) AS n FROM e
            ) WHERE n = 1
        """)
            .to_arrow()
            .to_pylist()
        )
    assert {row["k"]: row["c"] for row in rows} == dict.fromkeys(range(NUM_KEYS), NUM_ROWS // NUM_KEYS)


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("backend", ["heap", campaign("rocksdb")])
def test_windows_lose_nothing_through_failures(backend, tmp_path):
    with environment(rows_per_second=2_000) as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        if backend == "rocksdb":
            streams.set_state_backend(RocksDBStateBackend())
        calls = FailsNowAndThen(tmp_path / "calls", {150, 420})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW f AS SELECT shaky(id) AS id, k, p FROM e")
        rows = (
            env.execute_sql("""
            SELECT k, COUNT(*) AS n, COUNT(DISTINCT id) AS d, SUM(id) AS s
            FROM TABLE(TUMBLE(TABLE f, DESCRIPTOR(p), INTERVAL '0.05' SECOND)) GROUP BY k, window_start, window_end
        """)
            .to_arrow()
            .to_pylist()
        )
    assert per_key(rows)
    assert all(row["n"] == row["d"] for row in rows)
    assert sum(row["s"] for row in rows) == sum(range(NUM_ROWS))
    assert (tmp_path / "calls").stat().st_size >= NUM_ROWS + 2


# --------------------------------------------------------------------------------------------------------- what it is


def test_a_column_of_a_table_is_processing_time():
    with TableEnvironment.create(parallelism=1, actor_system="local") as env:
        env.execute_sql("""
            CREATE TABLE g (id BIGINT, p AS PROCTIME(), t AS DATE_FORMAT(PROCTIME(), 'yyyy'))
            WITH ('connector' = 'datagen', 'number-of-rows' = '3')
        """)
        described = env.execute_sql("DESCRIBE g").to_arrow().to_pylist()
        assert described[1] == {"name": "p", "type": "TIMESTAMP_LTZ(3)", "extras": "processing time"}
        assert described[2] == {"name": "t", "type": "STRING", "extras": ""}
        before = dt.datetime.now(dt.timezone.utc) - MILLISECOND
        rows = env.execute_sql("SELECT p, t FROM g").to_arrow().to_pylist()
        assert len(rows) == 3
        assert all(before <= row["p"] <= dt.datetime.now(dt.timezone.utc) for row in rows)
        assert {row["t"] for row in rows} <= {str(before.year), str(before.year + 1)}
        plan = env.explain_sql("SELECT id FROM g").partition("== Plan of streams ==")[2]
        assert "processing time" not in plan


def test_it_is_aggregated_as_other_columns_are():
    with environment() as env:
        query = "SELECT k, COUNT(PROCTIME()) AS n, MAX(PROCTIME()) >= MIN(PROCTIME()) AS is_behind FROM r GROUP BY k"
        rows = env.execute_sql(query).to_arrow().to_pylist()
    assert per_key(rows)
    assert all(row["is_behind"] for row in rows)


def test_in_batch_mode_it_is_one_moment():
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("r", Rows()(0, 50))
        times = env.execute_sql("SELECT PROCTIME() AS p, id FROM r").to_arrow()["p"].to_pylist()
        assert len(set(times)) == 1
        assert abs(times[0] - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)
        env.execute_sql("CREATE VIEW e AS SELECT *, PROCTIME() AS p FROM r")
        for query in (
            "SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(p), INTERVAL '1' DAY)) GROUP BY window_start, "
            "window_end",
            "SELECT LAG(id) OVER (ORDER BY p) FROM e",
        ):
            with pytest.raises(ProgramError, match="by processing time have no meaning in batch mode"):
                env.execute_sql(query).to_arrow()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id FROM r WHERE PROCTIME() > TIMESTAMP '2020-01-01 00:00:00'", r"PROCTIME\(\) here is not supported"),
        ("SELECT COUNT(*), PROCTIME() FROM r", r"PROCTIME\(\) here is not supported"),
        ("SELECT k, PROCTIME() AS p FROM (SELECT k, COUNT(*) AS n FROM r GROUP BY k)", "of rows that only come"),
        ("SELECT k FROM (SELECT k, CAST(p AS TIMESTAMP(3)) AS p FROM e) GROUP BY k, TUMBLE(p, INTERVAL '1' SECOND)",
         "is not the event time"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(query, message):
    with environment() as env, pytest.raises((SqlError, ProgramError), match=message):
        env.execute_sql(query).to_arrow()


def test_processing_time_has_no_watermark():
    with TableEnvironment.create(actor_system="local") as env:
        statement = "CREATE TABLE g (id INT, p AS PROCTIME(), WATERMARK FOR p AS p) WITH ('connector' = 'datagen')"
        with pytest.raises(SqlError, match="'p' is processing time, which has no watermark"):
            env.execute_sql(statement)
