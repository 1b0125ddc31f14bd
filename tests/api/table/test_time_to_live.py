"""Time to live in SQL: what is planned for it, and what a query that goes on under another one has forgotten."""

from __future__ import annotations

import datetime
import json
import logging

import pyarrow.compute as pc
import pytest
from campaigns import campaign
from query_kit import multiset
from upgrade_kit import explained, gone_on, in_batch_mode, kept, of_kind, stopped

from headrace.engine.errors import ConfigurationError
from headrace.engine.optimizer.growth import ttls_of
from headrace.engine.plan.plan import Aggregation, Distinct, OverGroups, walk
from headrace.engine.plan.table_nodes import TableJoin, TemporalJoin, TopN
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

TTL = "table.exec.state.ttl"
COUNTED = "SELECT k, COUNT(*) AS n, SUM(v) AS s, COUNT(*) FILTER (WHERE w > 6) AS big FROM src WHERE w > 3 GROUP BY k"
HOUR, DAY = 3_600_000, 86_400_000


# ------------------------------------------------------------------------------------------------------------ planning
@pytest.fixture(scope="module")
def env():
    with TableEnvironment.create(actor_system="local", parallelism=2) as made:
        made.execute_script("""
            CREATE TABLE a (k INT, v INT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'datagen');
            CREATE TABLE b (k INT, w INT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'datagen');
            CREATE TABLE c (k INT, x INT) WITH ('connector' = 'datagen');
            CREATE TABLE d (k INT, x INT, at TIMESTAMP(3), WATERMARK FOR at AS at, PRIMARY KEY (k) NOT ENFORCED)
                WITH ('connector' = 'datagen');
            CREATE TABLE out (k INT, n BIGINT) WITH ('connector' = 'blackhole');
        """)
        yield made
        made.execute_sql("RESET")


@pytest.fixture(autouse=True)
def as_set(request):
    if "env" in request.fixturenames:
        request.getfixturevalue("env").execute_sql(f"SET '{TTL}' = '1 h'")


def ttls(env, query):
    """By kind of operator the times to live, as the plan has them."""
    root = env._root(env.sql_query(query))
    kinds = (Aggregation, Distinct, OverGroups, TableJoin, TemporalJoin, TopN)
    return [(type(node).__name__, *ttls_of(node)) for node in walk(root) if isinstance(node, kinds)]


