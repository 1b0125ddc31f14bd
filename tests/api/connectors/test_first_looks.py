"""The first look of sources, at the start of a job, while the server is away for a moment.

Risks and families: a job that fails at its start though the server comes back within its patience; one that waits for
what will not pass.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from free_ports import free_port
from rabbitmq_server import rabbitmq_server  # noqa: F401 - a fixture
from redis_server import redis_server  # noqa: F401 - a fixture
from server_process import need_client

from headrace.connectors.cassandra import CassandraSource
from headrace.connectors.hbase import HbaseSource
from headrace.connectors.kinesis import KinesisSource
from headrace.connectors.pulsar import PulsarSource
from headrace.connectors.rabbitmq import RabbitStreamSource
from headrace.connectors.redis import RedisStreamSource, TextMessages
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import SourceError


def look(source):
    return source.create_enumerator(EnumeratorContext(1)).discover()


def look_while_away(server, source):
    """What a look finds that begins when the server is away; the server comes back a moment later."""
    server.kill()
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look, source)
        server.start()
        return looking.result(60)


def test_redis_is_waited_for(redis_server):  # noqa: F811
    stream = f"stream-{free_port()}"
    redis_server.connect().xadd(stream, {"value": "x"})
    source = RedisStreamSource(redis_server.url, stream, value=TextMessages(), bounded=True)
    expected = look(source)
    assert look_while_away(redis_server, source) == expected


def test_rabbitmq_is_waited_for(rabbitmq_server):  # noqa: F811
    stream = rabbitmq_server.new_stream()
    source = RabbitStreamSource(rabbitmq_server.stream_url, stream, value=TextMessages(), bounded=True)
    assert look_while_away(rabbitmq_server, source) == look(source)


SOURCES = {
    "redis": lambda port: RedisStreamSource(f"redis://127.0.0.1:{port}", "s", value=TextMessages(), patience=300),
    "pika": lambda port: RabbitStreamSource(
        f"rabbitmq-stream://u:p@127.0.0.1:{port}", "s", value=TextMessages(), bounded=True, patience=300
    ),
    "happybase": lambda port: HbaseSource(f"127.0.0.1:{port}", "t", schema={"k": "string"}, patience=300),
    "cassandra": lambda port: CassandraSource(f"127.0.0.1:{port}", "a.b", schema={"k": "string"}, patience=300),
    "boto3": lambda port: KinesisSource(
        "s", value=TextMessages(), region="us-east-1", endpoint=f"http://127.0.0.1:{port}", patience=300,
        options={"aws_access_key_id": "x", "aws_secret_access_key": "y"},
    ),
    "pulsar": lambda port: PulsarSource(
        f"pulsar://127.0.0.1:{port}", "t", value=TextMessages(), patience=300, options={"operation_timeout_seconds": 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", SOURCES)
def test_who_is_away_for_longer_is_an_error_and_was_asked_for_as_long(client):
    need_client(client, client)
    source = SOURCES[client](free_port())
    began_at = time.monotonic()
    with pytest.raises(SourceError, match=r"cannot be|is not described"):
        look(source)
    assert time.monotonic() - began_at >= 0.3
