"""A real MariaDB server for tests, in a temporary directory, on a free loopback port; may be killed and started again.

Skips the test, with the reason, where there is no server or no driver.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import ServerProcess, need_client, the_one


class MariadbServer(ServerProcess):
    """The server. Its password is ``s3cret``, to be looked for in texts where it must not be."""

    password = "s3cret"

    def __init__(self, directory: Path, user: str | None) -> None:
        super().__init__(directory)
        self._user = user
        self.port = free_port()
        if user is not None:
            shutil.chown(directory, user)
        self._data = directory / "data"
        self._socket = directory / "s"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={self._data}", "--skip-test-db"]
        install += ["--auth-root-authentication-method=normal", "--skip-name-resolve", "--force"]
        subprocess.run(install, check=True, user=user, cwd=directory, stdout=subprocess.DEVNULL)

    @property
    def url(self) -> str:
        return f"mariadb://headrace:{self.password}@127.0.0.1:{self.port}/shop"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = ["mariadbd", "--no-defaults", f"--datadir={self._data}", f"--port={self.port}"]
        command += [f"--socket={self._socket}", f"--pid-file={self._directory / 'pid'}", "--bind-address=127.0.0.1"]
        command += ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M", "--skip-name-resolve"]
        self.launch(command, user=self._user, cwd=self._directory)
        import pymysql

        self.wait_until(self._is_ready, pymysql.err.OperationalError)

    def _is_ready(self) -> bool:
        import pymysql

        with pymysql.connect(unix_socket=str(self._socket), user="root", autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE IF NOT EXISTS shop")
            cursor.execute(f"GRANT ALL ON *.* TO headrace@'127.0.0.1' IDENTIFIED BY '{self.password}'")
        return True

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def connect(self, **options: Any) -> Any:
        """A connection for the test itself; every statement is a transaction."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="headrace", password=self.password, database="shop",
            **{"autocommit": True, **options},
        )  # fmt: skip

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def execute(self, *statements: str) -> None:
        """Run statements."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def seen_by_cli(self, query: str) -> list[str]:
        """What MariaDB's own command sees: the lines of a query that gives one text a row."""
        command = ["mariadb", "--no-defaults", "-h127.0.0.1", f"-P{self.port}", "-uheadrace", f"-p{self.password}"]
        command += ["--batch", "--raw", "--skip-column-names", "-e", query, "shop"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def clear(self) -> None:
        """Drop all tables."""
        self.execute("DROP DATABASE shop", "CREATE DATABASE shop")


def _unprivileged() -> str | None:
    """Somebody else, as the server does not run as root; None for ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("mysql", "nobody") if name in names), None)


def new_server(directory: Path) -> MariadbServer:
    """A server with nothing in it, to be started; skips the test if there is none."""
    need_client("pymysql", "PyMySQL")
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        pytest.skip("there is no MariaDB server on this machine (Debian: mariadb-server-core, mariadb-client-core)")
    user = _unprivileged()
    if os.geteuid() == 0 and user is None:
        pytest.skip("MariaDB does not run as root, and there is nobody else")
    return MariadbServer(directory, user)


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest) -> MariadbServer:
    """One server for all tests of a process; each makes tables of its own, or drops what is there."""
    return the_one("mariadb", request, new_server)
