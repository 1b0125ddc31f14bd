"""A real schema registry for tests, Apicurio's, which answers Confluent's protocol: in memory, on a free port of the
loopback.

It comes from Maven's registry by ``mvn``, once, into a folder for caches. Skips the test, with the reason, where it
cannot be had, or there is no Java.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import pytest
from free_ports import free_port
from java_homes import java_for
from server_process import ServerProcess, need_client, the_one

VERSION = "2.6.13.Final"
FETCH_TIMEOUT_S = 300
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


def fetched() -> Path:
    """The folder with the server; fetched if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests" / f"registry-{VERSION}"
    if cache.is_dir():
        return cache
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("there is no Maven to fetch a schema registry")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as name:
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={name}"]
        try:
            subprocess.run(command, cwd=name, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S, text=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"the schema registry {VERSION} could not be fetched: {str(error.stdout or error)[-500:]}")
        with tarfile.open(next(Path(name).glob("*.tar.gz"))) as packed:
            packed.extractall(Path(name) / "server", filter="data")
        with contextlib.suppress(OSError):  # another process was faster
            (Path(name) / "server").rename(cache)
    return cache


class RegistryServer(ServerProcess):
    """One registry, which forgets its schemas with its end."""

    def __init__(self, executable: str, home: Path, directory: Path) -> None:
        super().__init__(directory)
        self._home = home
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        options = [
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.port={port}",
            "-Dquarkus.http.host=127.0.0.1",
        ]
        self._command = [executable, *options, "-jar", str(next(home.glob("*-runner.jar")))]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command, cwd=self._home)
        self.wait_until(self._answers, OSError)

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/subjects", timeout=1):
            return True


@pytest.fixture(scope="session")
def registry_url(request: pytest.FixtureRequest) -> str:
    """The address of one for all tests of a process; each has subjects of its own."""
    need_client("fastavro", "fastavro")
    executable, home = java_for("a schema registry"), fetched()
    return the_one("registry", request, lambda directory: RegistryServer(executable, home, directory)).url
