"""The contract of sources, for streams of Redis."""

from __future__ import annotations

import json

import pytest
from redis_server import redis_server  # noqa: F401 - a fixture

from headrace.connectors.redis import JsonMessages, RedisStreamSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server, *, stops):
    name = server.new_key()

    def put(part, numbers):
        server.add(f"{name}:{part}", [json.dumps({"n": number}) for number in numbers])

    def source(**options):
        streams = [f"{name}:{part}" for part in range(3)]
        return RedisStreamSource(server.url, streams, value=JsonMessages({"n": "int64"}), bounded=stops, **options)

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not stops, reads_side_by_side=True,
        put_bad=lambda part: server.add(f"{name}:{part}", ["{"]), passing_over=source(on_error="skip"), server=server,
    )  # fmt: skip


@pytest.mark.parametrize("stops", [False, True], ids=["endless", "bounded"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_streams_of_redis(check, stops, redis_server):  # noqa: F811
    try:
        check(subject_of(redis_server, stops=stops))
    except BaseException:
        redis_server.kill()
        redis_server.start()
        raise
