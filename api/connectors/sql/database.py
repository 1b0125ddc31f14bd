"""A database as the SQL sink sees it: short transactions, one connection, and the sink's own bookkeeping in it.

Four tables beside the user's, made when they are first needed. They are what makes a commit idempotent and an old
attempt harmless, because they change in the same transaction as the rows:

* ``headrace_sinks``: who may write under a sink id: a job, and which attempt of it. Every transaction of a sink reads
  its row under a lock that a takeover has to wait for, and gives up if the row names somebody else (*fenced*).
* ``headrace_sink_jobs``: jobs that have been superseded under a sink id; they never come back.
* ``headrace_commits``: a marker for every committed transaction. A commit that finds its marker has been made before.
* ``headrace_staged``: rows that are prepared and not committed, as Arrow IPC, if they are staged in the database.

Markers are dropped when they are so old that they will not be asked for again. What was dropped is remembered by
time: a commit of a transaction from before it that finds no marker cannot know whether it was made, and says so.

Whatever fails, the connection is thrown away with its transaction; the next one is made on a fresh one. Whether a
commit whose answer got lost was made is told by its marker.

Source: Flink's ``JdbcConnectionProvider`` and ``XaFacade``; Kafka's transactional ids and producer epochs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.engine.connectors.contract import SinkHistory
from headrace.engine.errors import HeadraceError, SinkError, SinkFencedError, SourceError, TypeMismatchError

from .dialects import Dialect, Table, without_credentials

__all__ = ["Bookkeeping", "Database"]

SINKS, JOBS, COMMITS, STAGED = "headrace_sinks", "headrace_sink_jobs", "headrace_commits", "headrace_staged"


class Database:
    """One connection to a database, made when it is needed.

    Args:
        dialect: Of the database.
        connect: Makes a connection.
        place: What errors say of where they happened.
        error: What is raised if the database does not do as it is told.
    """

    def __init__(
        self,
        dialect: Dialect,
        connect: Callable[[], Any],
        place: dict[str, Any],
        error: type[SinkError | SourceError] = SinkError,
    ) -> None:
        self._error = error
        self.dialect = dialect
        self._connect = connect
        self._place = place
        # None until the first transaction, and after a failed one.
        self._connection: Any = None

    @contextmanager
    def transaction(self, what: str, *, only_reads: bool = False) -> Iterator[Any]:
        """A transaction, by its cursor: committed behind the block, taken back if that raises.

        Args:
            what: For the error: ``could not`` do what.
            only_reads: Whether nothing is changed: then nobody is kept from writing.

        Raises:
            SinkError, SourceError: If the database does not do as it is told; maybe the commit was made nevertheless.
            TypeMismatchError: If it refuses the records.
        """
        dialect = self.dialect
        errors = dialect.errors()
        try:
            if self._connection is None:
                self._connection = connection = self._connect()
                dialect.prepare(connection, only_reads=only_reads)
            connection = self._connection
            yield dialect.begin(connection, only_reads=only_reads)
            dialect.commit(connection)
        except BaseException as error:
            self._forget()
            if isinstance(error, errors):
                failure = self._failure(what, error)
                raise failure from None  # the driver's own text may show credentials
            if isinstance(error, Exception) and not isinstance(error, HeadraceError):
                message = f"could not {what}: {without_credentials(error)}"
                raise self._error(message, **self._place) from None
            raise

    def _failure(self, what: str, error: Exception) -> HeadraceError:
        text = without_credentials(error)
        if self.dialect.is_about_records(error):
            message = f"the database refuses the records: {text}"
            return TypeMismatchError(message, **self._place)
        message = f"could not {what}: {text}"
        return self._error(message, **self._place)

    def _forget(self) -> None:
        """Give up the connection and what it has begun."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # It is broken or about to be closed, and what matters has been told already.
            with contextlib.suppress(Exception):
                self.dialect.rollback(connection)
            with contextlib.suppress(Exception):
                connection.close()

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        """Return what the database says of a table."""
        return self.dialect.describe(cursor, path)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._forget()


