"""Tables of SQL that are collections of MongoDB, against mongo-java-server."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timezone

import pytest
from mongodb_server import mongodb_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, server, place, **options):
    database, _, collection = place.partition(".")
    given = {"connector": "mongodb", "uri": server.uri, "database": database, "collection": collection, **options}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


@pytest.mark.parametrize("options", [{}, {"sink.order-column": "num"}, {"sink.deletion-marker": "gone_at"}])
def test_changes_become_documents(options, mongodb_server):  # noqa: F811
    """Rows are inserted, updated and deleted; the number of events of a key grows with each change."""
    events, sums = mongodb_server.new_name(), mongodb_server.new_name()
    rng = random.Random(5)
    rows = [{"k": f"k{rng.randrange(7)}", "v": rng.randrange(11) - 5} for _ in range(300)]
    mongodb_server.put(events, [{"_id": place, **row} for place, row in enumerate(rows)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("events", "k STRING, v BIGINT", mongodb_server, events, **{"scan.splits": "4"}))
    columns = "k STRING, total BIGINT, num BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("sums", columns, mongodb_server, sums, **options))
    t.execute_sql("INSERT INTO sums SELECT k, SUM(v), COUNT(*) FROM events GROUP BY k HAVING SUM(v) > 0")
    totals, counts = Counter(), Counter()
    for row in rows:
        totals[row["k"]] += row["v"]
        counts[row["k"]] += 1
    expected = {k: {"_id": k, "k": k, "total": n, "num": counts[k]} for k, n in totals.items() if n > 0}
    found = mongodb_server.documents(sums)
    assert {k: row for k, row in found.items() if "gone_at" not in row} == expected


def test_documents_are_filtered_joined_and_looked_up(mongodb_server):  # noqa: F811
    from bson import ObjectId

    items, orders = mongodb_server.new_name(), mongodb_server.new_name()
    ids = [ObjectId() for _ in range(5)]
    mongodb_server.put(items, [{"_id": one, "name": f"item {n}", "shop": n % 2} for n, one in enumerate(ids)])
    mongodb_server.put(orders, [{"_id": n, "item": ids[n % 5], "n": n} for n in range(40)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    options = {"scan.filter": '{"n": {"$lt": {"$numberLong": "30"}}}', "scan.fetch-size": "7"}
    columns = "item STRING, n BIGINT, shop BIGINT, proc AS PROCTIME()"
    t.execute_sql(table("orders", columns, mongodb_server, orders, **options))
    columns = "_id STRING, name STRING, shop BIGINT, PRIMARY KEY (_id) NOT ENFORCED"
    t.execute_sql(table("items", columns, mongodb_server, items, **{"bson-type._id": "objectId"}))
    found = t.execute_sql("""
        SELECT o.n, i.name FROM orders AS o JOIN items FOR SYSTEM_TIME AS OF o.proc AS i ON o.item = i._id
    """).to_arrow().to_pylist()  # fmt: skip
    assert sorted((row["n"], row["name"]) for row in found) == [(n, f"item {n % 5}") for n in range(30)]
    t.execute_sql("INSERT INTO items SELECT item, 'again', n FROM orders WHERE n = 7")
    assert mongodb_server.documents(items)[ids[2]] == {"_id": ids[2], "name": "again", "shop": 7}


@pytest.mark.parametrize("options", [{}, {"scan.filter": '{"v": {"$ne": 3}}'}])
def test_what_is_deleted_and_marked_is_no_row(options, mongodb_server):  # noqa: F811
    """Neither where the collection is read nor where it is looked up."""
    name, events = mongodb_server.new_name(), mongodb_server.new_name()
    mongodb_server.put(events, [{"_id": n, "k": n} for n in range(5)])
    marked = {"gone_at": datetime(2024, 1, 1, tzinfo=timezone.utc)}
    mongodb_server.put(name, [{"_id": n, "k": n, **({"v": n} if n % 2 else marked)} for n in range(5)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    columns = "k BIGINT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("items", columns, mongodb_server, name, **{"sink.deletion-marker": "gone_at", **options}))
    t.execute_sql(table("events", "k BIGINT, proc AS PROCTIME()", mongodb_server, events))
    read = t.execute_sql("SELECT k, v FROM items").to_arrow().to_pylist()
    assert sorted(row["k"] for row in read) == ([1] if options else [1, 3])
    joined = "SELECT e.k, i.v FROM events AS e JOIN items FOR SYSTEM_TIME AS OF e.proc AS i ON e.k = i.k"
    found = t.execute_sql(joined).to_arrow().to_pylist()
    assert sorted((row["k"], row["v"]) for row in found) == [(1, 1), (3, 3)]


KEYED = "a BIGINT, b STRING, PRIMARY KEY (a) NOT ENFORCED"


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (KEYED, {"sink.order-column": "c"}, "no such column"),
        ("a BIGINT", {"sink.order-column": "a"}, "with a PRIMARY KEY"),
        ("a BIGINT", {"sink.deletion-marker": "x"}, "with a PRIMARY KEY"),
        (KEYED, {"failure-handler": "retry"}, "fail, ignore"),
        (KEYED, {"scan.filter": "[]"}, "object of JSON"),
        (KEYED, {"uri": "http://localhost"}, "uri must be"),
        (KEYED, {"sink.delivery-guarantee": "none"}, "at-least-once"),
        (KEYED, {"scan.split": "5"}, r"scan\.splits"),
    ],
)
def test_wrong_options_are_refused(columns, options, told):
    class Server:
        uri = "mongodb://localhost"

    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", columns, Server, "a.b", **options))


def test_passwords_of_uris_are_not_shown():
    class Server:
        uri = "mongodb://me:hidden@localhost"

    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(table("t", KEYED, Server, "a.b"))
    shown = "".join(str(row) for row in t.execute_sql("SHOW CREATE TABLE t").collect())
    assert "hidden" not in shown + t.explain_sql("SELECT * FROM t")