TUMBLE = "TABLE(TUMBLE(TABLE a, DESCRIPTOR(at), INTERVAL '10' SECOND))"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT k, COUNT(*) FROM a GROUP BY k", [("Aggregation", HOUR)]),
        ("SELECT /*+ STATE_TTL('a' = '1 d') */ k, COUNT(*) FROM a GROUP BY k", [("Aggregation", DAY)]),
        ("SELECT /*+ STATE_TTL('a' = '0 s') */ k, COUNT(*) FROM a GROUP BY k", [("Aggregation", 0)]),
        ("SELECT /*+ STATE_TTL('t' = '1 d') */ DISTINCT k FROM a AS t", [("Distinct", DAY)]),
        ("SELECT /*+ STATE_TTL('t' = '2h', 't' = '1 d') */ DISTINCT k FROM a AS t", [("Distinct", DAY)]),
        ("SELECT /*+ STATE_TTL('t' = '1 d'), STATE_TTL('t' = '2h') */ DISTINCT k FROM a AS t", [("Distinct", DAY)]),
        ("SELECT /*+ STATE_TTL('b' = '1d') */ a.v, b.w FROM a JOIN b ON a.k = b.k", [("TableJoin", HOUR, DAY)]),
        ("SELECT /*+ STATE_TTL('a' = '1d') */ a.v, b.w FROM a, b WHERE a.k = b.k", [("TableJoin", DAY, HOUR)]),
        (
            "SELECT /*+ STATE_TTL('a' = '1d', 'b' = '2h', 'c' = '3h') */ a.v, b.w, c.x, COUNT(*) FROM a "
            "LEFT JOIN b ON a.k = b.k JOIN c ON a.k = c.k GROUP BY a.v, b.w, c.x",
            [("TableJoin", DAY, 2 * HOUR), ("TableJoin", HOUR, 3 * HOUR), ("Aggregation", HOUR)],
        ),
        (
            "SELECT /*+ STATE_TTL('t' = '1d') */ n, COUNT(*) FROM (SELECT k, COUNT(*) AS n FROM a GROUP BY k) AS t "
            "GROUP BY n",
            [("Aggregation", HOUR), ("Aggregation", DAY)],
        ),
        ("SELECT * FROM a WHERE k IN (SELECT k FROM c)", [("TableJoin", HOUR, HOUR)]),
        ("SELECT k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) FROM a", [("OverGroups", HOUR)]),
        ("SELECT k, SUM(v) OVER (PARTITION BY k ORDER BY at) FROM a", [("OverGroups", HOUR)]),
        (
            "SELECT k, SUM(v) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM a",
            [("OverGroups", HOUR)],
        ),
        (
            "SELECT k, SUM(v) OVER (PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL '1' DAY PRECEDING AND "
            "CURRENT ROW) FROM a",
            [("OverGroups", 0)],
        ),
        (
            "SELECT a.v, d.x FROM a JOIN d FOR SYSTEM_TIME AS OF a.at ON a.k = d.k",
            [("TemporalJoin", HOUR, HOUR)],
        ),
        (
            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM a) WHERE r <= 2",
            [("TopN", HOUR)],
        ),
        (f"SELECT k, COUNT(*) FROM {TUMBLE} GROUP BY k, window_start, window_end", []),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL '1' SECOND", []),
    ],
)
def test_what_has_which_time_to_live(query, expected, env):
    assert ttls(env, query) == expected


def test_hints_count_before_the_setting_without_one(env):
    env.execute_sql(f"RESET '{TTL}'")
    query = "SELECT /*+ STATE_TTL('b' = '1d') */ a.v, b.w FROM a JOIN b ON a.k = b.k"
    assert ttls(env, query) == [("TableJoin", 0, DAY)]
    assert ttls(env, query.replace("/*+", "/*")) == [("TableJoin", 0, 0)]


def test_a_hint_that_changes_nothing_is_noted(env):
    plan = env.explain_sql("SELECT /*+ STATE_TTL('a' = '1 d') */ k FROM a WHERE v > 1")
    assert "hint STATE_TTL('a') changes nothing" in plan


def test_a_plan_shows_it_and_growth_goes_by_it(env, caplog):
    endless = "SELECT at, COUNT(*) AS n FROM a GROUP BY at"
    plan = env.explain_sql(endless)
    assert "key (at), time to live 1 h" in plan
    assert ": per time: aggregates for each at; at goes with time, and its values never end; time to live 1 h" in plan
    one_side = "SELECT /*+ STATE_TTL('a' = '0') */ a.v, b.w FROM a JOIN b ON a.k = b.k"
    assert "time to live left for ever, right 1 h" in env.explain_sql(one_side)
    assert "unbounded" in env.explain_sql(one_side)
    caplog.set_level(logging.WARNING, "headrace.table")
    env.sql_query(endless).execute()
    assert not caplog.messages
    env.execute_sql(f"RESET '{TTL}'")
    env.sql_query(endless).execute()
    assert f"or SET '{TTL}'" in caplog.text


def test_batch_mode_forgets_nothing():
    with TableEnvironment.create(mode="batch") as made:
        made.execute_sql(f"SET '{TTL}' = '1 ms'")
        query = "SELECT /*+ STATE_TTL('t' = '1 ms') */ k, COUNT(*) FROM (VALUES (1), (1), (2)) AS t(k) GROUP BY k"
        assert sorted(made.execute_sql(query).to_arrow().to_pydict()["EXPR$1"]) == [1, 2]


