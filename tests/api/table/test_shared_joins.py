"""Joins that keep an input in common: on = off = DuckDB, through failures, restores, upgrades and statement sets.

Families: properties (random joins of random tables that are read in common), what the plan says, what stays apart,
failures and savepoints.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
import pytest
from campaigns import blocks, campaign
from query_generator import random_rows
from query_kit import FailsNowAndThen, by_duckdb, in_small_batches, multiset, tables_of
from upgrade_kit import explained, gone_on, in_batch_mode, of_kind, stopped

from headrace import RestartStrategies
from headrace.table import TableEnvironment, udf

SETTING = "table.optimizer.shared-join-state.enabled"
ON = f"SET '{SETTING}' = 'true'"


def table(*rows, names="kxs"):
    columns = list(zip(*rows, strict=True))
    kinds = [pa.int64()] * (len(names) - 1) + [pa.string()]
    return pa.table([pa.array(one, kind) for one, kind in zip(columns, kinds, strict=True)], names=list(names))


TABLES = {
    "a": table(*[(k, i % 3, f"a{i}") for i, k in enumerate([1, 2, 3, None, 4, 1, 5, 2, 6, None])]),
    "b": table(*[(k, i % 3, f"b{i}") for i, k in enumerate([1, 1, 3, 2, None, 7, 5, 4])]),
    "c": table(*[(k, i % 2, f"c{i}") for i, k in enumerate([1, 3, 3, None, 5, 8, 6, 2])]),
    "d": table(*[(k, i % 4, f"d{i}") for i, k in enumerate([1, 2, 3, 5, 5, None, 4, 6])]),
}
TOGETHER = {
    # How many joins of how many inputs there are.
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k UNION ALL SELECT c.s, b.s FROM c JOIN b ON c.k = b.k": (2, 3),
    "SELECT a.s, b.s FROM a LEFT JOIN b ON a.k = b.k UNION ALL SELECT b.s, c.s FROM b LEFT JOIN c ON c.k = b.k": (2, 3),
    "SELECT a.s, b.s FROM a RIGHT JOIN b ON a.k = b.k UNION ALL SELECT b.s, b.s FROM b WHERE k IN (SELECT k FROM c)":
        (2, 3),
    "SELECT s, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k) UNION ALL SELECT s, x FROM c WHERE NOT EXISTS "
    "(SELECT 1 FROM b WHERE b.k = c.k)": (2, 3),
    # Parts of keys in another order; conditions; columns under other names.
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k AND a.x = b.x UNION ALL SELECT c.s, b.s FROM c JOIN b ON "
    "c.x = b.x AND c.k = b.k": (2, 3),
    "SELECT a.s, b.s FROM a LEFT JOIN b ON a.k = b.k AND a.x < b.x UNION ALL SELECT d.s, r.u FROM d JOIN "
    "(SELECT s AS u, k AS m FROM b) AS r ON r.m = d.k": (2, 3),
    # One that links two others, and a table that is joined with itself.
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k UNION ALL SELECT c.s, d.s FROM c JOIN d ON c.k = d.k UNION ALL "
    "SELECT b.s, c.s FROM b LEFT JOIN c ON b.k = c.k": (3, 4),
    "SELECT p.s, q.s FROM a AS p JOIN a AS q ON p.k = q.k UNION ALL SELECT a.s, b.s FROM a JOIN b ON a.k = b.k": (2, 3),
    # Inputs that change, and results that others read.
    "WITH g AS (SELECT k, COUNT(*) AS n FROM b GROUP BY k) SELECT a.s, g.n FROM a LEFT JOIN g ON a.k = g.k UNION ALL "
    "SELECT c.s, g.n FROM c JOIN g ON c.k = g.k": (2, 3),
    "SELECT x, COUNT(*) AS n FROM (SELECT a.x FROM a JOIN b ON a.k = b.k UNION ALL SELECT c.x FROM c JOIN b ON "
    "c.k = b.k) GROUP BY x": (2, 3),
}  # fmt: skip
APART = [
    # Other keys; other conditions below; one reads the other; a column twice in a key; joins that are full.
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k UNION ALL SELECT c.s, b.s FROM c JOIN b ON c.k = b.x",
    "SELECT a.s, p.s FROM a JOIN (SELECT * FROM b WHERE x > 0) AS p ON a.k = p.k UNION ALL SELECT c.s, b.s FROM c "
    "JOIN b ON c.k = b.k",
    "SELECT j.s, b.s FROM (SELECT a.s, b.k FROM a JOIN b ON a.k = b.k) AS j JOIN b ON j.k = b.k",
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k AND a.k = b.x UNION ALL SELECT c.s, b.s FROM c JOIN b ON c.x = b.k AND "
    "c.k = b.x AND c.k = b.k AND c.x = b.x",
    "SELECT a.s, b.s FROM a JOIN b ON a.k = b.k AND a.k = b.x UNION ALL SELECT a.s, c.s FROM a JOIN c ON c.x = a.k AND "
    "c.k = a.k",
    "SELECT a.s, b.s FROM a FULL JOIN b ON a.k = b.k UNION ALL SELECT c.s, b.s FROM c JOIN b ON c.k = b.k",
]


def streaming(query, tables=None, *, statements=(ON,), parallelism=3, rows=3, seed=0):
    env = TableEnvironment.create(parallelism=parallelism, actor_system="sim", seed=seed)
    with in_small_batches(env, tables or TABLES, rows):
        for one in statements:
            env.execute_sql(one)
        return multiset(env.execute_sql(query).to_arrow())


def plan_of(query, *statements):
    with in_small_batches(TableEnvironment.create(), TABLES, 3) as env:
        for one in statements:
            env.execute_sql(one)
        return env.explain_sql(query).partition("== Plan of streams ==")[2]


@pytest.mark.parametrize("query", [*TOGETHER, *APART])
def test_joins_in_common_give_what_each_gives_alone(query):
    expected = by_duckdb(query, TABLES)
    assert streaming(query, parallelism=3, rows=3) == expected
    assert streaming(query, parallelism=1, rows=1, seed=1) == expected


@pytest.mark.parametrize("query", [campaign(query) for query in (*TOGETHER, *APART)])
def test_without_it_the_same_comes_out(query):
    expected = by_duckdb(query, TABLES)
    assert streaming(query, statements=()) == expected
    for seed in range(5):
        assert streaming(query, parallelism=2, rows=1 + 2 * seed, seed=seed) == expected


@pytest.mark.parametrize("block", blocks(1, 8))
def test_random_joins_in_common_equal_duckdb(block):
    """Two to four joins of ``l``, ``u`` and ``r`` by ``a``, of any kind, some with a condition or a group above."""
    for number in range(6):
        rng = random.Random(f"in common {block} {number}")
        joins = []
        for _ in range(rng.randint(2, 4)):
            left, right = rng.sample(["l", "u", "r"], k=2)
            values = {"l": "b", "u": "b", "r": "d"}
            on = f"p.a = q.a{rng.choice(['', '', f' AND p.{values[left]} <= q.{values[right]}'])}"
            kind = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "EXISTS", "NOT EXISTS"])
            if kind.endswith("EXISTS"):
                where = f"{kind} (SELECT 1 FROM {right} AS q WHERE {on})"
                joins.append(f"SELECT p.a AS a, p.{values[left]} AS v FROM {left} AS p WHERE {where}")
            else:
                joins.append(f"SELECT p.a AS a, q.{values[right]} AS v FROM {left} AS p {kind} {right} AS q ON {on}")
        query = " UNION ALL ".join(joins)
        if rng.random() < 0.4:
            query = f"SELECT a, COUNT(*) AS n, SUM(v) AS s FROM ({query}) AS rows_of_all GROUP BY a"
        tables = tables_of(*random_rows(f"in common {block} {number}"))
        found = streaming(query, tables, parallelism=rng.randint(1, 3), rows=rng.randint(1, 5), seed=number)
        assert found == by_duckdb(query, tables), query


def test_the_plan_says_what_is_kept_once():
    for query, (num_joins, num_inputs) in TOGETHER.items():
        plan = plan_of(query, ON)
        assert f"{num_joins} joins of {num_inputs} inputs" in plan
        assert f"{num_joins} joins of {num_inputs} inputs: bounded: all rows of all inputs" in plan
        assert "once, for 2 joins" in plan
    for query in APART:
        assert "joins of" not in plan_of(query, ON)


def test_without_it_the_plan_says_what_would_be_gained():
    query = next(iter(TOGETHER))
    plan = plan_of(query)
    assert plan.count(f"keeps the rows of scan b by k, as 1 more: SET '{SETTING}' = 'true' keeps them once") == 2
    assert plan.count("inner join: bounded") == 2
    for one in APART:
        assert SETTING not in plan_of(one)


def test_joins_of_many_inputs_keep_what_they_read_in_common_once():
    query = """SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k LEFT JOIN c ON c.k = a.k
        UNION ALL SELECT d.s, b.s, b.s FROM d JOIN b ON d.k = b.k"""
    many = "SET 'table.optimizer.multi-join.enabled' = 'true'"
    plan = plan_of(query, ON, many)
    assert "2 joins of 4 inputs" in plan
    assert "inner and left join of 3 inputs" in plan
    assert streaming(query, statements=(ON, many)) == by_duckdb(query, TABLES)


def test_rows_that_expire_are_not_kept_for_others():
    query = next(iter(TOGETHER))
    assert "joins of" not in plan_of(query, ON, "SET 'table.exec.state.ttl' = '1 h'")
    hinted = query.replace("SELECT a.s", "SELECT /*+ STATE_TTL('a' = '1 h') */ a.s", 1)
    assert "joins of" not in plan_of(hinted, ON)
    assert streaming(hinted) == by_duckdb(query, TABLES)


def test_operators_never_wait_for_themselves():
    """Two pairs of joins, of which each has one that reads one of the other pair."""
    query = """WITH ab AS (SELECT a.k, a.x, b.s FROM a JOIN b ON a.k = b.k), cd AS (SELECT c.k, c.x, d.s FROM c JOIN d
            ON c.k = d.k)
        SELECT ab.s, d.s FROM ab JOIN d ON ab.x = d.k UNION ALL SELECT cd.s, b.s FROM cd JOIN b ON cd.x = b.k"""
    plan = plan_of(query, ON)
    assert plan.partition("== State ==")[0].count("2 joins of") >= 1
    assert streaming(query) == by_duckdb(query, TABLES)
    assert streaming(query, parallelism=1, rows=1) == by_duckdb(query, TABLES)


def test_rows_may_wait_in_front_of_joins():
    waits = [
        f"SET 'table.exec.mini-batch.{key}' = '{value}'"
        for key, value in {"enabled": "true", "allow-latency": "50 ms", "size": "7"}.items()
    ]
    query = next(iter(TOGETHER))
    assert "mini-batch: rows wait" in plan_of(query, ON, *waits)
    for query in list(TOGETHER)[:4]:
        assert streaming(query, statements=(ON, *waits)) == by_duckdb(query, TABLES)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_statement_set_keeps_a_table_once_through_failures(backend, tmp_path):
    tables = {name: pa.concat_tables([one] * 6) for name, one in TABLES.items()}
    queries = {
        "joined": "SELECT a.s AS one, b.s AS other FROM a JOIN b ON a.k = b.k",
        "there": "SELECT c.s AS one, c.s AS other FROM c WHERE EXISTS (SELECT 1 FROM b WHERE b.k = c.k)",
    }
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), tables, 2) as env:
        for one in (ON, f"SET 'state.backend.type' = '{backend}'"):
            env.execute_sql(one)
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {60, 300})
        env.create_temporary_function("shaky", udf(calls, result_type="STRING"))
        for name in queries:
            env.execute_sql(f"""CREATE TABLE {name} (`one` STRING, `other` STRING)
                WITH ('connector' = 'filesystem', 'path' = '{tmp_path / name}', 'format' = 'json')""")
        inserts = "; ".join(
            f"INSERT INTO {name} SELECT shaky(`one`), `other` FROM ({query})" for name, query in queries.items()
        )
        statement = f"EXECUTE STATEMENT SET BEGIN {inserts}; END"
        assert "2 joins of 3 inputs" in env.explain_sql(statement.removeprefix("EXECUTE "))
        env.execute_sql(statement)
    assert (tmp_path / "calls").stat().st_size > 300
    for name, query in queries.items():
        lines = [line for path in (tmp_path / name).iterdir() if path.is_file() for line in path.open()]
        found = Counter((row["one"], row["other"]) for row in map(json.loads, lines))
        assert found == by_duckdb(query, tables)


COMMON = """
    SELECT `other`, COUNT(*) AS n, SUM(`one`) AS s FROM (
        SELECT p.k AS `one`, q.m AS `other` FROM (SELECT k, x, v FROM src WHERE w > 8) AS p
        JOIN (SELECT MAX(v) AS m, k FROM src GROUP BY k) AS q ON p.k = q.k
        UNION ALL SELECT r.w, q.m FROM (SELECT w, COUNT(*) AS n FROM src GROUP BY w) AS r
        LEFT JOIN (SELECT MAX(v) AS m, k FROM src GROUP BY k) AS q ON r.w = q.k
    ) GROUP BY `other`
"""


@pytest.mark.parametrize("backend", ["hashmap", campaign("rocksdb")])
def test_a_query_goes_on_with_what_its_joins_have_kept(tmp_path, backend):
    on = {SETTING: "true"}
    path = stopped(tmp_path, f"INSERT INTO nothing SELECT `other`, n, s, 0 FROM ({COMMON})", backend, **on)
    _, rows = explained(path, COMMON, **on)
    assert [row["verdict"] for row in of_kind(rows, "shared joins")] == ["reuse"]
    assert multiset(gone_on((path, backend), COMMON, **on)) == multiset(in_batch_mode(COMMON))
    _, rows = explained(path, COMMON)
    assert [row["verdict"] for row in of_kind(rows, "shared joins")] == ["lost"]
