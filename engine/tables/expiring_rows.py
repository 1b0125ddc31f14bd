"""The rows of partitions that are kept whole: all of them live for ever, or until nothing was written for some time.

What ranks or numbers the rows of partitions keeps them so. The unit of the time to live is the partition: it is
written when a row is added that stays, and when one is taken back. So it goes as a whole, and what is left of it is
never a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ..functions.operator import OperatorContext
from .columns import Integers, Truths
from .key_index import KeyIndex
from .key_times import KeyTimes
from .lifetime import lifetime_of
from .resident_keys import KeyedTable
from .row_store import RowStore

__all__ = ["ExpiringRows"]

_NONE = np.zeros(0, np.int64)


class ExpiringRows:
    """The rows of one subtask.

    Args:
        context: The operator's.
        keys: Names and types of the partition's columns.
        index: Gives partitions their codes.
        schema: Of the records.
        ttl_ms: How long a partition lives in which nothing is written; 0 for ever.
        refuse: Fails for a row that is taken back and was never there: columns, their names, the number of the row.

    Attributes:
        store: The rows.
    """

    def __init__(
        self,
        context: OperatorContext,
        keys: list[pa.Field],
        index: KeyIndex,
        schema: pa.Schema,
        ttl_ms: int,
        refuse: Callable[[Sequence[pa.Array], Sequence[str], int], None],
    ) -> None:
        lifetime = lifetime_of(context, ttl_ms)
        self._times = None if lifetime is None else KeyTimes(context.keyed_state, keys, index, lifetime)
        self._names = schema.names
        self._refuse = refuse
        self.store = RowStore(
            context.keyed_state, "rows", keys, index, list(schema), is_attached=True,
            is_over=None if self._times is None else self._times.is_over,
        )  # fmt: skip
        self._rewritten = _NONE

    @property
    def tables(self) -> list[KeyedTable]:
        """What is attached to the keys ahead of the rows' owner."""
        return [] if self._times is None else [self._times]

    def begin(self, codes: Integers) -> Integers:
        """Begin a batch; returns those of its partitions that have expired, which are to be forgotten."""
        self._rewritten = _NONE
        if self._times is None:
            return _NONE
        self._times.lifetime.begin()
        return self._times.expired(np.unique(codes))

    def taken_back(
        self, batch: pa.RecordBatch, codes: Integers, is_added: Truths, size: int
    ) -> tuple[Integers, Integers]:
        """Find the rows that are taken back: the codes of their partitions, and themselves.

        Args:
            batch: The records; those that are added have been.
            codes: Of their partitions.
            is_added: Which of them were added.
            size: Of the store before.

        Raises:
            UserFunctionError: If one was not there, and cannot have expired.
        """
        rows = np.flatnonzero(~is_added)
        columns = [column.take(pa.array(rows)) for column in batch.columns]
        # What may not be there must not be found in a row that comes later.
        limits = None if self._times is None else size + np.cumsum(is_added)[rows]
        found = self.store.find(codes[rows], columns, latest=False, limits=limits)
        is_known = found >= 0
        if is_known.all():
            self._rewritten = codes[rows]
            return codes[rows], found
        if self._times is None:
            self._refuse(batch.columns, self._names, int(rows[np.argmin(found)]))
        else:
            self._times.lifetime.count(num_ignored=int((~is_known).sum()))
        self._rewritten = codes[rows][is_known]
        return self._rewritten, found[is_known]

    def written(self, ids: Integers) -> None:
        """Note that a batch has been processed.

        Args:
            ids: The rows that it has added.
        """
        if self._times is not None:
            owners = self.store.codes[ids]
            self._times.touch(np.unique(np.concatenate([owners[owners >= 0], self._rewritten])))

    def swept(self) -> Integers:
        """Return all partitions that have expired, now and then; they are to be forgotten."""
        return _NONE if self._times is None else self._times.swept()

    def before_snapshot(self) -> Integers:
        """Return all partitions that have expired; they are to be forgotten."""
        if self._times is None:
            return _NONE
        self._times.lifetime.begin()
        self._times.lifetime.snapshot()
        return self._times.swept(is_forced=True)

    def forget(self, codes: Integers) -> None:
        """Forget partitions that have expired; some may have nothing."""
        if self._times is None or not len(codes):
            return
        owners, ids = self.store.by_key.of(codes)
        self.store.remove(ids)
        self._times.forget(codes)
        self._times.lifetime.count(num_expired=len(np.unique(owners)))

    def living(self, codes: Integers) -> Integers:
        """Return those of some partitions that have not expired."""
        if self._times is None:
            return codes
        self._times.lifetime.begin()
        return np.setdiff1d(codes, self._times.expired(codes))
