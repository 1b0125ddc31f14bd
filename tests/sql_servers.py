"""What tests of the SQL sink have for PostgreSQL and MariaDB: a table of numbers, sinks, commits that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.connectors.sql import SqlSink
from headrace.testing import SinkTestHarness

SERVERS = [pytest.param(name, marks=pytest.mark.lane(name)) for name in ("postgresql", "mariadb")]


class Session:
    """A connection whose commits can be disturbed."""

    def __init__(self, connection: Any, commit: Callable[[Any], None]) -> None:
        self._connection = connection
        self._commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        self._commit(self._connection)


def connection_of(server: Any) -> Any:
    """A connection as a program's function makes one."""
    return server.connect(autocommit=False)


def lost_connection(server: Any) -> Exception:
    """What the driver raises when it has lost the server."""
    message = "the connection is lost"
    if server.url.startswith("postgresql"):
        import psycopg

        return psycopg.OperationalError(message)
    import pymysql

    return pymysql.err.OperationalError(2013, message)


def with_numbers(server: Any) -> Any:
    """The server with nothing but a table ``numbers``."""
    server.clear()
    server.execute("CREATE TABLE numbers (n BIGINT NOT NULL, label TEXT)")
    return server


def numbers(server: Any) -> list[int]:
    return sorted(n for (n,) in server.rows("SELECT n FROM numbers"))


def rows(*values: int) -> list[dict[str, Any]]:
    return [{"n": value, "label": f"number {value}"} for value in values]


def sink(server: Any, connect: Any = None, **options: Any) -> SqlSink:
    """One that writes numbers exactly once."""
    connection = server.url if connect is None else connect
    dialect = None if connect is None else server.url.partition(":")[0]
    return SqlSink.exactly_once(connection, "numbers", sink_id="numbers", dialect=dialect, **options)


def refused(server: Any, own: str, kind: Any, value: Any, reason: str, error: type[Exception]) -> None:
    """Assert that a value is refused for a column of a type, with the reason, before anything is written."""
    refused_by(server, server.url, "v", own, kind, value, reason, error)


def refused_by(
    server: Any, connection: Any, name: str, own: str, kind: Any, value: Any, reason: str, error: type[Exception]
) -> None:
    """As `refused`, of a table and its column by a name and a connection."""
    server.execute(f"CREATE TABLE {name} ({name} {own})")
    job = SinkTestHarness(SqlSink.at_least_once(connection, name, schema={name: kind}), 1)
    with pytest.raises(error, match=reason) as told:
        job.start()
        job.write([{name: value}])
        job.checkpoint(1)
    assert repr(name) in str(told.value) or "refuses the records" in str(told.value)
    assert server.rows(f"SELECT * FROM {name}") == []
