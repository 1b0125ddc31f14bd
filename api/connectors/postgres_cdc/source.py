"""A table of PostgreSQL as a source of changes: what is in it, and then every change, exactly once.

The table is read in chunks, by all readers side by side and without a long transaction; then its log, by one of them.
Both fit together exactly (`headrace.connectors.postgres_cdc.chunks`), whatever fails and restarts in between. The
server keeps its log from the last complete checkpoint on, in a replication slot.

Source: Flink's "Postgres CDC Connector", ``PostgresSourceBuilder``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.connectors.contract import EnumeratorContext, Source, SourceReader, SplitEnumerator
from headrace.engine.errors import ConfigurationError
from headrace.state.values.durations import parse_duration_ms

from ...formats.schemas import schema_of
from .enumerator import CdcEnumerator
from .reader import CdcReader
from .settings import CdcSettings, Server, require_checkpoints

__all__ = ["PostgresCdcSource"]

STARTUP_MODES = ("initial", "latest-offset", "committed-offset")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


class PostgresCdcSource(Source[dict[str, Any]]):
    """Follows a table. Records are changes: rows with a kind (`RowKind`), or with a column that says it.

    Args:
        hostname: The server's host.
        port: The server's port.
        username: Who reads: needs the right to replicate, to read the table and to publish it.
        password: Theirs.
        database: The database's name.
        table: The table's name.
        schema: The columns that are read, with their types.
        slot: Name of the replication slot: one for each source. It is made if it is not there, and never dropped.
        schema_name: Name of the table's schema.
        publication: Name of the publication, made if it is not there; None for ``headrace_`` and the slot's name.
        startup_mode: ``initial`` reads the table, then its log; ``latest-offset`` only what changes from now on;
            ``committed-offset`` what has changed since the slot was last confirmed.
        changelog_mode: ``all`` tells of an update the old row, too, which needs ``REPLICA IDENTITY FULL``; ``upsert``
            only the new one, and of a deletion only the key.
        kind_column: The column that says what each change is (``+I``, ``-U``, ``+U``, ``-D``), for programs on streams,
            whose records are plain rows then; None for changes that operators of tables take.
        chunk_size: How many rows of the table are read at once.
        heartbeat_interval: How often the server is told how far the job is: milliseconds or text as ``"30 s"``.
        properties: More settings of libpq, as ``sslmode``.

    Guarantees: exactly once. Needs checkpoints; only the newest can be gone on from, as the server has dropped the log
        before it.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = False

    def __init__(
        self,
        hostname: str,
        port: int = 5432,
        *,
        username: str,
        password: str,
        database: str,
        table: str,
        schema: pa.Schema | Mapping[str, Any],
        slot: str,
        schema_name: str = "public",
        publication: str | None = None,
        startup_mode: Literal["initial", "latest-offset", "committed-offset"] = "initial",
        changelog_mode: Literal["all", "upsert"] = "all",
        kind_column: str | None = None,
        chunk_size: int = 8_096,
        heartbeat_interval: int | str = "30 s",
        properties: Mapping[str, str] = {},
    ) -> None:
        if startup_mode not in STARTUP_MODES:
            message = f"startup_mode must be one of {', '.join(STARTUP_MODES)}; got {startup_mode!r}"
            raise ConfigurationError(message)
        if changelog_mode not in ("all", "upsert"):
            message = f"changelog_mode must be all or upsert; got {changelog_mode!r}"
            raise ConfigurationError(message)
        if not _SLOT_NAME.fullmatch(slot):
            message = f"a replication slot's name has small letters, digits and underscores, 63 at most; got {slot!r}"
            raise ConfigurationError(message)
        if chunk_size < 1:
            message = f"chunk_size must be at least 1; got {chunk_size}"
            raise ConfigurationError(message)
        columns = schema_of(schema)
        if columns is None or not columns.names:
            message = "the columns that are read must be declared: schema={'id': 'int64', ...}"
            raise ConfigurationError(message)
        if kind_column in columns.names:
            message = f"the table has a column {kind_column!r} itself: kinds need another name"
            raise ConfigurationError(message)
        server = Server(hostname, port, username, password, database, tuple(properties.items()))
        self._settings = CdcSettings(
            server=server,
            table=(schema_name, table),
            schema=columns,
            slot=slot,
            publication=publication or f"headrace_{slot}"[:63],
            startup=startup_mode,
            is_upsert=changelog_mode == "upsert",
            chunk_rows=chunk_size,
            heartbeat_ms=parse_duration_ms(heartbeat_interval),
            kind_column=kind_column,
        )

    def __repr__(self) -> str:
        return f"PostgresCdcSource({self._settings.name!r}, slot={self._settings.slot!r})"

    def produced_columns(self) -> pa.Schema:
        """Return the columns of the rows."""
        settings = self._settings
        if settings.kind_column is None:
            return settings.schema
        return settings.schema.append(pa.field(settings.kind_column, pa.string()))

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what cuts the table into chunks, and gives its log behind them.

        Raises:
            ConfigurationError: If no checkpoints are taken; no slot is made then.
        """
        require_checkpoints(taken=context.checkpointing)
        return CdcEnumerator(self._settings)

    def create_reader(self) -> SourceReader:
        """Make a reader of chunks, and maybe of the log."""
        return CdcReader(self._settings)
