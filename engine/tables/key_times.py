"""When each key was last written: what the time to live of state goes by whose unit is all that a key has.

It is a table of its own beside those that it is about, so that a key without a time to live costs nothing. A key whose
time has come is forgotten by its owner as one whose last record was taken back. Keys that are not in memory are left
out when the runs of a log are merged: rows in other logs are looked up here.

Invariant: the log of times is not behind the others where they are merged: it is written first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from .columns import Integers, Truths
from .growing import grown
from .key_index import KeyIndex
from .lifetime import NEVER, Lifetime
from .run_log import LogForm, LogRows, RunLog

__all__ = ["KeyTimes"]

_FORM = LogForm([], lambda columns: columns[0].to_numpy(zero_copy_only=False) == NEVER)


class KeyTimes:
    """The times of one subtask's keys.

    Args:
        backend: The operator's keyed state.
        keys: Names and types of the key's columns.
        index: Gives keys their codes.
        lifetime: How long they live.

    Attributes:
        lifetime: See above.
        log: Where times are kept.
    """

    def __init__(
        self, backend: KeyedStateBackend, keys: Sequence[pa.Field], index: KeyIndex, lifetime: Lifetime
    ) -> None:
        self.lifetime = lifetime
        self._types = [key.type for key in keys]
        self._index = index
        self.log = RunLog(backend, "times", keys, [pa.field("time", pa.int64())], _FORM, self._is_past)
        # By key: when it was written, and whether the log has something else.
        self._times = np.full(0, NEVER, np.int64)
        self._is_changed = np.zeros(0, np.bool_)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def expired(self, codes: Integers) -> Integers:
        """Return those of some keys that have expired; a key that has just come has, too."""
        self._make_room()
        times = self._times[codes]
        return codes[self.lifetime.is_expired(np.where(times == NEVER, self.lifetime.began_ms, times))]

    def swept(self, *, is_forced: bool = False) -> Integers:
        """Return all keys in memory that have expired, if it is time to look.

        Args:
            is_forced: Whether it is.
        """
        if not (self.lifetime.is_sweep_due or is_forced):
            return np.zeros(0, np.int64)
        return self.expired(np.arange(len(self._index)))

    def touch(self, codes: Integers) -> None:
        """Note that keys are written."""
        self._make_room()
        self._times[codes] = np.maximum(self._times[codes], self.lifetime.now_ms)
        self._is_changed[codes] = True

    def forget(self, codes: Integers) -> None:
        """Note that keys have nothing any more."""
        self._make_room()
        held = codes[self._times[codes] != NEVER]
        self._times[held] = NEVER
        self._is_changed[held] = True

    def _make_room(self) -> None:
        size = len(self._index)
        self._times, self._is_changed = grown(self._times, size, NEVER), grown(self._is_changed, size, False)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _is_past(self, rows: LogRows) -> Truths:
        return self.lifetime.is_expired(rows[2][0].to_numpy(zero_copy_only=False))

    def is_over(self, rows: LogRows) -> Truths:
        """Return which rows of another log, in which they are merged, are those of keys that have expired."""
        self.persist()
        num_rows, keys, _ = rows
        times = np.full(num_rows, self.lifetime.began_ms)
        found = self.log.find_keys(keys, num_rows)
        if found is not None:
            index = KeyIndex(self._types)
            index.codes_of(found[1], found[0])  # all differ, so that codes are places
            codes, _ = index.codes_of(keys, num_rows, add=False)
            known = np.flatnonzero(codes >= 0)
            times[known] = found[2][0].to_numpy(zero_copy_only=False)[codes[known]]
        return self.lifetime.is_expired(times)

    # -- a table of keys that come and go: `headrace.engine.tables.resident_keys.KeyedTable` ---------------------------

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return self._times.nbytes + self._is_changed.nbytes

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of keys; codes are those of the rows."""
        self._make_room()
        self._times[codes] = rows[2][0].to_numpy(zero_copy_only=False)

    def weights(self, num_keys: int) -> Integers:
        """Nothing: no key need be kept for its time alone."""
        return np.zeros(num_keys, np.int64)

    def persist(self) -> None:
        """Write which times have changed."""
        changed = np.flatnonzero(self._is_changed)
        self._is_changed[:] = False
        rows = len(changed), self._index.take(changed), [pa.array(self._times[changed])]
        self.log.write(rows, int((self._times != NEVER).sum()))

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Forget all keys but some."""
        self._make_room()
        self._times, self._is_changed = self._times[codes], self._is_changed[codes]
