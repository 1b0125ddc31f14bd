"""Chains of joins as one: on = off = batch mode = DuckDB, through restores, upgrades and retractions of every input."""

from __future__ import annotations

import pyarrow as pa
import pytest
from campaigns import campaign
from query_kit import FailsNowAndThen, by_duckdb, in_batch_mode, in_small_batches, multiset

from headrace import RestartStrategies
from headrace.table import TableEnvironment, udf

ON = "SET 'table.optimizer.multi-join.enabled' = 'true'"


def table(*rows, names):
    columns = list(zip(*rows, strict=True))
    kinds = [pa.int64()] * (len(names) - 1) + [pa.string()]
    return pa.table([pa.array(one, kind) for one, kind in zip(columns, kinds, strict=True)], names=names)


TABLES = {
    "a": table(*[(k, i % 3, f"a{i}") for i, k in enumerate([1, 2, 3, None, 4, 1, 5, 2, 6, None])], names="kxs"),
    "b": table(*[(k, i % 3, f"b{i}") for i, k in enumerate([1, 1, 3, 2, None, 7, 5, 4])], names="kxs"),
    "c": table(*[(k, i % 2, f"c{i}") for i, k in enumerate([1, 3, 3, None, 5, 8, 6, 2])], names="kxs"),
    "d": table(*[(k, i % 4, f"d{i}") for i, k in enumerate([1, 2, 3, 5, 5, None, 4, 6])], names="kxs"),
}
WHOLE = {
    # How many inputs one join has.
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k": 3,
    "SELECT a.s, b.s, c.s, d.s FROM a LEFT JOIN b ON a.k = b.k JOIN c ON c.k = a.k LEFT JOIN d ON d.k = a.k": 4,
    "SELECT a.s, b.s, c.s, d.s FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.k = c.k LEFT JOIN d ON c.k = d.k": 4,
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k JOIN c ON b.k = c.k": 3,
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k AND b.x > a.x LEFT JOIN c ON a.k = c.k AND c.x >= b.x": 3,
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k AND a.x = b.x LEFT JOIN c ON b.k = c.k AND b.x = c.x": 3,
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k AND a.x = b.x LEFT JOIN c ON c.k = b.k": 3,
    "SELECT a.s, b.s, c.s FROM a, b, c WHERE a.k = b.k AND c.k = a.k AND c.s > b.s AND a.x + b.x < 3": 3,
    """SELECT a.k, COUNT(*) AS n, COUNT(c.s) AS m FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k
       GROUP BY a.k""": 3,
    """SELECT p.n, q.n, a.s FROM (SELECT k, COUNT(*) AS n FROM b GROUP BY k) AS p LEFT JOIN
       (SELECT k, MAX(x) AS n FROM c GROUP BY k) AS q ON p.k = q.k JOIN a ON a.k = p.k""": 3,
    """SELECT p.s, q.s, r.s FROM a AS p JOIN a AS q ON p.k = q.k LEFT JOIN a AS r ON p.k = r.k""": 3,
}  # fmt: skip
APART = [
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k JOIN c ON b.x = c.x",
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k RIGHT JOIN c ON a.k = c.k",
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON COALESCE(b.x, 7) = c.x",
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k AND CAST(NULL AS BOOLEAN) LEFT JOIN c ON a.k = c.k",
]


def streaming(query, *, statements=(ON,), parallelism=3, rows=3, seed=0):
    env = TableEnvironment.create(parallelism=parallelism, actor_system="sim", seed=seed)
    with in_small_batches(env, TABLES, rows):
        for one in statements:
            env.execute_sql(one)
        return multiset(env.execute_sql(query).to_arrow())


def plan_of(query, *statements):
    with in_small_batches(TableEnvironment.create(), TABLES, 3) as env:
        for one in statements:
            env.execute_sql(one)
        return env.explain_sql(query)


