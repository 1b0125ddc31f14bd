"""Reads the log: transactions in the order of their commits, what each did to the table, never waiting for more.

The position is the place of a transaction's commit and how many of its changes to the table were given; or, between two
transactions, the place up to which the server has sent everything. The server keeps its log from the position of the
last complete checkpoint on: it is told of no other.

Source: PostgreSQL's documentation ("Streaming Replication Protocol"); Flink CDC's ``PostgresStreamFetchTask``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import RowKind
from headrace.engine.connectors.contract import Polled, ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError, TypeMismatchError

from ..sql.postgresql import psycopg_driver
from .chunks import PagesSeen, TableKey
from .marks import CatalogMarks
from .pgoutput import (
    Begin,
    Change,
    Commit,
    Keepalive,
    Relation,
    Truncate,
    lsn_text,
    parse_copy_data,
    parse_message,
    status_update,
)
from .publication import has_bound, key_of, require_publication, require_slot, slot_of
from .row_changes import RowChanges, batch_of
from .settings import CdcSettings, failed, quoted
from .values import column_of

__all__ = ["LogReading"]

TAKEN_MS = 60_000
"""How long a slot may be another's before that is an error: a reader that was killed lets go of it a little later."""

RETRY_MS = 200


@dataclass
class _Gathered:
    """Changes of one layout of the table: values by column, kinds, and places for errors."""

    rows: list[list[Any]] = field(default_factory=list)
    kinds: list[RowKind] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


