"""A real S3 server for tests (S3Proxy over a temporary directory), on a free port of the loopback; may be killed and
started again.

Its classes come from ``S3PROXY_HOME``, or from Maven's registry by ``mvn``, once, into a folder for caches. Skips the
test, with the reason, where there is neither, no Java, or no client.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from free_ports import free_port
from java_homes import java_for
from maven_jars import jars_of
from server_process import ServerProcess, need_client, the_one

VERSION = "4.1.0"
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


_HALF_WRITTEN = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class S3Server(ServerProcess):
    """One server, which keeps its objects when it is killed."""

    def __init__(self, jars: Path, executable: str, directory: Path) -> None:
        super().__init__(directory)
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
        """Start it, and wait until it answers.

        What a death has left half written goes first: S3Proxy writes an object beside its name, with a UUID behind it,
        and shows that as an object of its own. No other store does.
        """
        for path in [path for path in self.buckets.rglob("*") if _HALF_WRITTEN.search(path.name)]:
            path.unlink()
        self.launch(self._command)
        self.wait_until(self._answers, OSError)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=1)
        except urllib.error.HTTPError:
            return True  # it wants to know who is asking
        return True

    def make_bucket(self) -> str:
        """Make an empty bucket; gives its name. It is a directory of the server's."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        (self.buckets / name).mkdir()
        return name


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """One server for all tests of a process; each makes buckets of its own."""
    need_client("obstore", "obstore")
    executable, jars = java_for("S3Proxy"), fetched_jars()
    return the_one("s3", request, lambda directory: S3Server(jars, executable, directory))


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket; this process may use it."""
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.make_bucket()}"
