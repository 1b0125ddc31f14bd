"""Tables of a database as a sink: exactly once by transactions or by keys, or at least once.

============================  ==========================================================================================
``exactly_once``              what a reader of the table sees
============================  ==========================================================================================
``form="transactional"``      the records of complete checkpoints, each once; those of one together, per subtask
``form="upsert"``             rows as they come, found again by their key; after a failure they may for a while be what
                              they were before it, and then converge to what they are without one
============================  ==========================================================================================

The transactional form needs no key, costs the latency of a checkpoint, and keeps books in four tables of its own
(`headrace.connectors.sql.database`). The upsert form costs no latency. It gives the right table only if what the
program computes for a key does not depend on chance or on the clock, and keeps the order of a key's records only if
they come to one subtask: ``key_by`` the key.

Both are written under a *sink id*, the user's name for "what this program writes into that table", as Kafka's
transactional id: a job that writes under it later shuts out the one before. Give it to no other sink, and do not change
it. A job that goes on from another one's checkpoint, or a newer attempt, takes it over; what the older one still tries
fails.

Source: Flink's ``JdbcSink``, ``JdbcExecutionOptions``; Kafka's transactional ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.connectors.contract import ProvingCommitter, SinkWriter
from headrace.engine.errors import ConfigurationError
from headrace.state.values.durations import parse_duration_ms

from ...formats.schemas import schema_of
from .connecting import connected, table_path
from .rows import RowLayout
from .writing import SqlCommitter, SqlSettings, StagingWriter, UpsertWriter

__all__ = ["SqlExecutionOptions", "SqlSink"]


@dataclass(frozen=True)
class SqlExecutionOptions:
    """How rows are brought to the database.

    Attributes:
        batch_size: Most rows of one statement, and of one transaction where rows are written as they come.
        batch_interval: How long rows may wait for others where they are written as they come: milliseconds or text
            such as ``"1 s"``. With 0 every batch of records goes out at once; with more, rows wait for the next ones,
            the barrier or the end.
        max_retries: How often such a write is tried again when it fails, with pauses from 0.1 s to 5 s.
    """

    batch_size: int = 5_000
    batch_interval: int | str = 0
    max_retries: int = 3


class SqlSink:
    """Writes records into a table. Made by `exactly_once` or `at_least_once`.

    Common arguments of both:
        connection: A URL, ``sqlite:///relative.db``, ``sqlite:////absolute.db``,
            ``postgresql://user:password@host:port/database``, or the same with ``mariadb:``; or a function without
            arguments that gives a new DB-API connection (then ``dialect`` is needed), for passwords that are to be
            found only where the job runs; or a `JdbcConnection`, for `at_least_once` alone. A function's SQLite
            connection must be made with ``check_same_thread=False``.
        table: The table, which must be there: ``"table"`` or ``"schema.table"``, or a pair for names with dots.
        columns: The columns that are written. Records with fields of these names may have others, too; tuples are taken
            by position. None: all fields of the records.
        schema: The records' types, as a schema or a mapping from field to type; None takes them as they come. With it
            types are checked before the job begins, else with the first records.
        key: The columns by which rows are found again: a record of a key takes the place of the one before. The table
            needs a primary key or a unique index on them.
        delete_column: A boolean field of the records that is no column: where it is true, the row of the record's key
            is deleted.
        dialect: ``sqlite``, ``postgresql`` or ``mariadb``; needed with a function only.
        options: How rows are brought to the database.

    Values: booleans, integers, floats, decimals, text, bytes, dates, times, timestamps with and without zone, durations
    (PostgreSQL), and lists and structs as JSON. SQLite keeps times as ISO 8601 text and decimals as text or, up to 15
    digits, as numbers. What a column would round, cut or fill up is refused: by its type before the job begins, or by
    the record that has such a value. A key must not be null: it would never be found again; and its columns must tell
    all texts apart, as collations that overlook case do not.
    """

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return f"SqlSink({self._settings.layout.name!r}, {self._settings.dialect.name})"

    @classmethod
    def exactly_once(
        cls,
        connection: str | Callable[[], Any],
        table: str | tuple[str, str],
        *,
        sink_id: str,
        form: Literal["transactional", "upsert"] = "transactional",
        columns: Sequence[str] | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        key: str | Sequence[str] = (),
        delete_column: str | None = None,
        staging: Literal["checkpoint", "table"] = "checkpoint",
        marker_retention: int | str = "7 d",
        on_newer_output: Literal["error", "keep"] = "error",
        dialect: str | None = None,
        options: SqlExecutionOptions = SqlExecutionOptions(),
    ) -> SqlSink:
        """Write every record exactly once, in one of two forms; see the module for what each guarantees.

        Args:
            connection: See the class.
            table: See the class.
            sink_id: The name under which this sink writes; see the module.
            form: ``transactional`` or ``upsert``. The transactional form may have a key, too.
            columns: See the class.
            schema: See the class.
            key: See the class; needed for ``upsert``.
            delete_column: See the class.
            staging: Where the rows of a checkpoint wait for their commit: in the checkpoint, where nothing can happen
                to them, or for large ones in a table of the database.
            marker_retention: How long commits are remembered, and staged rows kept that are never committed. A
                checkpoint older than this whose output was not committed cannot be restored without the error "possible
                loss".
            on_newer_output: What happens to rows that this sink committed behind the checkpoint that is restored, if
                that is not the newest: going on writes them again. ``error`` refuses to run; ``keep`` goes on, for
                those who have taken the rows away, or take them twice. Of no concern to the upsert form, nor to commits
                that are not remembered any more.
            dialect: See the class.
            options: See the class.

        Guarantees: exactly-once with checkpoints; without them, what is transactional appears when the job ends.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        if not sink_id:
            message = "sink_id must not be empty"
            raise ConfigurationError(message)
        if form not in ("transactional", "upsert"):
            message = f"form must be transactional or upsert; got {form!r}"
            raise ConfigurationError(message)
        if staging not in ("checkpoint", "table"):
            message = f"staging must be checkpoint or table; got {staging!r}"
            raise ConfigurationError(message)
        if form == "upsert" and not key:
            message = "the upsert form needs a key"
            raise ConfigurationError(message, hint="key='id', or form='transactional' for rows that have none")
        if on_newer_output not in ("error", "keep"):
            message = f"on_newer_output must be error or keep; got {on_newer_output!r}"
            raise ConfigurationError(message)
        layout = _layout(table, columns, schema, key, delete_column)
        staged = staging if form == "transactional" else None
        settings = _settings(connection, dialect, layout, options, sink_id, staged, marker_retention)
        return cls(replace(settings, on_newer_output=on_newer_output))

    @classmethod
    def at_least_once(
        cls,
        connection: str | Callable[[], Any],
        table: str | tuple[str, str],
        *,
        columns: Sequence[str] | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        key: str | Sequence[str] = (),
        delete_column: str | None = None,
        dialect: str | None = None,
        options: SqlExecutionOptions = SqlExecutionOptions(),
    ) -> SqlSink:
        """Write records as they come, and again after a failure; nothing is lost, and no books are kept.

        Args:
            connection: See the class.
            table: See the class.
            columns: See the class.
            schema: See the class.
            key: See the class; without one, rows may come twice.
            delete_column: See the class.
            dialect: See the class.
            options: See the class.

        Raises:
            ConfigurationError: If an argument has an illegal value.
        """
        layout = _layout(table, columns, schema, key, delete_column)
        return cls(_settings(connection, dialect, layout, options, None, None, 0))

    proves_commits = True
    """By its markers: see `headrace.engine.connectors.contract.SupportsCommitProof`."""

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return UpsertWriter(self._settings) if self._settings.staging is None else StagingWriter(self._settings)

    def create_committer(self) -> ProvingCommitter:
        """Make the committer of one subtask."""
        return SqlCommitter(self._settings)


