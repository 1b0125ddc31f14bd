"""Which subtask owns a key: key -> stable 64-bit hash -> key group -> subtask.

The number of key groups (max parallelism) is fixed for a job's life; subtasks own contiguous ranges of them, so that
rescaling moves whole ranges and every range of files is read in one piece.

Source: Flink's ``KeyGroupRangeAssignment`` (the two formulas) and ``KeyGroupRange``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .mixing import Hashes

__all__ = ["KeyGroupRange", "key_group_range", "key_groups_of", "subtask_of"]


class KeyGroupRange(NamedTuple):
    """The key groups ``start`` to ``end``, both inclusive; empty when ``end`` is before ``start``."""

    start: int
    end: int

    def contains(self, key_group: int) -> bool:
        """Return whether a key group is in the range."""
        return self.start <= key_group <= self.end

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether the range shares a key group with ``start`` to ``end`` (inclusive)."""
        return self.start <= end and start <= self.end

    def __len__(self) -> int:
        return max(0, self.end - self.start + 1)


def key_groups_of(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key groups, 0 to ``max_parallelism - 1``, of hashed keys."""
    return (hashes % np.uint64(max_parallelism)).astype(np.int32)


def subtask_of(key_groups: npt.NDArray[np.int32], max_parallelism: int, parallelism: int) -> npt.NDArray[np.int32]:
    """Return the subtasks, 0 to ``parallelism - 1``, that own key groups; the inverse of `key_group_range`."""
    return (key_groups.astype(np.int64) * parallelism // max_parallelism).astype(np.int32)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """Return the key groups that one of ``parallelism`` subtasks owns; the ranges of all of them partition all key
    groups.
    """
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)
