"""Streams of Redis as a source, against a real server: what is read, from where to where, and what is said otherwise.

Risks and families: lost and doubled records (jobs that fail at random, restored at another parallelism, against what
was added); positions and event times (oracle: the server's own ids); entries that are gone, and bad ones (errors by
name).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from failing_functions import FailsAtFirst
from reading_kit import read_some, reader_of
from redis_server import redis_server  # noqa: F401 - a fixture

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.redis import JsonMessages, RedisSink, RedisStream, RedisStreamSource, TextMessages
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, HeadraceError, SourceError


def read(source, parallelism=1, tag=None):
    """All records of a bounded source."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "stream")
        with (stream if tag is None else stream.get_side_output(tag)).execute_and_collect() as rows:
            return list(rows)


def test_entries_come_once_with_what_redis_says_of_them(redis_server):  # noqa: F811
    streams = [redis_server.new_key() for _ in range(3)]
    for number, stream in enumerate(streams):
        redis_server.add(stream, [json.dumps({"n": 10_000 * number + n}) for n in range(2_500)])
    source = RedisStreamSource(
        redis_server.url, streams, value=JsonMessages({"n": "int64"}), bounded=True,
        metadata={"at": "id", "of": "stream"},
    )  # fmt: skip
    rows = read(source, parallelism=2)
    assert sorted(row["n"] for row in rows) == [10_000 * number + n for number in range(3) for n in range(2_500)]
    with redis_server.connect() as connection:
        ids = {s: [entry.decode() for entry, _ in connection.xrange(s)] for s in streams}
    assert all(ids[row["of"]][row["n"] % 10_000] == row["at"] for row in rows)
    assert {row["of"]: streams.index(row["of"]) for row in rows} == {row["of"]: row["n"] // 10_000 for row in rows}


def test_from_stream_to_stream_through_failures_exactly_once(redis_server, tmp_path):  # noqa: F811
    sources, target = [redis_server.new_key() for _ in range(3)], redis_server.new_key()
    for number, stream in enumerate(sources):
        redis_server.add(stream, [str(10_000 * number + n) for n in range(1_500)])
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        source = RedisStreamSource(redis_server.url, sources, value=TextMessages(), bounded=True)
        sink = RedisSink.exactly_once(redis_server.url, RedisStream(target, TextMessages()))
        env.from_source(source, WatermarkStrategy.no_watermarks(), "in").map(
            FailsAtFirst(tmp_path, (7, 1_100, 10_600, 21_200))
        ).rebalance().sink_to(sink)
        result = env.execute("redis to redis")
    assert result.num_restarts >= 1
    expected = Counter(10_000 * number + n for number in range(3) for n in range(1_500))
    assert Counter(map(int, redis_server.values(target))) == expected


def test_a_savepoint_is_read_on_at_another_parallelism(redis_server, tmp_path):  # noqa: F811
    sources, target = [redis_server.new_key() for _ in range(3)], redis_server.new_key()

    def run(parallelism, start, stop_at):
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            source = RedisStreamSource(redis_server.url, sources, value=TextMessages())
            sink = RedisSink.exactly_once(redis_server.url, RedisStream(target, TextMessages()))
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            stream.rebalance().sink_to(sink).uid("out")
            client = env.execute_async("part", from_savepoint=start)
            while len(redis_server.values(target)) < stop_at:
                assert client.view().state not in ("FAILED", "FINISHED")
            return client.stop_with_savepoint(str(tmp_path / "savepoints"))

    path, sent = None, 0
    for parallelism in (2, 3, 1):
        for stream in sources:
            redis_server.add(stream, [str(sent + n) for n in range(100)])
            sent += 100
        path = run(parallelism, path, sent)
    assert Counter(map(int, redis_server.values(target))) == Counter(range(sent))


# ------------------------------------------------------------------------------------------------------ by a reader
def test_reading_begins_where_it_is_told(redis_server):  # noqa: F811
    stream = redis_server.new_key()
    redis_server.add(stream, ["1", "2"])
    with redis_server.connect() as connection:
        first = connection.xrange(stream)[0][0].decode()

    def source(start):
        return RedisStreamSource(redis_server.url, stream, value=TextMessages(), start=start)

    readers = [reader_of(source(start)) for start in ("earliest", first, "latest")]
    redis_server.add(stream, ["3"])
    found = [read_some(reader, n) for reader, n in zip(readers, (3, 2, 1), strict=True)]
    assert found == [list("123"), list("23"), ["3"]]
    (position,) = readers[0].snapshot()
    assert position.position["count"] == 3
    redis_server.add(stream, ["4"])
    readers.append(reader_of(source("earliest"), [position]))
    assert read_some(readers[-1], 1) == ["4"]
    for reader in readers:
        reader.close()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda c, s: c.xtrim(s, maxlen=1, approximate=False), "2 entries were trimmed before they were read"),
        (lambda c, s: c.delete(s), "it is not there any more"),
        (lambda c, s: (c.delete(s), c.xadd(s, {"value": "x"}, id="1-1")), "it is another one"),
        (lambda c, s: (c.delete(s), [c.xadd(s, {"value": "x"}) for _ in range(9)]), "it was deleted and made anew"),
        (lambda c, s: (c.delete(s), c.set(s, "x")), "WRONGTYPE"),
    ],
)
def test_what_is_gone_before_it_was_read_is_an_error(damage, told, redis_server):  # noqa: F811
    stream = redis_server.new_key()
    source = RedisStreamSource(redis_server.url, stream, value=TextMessages())
    redis_server.add(stream, ["1", "2"])
    reader = reader_of(source)
    assert read_some(reader, 2) == ["1", "2"]
    splits = reader.snapshot()
    reader.close()
    redis_server.add(stream, ["3", "4", "5"])
    with redis_server.connect() as connection:
        damage(connection, stream)
    reader = reader_of(source, splits)
    with pytest.raises(SourceError, match=told):
        read_some(reader, 1)
    reader.close()


