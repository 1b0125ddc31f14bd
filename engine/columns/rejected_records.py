"""The last records that an operator has rejected: late ones, and input that it could not decode.

They are kept to be shown to people, where the cluster shows records at all, whether or not somebody reads the side
output that they go to. Kept are few, and no more than so many bytes by estimate; the oldest give way. What is kept is
marked as shared, so that who reads it as well gets copies if it changes records.

Invariant: what is kept is replaced as a whole, so that it may be read from another thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .records import Batch

__all__ = ["BAD", "LATE", "MOST_REJECTED", "MOST_REJECTED_BYTES", "RejectedRecords"]

LATE, BAD = "late", "bad"
"""Why records are rejected: they came behind the watermark; they could not be decoded."""

MOST_REJECTED = 50
"""Records of each kind that one operator's subtask keeps."""

MOST_REJECTED_BYTES = 1 << 20
"""Of each kind; a record that is larger by itself is not kept."""


class RejectedRecords:
    """Those of one operator's subtask, by their kind."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Batch, ...]] = {LATE: (), BAD: ()}

    def keep(self, kind: str, records: Batch) -> None:
        """Keep the last of some records; on the operator's thread."""
        newest = _newest(records.shared())
        self._kept[kind] = _within_bounds((*self._kept[kind], newest)) if newest.num_rows else self._kept[kind]

    def last(self, kind: str, num_records: int) -> Sequence[Batch]:
        """The newest records, oldest first; from any thread."""
        return _last(self._kept[kind], num_records)


def _newest(records: Batch) -> Batch:
    """The last records that are within the bounds, without the buffers of the others."""
    number = min(records.num_rows, MOST_REJECTED)
    while True:
        found = records.take(np.arange(records.num_rows - number, records.num_rows, dtype=np.intp)).without_keys()
        if found.nbytes <= MOST_REJECTED_BYTES or not number:
            return found
        number //= 2


def _within_bounds(pieces: Sequence[Batch]) -> tuple[Batch, ...]:
    kept = list(_last(pieces, MOST_REJECTED))
    while sum(piece.nbytes for piece in kept) > MOST_REJECTED_BYTES:
        kept.pop(0)
    return tuple(kept)


def _last(pieces: Sequence[Batch], number: int) -> Sequence[Batch]:
    """The pieces with the last records, the first of them cut."""
    found: list[Batch] = []
    for piece in reversed(pieces):
        if number <= 0:
            break
        found.append(piece if piece.num_rows <= number else piece.slice(piece.num_rows - number, number))
        number -= piece.num_rows
    return found[::-1]
