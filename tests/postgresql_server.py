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
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        for backend in filter(None, map(_handle, self._processes())):
            with os.fdopen(backend, closefd=True) as handle:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(backend, signal.SIGKILL)
                # A server does not start beside what is left of the last one.
                assert select.select([handle], [], [], STOP_TIMEOUT_S)[0], "a backend outlives its server"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _processes(self) -> list[int]:
        """The server and its backends, which each have a session of their own, and all run in the folder of the data.

        A backend may outlive, for a moment, a server that somebody else has killed.
        """
        data = os.path.realpath(self._directory / "data")
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _folder(pid) == data]

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

    def seen_by_psql(self, query: str) -> list[str]:
        """What PostgreSQL's own command sees: rows, as lines of JSON in the order of the columns."""
        question = f"SELECT row_to_json(found) FROM ({query}) AS found"
        command = self._command(["psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", question, self.url])
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def clear(self) -> None:
        """Drop all tables; who may look into the schema stays as it was."""
        self.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO PUBLIC")

    def execute(self, *statements: str) -> None:
        """Run statements."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)


def _folder(pid: int) -> str | None:
    """In which a process runs; None if it is no more."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


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


def new_server(directory: Path) -> PostgresqlServer:
    """A server with nothing in it, to be started; skips the test if there is none."""
    need_client("psycopg", "psycopg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL server on this machine")
    user = _unprivileged()
    if os.geteuid() == 0 and user is None:
        pytest.skip("PostgreSQL does not run as root, and there is nobody else")
    return PostgresqlServer(binaries, directory, user)


@pytest.fixture(scope="session")
def postgresql(request: pytest.FixtureRequest) -> PostgresqlServer:
    """One server for all tests of a process; each makes tables of its own, or drops what is there."""
    return the_one("postgresql", request, new_server)
