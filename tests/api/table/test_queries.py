"""Queries over random tables: batch mode gives what DuckDB gives, and a stream's changes come to the same table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_kit import SAMPLE, by_duckdb, in_small_batches, multiset, tables_of, with_tables

from headrace.table import TableEnvironment

QUERIES = (
    "SELECT a, b, c FROM l WHERE a > 1 OR b IS NULL",
    "SELECT a + b AS s, a * 2 - b AS d, -a AS n FROM l WHERE NOT (a = b)",
    "SELECT CASE WHEN a > b THEN 'more' WHEN a = b THEN 'same' ELSE c END AS k FROM l",
    "SELECT CASE a WHEN 1 THEN 'one' WHEN 2 THEN 'two' END AS k, COALESCE(a, b, 0) AS v FROM l",
    "SELECT a IS NOT DISTINCT FROM b AS same, a IS DISTINCT FROM b AS other, a IN (1, 2, NULL) AS i FROM l",
    "SELECT a BETWEEN 1 AND b AS x, a NOT BETWEEN 1 AND 2 AS y, (a > 1) IS TRUE AS z, (a > 1) IS NOT FALSE AS w FROM l",
    "SELECT UPPER(c) AS u, c || '-' || c AS d, CHAR_LENGTH(c) AS n, SUBSTRING(c FROM 2 FOR 1) AS s FROM l",
    "SELECT c LIKE 'x%' AS a, c LIKE '_y' AS b, c NOT LIKE '%z%' AS d, TRIM(c) AS t FROM l",
    "SELECT a, COUNT(*) AS n, COUNT(b) AS m, SUM(b) AS s, MIN(b) AS low, MAX(c) AS high FROM l GROUP BY a",
    "SELECT a % 2 AS p, COUNT(DISTINCT b) AS n, COUNT(DISTINCT c) FILTER (WHERE b > 1) AS m FROM l GROUP BY a % 2",
    "SELECT COUNT(*) AS n, SUM(a) AS s FROM l HAVING COUNT(*) > 0",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a HAVING SUM(b) > 2 AND COUNT(*) >= 1",
    "SELECT DISTINCT a, c FROM l",
    "SELECT c, MAX(n) AS m FROM (SELECT c, a, COUNT(*) AS n FROM l GROUP BY c, a) AS t GROUP BY c",
    "SELECT l.a, l.c, r.d FROM l JOIN r ON l.a = r.a",
    "SELECT l.a, r.d FROM l JOIN r ON l.a = r.a AND l.b < r.d",
    "SELECT l.a, l.b, r.d FROM l LEFT JOIN r ON l.a = r.a",
    "SELECT l.a, l.b, r.d FROM l LEFT JOIN r ON l.a = r.a AND l.b < r.d",
    "SELECT l.b, r.a, r.d FROM l RIGHT JOIN r ON l.a = r.a",
    "SELECT l.b, r.a, r.d FROM l RIGHT JOIN r ON l.a = r.a AND r.d > 1",
    "SELECT l.a AS x, r.a AS y FROM l FULL JOIN r ON l.a = r.a AND l.b = r.d",
    "SELECT l.a, r.d FROM l, r WHERE l.a = r.a AND l.b > 0",
    "SELECT x.a, y.b FROM l AS x JOIN l AS y ON x.a = y.b",
    "SELECT l.b, COUNT(*) AS n, MAX(r.d) AS m FROM l LEFT JOIN r ON l.a = r.a GROUP BY l.b",
    "SELECT a, b FROM l WHERE a IN (SELECT a FROM r WHERE d > 1)",
    "SELECT a, b FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.a = l.a)",
    "SELECT a, b FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.a = l.a AND r.d > 1)",
    "SELECT b, COUNT(*) AS n FROM l WHERE a IN (SELECT a FROM r) GROUP BY b",
    "SELECT COUNT(*) AS n FROM l JOIN r ON l.b = r.a HAVING COUNT(*) > 0",
    "SELECT COUNT(*) AS n FROM l WHERE b IN (SELECT a FROM r) HAVING COUNT(*) > 0",
    "SELECT c FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.a + 1 = l.a + 1)",
    "SELECT a FROM l UNION ALL SELECT d FROM r",
    "SELECT a FROM l UNION SELECT d FROM r",
    "SELECT a, b, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b, c) AS n FROM u) AS t WHERE n <= 2",
    "SELECT a, b FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC, c) AS n FROM u) AS t WHERE n = 1",
    "SELECT a, s FROM (SELECT a, s, ROW_NUMBER() OVER (ORDER BY s DESC, a) AS n FROM "
    "(SELECT a, COUNT(*) AS s FROM l WHERE a IS NOT NULL GROUP BY a) AS g) AS t WHERE n <= 2",
    "SELECT a, b, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b, c) AS n FROM u) AS t "
    "WHERE 2 <= n AND 4 > n",
    "SELECT a, b, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b, c) AS n FROM u WHERE b > 0 QUALIFY n <= 2",
    "SELECT a, b FROM u QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC, c) = 1 AND b > 1",
    "SELECT DISTINCT a FROM l QUALIFY COUNT(*) OVER (PARTITION BY a) > 1",
    "SELECT a, SUM(b) AS s FROM l GROUP BY a HAVING COUNT(*) > 1 QUALIFY RANK() OVER (ORDER BY s DESC) <= COUNT(*)",
    "SELECT a, b FROM l QUALIFY SUM(b) OVER (PARTITION BY a) > (SELECT AVG(d) FROM r)",
    "SELECT a, b FROM l WHERE a IN (SELECT r.a FROM r WHERE r.d > l.b QUALIFY COUNT(*) OVER () > 1)",
    "SELECT a, (SELECT MAX(n) FROM (SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY d) AS n FROM r) AS x) AS m "
    "FROM l",
    "SELECT a, b FROM l QUALIFY COUNT(*) OVER (PARTITION BY a) > "
    "(SELECT MAX(n) FROM (SELECT COUNT(*) OVER (PARTITION BY d) AS n FROM r) AS x)",
    "SELECT a, SUM(b) + RANK() OVER (ORDER BY COUNT(*)) AS x, MAX(b) * RANK() OVER (ORDER BY MIN(b)) AS y "
    "FROM l GROUP BY a",
    "SELECT a, CASE WHEN SUM(b) > 4 THEN RANK() OVER (ORDER BY a) ELSE -MIN(b) END AS x FROM l GROUP BY a",
    "SELECT l.b, r.d, y.b AS z FROM l JOIN r ON l.a = r.a RIGHT JOIN u AS y ON y.a = l.a WHERE l.b = r.d",
    "SELECT l.b, r.d, y.b AS z FROM l JOIN r ON l.a = r.a FULL JOIN u AS y ON y.a = l.a WHERE l.b = r.d",
    "SELECT l.a, r.a FROM l JOIN r ON l.a = r.a ORDER BY l.a",
    "SELECT * FROM (SELECT l.a, r.a FROM l JOIN r ON l.a = r.a) AS t",
    "SELECT a, b FROM u ORDER BY c LIMIT 0",
    "SELECT a, b FROM u ORDER BY b DESC, a, c LIMIT 3",
    "SELECT a, b FROM u ORDER BY a, b, c LIMIT 2 OFFSET 1",
    "SELECT q.k, COUNT(*) AS n FROM (SELECT a AS k FROM l UNION ALL SELECT a AS k FROM r) AS q GROUP BY q.k",
    "WITH t AS (SELECT a, SUM(b) AS s FROM l GROUP BY a) SELECT t.a, t.s, r.d FROM t JOIN r ON t.a = r.a",
    "SELECT MIN(s) AS low, MAX(s) AS high FROM (SELECT a, SUM(b) AS s FROM l GROUP BY a) AS t",
)

number = st.one_of(st.none(), st.integers(0, 4))
text = st.one_of(st.none(), st.sampled_from(["x", "xy", "yz", " x", ""]))
left = st.lists(st.tuples(number, number, text), max_size=25)
right = st.lists(st.tuples(number, number), max_size=15)


@pytest.mark.parametrize("query", QUERIES)
def test_batch_gives_what_duckdb_gives(query):
    tables = tables_of(*SAMPLE)
    with with_tables(TableEnvironment.create(mode="batch", parallelism=3), tables) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, tables)


@given(query=st.sampled_from(QUERIES), rows=left, others=right)
def test_batch_gives_what_duckdb_gives_of_any_rows(query, rows, others):
    tables = tables_of(rows, others)
    with with_tables(TableEnvironment.create(mode="batch", parallelism=3), tables) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, tables)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.sampled(3)
def test_changes_of_a_stream_come_to_what_duckdb_gives(query):
    tables = tables_of(*SAMPLE)
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), tables, 3) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, tables)


# A stream of no rows has no result at all, as in Flink; of bounded data COUNT(*) is 0.
@given(
    query=st.sampled_from(QUERIES), rows=left.filter(bool), others=right, size=st.integers(1, 5), seed=st.integers(0, 9)
)
def test_changes_of_any_rows_come_to_what_duckdb_gives(query, rows, others, size, seed):
    tables = tables_of(rows, others)
    options = {"actor_system": "sim", "seed": seed}
    with in_small_batches(TableEnvironment.create(parallelism=3, **options), tables, size) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, tables)


@pytest.mark.parametrize("mode", ["batch", "streaming"])
@pytest.mark.parametrize("end", ["", "LIMIT 5", "LIMIT 4 OFFSET 2"])
def test_a_table_has_the_order_that_its_query_ends_with(mode, end):
    options = {"actor_system": "local"} if mode == "streaming" else {}
    with TableEnvironment.create(mode=mode, parallelism=2, **options) as env:
        env.create_temporary_view("u", tables_of(*SAMPLE)["u"])
        found = env.execute_sql(f"SELECT c, b FROM u ORDER BY b DESC, c {end}").to_arrow().to_pylist()
    rows = tables_of(*SAMPLE)["u"].to_pylist()
    rows.sort(key=lambda row: (row["b"] is None, -(row["b"] or 0), row["c"]))
    part = {"": slice(None), "LIMIT 5": slice(5), "LIMIT 4 OFFSET 2": slice(2, 6)}[end]
    assert found == [{"c": row["c"], "b": row["b"]} for row in rows[part]]
