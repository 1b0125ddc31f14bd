"""Storm itself for tests: a cluster of its own in one Java process (``LocalCluster``), which runs a topology and ends.

Its classes come from Maven's registry by ``mvn``, once, into a folder for caches; with them comes Storm's library for
components in Python. Skips the test, with the reason, where they cannot be had, or there is no Java or no compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from java_homes import java_for
from maven_jars import jars_of

VERSION = "2.8.3"
PROGRAMS = Path(__file__).parent / "data" / "storm"
RUN_TIMEOUT_S = 240

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>storm</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.storm</groupId><artifactId>storm-server</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.storm</groupId><artifactId>multilang-python</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class StormServer:
    """Storm's classes, and a folder with programs for its library."""

    def __init__(self, java: str, jars: Path, folder: Path) -> None:
        self._java = java
        self._jars = jars
        self._folder = folder
        # Programs, and Storm's library beside them.
        self.resources = folder / "resources"
        with zipfile.ZipFile(jars / f"multilang-python-{VERSION}.jar") as library:
            library.extract("resources/storm.py", folder)
        for path in PROGRAMS.glob("storm_*.py"):
            shutil.copy(path, self.resources)

    def compile(self) -> None:
        """Compile the program that runs a topology; skips the test if there is no compiler."""
        compiler = shutil.which("javac")
        if compiler is None:
            pytest.skip("there is no javac to compile a topology for Storm")
        source = str(PROGRAMS / "WordsInStorm.java")
        classes = str(self._folder / "classes")
        subprocess.run([compiler, "-nowarn", "-cp", f"{self._jars}/*", "-d", classes, source], check=True)

    def counted(self, lines: list[str]) -> Counter[tuple[str, int]]:
        """What Storm makes of lines by the programs that split them and count their words."""
        given, out = self._folder / "lines", self._folder / "out"
        given.write_text("\n".join(lines) + "\n")
        out.unlink(missing_ok=True)
        programs = [str(self.resources / name) for name in ("storm_split.py", "storm_count.py")]
        options = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
        path = f"{self._folder / 'classes'}:{self._jars}/*"
        command = [self._java, *options, path, "WordsInStorm", str(given), str(out), *programs]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
        rows = (line.split("\t") for line in out.read_text().splitlines())
        return Counter((word, int(number)) for word, number in rows)


@pytest.fixture(scope="session")
def storm_server(tmp_path_factory: pytest.TempPathFactory) -> StormServer:
    """Storm for all tests of a process."""
    java = java_for("Storm")
    server = StormServer(java, jars_of(_POM, f"Storm {VERSION}", f"storm-{VERSION}"), tmp_path_factory.mktemp("storm"))
    server.compile()
    return server
