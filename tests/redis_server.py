"""A real Redis server for tests, in a temporary directory, on a free loopback port; may be killed and started again.

Skips the test, with the reason, where there is no server or no client.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import ServerProcess, need_client, the_one


class RedisServer(ServerProcess):
    """The server: what it has answered is in its file, and survives its death."""

    def __init__(self, executable: str, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        # Synced by the second it answers before it has written, while a sync takes long.
        self._command = [
            executable, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(directory), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always",
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

        self.launch(self._command)
        with self.connect() as connection:  # at first it does not listen, or is reading its file
            self.wait_until(connection.ping, redis.RedisError)

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


def executable() -> str:
    """The server's program; skips the test if there is none."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("there is no redis-server on this machine")
    return found


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    """One server for all tests of a process; each has keys of its own."""
    need_client("redis", "redis")
    program = executable()
    return the_one("redis", request, lambda directory: RedisServer(program, directory))
