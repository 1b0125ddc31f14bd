"""MQTT as a sink against a real broker: what is confirmed is there, topics, properties, errors.

Risks and families: lost messages (brokers that die before and behind a barrier, more under way than a broker takes);
wrong topics and bytes (oracle: a client of its own); bad input (errors by name).
"""

from __future__ import annotations

import json

import pytest
from mqtt_server import MqttServer, mqtt_server, program  # noqa: F401 - a fixture
from server_process import need_client

from headrace.connectors.mqtt import JsonMessages, MqttSink, TextMessages
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkHistory, WriterContext
from headrace.engine.errors import ConfigurationError, HeadraceError, SinkError
from headrace.engine.kernel.metrics import MetricGroup
from headrace.testing.sinks.harness import SinkTestHarness


def written(sink, rows, checkpoint_id=1):
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(Batch.of_rows(rows))
    harness.checkpoint(checkpoint_id)
    return harness


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_are_there_when_the_barrier_has_passed(qos, mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    listener = mqtt_server.listen(topic)
    harness = written(MqttSink(mqtt_server.url, topic, value=JsonMessages(), qos=qos), [{"n": n} for n in range(6_000)])
    mqtt_server.end()
    mqtt_server.start()
    # A broker that begins anew may deliver again what subscribers have not acknowledged.
    mqtt_server.wait_until(lambda: len(set(listener.bodies)) == 6_000)
    assert [json.loads(body)["n"] for body in dict.fromkeys(listener.bodies)] == list(range(6_000))
    assert {message.qos for message in listener.messages} == {qos}
    with pytest.raises(SinkError, match="does not take messages"):  # of a broker that was away meanwhile
        harness.write(Batch.of_rows([{"n": 1}]))
        harness.checkpoint(2)
    harness.close()
    listener.close()


def test_topics_and_properties_are_made_of_records(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    listener = mqtt_server.listen(f"{topic}/#")
    rows = [{"id": 1, "room": "a"}, {"id": 2, "room": "b"}, {"id": None, "room": "c"}]
    sink = MqttSink(mqtt_server.url, f"{topic}/{{room}}", value=JsonMessages(), retain=True, properties={"key": "id"})
    written(sink, rows).close()
    sink = MqttSink(mqtt_server.url, lambda row: f"{topic}/of/{row['room']}", value=JsonMessages())
    written(sink, rows).close()
    listener.wait_for(6)
    assert [message.topic for message in listener.messages] == [
        f"{topic}/{way}{r}" for way in ("", "of/") for r in "abc"
    ]
    properties = [getattr(message.properties, "UserProperty", []) for message in listener.messages]
    assert properties == [[("key", "1")], [("key", "2")], [], [], [], []]
    listener.close()
    later = mqtt_server.listen(f"{topic}/#")
    later.wait_for(3)
    assert sorted((message.topic, message.retain) for message in later.messages) == [
        (f"{topic}/{room}", True) for room in "abc"
    ]
    later.close()


def test_what_cannot_be_sent_is_an_error(mqtt_server, tmp_path):  # noqa: F811
    def told(topic, row, url=mqtt_server.url, **arguments):
        harness = SinkTestHarness(MqttSink(url, topic, value=JsonMessages(), **arguments))
        harness.start()
        with pytest.raises(HeadraceError) as refused:
            harness.write(Batch.of_rows([row]))
            harness.checkpoint(1)
        harness.close()
        return str(refused.value)

    assert "no field 'room'" in told("t/{room}", {"id": 1})
    assert "cannot be 'a/b'" in told("t/{room}", {"room": "a/b"})
    assert "cannot be None" in told("t/{room}", {"room": None, "n": 1})
    assert "without + and #" in told("t/{room}", {"room": "#"})
    assert "without + and #" in told(lambda row: "", {"room": "#"})
    assert "no field 'id'" in told("t", {"room": 1}, properties={"key": "id"})
    assert "cannot be reached" in told("t", {"n": 1}, url="mqtt://127.0.0.1:1")
    small = MqttServer(program(), tmp_path, max_packet_size=200, max_qos=1, retain_available="false")
    small.start()
    try:
        assert "bytes, and the broker takes 200" in told("t", {"n": "x" * 200}, url=small.url)
        assert "up to QoS 1 only" in told("t", {"n": 1}, url=small.url, qos=2)
        assert "retains no messages" in told("t", {"n": 1}, url=small.url, retain=True)
    finally:
        small.stop()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_broker_refuses_is_an_error(qos, tmp_path):
    need_client("paho", "paho-mqtt")
    (tmp_path / "allowed").write_text("topic readwrite allowed/#\n")
    server = MqttServer(program(), tmp_path, acl_file=tmp_path / "allowed")
    server.start()
    try:
        written(MqttSink(server.url, "allowed/x", value=JsonMessages(), qos=qos), [{"n": 1}]).close()
        harness = SinkTestHarness(MqttSink(server.url, "forbidden", value=JsonMessages(), qos=qos))
        harness.start()
        with pytest.raises(SinkError, match="refused a message: Not authorized"):
            harness.write(Batch.of_rows([{"n": 1}]))
            harness.checkpoint(1)
        harness.close()
    finally:
        server.stop()


def test_what_nobody_subscribes_to_is_counted(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    writer = MqttSink(mqtt_server.url, topic, value=TextMessages()).create_writer()
    metrics = MetricGroup()
    history = SinkHistory("a", "b")
    writer.open(WriterContext("job", "sink", "sink", 0, 1, "1.1", lambda: 0, metrics, print, print, True, history))
    writer.write(Batch.of_rows(["x", "y"]))
    assert writer.prepare(1) == []
    assert metrics.counters["num_without_subscribers"] == 2
    writer.close()


def test_wrong_arguments_are_refused():
    def told(topic, **arguments):
        with pytest.raises(ConfigurationError) as refused:
            MqttSink("mqtt://localhost", topic, **{"value": TextMessages(), **arguments})
        return str(refused.value)

    for topic in ("", "a/#", "a/+", "{", "{a.b}", "{a!r}", "{0}", 7):
        assert "fields in braces" in told(topic)
    assert "1 or 2" in told("t", qos=0)
    assert "a format of messages" in told("t", value=None)
