"""Conditions go below joins: rows are those of DuckDB, and a condition that may fail meets no more rows than before."""

from __future__ import annotations

import itertools
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from headrace.table import TableEnvironment

LEFT = pa.table({"k": [1, 1, 2, None, 4, 5], "a": [1, 2, 3, 4, None, 6], "text": ["1", "2", "3", "x", "y", "z"]})
RIGHT = pa.table({"j": [1, 2, 2, None, 6], "b": [1, None, 3, 4, 5], "flag": [True, False, None, True, False]})
JOINS = (
    "l JOIN r ON l.k = r.j",
    "l LEFT JOIN r ON l.k = r.j",
    "l RIGHT JOIN r ON l.k = r.j",
    "l FULL JOIN r ON l.k = r.j",
    "l JOIN r ON l.k = r.j LEFT JOIN r AS s (j2, b2, flag2) ON r.j = s.j2",
)
CONDITIONS = ("a > 1", "b = 3", "a IS NULL OR a < 3", "b IS NULL", "NOT (flag)", "a = b", "text <> '2'", "a + 1 > 2")


def environment(mode):
    options = {"actor_system": "local"} if mode == "streaming" else {}
    env = TableEnvironment.create(mode=mode, parallelism=2, **options)
    env.create_temporary_view("l", LEFT)
    env.create_temporary_view("r", RIGHT)
    return env


def queries():
    for number, (join, (one, other)) in enumerate(itertools.product(JOINS, itertools.combinations(CONDITIONS, 2))):
        link = ("AND", "OR")[number % 3 == 0]
        yield f"SELECT k, a, text, j, b FROM {join} WHERE {one} {link} {other}"
    for kind in ("IN", "NOT IN"):
        yield f"SELECT k, a FROM l WHERE a > 1 AND k {kind} (SELECT j FROM r WHERE j IS NOT NULL AND b = 1)"


def rows(table):
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_rows_are_those_of_duckdb():
    with environment("batch") as env, duckdb.connect() as other:
        other.register("l", LEFT)
        other.register("r", RIGHT)
        for query in queries():
            assert rows(env.execute_sql(query).to_arrow()) == rows(other.execute(query).to_arrow_table()), query


def test_and_on_streams_those_of_batch_mode():
    with environment("batch") as batch, environment("streaming") as stream:
        for query in list(queries())[::19]:
            assert rows(stream.execute_sql(query).to_arrow()) == rows(batch.execute_sql(query).to_arrow()), query


@pytest.mark.parametrize(
    ("where", "join", "moved", "stays"),
    [
        ("a > 1 AND b = 3 AND a < b", JOINS[0], ["(col('a') > 1)", "(col('b') == 3)"], ["(col('a') < col('b'))"]),
        ("a > 1 AND b = 3", JOINS[1], ["(col('a') > 1)"], ["(col('b') == 3)"]),
        ("a > 1 AND b = 3", JOINS[2], ["(col('b') == 3)"], ["(col('a') > 1)"]),
        ("a > 1", JOINS[3], [], ["(col('a') > 1)"]),
        ("a > 1 AND b = 3", JOINS[4], ["(col('a') > 1)", "(col('b') == 3)"], []),
        ("CAST(text AS INT) > 1 AND a > 1", JOINS[0], ["(col('a') > 1)"], ["CAST"]),
        ("a > CAST(1 AS BIGINT)", "l, r", ["(col('a') > lit(1).cast(int64))"], []),
        ("b > CAST('x' AS BIGINT)", JOINS[0], [], ["CAST"]),
    ],
)
def test_what_cannot_fail_goes_below_the_joins_that_let_it(where, join, moved, stays):
    with environment("streaming") as env:
        plan = env.explain_sql(f"SELECT k, a, b FROM {join} WHERE {where}")
    lines = plan.partition("== Plan of streams ==")[2].partition("== State ==")[0].splitlines()
    joins = [number for number, line in enumerate(lines) if " join" in line]
    places = {one: [n for n, line in enumerate(lines) if "where " in line and one in line] for one in moved}
    assert all(min(places[one]) > max(joins) for one in moved)
    # What stays is asked behind an outer join, and by an inner one of its pairs.
    kept = [
        n for one in stays for n, line in enumerate(lines) if ("where " in line or "only pairs" in line) and one in line
    ]
    assert len(kept) >= len(stays)
    assert all(n < min(joins) or "only pairs" in lines[n] for n in kept)


def test_a_join_makes_no_row_of_pairs_that_are_not_asked_for():
    query = "SELECT k, a, b FROM l JOIN r ON l.k = r.j WHERE a < b OR text = '2'"
    with environment("streaming") as env, environment("batch") as batch:
        plan = env.explain_sql(query).partition("== Plan of streams ==")[2]
        assert "only pairs with ((col('a') < col('b')) | (col('text') == '2'))" in plan
        assert "where" not in plan
        assert rows(env.execute_sql(query).to_arrow()) == rows(batch.execute_sql(query).to_arrow())
        # Of an outer join other pairs are no pairs at all.
        assert "where" in env.explain_sql(query.replace("JOIN", "LEFT JOIN")).partition("== Plan of streams ==")[2]


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_condition_meets_no_rows_that_have_no_partner(mode):
    with environment(mode) as env:
        query = "SELECT k FROM l JOIN r ON l.k = r.j WHERE CAST(text AS INT) > 1 AND 6 / (a - 6) < 9"
        assert sorted(env.execute_sql(query).to_arrow()["k"].to_pylist()) == [1, 2, 2]
