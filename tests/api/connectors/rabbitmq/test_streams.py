"""Streams of RabbitMQ against a real server: the contract of sinks, what is read, and errors.

Risks and families: lost and doubled records (contract suite: crashes, zombies, parallelisms; jobs that fail, restored
at another parallelism; a server that dies); wrong bytes (oracle: RabbitMQ's own client); what is gone, and bad input
(errors by name).
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter

import pytest
from campaigns import campaign
from failing_functions import FailsAtFirst, some
from rabbitmq_server import rabbitmq_server  # noqa: F401 - a fixture
from reading_kit import Reading, read_some, reader_of

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.rabbitmq import JsonMessages, RabbitStreamSink, RabbitStreamSource, TextMessages
from headrace.connectors.rabbitmq.protocol.address import Address
from headrace.connectors.rabbitmq.protocol.amqp10 import body_of, message_of
from headrace.connectors.rabbitmq.protocol.stream_client import StreamConnection
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, HeadraceError, SourceError
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject
from headrace.testing.sinks.harness import SinkTestHarness


def sink_of(server, stream, value=None):
    return RabbitStreamSink(server.stream_url, stream, value=value or TextMessages())


def source_of(server, streams, **arguments):
    return RabbitStreamSource(server.stream_url, streams, **{"value": TextMessages(), **arguments})


@pytest.mark.parametrize(
    "check",
    [campaign(check) if "anywhere" in check.__name__ else check for check in SINK_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_contract(check, rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream()
    check(SinkSubject(sink_of(rabbitmq_server, stream), lambda: map(int, rabbitmq_server.streamed(stream)), str))


@pytest.mark.campaign  # a server killed soon after its first stream may never find it again (RabbitMQ 3.10.8)
def test_many_messages_keep_their_order_through_a_dead_server(rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream()
    harness = SinkTestHarness(sink_of(rabbitmq_server, stream))
    harness.start()
    harness.write([str(number) for number in range(30_000)])
    harness.checkpoint(1)
    harness.write([str(number) for number in range(30_000, 30_010)])
    harness.checkpoint(2, notifies=False)
    rabbitmq_server.kill()
    rabbitmq_server.start()
    harness.start()
    assert [int(value) for value in rabbitmq_server.streamed(stream)] == list(range(30_010))


def test_from_stream_to_stream_through_failures_exactly_once(rabbitmq_server, tmp_path):  # noqa: F811
    sources, target = [rabbitmq_server.new_stream() for _ in range(3)], rabbitmq_server.new_stream()
    for number, stream in enumerate(sources):
        rabbitmq_server.send(stream, [str(1_000 * number + n) for n in range(1_000)])
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        source = source_of(rabbitmq_server, sources, bounded=True)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in")
        stream.map(FailsAtFirst(tmp_path, some(4, of=3_000))).rebalance().sink_to(sink_of(rabbitmq_server, target))
        result = env.execute("stream to stream")
    assert result.num_restarts >= 1
    assert Counter(map(int, rabbitmq_server.streamed(target))) == Counter(range(3_000))


def last_numbers(server, stream):
    return len(server.streamed(stream))


def test_a_savepoint_is_read_on_at_another_parallelism(rabbitmq_server, tmp_path):  # noqa: F811
    sources, target = [rabbitmq_server.new_stream() for _ in range(3)], rabbitmq_server.new_stream()
    path, sent = None, 0
    for parallelism in (2, 3, 1):
        for stream in sources:
            rabbitmq_server.send(stream, [str(sent + n) for n in range(100)])
            sent += 100
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            source = source_of(rabbitmq_server, sources)
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            stream.rebalance().sink_to(sink_of(rabbitmq_server, target)).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            while last_numbers(rabbitmq_server, target) < sent:
                assert client.view().state not in ("FAILED", "FINISHED")
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert Counter(map(int, rabbitmq_server.streamed(target))) == Counter(range(sent))


# --------------------------------------------------------------------------------------------------------- by a reader
def test_reading_begins_where_it_is_told_and_goes_on_through_a_dead_server(rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream()
    rabbitmq_server.send(stream, ["0", "1", "2"])

    def source(start):
        return source_of(
            rabbitmq_server, stream, start=start, value=TextMessages(column="n"), metadata=["offset", "stream"]
        )

    readers = [reader_of(source(start)) for start in ("first", 2, "next", "timestamp:0")]
    rabbitmq_server.send(stream, ["3", "4"])
    found = [read_some(reader, n) for reader, n in zip(readers, (5, 3, 2, 5), strict=True)]
    assert [[row["n"] for row in rows] for rows in found] == [list("01234"), list("234"), list("34"), list("01234")]
    assert all(row["offset"] == int(row["n"]) and row["stream"] == stream for rows in found for row in rows)
    splits = readers[0].snapshot()
    assert splits[0].position == {"from": "offset", "at": 5}
    rabbitmq_server.kill()
    rabbitmq_server.start()
    rabbitmq_server.publish(stream, ["5", "6"])
    readers.append(reader_of(source("first"), splits))
    for reader in readers:
        assert [row["n"] for row in read_some(reader, 2)] == ["5", "6"]
        reader.close()


def test_publishers_and_their_numbers_take_no_offsets(rabbitmq_server):  # noqa: F811
    """What a stream keeps besides messages must not look like messages that are gone."""
    stream = rabbitmq_server.new_stream()
    connection = StreamConnection(Address.of(rabbitmq_server.stream_url, "rabbitmq-stream", 1))
    source = source_of(rabbitmq_server, stream)
    reader = reader_of(source)
    for number in range(60):
        connection.publish(f"publisher {number}", stream, 1, [message_of(str(number).encode())])
        if number % 20 == 19:
            assert len(read_some(reader, 1)) >= 1
            splits = reader.snapshot()
            reader.close()
            reader = reader_of(source, splits)
    reader.close()
    connection.close()


def test_offsets_that_others_store_are_no_messages_that_are_gone(rabbitmq_server):  # noqa: F811
    """The server keeps them in the stream, under a number of its messages."""
    stream = rabbitmq_server.new_stream()
    rabbitmq_server.send(stream, ["0", "1", "2"])
    source = source_of(rabbitmq_server, stream, value=TextMessages(column="n"), metadata=["offset"])
    reader = reader_of(source)
    assert len(read_some(reader, 3)) == 3
    splits = reader.snapshot()
    reader.close()
    connection = StreamConnection(Address.of(rabbitmq_server.stream_url, "rabbitmq-stream", 1))
    connection.store_offset("somebody", stream, 2)
    connection.last_number("somebody", stream)  # behind which it is stored
    connection.close()
    rabbitmq_server.send(stream, ["3"])
    reader = reader_of(source, splits)
    assert read_some(reader, 1) == [{"n": "3", "offset": 4}]
    reader.close()


def test_what_is_gone_before_it_was_read_is_an_error(rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream(**{"x-max-length-bytes": 20_000, "x-stream-max-segment-size-bytes": 10_000})
    rabbitmq_server.send(stream, ["first"])
    source = source_of(rabbitmq_server, stream)
    reader = reader_of(source)
    assert read_some(reader, 1) == ["first"]
    splits = reader.snapshot()
    reader.close()
    for _ in range(20):
        rabbitmq_server.send(stream, ["x" * 3_000] * 3)
    reader = reader_of(source, splits)
    with pytest.raises(SourceError, match="were deleted before they were read"):
        read_some(reader, 1)
    reader.close()
    reader = reader_of(source, [Split(stream, {"end": None}, {"from": "offset", "at": 1_000})])
    with pytest.raises(SourceError, match="has not come so far"):
        while True:  # what is sent before the reader has subscribed is not told to it
            rabbitmq_server.send(stream, ["y"])
            reader.poll(100)
    reader.close()
    with pytest.raises(SourceError, match="does not exist"):
        read_some(reader_of(source_of(rabbitmq_server, "no stream")), 1)


@pytest.mark.parametrize("num_read", [1, 5])
def test_a_stream_that_was_made_again_is_told(num_read, rabbitmq_server):  # noqa: F811
    """It has more than was read, and other messages before that: they would be passed over, without a word."""
    stream = rabbitmq_server.new_stream()
    source = source_of(rabbitmq_server, stream)
    reader = reader_of(source)
    for n in range(num_read):
        rabbitmq_server.send(stream, [f"old {n}"])
        assert read_some(reader, 1) == [f"old {n}"]
    splits = through_json(reader.snapshot())
    reader.close()
    reader = reader_of(source, splits)
    rabbitmq_server.send(stream, ["goes on"])
    assert read_some(reader, 1) == ["goes on"]
    splits = through_json(reader.snapshot())
    reader.close()
    rabbitmq_server.make_again(stream)
    for n in range(9):
        rabbitmq_server.send(stream, [f"new {n}"])
    reader = reader_of(source, splits)
    with pytest.raises(SourceError, match="was deleted and made anew"):
        read_some(reader, 1)
    reader.close()


def through_json(splits):
    return [Split(one.split_id, json.loads(json.dumps(one.payload)), one.position) for one in splits]


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_bad_messages_are_told_with_their_offsets(on_error, rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream()
    rabbitmq_server.send(stream, ['{"n": 1}', "{", '{"n": 2}'])
    connection = StreamConnection(Address.of(rabbitmq_server.stream_url, "rabbitmq-stream", 1))
    connection.publish("", stream, 1, [b"no amqp", message_of(b'{"n": 3}')])
    connection.close()
    reading = Reading(source_of(rabbitmq_server, stream, value=JsonMessages({"n": "int64"}), on_error=on_error))
    if on_error == "fail":
        with pytest.raises(HeadraceError, match=r"offset [13]"):
            reading.rows(3)
    else:
        assert [row["n"] for row in reading.rows(3)] == [1, 2, 3]
        expected = ["offset 1", "offset 3"] if on_error == "dead-letter" else []
        assert sorted(row["position"] for row in reading.letters) == expected


def test_messages_of_other_clients_are_read(rabbitmq_server):  # noqa: F811
    """RabbitMQ's own client: properties around the body, and batches in one entry, also compressed."""
    import asyncio

    import rstream

    stream = rabbitmq_server.new_stream()

    async def send():
        async with rstream.Producer(
            "127.0.0.1", rabbitmq_server.stream_port, username="guest", password="guest"
        ) as own:
            message = rstream.AMQPMessage(
                body=b"with properties",
                properties=rstream.Properties(message_id="m", subject="s" * 300),
                application_properties={"a": 1, "b": "text", "c": None, "d": True},
            )
            await own.send_wait(stream, message)
            for kind in (rstream.CompressionType.No, rstream.CompressionType.Gzip):
                batch = [rstream.AMQPMessage(body=f"batch {number}".encode()) for number in range(3)]
                await own.send_sub_entry(stream, batch, compression_type=kind)

    asyncio.run(send())
    reader = reader_of(source_of(rabbitmq_server, stream))
    assert read_some(reader, 7) == ["with properties", *[f"batch {number}" for number in range(3)] * 2]
    reader.close()


