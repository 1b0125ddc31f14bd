"""Equal sub-plans are one: which are, which are not, and that the rows are the same.

Families: properties (a random query that is read twice, against DuckDB and against the rule left out); what is shared
by the plans; what is not, as it is a function of its own; failures and restores.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from campaigns import campaign
from query_generator import QueryGenerator, random_rows
from query_kit import FailsNowAndThen, by_duckdb, in_small_batches, multiset, tables_of, with_tables

from headrace import RestartStrategies
from headrace.table import TableEnvironment, udf

NOTE = "is there once for all who read it"
LEAVE_OUT = "SET 'table.optimizer.reuse-sub-plan-enabled' = 'false'"
SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"
TABLES = {"t": pa.table({"k": [1, 1, 2, 3, 3, 3], "v": [5, 7, 1, 2, 2, 9]})}


def environment(mode, **options):
    chosen = {"actor_system": "sim", "seed": 0, **options} if mode == "streaming" else options
    return TableEnvironment.create(mode=mode, **{"parallelism": 3, **chosen})


@pytest.mark.parametrize("block", [campaign(0), campaign(1), 2, campaign(3)])
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_query_that_is_read_twice_gives_its_rows_twice(mode, block):
    num_noted = Counter()
    for number in range(4):
        seed = f"shared {block} {number}"
        query = QueryGenerator(seed).query()
        other = random.Random(seed).choice(("UNION ALL", "INTERSECT", "EXCEPT ALL"))
        twice = f"SELECT * FROM ({query}) AS one {other} SELECT * FROM ({query}) AS two"
        tables = tables_of(*random_rows(seed))
        expected = by_duckdb(twice, tables)
        for leaves_out in (False, True):
            with environment(mode) as env:
                in_small_batches(env, tables, 3) if mode == "streaming" else with_tables(env, tables)
                if leaves_out:
                    env.execute_sql(LEAVE_OUT)
                num_noted[leaves_out] += env.explain_sql(twice).count(NOTE)
                assert multiset(env.execute_sql(twice).to_arrow()) == expected, twice
    # Not of each query: correlated subqueries give the columns that they add other names each time.
    assert num_noted[False] > num_noted[True] == 0


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_function_that_gives_other_values_each_time_is_called_for_itself(mode):
    chance = udf(lambda value: random.random(), result_type="DOUBLE", deterministic=False)
    with with_tables(environment(mode), TABLES) as env:
        env.create_temporary_function("chance", chance)
        rows = "(SELECT v, chance(v) AS x FROM t WHERE v > 2)"
        joined = env.execute_sql(f"SELECT a.x AS x, b.x AS y FROM {rows} AS a JOIN {rows} AS b ON a.v = b.v").to_arrow()
        beside = env.execute_sql("SELECT chance(v) AS x, chance(v) AS y FROM t").to_arrow()
        passed = env.execute_sql(f"SELECT x FROM {rows} WHERE x > 0.5").to_arrow()
    for table in (joined, beside):
        assert all(row["x"] != row["y"] for row in table.to_pylist())
    assert all(row["x"] > 0.5 for row in passed.to_pylist())


def plan_of(env, query):
    return env.explain_sql(query).partition("\n\n")[2]


def test_what_is_written_twice_is_one():
    with with_tables(environment("streaming"), TABLES) as env:
        plan = plan_of(env, f"SELECT * FROM ({SUMS}) AS a JOIN ({SUMS}) AS b ON a.k = b.k AND a.s >= b.s")
        assert plan.partition("== State ==")[0].count("group by k: sum") == 1
        assert plan.count("(as above)") == 1
        assert plan.count(NOTE) == 1
        # Each side has a condition of its own: what is below them is one.
        plan = plan_of(env, "SELECT k FROM t WHERE v > 1 UNION ALL SELECT k FROM t WHERE v > 2")
        assert plan.count("(as above)") == 1


def test_a_statement_set_reads_its_tables_once():
    with with_tables(environment("streaming"), TABLES) as env:
        env.execute_script("""
            CREATE TABLE a (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
            CREATE TABLE b (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
        """)
        env.execute_sql("CREATE TABLE g (k BIGINT, v BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '9')")
        counted = "SELECT k, COUNT(*) FROM g GROUP BY k"
        plan = plan_of(env, f"STATEMENT SET BEGIN INSERT INTO a {counted}; INSERT INTO b {counted}; END")
        assert "(as above)" in plan
        assert NOTE in plan


def test_two_functions_of_one_name_stay_two():
    with with_tables(environment("batch"), TABLES) as env:
        env.create_temporary_function("f", udf(lambda value: value + 1, result_type="BIGINT"))
        first = env.sql_query("SELECT f(k) AS x FROM t")
        env.execute_sql("DROP TEMPORARY FUNCTION f")
        env.create_temporary_function("f", udf(lambda value: value + 100, result_type="BIGINT"))
        rows = first.union_all(env.sql_query("SELECT f(k) AS x FROM t")).execute().to_arrow()
    assert Counter(rows["x"].to_pylist()) == Counter([2, 2, 3, 4, 4, 4, 101, 101, 102, 103, 103, 103])


@pytest.mark.parametrize("backend", [campaign("heap"), "rocksdb"])
def test_what_is_shared_goes_on_through_failures(tmp_path, backend):
    rows = pa.table({"k": [i % 7 for i in range(400)], "v": list(range(400))})
    expected = Counter()
    sums = Counter()
    for k, v in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
        sums[k] += v
    expected = Counter({(k, s, s): 1 for k, s in sums.items()})
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        env.stream_environment.set_state_backend(backend)
        env.stream_environment.enable_checkpointing(20, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 10))
        in_small_batches(env, {"t": rows}, 10)
        env.create_temporary_function(
            "trips", udf(FailsNowAndThen(tmp_path / "calls", {150, 600}), result_type="BIGINT")
        )
        query = f"SELECT a.k, a.s, trips(b.s) FROM ({SUMS}) AS a JOIN ({SUMS}) AS b ON a.k = b.k AND a.s = b.s"
        assert NOTE in env.explain_sql(query)
        assert multiset(env.execute_sql(query).to_arrow()) == expected