class LogReading:
    """The log of a table and how far it was read.

    Args:
        split: It.
        settings: What is read.
        context: Of the reader.
    """

    def __init__(self, split: Split, settings: CdcSettings, context: ReaderContext) -> None:
        self.split = split
        self._settings = settings
        self._context = context
        payload, position = split.payload, split.position or {}
        self._key = TableKey(tuple((name, kind) for name, kind in payload["key"]))
        self._pages = PagesSeen(self._key, payload["pages"]) if payload["pages"] else None
        # What the catalogue has last said; None in checkpoints that are older than this.
        marks = payload.get("marks")
        self._marks = None if marks is None else CatalogMarks.of_state(marks)
        # The position: a place, and how many changes behind it were given.
        self._lsn: int = position.get("lsn", payload["start"])
        self._index: int = position.get("index", 0)
        # The transaction that is being read: how many of its changes came, and how many of these were given before.
        self._transaction: Begin | None = None
        self._num_changes = self._num_given = 0
        # What the table is like; None before the log has said so.
        self._layout: RowChanges | None = None
        self._gathered = _Gathered()
        # To the server; None while there is none. Up to where it may forget, and what it has last said of its end.
        self._connection: Any = None
        self._confirmed_lsn = self._server_lsn = self._lsn
        self._told_ms = 0
        self._waits_since_ms: int | None = None
        self._has_warned = False
        context.metrics.gauge("slot_retained_bytes", lambda: float(self._server_lsn - self._confirmed_lsn))
        context.metrics.gauge("pending_bytes", lambda: float(max(self._server_lsn - self._lsn, 0)))

    @property
    def lsn(self) -> int:
        """Up to where everything has been given: the log before it is needed no more."""
        return self._lsn

    @property
    def is_waiting(self) -> bool:
        """Whether the slot is still another's."""
        return self._waits_since_ms is not None

    def as_split(self) -> Split:
        """Return the log with its position. What pages saw is left out when all of it has been passed."""
        payload = {**self.split.payload, "marks": None if self._marks is None else self._marks.as_state()}
        if self._pages is None:
            payload["pages"] = []
        return Split(self.split.split_id, payload, {"lsn": self._lsn, "index": self._index}, is_bounded=False)

    @property
    def place(self) -> dict[str, Any]:
        """Split and position, for errors."""
        return {"split": self.split.split_id, "position": self._position(), "table": self._settings.name}

    def _position(self) -> str:
        return f"log {lsn_text(self._lsn)}, change {self._index}"

    # ------------------------------------------------------------------------------------------------------- connection
    def _connect(self) -> bool:
        """Ask for the log from the position on; False while the slot is another's.

        Raises:
            SourceError: If the server does not give it.
            CheckpointMismatchError: If the slot is behind the position already.
        """
        settings, library = self._settings, psycopg_driver()
        try:
            with settings.server.connect() as connection:
                slot = require_slot(slot_of(connection, settings), settings)
                self._look(connection)
                if not self._has_warned and not has_bound(connection):
                    self._has_warned = True
                    self._context.warn(
                        f"slot {settings.slot!r} may fill the server's disk if the job stands still, as its"
                        " max_slot_wal_keep_size is -1: set a bound, and watch slot_retained_bytes"
                    )
            if slot.confirmed_lsn > self._lsn:
                confirmed = lsn_text(slot.confirmed_lsn)
                message = f"slot {settings.slot!r} has gone on to {confirmed}: what is between cannot be had any more"
                hint = "go on from the newest checkpoint, or begin anew with a fresh slot"
                raise CheckpointMismatchError(message, hint=hint, **self.place)
            if slot.active_pid is not None:
                return self._wait(f"server process {slot.active_pid}")
            connection = settings.server.connect(replicates=True)
            publication = settings.publication.replace("'", "''").replace('"', '""')
            command = (
                f"START_REPLICATION SLOT {quoted(settings.slot)} LOGICAL {lsn_text(self._lsn)}"
                f" (proto_version '1', publication_names '\"{publication}\"')"
            )
            result = connection.pgconn.exec_(command.encode())
            if result.status != library.pq.ExecStatus.COPY_BOTH:
                said = result.error_message.decode(errors="replace")
                connection.close()
                if "is active for PID" in said:
                    return self._wait(said.strip())
                raise failed(said, "the log cannot be read", **self.place)
        except library.Error as error:
            raise failed(error, "the log cannot be read", **self.place) from error
        self._connection, self._waits_since_ms = connection, None
        return True

    def _look(self, connection: Any) -> None:
        """See that the log has every change of the table, as far as the catalogue says.

        Raises:
            SourceError: If it may lack some.
        """
        require_publication(connection, self._settings)
        self._key.require_same(key_of(connection, self._settings).names, self._settings.name, self.place)
        marks = CatalogMarks.read(connection, self._settings, self._key)
        known = self._marks
        self._marks = marks if known is None else known.followed_by(marks, self._settings, self.place)

    def _wait(self, by: str) -> bool:
        now_ms = self._context.now_ms()
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        if now_ms - self._waits_since_ms > TAKEN_MS:
            message = f"replication slot {self._settings.slot!r} is read by another ({by})"
            raise SourceError(message, hint="two sources need two slots", **self.place)
        return False

    def confirm(self, lsn: int) -> None:
        """Let the server forget what is before a place: a complete checkpoint is behind it."""
        if lsn > self._confirmed_lsn:
            self._confirmed_lsn = lsn
            if self._connection is not None:
                try:
                    self._tell(wants_answer=False)
                except psycopg_driver().Error as error:
                    raise failed(error, "the server cannot be told how far the job is", **self.place) from error

    def _tell(self, *, wants_answer: bool) -> None:
        now_ms = self._told_ms = self._context.now_ms()
        pgconn = self._connection.pgconn
        pgconn.put_copy_data(status_update(self._server_lsn, self._confirmed_lsn, now_ms, wants_answer=wants_answer))
        pgconn.flush()

    def close(self) -> None:
        """Let go of the slot."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------------------------------------------------- reading
    def poll(self, max_records: int) -> list[Polled]:
        """Return what has come, some batches of it.

        Raises:
            SourceError: If the log cannot be read, or says something that cannot be followed.
            TypeMismatchError: If a value cannot be held by its type.
        """
        if self._connection is None and not self._connect():
            return []
        found: list[Polled] = []
        num_records = 0
        try:
            self._connection.pgconn.consume_input()
            while num_records < max_records:
                size, data = self._connection.pgconn.get_copy_data(1)
                if size == 0:
                    break
                if size < 0:
                    raise self._ended()
                self._take(bytes(data), found)
                num_records = len(self._gathered.rows) + sum(one.batch.num_rows for one in found)
            if self._context.now_ms() - self._told_ms >= self._settings.heartbeat_ms:
                self._tell(wants_answer=True)
                with self._settings.server.connect() as connection:
                    self._look(connection)
        except psycopg_driver().Error as error:
            raise failed(error, "the log cannot be read on", **self.place) from error
        self._flush(found)
        return found

    def _ended(self) -> SourceError:
        result = self._connection.pgconn.get_result()
        said = "" if result is None else result.error_message.decode(errors="replace")
        return failed(said, "the server has ended the log", **self.place)

    def _take(self, data: bytes, found: list[Polled]) -> None:
        parsed = parse_copy_data(data)
        if isinstance(parsed, Keepalive):
            self._server_lsn = max(self._server_lsn, parsed.end_lsn)
            if self._transaction is None and not self._index:
                self._lsn = max(self._lsn, parsed.end_lsn)  # so that a quiet table keeps no log
            if parsed.wants_answer:
                self._tell(wants_answer=False)
            return
        end_lsn, message = parsed
        self._server_lsn = max(self._server_lsn, end_lsn)
        said = parse_message(message)
        if isinstance(said, Begin):
            self._begin(said)
        elif isinstance(said, Commit):
            begin, self._transaction = self._transaction, None
            if begin is not None and begin.commit_lsn >= self._lsn:
                self._lsn, self._index = said.end_lsn, 0
        elif isinstance(said, Relation):
            self._laid_out(said, found)
        elif isinstance(said, Truncate):
            self._truncated(said)
        elif isinstance(said, Change):
            self._change(said)

    def _laid_out(self, relation: Relation, found: list[Polled]) -> None:
        """Take what a table is like from here on.

        The server says so again behind every change of the catalogue that concerns the table. So what has changed in
        silence is noticed before anything behind it is given.
        """
        if (relation.schema, relation.table) == self._settings.table:
            self._flush(found)
            self._layout = RowChanges(relation, self._settings, self._key, self.place)
            with self._settings.server.connect() as connection:
                self._look(connection)
        elif self._layout is not None and self._layout.relation == relation.relation:
            message = f"table {self._settings.name!r} is called {f'{relation.schema}.{relation.table}'!r} now"
            raise SourceError(message, hint="begin anew with the table of that name", **self.place)

    def _begin(self, begin: Begin) -> None:
        self._transaction, self._num_changes = begin, 0
        if begin.commit_lsn < self._lsn:
            self._num_given = 1 << 62  # all of it
            return
        if begin.commit_lsn > self._lsn:
            self._lsn, self._index = begin.commit_lsn, 0
        self._num_given = self._index
        if self._pages is not None and begin.commit_lsn > self._pages.last_lsn:
            self._pages = None  # nobody has seen what comes from here on

    def _change(self, change: Change) -> None:
        layout, begin = self._layout, self._transaction
        if layout is None or begin is None or change.relation != layout.relation:
            return
        self._num_changes += 1
        if self._num_changes <= self._num_given:
            return
        self._index = self._num_changes
        gathered, place = self._gathered, self._position()
        for key, values, kind in layout.rows_of(change, place):
            if self._pages is None or not self._pages.has(key, begin.xid):
                gathered.rows.append(values)
                gathered.kinds.append(kind)
                gathered.places.append(place)

    def _truncated(self, truncate: Truncate) -> None:
        if self._layout is None or self._layout.relation not in truncate.relations or self._transaction is None:
            return
        if self._transaction.commit_lsn < self._lsn:
            return
        if self._pages is not None and self._pages.all_see(self._transaction.xid):
            return
        message = f"table {self._settings.name!r} was truncated: the log does not say which rows are gone"
        raise SourceError(
            message, hint="delete rows instead; to go on, begin anew without the checkpoint", **self.place
        )

    def _flush(self, found: list[Polled]) -> None:
        """Make a batch of what has been gathered."""
        gathered, self._gathered = self._gathered, _Gathered()
        if not gathered.rows or self._layout is None:
            return
        try:
            arrays = self._arrays(gathered.rows)
        except TypeMismatchError:
            self._name_the_first(gathered)
            raise
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._settings.schema)
        batch = batch_of(rows, gathered.kinds, self._settings.kind_column)
        found.append(Polled(self.split.split_id, batch))

    def _arrays(self, rows: list[list[Any]]) -> list[pa.Array]:
        assert self._layout is not None
        return [
            column_of(item.name, self._layout.types[number], [row[number] for row in rows], item.type)
            for number, item in enumerate(self._settings.schema)
        ]

    def _name_the_first(self, gathered: _Gathered) -> None:
        """Raise the error of the first row that cannot be held, with its place."""
        for row, place in zip(gathered.rows, gathered.places, strict=True):
            try:
                self._arrays([row])
            except TypeMismatchError as error:
                error.context.update({**self.place, "position": place})
                raise
