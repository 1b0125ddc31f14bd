"""Queries of many shapes: in both modes they give what DuckDB gives, of given and of any rows."""

from __future__ import annotations

from itertools import product

import pytest
from campaigns import campaign
from hypothesis import given
from hypothesis import strategies as st
from query_kit import (
    SAMPLE,
    FailsNowAndThen,
    by_duckdb,
    in_batch_mode,
    in_small_batches,
    in_streaming_mode,
    multiset,
    tables_of,
)

from headrace import HashMapStateBackend, RestartStrategies, RocksDBStateBackend
from headrace.engine.errors import JobFailedError, UserFunctionError
from headrace.table import TableEnvironment, udf

SET_OPERATIONS = (
    "SELECT a FROM l INTERSECT SELECT d FROM r",
    "SELECT a FROM l INTERSECT ALL SELECT d FROM r",
    "SELECT a, b FROM l EXCEPT SELECT a, d FROM r",
    "SELECT a, b FROM l EXCEPT ALL SELECT a, d FROM r",
    "SELECT a FROM l EXCEPT ALL SELECT a FROM r UNION ALL SELECT 7",
    "SELECT a FROM l UNION SELECT d FROM r INTERSECT SELECT b FROM l",
    "(SELECT a FROM l) UNION (SELECT d FROM r) ORDER BY 1 LIMIT 2",
    "SELECT a, COUNT(*) AS n FROM l GROUP BY a INTERSECT ALL SELECT a, COUNT(*) AS n FROM r GROUP BY a",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a EXCEPT ALL SELECT a, SUM(d) AS s FROM r GROUP BY a",
    "SELECT c FROM l UNION ALL SELECT NULL",
    "SELECT NULL UNION ALL SELECT c FROM l",
    "SELECT NULL UNION SELECT NULL UNION SELECT c FROM l",
)
ENDS = (
    "VALUES (1, 'a'), (2, NULL)",
    "SELECT DISTINCT a + 1 AS x FROM l ORDER BY a + 1 LIMIT 2",
    "SELECT DISTINCT a AS x FROM l ORDER BY x FETCH NEXT 2 ROWS ONLY",
    "SELECT DISTINCT a, b FROM l ORDER BY -a, l.b LIMIT 3",
    "SELECT a, COUNT(*) AS n FROM l GROUP BY a ORDER BY COUNT(*) + 1 DESC, 1 LIMIT 2",
    "SELECT a FROM l UNION SELECT a + 1 FROM r ORDER BY a DESC LIMIT 3",
    "SELECT a AS x, b FROM u ORDER BY a + b, c LIMIT 4",
    "SELECT a AS x, b FROM u ORDER BY x + b DESC, c OFFSET 1 ROWS FETCH FIRST 3 ROWS ONLY",
)
FULL_JOINS = (
    "SELECT l.a AS x, r.a AS y, l.b FROM l FULL JOIN r ON l.a = r.a AND l.b < r.d",
    "SELECT l.a AS x FROM l FULL JOIN r ON l.a = r.a AND l.b < 2",
    "SELECT COUNT(*) AS n FROM l FULL JOIN r ON l.b < r.d",
)
SETS_OF_KEYS = (
    "SELECT a, c, COUNT(*) AS n, SUM(b) AS s FROM l GROUP BY ROLLUP (a, c)",
    "SELECT a, c, GROUPING(a) AS g, GROUPING_ID(a, c) AS h, COUNT(*) AS n FROM l GROUP BY CUBE (a, c)",
    "SELECT a, b, SUM(a) AS s, COUNT(DISTINCT b) AS m FROM l GROUP BY GROUPING SETS ((a, b), a, (), (b), (a))",
    "SELECT a, b, c, COUNT(*) AS n FROM l GROUP BY a, CUBE (b, c)",
    "SELECT a % 2 AS p, c, COUNT(*) AS n FROM l GROUP BY ROLLUP (a % 2, c) HAVING COUNT(*) > 3 AND GROUPING(c) = 1",
    "SELECT a, b, c, COUNT(*) AS n FROM l GROUP BY ROLLUP (a, (b, c)) ORDER BY n DESC, a, b, c LIMIT 5",
    "SELECT CASE WHEN GROUPING(a) = 1 THEN 'all' ELSE 'one' END AS w, MAX(n) AS m FROM (SELECT a, b, "
    "COUNT(*) AS n FROM l GROUP BY a, b) AS t GROUP BY CUBE (a)",
    "SELECT a, GROUPING(a) AS g FROM l GROUP BY a",
    "SELECT a, x, SUM(n) AS m FROM (SELECT a, b AS x, COUNT(*) AS n FROM l GROUP BY a, b) AS t GROUP BY "
    "GROUPING SETS ((a), (x))",
)
SUBQUERIES = (
    "SELECT a, b FROM l WHERE b > (SELECT MIN(d) FROM r)",
    "SELECT a, (SELECT MAX(d) FROM r) AS m FROM l",
    "SELECT a, (SELECT MAX(d) FROM r WHERE r.a = l.a) AS m FROM l",
    "SELECT a, (SELECT COUNT(*) FROM r WHERE r.a = l.a) AS n FROM l",
    "SELECT a, (SELECT COUNT(*) + 1 FROM r WHERE r.a = l.a AND l.b > 1 AND d > 0) AS n FROM l",
    "SELECT a FROM l WHERE b = (SELECT COUNT(*) FROM r WHERE r.a = l.a)",
    "SELECT a, (SELECT d FROM r WHERE r.a = l.a ORDER BY d DESC LIMIT 1) AS n FROM l",
    "SELECT a, (SELECT d FROM r ORDER BY d LIMIT 1 OFFSET 3) AS n FROM l",
    "SELECT a, (SELECT SUM(d) FROM r WHERE r.a = l.a HAVING COUNT(*) > 2) AS n FROM l",
    "SELECT a FROM l WHERE a NOT IN (SELECT a FROM r)",
    "SELECT a FROM l WHERE a NOT IN (SELECT a FROM r WHERE a IS NOT NULL)",
    "SELECT a FROM l WHERE a NOT IN (SELECT a FROM r WHERE d > 100)",
    "SELECT a, b FROM l WHERE b NOT IN (SELECT d FROM r WHERE r.a = l.a)",
    "SELECT a, b FROM l WHERE b IN (SELECT d FROM r WHERE r.a = l.a)",
    "SELECT a, b IN (SELECT d FROM r WHERE r.a = l.a) AS i, b NOT IN (SELECT a FROM r) AS j FROM l",
    "SELECT a, b FROM l WHERE a IN (SELECT d FROM r) OR b IS NULL",
    "SELECT a, b FROM l WHERE b = 3 OR EXISTS (SELECT 1 FROM r WHERE r.a = l.a AND r.d > 1)",
    "SELECT a, EXISTS (SELECT 1 FROM r WHERE r.a = l.a) AS e, NOT EXISTS (SELECT 1 FROM r WHERE d > 100) AS f FROM l",
    "SELECT a, b FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.a = l.a AND r.d > l.b)",
    "SELECT a, b FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.a = l.a AND r.d > l.b)",
    "SELECT a, b FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.d < l.b)",
    "SELECT a, b FROM l WHERE b > ALL (SELECT d FROM r WHERE r.a = l.a)",
    "SELECT a, b >= ALL (SELECT d FROM r) AS x, b < ANY (SELECT d FROM r) AS y FROM l",
    "SELECT a, b = ANY (SELECT d FROM r) AS z, b <> ALL (SELECT d FROM r) AS w FROM l",
    "SELECT a, b = ALL (SELECT d FROM r WHERE r.a = l.a) AS x, b <> ANY (SELECT d FROM r WHERE r.a = l.a) AS y FROM l",
    "SELECT a, COUNT(*) AS n, (SELECT MAX(d) FROM r WHERE r.a = l.a) AS m FROM l GROUP BY a",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a HAVING SUM(b) > (SELECT MIN(d) FROM r)",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a HAVING EXISTS (SELECT 1 FROM r WHERE r.a = l.a)",
    "SELECT a FROM l WHERE EXISTS (SELECT MAX(d) FROM r WHERE r.a = l.a)",
    # Nulls of two types read alike, and are counted apart.
    "SELECT x, MAX(CAST(NULL AS BIGINT)) AS y, MIN(CAST(NULL AS VARCHAR)) AS z "
    "FROM (SELECT a AS x, MAX(b) AS m FROM l GROUP BY a) AS t GROUP BY x",
    "SELECT a FROM l WHERE EXISTS (SELECT a FROM r WHERE r.a = l.a GROUP BY a HAVING COUNT(*) > 2)",
    "SELECT a FROM l WHERE b IN (SELECT COUNT(*) FROM r WHERE r.a = l.a)",
    "SELECT a FROM l WHERE b IN (SELECT MAX(d) FROM r GROUP BY a)",
    "SELECT a FROM l WHERE b IN (SELECT RANK() OVER (ORDER BY d) FROM r)",
    "SELECT a FROM l WHERE b NOT IN (SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY d) + 2 FROM r)",
    "SELECT a, b FROM l WHERE (a, b) IN (SELECT a, d FROM r)",
    "SELECT a FROM l WHERE b > (SELECT MIN(d) FROM r WHERE d > (SELECT MIN(b) FROM l AS k))",
    "SELECT a, CASE WHEN a IN (SELECT a FROM r) THEN 'in' ELSE 'out' END AS w FROM l ORDER BY w, a, b LIMIT 7",
    "SELECT a, b FROM l WHERE a IN (SELECT a FROM r UNION SELECT d FROM r)",
    "SELECT DISTINCT a FROM l WHERE (SELECT COUNT(*) FROM r WHERE r.a = l.a) > 1",
    "SELECT x.a FROM l AS x WHERE x.b = (SELECT MAX(y.b) FROM l AS y WHERE y.a = x.a)",
    "SELECT a FROM l WHERE EXISTS (SELECT 1 FROM r, u WHERE r.a = u.a AND u.b = l.b)",
    "SELECT a, (SELECT DISTINCT 5 FROM r) AS five FROM l",
    "SELECT (SELECT MAX(a) FROM l) AS m, (SELECT COUNT(*) FROM r) AS n",
    "SELECT 1 AS x WHERE EXISTS (SELECT 1 FROM r WHERE d > 1) AND 2 IN (SELECT a FROM l)",
    "SELECT a FROM l WHERE (SELECT MAX(d) FROM r WHERE r.a = l.a) IS NULL",
)
SHARED = (
    "SELECT * FROM l JOIN r USING (a)",
    "SELECT a, l.a AS x, r.a AS y, d FROM l LEFT JOIN r USING (a)",
    "SELECT a, l.a AS x, r.a AS y, d FROM l FULL JOIN r USING (a)",
    "SELECT * FROM l RIGHT JOIN r USING (a)",
    "SELECT * FROM l NATURAL JOIN r",
    "SELECT a, COUNT(*) AS n FROM l NATURAL JOIN u GROUP BY a",
    "SELECT l.*, d FROM l JOIN r USING (a)",
    "SELECT a, x.d FROM l JOIN r USING (a) JOIN r AS x USING (a) WHERE a > 1",
    "SELECT c, x.d FROM l JOIN r USING (a) RIGHT JOIN r AS x ON x.d = l.b",
    "SELECT * FROM (SELECT l.a AS x, r.a AS y, d FROM l LEFT JOIN r USING (a)) AS q",
)
AROUND = (
    "SELECT a, (SELECT COUNT(*) FROM r WHERE r.d < l.b) AS n FROM l",
    "SELECT a, (SELECT MAX(d) FROM r WHERE r.a = l.a AND r.d < l.b) AS n FROM l",
    "SELECT a, (SELECT COUNT(*) FROM r WHERE r.d < l.b OR l.b IS NULL) AS n FROM l",
    "SELECT a, c, (SELECT COUNT(*) FROM u WHERE u.c > l.c OR l.c IS NULL AND u.b = 1) AS n FROM l",
    "SELECT a, (SELECT SUM(d) FROM r WHERE r.a >= l.a HAVING COUNT(*) > 2) AS n FROM l",
    "SELECT a, b FROM l WHERE b = 3 OR EXISTS (SELECT 1 FROM r WHERE r.d > l.b)",
    "SELECT a, b IN (SELECT d FROM r WHERE r.d > l.a) AS i, b NOT IN (SELECT a FROM r WHERE r.d <> l.b) AS j FROM l",
    "SELECT a, b FROM l WHERE b > ALL (SELECT d FROM r WHERE r.a <> l.a)",
    "SELECT a, (SELECT d FROM r WHERE r.a > l.a ORDER BY d DESC LIMIT 1) AS n FROM l",
    "SELECT a, (SELECT l.b + d FROM r WHERE r.a < l.a ORDER BY d, r.a LIMIT 1) AS n FROM l",
    "SELECT a, (SELECT MAX(r.d + l.b) FROM r WHERE r.a = l.a) AS n FROM l",
    "SELECT a FROM l WHERE b IN (SELECT COUNT(*) + l.a FROM r WHERE r.a < l.a GROUP BY d)",
    "SELECT a FROM l WHERE b IN (SELECT RANK() OVER (PARTITION BY r.a ORDER BY d) FROM r WHERE r.a < l.a)",
    "SELECT a, SUM(b) AS s, (SELECT COUNT(*) FROM r WHERE r.d > l.a) AS m FROM l GROUP BY a",
    "SELECT a FROM l WHERE a IN (SELECT SUM(d) FROM r GROUP BY l.b)",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a HAVING EXISTS (SELECT 1 FROM r WHERE r.a < l.a)",
    "SELECT a, (SELECT COUNT(*) FROM r JOIN u ON r.a = u.a AND u.b < l.b) AS n FROM l",
    "SELECT a, (SELECT COUNT(*) FROM r WHERE EXISTS (SELECT 1 FROM u WHERE u.a = r.a AND u.b = l.b)) AS n FROM l",
    "SELECT a FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.a = l.a AND EXISTS (SELECT 1 FROM u WHERE u.a = r.a AND "
    "u.b < l.b))",
)
QUERIES = (*SET_OPERATIONS, *ENDS, *FULL_JOINS, *SETS_OF_KEYS, *SUBQUERIES, *SHARED, *AROUND)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.sampled(3)
def test_both_modes_give_what_duckdb_gives(query):
    tables = tables_of(*SAMPLE)
    expected = by_duckdb(query, tables)
    assert in_batch_mode(query, tables) == expected
    assert in_streaming_mode(query, tables) == expected


