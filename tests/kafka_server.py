"""A real Kafka for tests, of one broker or three, in a temporary directory, on free ports of the loopback; brokers may
be killed and started again.

Its classes come from ``KAFKA_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
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


class KafkaTopics(ABC):
    """What a running Kafka is asked, whether it is one broker or several."""

    num_copies = 1
    """Of each partition of a topic that is made."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is found: ``host:port``, several with commas between."""

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
        config = {
            key.replace("_", "."): value
            for key, value in {
                "retention_ms": "-1",
                "min_insync_replicas": str(1 + self.num_copies // 2),
                **settings,
            }.items()
        }
        admin.create_topics([NewTopic(name, num_partitions, self.num_copies, config=config)])[name].result()
        return name

    def partition(self, topic: str, number: int = 0) -> Any:
        """Where a partition is, as the client has it: ``leader``, ``replicas`` and ``isrs``."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address})
        return admin.list_topics(topic, timeout=30).topics[topic].partitions[number]

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


class KafkaServer(KafkaTopics, ServerProcess):
    """One broker, which is a controller, too.

    Args:
        jars: Its classes.
        executable: Java.
        directory: For all that it keeps.
        number: Among several.
        voters: The port of each one's controller, by number; None if it is alone.
        heap_mb: Of its memory.
    """

    def __init__(
        self,
        jars: Path,
        executable: str,
        directory: Path,
        number: int = 1,
        voters: dict[int, int] | None = None,
        heap_mb: int = 384,
    ) -> None:
        options = [f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        KafkaTopics.__init__(self, [executable, *options, "-cp", f"{jars}/*"])
        ServerProcess.__init__(self, directory)
        self.port = free_port()
        voters = voters or {number: free_port()}
        num_copies = len(voters)
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{port}" for one, port in voters.items()),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{voters[number]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": num_copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": num_copies,
            "transaction.state.log.min.isr": 1 + num_copies // 2,
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

    def launch_broker(self) -> None:
        """Start its process, and wait for nothing."""
        self.launch([*self._command, "kafka.Kafka", str(self._settings)])

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch_broker()
        self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        """Wait until it says which topics there are."""
        import confluent_kafka.admin

        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self.wait_until(lambda: admin.list_topics(timeout=1), confluent_kafka.KafkaException)


class KafkaBrokers(KafkaTopics):
    """Three brokers, of which one dies at a time. Each has a copy of each partition; what two have is confirmed.

    Which one dies next is known beforehand: `pid` is its process, `kill` kills it, and `start` starts it again.

    Args:
        jars: Their classes.
        executable: Java.
        directory: For all that they keep.
        rng: Chooses who dies next.
    """

    num_copies = 3

    def __init__(self, jars: Path, executable: str, directory: Path, rng: random.Random) -> None:
        voters = {number: free_port() for number in range(1, self.num_copies + 1)}
        self._brokers = []
        for number in voters:
            own = directory / f"broker-{number}"
            own.mkdir()
            self._brokers.append(KafkaServer(jars, executable, own, number, voters, heap_mb=256))
        super().__init__(self._brokers[0]._command)
        self._rng = rng
        self._down = list(self._brokers)
        self._next = rng.choice(self._brokers)

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self._brokers)

    @property
    def pid(self) -> int:
        """The process of the one that dies next."""
        return self._next.pid

    def aim_at(self, topic: str) -> None:
        """Have the leader of a topic's first partition die next."""
        self._next = self._brokers[self.partition(topic).leader - 1]

    def kill(self) -> None:
        """Kill the one that dies next with signal 9."""
        self._next.kill()
        self._down = [self._next]

    def start(self) -> None:
        """Start those that are down, and wait until they have all that the others have."""
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        for broker in self._down:
            broker.launch_broker()
        for broker in self._down:
            broker.wait_until_it_answers()
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

        def have_caught_up() -> bool:
            topics = admin.list_topics(timeout=5).topics.values()
            partitions = [partition for topic in topics for partition in topic.partitions.values()]
            return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)

        self._next.wait_until(have_caught_up, confluent_kafka.KafkaException)
        self._down = []
        self._next = self._rng.choice(self._brokers)

    def stop(self) -> None:
        """Kill all of them."""
        for broker in self._brokers:
            broker.stop()
        self._down = list(self._brokers)


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest) -> KafkaServer:
    """One broker for all tests of a process; each makes topics of its own."""
    need_client("confluent_kafka", "confluent-kafka")
    executable, jars = java_for("Kafka"), fetched_jars()
    return the_one("kafka", request, lambda directory: KafkaServer(jars, executable, directory))
