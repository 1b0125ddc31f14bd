"""NiFi's own client of site-to-site, as a Java program, for tests: NiFi itself is in no registry.

With it the server of tests (`nifi_kit`) is checked, which ours is checked against. Its classes come from Maven's
registry by ``mvn``, once, into a folder for caches. Skips the test, with the reason, where they cannot be had, or there
is no Java or no compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from java_homes import java_for
from maven_jars import jars_of

VERSION = "1.28.1"
SOURCE = Path(__file__).parent / "data" / "nifi" / "NiFisOwnClient.java"
RUN_TIMEOUT_S = 120

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>nifi</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.nifi</groupId><artifactId>nifi-site-to-site-client</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.16</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>jcl-over-slf4j</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
"""


class NiFisClient:
    """NiFi's client, for one transaction at a time."""

    def __init__(self, java: str, jars: Path, folder: Path) -> None:
        compiler = shutil.which("javac")
        if compiler is None:
            pytest.skip("there is no javac to compile a program with NiFi's client")
        command = [compiler, "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), str(SOURCE)]
        subprocess.run(command, check=True)
        self._command = [java, "-Xmx128m", "-Dfile.encoding=UTF-8", "-cp", f"{folder}:{jars}/*", "NiFisOwnClient"]

    def send(self, url: str, port: str, texts: list[str]) -> None:
        """Send flow files to an input port."""
        self._run(url, "send", port, *texts)

    def receive(self, url: str, port: str) -> list[tuple[str, str]]:
        """Get flow files of an output port: their texts, with their file names."""
        lines = [line.split() for line in self._run(url, "receive", port).splitlines()]
        return [(words[1], words[2]) for words in lines if words and words[0] == "GOT"]

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        return done.stdout


@pytest.fixture(scope="session")
def nifis_client(tmp_path_factory: pytest.TempPathFactory) -> NiFisClient:
    """NiFi's client for all tests of a process."""
    java = java_for("NiFi's client")
    jars = jars_of(_POM, f"NiFi's client {VERSION}", f"nifi-client-{VERSION}")
    return NiFisClient(java, jars, tmp_path_factory.mktemp("nifi"))
