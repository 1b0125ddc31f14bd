"""A real H2 for tests of drivers of Java: a server with a process of its own, in a folder, on a free port of the
loopback; may be killed and started again.

Its jar, which is server, driver and shell, comes from Maven's registry by ``mvn``, once, into a folder for caches.
Skips the test, with the reason, where it cannot be had, or there is no Java or no JPype.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from java_homes import java_home
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "2.3.232"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>h2</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.h2database</groupId><artifactId>h2</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""


class H2Server(ServerProcess):
    """The server, with one database. Its password is ``s3cret``, to be looked for in texts where it must not be."""

    password = "s3cret"

    def __init__(self, jar: Path, java: Path, directory: Path) -> None:
        super().__init__(directory)
        self.jar = jar
        self._java = str(java / "bin" / "java")
        self.port = free_port()
        # Without a delay, or a kill loses the commits of half a second.
        self.url = f"jdbc:h2:tcp://127.0.0.1:{self.port}/./shop;WRITE_DELAY=0"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        tool = ["-cp", str(self.jar), "org.h2.tools.Server", "-tcp", "-tcpPort", str(self.port), "-ifNotExists"]
        command = [self._java, "-Xmx256m", "-XX:TieredStopAtLevel=1", *tool, "-baseDir", str(self._directory)]
        self.launch(command, cwd=self._directory)
        self.wait_until(self._answers, OSError)

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def shell(self, *statements: str) -> str:
        """What H2's own shell says of statements."""
        command = [self._java, "-cp", str(self.jar), "org.h2.tools.Shell", "-url", self.url, "-user", "me"]
        command += ["-password", self.password, "-sql", "; ".join(statements)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def connection(self) -> Any:
        """How a program reaches it."""
        from headrace.connectors.sql import JdbcConnection

        return JdbcConnection(self.url, (str(self.jar),), "org.h2.Driver", "me", self.password)

    def execute(self, *statements: str) -> None:
        """Run statements."""
        session = self.connection()()
        for statement in statements:
            session.cursor().execute(statement)
        session.commit()
        session.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives."""
        session = self.connection()()
        try:
            return session.cursor().execute(query).fetchall()
        finally:
            session.close()

    def clear(self) -> None:
        """Drop all tables."""
        self.execute("DROP ALL OBJECTS")


@pytest.fixture(scope="session")
def h2_server(request: pytest.FixtureRequest) -> H2Server:
    """One server for all tests of a process."""
    need_client("jpype", "JPype1")
    java = java_home(11, "H2")
    jar = next(jars_of(_POM, f"H2 {VERSION}", f"h2-{VERSION}").glob("h2-*.jar"))
    return the_one("h2", request, lambda directory: H2Server(jar, java, directory))
