"""A sink of Kafka where there are three brokers, of which one dies.

Risk: what the sink keeps for itself is there less often than what it writes, and a death that the output outlives ends
the job, or loses what says what is written.
"""

from __future__ import annotations

import random

import pytest
from java_homes import java_for
from kafka_server import KafkaBrokers, fetched_jars
from server_process import need_client

from headrace.connectors.kafka import KafkaSink, TextMessages
from headrace.connectors.kafka.committing import KafkaCommitter
from headrace.connectors.kafka.partitions import settings_of
from headrace.engine.errors import SinkError
from headrace.testing.sinks.harness import SinkTestHarness

pytestmark = [pytest.mark.campaign, pytest.mark.lane("kafka")]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    need_client("confluent_kafka", "confluent-kafka")
    brokers = KafkaBrokers(fetched_jars(), java_for("Kafka"), tmp_path_factory.mktemp("brokers"), random.Random(1))
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


@pytest.mark.parametrize("staging", ["checkpoint", "transaction"])
def test_notes_outlive_each_broker_that_the_output_outlives(staging, brokers):
    """Brokers make topics of one copy, which one confirms, unless they are told otherwise."""
    from confluent_kafka.admin import AdminClient

    topic = brokers.create_topic()
    notes = f"{topic}-notes"
    sink = KafkaSink.exactly_once(
        brokers.address, topic, value=TextMessages(), transactional_id_prefix=topic, commits_topic=notes,
        staging=staging,
    )  # fmt: skip
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(["1"])
    harness.checkpoint(1)
    assert len(brokers.partition(notes).replicas) == 3
    assert settings_of(AdminClient({"bootstrap.servers": brokers.address}), notes)["min.insync.replicas"] == "2"

    harness.write(["2"])
    harness.checkpoint(2, notifies=False)
    brokers.aim_at(notes)
    brokers.kill()
    harness.start()  # it commits what the checkpoint holds
    harness.write(["3"])
    harness.checkpoint(3)
    brokers.start()

    brokers.aim_at(notes)
    brokers.kill()
    harness.start()  # what the checkpoint holds is committed
    harness.write(["4"])
    harness.checkpoint(4)
    harness.finish()
    brokers.start()
    assert [message.value() for message in brokers.committed(topic)] == [b"1", b"2", b"3", b"4"]


def test_a_commit_whose_answer_is_lost_with_the_leader_of_the_notes_is_not_written_twice(brokers, monkeypatch):
    """The same committer tries again, and looks for the notes first where they were."""
    topic = brokers.create_topic()
    notes = f"{topic}-notes"
    sink = KafkaSink.exactly_once(
        brokers.address, topic, value=TextMessages(), transactional_id_prefix=topic, commits_topic=notes
    )
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(["1"])
    harness.checkpoint(1)
    harness.start()  # now the topic of notes is there, and its leader is known
    harness.write(["2"])
    harness.checkpoint(2, notifies=False)
    write, tried = KafkaCommitter._write, []

    def lose_the_first_answer(committer, *arguments):
        write(committer, *arguments)
        tried.append(arguments)
        if len(tried) == 1:
            brokers.aim_at(notes)
            brokers.kill()
            message = "its answer is lost"
            raise SinkError(message)

    monkeypatch.setattr(KafkaCommitter, "_write", lose_the_first_answer)
    harness.notify(2)
    harness.finish()
    brokers.start()
    assert [message.value() for message in brokers.committed(topic)] == [b"1", b"2"]
    assert len(tried) == 1
