"""Rows that wait in a checkpoint for their commit: as Arrow IPC, and read back with distrust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import CheckpointCorruptError
from headrace.state.reading.arrow_reading import read_arrow_stream

__all__ = ["GatheredRows", "from_ipc", "to_ipc"]

PIECE_BYTES = 8 << 20
"""Rows are put together in pieces of about this size, so that none of them is read as a whole that is too large."""


class GatheredRows:
    """Rows between two barriers, on their way into a checkpoint."""

    def __init__(self) -> None:
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._pieces: list[bytes] = []
        self._num_rows = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Take more rows, all of one schema."""
        self._gathered.append(records)
        self._gathered_bytes += records.nbytes
        self._num_rows += records.num_rows
        if self._gathered_bytes >= PIECE_BYTES:
            self._close_piece()

    def _close_piece(self) -> None:
        if self._gathered:
            self._pieces.append(to_ipc(self._gathered))
            self._gathered, self._gathered_bytes = [], 0

    def take(self) -> tuple[list[bytes], int]:
        """Return the pieces and how many rows they hold; begin anew."""
        self._close_piece()
        taken = self._pieces, self._num_rows
        self._pieces, self._num_rows = [], 0
        return taken


def to_ipc(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return batches of one schema as one piece."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def from_ipc(pieces: Sequence[bytes], rows: int, /, **what: Any) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of pieces, validated in full, one piece in memory at a time.

    Many small pieces may each grow to what one may. What is wrong shows only when its turn comes: what has written
    the pieces before takes them back.

    Args:
        pieces: As `to_ipc` has made them.
        rows: How many rows they hold together.
        **what: Whose they are, for errors.

    Raises:
        CheckpointCorruptError: If they are damaged, or hold another number of rows.
    """
    num_rows = 0
    for piece in pieces:
        batches = read_arrow_stream(piece, "prepared output", allow_compression=True, **what)[1]
        num_rows += sum(batch.num_rows for batch in batches)
        if not batches or num_rows > rows:
            raise _miscounted(num_rows, what)
        yield batches
    if num_rows != rows:
        raise _miscounted(num_rows, what)


def _miscounted(num_rows: int, what: dict[str, Any]) -> CheckpointCorruptError:
    message = f"prepared output cannot be decoded: it has {num_rows} rows"
    return CheckpointCorruptError(message, **what)
