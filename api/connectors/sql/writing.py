"""The writers and committers behind the SQL sink: staged transactions, upserts as they come, plain inserts.

*Staged*: records since the last barrier are one transaction to be. They are kept as Arrow IPC, in the checkpoint itself
or in a table of the database, and their commit writes them, with a marker, in one transaction of the database. Its name
is drawn by chance, so no two attempts, jobs or runs ever share one, and it travels with the committable: any
subtask that commits it, at whatever parallelism, finds the same marker.

A name begins with the sink's origin and owner (`headrace.engine.connectors.contract.SinkHistory`), so the markers tell
a job that is restored which transactions were committed behind its checkpoint. What a checkpoint or the table for
staged rows holds is not believed: it is validated before anything is made of it.

*Eager*: records are written when they come, in transactions of at most ``batch_size``, and all of them before a barrier
passes. What a failure makes the job repeat is written again: harmless with a key, which is what makes it converge.

Everything that talks to the database in a committer runs beside the task. A writer talks to it on the task's thread, as
Flink's does: to look at the table before its first record, and for what it writes eagerly or stages.

Source: Flink's ``JdbcOutputFormat``, ``JdbcExactlyOnceSinkWriter`` and ``JdbcCommitter``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    CommitRetry,
    CommitterContext,
    ProvingCommitter,
    SinkWriter,
    WriterContext,
)
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    NewerOutputError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
)
from headrace.state.checkpoints.manifest_schema import is_text

from ...formats.prepared_rows import from_ipc, to_ipc
from .database import Bookkeeping, Database
from .dialects import Dialect, Table
from .rows import RowLayout, RowPlan, check_table

__all__ = ["SqlCommitter", "SqlSettings", "StagingWriter", "UpsertWriter"]

PRUNE_EVERY_MS = 600_000
"""How often old markers are dropped, at most; the retention is that much longer than it must be."""


@dataclass(frozen=True)
class SqlSettings:
    """What writers and committers of a SQL sink know.

    Attributes:
        dialect: Of the database.
        connect: Makes a connection.
        layout: The user's columns.
        sink_id: Under which the sink writes; None for one that keeps no books: at-least-once.
        staging: Where transactions wait for their commit; None for what is written eagerly.
        batch_size: Most rows of one statement or piece.
        batch_interval_ms: How long rows may wait for others before they are written eagerly.
        max_retries: How often an eager write that failed is tried again.
        marker_retention_ms: How long commits are remembered.
        on_newer_output: What to do about commits behind the checkpoint that is restored.
    """

    dialect: Dialect
    connect: Callable[[], Any] = field(repr=False)
    layout: RowLayout
    sink_id: str | None
    staging: Literal["checkpoint", "table"] | None
    batch_size: int
    batch_interval_ms: int
    max_retries: int
    marker_retention_ms: int
    on_newer_output: Literal["error", "keep"] = "error"

    def bookkeeping(self, context: WriterContext | CommitterContext) -> Bookkeeping | None:
        """Return the sink's tables, for an attempt."""
        if self.sink_id is None:
            return None
        epoch, _, attempt = context.attempt.partition(".")
        number = (int(epoch), int(attempt))
        return Bookkeeping(self.dialect, self.layout.table[:-1], self.sink_id, context.job, number)

    def database(self, context: WriterContext | CommitterContext) -> Database:
        """Return a connection of its own for a subtask."""
        return Database(self.dialect, self.connect, {"table": self.layout.name, **context.place})


