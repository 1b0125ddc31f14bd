"""How a database is reached: by a URL, or by a function of the program; and how a table in it is named.

Source: Flink's ``JdbcConnectionOptions``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.engine.errors import ConfigurationError

from ...arguments.places import lasting_place
from .dialects import BUSY_TIMEOUT_S, SQLITE, Dialect
from .jdbc import JDBC, JdbcConnection
from .mariadb import MARIADB, pymysql_driver
from .postgresql import POSTGRESQL, psycopg_driver

__all__ = ["connected", "connector_of", "dialect_named", "table_path"]

CONNECT_TIMEOUT_S = 10

_DIALECTS = {
    "sqlite": SQLITE,
    "sqlite3": SQLITE,
    "postgresql": POSTGRESQL,
    "postgres": POSTGRESQL,
    "mariadb": MARIADB,
}


def dialect_named(name: str) -> Dialect:
    """Return the dialect of a name.

    Raises:
        ConfigurationError: If there is none.
    """
    if name not in _DIALECTS:
        message = f"dialect must be sqlite, postgresql or mariadb; got {name!r}"
        raise ConfigurationError(message)
    return _DIALECTS[name]


def connector_of(url: str) -> tuple[Dialect, Callable[[], Any]]:
    """Return how to connect to what a URL names: ``sqlite:///relative.db``, ``sqlite:////absolute.db``,
    ``postgresql://user:password@host:port/database`` or ``mariadb://user:password@host:port/database``.

    Raises:
        ConfigurationError: If the URL cannot be understood. Its text is not shown: it may hold a password.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else ""
        if not path or path == ":memory:":
            message = "a SQLite URL must name a file: sqlite:///relative.db or sqlite:////absolute.db"
            raise ConfigurationError(message)
        return SQLITE, _SqliteConnector(lasting_place(path, "the file of a SQLite URL"))
    if scheme in ("postgresql", "postgres", "mariadb"):
        server = "MariaDB" if scheme == "mariadb" else "PostgreSQL"
        try:
            path = urlsplit(url).path
            is_complete = bool(path.strip("/"))
        except ValueError:
            path, is_complete = "", False
        if "@" in path or url.partition("?")[0].count("@") > 1:  # the driver would take the rest for a host
            message = f"user and password of a {server} URL must be written without '@' and '/'"
            raise ConfigurationError(message, hint="write %40 and %2F, or give a function that connects")
        if not is_complete:
            message = f"a {server} URL must name a database: {scheme}://user:password@host:port/database"
            raise ConfigurationError(message)
        return (MARIADB, _mariadb_connector(url)) if scheme == "mariadb" else (POSTGRESQL, _PostgresqlConnector(url))
    message = f"a database URL must begin with sqlite:, postgresql: or mariadb:; got {scheme!r}"
    hint = "for other ways to connect give a function and its dialect"
    raise ConfigurationError(message, hint="MySQL is not MariaDB, and is not supported" if scheme == "mysql" else hint)


@dataclass(frozen=True)
class _SqliteConnector:
    path: str

    def __call__(self) -> Any:
        return sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)


@dataclass(frozen=True, repr=False)
class _PostgresqlConnector:
    url: str

    def __call__(self) -> Any:
        return psycopg_driver().connect(self.url, connect_timeout=CONNECT_TIMEOUT_S, application_name="headrace")

    def __repr__(self) -> str:
        parts = urlsplit(self.url)
        return f"_PostgresqlConnector({parts.netloc.rpartition('@')[2] + parts.path!r})"


@dataclass(frozen=True)
class _MariadbConnector:
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)

    def __call__(self) -> Any:
        return pymysql_driver().connect(
            host=self.host, port=self.port, user=self.user, password=self.password, database=self.database,
            charset="utf8mb4", connect_timeout=CONNECT_TIMEOUT_S, program_name="headrace",
        )  # fmt: skip


def _mariadb_connector(url: str) -> _MariadbConnector:
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        port = 0
    if not port or not parts.hostname or parts.query:
        message = "a MariaDB URL has a host, a port that is a number, and no options"
        raise ConfigurationError(message, hint="for TLS and other options give a function and its dialect")
    database, user = unquote(parts.path.strip("/")), unquote(parts.username or "")
    return _MariadbConnector(parts.hostname, port, database, user, unquote(parts.password or ""))


def connected(connection: str | Callable[[], Any], dialect: str | None) -> tuple[Dialect, Callable[[], Any]]:
    """Return the dialect of what a program says of its database, and how to connect to it.

    Args:
        connection: A URL; or a function that gives a new connection of DB-API 2, for which the dialect is needed; or
            a `JdbcConnection`.
        dialect: Its name; None for that of the URL.

    Raises:
        ConfigurationError: If it cannot be understood, or both say different databases.
    """
    if isinstance(connection, JdbcConnection):
        return JDBC, connection
    if isinstance(connection, str):
        found, connect = connector_of(connection)
        if dialect is not None and dialect_named(dialect) is not found:
            message = f"the URL names a database of {found.name}, and dialect is {dialect!r}"
            raise ConfigurationError(message)
        return found, connect
    if dialect is None or not callable(connection):
        message = "connection must be a URL, or a function together with its dialect"
        raise ConfigurationError(message, hint="dialect='postgresql', 'mariadb' or 'sqlite'")
    return dialect_named(dialect), connection


def table_path(table: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of a table's name: its own, maybe behind a schema's.

    Raises:
        ConfigurationError: If it has another number of them, or an empty one.
    """
    path = tuple(table.split(".")) if isinstance(table, str) else tuple(table)
    if not 1 <= len(path) <= 2 or not all(path):
        message = f"table must be a name, maybe behind a schema's; got {table!r}"
        raise ConfigurationError(message)
    return path
