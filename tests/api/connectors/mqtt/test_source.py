"""MQTT as a source against a real broker: what is read and acknowledged, sessions that are lost, errors.

Risks and families: lost, left and doubled messages (jobs that fail, restored at another parallelism, connections and
brokers that die, against what was sent); loss that nobody is told of (sessions that are gone, queues that are full);
bad input (errors by name).
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from failing_functions import FailsAtFirst, some
from mqtt_server import MqttServer, mqtt_server, program  # noqa: F401 - a fixture
from reading_kit import Reading

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.connectors.mqtt import JsonMessages, MqttSink, MqttSource, TextMessages, Tls, client
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject


def source_of(server, topics, **arguments):
    given = {
        "value": TextMessages(),
        "client_id": f"of-{topics if isinstance(topics, str) else topics[0]}",
        **arguments,
    }
    return MqttSource(server.url, topics, **given)


def until_subscribed(reading):
    while any(split.position is None for split in reading.reader.snapshot()):
        assert reading.poll() == []


# ---------------------------------------------------------------------------------------------------------------- jobs
@pytest.mark.parametrize("ids", [True, False], ids=["exactly once by ids", "at least once"])
def test_jobs_lose_nothing_through_failures_and_rescales(ids, mqtt_server, tmp_path):  # noqa: F811
    topics, target = [mqtt_server.new_topic() for _ in range(3)], mqtt_server.new_topic()
    source = source_of(mqtt_server, [f"{topic}/#" for topic in topics], deduplicate_by="id" if ids else None)
    mqtt_server.begin(source)
    listener = mqtt_server.listen(target)
    path, sent = None, 0
    for parallelism in (2, 3, 1):
        for topic in topics:
            mqtt_server.send(f"{topic}/x", [str(sent + n) for n in range(100)], first=sent, qos=1 + sent // 100 % 2)
            sent += 100
        if parallelism == 3:
            mqtt_server.end()  # with all that was sent in it
            mqtt_server.start()
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            stream = stream.map(FailsAtFirst(tmp_path, some(4, of=900))).uid("map").rebalance()
            stream.map(lambda text: {"n": int(text)}).sink_to(FileSink.json_lines(tmp_path / "out")).uid("files")
            stream.sink_to(MqttSink(mqtt_server.url, target, value=TextMessages(), qos=2)).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            while len(set(listener.bodies)) < sent:
                assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert len(list(tmp_path.glob("failed-*"))) == 4
    listener.close()
    assert set(map(int, listener.bodies)) == set(range(sent))
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    written = Counter(json.loads(line)["n"] for line in lines)
    assert written == Counter(range(sent)) if ids else set(written) == set(range(sent))
    assert left(source) == []


def left(source):
    """What the broker still keeps for a source."""
    reading = Reading(source)
    until_subscribed(reading)
    rows = [row for _ in range(50) for row in reading.poll()]
    reading.reader.close()
    return rows


# --------------------------------------------------------------------------------------------------------- by a reader
class EndedInOrder:
    """A broker that writes its sessions down before it goes."""

    def __init__(self, server):
        self.stop, self.start, self.pause, self.resume = server.end, server.start, server.pause, server.resume


@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, mqtt_server):  # noqa: F811
    topics = [mqtt_server.new_topic() for _ in range(3)]
    source = source_of(mqtt_server, topics, deduplicate_by="id")
    mqtt_server.begin(source)

    def send(numbers):
        for place, topic in enumerate(topics):
            some = numbers[len(numbers) * place // 3 : len(numbers) * (place + 1) // 3]
            mqtt_server.send(topic, [str(number) for number in some], first=some[0] if some else 0)

    def num_left():
        for place, topic in enumerate(topics):
            mqtt_server.send(topic, ["behind"], first=1_000_000 + place)  # a session keeps its order
        reading, rows = Reading(source), []
        while rows.count("behind") < len(topics):
            rows += reading.poll()
        reading.reader.close()
        return len(rows) - len(topics)

    server = EndedInOrder(mqtt_server)
    check(AcknowledgingSubject(source, number=int, send=send, num_left=num_left, server=server))


def test_a_session_that_is_lost_is_an_error_each_time_or_counted(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    source = source_of(mqtt_server, topic)
    reading = Reading(source)
    until_subscribed(reading)
    mqtt_server.send(topic, ["0"])
    assert reading.rows(1) == ["0"]
    splits = reading.checkpoint(1)
    mqtt_server.kill()  # which had written nothing down
    mqtt_server.start()
    with pytest.raises(SourceError, match=r"no session.*are lost"):
        reading.rows(1)
    reading.reader.close()
    for _ in range(2):  # an attempt that fails leaves nothing that would let the next one go on
        reading = Reading(source, splits)
        with pytest.raises(SourceError, match="no session"):
            reading.rows(1)
        reading.reader.close()
    lenient = Reading(source_of(mqtt_server, topic, on_session_lost="warn"), splits)
    while not lenient.warnings:
        assert lenient.poll() == []
    assert "no session" in lenient.warnings[0]
    assert lenient.metrics.counters["num_sessions_lost"] == 1
    mqtt_server.send(topic, ["1"])
    assert lenient.rows(1) == ["1"]
    lenient.checkpoint(2)
    lenient.reader.close()


def test_a_session_is_asked_for_only_once_there_was_one(mqtt_server):  # noqa: F811
    source = source_of(mqtt_server, mqtt_server.new_topic())
    reading = Reading(source)
    splits = reading.reader.snapshot_for(1)  # the broker has not answered yet
    reading.reader.close()
    assert [split.position for split in splits] == [None]
    second = Reading(source, splits)
    until_subscribed(second)
    assert [split.position for split in second.checkpoint(2)] == [[]]
    second.reader.close()


def test_delivery_stops_at_the_receive_maximum_and_goes_on_behind_it(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    source = source_of(mqtt_server, topic, receive_maximum=10)
    mqtt_server.begin(source)
    mqtt_server.send(topic, [str(number) for number in range(25)])
    reading = Reading(source)
    assert len(reading.rows(10)) == 10
    while not reading.warnings:
        assert reading.poll() == []
    assert "no more than 10 messages" in reading.warnings[0]
    found = []
    for checkpoint_id in range(1, 1_000_000):
        reading.checkpoint(checkpoint_id)
        found += reading.poll()
        if len(found) == 15:
            break
    assert sorted(map(int, found)) == list(range(10, 25))
    reading.reader.close()


def test_sessions_share_a_filter(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    source = source_of(mqtt_server, f"$share/group/{topic}/+", consumers=3)
    splits = source.create_enumerator(EnumeratorContext(2)).discover().splits
    readings = [Reading(source, [split]) for split in splits]
    for reading in readings:
        until_subscribed(reading)
    mqtt_server.send(f"{topic}/x", [str(number) for number in range(300)])
    found, by_reading = Counter(), Counter()
    while found.total() < 300:
        for number, reading in enumerate(readings):
            rows = reading.poll()
            found.update(rows)
            by_reading[number] += len(rows)
    assert found == Counter(map(str, range(300)))
    assert all(by_reading[number] for number in range(3))
    for reading in readings:
        reading.checkpoint(1)
        reading.reader.close()
    assert left(source) == []


def test_without_checkpoints_messages_are_acknowledged_as_they_go(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    source = source_of(mqtt_server, topic)
    mqtt_server.begin(source)
    mqtt_server.send(topic, ["0", "1"])
    reading = Reading(source, checkpointing=False)
    assert reading.rows(2) == ["0", "1"]
    assert reading.poll() == []
    reading.reader.close()
    assert left(source) == []


def test_two_that_end_each_others_connections_are_told(mqtt_server):  # noqa: F811
    source = source_of(mqtt_server, mqtt_server.new_topic())
    readings = [Reading(source), Reading(source)]
    with pytest.raises(SourceError, match="client id"):
        while True:
            for reading in readings:
                reading.poll()
    for reading in readings:
        reading.reader.close()


def test_what_mqtt_says_of_messages(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    mqtt_server.send(f"{topic}/kept", ['{"n": 1}'], first=7, retain=True)
    metadata = {"topic": "topic", "qos": "qos", "is_old": "retained", "said": "user_properties"}
    source = source_of(
        mqtt_server, f"{topic}/#", value=JsonMessages({"n": "int64"}), metadata=metadata, on_error="dead-letter"
    )
    reading = Reading(source)
    kept = {"n": 1, "topic": f"{topic}/kept", "qos": 1, "is_old": True, "said": [{"name": "id", "value": "7"}]}
    assert reading.rows(1) == [kept]
    mqtt_server.send(f"{topic}/new", ['{"n": 2}', "{"], qos=2)
    assert reading.rows(1) == [{"n": 2, "topic": f"{topic}/new", "qos": 1, "is_old": False, "said": []}]
    while not reading.letters:
        assert reading.poll() == []
    (letter,) = reading.letters
    assert (letter["raw"], letter["split"]) == ("{", f"{topic}/#")
    assert letter["position"].startswith(f"topic '{topic}/new', packet ")
    mqtt_server.send(f"{topic}/fleeting", ['{"n": 3}'], qos=0)
    assert [row["qos"] for row in reading.rows(1)] == [0]
    assert reading.metrics.counters["num_without_acknowledgement"] == 1
    assert "at most once" in reading.warnings[0]
    reading.checkpoint(1)
    reading.reader.close()
    assert left(source) == []  # nor the retained one, as the session is not new
    other = Reading(source_of(mqtt_server, f"{topic}/#", client_id="other", retained=False))
    until_subscribed(other)
    assert [other.poll() for _ in range(50)] == [[]] * 50
    other.reader.close()


def test_what_a_broker_drops_is_said(mqtt_server, tmp_path):  # noqa: F811
    server = MqttServer(program(), tmp_path, max_queued_messages=5)
    server.start()
    try:
        source = source_of(server, "t", receive_maximum=1, drops_topic="$SYS/broker/publish/messages/dropped")
        reading = Reading(source)
        until_subscribed(reading)
        server.send("t", [str(number) for number in range(50)])
        found = reading.rows(1)
        while not any("dropped messages" in warning for warning in reading.warnings):
            assert reading.poll() == []
        assert reading.metrics.counters["num_dropped_by_broker"] == 50 - 5 - len(found)
        reading.reader.close()
    finally:
        server.stop()


def test_what_cannot_be_read_is_an_error_by_name(mqtt_server):  # noqa: F811
    topic = mqtt_server.new_topic()
    reading = Reading(source_of(mqtt_server, topic, deduplicate_by="id"))
    until_subscribed(reading)
    mqtt_server.send(topic, ["x"])
    with pytest.raises(SourceError, match=rf"no user property 'id'.*{topic}.*packet 1"):
        reading.rows(1)
    reading.reader.close()
    away = Reading(MqttSource("mqtt://me:hidden@127.0.0.1:1", topic, value=TextMessages(), client_id="c", patience=0))
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:1 cannot be reached") as told:
        away.rows(1)
    assert "hidden" not in str(told.value)
    away.reader.close()


def test_wrong_arguments_are_refused():
    def told(**arguments):
        given = {"url": "mqtt://localhost", "topics": "t", "value": TextMessages(), "client_id": "c", **arguments}
        with pytest.raises(ConfigurationError) as refused:
            MqttSource(**given)
        return str(refused.value)

    assert "each once" in told(topics=["a", "a"])
    assert "each once" in told(topics="")
    for topic in ("a/#/b", "a+", "a#", "$share/g", "$share//t", "a\0"):
        assert "a topic filter has levels" in told(topics=topic)
    assert "must be mqtt://" in told(url="http://localhost")
    assert "for mqtts://" in told(tls=Tls())
    assert "filters of $share" in told(consumers=2)
    assert "without $share" in told(topics="$share/g/t", deduplicate_by="id")
    assert "from 1 to 65535" in told(receive_maximum=0)
    assert "fail or warn" in told(on_session_lost="x")
    assert "120 s at least" in told(remember="1 min")
    assert "a second at least" in told(session_expiry=10)
    assert "client_id is a text" in told(client_id="")


def test_who_reads_nothing_for_long_stays_connected(mqtt_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(client, "KEEPALIVE_S", 1)
    bodies = []
    connection = client.Connection(
        client.Broker.of(mqtt_server.url, None),
        client.Asked("patient", True, 100),
        lambda one: bodies.append(one.payload),
    )
    topic = mqtt_server.new_topic()
    connection.subscribe(topic, 1, 1)
    mqtt_server.send(topic, ["x"])
    until = time.monotonic() + 3  # a client that waits for an answer gives up after two
    mqtt_server.wait_until(lambda: connection.stay_alive() or time.monotonic() > until)
    assert not bodies
    while not bodies:
        connection.pump(0.1)
    connection.close()
