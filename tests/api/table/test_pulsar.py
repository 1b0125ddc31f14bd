"""Tables of SQL that are topics of Pulsar, against a real broker."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pulsar_server import pulsar_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment

COLUMNS = "item STRING, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"


def table(name, columns, url, **options):
    options = {"connector": "pulsar", "service-url": url, **options}
    given = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


def environment(tmp_path):
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    return t


def test_from_topics_through_a_window_by_key(pulsar_server, tmp_path):  # noqa: F811
    bids, sums = [pulsar_server.new_topic(2) for _ in range(2)], pulsar_server.new_topic(3)
    rows = [{"item": f"i{n % 5}", "price": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    for number, topic in enumerate(bids):
        pulsar_server.send(f"{topic}-partition-{number}", [json.dumps(row) for row in rows[number::2]])
    t = environment(tmp_path)
    options = {"topics": ";".join(bids), "format": "json", "source.stop.at-message-id": "latest"}
    t.execute_sql(table("bids", COLUMNS, pulsar_server.url, **options))
    options = {"topics": sums, "format": "json", "key.fields": "item"}
    t.execute_sql(table("sums", "item STRING, w TIMESTAMP(3), total BIGINT", pulsar_server.url, **options))
    t.execute_sql("""
        INSERT INTO sums SELECT item, window_start, SUM(price)
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY item, window_start, window_end
    """)
    expected = Counter()
    for row in rows:
        expected[row["item"], int(row["ts"][17:19]) // 10] += row["price"]
    messages = pulsar_server.messages(sums)
    found = [json.loads(one.data()) for one in messages]
    assert len(found) == len(expected)
    assert {(row["item"], int(row["w"][17:19]) // 10): row["total"] for row in found} == expected
    assert [one.partition_key() for one in messages] == [row["item"] for row in found]


def test_what_pulsar_says_of_a_message_is_a_column(pulsar_server, tmp_path):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, ['{"n": 1}', "{", '{"n": 2}'], partition_key="k")
    t = environment(tmp_path)
    options = {"topics": topic, "format": "json", "source.stop.at-message-id": "latest"}
    options |= {"json.ignore-parse-errors": "true", "source.start.publish-time": "1"}
    t.execute_sql(table("numbers", "n BIGINT, `key` STRING METADATA", pulsar_server.url, **options))
    rows = t.execute_sql("SELECT n, `key` FROM numbers").collect()
    assert sorted(tuple(row)[-2:] for row in rows) == [(1, "k"), (2, "k")]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "json"}, "topics"),
        ({"topics": "t", "format": "json", "key.fields": "b"}, "which the table has not"),
        ({"topics": "t", "format": "json", "source.start.message-id": "first"}, "earliest"),
        (
            {"topics": "t", "format": "json", "source.start.message-id": "latest", "source.start.publish-time": "7"},
            "exclude each other",
        ),
        ({"topics": "t", "format": "json", "source.end": "latest"}, r"source\.end"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", "pulsar://localhost:6650", **options))


def test_rows_go_into_one_topic():
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(table("t", "a STRING", "pulsar://localhost:6650", topics="a;b", format="json"))
    with pytest.raises(HeadraceError, match="into one topic"):
        t.execute_sql("INSERT INTO t SELECT 'x'")
