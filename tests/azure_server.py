"""Azurite, Microsoft's emulator of Azure Blob Storage, for tests: in a temporary directory, on a free port of the
loopback; may be killed and started again.

Its program comes from ``AZURITE_HOME``, or from npm's registry, once, into a folder for caches. Skips the test, with
the reason, where there is neither, no Node.js, or no client.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import shutil
import urllib.request
import uuid
from pathlib import Path

import pytest
from free_ports import free_port
from npm_packages import package_of_npm
from server_process import ServerProcess, need_client, the_one

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, as its documentation says."""

_API = "2021-12-02"


class AzureServer(ServerProcess):
    """One server, which keeps its objects when it is killed."""

    def __init__(self, package: Path, node: str, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        program = package / "dist" / "src" / "blob" / "main.js"
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(directory / "data")]
        self._command = [node, str(program), *options, "--skipApiVersionCheck", "--disableTelemetry"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment must say."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch(self._command)
        self.wait_until(self.make_container, OSError)

    def make_container(self) -> str:
        """Make an empty container; gives its name."""
        name = f"box-{uuid.uuid4().hex[:12]}"
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": _API}
        said = "\n".join(f"{key}:{value}" for key, value in headers.items())
        signed = "PUT" + "\n" * 12 + f"{said}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signature = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        url = f"{self.endpoint}/{name}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=5).close()
        return name


@pytest.fixture(scope="session")
def azure_server(request: pytest.FixtureRequest) -> AzureServer:
    """One server for all tests of a process; each makes containers of its own."""
    need_client("obstore", "obstore")
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js")
    home = os.environ.get("AZURITE_HOME")
    package = Path(home) if home else package_of_npm("azurite", VERSION, f"azurite-{VERSION}")
    return the_one("azure", request, lambda directory: AzureServer(package, node, directory))


@pytest.fixture
def azure_container(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty container; this process may use it."""
    for name, value in azure_server.variables.items():
        monkeypatch.setenv(name, value)
    return f"az://{azure_server.make_container()}"
