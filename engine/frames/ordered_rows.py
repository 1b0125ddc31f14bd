"""Rows in order, partition by partition: where each one is, its neighbours, and the frames around it.

Invariant: the rows of a partition stand together, and so do those that are equal in the order; frames of rows further
back never begin or end before those of rows before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..tables.columns import Integers, Truths
from ..tables.ordering import SortKey
from . import loops
from .frame_calls import Frame, Neighbour, Place, Share

__all__ = ["OrderedRows", "first_of_runs"]

_ENDS = np.iinfo(np.int64)
_Shares = npt.NDArray[np.float64]


class OrderedRows:
    """Rows of some partitions in order.

    Args:
        is_first: Whether a row is the first of its partition.
        is_new: Whether a row is the first of those that are equal to it in the order; where there is none, as is_first.
        key: What they are ordered by, for frames that go by distance.

    Attributes:
        starts: For each row the first one of its partition.
        ends: For each row the one behind the last.
        peers: For each row the first of those that are equal to it in the order.
        peer_ends: For each row the one behind the last of them.
    """

    def __init__(self, is_first: Truths, is_new: Truths, key: SortKey | None = None) -> None:
        self.starts, self.ends = _runs(is_first)
        self.peers, self.peer_ends = _runs(is_new)
        self._is_new = is_new
        self._key = key

    def __len__(self) -> int:
        return len(self.starts)

    def places(self, spec: Place, piece: slice) -> Integers | _Shares:
        """Return the places of some rows in their partitions."""
        starts = self.starts[piece]
        if isinstance(spec, Share):
            return self._shares(spec, piece)
        if spec.name == "row_number":
            return np.arange(piece.start, piece.stop, dtype=np.int64) - starts + 1
        if spec.name == "rank":
            return self.peers[piece] - starts + 1
        return self._numbers[piece] - self._numbers[starts] + 1

    def _shares(self, spec: Share, piece: slice) -> Integers | _Shares:
        starts, sizes = self.starts[piece], self.ends[piece] - self.starts[piece]
        if spec.name == "percent_rank":
            return (self.peers[piece] - starts) / np.maximum(sizes - 1, 1)
        if spec.name == "cume_dist":
            return (self.peer_ends[piece] - starts) / sizes
        here = np.arange(piece.start, piece.stop, dtype=np.int64) - starts
        small, num_large = np.divmod(sizes, spec.num_tiles)
        # The first parts have a row more; where there are more parts than rows, each row is one.
        in_large = num_large * (small + 1)
        behind = num_large + (here - in_large) // np.maximum(small, 1)
        return np.where(here < in_large, here // (small + 1), behind) + 1

    @cached_property
    def _numbers(self) -> Integers:
        """The number of each row's place among all places that differ."""
        return np.cumsum(self._is_new)

    def neighbours(self, spec: Neighbour, columns: pa.RecordBatch, piece: slice) -> pa.Array:
        """Return the values that neighbours of some rows have."""
        import pyarrow.compute as pc

        at = np.arange(piece.start, piece.stop) + spec.offset
        is_there = (at >= self.starts[piece]) & (at < self.ends[piece])
        first = min(max(piece.start + spec.offset, 0), len(self) - 1)
        end = max(min(piece.stop + spec.offset, len(self)), first + 1)
        values = spec.value.evaluate(columns.slice(first, end - first))
        taken = values.take(pa.array(np.where(is_there, at - first, 0), mask=~is_there))
        if spec.default is None:
            return taken
        return pc.if_else(pa.array(is_there), taken, pa.scalar(spec.default, values.type))

    def bounds(self, frame: Frame | None) -> tuple[Integers, Integers]:
        """Of each row the first one in its frame, and the one behind the last.

        Args:
            frame: The frame; None for SQL's own: up to the row and those that are equal to it.
        """
        if frame is None:
            return self.starts, self.peer_ends
        if frame.is_range:
            return self._range_end(frame.low, is_high=False), self._range_end(frame.high, is_high=True)
        here = np.arange(len(self))
        return (
            self.starts if frame.low is None else np.clip(here + frame.low, self.starts, self.ends),
            self.ends if frame.high is None else np.clip(here + frame.high + 1, self.starts, self.ends),
        )

    def _range_end(self, distance: int | None, *, is_high: bool) -> Integers:
        if distance is None:
            return self.ends if is_high else self.starts
        peers = self.peer_ends if is_high else self.peers
        if distance == 0:
            return peers
        assert self._key is not None
        nulls, keys = self._key
        if nulls is not None:
            # A null is as far away from everything else as can be, and nothing is near it but nulls.
            keys = np.where(nulls == 0, keys, np.where(nulls < 0, _ENDS.min, _ENDS.max))
        found = np.empty(len(self), np.int64)
        loops.range_ends(np.ascontiguousarray(keys), self.starts, self.ends, distance, is_high, found)
        return found if nulls is None else np.where(nulls == 0, found, peers)


def first_of_runs(columns: Sequence[Integers]) -> Truths:
    """Return which rows differ in some column from the one before; the first does."""
    is_first = np.zeros(len(columns[0]), np.bool_)
    is_first[:1] = True
    for column in columns:
        is_first[1:] |= column[1:] != column[:-1]
    return is_first


def _runs(is_first: Truths) -> tuple[Integers, Integers]:
    """For each row where its run begins and where it ends."""
    begins = np.flatnonzero(is_first)
    sizes = np.diff(begins, append=len(is_first))
    return np.repeat(begins, sizes), np.repeat(begins + sizes, sizes)