@pytest.mark.parametrize("num_read", [0, 1])
def test_a_stream_that_is_gone_has_not_come_to_its_end(num_read, redis_server):  # noqa: F811
    stream = redis_server.new_key()
    redis_server.add(stream, ["1", "2", "3"])
    source = RedisStreamSource(redis_server.url, stream, value=TextMessages(), bounded=True)
    (split,) = source.create_enumerator(None).discover().splits
    with redis_server.connect() as connection:
        if num_read:
            first = connection.xrange(stream)[0][0].decode()
            split = replace(split, position={"id": first, "count": 1})
        connection.delete(stream)
    reader = reader_of(source, [split])
    with pytest.raises(SourceError, match="it is not there any more"):
        read_some(reader, 1)
    reader.close()


def test_a_stream_that_is_trimmed_behind_its_reader_is_read_on(redis_server):  # noqa: F811
    stream = redis_server.new_key()
    reader = reader_of(RedisStreamSource(redis_server.url, stream, value=TextMessages()))
    for number in range(5):
        redis_server.add(stream, [f"{number}a", f"{number}b"])
        assert read_some(reader, 2) == [f"{number}a", f"{number}b"]
        with redis_server.connect() as connection:
            connection.xtrim(stream, maxlen=0, approximate=False)
    reader.close()


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_bad_entries_are_told_with_their_ids(on_error, redis_server):  # noqa: F811
    stream = redis_server.new_key()
    with redis_server.connect() as connection:
        for number, fields in enumerate([{"value": '{"n": 1}'}, {"value": "{"}, {"other": "x"}, {"value": '{"n": 2}'}]):
            connection.xadd(stream, fields, id=f"{number + 1}-0")
    source = RedisStreamSource(
        redis_server.url, stream, value=JsonMessages({"n": "int64"}), bounded=True, on_error=on_error
    )
    if on_error == "fail":
        with pytest.raises(HeadraceError, match=r"no field 'value'.*entry 3-0"):
            read(source)
        return
    assert [row["n"] for row in read(source)] == [1, 2]
    if on_error == "dead-letter":
        letters = read(source, tag="dead-letter")
        assert sorted((row["position"], row["split"]) for row in letters) == [
            ("entry 2-0", stream),
            ("entry 3-0", stream),
        ]


def test_a_server_that_is_away_is_waited_for_for_a_while(redis_server):  # noqa: F811
    source = RedisStreamSource("redis://127.0.0.1:1", "s", value=TextMessages(), patience=0)
    reader = reader_of(source, [Split("s", {"end": None}, {"id": "0-0", "count": 0})])
    with pytest.raises(SourceError, match="cannot be read"):
        read_some(reader, 1)


@pytest.mark.parametrize("position", [None, {"id": "x", "count": 1}, {"id": "1-1", "count": "1"}, {"id": "1-1"}])
def test_what_is_no_position_is_refused(position):
    source = RedisStreamSource("redis://127.0.0.1:1", "s", value=TextMessages())
    with pytest.raises(CheckpointMismatchError):
        reader_of(source, [Split("s", {"end": None}, position)])


def test_wrong_arguments_are_refused():
    def told(**arguments):
        with pytest.raises(ConfigurationError) as refused:
            RedisStreamSource(**{"url": "redis://localhost", "streams": "s", "value": TextMessages(), **arguments})
        return str(refused.value)

    assert "each once" in told(streams=["a", "a"])
    assert "earliest, latest or" in told(start="first")
    assert "format of messages" in told(value="json")
    assert "no metadata 'idd'" in told(metadata=["idd"], value=TextMessages(column="text"))
    assert "must be declared" in told(metadata=["id"])
    assert "has a column 'id' itself" in told(metadata=["id"], value=TextMessages(column="id"))
    assert "fail, skip" in told(on_error="ignore")
