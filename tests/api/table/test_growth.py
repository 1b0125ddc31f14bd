"""How state grows is known before a query runs, with what would bound it, and so are the keys of its rows."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from headrace import ProgramError
from headrace.engine.optimizer.growth import states_of
from headrace.engine.optimizer.stream_traits import takes_back
from headrace.engine.optimizer.upsert_keys import upsert_keys
from headrace.engine.plan.plan import Cache, TableSource
from headrace.table import TableEnvironment

TABLES = """
    CREATE TABLE e (k INT, v BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'datagen');
    CREATE TABLE f (k INT, w BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'datagen');
    CREATE TABLE rates (
        k INT, w BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at, PRIMARY KEY (k) NOT ENFORCED
    ) WITH ('connector' = 'datagen');
    CREATE TABLE out (k INT, n BIGINT) WITH ('connector' = 'blackhole');
"""
TUMBLE = "TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '10' SECOND))"
LAST_ROWS = "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW"
LAST_TIME = "RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW"
GROUPED = "(SELECT k, COUNT(*) AS n FROM e GROUP BY k)"


@pytest.fixture(scope="module")
def env():
    with TableEnvironment.create(actor_system="local", parallelism=2) as made:
        made.execute_script(TABLES)
        made.create_temporary_view("few", pa.table({"k": [1], "u": [2]}))
        yield made


def states(env, query):
    """Growth and remedy of each operator, inputs first."""
    lines = env.explain_sql(query).partition("== State ==\n")[2].splitlines()
    return [
        (growth, remedy)
        for line in lines
        for growth in ("bounded", "per key", "per time", "unbounded") if f": {growth}: " in line
        for remedy in [line.partition("; to bound it, ")[2][:8]]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT k, v FROM e WHERE v > 1", []),
        ("SELECT COUNT(*) AS n FROM e", [("bounded", "")]),
        ("SELECT k, COUNT(*) AS n FROM e GROUP BY k", [("per key", "")]),
        ("SELECT at, COUNT(*) AS n FROM e GROUP BY at", [("unbounded", "GROUP BY")]),
        ("SELECT DISTINCT k FROM e", [("per key", "")]),
        ("SELECT DISTINCT k, at FROM e", [("unbounded", "GROUP BY")]),
        (f"SELECT k, window_end, COUNT(*) AS n FROM {TUMBLE} GROUP BY k, window_start, window_end", [("per time", "")]),
        (
            f"SELECT w, COUNT(*) AS n FROM (SELECT window_end AS w, COUNT(*) AS c FROM {TUMBLE} GROUP BY k, "
            "window_start, window_end) GROUP BY w",
            [("per time", ""), ("unbounded", "GROUP BY")],
        ),
        ("SELECT e.v, f.w FROM e JOIN f ON e.k = f.k", [("unbounded", "say in O")]),
        ("SELECT e.v, few.u FROM e LEFT JOIN few ON e.k = few.k", [("unbounded", "say in O")]),
        (
            "SELECT e.v, f.w FROM e JOIN f ON e.k = f.k AND f.at BETWEEN e.at AND e.at + INTERVAL '1' SECOND",
            [("per time", "")],
        ),
        ("SELECT a.u FROM few AS a JOIN few AS b ON a.k = b.k", [("bounded", "")]),
        (f"SELECT g.n, h.n AS m FROM {GROUPED} AS g JOIN {GROUPED} AS h ON g.k = h.k", [("per key", "")] * 2),
        ("SELECT k, COUNT(*) AS n FROM few GROUP BY k", [("bounded", "")]),
        ("SELECT v FROM e ORDER BY v LIMIT 3", [("bounded", "")]),
        (f"SELECT k, n FROM {GROUPED} ORDER BY n LIMIT 3", [("per key", ""), ("per key", "")]),
        ("SELECT SUM(v) OVER (PARTITION BY k ORDER BY at) AS s FROM e", [("per key", "")]),
        ("SELECT SUM(v) OVER (ORDER BY at) AS s FROM e", [("per time", "")]),
        ("SELECT SUM(v) OVER (PARTITION BY at ORDER BY at) AS s FROM e", [("unbounded", "RANGE BE")]),
        (f"SELECT SUM(v) OVER (PARTITION BY k ORDER BY at {LAST_ROWS}) AS s FROM e", [("per key", "")]),
        (f"SELECT SUM(v) OVER (PARTITION BY k ORDER BY at {LAST_TIME}) AS s FROM e", [("per time", "")]),
        (f"SELECT SUM(v) OVER (PARTITION BY at ORDER BY at {LAST_TIME}) AS s FROM e", [("per time", "")]),
        ("SELECT LAG(v) OVER (PARTITION BY k ORDER BY at) AS s FROM e", [("per key", "")]),
        ("SELECT e.v, r.w FROM e JOIN rates FOR SYSTEM_TIME AS OF e.at AS r ON e.k = r.k", [("per key", "")]),
        (
            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM e) WHERE r <= 2",
            [("per key", "")],
        ),
        (
            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY at ORDER BY v) AS r FROM e) WHERE r <= 2",
            [("unbounded", "GROUP BY")],
        ),
    ],
)
def test_an_operator_says_how_its_state_grows(env, query, expected):
    assert states(env, query) == expected


def test_what_grows_without_bound_is_told_when_a_query_is_asked(env, caplog):
    with caplog.at_level(logging.WARNING, "headrace.table"):
        env.execute_sql("SELECT k, COUNT(*) AS n FROM e GROUP BY k")
        assert caplog.messages == []
        env.execute_sql("SELECT e.v, f.w FROM e JOIN f ON e.k = f.k")
    [message] = caplog.messages
    assert "unbounded: all rows of both inputs, for ever; to bound it, say in ON" in message


def test_one_endless_side_of_a_join_is_named(env):
    plan = env.explain_sql("SELECT e.v, few.u FROM few JOIN e ON e.k = few.k")
    assert "all rows of the right input" in plan


def test_a_node_of_which_nothing_is_known_is_refused():
    """It is not taken for one whose rows stay."""
    rows = TableSource(id=0, name="rows", table=pa.table({"k": [1]}))
    with pytest.raises(ProgramError, match="cannot be run on a stream"):
        takes_back(Cache(id=1, name="cache", inputs=(rows,), token=""))


def test_a_node_of_which_nobody_knows_what_it_keeps_is_refused():
    rows = TableSource(id=0, name="rows", table=pa.table({"k": [1]}))
    with pytest.raises(ProgramError, match="nothing says what it keeps"):
        list(states_of(Cache(id=1, name="cache", inputs=(rows,), token="")))


def test_an_insert_is_explained_with_its_state(env):
    assert states(env, "INSERT INTO out SELECT k, COUNT(*) FROM e GROUP BY k") == [("per key", "")]


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("SELECT k, v FROM e", set()),
        ("SELECT k, COUNT(*) AS n FROM e GROUP BY k", {("k",)}),
        ("SELECT k AS key2, COUNT(*) AS n FROM e GROUP BY k", {("key2",)}),
        ("SELECT COUNT(*) AS n FROM e GROUP BY k", set()),
        ("SELECT COUNT(*) AS n FROM e", {()}),
        ("SELECT DISTINCT k, v FROM e", {("k", "v")}),
        ("SELECT k, n FROM (SELECT k, COUNT(*) AS n FROM e GROUP BY k) WHERE n > 1", {("k",)}),
        (
            "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM e) WHERE r = 1",
            {("k",)},
        ),
        (
            "SELECT k, v, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM e) WHERE r <= 2",
            {("k", "r")},
        ),
        (f"SELECT g.k, h.n FROM {GROUPED} AS g JOIN {GROUPED} AS h ON g.k = h.k", {("k",)}),
        (f"SELECT g.k, h.k AS j FROM {GROUPED} AS g JOIN {GROUPED} AS h ON g.n = h.n", {("k", "j")}),
        (f"SELECT g.k, h.n FROM {GROUPED} AS g LEFT JOIN {GROUPED} AS h ON g.k = h.k", set()),
    ],
)
def test_keys_tell_rows_apart(env, query, keys):
    root = env._root(env.sql_query(query))
    assert keys <= set(upsert_keys(root))
    assert bool(keys) == bool(upsert_keys(root))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, COUNT(*) AS n FROM {e} GROUP BY k",
        "SELECT DISTINCT k, v FROM {e}",
        "SELECT k, v, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM {e}) WHERE r <= 2",
        "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM {e}) WHERE r = 1",
        "SELECT g.k, h.n FROM (SELECT k, COUNT(*) AS n FROM {e} GROUP BY k) AS g JOIN "
        "(SELECT k, COUNT(*) AS n FROM {e} GROUP BY k) AS h ON g.n = h.n",
        "SELECT g.k, h.v FROM (SELECT DISTINCT k FROM {e}) AS g JOIN (SELECT DISTINCT k, v FROM {e}) AS h ON g.k = h.k",
    ],
)
def test_no_two_rows_have_equal_keys(query):
    """Against the rows of a bounded table: a key that the plan names has no value twice."""
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        env.create_temporary_view("few", pa.table({"k": [1, 1, 2, 3, 3, 3, 4], "v": [1, 1, 2, 3, 4, 4, 5]}))
        asked = env.sql_query(query.format(e="few"))
        rows = asked.to_arrow().to_pylist()
        for key in upsert_keys(asked.relation.node):
            values = [tuple(row[name] for name in key) for row in rows if set(key) <= set(row)]
            assert len(values) == len(set(values)), key