# ----------------------------------------------------------------------------------------------------- without a server
@pytest.mark.parametrize("size", [0, 1, 255, 256, 100_000])
def test_bodies_come_back(size):
    body = bytes(size)
    assert body_of(message_of(body)) == body
    value = b"\x00\x80" + (0x77).to_bytes(8, "big") + b"\xb1" + size.to_bytes(4, "big") + body
    assert body_of(b"\x00\x53\x73\xc0\x03\x02\x40\x43" + value) == body


def test_no_bytes_make_a_message_that_is_none():
    rng = random.Random(3)
    good = b"\x00\x53\x73\xc0\x03\x02\x40\x43" + message_of(b"body")
    for _ in range(3_000):
        damaged = bytearray(good[: rng.randrange(len(good) + 1)])
        for _ in range(rng.randrange(3)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(ValueError):
            body_of(bytes(damaged))


@pytest.mark.parametrize("position", [None, {"from": "next", "at": 1}, {"from": "offset", "at": -1}, {"at": 1}])
def test_what_is_no_position_is_refused(position):
    source = RabbitStreamSource("rabbitmq-stream://localhost", "s", value=TextMessages())
    with pytest.raises(CheckpointMismatchError):
        reader_of(source, [Split("s", {"end": None}, position)])


def test_wrong_arguments_are_refused():
    def told(**arguments):
        given = {"url": "rabbitmq-stream://localhost", "streams": "s", "value": TextMessages(), **arguments}
        with pytest.raises(ConfigurationError) as refused:
            RabbitStreamSource(**given)
        return str(refused.value)

    sink = RabbitStreamSink("rabbitmq-stream://127.0.0.1:1", "s", value=TextMessages())
    with pytest.raises(ConfigurationError, match="remembers 255 publishers"):
        SinkTestHarness(sink, parallelism=256).start()
    assert "each once" in told(streams=[])
    assert "first, next, an offset" in told(start="latest")
    assert "must be rabbitmq-stream://" in told(url="amqp://localhost")
    assert "format of messages" in told(value="json")
    with pytest.raises(ConfigurationError, match="must not be empty"):
        RabbitStreamSink("rabbitmq-stream://localhost", "", value=TextMessages())
    away = RabbitStreamSource("rabbitmq-stream://127.0.0.1:1", "s", value=TextMessages(), patience=0)
    with pytest.raises(SourceError, match="do not answer"):
        read_some(reader_of(away), 1)
