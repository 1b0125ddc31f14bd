"""Aggregates of SQL: what Flink gives for them, on bounded data, on streams, and of rows that are taken back."""

from __future__ import annotations

import random
import statistics
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

ROWS = """(VALUES (1, CAST(1 AS DOUBLE), 1.5, 'a', CAST(NULL AS INT)), (2, 2.5, 2.5, 'b', 5),
    (4, 7, 9.25, CAST(NULL AS STRING), 6), (2, 2.5, 2.5, 'b', 6)) AS t(i, d, c, s, n)"""

CALLS = {
    "VAR_POP(i)": 1,
    "VAR_SAMP(i)": 1,
    "STDDEV_POP(i)": 1,
    "VARIANCE(d)": 6.75,
    "VAR_POP(d)": 5.0625,
    "STDDEV_POP(d)": 2.25,
    "VAR_POP(c)": Decimal("9.574219"),
    "STDDEV_SAMP(c)": Decimal("3.572901"),
    "VAR_SAMP(n) FILTER (WHERE n = 5)": None,
    "LISTAGG(s)": "a,b,b",
    "LISTAGG(s, '-')": "a-b-b",
    "LISTAGG(s) FILTER (WHERE i > 100)": None,
    "ARRAY_AGG(n)": [None, 5, 6, 6],
    "ARRAY_AGG(n) FILTER (WHERE i > 100)": None,
    "COLLECT(s)": [("a", 1), ("b", 2)],
    "COLLECT(n) FILTER (WHERE i > 100)": [],
    "PERCENTILE(i, 0.5)": 2.0,
    "PERCENTILE(i, 1)": 4.0,
}


@pytest.fixture(params=["batch", "streaming"])
def env(request):
    options = {"actor_system": "local"} if request.param == "streaming" else {}
    with TableEnvironment.create(mode=request.param, parallelism=1, **options) as made:
        yield made


def test_an_aggregate_has_the_value_of_flink(env):
    columns = ", ".join(f"{call} AS c{i}" for i, call in enumerate(CALLS))
    found = env.execute_sql(f"SELECT {columns} FROM {ROWS}").to_arrow()
    assert dict(zip(CALLS, found.to_pylist()[0].values(), strict=True)) == CALLS


def test_statistics_of_rows_that_are_taken_back(env):
    generator = random.Random(3)
    rows = [(generator.randrange(4), generator.randrange(40), generator.randrange(-50, 50)) for _ in range(300)]
    env.create_temporary_view("t", pa.table(dict(zip("gkv", map(list, zip(*rows, strict=True)), strict=True))))
    found = env.execute_sql("""
        SELECT g, VAR_SAMP(CAST(m AS DOUBLE)) AS v, STDDEV_POP(CAST(m AS DECIMAL(10, 2))) AS s, VAR_POP(m) AS w
        FROM (SELECT g, k, SUM(v) AS m FROM t GROUP BY g, k) GROUP BY g
    """).to_arrow()  # the sums change, and take what they were back
    sums: dict[tuple[int, int], int] = {}
    for group, key, value in rows:
        sums[group, key] = sums.get((group, key), 0) + value
    assert found.num_rows == 4
    for group, variance, deviation, whole in zip(*found.to_pydict().values(), strict=True):
        values = [value for (one, _key), value in sums.items() if one == group]
        assert variance == pytest.approx(statistics.variance(values))
        assert float(deviation) == pytest.approx(statistics.pstdev(values), abs=1e-6)
        assert whole == int(statistics.pvariance(values))


def test_integers_that_are_large_and_close_keep_their_variance(env):
    env.create_temporary_view("t", pa.table({"n": pa.array([2**31 - 1, 2**31 - 4, 2**31 - 7], pa.int32())}))
    assert env.execute_sql("SELECT VAR_SAMP(n) AS v FROM t").to_arrow()["v"].to_pylist() == [9]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("LISTAGG(i)", "expected a text"),
        ("LISTAGG(s, s)", "must be a literal"),
        ("LISTAGG(s, ',', ',')", "no more than two"),
        ("PERCENTILE(i)", "a share"),
        ("PERCENTILE(i, 2)", "between 0 and 1"),
        ("VAR_POP(s)", "expected a number"),
        ("SUM(i, i)", "takes one argument"),
        ("LAST_VALUE(DISTINCT s)", "is not supported"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(call, error):
    with TableEnvironment.create(mode="batch", parallelism=1) as env, pytest.raises(SqlError, match=error):
        env.execute_sql(f"SELECT {call} FROM {ROWS}")
