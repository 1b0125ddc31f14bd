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
    """Those of one operator's subtask, by their kind, in pieces whose size is no guess from some of their records."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Batch, ...]] = {LATE: (), BAD: ()}

    def keep(self, kind: str, records: Batch) -> None:
        """Keep the last of some records; on the operator's thread."""
        newest = _newest(records.shared())
        self._kept[kind] = _within_bounds((*self._kept[kind], *newest)) if newest else self._kept[kind]

    def last(self, kind: str, num_records: int) -> Sequence[Batch]:
        """Return the newest records, oldest first; from any thread."""
        return _last(self._kept[kind], num_records)


def _newest(records: Batch) -> list[Batch]:
    """The last records without the buffers of others, and without those that are too large."""
    places = np.arange(max(0, records.num_rows - MOST_REJECTED), records.num_rows, dtype=np.intp)
    whole = records.take(places).without_keys()
    if whole.has_columns and whole.num_rows and whole.nbytes <= MOST_REJECTED_BYTES:
        return [whole]
    found = (records.take(places[i : i + 1]).without_keys() for i in range(len(places)))
    return [one for one in found if one.nbytes <= MOST_REJECTED_BYTES]


def _within_bounds(pieces: Sequence[Batch]) -> tuple[Batch, ...]:
    kept, num_bytes = _last(pieces, MOST_REJECTED), 0
    for number, piece in enumerate(reversed(kept)):
        num_bytes += piece.nbytes
        if num_bytes > MOST_REJECTED_BYTES:
            return tuple(kept[len(kept) - number :])
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
