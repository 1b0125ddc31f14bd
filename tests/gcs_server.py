"""fake-gcs-server, an emulator of Google Cloud Storage, for tests: on a free port of the loopback, with Google's XML
API in front of it (`gcs_front`). It forgets its objects when it is stopped.

Its program comes from ``FAKE_GCS_SERVER``, or is built by ``go install``, once (for some minutes), into a folder for
caches. Skips the test, with the reason, where there is neither, or no client.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
import uuid
from pathlib import Path

import pytest
from free_ports import free_port
from gcs_front import GcsFront
from server_process import ServerProcess, need_client, the_one

VERSION = "1.56.1"
BUILD_TIMEOUT_S = 900


def fetched_program() -> Path:
    """The server's program; built if it is not there.

    Skips the test if it cannot be had.
    """
    given = os.environ.get("FAKE_GCS_SERVER")
    if given:
        return Path(given)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"
    program = caches / f"fake-gcs-server-{VERSION}" / "fake-gcs-server"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"there is no fake-gcs-server {VERSION}, and no Go to build it")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=caches) as folder:
        command = [go, "install", f"github.com/fsouza/fake-gcs-server@v{VERSION}"]
        environment = {**os.environ, "GOBIN": folder}
        try:
            subprocess.run(
                command,
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
                timeout=BUILD_TIMEOUT_S,
                text=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"fake-gcs-server {VERSION} could not be built: {str(error.stderr or error)[-500:]}")
        (Path(folder) / "fake-gcs-server").replace(program)
    return program


class GcsServer(ServerProcess):
    """One server, and what stands in front of it."""

    def __init__(self, program: Path, directory: Path) -> None:
        super().__init__(directory)
        self.port, backend_port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.backend = f"http://127.0.0.1:{backend_port}"
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(backend_port), "-external-url", self.backend]
        self._command = [str(program), "-backend", "memory", *place]
        self._front = GcsFront(self.port, backend_port)

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment must say."""
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_BEARER_TOKEN": "of-nobody"}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command)
        self.wait_until(self.make_bucket, OSError)

    def stop(self) -> None:
        super().stop()
        self._front.shutdown()
        self._front.server_close()

    def make_bucket(self) -> str:
        """Make an empty bucket; gives its name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        said = json.dumps({"name": name}).encode()
        request = urllib.request.Request(
            f"{self.backend}/storage/v1/b?project=tests", said, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=5).close()
        return name


@pytest.fixture(scope="session")
def gcs_server(request: pytest.FixtureRequest) -> GcsServer:
    """One server for all tests of a process; each makes buckets of its own."""
    need_client("obstore", "obstore")
    program = fetched_program()
    return the_one("gcs", request, lambda directory: GcsServer(program, directory))


@pytest.fixture
def gcs_bucket(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket; this process may use it."""
    for name, value in gcs_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"gs://{gcs_server.make_bucket()}"
