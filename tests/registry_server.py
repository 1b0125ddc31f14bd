"""A real schema registry for tests, Apicurio's, which answers Confluent's protocol: in memory, on a free port of the
loopback.

It comes from Maven's registry by ``mvn``, once, into a folder for caches. Skips the test, with the reason, where it
cannot be had, or there is no Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from zookeeper_server import java

VERSION = "2.6.13.Final"
START_TIMEOUT_S = 120
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


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running registry without schemas."""
    if importlib.util.find_spec("fastavro") is None:
        pytest.skip("fastavro is not installed")
    executable, home, port = java(), fetched(), free_port()
    jar = next(home.glob("*-runner.jar"))
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    log = tmp_path_factory.mktemp("registry") / "log"
    with open(log, "ab") as out:
        process = subprocess.Popen([executable, *options, "-jar", str(jar)], stdout=out, stderr=out, cwd=home)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"{url}/subjects", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()[-2_000:]
                assert time.monotonic() < deadline, log.read_text()[-2_000:]
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait(10)
