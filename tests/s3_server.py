"""A real S3 server for tests (S3Proxy over a temporary directory), on a free port of the loopback; may be killed and
started again.

Its classes come from ``S3PROXY_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from free_ports import free_port
from maven_jars import jars_of
from zookeeper_server import java

VERSION = "4.1.0"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 10
ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>s3proxy</artifactId><version>1</version>
  <dependencyManagement><dependencies>
    <dependency><!-- an older one, which others ask for, lacks what Jackson 3 needs -->
      <groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-annotations</artifactId><version>2.21</version>
    </dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.gaul</groupId><artifactId>s3proxy</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""


def fetched_jars() -> Path:
    """The folder with the server's jars; fetched if it is not there.

    Skips the test if they cannot be had.
    """
    home = os.environ.get("S3PROXY_HOME")
    if home:
        return Path(home)
    return jars_of(_POM, f"S3Proxy {VERSION}", f"s3proxy-{VERSION}")


class S3Server:
    """One server, which keeps its objects when it is killed."""

    def __init__(self, jars: Path, executable: str, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{free_port()}"
        self.buckets = directory / "buckets"
        self.buckets.mkdir()
        settings = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "unused",
            "jclouds.credential": "unused",
            "jclouds.filesystem.basedir": self.buckets,
        }
        file = directory / "s3proxy.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-DLOG_LEVEL=warn"]
        self._command = [executable, *options, "-cp", f"{jars}/*", "org.gaul.s3proxy.Main", "--properties", str(file)]

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment must say."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(self.endpoint, timeout=1)
                return
            except urllib.error.HTTPError:
                return  # it wants to know who is asking
            except OSError:
                tail = (self._directory / "log").read_text()[-2_000:]
                assert self._process.poll() is None, tail
                assert time.monotonic() < deadline, tail
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill it with signal 9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def make_bucket(self) -> str:
        """Make an empty bucket; gives its name. It is a directory of the server's."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        (self.buckets / name).mkdir()
        return name


_RUNNING: list[S3Server] = []
"""The server, once it runs: a fixture is another one in each module that imports it."""


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """One server for all tests of a process; each makes buckets of its own."""
    if not _RUNNING:
        if importlib.util.find_spec("obstore") is None:
            pytest.skip("obstore is not installed")
        executable = java()
        if executable is None:
            pytest.skip("there is no Java to run S3Proxy")
        jars = fetched_jars()
        directory = Path(tempfile.mkdtemp(prefix="headrace-s3-", dir="/tmp"))
        request.config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
        server = S3Server(jars, executable, directory)
        request.config.add_cleanup(server.kill)
        server.start()
        _RUNNING.append(server)
    return _RUNNING[0]


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket; this process may use it."""
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.make_bucket()}"
