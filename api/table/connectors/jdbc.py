"""Tables of a database: ``'connector' = 'jdbc'``, for SQLite, PostgreSQL and MariaDB by drivers of Python, and for
others by drivers of Java.

Source: Flink's documentation ("JDBC SQL Connector"); ``LookupOptions``, FLIP-221.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError, ProgramError, nearest
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.sql.connecting import connected
from ...connectors.sql.dialects import SQLITE
from ...connectors.sql.following import GrowingColumn
from ...connectors.sql.jdbc import JdbcConnection
from ...connectors.sql.ranges import KeyRanges, in_range
from ...connectors.sql.reading import ReadSettings, SqlLookup, TableRows
from ...connectors.sql.sink import SqlExecutionOptions, SqlSink
from ...connectors.sql.source import SqlSource
from .contract import Options, TableConnector, lookup_cache_of, lookup_retries_of
from .deletions import DELETED, with_deletions

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["JdbcTable"]


class JdbcTable(TableConnector):
    """A table of a database, which must be there. Options: ``url``, ``table-name``, ``username``, ``password``,
    ``driver`` and ``driver.jars`` (paths with ``;`` between) of a driver of Java,
    ``scan.follow.column``, ``scan.follow.interval``, ``scan.follow.commit-lag``, ``scan.partition.column``,
    ``scan.partition.num``, ``scan.partition.lower-bound``, ``scan.partition.upper-bound``, ``lookup.cache`` and those
    of its cache, ``lookup.max-retries``, ``sink.buffer-flush.max-rows``, ``sink.buffer-flush.interval``,
    ``sink.max-retries``, ``sink.id``.

    With a PRIMARY KEY changes are applied by it; without one rows are added.
    """

    name = "jdbc"
    manner = (
        "driver",
        "driver.jars",
        "username",
        "password",
        "lookup.*",
        "scan.follow.interval",
        "scan.follow.commit-lag",
        "sink.buffer-flush.*",
        "sink.max-retries",
    )
    makes_watermarks = True
    can_look_up = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._connection = _connection_of(options)
        self._table = options.need("table-name")
        self._path = tuple(self._table.split("."))
        self._schema = schema
        self._ranges = _ranges_of(options, schema)
        self._follow = _follow_of(options, schema)
        self.is_bounded = self._follow is None
        self.lookup_cache = lookup_cache_of(options)
        self._lookup_retries = lookup_retries_of(options)
        self._sink_id = options.take("sink.id")
        self._writing = SqlExecutionOptions(
            batch_size=options.take("sink.buffer-flush.max-rows", int, 5_000),
            batch_interval=options.take("sink.buffer-flush.interval", Options.duration, 0),
            max_retries=options.take("sink.max-retries", int, 3),
        )
        connected(self._connection, None)
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables of a database"
            raise ConfigurationError(message)

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY."""
        super().keyed_by(primary_key)
        self.takes_changes = self.applies_by_key = bool(primary_key)

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the table once, in the order of its key if it has one; or follow it."""
        keys = [self._schema.field(name) for name in self.primary_key if name not in schema.names]
        wanted = [*schema, *keys]
        if self._follow is not None and self._follow.name not in [one.name for one in wanted]:
            wanted.append(self._schema.field(self._follow.name))
        source = SqlSource(
            self._connection, self._path, pa.schema(wanted), key=self.primary_key, ranges=self._ranges,
            follow=self._follow, max_retries=self._lookup_retries,
        )  # fmt: skip
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"jdbc {self._table}")

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Read the table once, where the program is."""
        rows = TableRows(self._reading(schema))
        try:
            wanted = {} if self._ranges is None else self._ranges.whole()
            return env.from_arrow(pa.Table.from_batches([rows.rows(*in_range(rows, wanted))]))
        finally:
            rows.close()

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Ask for rows by key.

        Raises:
            ProgramError: If the database has several texts for one value of a key.
        """
        settings, kinds = self._reading(schema), pa.types
        for name in keys if settings.dialect is SQLITE else ():
            kind = schema.field(name).type
            if kinds.is_timestamp(kind) or kinds.is_time(kind) or kinds.is_decimal(kind):
                message = (
                    f"SQLite keeps {name!r} as a text, of which a value may have several: it cannot be looked up by it"
                )
                raise ProgramError(message, hint="look up by integers, texts or dates")
        return SqlLookup(settings, keys)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write rows: by key if there is one; exactly once under a ``sink.id``, else once or more."""
        delete_column = None
        if self.primary_key:
            delete_column, stream = DELETED, with_deletions(stream, self.primary_key, schema)
            schema = schema.append(pa.field(DELETED, pa.bool_()))
        if self._sink_id is None:
            sink = SqlSink.at_least_once(
                self._connection, self._path, schema=schema, key=self.primary_key, delete_column=delete_column,
                options=self._writing,
            )  # fmt: skip
        else:
            sink = SqlSink.exactly_once(
                self._connection, self._path, sink_id=self._sink_id, schema=schema, key=self.primary_key,
                form="upsert" if self.primary_key else "transactional", delete_column=delete_column,
                options=self._writing,
            )  # fmt: skip
        stream.sink_to(sink).name(table)

    def _reading(self, schema: pa.Schema) -> ReadSettings:
        dialect, connect = connected(self._connection, None)
        return ReadSettings(dialect, connect, self._path, schema, self._lookup_retries)