class _Writer(SinkWriter):
    """What both writers need: a connection, and how records become rows."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        # Made when the task is opened; None before, so that closing is harmless.
        self._database: Database | None = None
        # The table as it was before the first record.
        self._table: Table | None = None
        # Plans by the records' schema; few, as they rarely change.
        self._plans: dict[pa.Schema, RowPlan] = {}
        # How many records there have been, by which errors name one.
        self._num_records = 0

    def open(self, context: WriterContext) -> None:
        self._context = context
        self._database = self._settings.database(context)
        self._books = self._settings.bookkeeping(context)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _opened(self) -> Database:
        assert self._database is not None
        return self._database

    def _planned(self, batch: Batch) -> tuple[pa.RecordBatch, RowPlan]:
        """The records by the names of their columns, and how they are written.

        Raises:
            TypeMismatchError: If they do not fit the table, or it would change one.
        """
        columns = self._settings.layout.columns_of(batch)
        plan = self._plans.get(columns.schema)
        if plan is None:
            if self._table is None:
                self._try("look at the table", self._look)
            table = check_table(self._settings.layout, self._table, self._settings.dialect)
            plan = RowPlan(self._settings.layout, table, columns.schema, self._settings.dialect)
            self._plans[columns.schema] = plan
        plan.check(columns, self._num_records + 1, self._context.place)
        self._num_records += columns.num_rows
        return columns, plan

    def _look(self, cursor: Any) -> None:
        self._table = self._opened().describe(cursor, self._settings.layout.table)

    def _try(self, what: str, action: Callable[[Any], None]) -> None:
        """Do something in a transaction, again if it fails, as often as the settings say."""
        retry = CommitRetry()
        for failures in range(1, self._settings.max_retries + 2):
            try:
                with self._opened().transaction(what) as cursor:
                    if self._books is not None:
                        self._books.check_owner(cursor)
                    action(cursor)
                return
            except SinkFencedError:
                raise
            except SinkError:
                if failures > self._settings.max_retries:
                    raise
                self._context.metrics.count("num_write_retries")
                time.sleep(retry.delay_ms(failures) / 1_000)


class StagingWriter(_Writer):
    """Gathers the records between two barriers as a transaction to be."""

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        # The transaction's name: drawn once per writer, numbered from one barrier to the next.
        self._name = uuid.uuid4().hex
        self._number = 0
        # Records that are in no piece yet.
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        # What is in pieces: data if they stay here, else their number.
        self._pieces: list[bytes] = []
        self._num_staged = 0
        self._num_rows = 0

    @property
    def _txn(self) -> str:
        history = self._context.history
        return f"{history.origin}/{history.owner}/{self._name}-{self._number}"

    def write(self, batch: Batch) -> None:
        if not batch.num_rows:
            return
        columns, _ = self._planned(batch)
        if self._gathered and self._gathered[0].schema != columns.schema:
            self._close_piece()
        self._gathered.append(columns)
        self._gathered_rows += columns.num_rows
        self._num_rows += columns.num_rows
        if self._gathered_rows >= self._settings.batch_size:
            self._close_piece()

    def _close_piece(self) -> None:
        gathered, self._gathered = self._gathered, []
        num_rows, self._gathered_rows = self._gathered_rows, 0
        if not gathered:
            return
        data = to_ipc(gathered)
        if self._settings.staging == "checkpoint":
            self._pieces.append(data)
            return
        books, piece, now_ms = self._books, self._num_staged, self._context.now_ms()
        assert books is not None
        txn = self._txn
        self._try("stage rows", lambda cursor: books.stage(cursor, txn, piece, now_ms, num_rows, data))
        self._num_staged += 1

    def prepare(self, checkpoint_id: int) -> list[Any]:
        if not self._num_rows:
            return []
        self._close_piece()
        pieces, self._pieces = self._pieces, []
        num_pieces = self._num_staged or len(pieces)
        committable = {
            "sink_id": self._settings.sink_id,
            "txn": self._txn,
            "checkpoint_id": checkpoint_id,
            "prepared_ms": self._context.now_ms(),
            "rows": self._num_rows,
            "num_pieces": num_pieces,
            "data": pieces if self._settings.staging == "checkpoint" else None,
        }
        self._number += 1
        self._num_rows = self._num_staged = 0
        return [committable]

    def retain(self, committables: list[Any]) -> None:
        books = self._books
        names = [(one["sink_id"], one["txn"]) for one in committables if one["data"] is None]
        if books is None or not names:
            return

        def mark(cursor: Any) -> None:
            for origin, txn in names:
                books.retain(cursor, origin, txn)

        self._try("keep rows for a savepoint", mark)


class UpsertWriter(_Writer):
    """Writes records as they come."""

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        # What waits to be written, and since when.
        self._buffer: list[tuple[pa.RecordBatch, RowPlan]] = []
        self._buffered_rows = 0
        self._since_ms = 0

    def write(self, batch: Batch) -> None:
        if not batch.num_rows:
            return
        columns, plan = self._planned(batch)
        now_ms = self._context.now_ms()
        if not self._buffer:
            self._since_ms = now_ms
        size = self._settings.batch_size
        for start in range(0, columns.num_rows, size):
            piece = columns.slice(start, size)
            self._buffer.append((piece, plan))
            self._buffered_rows += piece.num_rows
            if self._buffered_rows >= size:
                self._flush()
        if self._buffer and now_ms - self._since_ms >= self._settings.batch_interval_ms:
            self._flush()

    def prepare(self, checkpoint_id: int) -> list[Any]:
        self._flush()
        return []

    def _flush(self) -> None:
        buffer = self._buffer
        if not buffer:
            return

        def write(cursor: Any) -> None:
            start = 0
            for end in range(1, len(buffer) + 1):  # runs of one plan, in their order
                plan = buffer[start][1]
                if end == len(buffer) or buffer[end][1] is not plan:
                    plan.write(cursor, [columns for columns, _ in buffer[start:end]])
                    start = end

        self._try("write rows", write)
        self._buffer, self._buffered_rows = [], 0


class SqlCommitter(ProvingCommitter):
    """Looks at the table, takes the sink over, and commits what is staged."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._table: Table | None = None
        # When it last dropped what is old; 0 before all that was restored is committed, and for all subtasks but one.
        self._pruned_ms = 0

    def open(self, context: CommitterContext) -> None:
        self._context = context
        self._books = self._settings.bookkeeping(context)
        database = self._settings.database(context)
        self._database = database
        with database.transaction("use the table") as cursor:
            found = database.describe(cursor, self._settings.layout.table)
            self._table = check_table(self._settings.layout, found, self._settings.dialect)
        if self._books is not None:
            with database.transaction("make the bookkeeping tables") as cursor:
                self._books.make_tables(cursor)
            with database.transaction("take over the sink") as cursor:
                # From here on no older owner commits, so what is not committed now never will be.
                if self._books.take_over(cursor) or context.subtask == 0:
                    self._look_for_newer_output(cursor, self._books)

    def _look_for_newer_output(self, cursor: Any, books: Bookkeeping) -> None:
        history = self._context.history
        if self._settings.staging is None or self._context.newer_output == "prove":
            return  # what comes again is found by its key; or it is asked for later
        newer = books.newer(cursor, history)
        if not newer:
            return
        if self._settings.on_newer_output == "keep" or self._context.newer_output == "repeat":
            for owner, _, last, _ in newer:
                history.accept(owner, last)
            return
        ids = [checkpoint_id for _, first, last, _ in newer for checkpoint_id in (first, last)]
        point = f"checkpoint {max(history.prepared.values())}" if history.prepared else "nothing"
        message = (
            f"the job goes on from {point}, and {sum(rows for *_, rows in newer)} rows of checkpoints {min(ids)} to"
            f" {max(ids)} were committed behind it; going on would write them again"
        )
        hint = "restore the newest checkpoint; or take those rows away and say on_newer_output='keep'"
        raise NewerOutputError(message, hint=hint, table=self._settings.layout.name, sink_id=books.sink_id)

    def commit(self, committable: Any) -> None:
        database, books = self._database, self._books
        assert database is not None
        assert books is not None
        _check(committable)
        origin, txn, rows = committable["sink_id"], committable["txn"], committable["rows"]
        checkpoint_id, prepared_ms = committable["checkpoint_id"], committable["prepared_ms"]
        what = {"table": self._settings.layout.name, "checkpoint": checkpoint_id, "rows": rows, "transaction": txn}
        if "/" in txn and txn.partition("/")[0] != self._context.history.origin:  # version 1 gave names without one
            message = "the checkpoint holds prepared output of another sink"
            raise CheckpointMismatchError(message, **what)
        with database.transaction("commit") as cursor:
            books.check_owner(cursor)
            if not books.mark(cursor, origin, txn, checkpoint_id, rows, prepared_ms):
                return  # committed before: by an attempt that failed afterwards, or whose answer got lost
            if prepared_ms < books.pruned_before_ms(cursor, origin):
                message = "prepared output is older than the commits that are remembered: possible loss"
                hint = "look whether the rows are there; keep commits for longer by marker_retention"
                raise PossibleLossError(message, hint=hint, **what)
            data = committable["data"]
            if data is None:
                staged = books.staged(cursor, origin, txn)
                found = sum(num_rows for num_rows, _ in staged)
                if len(staged) != committable["num_pieces"] or found != rows:
                    message = "prepared output is gone and was never committed: possible loss"
                    raise PossibleLossError(message, found=found, **what)
                data = [piece for _, piece in staged]
            self._write(cursor, _decoded(data, rows, what, is_staged=committable["data"] is None))
            if committable["data"] is None:
                books.unstage(cursor, origin, txn)
        if self._context.now_ms() - self._pruned_ms >= PRUNE_EVERY_MS and self._pruned_ms:
            self._prune(books, database)

    def _write(self, cursor: Any, pieces: Iterable[list[pa.RecordBatch]]) -> None:
        plan: RowPlan | None = None
        schema: pa.Schema | None = None
        assert self._table is not None
        num_records = 0
        for batches in pieces:
            if plan is None or batches[0].schema != schema:
                schema = batches[0].schema
                plan = RowPlan(self._settings.layout, self._table, schema, self._settings.dialect)
            for batch in batches:  # the table may be another one than when they were prepared
                plan.check(batch, num_records + 1, self._context.place)
                num_records += batch.num_rows
            plan.write(cursor, batches)

    def num_committed_after(self, checkpoint_id: int) -> int:
        database, books = self._database, self._books
        assert database is not None
        if books is None or self._settings.staging is None:
            return 0  # written as it came, and again after every failure: by its key, or at least once
        with database.transaction("see what is committed") as cursor:
            books.check_owner(cursor)
            return books.num_rows_after(cursor, self._context.history, checkpoint_id)

    def abort_leftovers(self) -> None:
        books, database = self._books, self._database
        if books is None or database is None or self._context.subtask:
            return  # the first subtask does it for all
        self._prune(books, database)

    def _prune(self, books: Bookkeeping, database: Database) -> None:
        now_ms = self._context.now_ms()
        with database.transaction("drop what nobody needs any more") as cursor:
            books.check_owner(cursor, changes=True)
            books.drop_leftovers(cursor)
            books.prune(cursor, now_ms - self._settings.marker_retention_ms)
        self._pruned_ms = now_ms

    def close(self) -> None:
        if self._database is not None:
            self._database.close()


