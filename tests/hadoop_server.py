"""Hadoop's own programs for tests: what writes and reads SequenceFiles, Hadoop streaming in one process, and Avro's own
writer and reader of files.

There is no server: each is a Java program that runs and ends. Hadoop's classes are those of `hdfs_server`; LZ4, Hadoop
streaming and Avro are fetched beside them. Skips the test, with the reason, where there is no Maven or no Java
compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import hdfs_server
import pytest
from java_homes import java_for
from maven_jars import jars_of

STREAMING_VERSION = "3.4.2"
"""Runs with the classes of Hadoop that the other programs have."""

_NEEDED = (
    ("org.lz4", "lz4-java", "1.8.0"),
    ("commons-cli", "commons-cli", "1.9.0"),
    ("org.apache.hadoop", "hadoop-streaming", STREAMING_VERSION),
)
_NO_OTHERS = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_POM_OF = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>hadoop</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_POM = _POM_OF.format(
    "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{_NO_OTHERS}</dependency>"
        for group, name, version in _NEEDED
    )
)
AVRO_VERSION = "1.12.1"
_OF_AVRO = (
    ("org.apache.avro", "avro", AVRO_VERSION),
    ("org.xerial.snappy", "snappy-java", "1.1.10.7"),
    ("com.github.luben", "zstd-jni", "1.5.6-3"),
    ("org.tukaani", "xz", "1.9"),
)
_AVRO_POM = _POM_OF.format(
    "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _OF_AVRO
    )
)
_OPTIONS = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
_TIMEOUT_S = 240


class Hadoop:
    """Hadoop's classes, and the program of `tests/data/SequencePairs.java` compiled with them."""

    def __init__(self, directory: Path) -> None:
        self._java = java_for("Hadoop")
        compiler = shutil.which("javac")
        if compiler is None:
            pytest.skip("there is no Java compiler")
        more = jars_of(_POM, f"Hadoop streaming {STREAMING_VERSION}", f"hadoop-programs-{STREAMING_VERSION}")
        self._classes = f"{directory}:{more}/*:{hdfs_server.fetched_jars()}/*"
        source = Path(__file__).parent / "data" / "SequencePairs.java"
        subprocess.run([compiler, "-d", directory, "-cp", self._classes, source], check=True, capture_output=True)

    def _run(self, words: Iterable[str], given: str = "") -> subprocess.CompletedProcess[str]:
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
        command = [self._java, *_OPTIONS, *opened, "-cp", self._classes, *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)

    def sequence_pairs(self, commands: Iterable[str]) -> list[str]:
        """What the program answers to each line: ``write``, ``read`` or ``splits``."""
        done = self._run(["SequencePairs"], "".join(f"{line}\n" for line in commands))
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout.splitlines()

    def streaming(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a job of Hadoop streaming in one process (`LocalJobRunner`)."""
        local = ["-D", "mapreduce.framework.name=local", "-D", "fs.defaultFS=file:///"]
        return self._run(["org.apache.hadoop.streaming.HadoopStreaming", *local, *options])


class AvroPrograms:
    """Avro's classes, and the program of `tests/data/AvroRecords.java` compiled with them."""

    def __init__(self, directory: Path) -> None:
        self._java, compiler = java_for("Avro"), shutil.which("javac")
        if compiler is None:
            pytest.skip("there is no Java compiler")
        jars = jars_of(_AVRO_POM, f"Avro {AVRO_VERSION}", f"avro-{AVRO_VERSION}")
        self._classes = f"{directory}:{jars}/*"
        source = Path(__file__).parent / "data" / "AvroRecords.java"
        subprocess.run([compiler, "-d", directory, "-cp", self._classes, source], check=True, capture_output=True)

    def records(self, commands: Iterable[str]) -> list[str]:
        """What the program answers to each line: ``write``, ``splits`` or ``read``."""
        command = [self._java, *_OPTIONS, "-cp", self._classes, "AvroRecords"]
        given = "".join(f"{line}\n" for line in commands)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout.splitlines()


@pytest.fixture(scope="session")
def avro_of_java() -> Iterator[AvroPrograms]:
    """One for all tests of a process."""
    with tempfile.TemporaryDirectory(prefix="headrace-avro-", dir="/tmp") as directory:
        yield AvroPrograms(Path(directory))


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Hadoop]:
    """One for all tests of a process."""
    with tempfile.TemporaryDirectory(prefix="headrace-hadoop-", dir="/tmp") as directory:
        yield Hadoop(Path(directory))