def _connection_of(options: Options) -> str | JdbcConnection:
    """Take where the database is, and who asks."""
    url, user, password = options.need("url"), options.take("username"), options.take("password")
    driver, jars = options.take("driver"), options.take("driver.jars")
    if (driver is None) != (jars is None):
        message = "'driver' is the class of a driver of Java in 'driver.jars': they need each other"
        raise ConfigurationError(message, hint="SQLite, PostgreSQL and MariaDB need none")
    if driver is None or jars is None:
        return _with_credentials(url, user, password)
    return JdbcConnection(url, tuple(part.strip() for part in jars.split(";")), driver, user, password)


def _with_credentials(url: str, user: str | None, password: str | None) -> str:
    """The URL as `connector_of` takes it, with user and password in it.

    Raises:
        ConfigurationError: If both say who the user is.
    """
    url = url.removeprefix("jdbc:")
    if url.startswith("sqlite:") and not url.startswith("sqlite://"):
        url = f"sqlite:///{url.removeprefix('sqlite:')}"
    if user is None and password is None:
        return url
    scheme, _, rest = url.partition("://")
    if user is None or "@" in rest or not scheme.startswith(("postgres", "mariadb")):
        message = "username and password are those of the URL of a server that has none itself, both of them"
        raise ConfigurationError(message)
    secret = "" if password is None else f":{quote(password, safe='')}"
    return f"{scheme}://{quote(user, safe='')}{secret}@{rest}"


def _ranges_of(options: Options, schema: pa.Schema) -> KeyRanges | None:
    """Take the options of ranges; None if the table is read in one.

    Raises:
        ConfigurationError: If some are missing, or the column is not one of integers.
    """
    prefix = "scan.partition."
    column = options.take(f"{prefix}column")
    number = options.take(f"{prefix}num", int)
    bounds = tuple(options.take(f"{prefix}{name}-bound", int) for name in ("lower", "upper"))
    if column is None and number is None and bounds == (None, None):
        return None
    if column is None or number is None or (bounds[0] is None) != (bounds[1] is None):
        message = f"{prefix}column and {prefix}num belong together, and so do {prefix}lower-bound and upper-bound"
        raise ConfigurationError(message)
    if column not in schema.names or not pa.types.is_integer(schema.field(column).type):
        message = f"{prefix}column must be a column of integers; got {column!r}"
        raise ConfigurationError(message, hint=nearest(column, schema.names))
    return KeyRanges(column, number, None if bounds[0] is None else (bounds[0], bounds[1]))


def _follow_of(options: Options, schema: pa.Schema) -> GrowingColumn | None:
    """Take the options of a table that is followed; None if it is read once.

    Raises:
        ConfigurationError: If one makes no sense, or there is no such column.
    """
    column = options.take("scan.follow.column")
    interval = options.take("scan.follow.interval", Options.duration)
    commit_lag = options.take("scan.follow.commit-lag", Options.duration)
    if column is None:
        if interval is not None or commit_lag is not None:
            message = "scan.follow.interval and scan.follow.commit-lag are of a table that has a scan.follow.column"
            raise ConfigurationError(message)
        return None
    if column not in schema.names:
        message = f"scan.follow.column must be a column of the table; got {column!r}"
        raise ConfigurationError(message, hint=nearest(column, schema.names))
    return GrowingColumn(column, 1_000 if interval is None else interval, 5_000 if commit_lag is None else commit_lag)
