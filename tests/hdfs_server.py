"""A real HDFS for tests (Hadoop's own small cluster: a name node and a data node in one process), in a temporary
directory, on free ports of the loopback; may be killed and started again.

Its classes come from ``HADOOP_MINICLUSTER_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches.
Skips the test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

import pytest
from free_ports import free_port
from java_homes import java_for
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "3.5.0"

_NEEDED = (
    ("org.apache.hadoop", "hadoop-client-minicluster", VERSION),
    ("org.apache.hadoop", "hadoop-client-runtime", VERSION),
    ("org.apache.hadoop", "hadoop-client-api", VERSION),
    ("org.junit.jupiter", "junit-jupiter-api", "5.12.2"),  # the cluster's class asserts with it
    ("org.mockito", "mockito-core", "4.11.0"),
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>hdfs</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
""".format(
    "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _NEEDED
    )
)


def fetched_jars() -> Path:
    """The folder with the cluster's jars; fetched if it is not there.

    Skips the test if they cannot be had.
    """
    home = os.environ.get("HADOOP_MINICLUSTER_HOME")
    if home:
        return Path(home)
    return jars_of(_POM, f"HDFS {VERSION}", f"hdfs-{VERSION}")


class HdfsServer(ServerProcess):
    """A name node and a data node, which keep their files when they are killed."""

    def __init__(self, jars: Path, executable: str, directory: Path) -> None:
        super().__init__(directory)
        self._jars = jars
        self._is_formatted = False
        port, http_port = free_port(), free_port()
        self.uri = f"hdfs://127.0.0.1:{port}"
        options = ["-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={directory / 'data'}"]
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
        self._java = [executable, *options, *opened, "-cp", f"{jars}/*:{directory}"]
        (directory / "core-site.xml").write_text("<configuration/>")  # which the shell wants
        name = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
        self._command = [*self._java, name, "-nomr", "-nnport", str(port), "-nnhttpport", str(http_port)]

    def start(self) -> None:
        """Start it, and wait until a file can be written: an open port says nothing of data nodes."""
        self.launch(self._command if self._is_formatted else [*self._command, "-format"])
        self.wait_until(self._takes_files, OSError, RuntimeError)
        self._is_formatted = True

    def _takes_files(self) -> bool:
        import hdfs_native

        with hdfs_native.Client(self.uri).create(f"/ready-{uuid.uuid4().hex}") as file:
            file.write(b"1")
        return True

    def seen_by_java(self, *command: str) -> str:
        """What Hadoop's own shell prints: ``hdfs dfs COMMAND``."""
        shell = [*self._java, "org.apache.hadoop.fs.FsShell", "-fs", self.uri, *command]
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(shell, capture_output=True, text=True, encoding="utf-8", env=environment, check=False)
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout


@pytest.fixture(scope="session")
def hdfs_server(request: pytest.FixtureRequest) -> HdfsServer:
    """One for all tests of a process; each has a directory of its own."""
    need_client("hdfs_native", "hdfs-native")
    executable, jars = java_for("HDFS"), fetched_jars()
    return the_one("hdfs", request, lambda directory: HdfsServer(jars, executable, directory))


@pytest.fixture
def hdfs_directory(hdfs_server: HdfsServer) -> str:
    """The URI of a directory that is not there yet."""
    return f"{hdfs_server.uri}/tests/{uuid.uuid4().hex[:12]}"
