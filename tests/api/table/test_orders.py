"""Where nulls stand in an order: rows in the order of DuckDB's answer, in both modes."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment

ROWS = pa.table({"a": [3, None, 1, 2, None, 3], "b": [1, 2, 3, 4, 5, 6]})

QUERIES = [
    "SELECT a, b FROM t ORDER BY a NULLS LAST, b",
    "SELECT a, b FROM t ORDER BY a DESC NULLS FIRST, b",
    "SELECT b FROM t ORDER BY a NULLS LAST, b LIMIT 3",
    "SELECT -a AS a, b FROM t ORDER BY a NULLS LAST, b LIMIT 2",
    "SELECT DISTINCT a FROM t ORDER BY a NULLS LAST",
    "SELECT a, b FROM (SELECT a, b, ROW_NUMBER() OVER (ORDER BY a NULLS LAST, b) AS n FROM t) WHERE n <= 4 ORDER BY b",
    "SELECT a, b FROM (SELECT a, b, ROW_NUMBER() OVER (ORDER BY a DESC NULLS FIRST, b) AS n FROM t) WHERE n <= 3 "
    "ORDER BY b",
    "SELECT a AS x, b FROM t UNION ALL SELECT b, a FROM t ORDER BY x NULLS LAST, b NULLS LAST",
    "SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY SUM(b) DESC NULLS FIRST, a",
    "SELECT a, b, RANK() OVER (ORDER BY a DESC NULLS FIRST) AS r FROM t ORDER BY b",
]
UNORDERED_ON_STREAMS = 2
"""Its rows are right; what their order goes by is not among their columns."""


def answer(t, query):
    t.create_temporary_view("t", ROWS)
    return [tuple(row.values()) for row in t.execute_sql(query).to_arrow().to_pylist()]


def expected(query):
    connection = duckdb.connect()
    connection.register("t", ROWS)
    # Nulls are the smallest values, as in Flink.
    connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    return connection.execute(query).fetchall()


@pytest.mark.parametrize("query", QUERIES)
def test_nulls_stand_where_an_order_wants_them(query):
    assert answer(TableEnvironment.create(mode="batch", parallelism=2), query) == expected(query)


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_nulls_stand_there_on_streams_too(number):
    query = QUERIES[number]
    with TableEnvironment.create(parallelism=2, actor_system="sim", seed=0) as t:
        found, wanted = answer(t, query), expected(query)
    if number == UNORDERED_ON_STREAMS:
        found, wanted = sorted(found, key=str), sorted(wanted, key=str)
    assert found == wanted


def test_an_order_by_nulls_of_what_is_not_selected_is_refused_on_streams():
    t = TableEnvironment.create(parallelism=2, actor_system="sim", seed=0)
    with t, pytest.raises(ProgramError, match="ORDER BY goes by columns of the result"):
        answer(t, "SELECT b FROM t ORDER BY a NULLS LAST")
