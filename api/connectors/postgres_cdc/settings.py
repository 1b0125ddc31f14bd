"""What a source of changes is told: where the table is, how its rows are typed, and how it is read.

Source: Flink's "Postgres CDC Connector", options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, SourceError
from headrace.state.credentials import masked

from ..sql.postgresql import psycopg_driver
from .values import SESSION

__all__ = ["CdcSettings", "Server", "asked", "failed", "quoted", "require_checkpoints"]

CONNECT_TIMEOUT_S = 10


def quoted(*names: str) -> str:
    """Return names as one identifier."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def asked(connection: Any, statement: str, values: Sequence[str] = ()) -> Any:
    """Return what a statement gives, with values as the texts that the database writes.

    Args:
        connection: To ask over.
        statement: With ``$1`` and so on for values.
        values: As texts; their types follow from the statement.

    Raises:
        psycopg.Error: If the database refuses.
    """
    library = psycopg_driver()
    result = connection.pgconn.exec_params(statement.encode(), [value.encode() for value in values] or None)
    if result.status not in (library.pq.ExecStatus.TUPLES_OK, library.pq.ExecStatus.COMMAND_OK):
        raise library.OperationalError(result.error_message.decode(errors="replace").strip())
    return result


def failed(error: BaseException | str, what: str, **place: Any) -> SourceError:
    """Return the error that says what the database refused, without passwords."""
    message = f"PostgreSQL: {what}: {masked(' '.join(str(error).split()))}"
    return SourceError(message, **place)


def require_checkpoints(*, taken: bool) -> None:
    """See that checkpoints are taken; raises `ConfigurationError` if not."""
    if not taken:
        message = "a source of changes needs checkpoints: the server keeps its log until one is complete"
        raise ConfigurationError(message, hint="env.enable_checkpointing('10 s')")


@dataclass(frozen=True)
class Server:
    """Where a database is, and as whom.

    Attributes:
        hostname: Its host.
        port: Its port.
        username: Who reads; needs the right to replicate.
        password: Theirs.
        database: The database's name.
        properties: More settings of libpq, as ``sslmode``.
    """

    hostname: str
    port: int
    username: str
    password: str = field(repr=False)
    database: str
    properties: tuple[tuple[str, str], ...] = ()

    def connect(self, *, replicates: bool = False) -> Any:
        """Connect, for statements or for the log; every statement is a transaction.

        Raises:
            psycopg.Error: If that is not possible.
        """
        session = dict(SESSION)
        more: dict[str, Any] = {}
        if replicates:
            # A reader that is held back by those behind it is silent; one whose machine died is noticed by TCP.
            session |= {"wal_sender_timeout": "10min", "tcp_keepalives_idle": "30", "tcp_keepalives_count": "4"}
            more = {"replication": "database"}
        options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in session.items())
        return psycopg_driver().connect(
            host=self.hostname,
            port=self.port,
            user=self.username,
            password=self.password,
            dbname=self.database,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="headrace",
            options=options,
            autocommit=True,
            **more,
            **dict(self.properties),
        )


@dataclass(frozen=True)
class CdcSettings:
    """How a table is read.

    Attributes:
        server: Where.
        table: Names of schema and table.
        schema: The columns that are read, with their types.
        slot: Name of the replication slot.
        publication: Name of the publication.
        startup: ``initial``, ``latest-offset`` or ``committed-offset``.
        is_upsert: Whether updates are told by the new row alone.
        chunk_rows: How many rows of the table are read at once.
        heartbeat_ms: How often the server is told how far the job is, at least.
        kind_column: The column that says what each change is; None if changes are kinds of rows.
    """

    server: Server
    table: tuple[str, str]
    schema: pa.Schema
    slot: str
    publication: str
    startup: str
    is_upsert: bool
    chunk_rows: int
    heartbeat_ms: int
    kind_column: str | None = None

    @property
    def name(self) -> str:
        """The table, for messages."""
        return ".".join(self.table)
