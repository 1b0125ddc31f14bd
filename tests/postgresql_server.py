"""A real PostgreSQL server for tests, in a temporary directory, on a free loopback port; may be killed and started
again.

Skips the test, with the reason, where there is no server or no driver.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import STOP_TIMEOUT_S, ServerProcess, need_client, the_one


class PostgresqlServer(ServerProcess):
    """The server. Its password is ``s3cret``, to be looked for in texts where it must not be."""

    password = "s3cret"

    def __init__(self, binaries: Path, directory: Path, user: str | None) -> None:
        self._binaries = binaries
        super().__init__(directory)
        self._user = user
        self.port = free_port()
        password_file = directory / "password"
        password_file.write_text(self.password)
        if user is not None:
            for path in (directory, password_file):
                shutil.chown(path, user)
        data = str(directory / "data")
        command = ["initdb", "-D", data, "-U", "headrace", "-A", "scram-sha-256", f"--pwfile={password_file}"]
        self._run([*command, "-E", "UTF8", "--no-locale", "--no-sync"])

    @property
    def url(self) -> str:
        return f"postgresql://headrace:{self.password}@127.0.0.1:{self.port}/postgres"

    def _command(self, command: list[str]) -> list[str]:
        return [str(self._binaries / command[0]), *command[1:]]

    def _run(self, command: list[str]) -> None:
        subprocess.run(self._command(command), check=True, user=self._user, cwd="/", stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
            "max_connections": "60",
            "shared_buffers": "16MB",
            "fsync": "off",  # processes die here, machines do not
            "wal_level": "logical",
        }
        arguments = [f"-c{name}={value}" for name, value in options.items()]
        command = self._command(["postgres", "-D", str(self._directory / "data"), *arguments])
        self.launch(command, user=self._user, cwd="/")
        self.wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        command = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1"]
        return subprocess.run(self._command(command), check=False).returncode == 0

    def kill(self) -> None:
        """Kill all its processes at once, with signal 9: as if the power had failed."""
        process, self._process = self._process, None
        if process is None:
            return
        backends = [_handle(pid) for pid in _children(process.pid)]  # each has a session of its own
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        for backend in filter(None, backends):
            with os.fdopen(backend, closefd=True) as handle:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(backend, signal.SIGKILL)
                # A server does not start beside what is left of the last one.
                assert select.select([handle], [], [], STOP_TIMEOUT_S)[0], "a backend outlives its server"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        if self._process is not None:
            for pid in (self._process.pid, *_children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def connect(self, **options: Any) -> Any:
        """A connection for the test itself; every statement is a transaction."""
        import psycopg

        return psycopg.connect(self.url, **{"autocommit": True, **options})

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives."""
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def clear(self) -> None:
        """Drop all tables; who may look into the schema stays as it was."""
        self.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO PUBLIC")

    def execute(self, *statements: str) -> None:
        """Run statements."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)


def _parent(pid: int) -> int:
    """The parent of a process; 0 if it is no more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _children(pid: int) -> list[int]:
    return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(child) == pid]


def _handle(pid: int) -> int | None:
    """A descriptor of a process that becomes readable with its end; None if it is no more."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "postgres").exists() and (path / "initdb").exists()), None)


def _unprivileged() -> str | None:
    """Somebody else, as the server does not run as root; None for ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@pytest.fixture(scope="session")
def postgresql(request: pytest.FixtureRequest) -> PostgresqlServer:
    """One server for all tests of a process; each makes tables of its own, or drops what is there."""
    need_client("psycopg", "psycopg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL server on this machine")
    user = _unprivileged()
    if os.geteuid() == 0 and user is None:
        pytest.skip("PostgreSQL does not run as root, and there is nobody else")
    return the_one("postgresql", request, lambda directory: PostgresqlServer(binaries, directory, user))
