"""A real Pulsar broker for tests (Pulsar's own standalone: broker, bookie and metadata in one process), in a temporary
directory, on free ports of the loopback; may be killed and started again.

Its classes come from ``PULSAR_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_for
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "4.0.7"
NAMESPACE = "public/default"
MOST_STARTS = 5
ENDLESS = 20
"""So often a registration is not lost by accident; without end it is some thousand times a second."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>pulsar</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{VERSION}</version>
      <exclusions><exclusion><groupId>io.confluent</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
"""


def fetched_jars() -> Path:
    """The folder with the broker's jars; fetched if it is not there.

    Skips the test if they cannot be had.
    """
    home = os.environ.get("PULSAR_HOME")
    if home:
        return Path(home) / "lib"
    return jars_of(_POM, f"Pulsar {VERSION}", f"pulsar-{VERSION}")


_READER = """import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

public class ReadAll {
    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        for (String partition : client.getPartitionsForTopic(arguments[1]).get()) {
            Reader<byte[]> reader = client.newReader().topic(partition).startMessageId(MessageId.earliest).create();
            while (reader.hasMessageAvailable()) {
                System.out.println(new String(reader.readNext(60, TimeUnit.SECONDS).getData(), "UTF-8"));
            }
        }
        System.exit(0);
    }
}
"""
"""Prints what a topic has, by Pulsar's client in Java."""


class PulsarServer(ServerProcess):
    """One broker, which knows again what a producer has sent; some of its settings may be changed."""

    def __init__(self, jars: Path, executable: str, directory: Path, **changed: Any) -> None:
        super().__init__(directory)
        self.port, self._http_port = free_port(), free_port()
        settings = {
            "clusterName": "standalone",
            "brokerServicePort": self.port,
            "webServicePort": self._http_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "metadataStoreUrl": "",
            "configurationMetadataStoreUrl": "",
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "managedLedgerCacheSizeMB": 16,
            "maxMessageSize": 1 << 18,
            "diskUsageWarnThreshold": 0.995,  # other things may have most of the disk
            "diskUsageThreshold": 0.998,
            "diskUsageLwmThreshold": 0.995,
            "defaultNumberOfNamespaceBundles": 1,
            "loadBalancerEnabled": "false",
            "topicLevelPoliciesEnabled": "false",
            "systemTopicEnabled": "false",
            "allowAutoTopicCreation": "false",
            "brokerDeduplicationEnabled": "true",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "brokerShutdownTimeoutMs": 1_000,
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "dbStorage_rocksDB_blockCacheSize": 8 << 20,
            "numIOThreads": 2,
            "numHttpServerThreads": 4,
            "httpMaxRequestHeaderSize": 8192,
            **changed,
        }
        path = directory / "standalone.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        opened = [
            f"--add-opens=java.base/{name}=ALL-UNNAMED"
            for name in ("java.lang", "java.util", "java.nio", "java.util.zip", "sun.net", "jdk.internal.misc")
        ]
        options = ["-Xmx320m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opened]
        options += ["-Dio.netty.tryReflectionSetAccessible=true", f"-Djava.io.tmpdir={directory}"]
        self._java = [executable, "-cp", f"{jars}/*"]
        self._command = [
            executable, *options, "-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter",
            "-c", str(path), "-nss", "-nfw", "--num-bookies", "1", "--bookkeeper-port", str(free_port()),
            "--metadata-dir", str(directory / "metadata"), "--bookkeeper-dir", str(directory / "bookies"),
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until its namespaces are there: an open port is not enough.

        A standalone Pulsar that was killed finds its own registration of before. At times it then deletes and makes it
        anew without end (``ResourceLockImpl`` hears of its own deletion, and takes that for another's), and has no
        bookie in between. Only another start ends that.
        """
        for _ in range(MOST_STARTS):
            said_before = len(self._said())
            self.launch(self._command, cwd=self._directory)
            self.wait_until(self._has_namespaces, OSError)
            if self._said()[said_before:].count(b"was invalidated") < ENDLESS:
                return
            self.kill()
        message = f"after {MOST_STARTS} starts Pulsar still takes its registration away from itself"
        raise AssertionError(message)

    def _said(self) -> bytes:
        return self._log.read_bytes() if self._log.exists() else b""

    def _has_namespaces(self) -> bool:
        there = json.loads(self.admin("GET", "namespaces/public"))
        if NAMESPACE not in there:
            return False
        self.admin("GET", f"persistent/{NAMESPACE}")
        return True

    def admin(self, method: str, path: str, body: Any = None) -> str:
        """Ask the broker's REST."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http_port}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def new_topic(self, num_partitions: int = 0, namespace: str = NAMESPACE) -> str:
        """Make a topic; gives its name."""
        name = f"{namespace}/topic-{uuid.uuid4().hex[:12]}"
        if num_partitions:
            self.admin("PUT", f"persistent/{name}/partitions", num_partitions)
        else:
            self.admin("PUT", f"persistent/{name}")
        return f"persistent://{name}"

    def add_partitions(self, topic: str, num_partitions: int) -> None:
        """Have a topic have so many partitions."""
        self.admin("POST", f"persistent/{topic.removeprefix('persistent://')}/partitions", num_partitions)

    def num_messages(self, topic: str) -> int:
        """How many messages the partitions of a topic have, if they were sent alone."""
        about = json.loads(
            self.admin("GET", f"persistent/{topic.removeprefix('persistent://')}/partitioned-internalStats")
        )
        return sum(one["numberOfEntries"] for one in about["partitions"].values())

    def seen_by_java(self, topic: str) -> list[str]:
        """What Pulsar's client in Java reads from beginning to end, partition by partition."""
        program = self._directory / "ReadAll.java"
        program.write_text(_READER)
        command = [*self._java, str(program), self.url, topic]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return [line for line in done.stdout.splitlines() if line.startswith("{")]

    def client(self) -> Any:
        """Pulsar's own client, which says nothing."""
        import pulsar

        return pulsar.Client(self.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))

    def send(self, topic: str, values: Iterable[Any], *, batching: bool = True, **options: Any) -> None:
        """Send messages to a topic or a partition."""
        client = self.client()
        try:
            producer = client.create_producer(topic, batching_enabled=batching, block_if_queue_full=True)
            for value in values:
                data = value if isinstance(value, bytes) else str(value).encode()
                producer.send_async(data, lambda _result, _id: None, **options)
            producer.flush()
        finally:
            client.close()

    def messages(self, topic: str) -> list[Any]:
        """What Pulsar's own reader gives from beginning to end, partition by partition."""
        import pulsar

        client, found = self.client(), []
        try:
            for partition in client.get_topic_partitions(topic):
                reader = client.create_reader(partition, pulsar.MessageId.earliest)
                while reader.has_message_available():
                    found.append(reader.read_next(10_000))
        finally:
            client.close()
        return found

    def values(self, topic: str) -> list[str]:
        """Their data."""
        return [message.data().decode() for message in self.messages(topic)]


@pytest.fixture(scope="session")
def pulsar_server(request: pytest.FixtureRequest) -> PulsarServer:
    """One for all tests of a process; each has topics of its own."""
    need_client("pulsar", "pulsar-client")
    executable, jars = java_for("Pulsar"), fetched_jars()
    return the_one("pulsar", request, lambda directory: PulsarServer(jars, executable, directory))
