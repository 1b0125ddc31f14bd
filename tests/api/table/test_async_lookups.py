"""Asynchronous lookup joins in SQL: they give what synchronous ones give, through failures, upgrades and rescaling."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter

import pytest
from query_kit import SAMPLE, FailsNowAndThen, by_duckdb, in_small_batches, multiset, tables_of

from headrace import RestartStrategies
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf

HINT = "/*+ LOOKUP('table' = 'r', 'async' = 'true', 'output-mode' = 'allow_unordered', 'capacity' = '3') */"
QUERIES = {
    "SELECT {} l.a, b, c, d FROM l JOIN {} ON l.a = r.a": "r",
    "SELECT {} l.a, b, d FROM l LEFT JOIN {} ON l.a = r.a AND d > b": "r",
    "SELECT {} b, COUNT(d) AS n, COUNT(*) AS m FROM l LEFT JOIN {} ON l.a = r.a WHERE b > 0 GROUP BY b": "r",
}
OF_NOW = "r FOR SYSTEM_TIME AS OF l.p AS r"


def database(path, tables):
    rows = zip(*tables["r"].to_pydict().values(), strict=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE r (a INTEGER, d INTEGER)")
        connection.executemany("INSERT INTO r VALUES (?, ?)", list(rows))
    connection.close()


def environment(tables, path, rows=3, **options):
    if not path.exists():
        database(path, tables)
    env = TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options})
    in_small_batches(env, {"rows_of_l": tables["l"]}, rows)
    env.execute_script(f"""
        CREATE TABLE r (a BIGINT, d BIGINT) WITH ('connector' = 'jdbc', 'url' = 'sqlite:{path}', 'table-name' = 'r');
        CREATE VIEW l AS SELECT *, PROCTIME() AS p FROM rows_of_l;
    """)
    return env


def expected(query, tables):
    return by_duckdb(query.format("", "r"), tables)


@pytest.mark.parametrize("query", QUERIES)
def test_asynchronous_lookups_give_what_duckdb_gives(query, tmp_path):
    tables = tables_of(*SAMPLE)
    with environment(tables, tmp_path / "r.db") as env:
        assert multiset(env.execute_sql(query.format(HINT, OF_NOW)).to_arrow()) == expected(query, tables)
        env.execute_sql("SET 'table.exec.async-lookup.buffer-capacity' = '1'")
        env.execute_sql("SET 'table.exec.async-lookup.output-mode' = 'ordered'")
        plain = query.format("/*+ LOOKUP('table' = 'r', 'async' = 'true') */", OF_NOW)
        assert multiset(env.execute_sql(plain).to_arrow()) == expected(query, tables)


def test_rows_in_flight_are_joined_once_through_failures(tmp_path):
    rows, others = SAMPLE
    tables = tables_of(rows * 4, others)
    query = "SELECT {} l.a, b, c, d FROM l LEFT JOIN {} ON r.a = l.a"
    with environment(tables, tmp_path / "r.db", rows=2) as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {30, 70})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW found AS " + query.format(HINT, OF_NOW))
        got = env.execute_sql("SELECT a, shaky(b) AS b, c, d FROM found").to_arrow()
        assert multiset(got) == expected(query, tables)
    assert (tmp_path / "calls").stat().st_size > len(rows) * 4


def test_rows_in_order_stay_in_order(tmp_path):
    tables = tables_of([(i % 5, i, None) for i in range(400)], [(i, i) for i in range(5)])
    hint = "/*+ LOOKUP('table' = 'r', 'async' = 'true', 'output-mode' = 'ordered', 'capacity' = '8') */"
    with environment(tables, tmp_path / "r.db", parallelism=1) as env:
        got = env.execute_sql(f"SELECT {hint} b, d FROM l JOIN {OF_NOW} ON l.a = r.a").to_arrow()
    found = got["b"].to_pylist()
    assert sorted(found) == list(range(400))
    for split in (0, 1):  # whose batches of three rows take turns
        own = [b for b in found if b // 3 % 2 == split]
        assert own == sorted(own)


def test_the_plan_says_how_the_table_is_asked(tmp_path):
    with environment(tables_of(*SAMPLE), tmp_path / "r.db") as env:
        query = QUERIES_OF_PLAN.format(HINT)
        plan = env.explain_sql(query)
        assert "asks asynchronously, in any order between watermarks, 3 questions at once" in plan
        assert "inner lookup join: bounded: rows that wait for the table's answer" in plan
        retry = "'retry-predicate' = 'lookup_miss', 'retry-strategy' = 'fixed_delay', 'fixed-delay' = '10 s'"
        retry = f"/*+ LOOKUP('table' = 'r', {retry}, 'max-attempts' = '3') */"
        assert "up to 3 times more, after 10000 ms" in env.explain_sql(QUERIES_OF_PLAN.format(retry))


QUERIES_OF_PLAN = f"SELECT {{}} b, d FROM l JOIN {OF_NOW} ON l.a = r.a"


def test_a_key_without_a_row_is_asked_for_again(tmp_path):
    """The table gets its rows while the job runs: a function that is behind the first answers inserts them."""
    tables = tables_of([(1, 1, "x"), (2, 2, "y")], [(1, 10)])
    retry = "'retry-predicate' = 'lookup_miss', 'retry-strategy' = 'fixed_delay', 'fixed-delay' = '50 ms'"
    unordered = "'async' = 'true', 'output-mode' = 'allow_unordered'"
    hint = f"/*+ LOOKUP('table' = 'r', {unordered}, {retry}, 'max-attempts' = '600') */"
    path = tmp_path / "r.db"

    def added(a):
        if a == 1:
            with sqlite3.connect(path) as connection:
                connection.execute("INSERT INTO r VALUES (2, 20)")
            connection.close()
        return a

    with environment(tables, path, rows=1) as env:
        env.create_temporary_function("added", udf(added, result_type="BIGINT"))
        got = env.execute_sql(f"SELECT {hint} added(l.a) AS a, d FROM l JOIN {OF_NOW} ON l.a = r.a").to_arrow()
    assert Counter(zip(*got.to_pydict().values(), strict=True)) == {(1, 10): 1, (2, 20): 1}


def test_a_memory_table_says_that_the_hint_changes_nothing(tmp_path):
    with environment(tables_of(*SAMPLE), tmp_path / "r.db") as env:
        (tmp_path / "f").mkdir()
        env.execute_sql(f"""CREATE TABLE f (a BIGINT) WITH
            ('connector' = 'filesystem', 'path' = '{tmp_path / "f"}', 'format' = 'csv')""")
        plan = env.explain_sql("SELECT /*+ LOOKUP('table' = 'f', 'async' = 'true') */ b FROM l "
                               "JOIN f FOR SYSTEM_TIME AS OF l.p ON l.a = f.a")  # fmt: skip
        assert "hint LOOKUP changes nothing: filesystem answers from memory" in plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'async' = 'true'", "needs the option 'table'"),
        ("'table' = 's', 'async' = 'true'", "names 's', which is no table that is looked up"),
        ("'table' = 'r', 'asinc' = 'true'", "has no option 'asinc'(.|\n)*did you mean 'async'"),
        ("'table' = 'r', 'async' = 'perhaps'", "'async' of hint LOOKUP cannot be 'perhaps': it is 'true' or 'false'"),
        ("'table' = 'r', 'async' = 'true', 'capacity' = '0'", "1 or more"),
        ("'table' = 'r', 'capacity' = '5'", "is one of asynchronous lookups"),
        ("'table' = 'r', 'retry-predicate' = 'lookup_miss'", "needs the option 'retry-strategy', too"),
        ("'table' = 'r', 'async' = 'true', 'timeout' = 'x'", "'timeout' of hint LOOKUP cannot be 'x'"),
        ("r", "takes options"),
    ],
)
def test_a_hint_that_means_nothing_is_refused(options, message, tmp_path):
    with environment(tables_of(*SAMPLE), tmp_path / "r.db") as env, pytest.raises(SqlError, match=message):
        env.execute_sql(QUERIES_OF_PLAN.format(f"/*+ LOOKUP({options}) */"))


TABLES = """
    CREATE TABLE src (k BIGINT, v BIGINT, w BIGINT) WITH (
        'connector' = 'datagen', 'rows-per-second' = '20000', 'number-of-rows' = '4000',
        'fields.k.min' = '0', 'fields.k.max' = '9', 'fields.v.min' = '0', 'fields.v.max' = '9999',
        'fields.w.min' = '0', 'fields.w.max' = '9'
    );
    CREATE TABLE r (a BIGINT, d BIGINT) WITH
        ('connector' = 'jdbc', 'url' = 'sqlite:{0}/r.db', 'table-name' = 'r');
    CREATE TABLE out (v BIGINT, w BIGINT, d BIGINT) WITH
        ('connector' = 'filesystem', 'path' = '{0}/out', 'format' = 'csv');