class Bookkeeping:
    """The sink's own tables, used within transactions of a `Database`.

    Args:
        dialect: Of the database.
        schema: Where the tables are: in front of their names, or empty for the default.
        sink_id: The user's name for what is written by this sink.
        job: The job's id.
        attempt: Leader epoch and number of the deployment.
    """

    def __init__(
        self, dialect: Dialect, schema: tuple[str, ...], sink_id: str, job: str, attempt: tuple[int, int]
    ) -> None:
        self.sink_id = sink_id
        self._dialect = dialect
        self._schema = schema
        self._job = job
        self._attempt = attempt
        # What stands for the tables' names in statements.
        self._names = {
            place: dialect.quoted(*schema, name)
            for place, name in (("sinks", SINKS), ("jobs", JOBS), ("commits", COMMITS), ("staged", STAGED))
        }

    def _execute(self, cursor: Any, statement: str, *values: Any) -> Any:
        """Run a statement in which ``?`` stands for a value and, say, ``{sinks}`` for a table's name."""
        cursor.execute(statement.replace("?", self._dialect.placeholder).format(**self._names), values)
        return cursor

    # -------------------------------------------------------------------------------------------------------- takeover
    def make_tables(self, cursor: Any) -> None:
        """Make what is not there."""
        names = (SINKS, JOBS, COMMITS, STAGED)
        if all(self._dialect.describe(cursor, (*self._schema, name)) is not None for name in names):
            return  # so that later runs need no right to make tables
        self._dialect.lock_bookkeeping(cursor)
        blob, text = self._dialect.blob, self._dialect.key_text
        for statement in (
            f"CREATE TABLE IF NOT EXISTS {{sinks}} (sink_id {text} PRIMARY KEY, job {text} NOT NULL,"
            " epoch BIGINT NOT NULL, attempt BIGINT NOT NULL, pruned_before_ms BIGINT NOT NULL)",
            f"CREATE TABLE IF NOT EXISTS {{jobs}} (sink_id {text}, job {text}, PRIMARY KEY (sink_id, job))",
            f"CREATE TABLE IF NOT EXISTS {{commits}} (sink_id {text}, txn {text}, checkpoint_id BIGINT NOT NULL,"
            " num_rows BIGINT NOT NULL, prepared_ms BIGINT NOT NULL, PRIMARY KEY (sink_id, txn))",
            f"CREATE TABLE IF NOT EXISTS {{staged}} (sink_id {text}, txn {text}, piece BIGINT, job {text} NOT NULL,"
            " epoch BIGINT NOT NULL, attempt BIGINT NOT NULL, staged_ms BIGINT NOT NULL,"
            " retained SMALLINT NOT NULL DEFAULT 0,"
            f" num_rows BIGINT NOT NULL, data {blob} NOT NULL, PRIMARY KEY (sink_id, txn, piece))",
        ):
            self._execute(cursor, statement + self._dialect.table_options)

    def take_over(self, cursor: Any) -> bool:
        """Shut out earlier attempts of this job, and other jobs for good; False if this attempt had done so before.

        Raises:
            SinkFencedError: If a newer attempt, or a job that came after this one, has the sink.
        """
        epoch, attempt = self._attempt
        self._execute(
            cursor,
            "INSERT INTO {sinks} (sink_id, job, epoch, attempt, pruned_before_ms) VALUES (?, ?, ?, ?, 0)"
            + self._dialect.or_nothing,
            *(self.sink_id, self._job, epoch, attempt),
        )
        job, *found = self._owner(cursor, self._dialect.exclusive_lock())
        if job != self._job:
            past = "SELECT 1 FROM {jobs} WHERE sink_id = ? AND job = ?"
            if self._execute(cursor, past, self.sink_id, self._job).fetchone() is not None:
                raise self._fenced(job, found)
            retire = "INSERT INTO {jobs} (sink_id, job) VALUES (?, ?)" + self._dialect.or_nothing
            self._execute(cursor, retire, self.sink_id, job)
        elif tuple(found) > self._attempt:
            raise self._fenced(job, found)
        elif tuple(found) == self._attempt:
            return False
        change = "UPDATE {sinks} SET job = ?, epoch = ?, attempt = ? WHERE sink_id = ?"
        self._execute(cursor, change, self._job, epoch, attempt, self.sink_id)
        return True

    def check_owner(self, cursor: Any, *, changes: bool = False) -> None:
        """Keep others from taking the sink over before the transaction ends.

        Args:
            cursor: Of the transaction.
            changes: Whether it will change the sink's row itself.

        Raises:
            SinkFencedError: If somebody has.
        """
        lock = self._dialect.exclusive_lock() if changes else self._dialect.share_lock()
        job, *found = self._owner(cursor, lock)
        if job != self._job or tuple(found) != self._attempt:
            raise self._fenced(job, found)

    def _owner(self, cursor: Any, lock: str) -> tuple[Any, ...]:
        query = "SELECT job, epoch, attempt FROM {sinks} WHERE sink_id = ?" + lock
        row = self._execute(cursor, query, self.sink_id).fetchone()
        if row is None:
            message = "the sink's row in the bookkeeping table has been removed by somebody"
            raise SinkError(message, table=SINKS, sink_id=self.sink_id)
        return tuple(row)

    def _fenced(self, job: str, attempt: list[int]) -> SinkFencedError:
        by = "a newer attempt of the job" if job == self._job else "another job"
        message = f"the sink has been taken over by {by}"
        hint = None if job == self._job else "two jobs that write at the same time need two sink ids"
        owner = f"{job} {attempt[0]}.{attempt[1]}"
        return SinkFencedError(message, hint=hint, sink_id=self.sink_id, owner=owner)

    # --------------------------------------------------------------------------------------------------------- markers
    def mark(self, cursor: Any, origin: str, txn: str, checkpoint_id: int, num_rows: int, prepared_ms: int) -> bool:
        """Say that a transaction is committed; False if that had been said.

        Args:
            cursor: Of the transaction that commits.
            origin: The sink id under which it was prepared.
            txn: Its name.
            checkpoint_id: The checkpoint that it was prepared for.
            num_rows: Its size.
            prepared_ms: When it was prepared, epoch milliseconds.
        """
        self._execute(
            cursor,
            "INSERT INTO {commits} (sink_id, txn, checkpoint_id, num_rows, prepared_ms)"
            " VALUES (?, ?, ?, ?, ?)" + self._dialect.or_nothing,
            *(origin, txn, checkpoint_id, num_rows, prepared_ms),
        )
        return bool(cursor.rowcount)

    def num_rows_after(self, cursor: Any, history: SinkHistory, checkpoint_id: int) -> int:
        """Return rows that are committed and were prepared by this job for later checkpoints than one.

        Markers of other jobs, which had the sink before, do not count; those without an owner in their name do, as
        earlier versions gave names without one. None of this job's has been dropped: they are dropped by age, when
        newer ones are there.
        """
        query = (
            "SELECT COALESCE(SUM(num_rows), 0) FROM {commits} WHERE sink_id = ? AND checkpoint_id > ?"
            " AND (SUBSTR(txn, 1, ?) = ? OR txn NOT LIKE ?)"
        )
        mine = f"{history.origin}/{history.owner}/"
        row = self._execute(cursor, query, self.sink_id, checkpoint_id, len(mine), mine, "%/%").fetchone()
        return int(row[0])

    def newer(self, cursor: Any, history: SinkHistory) -> list[tuple[str, int, int, int]]:
        """Return what was committed of this sink and a restored checkpoint does not account for.

        Args:
            cursor: Of a transaction.
            history: Of the sink, as the checkpoint has it.

        Returns:
            By owner: its first and last checkpoint of it, and how many rows.
        """
        start = len(history.origin) + 2
        owner = f"SUBSTR(txn, {start}, {len(history.owner)})"
        statement = (
            f"SELECT {owner}, MIN(checkpoint_id), MAX(checkpoint_id), SUM(num_rows) FROM {{commits}}"
            f" WHERE sink_id = ? AND SUBSTR(txn, 1, {start - 1}) = ?"
        )
        values: list[Any] = [self.sink_id, f"{history.origin}/"]
        for name, checkpoint_id in history.prepared.items():
            statement += f" AND NOT ({owner} = ? AND checkpoint_id <= ?)"
            values += [name, checkpoint_id]
        found = self._execute(cursor, f"{statement} GROUP BY {owner}", *values).fetchall()
        return [(str(name), int(first), int(last), int(rows)) for name, first, last, rows in found]

    def pruned_before_ms(self, cursor: Any, origin: str) -> int:
        """Markers of transactions that were prepared before this time have been dropped."""
        query = "SELECT pruned_before_ms FROM {sinks} WHERE sink_id = ?"
        row = self._execute(cursor, query, origin).fetchone()
        return 0 if row is None else int(row[0])

    def prune(self, cursor: Any, before_ms: int) -> None:
        """Drop markers, and what is staged, of transactions that were prepared before a time."""
        change = "UPDATE {sinks} SET pruned_before_ms = ? WHERE sink_id = ? AND pruned_before_ms < ?"
        self._execute(cursor, change, before_ms, self.sink_id, before_ms)
        drop = "DELETE FROM {commits} WHERE sink_id = ? AND prepared_ms < ?"
        self._execute(cursor, drop, self.sink_id, before_ms)
        drop = "DELETE FROM {staged} WHERE sink_id = ? AND staged_ms < ?"
        self._execute(cursor, drop, self.sink_id, before_ms)

    # --------------------------------------------------------------------------------------------------------- staging
    def stage(self, cursor: Any, txn: str, piece: int, staged_ms: int, num_rows: int, data: bytes) -> None:
        """Keep a piece of a transaction, out of every reader's sight; the same one again changes nothing."""
        self._execute(
            cursor,
            "INSERT INTO {staged} (sink_id, txn, piece, job, epoch, attempt, staged_ms, num_rows, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)" + self._dialect.or_nothing,
            *(self.sink_id, txn, piece, self._job, *self._attempt, staged_ms, num_rows, data),
        )

    def staged(self, cursor: Any, origin: str, txn: str) -> list[tuple[int, bytes]]:
        """Rows and data of a transaction's pieces, in order."""
        query = "SELECT num_rows, data FROM {staged} WHERE sink_id = ? AND txn = ? ORDER BY piece"
        return [(int(rows), bytes(data)) for rows, data in self._execute(cursor, query, origin, txn).fetchall()]

    def unstage(self, cursor: Any, origin: str, txn: str) -> None:
        """Drop the pieces of a transaction."""
        self._execute(cursor, "DELETE FROM {staged} WHERE sink_id = ? AND txn = ?", origin, txn)

    def retain(self, cursor: Any, origin: str, txn: str) -> None:
        """Keep the pieces of a transaction although its attempt may end: a savepoint holds it."""
        self._execute(cursor, "UPDATE {staged} SET retained = 1 WHERE sink_id = ? AND txn = ?", origin, txn)

    def drop_leftovers(self, cursor: Any) -> None:
        """Drop what earlier attempts of this job have staged and no savepoint holds."""
        epoch, attempt = self._attempt
        self._execute(
            cursor,
            "DELETE FROM {staged} WHERE sink_id = ? AND job = ? AND retained = 0"
            " AND (epoch < ? OR (epoch = ? AND attempt < ?))",
            *(self.sink_id, self._job, epoch, epoch, attempt),
        )
