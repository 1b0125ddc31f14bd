"""Which keys of an operator by event time have outlived their time to live.

A key is written when a row of it comes, and when rows of it go out. One that has rows which wait for the watermark does
not expire: they are given first. All keys are in memory, so those that have expired are found there, where a batch
touches them and now and then all of them together.

Source: Flink's ``KeyedProcessFunctionWithCleanupState``, whose timer is set anew while rows wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..tables.columns import Integers, Truths
from ..tables.key_index import KeyIndex
from ..tables.key_times import KeyTimes
from ..tables.lifetime import Lifetime

__all__ = ["ExpiringKeys"]


class ExpiringKeys:
    """The times of one subtask's keys.

    Args:
        backend: The operator's keyed state.
        keys: Names and types of the key's columns.
        index: Gives keys their codes; what else is kept of them has been read.
        lifetime: How long they live.
        waits: Of codes, which have rows that wait.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        keys: Sequence[pa.Field],
        index: KeyIndex,
        lifetime: Lifetime,
        waits: Callable[[Integers], Truths],
    ) -> None:
        self._index = index
        self._waits = waits
        self._times = KeyTimes(backend, keys, index, lifetime)
        rows = self._times.log.read()
        if rows is not None:
            self._times.take_over(rows, index.codes_of(rows[1], rows[0])[0])

    def begin(self) -> None:
        """Look at the clock, for a batch or a watermark."""
        self._times.lifetime.begin()

    def expired(self, codes: Integers) -> Integers:
        """Return those of some keys that have expired, which are to be forgotten."""
        return self._without_rows(self._times.expired(np.unique(codes)))

    def swept(self) -> Integers:
        """Return all keys that have expired, now and then; they are to be forgotten."""
        return self._without_rows(self._times.swept())

    def before_snapshot(self) -> Integers:
        """Return all keys that have expired; they are to be forgotten."""
        self._times.lifetime.begin()
        self._times.lifetime.snapshot()
        return self._without_rows(self._times.swept(is_forced=True))

    def _without_rows(self, codes: Integers) -> Integers:
        return codes[~self._waits(codes)] if len(codes) else codes

    def touch(self, codes: Integers) -> None:
        """Note that keys are written."""
        self._times.touch(np.unique(codes))

    def forget(self, codes: Integers, num_expired: int) -> None:
        """Note that keys have nothing any more.

        Args:
            codes: Theirs.
            num_expired: How many of them had something.
        """
        self._times.forget(codes)
        self._times.lifetime.count(num_expired=num_expired)

    def leave(self, kept: Integers) -> None:
        """Prepare for codes that are given anew: forget all keys but some, and write what has changed."""
        self._times.forget(np.setdiff1d(np.arange(len(self._index)), kept))
        self._times.persist()

    def keep(self, kept: Integers, new_codes: Integers) -> None:
        """Have other codes for keys: the places of old ones among those that are kept."""
        self._times.keep(kept, new_codes)

    def persist(self) -> None:
        """Write which times have changed."""
        self._times.persist()
