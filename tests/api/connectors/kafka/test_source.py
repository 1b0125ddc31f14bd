"""A source of Kafka against a real broker: what is read, from where to where, by whom, and what is said when it cannot.

Risks and families: lost and doubled records (jobs that fail at random, restored at another parallelism, against what
was produced); offsets and event times (oracle: the broker's own); bad input (errors by name).
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from operator import itemgetter

import pytest
from failing_functions import FailsAtFirst, some
from kafka_server import kafka_server  # noqa: F401 - a fixture
from reading_kit import Reading

from headrace import (
    RestartStrategies,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from headrace.connectors.kafka import (
    BytesMessages,
    CsvMessages,
    JsonMessages,
    KafkaOffsets,
    KafkaSink,
    KafkaSource,
    TextMessages,
)
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import ConfigurationError, HeadraceError, JobFailedError, SourceError
from headrace.testing import SourceTestHarness

LATEST = KafkaOffsets.latest()


def read(source, strategy=None, parallelism=1, tag=None):
    """All records of a bounded source."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        stream = env.from_source(source, strategy or WatermarkStrategy.no_watermarks(), "topic")
        with (stream if tag is None else stream.get_side_output(tag)).execute_and_collect() as rows:
            return list(rows)


def numbers(first, last):
    return [json.dumps({"n": number, "text": f"t{number}"}) for number in range(first, last)]


def test_records_of_all_partitions_come_once_with_what_kafka_says_of_them(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic(3)
    for partition in range(3):
        values = numbers(100 * partition, 100 * partition + 40)
        kafka_server.produce(topic, values, partition=partition, key=b"k", timestamp=5_000 + partition)
    source = KafkaSource(
        kafka_server.address,
        topic,
        value=JsonMessages({"n": "int64", "text": "string"}),
        stop=LATEST,
        metadata={"key": "key", "at": "offset", "of": "partition", "time": "timestamp", "from": "topic"},
    )
    rows = read(source, parallelism=2)
    assert sorted(row["n"] for row in rows) == [100 * p + n for p in range(3) for n in range(40)]
    for row in rows:
        assert (row["of"], row["at"]) == divmod(row["n"], 100)
        assert (row["text"], row["key"], row["from"]) == (f"t{row['n']}", b"k", topic)
        assert int(row["time"].timestamp() * 1_000) == 5_000 + row["of"]


@pytest.mark.parametrize(
    ("value", "message", "expected"),
    [
        (JsonMessages(), b'{"a":\n [1, "x"]}', {"a": [1, "x"]}),
        (CsvMessages({"a": "int64", "b": "string"}), b'1,"x,y"', {"a": 1, "b": "x,y"}),
        (TextMessages(), "ä".encode(), "ä"),
        (TextMessages("latin-1", column="text"), "ä".encode("latin-1"), {"text": "ä"}),
        (BytesMessages(), b"\xff\n", b"\xff\n"),
    ],
    ids=["json", "csv", "text", "column", "bytes"],
)
def test_values_have_the_format_that_is_said(value, message, expected, kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    kafka_server.produce(topic, [message])
    assert read(KafkaSource(kafka_server.address, topic, value=value, stop=LATEST)) == [expected]


def test_reading_begins_and_ends_where_it_is_told(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    for n in range(10):
        kafka_server.produce(topic, [str(n)], timestamp=1_000 * n + 1)
    for start, stop, expected in [
        (KafkaOffsets.earliest(), LATEST, range(10)),
        (KafkaOffsets.timestamp(4_500), LATEST, range(5, 10)),
        (KafkaOffsets.timestamp(99_000), LATEST, range(0)),
        (KafkaOffsets.of({(topic, 0): 2}), KafkaOffsets.of({(topic, 0): 6}), range(2, 6)),
        (KafkaOffsets.committed("earliest"), KafkaOffsets.timestamp(3_000), range(3)),
    ]:
        source = KafkaSource(
            kafka_server.address, topic, value=TextMessages(), start=start, stop=stop, group_id=f"group-of-{topic}"
        )
        assert read(source) == [str(n) for n in expected], start


def test_aborted_and_open_transactions_are_not_read_and_their_ends_end_a_bounded_source(kafka_server):  # noqa: F811
    """The last offsets of the partition are ends of transactions, which are no records."""
    from confluent_kafka import Producer

    topic = kafka_server.create_topic()
    producer = Producer({"bootstrap.servers": kafka_server.address, "transactional.id": topic})
    producer.init_transactions(30)
    for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction] * 3):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        producer.flush(30)
        ends(30)
    source = KafkaSource(kafka_server.address, topic, value=TextMessages(), stop=LATEST)
    assert read(source) == ["0", "2", "4"]
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(30)
    assert read(KafkaSource(kafka_server.address, topic, value=TextMessages(), stop=LATEST)) == ["0", "2", "4"]
    producer.abort_transaction(30)


def test_event_times_are_kafkas_and_each_partition_has_a_watermark_of_its_own(kafka_server):  # noqa: F811
    """One partition is far ahead of the others: nothing is late for that, though what is ahead may be read first."""
    topic = kafka_server.create_topic(3)
    for n in range(50):
        for partition, start in enumerate([9_000_000, 1_000_000, 5_000_000]):
            kafka_server.produce(topic, ["a"] * 40, partition=partition, timestamp=start + n * 100)
    source = KafkaSource(kafka_server.address, topic, value=TextMessages(), stop=LATEST)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "topic")
        windows = stream.key_by(lambda text: text).window(TumblingEventTimeWindows.of("1 s")).aggregate(n=count())
        with windows.map(lambda row: row["n"]).execute_and_collect() as rows:
            assert Counter(rows) == {400: 15}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_topic_to_topic_through_failures_is_exactly_once(parallelism, kafka_server, tmp_path):  # noqa: F811
    source_topic, sink_topic = kafka_server.create_topic(4), kafka_server.create_topic(2)
    for partition in range(4):
        kafka_server.produce(source_topic, numbers(partition * 750, partition * 750 + 750), partition=partition)
    value = JsonMessages({"n": "int64", "text": "string"})
    sink = KafkaSink.exactly_once(
        kafka_server.address, sink_topic, value=value, key="n", transactional_id_prefix=sink_topic
    )
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.enable_checkpointing(50, directory=str(tmp_path / "checkpoints"))
        # Whether there is a checkpoint between two failures is a matter of time.
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        source = KafkaSource(kafka_server.address, source_topic, value=value, stop=LATEST, group_id=source_topic)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "topic")
        stream.map(FailsAtFirst(tmp_path, some(4, of=3_000), itemgetter("n"))).sink_to(sink)
        result = env.execute("topic to topic")
    assert result.num_restarts >= 1
    found = kafka_server.committed(sink_topic)
    assert Counter(int(message.key()) for message in found) == Counter(range(3_000))
    assert all(json.loads(message.value())["text"] == f"t{int(message.key())}" for message in found)


