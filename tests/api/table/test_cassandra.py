"""Tables of SQL in Cassandra, against a real server."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from cassandra_server import cassandra_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, target, host, **options):
    keyspace, _, table_name = target.partition(".")
    given = {"connector": "cassandra", "hosts": host, "keyspace": keyspace, "table-name": table_name, **options}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


@pytest.mark.parametrize("options", [{}, {"sink.order-column": "num"}])
def test_changes_become_rows(options, cassandra_server):  # noqa: F811
    """Rows are inserted, updated and deleted; the number of events of a key grows with each change."""
    events = cassandra_server.new_table("n int PRIMARY KEY, k text, v bigint")
    sums = cassandra_server.new_table("k text PRIMARY KEY, total bigint, num bigint")
    rng = random.Random(5)
    rows = [(n, f"k{rng.randrange(7)}", rng.randrange(11) - 5) for n in range(300)]
    for row in rows:
        cassandra_server.ask(f"INSERT INTO {events} (n, k, v) VALUES (%s, %s, %s)", row)
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("events", "k STRING, v BIGINT", events, cassandra_server.host))
    columns = "k STRING, total BIGINT, num BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("sums", columns, sums, cassandra_server.host, **options))
    t.execute_sql("INSERT INTO sums SELECT k, SUM(v), COUNT(*) FROM events GROUP BY k HAVING SUM(v) > 0")
    totals, counts = Counter(), Counter()
    for _, k, v in rows:
        totals[k] += v
        counts[k] += 1
    expected = {(k, total, counts[k]) for k, total in totals.items() if total > 0}
    assert set(cassandra_server.ask(f"SELECT k, total, num FROM {sums}")) == expected


def test_values_of_sql_are_written_and_read(cassandra_server):  # noqa: F811
    target = cassandra_server.new_table(
        "a bigint, b text, d decimal, t timestamp, l frozen<list<int>>, m map<text, int>, PRIMARY KEY (a, b)"
    )
    columns = """a BIGINT, b STRING, d DECIMAL(10, 2), t TIMESTAMP(3), l ARRAY<INT>, m MAP<STRING, INT>,
        PRIMARY KEY (a, b) NOT ENFORCED"""
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("t", columns, target, cassandra_server.host, **{"scan.splits": "3", "scan.fetch-size": "2"}))
    t.execute_sql("""INSERT INTO t VALUES
        (1, 'x', 1.50, TIMESTAMP '2024-01-01 00:00:00.001', ARRAY[3, 1], MAP['p', 1]),
        (1, 'y', CAST(NULL AS DECIMAL(10, 2)), TIMESTAMP '1969-12-31 23:59:59', ARRAY[1], MAP['q', 2])""")
    at = datetime(2024, 1, 1, 0, 0, 0, 1_000, timezone.utc).replace(tzinfo=None)
    found = t.execute_sql("SELECT b, d, t, l, m FROM t").to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["b"])[0] == {
        "b": "x", "d": Decimal("1.50"), "t": at, "l": [3, 1], "m": [("p", 1)],
    }  # fmt: skip
    assert [row["d"] for row in found if row["b"] == "y"] == [None]
    assert t.execute_sql("SELECT COUNT(*) AS n FROM t").to_arrow().to_pylist()[-1] == {"n": 2}


@pytest.mark.parametrize("cache", ["NONE", "PARTIAL"])
def test_rows_are_looked_up_by_key(cache, cassandra_server):  # noqa: F811
    items = cassandra_server.new_table("shop text, id int, name text, PRIMARY KEY (shop, id)")
    for number in range(20):
        cassandra_server.ask(f"INSERT INTO {items} (shop, id, name) VALUES ('s{number % 2}', {number}, 'n{number}')")
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(
        table("items", "shop STRING, id INT, name STRING", items, cassandra_server.host, **{"lookup.cache": cache})
    )
    wanted = ", ".join(f"('s{n % 2}', {n})" for n in range(0, 40, 3))
    t.execute_sql(f"CREATE TEMPORARY VIEW v (shop, id) AS VALUES {wanted}")
    t.execute_sql("CREATE TEMPORARY VIEW wanted AS SELECT shop, id, PROCTIME() AS at FROM v")
    found = t.execute_sql(
        "SELECT w.id, i.name FROM wanted AS w LEFT JOIN items FOR SYSTEM_TIME AS OF w.at AS i"
        " ON w.shop = i.shop AND w.id = i.id"
    )
    rows = {row["id"]: row["name"] for row in found.to_arrow().to_pylist()}
    assert rows == {n: f"n{n}" if n < 20 else None for n in range(0, 40, 3)}
    with pytest.raises(HeadraceError, match="partition key: shop is missing"):
        t.execute_sql(
            "SELECT w.id, i.name FROM wanted AS w JOIN items FOR SYSTEM_TIME AS OF w.at AS i ON w.id = i.id"
        ).to_arrow()


KEYED = "a BIGINT, b STRING, PRIMARY KEY (a) NOT ENFORCED"


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (KEYED, {"hosts": "http://x"}, "hosts are names"),
        (KEYED, {"sink.order-column": "c"}, "no such column"),
        (KEYED, {"sink.order-column": "b"}, "whole number or a time"),
        ("a BIGINT", {"sink.order-column": "a"}, "with a PRIMARY KEY"),
        (KEYED, {"failure-handler": "retry"}, "fail, ignore"),
        (KEYED, {"consistency": "local_quorm"}, "LOCAL_QUORUM"),
        (KEYED, {"lookup.max-retries": "-1"}, "at least 0"),
        (KEYED, {"scan.split": "5"}, "scan.splits"),
    ],
)
def test_wrong_options_are_refused(columns, options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", columns, "k.t", "localhost", **options))


def test_a_table_without_a_key_is_not_written():
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(table("t", "a BIGINT", "k.t", "localhost"))
    with pytest.raises(HeadraceError, match="needs a PRIMARY KEY"):
        t.execute_sql("INSERT INTO t VALUES (1)")
