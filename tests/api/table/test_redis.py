"""Tables of SQL in Redis, against a real server."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from redis_server import redis_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, server, **options):
    given = ", ".join(
        f"'{key}' = '{value}'" for key, value in {"connector": "redis", "url": server.url, **options}.items()
    )
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


BIDS = "item STRING, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_from_streams_through_a_window_to_a_stream(guarantee, redis_server, tmp_path):  # noqa: F811
    bids, sums = [redis_server.new_key() for _ in range(2)], redis_server.new_key()
    rows = [{"item": f"i{n % 5}", "price": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    for number, stream in enumerate(bids):
        redis_server.add(stream, [json.dumps(row) for row in rows[number::2]])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    options = {"stream": ";".join(bids), "format": "json", "scan.bounded.mode": "latest"}
    t.execute_sql(table("bids", BIDS, redis_server, **options))
    columns = "item STRING, w TIMESTAMP(3), total BIGINT"
    t.execute_sql(
        table("sums", columns, redis_server, stream=sums, format="json", **{"sink.delivery-guarantee": guarantee})
    )
    t.execute_sql("""
        INSERT INTO sums SELECT item, window_start, SUM(price)
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY item, window_start, window_end
    """)
    expected = Counter()
    for row in rows:
        expected[row["item"], int(row["ts"][17:19]) // 10] += row["price"]
    found = [json.loads(value) for value in redis_server.values(sums)]
    assert len(found) == len(expected)
    assert {(row["item"], int(row["w"][17:19]) // 10): row["total"] for row in found} == expected


@pytest.mark.parametrize("kind", ["hash", "string"])
def test_changes_become_rows_by_key(kind, redis_server):  # noqa: F811
    events, prefix = redis_server.new_key(), redis_server.new_key()
    rng = random.Random(5)
    rows = [{"k": f"k{rng.randrange(7)}", "v": rng.randrange(11) - 5} for _ in range(300)]
    redis_server.add(events, [json.dumps(row) for row in rows])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    options = {"stream": events, "format": "json", "scan.bounded.mode": "latest"}
    t.execute_sql(table("events", "k STRING, v BIGINT", redis_server, **options))
    options = {"prefix": f"{prefix}:", "type": kind} | ({"format": "json"} if kind == "string" else {})
    t.execute_sql(table("sums", "k STRING, total BIGINT, PRIMARY KEY (k) NOT ENFORCED", redis_server, **options))
    t.execute_sql("INSERT INTO sums SELECT k, SUM(v) FROM events GROUP BY k HAVING SUM(v) > 0")
    totals = Counter()
    for row in rows:
        totals[row["k"]] += row["v"]
    expected = {key: total for key, total in totals.items() if total > 0}
    with redis_server.connect() as connection:
        keys = list(connection.scan_iter(f"{prefix}:*"))
        read = (lambda key: json.loads(connection.get(key))) if kind == "string" else connection.hgetall
        found = [{str(k): v for k, v in read(key).items()} for key in keys]
    names = ("k", "total") if kind == "string" else ("b'k'", "b'total'")
    texts = {(row[names[0]] if kind == "string" else row[names[0]].decode()): int(row[names[1]]) for row in found}
    assert texts == expected


def test_metadata_are_columns(redis_server):  # noqa: F811
    stream = redis_server.new_key()
    redis_server.add(stream, ["a", "b"])
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    columns = "line STRING, id STRING METADATA VIRTUAL, f STRING METADATA FROM 'stream' VIRTUAL"
    t.execute_sql(table("lines", columns, redis_server, stream=stream, format="raw", **{"scan.bounded.mode": "latest"}))
    rows = [tuple(row.values()) for row in t.execute_sql("SELECT line, id, f FROM lines").to_arrow().to_pylist()]
    with redis_server.connect() as connection:
        expected = [(fields[b"value"].decode(), name.decode(), stream) for name, fields in connection.xrange(stream)]
    assert rows == expected


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("a STRING", {}, "one of the two"),
        ("a STRING", {"stream": "s", "prefix": "p"}, "one of the two"),
        ("a STRING", {"prefix": "p"}, "have a PRIMARY KEY"),
        ("a STRING, PRIMARY KEY (a) NOT ENFORCED", {"stream": "s", "format": "json"}, "have a PRIMARY KEY"),
        ("a STRING", {"stream": "s", "format": "json", "scan.startup.mode": "id"}, "need each other"),
        ("a STRING", {"stream": "s", "format": "jsonn"}, "json"),
        ("a STRING", {"stream": "s", "format": "json", "feild": "x"}, "feild"),
    ],
)
def test_wrong_options_are_refused(columns, options, told):
    class Server:
        url = "redis://localhost"

    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", columns, Server, **options))
