"""Where topics of Pulsar begin and end, what is said of their messages, and what is refused, against a real broker."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from pulsar_server import pulsar_server  # noqa: F401 - a fixture
from reading_kit import Reading

from headrace.connectors.messages.client_thread import AwayError
from headrace.connectors.pulsar import PulsarSource, TextMessages, reader
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import ConfigurationError, SourceError

SUBSCRIPTION = "guard"


def source_of(server, topic, **options):
    return PulsarSource(server.url, topic, value=TextMessages(column="text"), **options)


def discovered(source):
    return source.create_enumerator(EnumeratorContext(1)).discover()


def texts_in(rows):
    return sorted(row["text"] for row in rows)


def read(source, number=1 << 30):
    return texts_in(Reading(source).rows(number))


def texts(*numbers):
    return sorted(map(str, numbers))


def make_anew(server, topic):
    """Delete a topic with what it has; ids of messages go on."""
    path = f"persistent/{topic.removeprefix('persistent://')}"
    server.admin("DELETE", f"{path}?force=true")
    server.admin("PUT", path)


def test_a_bounded_source_ends_with_the_last_message_of_a_batch(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(3)
    pulsar_server.send(f"{topic}-partition-0", range(40))
    pulsar_server.send(f"{topic}-partition-1", range(40, 45), batching=False)
    source = source_of(pulsar_server, topic, bounded=True)
    splits = discovered(source).splits
    assert len(splits) == 2  # one partition is empty
    for part in range(3):
        pulsar_server.send(f"{topic}-partition-{part}", range(100, 110))
    with closing(Reading(source, splits)) as reading:
        assert texts_in(reading.rows()) == texts(*range(45))


def test_latest_begins_behind_a_batch(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(2)
    pulsar_server.send(f"{topic}-partition-0", range(10))
    source = source_of(pulsar_server, topic, start="latest")
    splits = discovered(source).splits
    for part in range(2):
        pulsar_server.send(f"{topic}-partition-{part}", range(20 + part, 40, 2))
    with closing(Reading(source, splits)) as reading:
        assert texts_in(reading.rows(20)) == texts(*range(20, 40))


def test_a_time_begins_within_what_is_there_or_behind_it(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, range(6), batching=False)
    times = [message.publish_timestamp() for message in pulsar_server.messages(topic)]
    since = times[3]
    late = texts(*(n for n in range(6) if times[n] >= since))
    assert read(source_of(pulsar_server, topic, start=f"timestamp:{since}"), len(late)) == late
    assert read(source_of(pulsar_server, topic, start=f"timestamp:{since}", bounded=True)) == late
    # Nothing is as young: a bounded source has nothing to wait for.
    assert read(source_of(pulsar_server, topic, start=f"timestamp:{times[-1] + 1}", bounded=True)) == []


def test_partitions_that_are_found_later_begin_with_their_first_message(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(1)
    pulsar_server.send(f"{topic}-partition-0", [0])
    source = source_of(pulsar_server, topic, start="latest")
    first = discovered(source)
    pulsar_server.add_partitions(topic, 3)
    for part in range(3):
        pulsar_server.send(f"{topic}-partition-{part}", [part + 1])
    progress = EnumeratorProgress(first.state, is_exhausted=False, parallelism=1)
    later = source.create_enumerator(EnumeratorContext(1)).discover_from(progress)
    assert [split.split_id[-1] for split in later.splits] == ["1", "2"]
    assert later.state == [f"{topic}-partition-{part}" for part in range(3)]
    with closing(Reading(source, first.splits)) as reading:
        reading.reader.add_splits(later.splits)
        assert texts_in(reading.rows(3)) == texts(1, 2, 3)


def test_what_was_deleted_behind_a_position_is_an_error(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, range(5), batching=False)
    source = source_of(pulsar_server, topic)
    with closing(Reading(source)) as reading:
        reading.rows(5)
        left = reading.reader.snapshot()
    make_anew(pulsar_server, topic)
    pulsar_server.send(topic, range(5, 8))
    last = ":".join(map(str, left[0].position["last"]))
    with pytest.raises(SourceError, match=f"message {last} was deleted") as lost:
        Reading(source, left).rows(1)
    assert "subscription" in str(lost.value)
    assert topic in str(lost.value)


@pytest.mark.parametrize("has_more", [False, True])
def test_a_bounded_source_whose_end_was_deleted_does_not_end_as_if_it_had_read_it(pulsar_server, has_more):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, range(5))
    source = source_of(pulsar_server, topic, bounded=True)
    splits = discovered(source).splits
    make_anew(pulsar_server, topic)
    if has_more:
        pulsar_server.send(topic, range(5, 8))
    with closing(Reading(source, splits)) as reading, pytest.raises(SourceError, match=r"cannot be read to its end"):
        reading.rows()


def test_a_subscription_keeps_the_batch_of_the_last_message(pulsar_server):  # noqa: F811
    """Pulsar acknowledges a batch as a whole if it is given a message of it, and deletes it with what was not read."""
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, ["before"])
    pulsar_server.send(topic, range(10))
    about = f"persistent/{topic.removeprefix('persistent://')}/internalStats"
    source = source_of(pulsar_server, topic, subscription=SUBSCRIPTION)
    with closing(Reading(source)) as reading:
        reading.rows(11)
        (split,) = reading.reader.snapshot_for(1)
        ledger, entry, _ = split.position["last"]
        reading.reader.notify_checkpoint_complete(1)
        acknowledged = None
        while acknowledged != f"{ledger}:{entry - 1}":
            before = acknowledged
            reading.reader.poll(1)
            acknowledged = json.loads(pulsar_server.admin("GET", about))["cursors"][SUBSCRIPTION]["markDeletePosition"]
            assert before in (None, acknowledged, f"{ledger}:-1")
            assert acknowledged != f"{ledger}:{entry}"


def test_what_was_received_before_a_connection_broke_is_given(pulsar_server, monkeypatch):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, range(5))
    source = source_of(pulsar_server, topic, bounded=True)
    splits = discovered(source).splits
    take, taken = reader._Fetcher._next, []

    def breaks_once(fetcher, reading):
        if len(taken) == 3:
            taken.append(None)
            message = "broken"
            raise AwayError(message)
        taken.append(take(fetcher, reading))
        return taken[-1]

    monkeypatch.setattr(reader._Fetcher, "_next", breaks_once)
    with closing(Reading(source, splits)) as reading:
        assert texts_in(reading.rows()) == texts(*range(5))
    assert len(taken) > 4


def test_tombstones_are_counted_and_passed_over(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    client = pulsar_server.client()
    producer = client.create_producer(topic)
    for value in (b"a", None, b"", None):
        producer.send(value, partition_key="k")
    client.close()
    source = source_of(pulsar_server, topic, bounded=True)
    with closing(Reading(source)) as reading:
        assert texts_in(reading.rows()) == ["", "a"]
        assert reading.metrics.counters["num_tombstones"] == 2


def test_metadata_are_what_pulsar_says_of_messages(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    pulsar_server.send(topic, ["with"], batching=False, partition_key="k", event_timestamp=1_500)
    pulsar_server.send(topic, ["without"])
    source = source_of(
        pulsar_server, topic, bounded=True,
        metadata=["topic", "key", "message_id", "publish_time", "event_time", "producer_name"],
    )  # fmt: skip
    with closing(Reading(source)) as reading:
        rows = {row["text"]: row for row in reading.rows()}
    for message in pulsar_server.messages(topic):
        row, told = rows[message.data().decode()], message.message_id()
        assert row["topic"] == topic
        assert row["message_id"] == f"{told.ledger_id()}:{told.entry_id()}:{told.batch_index()}"
        assert row["publish_time"].timestamp() * 1_000 == pytest.approx(message.publish_timestamp())
        assert row["producer_name"] == message.producer_name()
    assert (rows["with"]["key"], rows["with"]["event_time"].timestamp()) == ("k", 1.5)
    assert (rows["without"]["key"], rows["without"]["event_time"]) == (None, None)


@pytest.mark.parametrize("bounded", [False, True])
def test_messages_in_chunks_are_refused(pulsar_server, monkeypatch, bounded):  # noqa: F811
    monkeypatch.setattr("headrace.connectors.pulsar.source.READ_TIMEOUT_MS", 200)  # nothing comes, however long
    topic = pulsar_server.new_topic()
    client = pulsar_server.client()
    client.create_producer(topic, batching_enabled=False, chunking_enabled=True).send(b"x" * (1 << 19))
    client.close()
    source = source_of(pulsar_server, topic, bounded=bounded)
    with pytest.raises(SourceError, match="in chunks"):
        Reading(source).rows(1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": []}, "topics, each once"),
        ({"topics": None}, "topics, each once"),
        ({"topics": ["a", 3]}, "topics, each once"),
        ({"topics": ["a", "a"]}, "topics, each once"),
        ({"topics": "non-persistent://public/default/a"}, "keeps nothing"),
        ({"service_url": "http://here:1"}, "pulsar://host:port"),
        ({"start": "first"}, "start must be"),
        ({"start": "timestamp:-1"}, "start must be"),
        ({"start": f"timestamp:{10**20}"}, "start must be"),
        ({"subscription": ""}, "subscription is a name"),
        ({"subscription": 5}, "subscription is a name"),
        ({"metadata": ["keys"]}, "did you mean 'key'"),
        ({"on_error": "pass"}, "on_error must be"),
        ({"discovery_interval": "often"}, "often"),
        ({"patience": "-1 s"}, "patience must not be negative"),
        ({"patience": -1}, "patience must not be negative"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    given = {"service_url": "pulsar://here:1", "topics": "a", "value": TextMessages(column="text"), **arguments}
    with pytest.raises(ConfigurationError) as refused:
        PulsarSource(given.pop("service_url"), given.pop("topics"), **given)
    assert text in str(refused.value)


def test_a_topic_that_is_not_there_is_told(pulsar_server):  # noqa: F811
    with pytest.raises(SourceError, match="no-such-topic") as refused:
        discovered(source_of(pulsar_server, "no-such-topic"))
    assert "make it first" in str(refused.value)
