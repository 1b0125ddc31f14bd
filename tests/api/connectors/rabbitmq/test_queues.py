"""Queues of RabbitMQ against a real server: what is read and acknowledged, what is sent, and errors.

Risks and families: lost, doubled and left messages (jobs that fail, restored at another parallelism, connections and
servers that die, against what was sent); wrong bytes (oracle: pika); bad input (errors by name).
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from failing_functions import FailsAtFirst, some
from rabbitmq_server import rabbitmq_server  # noqa: F401 - a fixture
from reading_kit import Reading

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.rabbitmq import (
    JsonMessages,
    RabbitQueueSink,
    RabbitQueueSource,
    RabbitStreamSink,
    TextMessages,
)
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import ConfigurationError, HeadraceError, SinkError, SourceError
from headrace.testing.acknowledging_contract import ACKNOWLEDGING_CONTRACT, AcknowledgingSubject
from headrace.testing.sinks.harness import SinkTestHarness


def source_of(server, queues, **arguments):
    return RabbitQueueSource(server.url, queues, **{"value": TextMessages(), **arguments})


def test_queues_are_read_exactly_once_through_failures_and_rescales(rabbitmq_server, tmp_path):  # noqa: F811
    queues, target = [rabbitmq_server.new_queue() for _ in range(3)], rabbitmq_server.new_stream()
    path, sent = None, 0
    for parallelism in (2, 3, 1):
        for queue in queues:
            rabbitmq_server.send(queue, [str(sent + n) for n in range(100)], first=sent)
            rabbitmq_server.send(queue, [str(sent + n) for n in range(10)], first=sent)  # sent again by its sender
            sent += 100
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
            source = source_of(rabbitmq_server, queues)
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            sink = RabbitStreamSink(rabbitmq_server.stream_url, target, value=TextMessages())
            stream.map(FailsAtFirst(tmp_path, some(4, of=900))).uid("map").rebalance().sink_to(sink).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            while len(rabbitmq_server.streamed(target)) < sent:
                assert client.view().state not in ("FAILED", "FINISHED"), client.view().failures
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert len(list(tmp_path.glob("failed-*"))) == 4
    assert Counter(map(int, rabbitmq_server.streamed(target))) == Counter(range(sent))
    assert [rabbitmq_server.left(queue) for queue in queues] == [[], [], []]


# --------------------------------------------------------------------------------------------------------- by a reader
@pytest.mark.parametrize("check", ACKNOWLEDGING_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, rabbitmq_server):  # noqa: F811
    queues = [rabbitmq_server.new_queue() for _ in range(1 if "may_be_open" in check.__name__ else 3)]

    def send(numbers):
        for place, queue in enumerate(queues):
            some = numbers[len(numbers) * place // len(queues) : len(numbers) * (place + 1) // len(queues)]
            if some:
                rabbitmq_server.send(queue, [str(number) for number in some], first=some[0])

    check(
        AcknowledgingSubject(
            source_of(rabbitmq_server, queues), number=int, send=send, server=rabbitmq_server,
            num_left=lambda: sum(len(rabbitmq_server.left(queue)) for queue in queues),
            narrow=source_of(rabbitmq_server, queues, prefetch=10),
        )
    )  # fmt: skip


def test_a_queue_goes_on_behind_its_prefetch_count(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    rabbitmq_server.send(queue, [str(number) for number in range(25)])
    reading = Reading(source_of(rabbitmq_server, queue, prefetch=10))
    assert len(reading.rows(10)) == 10
    while not reading.warnings:
        assert reading.poll() == []
    assert "no more than 10 messages" in reading.warnings[0]
    for checkpoint_id, number in ((1, 10), (2, 5)):
        reading.checkpoint(checkpoint_id)
        assert len(reading.rows(number)) == number
    reading.reader.close()
    assert len(rabbitmq_server.left(queue)) == 5


def test_without_ids_several_consumers_share_a_queue_at_least_once(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    rabbitmq_server.send(queue, [str(number) for number in range(100)], first=None)
    source = source_of(rabbitmq_server, queue, deduplicate_by=None, consumers=2)
    splits = source.create_enumerator(EnumeratorContext(2)).discover().splits
    assert [split.split_id for split in splits] == [queue, f"{queue}#2"]
    readings = [Reading(source, [split]) for split in splits]
    found = Counter()
    while found.total() < 100:
        for reading in readings:
            found.update(reading.poll())
    assert found == Counter(map(str, range(100)))
    for reading in readings:
        reading.checkpoint(1)
        reading.reader.close()
    assert rabbitmq_server.left(queue) == []


def test_without_checkpoints_messages_are_acknowledged_as_they_go(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    rabbitmq_server.send(queue, ["0", "1"])
    reading = Reading(source_of(rabbitmq_server, queue), checkpointing=False)
    assert reading.rows(2) == ["0", "1"]
    assert reading.poll() == []
    reading.reader.close()
    assert rabbitmq_server.left(queue) == []


def test_what_cannot_be_read_is_an_error_by_name(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    rabbitmq_server.send(queue, ["x"], first=None)
    reading = Reading(source_of(rabbitmq_server, queue))
    with pytest.raises(SourceError, match=r"no correlation_id.*delivery 1"):
        reading.rows(1)
    reading.reader.close()
    reading = Reading(source_of(rabbitmq_server, "no-such-queue", patience=0))
    with pytest.raises(SourceError, match="no-such-queue"):
        reading.rows(1)
    reading.reader.close()
    reading = Reading(
        source_of(rabbitmq_server, queue, deduplicate_by="message_id", value=JsonMessages({"n": "int64"}))
    )
    rabbitmq_server.left(queue)
    reading.reader.close()


def test_bad_messages_become_dead_letters_and_are_acknowledged(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    rabbitmq_server.send(queue, ['{"n": 1}', "{", '{"n": 2}'], timestamp=7)
    source = source_of(
        rabbitmq_server, queue, value=JsonMessages({"n": "int64"}), on_error="dead-letter", metadata=["correlation_id"]
    )
    reading = Reading(source)
    assert reading.rows(2) == [{"n": 1, "correlation_id": "0"}, {"n": 2, "correlation_id": "2"}]
    (letter,) = reading.letters
    assert (letter["raw"], letter["position"]) == ("{", "delivery 2, correlation id '1'")
    reading.checkpoint(1)
    reading.reader.close()
    assert rabbitmq_server.left(queue) == []


def test_wrong_arguments_are_refused():
    def told(**arguments):
        given = {"url": "amqp://localhost", "queues": "q", "value": TextMessages(), **arguments}
        with pytest.raises(ConfigurationError) as refused:
            RabbitQueueSource(**given)
        return str(refused.value)

    assert "each once" in told(queues=["a", "a"])
    assert "must be amqp://" in told(url="http://localhost")
    assert "without deduplicate_by" in told(consumers=2)
    assert "from 1 to 65535" in told(prefetch=0)
    assert "120 s at least" in told(remember="1 min")
    assert "correlation_id, message_id or None" in told(deduplicate_by="id")
    for arguments in ({}, {"queue": "q", "exchange": "e"}, {"queue": "q", "routing_key": "r"}):
        with pytest.raises(ConfigurationError, match="one of the two"):
            RabbitQueueSink("amqp://localhost", value=TextMessages(), **arguments)


# ---------------------------------------------------------------------------------------------------------------- sinks
def test_messages_are_there_when_the_barrier_has_passed(rabbitmq_server):  # noqa: F811
    queue = rabbitmq_server.new_queue()
    sink = RabbitQueueSink(rabbitmq_server.url, queue, value=JsonMessages(), correlation_id="n")
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(Batch.of_rows([{"n": number} for number in range(8_000)]))
    harness.checkpoint(1)
    reading = Reading(source_of(rabbitmq_server, queue, value=JsonMessages(), prefetch=20_000))
    assert [row["n"] for row in reading.rows(8_000)] == list(range(8_000))
    assert len(reading.reader.snapshot()[0].position) == 8_000
    reading.reader.close()
    rabbitmq_server.kill()
    rabbitmq_server.start()
    assert [json.loads(body)["n"] for body in rabbitmq_server.left(queue)] == list(range(8_000))
    with pytest.raises(SinkError, match="does not take messages"):  # of a server that was away meanwhile
        harness.write(Batch.of_rows([{"n": 1}]))
        harness.checkpoint(2)
    harness.close()


def test_what_reaches_no_queue_is_an_error(rabbitmq_server):  # noqa: F811
    def told(**where):
        harness = SinkTestHarness(RabbitQueueSink(rabbitmq_server.url, value=TextMessages(), **where))
        harness.start()
        with pytest.raises(HeadraceError) as refused:
            harness.write(["x"])
            harness.checkpoint(1)
        harness.close()
        return str(refused.value)

    assert "reaches no queue" in told(queue="no-such-queue")
    assert "no exchange" in told(exchange="no-such-exchange", routing_key="r")
