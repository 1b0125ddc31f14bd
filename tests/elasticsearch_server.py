"""A real Elasticsearch for tests: the distribution that its makers publish for integration tests, one node, in a
temporary directory, on free ports of the loopback; may be killed and started again.

It comes as an archive from the folder ``ELASTICSEARCH_HOME``, or from Maven's registry by ``mvn``, once, into a folder
for caches. Skips the test, with the reason, where there is neither, no Java 21, or no client.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from search_servers import SearchServer
from server_process import need_client, the_one

VERSION = "9.5.3"
NOBODY = 65534
"""Elasticsearch does not run as root."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>elasticsearch</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.elasticsearch.distribution.integ-test-zip</groupId><artifactId>elasticsearch</artifactId>
    <version>{VERSION}</version><type>zip</type>
  </dependency></dependencies>
</project>
"""


class ElasticsearchServer(SearchServer):
    """One node of Elasticsearch."""

    def __init__(self, java: Path, archive: Path, directory: Path) -> None:
        super().__init__(directory)
        with zipfile.ZipFile(archive) as file:
            file.extractall(directory)
        (self._home,) = directory.glob("elasticsearch-*")
        settings = {
            "cluster.name": "tests", "node.name": "one", "network.host": "127.0.0.1", "http.port": self.port,
            "transport.port": free_port(), "discovery.type": "single-node", "xpack.security.enabled": "false",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }  # fmt: skip
        (self._home / "config" / "elasticsearch.yml").write_text("".join(f"{k}: {v}\n" for k, v in settings.items()))
        for path in (self._home / "bin").iterdir():
            path.chmod(0o755)
        self._options: dict[str, Any] = {}
        if os.getuid() == 0:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            self._options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._java = java
        self._pid_file = self._home / "logs" / "pid"

    def command(self) -> tuple[list[str], dict[str, Any]]:
        home = self._home
        environment = {
            **os.environ, "HOME": str(home), "ES_JAVA_HOME": str(self._java), "ES_TMPDIR": str(home / "logs"),
            "ES_JAVA_OPTS": "-Xms256m -Xmx512m -XX:TieredStopAtLevel=1",
        }  # fmt: skip
        self._pid_file.unlink(missing_ok=True)
        command = [str(home / "bin" / "elasticsearch"), "-p", str(self._pid_file)]
        return command, {"env": environment, "cwd": str(home), **self._options}

    def signal(self, number: int) -> None:
        """To the server itself, which is the child of what starts it, and takes that along."""
        if self._pid_file.exists():
            os.kill(int(self._pid_file.read_text()), number)
        else:
            super().signal(number)


def new_server(directory: Path) -> ElasticsearchServer:
    """A server that is not started; skips the test if it cannot be."""
    need_client("opensearchpy", "opensearch-py")
    java = java_home(21, "Elasticsearch")
    home = os.environ.get("ELASTICSEARCH_HOME")
    folder = Path(home) if home else jars_of(_POM, f"Elasticsearch {VERSION}", f"elasticsearch-{VERSION}")
    (archive,) = folder.glob("*.zip")
    return ElasticsearchServer(java, archive, directory)


@pytest.fixture(scope="session")
def elasticsearch_server(request: pytest.FixtureRequest) -> ElasticsearchServer:
    """One for all tests of a process; each has indices of its own."""
    return the_one("elasticsearch", request, new_server)