@pytest.mark.parametrize("query", [*WHOLE, *APART])
@pytest.mark.sampled(3)
def test_one_join_gives_what_many_give(query):
    expected = by_duckdb(query, TABLES)
    assert streaming(query, parallelism=3, rows=3) == expected
    assert streaming(query, parallelism=1, rows=1) == expected


@pytest.mark.parametrize("query", [campaign(query) for query in (*WHOLE, *APART)])
def test_many_joins_and_batch_mode_give_the_same(query):
    expected = by_duckdb(query, TABLES)
    assert streaming(query, statements=()) == in_batch_mode(query, TABLES) == expected
    assert streaming(query, parallelism=2, rows=100) == expected


def test_the_plan_says_what_is_joined_at_once():
    with in_small_batches(TableEnvironment.create(), TABLES, 3) as env:
        for query in WHOLE:
            assert "inputs" not in env.explain_sql(query).partition("== State ==")[0]
        env.execute_sql(ON)
        for query, num_inputs in WHOLE.items():
            plan = env.explain_sql(query)
            assert "keeps the rows of each input once" in plan
            assert f"join of {num_inputs} inputs: bounded: all rows of all inputs" in plan
        for query in APART:
            assert "join of" not in env.explain_sql(query)


def test_a_hint_asks_for_one_join():
    query = "SELECT {} a.s, b.s, c.s FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
    hinted = query.format("/*+ MULTI_JOIN(a, b, c) */")
    assert "inner join of 3 inputs" in plan_of(hinted)
    assert "join of" not in plan_of(query.format("/*+ MULTI_JOIN(a, b) */")).replace("hint MULTI_JOIN", "")
    assert streaming(hinted, statements=()) == by_duckdb(query.format(""), TABLES)


def test_what_is_read_twice_stays_a_join_of_its_own():
    query = """WITH j AS (SELECT a.k, a.s, b.x FROM a JOIN b ON a.k = b.k)
        SELECT j.s, c.s FROM j JOIN c ON j.k = c.k UNION ALL SELECT j.s, d.s FROM j LEFT JOIN d ON j.k = d.k"""
    assert "join of" not in plan_of(query, ON)
    assert streaming(query) == by_duckdb(query, TABLES)


CHANGING = """
    SELECT p.n, q.n, r.n, p.k FROM (SELECT k, SUM(x) AS n FROM a GROUP BY k) AS p
    LEFT JOIN (SELECT k, SUM(x) AS n FROM b GROUP BY k) AS q ON p.k = q.k
    LEFT JOIN (SELECT shaky(k) AS k, SUM(x) AS n FROM c GROUP BY shaky(k)) AS r ON p.k = r.k AND r.n > q.n
"""


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_changes_of_all_inputs_come_to_the_same_through_failures(backend, tmp_path):
    tables = {name: pa.concat_tables([one] * 4) for name, one in TABLES.items()}
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), tables, 2) as env:
        env.execute_sql(ON)
        env.execute_sql(f"SET 'state.backend.type' = '{backend}'")
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {20, 45})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        assert "left join of 3 inputs" in env.explain_sql(CHANGING)
        found = multiset(env.execute_sql(CHANGING).to_arrow())
    assert found == by_duckdb(CHANGING.replace("shaky(k)", "k"), tables)


def test_the_order_in_which_inputs_come_changes_nothing():
    query = "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k AND b.x > 0 LEFT JOIN c ON b.k = c.k"
    expected = by_duckdb(query, TABLES)
    for rows, seed in ((1, 1), (4, 2), (4, 3)):
        assert streaming(query, rows=rows, seed=seed, parallelism=2) == expected
    waits = [
        f"SET 'table.exec.mini-batch.{key}' = '{value}'"
        for key, value in {"enabled": "true", "allow-latency": "50 ms", "size": "7"}.items()
    ]
    assert "mini-batch: rows wait" in plan_of(query, ON, *waits)
    assert streaming(query, statements=(ON, *waits)) == expected
