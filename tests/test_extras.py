"""What is not installed is named with the command that installs it, for every extra of `pyproject.toml`.

A program says it as soon as it uses what needs the extra: a connector when its job starts, before it asks a server.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from upsert_kit import harness_of

from headrace.actors import zookeeper_lease
from headrace.actors.ray.applications import ApplicationClient
from headrace.actors.reporters.open_telemetry import MetricExporter
from headrace.connectors.cassandra import CassandraSink
from headrace.connectors.delta import DeltaSource
from headrace.connectors.hbase import HbaseSink
from headrace.connectors.hudi import HudiSource
from headrace.connectors.iceberg import IcebergSource
from headrace.connectors.kafka import KafkaSource
from headrace.connectors.kinesis import KinesisSource
from headrace.connectors.mongodb import MongodbSink
from headrace.connectors.mqtt import MqttSource
from headrace.connectors.opensearch import OpenSearchSink
from headrace.connectors.postgres_cdc import PostgresCdcSource
from headrace.connectors.pulsar import PulsarSource
from headrace.connectors.rabbitmq import RabbitQueueSource
from headrace.connectors.redis import RedisStreamSource
from headrace.connectors.sql import JdbcConnection, SqlSink
from headrace.connectors.websocket import WebSocketSource
from headrace.engine.connectors.contract import EnumeratorContext, ReaderContext
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.kernel.reporter_settings import ExporterSettings
from headrace.formats import avro_types
from headrace.formats.avro_messages import AvroMessages
from headrace.formats.messages import TextMessages
from headrace.formats.protobuf_messages import ProtobufMessages
from headrace.formats.schema_registry import SchemaRegistry
from headrace.state.files import hdfs, objects
from headrace.testing.sinks.harness import SinkTestHarness

ROOT = Path(__file__).resolve().parent.parent
TEXT = {"value": TextMessages()}
ROW = {"k": "int32", "v": "int64"}
H2 = JdbcConnection("jdbc:h2:mem:x", ("h2.jar",), "org.h2.Driver")
MARIADB = "mariadb://me@127.0.0.1:1/d"
POSTGRESQL = "postgresql://127.0.0.1:1/d"
COLLECTOR = ExporterSettings("http://127.0.0.1:1")


def found(source):
    """The splits of a source."""
    return source.create_enumerator(EnumeratorContext(1)).discover()


def read(source):
    """A reader of a source, which is open."""
    source.create_reader().open(ReaderContext("reader", 0, 1, lambda: 0, MetricGroup(), lambda batch: None))


def cdc_source():
    place = {"username": "u", "password": "p", "database": "d", "table": "t", "slot": "s"}
    return PostgresCdcSource("127.0.0.1", **place, schema=ROW, kind_column="op")


STARTS = [
    ("avro", "fastavro", lambda: AvroMessages(ROW)),
    ("avro", "confluent_kafka", lambda: SchemaRegistry("http://127.0.0.1:1").schema_of(b"\0\0\0\0\1")),
    ("cluster", "ray.job_submission", lambda: ApplicationClient("http://127.0.0.1:1")),
    ("cassandra", "cassandra", lambda: harness_of(CassandraSink("127.0.0.1:1", "k.t", schema=ROW, key="k"))),
    ("delta", "deltalake", lambda: DeltaSource("/nowhere")),
    ("hbase", "happybase", lambda: harness_of(HbaseSink("127.0.0.1:1", "t", schema={"k": "int32"}))),
    ("hdfs", "hdfs_native", hdfs._package),
    ("hudi", "hudi", lambda: HudiSource("/nowhere")),
    ("iceberg", "pyiceberg", lambda: IcebergSource("a.b", catalog={"type": "sql", "uri": "sqlite://"})),
    ("jdbc", "jpype", lambda: SinkTestHarness(SqlSink.at_least_once(H2, "t")).start()),
    ("kafka", "confluent_kafka", lambda: found(KafkaSource("127.0.0.1:1", "t", **TEXT))),
    ("kinesis", "boto3", lambda: found(KinesisSource("s", **TEXT, region="eu-west-1"))),
    ("mariadb", "pymysql", lambda: SinkTestHarness(SqlSink.at_least_once(MARIADB, "t")).start()),
    ("mongodb", "pymongo", lambda: harness_of(MongodbSink("mongodb://127.0.0.1:1", "d.c", schema=ROW, key="k"))),
    ("mqtt", "paho", lambda: read(MqttSource("mqtt://127.0.0.1:1", "t", **TEXT, client_id="c"))),
    ("opensearch", "opensearchpy", lambda: harness_of(OpenSearchSink("http://127.0.0.1:1", "i", key="k"))),
    ("opentelemetry", "opentelemetry", lambda: MetricExporter(COLLECTOR, "cluster", "1")),
    ("postgresql", "psycopg", lambda: SinkTestHarness(SqlSink.at_least_once(POSTGRESQL, "t")).start()),
    ("postgresql", "psycopg", lambda: found(cdc_source())),
    ("protobuf", "google.protobuf", lambda: ProtobufMessages("events_pb2.Event")),
    ("pulsar", "pulsar", lambda: found(PulsarSource("pulsar://127.0.0.1:1", "t", **TEXT))),
    ("rabbitmq", "pika", lambda: read(RabbitQueueSource("amqp://127.0.0.1:1", "q", **TEXT))),
    ("redis", "redis", lambda: read(RedisStreamSource("redis://127.0.0.1:1", "s", **TEXT))),
    ("s3", "obstore", objects._client),
    ("websocket", "websockets", lambda: read(WebSocketSource("ws://127.0.0.1:1", **TEXT))),
    ("zookeeper", "kazoo", zookeeper_lease._kazoo),
]
"""Extras, what they bring, and how a program comes to need it; there is no server."""

WITHOUT = {
    "completion": "commands are completed by nobody, and work",
    "spark": "tests/actors/spark/test_java.py, tests/api/cli/test_programs.py",
    **dict.fromkeys(("test", "dev", "docs"), "for who works on Headrace"),
}
"""Extras that no program is refused for here, and why, or where it is tested."""


@pytest.fixture
def is_gone(monkeypatch):
    """Has a package gone, as if it had never been installed."""

    def take(package):
        for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)

    libraries = (avro_types.avro_library, hdfs._package, objects._client)
    for library in libraries:
        library.cache_clear()  # others of this process have had it
    yield take
    for library in libraries:
        library.cache_clear()


@pytest.mark.parametrize(
    ("extra", "package", "start"), STARTS, ids=[f"{extra}-{package}" for extra, package, _ in STARTS]
)
def test_what_is_missing_is_named_with_its_command(extra, package, start, is_gone):
    is_gone(package)
    with pytest.raises(ConfigurationError) as refused:
        start()
    assert refused.value.hint == f"pip install 'headrace[{extra}]'"


def test_no_extra_is_left_out():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.M))
    assert len(extras) > 20
    assert extras == {extra for extra, _, _ in STARTS} | WITHOUT.keys()
