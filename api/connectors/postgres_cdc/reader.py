"""The reader of a subtask: chunks one after the other, then, in one of the subtasks, the log.

A chunk that has been read stays in the snapshot until the enumerator's state has what its pages saw. So a checkpoint
has this in one of the two, whenever it was triggered.

Source: Flink CDC's ``IncrementalSourceReader``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)

from ..sql.postgresql import psycopg_driver
from .chunk_reading import ChunkReading
from .enumerator import LOG
from .log_reading import RETRY_MS, LogReading
from .settings import CdcSettings, failed, require_checkpoints

__all__ = ["CdcReader"]

POLL_MS = 5
"""How soon to look again when nothing was there."""


class CdcReader(SourceReader):
    """Reads what one subtask is given.

    Args:
        settings: What is read.
    """

    def __init__(self, settings: CdcSettings) -> None:
        self._settings = settings
        # Chunks that are to be read; those that have been and whose pages the enumerator has not acknowledged.
        self._chunks: list[ChunkReading] = []
        self._read: dict[str, ChunkReading] = {}
        # Of these: not told yet; and, acknowledged, to be finished.
        self._untold: list[str] = []
        self._known: list[str] = []
        self._log: LogReading | None = None
        # For statements; made with the first chunk.
        self._connection: Any = None
        # Place in the log by checkpoint, until it is complete.
        self._places: dict[int, int] = {}

    def open(self, context: ReaderContext) -> None:
        self._context = context
        require_checkpoints(taken=context.checkpointing)

    @property
    def wants_split(self) -> bool:
        """Whether there is time for a chunk."""
        return not self._chunks and self._log is None

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            if split.split_id == LOG:
                self._log = LogReading(split, self._settings, self._context)
                continue
            chunk = ChunkReading(split, self._settings)
            if chunk.is_done:
                self._keep(chunk)
            else:
                self._chunks.append(chunk)

    def _keep(self, chunk: ChunkReading) -> None:
        self._read[chunk.split.split_id] = chunk
        self._untold.append(chunk.split.split_id)

    def poll(self, max_records: int) -> Any:
        while self._untold:
            chunk = self._read[self._untold.pop()]
            self._context.send_source_event({"chunk": chunk.split.split_id, "pages": chunk.pages})
        if self._known:
            split_id = self._known.pop()
            del self._read[split_id]
            return SplitFinished(split_id)
        if self._chunks:
            return self._poll_chunk(self._chunks[0], max_records)
        if self._log is not None:
            return self._log.poll(max_records) or NOTHING_NOW
        return NOTHING_NOW if self._read else ALL_SPLITS_FINISHED

    def _poll_chunk(self, chunk: ChunkReading, max_records: int) -> Any:
        if self._connection is None:
            try:
                self._connection = self._settings.server.connect()
            except psycopg_driver().Error as error:
                raise failed(error, "a chunk of a table cannot be read", **chunk.place) from error
        batch = chunk.read(self._connection, max_records)
        if chunk.is_done:
            del self._chunks[0]
            self._keep(chunk)
        return NOTHING_NOW if batch is None else Polled(chunk.split.split_id, batch)

    def next_poll_ms(self) -> int | None:
        is_waiting = self._log is not None and self._log.is_waiting
        return self._context.now_ms() + (RETRY_MS if is_waiting else POLL_MS)

    def handle_source_event(self, event: Any) -> None:
        """Take what the enumerator says that the pages of a chunk saw."""
        if event["known"] in self._read and event["known"] not in self._known:
            self._known.append(event["known"])

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def snapshot(self) -> list[Split]:
        chunks = [chunk.as_split() for chunk in [*self._chunks, *self._read.values()]]
        return chunks if self._log is None else [*chunks, self._log.as_split()]

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        """As `snapshot`; remembers what the server may forget once the checkpoint is complete."""
        if self._log is not None:
            self._places[checkpoint_id] = self._log.lsn
        return self.snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let the server forget the log before it."""
        lsn = self._places.pop(checkpoint_id, None)
        for older in [one for one in self._places if one < checkpoint_id]:
            del self._places[older]
        if self._log is not None and lsn is not None:
            self._log.confirm(lsn)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._log is not None:
            self._log.close()