number = st.one_of(st.none(), st.integers(0, 3))
text = st.one_of(st.none(), st.sampled_from(["x", "xy", ""]))


@given(
    query=st.sampled_from(QUERIES),
    rows=st.lists(st.tuples(number, number, text), min_size=1, max_size=12),
    others=st.lists(st.tuples(number, number), min_size=1, max_size=8),
    size=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_both_modes_give_what_duckdb_gives_of_any_rows(query, rows, others, size, seed):
    tables = tables_of(rows, others)
    expected = by_duckdb(query, tables)
    assert in_batch_mode(query, tables) == expected
    assert in_streaming_mode(query, tables, size, seed) == expected


@pytest.mark.parametrize("run", [in_batch_mode, in_streaming_mode])
def test_a_subquery_that_is_a_value_has_one_row(run):
    tables = tables_of([(1, 1, "x"), (2, 2, "y"), (3, 3, "z")], [(1, 5), (2, 6), (2, 6), (4, 7), (4, 8)])
    query = "SELECT a, (SELECT d FROM r WHERE r.a = l.a) AS d FROM l WHERE a <> {}"
    with pytest.raises((UserFunctionError, JobFailedError), match="a subquery that is a value has 2 rows"):
        run(query.format(3), tables)
    # Nobody asks for the value of 4, which has two.
    assert run(query.format(2), tables) == {(1, 5): 1, (3, None): 1}


@pytest.mark.parametrize("run", [in_batch_mode, campaign(in_streaming_mode)])
def test_equal_grouping_sets_are_told_apart(run):
    tables = tables_of(*SAMPLE)
    query = """
        SELECT a, b, GROUP_ID() AS g, GROUPING_ID(a, b) AS i, COUNT(*) AS n FROM l
        GROUP BY GROUPING SETS ((a), (), (a, b), (a), (b, a), (a)) HAVING GROUP_ID() <> 1 OR a IS NOT NULL
    """
    parts = [("a, NULL, {}, 1", "a", 0), ("NULL, NULL, {}, 3", "()", 0), ("a, b, {}, 0", "a, b", 0),
             ("a, NULL, {}, 1", "a", 1), ("a, b, {}, 0", "a, b", 1), ("a, NULL, {}, 1", "a", 2)]  # fmt: skip
    wanted = " UNION ALL ".join(
        f"SELECT {columns.format(number)}, COUNT(*) FROM l {'' if key == '()' else f'GROUP BY {key}'}"
        for columns, key, number in parts
    )
    wanted = f"SELECT * FROM ({wanted}) AS t(a, b, g, i, n) WHERE g <> 1 OR a IS NOT NULL"
    assert run(query, tables) == by_duckdb(wanted, tables)


THROUGH_FAILURES = (
    "SELECT a, b FROM f INTERSECT ALL SELECT a, d FROM r",
    "SELECT a, c, GROUPING(a) AS g, COUNT(*) AS n, MAX(b) AS m FROM f GROUP BY CUBE (a, c)",
    "SELECT a, (SELECT COUNT(*) FROM r WHERE r.a = f.a) AS n, b NOT IN (SELECT d FROM r WHERE r.a = f.a) AS i FROM f",
    "SELECT a, (SELECT COUNT(*) FROM r WHERE r.d < f.b OR f.b IS NULL) AS n FROM f",
)


@pytest.mark.parametrize(
    ("query", "backend"),
    [
        each if each[1] is RocksDBStateBackend else campaign(*each)
        for each in product(THROUGH_FAILURES, (HashMapStateBackend, RocksDBStateBackend))
    ],
)
@pytest.mark.sampled(9)
def test_shapes_go_on_through_failures(query, backend, tmp_path):
    rows, others = SAMPLE
    tables = tables_of(rows * 4, others * 2)
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), tables, 2) as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        streams.set_state_backend(backend())
        calls = FailsNowAndThen(tmp_path / "calls", {30, 70})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW f AS SELECT a, shaky(b) AS b, c FROM l")
        found = multiset(env.execute_sql(query).to_arrow())
    assert found == by_duckdb(query.replace("FROM f", "FROM l AS f"), tables)
    assert (tmp_path / "calls").stat().st_size >= len(rows) * 4 + 2
