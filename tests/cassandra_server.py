"""A real Cassandra for tests: one node in a process, in a temporary directory, on free ports of the loopback; may be
killed and started again.

Its classes come from ``CASSANDRA_JARS``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java 17, or no client.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "5.0.6"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>cassandra</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

_SETTINGS = """cluster_name: tests
num_tokens: 4
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage_port}"}}]
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage_port}
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
commitlog_sync: group
commitlog_sync_group_window: 5ms
commitlog_segment_size: 8MiB
commitlog_total_space: 64MiB
memtable_heap_space: 96MiB
memtable_offheap_space: 64MiB
file_cache_size: 32MiB
auto_snapshot: false
concurrent_reads: 8
concurrent_writes: 8
disk_optimization_strategy: ssd
data_file_directories: ["{directory}/data"]
commitlog_directory: "{directory}/commitlog"
saved_caches_directory: "{directory}/saved_caches"
hints_directory: "{directory}/hints"
cdc_raw_directory: "{directory}/cdc_raw"
"""

_LOGGING = """<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""

_EXPORTED = (
    "java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql", "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file", "jdk.attach/sun.tools.attach",
)  # fmt: skip
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.util", "java.base/java.nio", "java.base/java.util.concurrent", "java.base/sun.nio.ch",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar", "jdk.management/com.sun.management.internal", "jdk.compiler/com.sun.tools.javac",
)  # fmt: skip


class CassandraServer(ServerProcess):
    """One node, which keeps what it has answered when it is killed."""

    start_timeout_s = 240.0

    def __init__(self, java: Path, jars: Path, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        settings, logging = directory / "cassandra.yaml", directory / "logback.xml"
        settings.write_text(_SETTINGS.format(port=self.port, storage_port=free_port(), directory=directory))
        logging.write_text(_LOGGING)
        (agent,) = jars.glob("jamm-*.jar")
        properties = {
            "cassandra.config": settings.as_uri(),
            "cassandra.storagedir": str(directory),
            "cassandra-foreground": "yes",
            "cassandra.ring_delay_ms": "0",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "logback.configurationFile": str(logging),
            "java.io.tmpdir": str(directory),
            "jdk.attach.allowAttachSelf": "true",
            "io.netty.tryReflectionSetAccessible": "true",
        }
        self._command = [
            str(java / "bin" / "java"), f"-javaagent:{agent}", "-Xmx512m", "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=256m",
            *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED),
            *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip
        # A client of the tests' own; None before the first question, and behind a death.
        self._cluster: Any = None
        self._session: Any = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers questions."""
        from cassandra import DriverException
        from cassandra.cluster import NoHostAvailable

        self.launch(self._command, cwd=self._directory)
        self.wait_until(self._answers, NoHostAvailable, DriverException, OSError)

    def _answers(self) -> bool:
        return bool(self.ask("SELECT release_version FROM system.local"))

    def ask(self, text: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """What it answers to a statement, as tuples."""
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy
        from cassandra.query import tuple_factory

        if self._session is None:
            profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=30, row_factory=tuple_factory)
            self._cluster = Cluster(
                ["127.0.0.1"], self.port, execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=5,
                connect_timeout=30, reconnection_policy=ConstantReconnectionPolicy(0.2, None),
            )  # fmt: skip
            self._session = self._cluster.connect()
        return list(self._session.execute(text, values))

    def kill(self) -> None:
        """Kill it with signal 9."""
        cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None:
            cluster.shutdown()
        super().kill()

    def new_keyspace(self) -> str:
        """A keyspace that no other test has."""
        name = f"k{uuid.uuid4().hex[:12]}"
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self.ask(f"CREATE KEYSPACE {name} WITH replication = {replication}")
        return name

    def new_table(self, columns: str, behind: str = "") -> str:
        """A table in the keyspace of tests; gives its name behind that of the keyspace."""
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self.ask(f"CREATE KEYSPACE IF NOT EXISTS tests WITH replication = {replication}")
        name = f"tests.t{uuid.uuid4().hex[:12]}"
        self.ask(f"CREATE TABLE {name} ({columns}) {behind}")
        return name


def new_server(directory: Path) -> CassandraServer:
    """A server that is not started; skips the test if it cannot be."""
    need_client("cassandra", "cassandra-driver")
    java = java_home(17, "Cassandra")
    home = os.environ.get("CASSANDRA_JARS")
    jars = Path(home) if home else jars_of(_POM, f"Cassandra {VERSION}", f"cassandra-{VERSION}")
    return CassandraServer(java, jars, directory)


@pytest.fixture(scope="session")
def cassandra_server(request: pytest.FixtureRequest) -> CassandraServer:
    """One for all tests of a process; each has tables of its own."""
    return the_one("cassandra", request, new_server)
