"""A real Redis server for tests, in a temporary directory, on a free loopback port; may be killed and started again.

Skips the test, with the reason, where there is no server or no client.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10


class RedisServer:
    """The server: what it has answered is in its file, and survives its death."""

    def __init__(self, executable: str, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._command = [
            executable, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(directory), "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def connect(self) -> Any:
        """A connection for the test itself."""
        import redis

        return redis.Redis(port=self.port)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import redis

        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.connect() as connection:
            while True:
                try:
                    connection.ping()
                    return
                except redis.RedisError:  # it does not listen yet, or is reading its file
                    tail = (self._directory / "log").read_text()[-2_000:]
                    assert self._process.poll() is None, tail
                    assert time.monotonic() < deadline, tail

    def kill(self) -> None:
        """Kill it with signal 9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    stop = kill

    def pause(self) -> None:
        """Have it stand still, with its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def new_key(self) -> str:
        """A key that no other test has."""
        return f"key-{uuid.uuid4().hex[:12]}"

    def add(self, stream: str, values: list[Any]) -> None:
        """Add entries to a stream, with the value in the field ``value``."""
        with self.connect() as connection, connection.pipeline(transaction=False) as pipeline:
            for value in values:
                pipeline.xadd(stream, {"value": value})
            pipeline.execute()

    def values(self, stream: str) -> list[bytes]:
        """The values in a stream, in order."""
        with self.connect() as connection:
            return [fields[b"value"] for _, fields in connection.xrange(stream)]

    def seen_by_cli(self, stream: str) -> list[str]:
        """What Redis' own command sees in a stream: values, as text."""
        command = ["redis-cli", "-p", str(self.port), "--json", "XRANGE", stream, "-", "+"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [fields[1] for _, fields in json.loads(done.stdout)]


_RUNNING: list[RedisServer] = []
"""The server, once it runs: a fixture is another one in each module that imports it."""


def executable() -> str:
    """The server's program; skips the test if there is none."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("there is no redis-server on this machine")
    return found


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    """One server for all tests of a process; each has keys of its own."""
    if not _RUNNING:
        if importlib.util.find_spec("redis") is None:
            pytest.skip("redis is not installed")
        program = executable()
        directory = Path(tempfile.mkdtemp(prefix="headrace-redis-", dir="/tmp"))
        request.config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
        server = RedisServer(program, directory)
        request.config.add_cleanup(server.kill)
        server.start()
        _RUNNING.append(server)
    return _RUNNING[0]