def _decoded(
    pieces: list[bytes], rows: int, what: dict[str, Any], *, is_staged: bool
) -> Iterator[list[pa.RecordBatch]]:
    """The rows of a transaction; see `headrace.formats.prepared_rows.from_ipc`.

    Raises:
        PossibleLossError: If those in the database are damaged: no checkpoint holds them.
        CheckpointCorruptError: If those in the checkpoint are.
    """
    try:
        yield from from_ipc(pieces, rows, **what)
    except CheckpointCorruptError as error:
        if not is_staged:
            raise
        message = f"the rows that are staged in the database are damaged, and were never committed: {error.message}"
        raise PossibleLossError(message, **what) from error


_FIELDS = {"sink_id": str, "txn": str, "checkpoint_id": int, "prepared_ms": int, "rows": int, "num_pieces": int}


def _check(committable: Any) -> None:
    """See that a checkpoint holds what a SQL sink prepares.

    Raises:
        CheckpointMismatchError: If not.
    """
    is_right = isinstance(committable, dict) and committable.keys() == {*_FIELDS, "data"}
    is_right = is_right and all(type(committable[name]) is kind for name, kind in _FIELDS.items())
    if is_right:
        data = committable["data"]
        is_right = data is None or (isinstance(data, list) and all(type(piece) is bytes for piece in data))
        is_right = is_right and all(
            is_text(committable[name]) and "\0" not in committable[name] for name in ("sink_id", "txn")
        )
        is_right = is_right and all(0 <= committable[name] < 1 << 63 for name, kind in _FIELDS.items() if kind is int)
    if not is_right:
        message = "the checkpoint holds prepared output that is not a SQL sink's"
        raise CheckpointMismatchError(message)
