"""Which parts of a table and its log there are to read, in which order.

First the slot is made, so that nothing that happens from then on is missing in the log. Then the table is cut into
chunks, which readers read side by side. A reader that has read a chunk tells what its pages saw, and keeps the chunk
until it is told that this is part of the enumerator's state: so a checkpoint has one or the other. When all are
read, the log is a split, handed out once a checkpoint is complete: behind all rows of the chunks, wherever they went.

Source: Flink CDC's ``IncrementalSourceEnumerator``, ``SnapshotSplitAssigner``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.connectors.contract import Discovery, SourceEvent, Split
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import InternalError

from ..sql.postgresql import psycopg_driver
from .chunks import Key, TableKey
from .marks import CatalogMarks
from .pgoutput import lsn_of
from .publication import await_writers, check_table, make_publication, make_slot
from .settings import CdcSettings, asked, failed, quoted

__all__ = ["LOG", "CdcEnumerator"]

LOG = "log"
"""Id of the split that is the log."""


class CdcEnumerator:
    """Finds chunks, and the log behind them. All it knows is in its state.

    Args:
        settings: What is read.
    """

    discovery_interval_ms: int | None = None

    def __init__(self, settings: CdcSettings) -> None:
        self._settings = settings

    def discover(self) -> Discovery:
        return self.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))

    def discover_from(self, progress: EnumeratorProgress) -> Discovery:
        """At first the chunks; the log when all of them have been read."""
        if progress.state is None:
            return self._begin()
        if not progress.is_exhausted:
            return Discovery([], is_final=False, state=progress.state)
        state = progress.state
        pages = [page for chunk in state["read"].values() for page in chunk]
        if len(state["read"]) != state["num_chunks"]:
            message = f"{len(state['read'])} of {state['num_chunks']} chunks have told what they saw"
            raise InternalError(message, table=self._settings.name)
        return Discovery([self._log(state, pages)], is_final=True, is_repeatable=False, state={**state, "read": {}})

    def handle_source_event(self, subtask: int, event: Any, progress: EnumeratorProgress) -> Discovery:
        """Take it that a chunk has been read; the reader is told when that is known here."""
        state = progress.state
        read = {**state["read"], event["chunk"]: event["pages"]}
        told = SourceEvent({"known": event["chunk"]}, subtask)
        return Discovery([], is_final=False, state={**state, "read": read}, events=(told,))

    def _begin(self) -> Discovery:
        settings = self._settings
        try:
            with settings.server.connect() as connection:
                key = check_table(connection, settings)
                make_publication(connection, settings)
                marks = CatalogMarks.read(connection, settings, key)
                slot = make_slot(connection, settings)
                state = {
                    "start": slot.confirmed_lsn,
                    "key": [list(one) for one in key.columns],
                    "marks": marks.as_state(),
                    "read": {},
                }
                if settings.startup == "initial":
                    await_writers(connection, settings)
                    chunks = _chunks(connection, settings, key)
                    splits = [
                        Split(f"chunk {number}", {"above": above, "upto": upto, "key": state["key"]}, is_bounded=True)
                        for number, (above, upto) in enumerate(chunks)
                    ]
                    state["num_chunks"] = len(splits)
                    return Discovery(splits, is_final=False, state=state)
                if settings.startup == "latest-offset":
                    (now,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                    state["start"] = max(slot.confirmed_lsn, lsn_of(now))
                return Discovery([self._log(state, [])], is_final=True, is_repeatable=False, state=state)
        except psycopg_driver().Error as error:
            raise failed(error, "a table cannot be looked at", table=settings.name) from error

    @staticmethod
    def _log(state: dict[str, Any], pages: list[Any]) -> Split:
        payload = {"start": state["start"], "key": state["key"], "pages": pages, "marks": state.get("marks")}
        return Split(LOG, payload, is_bounded=False)


def _chunks(connection: Any, settings: CdcSettings, key: TableKey) -> list[tuple[Key | None, Key | None]]:
    """Ranges of the key: above one and up to another, None at the ends."""
    order = key.in_statements()
    columns = ", ".join(quoted(name) for name in key.names)
    marks = ", ".join(f"${number + 1}" for number in range(len(key.columns)))
    behind = f"ORDER BY {order} OFFSET {settings.chunk_rows - 1} LIMIT 1"
    found: list[tuple[Key | None, Key | None]] = []
    above: Key | None = None
    while True:
        where = "" if above is None else f"WHERE ({order}) > ({marks})"
        rows = asked(connection, f"SELECT {columns} FROM ONLY {quoted(*settings.table)} {where} {behind}", above or ())
        if not rows.ntuples:
            return [*found, (above, None)]
        upto = [rows.get_value(0, column).decode() for column in range(len(key.columns))]
        found.append((above, upto))
        above = upto
