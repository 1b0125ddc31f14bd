"""Sinks of Redis against a real server: the contract of sinks, what is there, and errors.

Risks and families: lost and doubled records (contract suite: crashes, zombies, parallelisms; a server that loses what
it had confirmed); wrong bytes (oracle: the server's own answers); silent refusals (errors by name).
"""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from redis_server import redis_server  # noqa: F401 - a fixture

from headrace.connectors.redis import JsonMessages, RedisHashes, RedisSink, RedisStream, RedisStrings, TextMessages
from headrace.engine.columns.records import Batch
from headrace.engine.errors import CheckpointMismatchError, HeadraceError, PossibleLossError
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject
from headrace.testing.sinks.harness import SinkTestHarness

ROWS = [{"id": 1, "kind": "a", "n": 7}, {"id": 2, "kind": "b:c", "n": None}]


def told(call):
    with pytest.raises(HeadraceError) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize(
    "check",
    [campaign(check) if "anywhere" in check.__name__ else check for check in SINK_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_contract(check, redis_server):  # noqa: F811
    stream = redis_server.new_key()
    sink = RedisSink.exactly_once(redis_server.url, RedisStream(stream, TextMessages()))
    check(SinkSubject(sink, lambda: map(int, redis_server.values(stream)), str))


def written(sink, *batches):
    harness = SinkTestHarness(sink)
    harness.start()
    for checkpoint_id, records in enumerate(batches, 1):
        harness.write(records)
        harness.checkpoint(checkpoint_id)
    harness.finish()
    return harness


@pytest.mark.parametrize("make", [RedisSink.exactly_once, RedisSink.at_least_once])
def test_hashes_are_replaced_and_deleted_as_a_whole(make, redis_server):  # noqa: F811
    prefix = redis_server.new_key()
    sink = make(redis_server.url, RedisHashes(f"{prefix}:", ["id", "kind"], delete_column="gone"))
    rows = [{**row, "gone": False} for row in ROWS]
    later = [{**rows[0], "gone": True}, {**rows[1], "n": 8}, {"id": 3, "kind": "\\", "n": None, "gone": False}]
    written(sink, Batch.of_rows(rows), Batch.of_rows(later))
    with redis_server.connect() as connection:
        keys = sorted(key for key in connection.scan_iter(f"{prefix}:*"))
        assert keys == [f"{prefix}:2:b\\:c".encode(), f"{prefix}:3:\\\\".encode()]
        assert connection.hgetall(keys[0]) == {b"id": b"2", b"kind": b"b:c", b"n": b"8"}
        assert connection.hgetall(keys[1]) == {b"id": b"3", b"kind": b"\\"}


@pytest.mark.parametrize("make", [RedisSink.exactly_once, RedisSink.at_least_once])
def test_strings_are_messages_by_key(make, redis_server):  # noqa: F811
    prefix = redis_server.new_key()
    written(make(redis_server.url, RedisStrings(f"{prefix}/", "id", value=JsonMessages())), Batch.of_rows(ROWS))
    with redis_server.connect() as connection:
        found = {key: json.loads(connection.get(key)) for key in connection.scan_iter(f"{prefix}/*")}
    assert found == {f"{prefix}/{row['id']}".encode(): row for row in ROWS}


def test_many_rows_are_written_in_pieces_and_a_stream_is_kept_short(redis_server):  # noqa: F811
    whole, short = redis_server.new_key(), redis_server.new_key()
    for stream, max_length in ((whole, None), (short, 1_000)):
        target = RedisStream(stream, TextMessages(), max_length=max_length)
        written(RedisSink.exactly_once(redis_server.url, target), [str(n) for n in range(4_500)])
    assert [int(value) for value in redis_server.values(whole)] == list(range(4_500))
    assert 1_000 <= len(redis_server.values(short)) < 2_000


def test_what_a_server_has_lost_is_noticed(redis_server):  # noqa: F811
    stream = redis_server.new_key()
    harness = SinkTestHarness(RedisSink.exactly_once(redis_server.url, RedisStream(stream, TextMessages())))
    harness.start()
    harness.write(["1", "2"])
    harness.checkpoint(1)
    with redis_server.connect() as connection:
        connection.delete(stream, f"{{{stream}}}:headrace")  # as if its last writes had not got to the disk
    harness.write(["3"])
    with pytest.raises(PossibleLossError, match=r"rows 1 to 2 of headrace-.* the server has lost them"):
        harness.checkpoint(2)


def test_what_redis_refuses_is_written_once_when_it_does_not_any_more(redis_server):  # noqa: F811
    stream = redis_server.new_key()
    with redis_server.connect() as connection:
        connection.set(stream, "no stream")
        harness = SinkTestHarness(RedisSink.exactly_once(redis_server.url, RedisStream(stream, TextMessages())))
        harness.start()
        harness.write(["1", "2"])
        assert "WRONGTYPE" in told(lambda: harness.checkpoint(1))
        connection.delete(stream)
        harness.start()
    assert redis_server.values(stream) == [b"1", b"2"]


def test_wrong_arguments_are_refused(redis_server):  # noqa: F811
    def sink(url=redis_server.url, target=RedisStream("s", TextMessages()), **options):
        return RedisSink.exactly_once(url, target, options=options)

    assert "must begin with redis://" in told(lambda: sink("http://localhost"))
    assert "RedisStream, RedisHashes" in told(lambda: sink(target="s"))
    assert "not for the program" in told(lambda: sink(protocol=3))
    assert "has a name" in told(lambda: RedisStream("", TextMessages()))
    assert "1 or more" in told(lambda: RedisStream("s", TextMessages(), max_length=0))
    assert "format of messages" in told(lambda: RedisStrings("p", "id"))
    assert "one field at least" in told(lambda: RedisHashes("p", []))
    assert "no field 'no'" in told(lambda: written(sink(target=RedisHashes("p", "no")), Batch.of_rows(ROWS)))
    assert "null" in told(lambda: written(sink(target=RedisHashes("p", "n")), Batch.of_rows(ROWS)))
    away = RedisSink.exactly_once("redis://127.0.0.1:1", RedisStream("s", TextMessages()))
    assert "does not take records" in told(lambda: written(away, ["1"]))


@pytest.mark.parametrize(
    "damage", [{"place": "another"}, {"publisher": "another-1"}, {"first": 0}, {"data": ["text"]}, {"more": 1}]
)
def test_what_no_such_sink_has_prepared_is_not_written(damage):
    target = RedisStream("s", TextMessages())
    sink = RedisSink.exactly_once("redis://127.0.0.1:1", target)
    good = {
        "place": target.place, "publisher": "headrace-x-0.1-0", "first": 1, "checkpoint_id": 1, "rows": 0, "data": [],
    }  # fmt: skip
    with pytest.raises(CheckpointMismatchError):
        sink.create_committer().commit({**good, **damage})