def _layout(
    table: str | tuple[str, str],
    columns: Sequence[str] | None,
    schema: pa.Schema | Mapping[str, Any] | None,
    key: str | Sequence[str],
    delete_column: str | None,
) -> RowLayout:
    path = table_path(table)
    keys = (key,) if isinstance(key, str) else tuple(key)
    if isinstance(columns, str) or (columns is not None and not columns):
        message = f"columns must be a list of names; got {columns!r}"
        raise ConfigurationError(message)
    if delete_column is not None and not keys:
        message = "a row is deleted by its key: delete_column needs one"
        raise ConfigurationError(message)
    if delete_column is not None and columns is not None and delete_column in columns:
        message = f"delete_column {delete_column!r} is a field of the records and none of the columns"
        raise ConfigurationError(message)
    return RowLayout(path, None if columns is None else tuple(columns), schema_of(schema), keys, delete_column)


def _settings(
    connection: str | Callable[[], Any],
    dialect: str | None,
    layout: RowLayout,
    options: SqlExecutionOptions,
    sink_id: str | None,
    staging: Literal["checkpoint", "table"] | None,
    marker_retention: int | str,
) -> SqlSettings:
    if options.batch_size < 1:
        message = f"batch_size must be at least 1; got {options.batch_size}"
        raise ConfigurationError(message)
    if options.max_retries < 0:
        message = f"max_retries must be at least 0; got {options.max_retries}"
        raise ConfigurationError(message)
    found, connect = connected(connection, dialect)
    if sink_id is not None and not found.keeps_books:
        message = "a table behind a driver of Java is written at least once: what its database locks is not known"
        raise ConfigurationError(message, hint="at_least_once, with a key if rows must not come twice")
    return SqlSettings(
        dialect=found,
        connect=connect,
        layout=layout,
        sink_id=sink_id,
        staging=staging,
        batch_size=options.batch_size,
        batch_interval_ms=parse_duration_ms(options.batch_interval),
        max_retries=options.max_retries,
        marker_retention_ms=parse_duration_ms(marker_retention),
    )
