"""A sink of Kafka against a real broker: the contract of sinks, what readers of committed records see, and errors.

Risks and families: lost and doubled records (contract suite: crashes, zombies, parallelisms); wrong bytes (oracle: a
consumer, and Kafka's own); silent refusals (errors by name).
"""

from __future__ import annotations

import numpy as np
import pytest
from campaigns import campaign
from kafka_server import kafka_server  # noqa: F401 - a fixture

from headrace.connectors.kafka import JsonMessages, KafkaSink, TextMessages
from headrace.connectors.kafka.client import Client
from headrace.connectors.kafka.committing import KafkaCommitter
from headrace.connectors.kafka.ledger import Numbers
from headrace.connectors.kafka.open_transactions import TransactionCommitter
from headrace.connectors.kafka.transactions import CommitSettings
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    HeadraceError,
    PossibleLossError,
    SinkError,
)
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject, notices_output_behind_its_checkpoint
from headrace.testing.sinks.harness import SinkTestHarness


@pytest.mark.sampled(20)
@pytest.mark.parametrize("staging", ["checkpoint", "transaction"])
@pytest.mark.parametrize(
    "check",
    [
        campaign(check) if "anywhere" in check.__name__ else check
        for check in (*SINK_CONTRACT, notices_output_behind_its_checkpoint)
    ],
    ids=lambda check: check.__name__,
)
def test_contract(check, staging, kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    sink = KafkaSink.exactly_once(
        kafka_server.address, topic, value=TextMessages(), transactional_id_prefix=topic, commits_topic="commits",
        staging=staging,
    )  # fmt: skip

    def visible():
        return [int(message.value()) for message in kafka_server.committed(topic)]

    check(SinkSubject(sink, visible, str))


def told(call):
    with pytest.raises(HeadraceError) as refused:
        call()
    return str(refused.value)


def test_wrong_arguments_are_refused():
    def make(**arguments):
        given = {"servers": "localhost:9092", "topic": "t", "value": TextMessages(), "transactional_id_prefix": "p"}
        return KafkaSink.exactly_once(**{**given, **arguments})

    assert "letters, digits" in told(lambda: make(transactional_id_prefix="a b"))
    assert "topic of their own" in told(lambda: make(commits_topic="t"))
    assert "a second at least" in told(lambda: make(transaction_timeout=10))
    assert "delete_column needs one" in told(lambda: make(delete_column="gone"))
    assert "not for the program to set" in told(lambda: make(properties={"transactional.id": "x"}))
    assert "format of messages" in told(lambda: make(value="json"))
    assert "'checkpoint' or 'transaction'" in told(lambda: make(staging="table"))


def written(kafka_server, sink, records):  # noqa: F811
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(records)
    harness.checkpoint(1)
    harness.finish()


def test_keys_times_and_tombstones_are_as_the_broker_shows_them(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    sink = KafkaSink.exactly_once(
        kafka_server.address, topic, value=JsonMessages(), key=["a", "b"], delete_column="gone",
        transactional_id_prefix=topic,
    )  # fmt: skip
    rows = [{"a": 1, "b": "x", "gone": False}, {"a": 2, "b": None, "gone": True}]
    written(kafka_server, sink, Batch.of_rows(rows, np.array([7_000, 8_000])))
    found = [(message.key(), message.value(), message.timestamp()[1]) for message in kafka_server.committed(topic)]
    assert found == [(b'{"a":1,"b":"x"}', b'{"a":1,"b":"x"}', 7_000), (b'{"a":2,"b":null}', None, 8_000)]
    assert kafka_server.seen_by_java(topic, at_most=2) == ['{"a":1,"b":"x"}', "null"]


def test_a_topic_of_notes_that_would_lose_them_is_refused(kafka_server):  # noqa: F811
    topic, notes = kafka_server.create_topic(), kafka_server.create_topic(cleanup_policy="delete")
    sink = KafkaSink.exactly_once(
        kafka_server.address, topic, value=TextMessages(), transactional_id_prefix=topic, commits_topic=notes
    )
    assert "must be compacted" in told(lambda: written(kafka_server, sink, ["1"]))


def test_a_transaction_longer_than_the_broker_allows_is_refused_at_the_start(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    sink = KafkaSink.exactly_once(
        kafka_server.address, topic, value=TextMessages(), transactional_id_prefix=topic, transaction_timeout="2 h"
    )
    assert "allows no transactions of 7200000 ms" in told(lambda: written(kafka_server, sink, ["1"]))


def test_records_that_could_never_be_committed_do_not_get_into_a_checkpoint(kafka_server):  # noqa: F811
    def sink(topic, **properties):
        return KafkaSink.exactly_once(
            kafka_server.address, topic, value=TextMessages(), transactional_id_prefix=topic, properties=properties
        )

    topic = kafka_server.create_topic()
    largest = sink(topic, **{"message.max.bytes": 1_000})
    written(kafka_server, largest, ["1" * 964])
    assert len(kafka_server.committed(topic)) == 1
    assert "a record of 965 bytes" in told(lambda: written(kafka_server, largest, ["1" * 965]))
    small = kafka_server.create_topic(max_message_bytes=2_000)
    assert "takes 2000 bytes at a time" in told(lambda: written(kafka_server, sink(small), ["1"]))


def opened(kafka_server, topic, **arguments):  # noqa: F811
    """A sink whose records wait in open transactions."""
    return KafkaSink.exactly_once(
        kafka_server.address, topic, value=TextMessages(), transactional_id_prefix=topic, commits_topic="commits",
        staging="transaction", **arguments,
    )  # fmt: skip


def test_an_open_transaction_that_somebody_has_ended_is_possible_loss(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    harness = SinkTestHarness(opened(kafka_server, topic))
    harness.start()
    harness.write(["1", "2"])
    harness.checkpoint(1, notifies=False)
    end_what_is_open(kafka_server, topic)
    with pytest.raises(PossibleLossError, match="2 records of checkpoint 1 were written in transaction"):
        harness.notify(1)
    with pytest.raises(PossibleLossError):
        harness.start()
    assert kafka_server.committed(topic) == []


def test_a_transaction_that_ends_while_it_is_written_fails_the_attempt_and_loses_nothing(kafka_server):  # noqa: F811
    """As behind transaction_timeout. The next attempt writes again what no checkpoint holds."""
    topic = kafka_server.create_topic()
    harness = SinkTestHarness(opened(kafka_server, topic))
    harness.start()
    harness.write(["1"])
    harness.checkpoint(1)
    harness.write(["2"])
    while not Client(kafka_server.address, {}).coordinator().open_ids(topic):
        harness.write(["2"])
    end_what_is_open(kafka_server, topic)
    with pytest.raises(SinkError, match="Kafka does not take records"):
        harness.write(["3"])
        harness.checkpoint(2)
    harness.start()
    harness.write(["2", "3"])
    harness.checkpoint(2)
    harness.finish()
    assert [message.value() for message in kafka_server.committed(topic)] == [b"1", b"2", b"3"]


def end_what_is_open(kafka_server, topic):  # noqa: F811
    """Take the one id over that has a transaction."""
    coordinator = Client(kafka_server.address, {}).coordinator()
    (transactional_id,) = coordinator.open_ids(topic)
    coordinator.abort(transactional_id, 60_000)
    coordinator.close()


def test_a_commit_that_the_broker_has_forgotten_is_known_from_its_note(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic()
    harness = SinkTestHarness(opened(kafka_server, topic))
    harness.start()
    harness.write(["1"])
    harness.checkpoint(1, notifies=False)
    coordinator = Client(kafka_server.address, {}).coordinator()
    (transactional_id,) = coordinator.open_ids(topic)
    harness.notify(1)
    coordinator.abort(transactional_id, 60_000)  # as if it had never known the transaction
    harness.start()
    harness.finish()
    assert [message.value() for message in kafka_server.committed(topic)] == [b"1"]
    coordinator.close()


def test_security_that_the_committing_client_does_not_know_is_refused():
    with pytest.raises(ConfigurationError, match="no such"):
        KafkaSink.exactly_once(
            "localhost:9092", "t", value=TextMessages(), transactional_id_prefix="p", staging="transaction",
            properties={"sasl.oauthbearer.config": "x"},
        )  # fmt: skip


def test_the_committing_client_is_let_in_as_the_writing_one(monkeypatch):
    """It knows names of protocols in capitals only, and would connect without any."""
    import kafka.admin

    given = {}

    def connect(**settings):
        given.update(settings)
        raise kafka.errors.KafkaConfigurationError

    monkeypatch.setattr(kafka.admin, "KafkaAdminClient", connect)
    properties = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "plain", "sasl.username": "me", "linger.ms": 5}
    with pytest.raises(SinkError, match="cannot be listed"):
        Client("localhost:1", properties).coordinator().open_ids("p")
    assert given == {
        "bootstrap_servers": ["localhost:1"], "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage", [{"topic": "another"}, {"transaction": "another-1"}, {"number": -1}, {"data": ["text"]}, {"more": 1}]
)
def test_what_no_sink_of_kafka_has_prepared_is_not_written(damage):
    settings = CommitSettings("t", "p", "notes", 60_000)
    good = {"topic": "t", "transaction": "p-1", "number": 0, "checkpoint_id": 1, "rows": 0, "data": []}
    with pytest.raises(CheckpointMismatchError):
        KafkaCommitter(Client("localhost:1", {}), settings).commit({**good, **damage})


def test_numbers_are_runs():
    numbers, expected = Numbers(), set()
    for number in [3, 1, 2, 7, 9, 8, 0, 3]:
        numbers = numbers.with_number(number)
        expected.add(number)
        assert {n for n in range(12) if n in numbers} == expected
    assert numbers.to_json() == [[0, 3], [7, 9]]


@pytest.mark.parametrize("damage", [{"topic": "another"}, {"series": "another-1"}, {"epoch": 1 << 15}, {"rows": "1"}])
def test_transactions_of_no_sink_of_kafka_are_not_committed(damage):
    settings = CommitSettings("t", "p", "notes", 60_000)
    good = {"topic": "t", "series": "p-1", "number": 0, "behind": 0, "producer_id": 1, "epoch": 0, "checkpoint_id": 1}
    with pytest.raises(CheckpointMismatchError):
        TransactionCommitter(Client("localhost:1", {}), settings).commit({**good, "rows": 1, **damage})