def test_bad_records_are_told_with_partition_and_offset(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    kafka_server.produce(topic, ['{"n": 1}', "nonsense", '{"n": 3}'])
    value = JsonMessages({"n": "int64"})
    with pytest.raises(JobFailedError) as failed:
        read(KafkaSource(kafka_server.address, topic, value=value, stop=LATEST))
    assert f"{topic}-0" in str(failed.value)
    assert "offset 1" in str(failed.value)
    skipping = KafkaSource(kafka_server.address, topic, value=value, stop=LATEST, on_error="skip")
    assert read(skipping) == [{"n": 1}, {"n": 3}]


def test_what_kafka_has_deleted_is_an_error_and_no_jump(kafka_server):  # noqa: F811
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = kafka_server.create_topic()
    kafka_server.produce(topic, ["0", "1", "2"])
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0)].result()
    source = KafkaSource(
        kafka_server.address, topic, value=TextMessages(), start=KafkaOffsets.of({(topic, 0): 1}), stop=LATEST
    )
    with pytest.raises(JobFailedError, match="does not have the record at offset 1"):
        read(source)


@pytest.mark.parametrize("is_reading", [True, False])
def test_a_topic_that_was_made_again_is_told(is_reading, kafka_server):  # noqa: F811
    """Its offsets mean other records: the first ones would be passed over, without a word."""
    topic = kafka_server.create_topic()
    kafka_server.produce(topic, [f"old {n}" for n in range(5)])
    job = SourceTestHarness(KafkaSource(kafka_server.address, topic, value=TextMessages()))
    try:
        job.start()
        job.read_number(5)
        job.checkpoint()
        if not is_reading:
            job.close()
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(name=topic)
        kafka_server.produce(topic, [f"new {n}" for n in range(8)])
        if not is_reading:
            job.start()
        with pytest.raises(SourceError, match=r"was deleted and made again: .* below offset [58]") as caught:
            job.read(lambda: False)
        assert caught.value.context["split"] == f"{topic}-0"
        if not is_reading:
            assert [row for row in job.rows if row.startswith("new")] == [], "nothing of it is read"
    finally:
        job.close()


def test_nothing_is_read_before_a_broker_has_said_which_topic_it_is(kafka_server, monkeypatch):  # noqa: F811
    """No broker answers the first question, as they are away when the job goes on from its checkpoint."""
    topic = kafka_server.create_topic()
    kafka_server.produce(topic, [f"new {n}" for n in range(8)])
    monkeypatch.setattr("headrace.connectors.kafka.topic_ids.REQUEST_TIMEOUT_S", 0.3)
    rows = []
    source = KafkaSource(kafka_server.address, topic, value=TextMessages())
    reading = Reading(source, [])

    def poll():
        reading.now_ms = time.time_ns() // 1_000_000
        rows.extend(reading.poll())

    payload = {"topic": topic, "partition": 0, "end": None, "topic_id": "of-the-one-before"}
    kafka_server.signal(signal.SIGSTOP)
    try:
        reading.reader.add_splits([Split(f"{topic}-0", payload, 5)])
        while "imed out" not in reading.reader._errors.last:
            poll()
        poll()
    finally:
        kafka_server.signal(signal.SIGCONT)
    with pytest.raises(SourceError, match="was deleted and made again"):
        while True:
            poll()
    assert rows == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": ()}, "one of the two must be said"),
        ({"topic_pattern": "a"}, "one of the two must be said"),
        ({"topics": (), "topic_pattern": "("}, "no regular expression"),
        ({"value": "json"}, "must be a format of messages"),
        ({"start": KafkaOffsets.committed()}, "need its group_id"),
        ({"properties": {"auto.offset.reset": "latest"}}, "not for the program to set"),
        ({"metadata": ["offest"]}, "did you mean 'offset'"),
        ({"metadata": ["offset"]}, "whose schema must be declared"),
        ({"on_error": "ignore"}, "fail, skip or dead-letter"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said):
    with pytest.raises(ConfigurationError) as refused:
        KafkaSource(**{"servers": "localhost:9092", "topics": "t", "value": JsonMessages(), **arguments})
    assert said in f"{refused.value}"


def test_a_topic_that_is_not_there_is_named(kafka_server):  # noqa: F811
    source = KafkaSource(kafka_server.address, "no-such-topic", value=TextMessages(), stop=LATEST)
    with pytest.raises(HeadraceError, match="no topic 'no-such-topic'"):
        read(source)
