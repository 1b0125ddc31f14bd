"""A real Kafka broker for tests, in a temporary directory, on free ports of the loopback; may be killed and started
again.

Its classes come from ``KAFKA_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_for
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "4.3.1"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.17</version></dependency>
  </dependencies>
</project>
"""

_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
"""By the names of scripts in Kafka's archive, the classes that they run."""


def fetched_jars() -> Path:
    """The folder with the broker's jars; fetched if it is not there.

    Skips the test if they cannot be had.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        return Path(home) / "libs"
    return jars_of(_POM, f"Kafka {VERSION}", f"kafka-{VERSION}")


class KafkaServer(ServerProcess):
    """One broker, which is its own controller."""

    def __init__(self, jars: Path, executable: str, directory: Path) -> None:
        super().__init__(directory)
        self._command = [executable, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        self.port, controller_port = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,
        }
        self._settings = directory / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = "headraceheadraceheadra"
        self._run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self, *command: str, text: str | None = None) -> str:
        done = subprocess.run([*self._command, *command], check=True, capture_output=True, text=True, input=text)
        return done.stdout

    def write_commands(self, folder: Path) -> Path:
        """Write Kafka's own commands by the names that they have in its archive into a folder; gives the folder."""
        folder.mkdir()
        for name, tool in _TOOLS.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*self._command, tool])} "$@"\n')
            script.chmod(0o755)
        return folder

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import confluent_kafka.admin

        self.launch([*self._command, "kafka.Kafka", str(self._settings)])
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self.wait_until(lambda: admin.list_topics(timeout=1), confluent_kafka.KafkaException)

    def add_partitions(self, topic: str, num_partitions: int) -> None:
        """Have a topic have so many partitions."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_partitions([NewPartitions(topic, num_partitions)])[topic].result()

    def create_topic(self, num_partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Make a topic that keeps its records, however old they say to be; gives its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.address})
        config = {key.replace("_", "."): value for key, value in {"retention_ms": "-1", **settings}.items()}
        admin.create_topics([NewTopic(name, num_partitions, 1, config=config)])[name].result()
        return name

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; it is gone behind that."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([topic])[topic].result()
        while topic in admin.list_topics(timeout=30).topics:
            pass

    def produce(self, topic: str, values: list[Any], **options: Any) -> None:
        """Write values, as bytes or texts."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(topic, value, **options)
        assert producer.flush(30) == 0

    def committed(self, topic: str) -> list[Any]:
        """What a reader of committed records sees from beginning to end: the client's messages."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        settings = {"bootstrap.servers": self.address, "group.id": "tests", "enable.auto.commit": False}
        settings |= {"isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer(settings)
        try:
            partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            found, open_partitions = [], set(partitions)
            deadline = time.monotonic() + 60
            while open_partitions:
                assert time.monotonic() < deadline, "the topic cannot be read to its end"
                for message in consumer.consume(10_000, 0.1):
                    if message.error() is None:
                        found.append(message)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(message.partition())
            return found
        finally:
            consumer.close()

    def seen_by_java(self, topic: str, at_most: int = (1 << 31) - 1) -> list[str]:
        """What Kafka's own console consumer sees of committed records: values, as text.

        With fewer than so many it waits for more, for twenty seconds.
        """
        consumer = _TOOLS["kafka-console-consumer.sh"]
        options = ["--bootstrap-server", self.address, "--topic", topic, "--from-beginning", "--timeout-ms", "20000"]
        options += ["--max-messages", str(at_most), "--isolation-level", "read_committed"]
        return self._run(consumer, *options).splitlines()


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest) -> KafkaServer:
    """One broker for all tests of a process; each makes topics of its own."""
    need_client("confluent_kafka", "confluent-kafka")
    executable, jars = java_for("Kafka"), fetched_jars()
    return the_one("kafka", request, lambda directory: KafkaServer(jars, executable, directory))
