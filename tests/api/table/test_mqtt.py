"""Tables of SQL that are topics of MQTT, against a real broker."""

from __future__ import annotations

import json

import pytest
from mqtt_server import mqtt_server  # noqa: F401 - a fixture

from headrace.connectors.mqtt import MqttSource, TextMessages
from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, url, **options):
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "mqtt", "url": url, **options}.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


READINGS = (
    "room STRING, degrees BIGINT, ts TIMESTAMP(3), place STRING METADATA FROM 'topic',"
    " WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
)


def test_through_a_window(mqtt_server, tmp_path):  # noqa: F811
    topic, target = mqtt_server.new_topic(), mqtt_server.new_topic()
    rows = [{"room": f"r{n % 5}", "degrees": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    rows.append({"room": "end", "degrees": 0, "ts": "2024-01-01 01:00:00.000"})
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    t.execute_sql("SET 'table.dml-sync' = 'false'")
    options = {"topic": f"{topic}/+", "format": "json", "client-id": topic, "scan.receive-maximum": 1_000}
    t.execute_sql(table("readings", READINGS, mqtt_server.url, **options))
    options = {"topic": f"{target}/{{room}}", "format": "json", "sink.qos": 2, "sink.properties.from": "place"}
    columns = "room STRING, w TIMESTAMP(3), place STRING, total BIGINT"
    t.execute_sql(table("sums", columns, mqtt_server.url, **options))
    mqtt_server.begin(MqttSource(mqtt_server.url, f"{topic}/+", value=TextMessages(), client_id=topic))
    listener = mqtt_server.listen(f"{target}/#")
    result = t.execute_sql("""
        INSERT INTO sums SELECT room, window_start, MIN(place), SUM(degrees)
        FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY room, window_start, window_end
    """)
    expected = {}
    for row in rows[:-1]:
        key = row["room"], int(row["ts"][17:19]) // 10
        expected[key] = expected.get(key, 0) + row["degrees"]
    mqtt_server.send(f"{topic}/x", [json.dumps(row) for row in rows])
    bodies = [json.loads(body) for body in listener.wait_for(len(expected))]
    result.get_job_client().cancel()
    assert {(row["room"], int(row["w"][17:19]) // 10): row["total"] for row in bodies} == expected
    assert {message.topic for message in listener.messages} == {f"{target}/r{n}" for n in range(5)}
    assert {tuple(message.properties.UserProperty) for message in listener.messages} == {(("from", f"{topic}/x"),)}
    listener.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs option 'topic'"),
        ({"topic": "a/#/b", "format": "json", "client-id": "c"}, "a topic filter has levels"),
        ({"topic": "t", "format": "json"}, "needs option 'client-id'"),
        ({"topic": "t", "format": "json", "scan.on-session-lost": "ignore"}, "fail, warn"),
        ({"topic": "t", "format": "json", "scan.startup.mode": "first"}, r"scan\.startup\.mode"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", "mqtt://localhost", **options))
        t.execute_sql("SELECT * FROM t").print()
