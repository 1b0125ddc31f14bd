"""Runs that are sorted by the hash of their keys: what says, in a few bytes a key, where the rows of a key may be.

A run is cut into *blocks*, each of which is stored and read by itself. Of each block the smallest and the largest hash
are kept in memory (a zone map), and a Bloom filter of its hashes. So a key that a run does not have costs no read, one
that it has a read of its block, and many together read each block once.

Nothing but speed rests on the order of hashes: what is read is compared by its keys.

Source: log-structured merge trees; register-blocked Bloom filters (Putze, Sanders and Singler, 2007).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import Integers
from .hashes import hash_rows

__all__ = ["SortedRun", "hashes_of", "runs_of"]

_BITS_OF_A_KEY = 12
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SIX_BITS = np.uint64(63)


def hashes_of(keys: Sequence[pa.Array], num_rows: int) -> Integers:
    """Return the hashes that runs are sorted by: of keys, as columns."""
    return hash_rows(list(keys)) if keys else np.zeros(num_rows, np.int64)


class SortedRun:
    """One run: its blocks' places, zones and filters.

    Args:
        place: Of its first block, among the blocks of all runs.

    Attributes:
        place: Of its first block.
        num_rows: How many rows it has.
        num_keys: How many hashes, or a few more.
        num_bytes: How large its rows are in memory.
        last: The largest hash.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.num_rows = self.num_keys = self.num_bytes = self.num_blocks = 0
        self.last = 0
        # By block: smallest and largest hash, and where its words begin in the filters; in pieces, one for each `add`,
        # that are joined when they are asked for.
        self._pieces: list[tuple[Integers, Integers, Integers, npt.NDArray[np.uint64]]] = []
        nothing = np.zeros(0, np.int64)
        self._joined = (nothing, nothing, nothing, np.zeros(0, np.uint64))

    def add(self, hashes: Integers, sizes: Integers, num_bytes: int) -> None:
        """Add blocks behind the others.

        Args:
            hashes: Of their rows; those of a block ascend.
            sizes: How many rows each has, which is one at least.
            num_bytes: How large they are together.
        """
        begin = np.cumsum(sizes) - sizes
        is_key = np.ones(len(hashes), np.bool_)
        is_key[1:] = hashes[1:] != hashes[:-1]
        is_key[begin] = True
        num_keys = np.add.reduceat(is_key, begin, dtype=np.int64)
        num_words = -(-num_keys * _BITS_OF_A_KEY // 64)
        starts = np.cumsum(num_words) - num_words
        words = np.zeros(int(num_words.sum()), np.uint64)
        places, bits = _marks(hashes[is_key], np.repeat(num_words, num_keys).astype(np.uint64))
        np.bitwise_or.at(words, places + np.repeat(starts, num_keys), bits)
        before = len(self._joined[3]) + sum(len(piece[3]) for piece in self._pieces)
        self._pieces.append((hashes[begin], hashes[begin + sizes - 1], starts + before, words))
        self.last = int(hashes[-1])
        self.num_rows += len(hashes)
        self.num_keys += int(num_keys.sum())
        self.num_bytes += num_bytes
        self.num_blocks += len(sizes)

    @property
    def nbytes(self) -> int:
        """How many bytes are kept of it in memory."""
        return sum(array.nbytes for piece in (self._joined, *self._pieces) for array in piece)

    def blocks_of(self, hashes: Integers) -> Integers:
        """Return the numbers of the blocks in which hashes, which ascend, may be; of one that is left out it is
        certain.
        """
        firsts, lasts, starts, words = self._whole()
        begin = np.searchsorted(lasts, hashes, "left")
        end = np.maximum(np.searchsorted(firsts, hashes, "right"), begin)
        is_one = np.flatnonzero(end - begin == 1)
        blocks = begin[is_one]
        num_words = np.diff(starts, append=len(words))[blocks]
        places, bits = _marks(hashes[is_one], num_words.astype(np.uint64))
        is_absent = (words[places + starts[blocks]] & bits) != bits
        end[is_one[is_absent]] -= 1
        marks = np.zeros(self.num_blocks + 1, np.int64)
        np.add.at(marks, begin, 1)
        np.add.at(marks, end, -1)
        return np.flatnonzero(np.cumsum(marks[:-1]) > 0)

    def zones(self) -> tuple[Integers, Integers]:
        """Return the smallest and the largest hashes of its blocks."""
        return self._whole()[:2]

    def _whole(self) -> tuple[Integers, Integers, Integers, npt.NDArray[np.uint64]]:
        if self._pieces:
            firsts, lasts, starts, words = zip(self._joined, *self._pieces, strict=True)
            self._joined = (
                np.concatenate(firsts), np.concatenate(lasts), np.concatenate(starts), np.concatenate(words)
            )  # fmt: skip
            self._pieces.clear()
        return self._joined


def _marks(hashes: Integers, sizes: Any) -> tuple[Integers, npt.NDArray[np.uint64]]:
    """For each hash its word in a filter of so many words, and the four bits that it sets there."""
    mixed = hashes.view(np.uint64) * _MULTIPLIER
    bits = np.zeros(len(hashes), np.uint64)
    for shift in (0, 6, 12, 18):
        bits |= np.uint64(1) << ((mixed >> np.uint64(shift)) & _SIX_BITS)
    return ((mixed >> np.uint64(32)) % sizes).astype(np.int64), bits


def runs_of(blocks: Iterable[tuple[Integers, int]]) -> list[SortedRun]:
    """Find the runs that blocks were cut from: a new one begins where hashes go back.

    Args:
        blocks: Of each the hashes of its rows, and its size in bytes.
    """
    runs: list[SortedRun] = []
    for place, (hashes, num_bytes) in enumerate(blocks):
        hashes = np.sort(hashes)
        if not runs or hashes[0] < runs[-1].last:
            runs.append(SortedRun(place))
        runs[-1].add(hashes, np.array([len(hashes)]), num_bytes)
    return runs
