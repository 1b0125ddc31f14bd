"""What may be chosen about a query over streams changes its plan, and not what it comes to.

Families: oracle (DuckDB), metamorphic (phases, mini-batches, cuts), example (plans, reasons, upgrades).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from campaigns import blocks
from query_kit import (
    FailsNowAndThen,
    by_duckdb,
    in_small_batches,
    in_streaming_mode,
    multiset,
    tables_of,
    with_tables,
)

from headrace.engine.changelog import local_aggregate
from headrace.engine.optimizer.upgrades.upgrade import SinkOfPlan, planned
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udaf, udf

STRATEGY = "table.optimizer.agg-phase-strategy"
MINI_BATCHES = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "20 ms",
    "table.exec.mini-batch.size": "9",
}
SPLIT = {
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.optimizer.distinct-agg.split.bucket-num": "3",
}
CALLS = (
    "COUNT(*)", "COUNT({0})", "SUM({0})", "AVG(CAST({0} AS DOUBLE))", "MIN({0})", "MAX({0})",
    "STDDEV_SAMP(CAST({0} AS DOUBLE))", "COUNT(DISTINCT {0})", "SUM(DISTINCT {0})", "COUNT(DISTINCT c)",
    "COUNT({0}) FILTER (WHERE b > 1)", "COUNT(DISTINCT {0}) FILTER (WHERE b > 1)", "MAX({0}) FILTER (WHERE a > 1)",
    "AVG(DISTINCT CAST({0} AS DOUBLE))", "COUNT(DISTINCT a + b)", "SUM(DISTINCT {0}) FILTER (WHERE a > 1)",
)  # fmt: skip
BELOW = (
    "l",
    "(SELECT a, MAX(b) AS b, c FROM l GROUP BY a, c)",
    "(SELECT l.a, r.d AS b, c FROM l LEFT JOIN r ON l.a = r.a)",
    "(SELECT a, b, c FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC, c) AS n FROM u) WHERE n <= 2)",
)
"""Rows that only come, and rows that are updated and taken back, also so that updates cancel."""


def random_tables(draw):
    def number():
        return draw.choice((None, 0, 1, 2, 3))

    rows = [(number(), number(), draw.choice((None, "x", "y", ""))) for _ in range(draw.choice((1, 20, 60)))]
    return tables_of(rows, [(number(), number()) for _ in range(draw.choice((0, 10)))])


def random_query(draw):
    keys = draw.choice(((), ("a",), ("c",), ("a", "c")))
    calls = [one.format(draw.choice("ab")) for one in draw.sample(CALLS, draw.randint(1, 4))]
    chosen = ", ".join([*keys, *(f"{call} AS v{number}" for number, call in enumerate(calls))])
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {chosen} FROM {draw.choice(BELOW)}{by}"


def rounded(rows):
    """Moments of floats are merged in another order."""
    found = {}
    for row, number in rows.items():
        row = tuple(round(value, 9) if isinstance(value, float) else value for value in row)
        found[row] = found.get(row, 0) + number
    return found


@pytest.mark.parametrize("block", blocks(1, 20))
def test_settings_do_not_change_the_table(block, monkeypatch):
    for seed in range(6 * block, 6 * block + 6):
        draw = random.Random(f"phases {seed}")
        monkeypatch.setattr(local_aggregate, "_LEAST_RECORDS", draw.choice((0, 3)))
        monkeypatch.setattr(local_aggregate, "_TRIED_EVERY", draw.choice((1, 2, 5)))
        tables, query = random_tables(draw), random_query(draw)
        expected = rounded(by_duckdb(query, tables))
        for strategy in ("AUTO", "TWO_PHASE", "ONE_PHASE"):
            settings = {STRATEGY: strategy, **draw.choice(({}, MINI_BATCHES)), **draw.choice(({}, SPLIT))}
            found = in_streaming_mode(query, tables, rows=draw.choice((1, 3, 7, 50)), settings=settings)
            assert rounded(found) == expected, (seed, settings, query)


def explained(query, strategy="AUTO", parallelism=2, **functions):
    with TableEnvironment.create(parallelism=parallelism, actor_system="local") as env:
        with_tables(env, random_tables(random.Random(0)))
        for name, function in functions.items():
            env.create_temporary_function(name, function)
        env.execute_sql(f"SET '{STRATEGY}' = '{strategy}'")
        return env.explain_sql(query)


QUERY = "SELECT a, COUNT(*) AS n FROM l GROUP BY a"


def test_the_plan_has_both_phases():
    plan = explained(QUERY)
    assert "* GlobalGroupAggregate: merges what is folded below" in plan
    assert "LocalGroupAggregate by a" in plan
    assert "LocalGroupAggregate by a" in explained("SELECT DISTINCT a FROM l")
    assert "GroupAggregate" not in explained(QUERY, "ONE_PHASE")
    assert "GroupAggregate" not in explained(QUERY, parallelism=1)
    assert "LocalGroupAggregate" in explained(QUERY, "TWO_PHASE", parallelism=1)
    assert "LocalGroupAggregate\n" in explained("SELECT COUNT(*) FROM l").replace(" [I]", "")


class Longest:
    def create_accumulator(self):
        return [0]

    def accumulate(self, accumulator, value):
        accumulator[0] = max(accumulator[0], value or 0)

    def get_value(self, accumulator):
        return accumulator[0]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT a, FIRST_VALUE(b) FROM l GROUP BY a", "depends on the order in which rows come"),
        ("SELECT a, LISTAGG(c) FROM (SELECT a, MAX(c) AS c FROM l GROUP BY a, b) GROUP BY a", "all values in order"),
        ("SELECT a, longest(b) FROM l GROUP BY a", "has no method merge"),
    ],
)  # fmt: skip
def test_the_plan_says_why_there_is_one_phase(query, why):
    plan = explained(
        query, "TWO_PHASE", longest=udaf(Longest(), result_type="BIGINT", accumulator_type="ARRAY<BIGINT>")
    )
    assert any("in one phase: " in line and why in line for line in plan.splitlines())


def test_an_unknown_strategy_is_refused():
    with pytest.raises(SqlError, match="one of auto, two_phase, one_phase"):
        explained(QUERY, "THREE_PHASE")


DISTINCT = "SELECT a, COUNT(DISTINCT b) AS n FROM l GROUP BY a"


def plan_of(strategy, stored=None, query=QUERY, settings=()):
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        with_tables(env, random_tables(random.Random(0)))
        for key, value in {STRATEGY: strategy, **dict(settings)}.items():
            env.execute_sql(f"SET '{key}' = '{value}'")
        root = env._root(env.sql_query(query))
        return planned((root,), (SinkOfPlan(lambda _: "t", "t"),), (), stored)


def test_a_query_goes_on_whatever_the_phases_were():
    one, two = plan_of("ONE_PHASE").plan, plan_of("TWO_PHASE").plan
    assert one.layout == two.layout
    for strategy, stored in (("ONE_PHASE", two), ("TWO_PHASE", one)):
        upgrade = plan_of(strategy, stored)
        assert {one.verdict.value for one in upgrade.operators} == {"reuse"}
        assert not upgrade.asks


def with_mini_batches(*without):
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        with_tables(env, random_tables(random.Random(0)))
        for key, value in MINI_BATCHES.items():
            if key.rpartition(".")[2] not in without:
                env.execute_sql(f"SET '{key}' = '{value}'")
        return env.explain_sql("SELECT l.a, MAX(d) FROM l JOIN r ON l.a = r.a GROUP BY l.a")


def test_the_plan_says_where_rows_wait():
    lines = with_mini_batches().splitlines()
    waiting = [
        lines[i - 1] for i, line in enumerate(lines) if "mini-batch: rows wait up to 20 ms, or until 9 do" in line
    ]
    assert [("group by" in line, "join" in line) for line in waiting] == [(True, False), (False, True)]
    assert "mini-batch" not in with_mini_batches("enabled")


@pytest.mark.parametrize("name", ["allow-latency", "size"])
def test_half_of_a_mini_batch_is_refused(name):
    with pytest.raises(SqlError, match=f"table.exec.mini-batch.{name} was not said"):
        with_mini_batches(name)


def test_a_query_with_mini_batches_goes_on_through_failures(tmp_path):
    """Rows that wait at a checkpoint are in it: they are worked off before it."""
    rows = 400
    tables = {"t": pa.table({"a": [i % 7 for i in range(rows)], "b": list(range(rows))})}
    fails = udf(FailsNowAndThen(tmp_path / "calls", at=(150, 500)), result_type="BIGINT")
    settings = {
        **MINI_BATCHES, STRATEGY: "TWO_PHASE", "table.exec.mini-batch.size": "60",
        "execution.checkpointing.interval": "20 ms", "execution.checkpointing.dir": str(tmp_path),
        "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "10",
        "restart-strategy.fixed-delay.delay": "1 ms",
    }  # fmt: skip
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=1), tables, 5) as env:
        env.create_temporary_function("fails", fails)
        for key, value in settings.items():
            env.execute_sql(f"SET '{key}' = '{value}'")
        query = "SELECT a, COUNT(*) AS n, SUM(fails(b)) AS s, COUNT(DISTINCT b % 5) AS d FROM t GROUP BY a"
        found = multiset(env.execute_sql(query).to_arrow())
    every = [(a, [b for b in range(rows) if b % 7 == a]) for a in range(7)]
    assert found == {(a, len(own), sum(own), len({b % 5 for b in own})): 1 for a, own in every}


def split(query, **functions):
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        with_tables(env, random_tables(random.Random(0)))
        for name, function in functions.items():
            env.create_temporary_function(name, function)
        for key, value in SPLIT.items():
            env.execute_sql(f"SET '{key}' = '{value}'")
        return env.explain_sql(query)


def test_the_plan_has_both_levels():
    plan = split("SELECT a, COUNT(DISTINCT b) AS n, COUNT(DISTINCT c) AS m, MAX(b) AS x FROM l GROUP BY a")
    assert "in two levels: merges 3 buckets of col('b'), col('c')" in plan
    assert "group by a, $bucket: " in plan
    assert "bucket" not in split("SELECT a, COUNT(b) FROM l GROUP BY a")
    assert "group by $bucket: " in split("SELECT COUNT(DISTINCT b) FROM l")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("FIRST_VALUE(b)", "is not merged of what buckets come to"),
        ("LISTAGG(c)", "is not merged of what buckets come to"),
        ("COUNT(DISTINCT ROW(b, c))", "have no hash"),
    ],
)
def test_the_plan_says_why_there_is_one_level(call, why):
    lines = split(f"SELECT a, COUNT(DISTINCT b) AS n, {call} AS other FROM l GROUP BY a").splitlines()
    assert any("not split by buckets: " in line and why in line for line in lines)


def test_levels_do_not_go_on_from_one_and_say_so():
    one = plan_of("ONE_PHASE", query=DISTINCT).plan
    two = plan_of("ONE_PHASE", one, query=DISTINCT, settings=SPLIT)
    found = {one.verdict.value for one in two.operators if one.kind == "aggregate"}
    assert found == {"partial", "lost"}
    assert {one.value for one in two.asks} == {"partial", "lost"}
    assert {one.verdict.value for one in plan_of("AUTO", two.plan, query=DISTINCT, settings=SPLIT).operators} == {
        "reuse"
    }
