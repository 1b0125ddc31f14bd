"""Tables of SQL that are streams and queues of RabbitMQ, against a real server."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from rabbitmq_server import rabbitmq_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, url, **options):
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "rabbitmq", "url": url, **options}.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


BIDS = "item STRING, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"


@pytest.mark.parametrize("target", ["stream", "queue"])
def test_from_streams_through_a_window(target, rabbitmq_server, tmp_path):  # noqa: F811
    bids = [rabbitmq_server.new_stream() for _ in range(2)]
    sums = rabbitmq_server.new_stream() if target == "stream" else rabbitmq_server.new_queue()
    rows = [{"item": f"i{n % 5}", "price": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    for number, stream in enumerate(bids):
        rabbitmq_server.send(stream, [json.dumps(row) for row in rows[number::2]])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    options = {"stream": ";".join(bids), "format": "json", "scan.bounded.mode": "latest"}
    t.execute_sql(table("bids", BIDS, rabbitmq_server.stream_url, **options))
    url = rabbitmq_server.stream_url if target == "stream" else rabbitmq_server.url
    t.execute_sql(table("sums", "item STRING, w TIMESTAMP(3), total BIGINT", url, **{target: sums, "format": "json"}))
    t.execute_sql("""
        INSERT INTO sums SELECT item, window_start, SUM(price)
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY item, window_start, window_end
    """)
    expected = Counter()
    for row in rows:
        expected[row["item"], int(row["ts"][17:19]) // 10] += row["price"]
    values = rabbitmq_server.streamed(sums) if target == "stream" else rabbitmq_server.left(sums)
    found = [json.loads(value) for value in values]
    assert len(found) == len(expected)
    assert {(row["item"], int(row["w"][17:19]) // 10): row["total"] for row in found} == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "one of the two"),
        ({"stream": "s", "queue": "q"}, "one of the two"),
        ({"stream": "s", "format": "json", "scan.startup.mode": "offset"}, "for the modes of their names"),
        ({"queue": "q", "format": "json", "scan.deduplicate-by": "id"}, "correlation-id"),
        ({"queue": "q", "format": "json", "scan.startup.mode": "first"}, r"scan\.startup\.mode"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", "amqp://localhost", **options))