def test_settings_of_the_table_api():
    with TableEnvironment.create(mode="batch") as made:
        config = made.get_config()
        assert config.get(TTL, "0 s") == "0 s"
        assert config.get_idle_state_retention() == datetime.timedelta(0)
        assert config.set_idle_state_retention(datetime.timedelta(hours=1)) is config
        assert made.get_config().get(TTL, "") == "3600000 ms"
        assert config.set(TTL, "2 h").get_idle_state_retention() == datetime.timedelta(hours=2)
        assert config.set("table.dml-sync", False).get("table.dml-sync", "") == "false"
        with pytest.raises(SqlError, match="there is no option"):
            config.set("table.exec.state.tll", "1 h")
        with pytest.raises(SqlError, match="at least 0 ms"):
            config.set(TTL, "-1 h")
        with pytest.raises(ConfigurationError, match="a duration must be"):
            config.set_idle_state_retention("soon")


def test_a_compiled_plan_keeps_it(env, tmp_path, monkeypatch):
    path = str(tmp_path / "plan.json")
    env.execute_sql(f"COMPILE PLAN '{path}' FOR INSERT INTO out SELECT k, COUNT(*) FROM a GROUP BY k")
    (group,) = [
        one for one in json.loads((tmp_path / "plan.json").read_text())["operators"] if one["kind"] == "aggregate"
    ]
    assert group["ttls_ms"] == [HOUR]
    env.execute_sql(f"SET '{TTL}' = '5 s'")
    run = []
    monkeypatch.setattr(
        type(env._execution), "_write_streams", lambda _self, _inserts, roots, _statements: run.append(roots)
    )
    env.execute_sql("SET 'table.dml-sync' = 'false'")
    with pytest.raises(AttributeError):  # no job comes back
        env.execute_sql(f"EXECUTE PLAN '{path}'")
    env.execute_sql("RESET 'table.dml-sync'")
    assert [ttls_of(node) for node in walk(*run[0]) if isinstance(node, Aggregation)] == [(HOUR,)]


# ------------------------------------------------------------------------------------------------------------- running
@pytest.fixture(scope="module", params=["hashmap", campaign("rocksdb")])
def saved(request, tmp_path_factory):
    statement = f"INSERT INTO nothing {COUNTED}"
    folder = tmp_path_factory.mktemp("ttl")
    return stopped(folder, statement, request.param, **{TTL: "1 h"}), request.param


def total(table):
    return pc.sum(table.column("n")).as_py()


def test_what_lives_goes_on_exactly(saved):
    for ttl in ("1 h", "2 h"):
        assert multiset(gone_on(saved, COUNTED, **{TTL: ttl})) == multiset(in_batch_mode(COUNTED))


def test_what_has_expired_is_forgotten(saved):
    """Groups begin anew, once or often: what their last rows have counted are the records since the savepoint."""
    records = total(in_batch_mode(COUNTED))
    before = sum(one["n"] for one in kept(saved[0]).values())
    assert 0 < before < records
    assert total(gone_on(saved, COUNTED, **{TTL: "1 ms"})) == records - before


def test_an_upgrade_says_what_it_was(saved):
    for ttl, wanted in (("2 h", "is 2 h"), ("0", "is for ever")):
        _, rows = explained(saved[0], COUNTED, **{TTL: ttl})
        (group,) = of_kind(rows, "aggregate")
        assert group["verdict"] == "reuse"
        assert not group["asks"]
        assert f"the time to live was 1 h, and {wanted}; what has expired stays forgotten" in group["details"]
    _, rows = explained(saved[0], COUNTED, **{TTL: "1 h"})
    assert "time to live" not in of_kind(rows, "aggregate")[0]["details"]


def test_a_query_may_get_one_later(tmp_path):
    path = stopped(tmp_path, f"INSERT INTO nothing {COUNTED}")
    (group,) = of_kind(explained(path, COUNTED, **{TTL: "1 h"})[1], "aggregate")
    assert "what is kept counts as written when it is restored" in group["details"]
    assert multiset(gone_on((path, "hashmap"), COUNTED, **{TTL: "1 h"})) == multiset(in_batch_mode(COUNTED))