"""
WAITS = (
    "/*+ LOOKUP('table' = 'r', 'async' = 'true', 'capacity' = '2', 'retry-predicate' = 'lookup_miss', "
    "'retry-strategy' = 'fixed_delay', 'fixed-delay' = '10 ms', 'max-attempts' = '100000') */"
)


def program(tmp_path, parallelism, **settings):
    env = TableEnvironment.create(parallelism=parallelism, actor_system="local")
    env.execute_script(TABLES.format(tmp_path))
    for key, value in {"execution.checkpointing.interval": "20 ms", **settings}.items():
        env.execute_sql(f"SET '{key}' = '{value}'")
    return env


def stopped_while_rows_wait(tmp_path):
    """The savepoint of a query whose rows wait for the row of the key 7, which is not there."""
    tables = tables_of([], [(k, 10 * k) for k in range(10) if k != 7])
    database(tmp_path / "r.db", tables)
    with program(tmp_path, 2, **{"execution.checkpointing.dir": str(tmp_path / "checkpoints")}) as env:
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        env.execute_sql(f"SET 'execution.checkpointing.savepoint-dir' = '{tmp_path / 'savepoints'}'")
        env.execute_sql(f"""INSERT INTO out SELECT {WAITS} l.v, l.w, d FROM (SELECT *, PROCTIME() AS p FROM src) AS l
            JOIN r FOR SYSTEM_TIME AS OF l.p ON l.k = r.a WHERE w > 2""")
        client = env._execution.jobs[-1]
        deadline = time.monotonic() + 30
        while client.view().checkpoints_completed < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        return client.stop_with_savepoint()


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    path = tmp_path_factory.mktemp("waiting")
    savepoint = stopped_while_rows_wait(path)
    with sqlite3.connect(path / "r.db") as connection:
        connection.execute("INSERT INTO r VALUES (7, 70)")
    connection.close()
    return path, savepoint


OTHER = """SELECT {} b.one, two, r.d FROM (SELECT w AS two, v AS one, k AS key, PROCTIME() AS now FROM src) AS b
    JOIN r FOR SYSTEM_TIME AS OF b.now ON r.a = b.key WHERE 2 < two"""


def test_rows_that_wait_for_an_answer_are_in_a_savepoint(waiting):
    """The query that goes on is the same in other words, at another parallelism: each row is joined once."""
    path, savepoint = waiting
    with program(path, 3, **{"execution.savepoint.path": savepoint}) as env:
        rows = env.execute_sql(f"EXPLAIN UPGRADE FROM '{savepoint}' INSERT INTO out {OTHER.format(WAITS)}").to_arrow()
        assert [(row["kind"], row["verdict"]) for row in rows.to_pylist()] == [
            ("source", "reuse"), ("lookup", "reuse"), ("sink", "reuse")
        ]  # fmt: skip
        env.execute_sql(f"INSERT INTO out {OTHER.format(WAITS)}")
    with TableEnvironment.create(mode="batch") as env:
        env.execute_script(TABLES.format(path))
        found = multiset(env.execute_sql("SELECT * FROM out").to_arrow())
        expected = env.execute_sql("SELECT v, w, k * 10 AS d FROM src WHERE w > 2").to_arrow()
    assert found == multiset(expected)


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        (OTHER.format(""), "the query has no use for it"),
        (OTHER.format(WAITS).replace("2 < two", "1 < two"), "the query has no use for it"),
        (OTHER.format(WAITS).replace("two, r.d", "two + CHAR_LENGTH(PRINTF('%d', 3 + two + key)), r.d"), None),
    ],
)
def test_rows_that_wait_are_not_lost_unsaid(query, asks, waiting):
    path, savepoint = waiting
    with program(path, 2) as env:
        rows = env.execute_sql(f"EXPLAIN UPGRADE FROM '{savepoint}' INSERT INTO out {query}").to_arrow().to_pylist()
    found = [row for row in rows if row["kind"] == "lookup"]
    assert (asks is None) == (found[0]["verdict"] == "reuse")
    assert asks is None or any(row["verdict"] == "lost" and asks in str(row) for row in found)
