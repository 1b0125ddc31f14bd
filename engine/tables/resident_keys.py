"""Which keys of an operator are in memory: all there is room for, and the others in the logs of its tables.

A key that is *resident* has a code, and all that tables keep for it is in their arrays. What is not resident lies in
the tables' logs alone, so nothing is stored twice for it: a key that comes again is looked for there, with all others
of its batch, and taken over by the tables. When these hold more than there is room for, what has changed is written
into the logs, and the keys that have not been used for the longest time are forgotten, until half of the room is free.

On a backend that keeps all in memory every key is resident from the start; what tables hold is counted, and refused
when it is too much.

Invariant: a key that has a code is resident in all tables; what a log says of a key that has none is all there is.

Source: anti-caching of databases in memory (DeBrabant et al., 2013), whose unit is the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from .columns import Integers
from .growing import grown
from .hash_runs import hashes_of
from .hashes import hash_rows
from .key_index import KeyIndex
from .run_log import LogRows, RunLog

__all__ = ["KeyedTable", "ResidentKeys"]

_KEYS_AT_ONCE = 4_096

_OVERHEAD = 3
"""What rows of a log take in tables, with indexes and room to grow, is so many times as much, about."""


class KeyedTable(Protocol):
    """What an operator keeps for its keys, by their codes."""

    log: RunLog
    """Where it is written."""

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        ...

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of keys that have had nothing here; codes are those of the rows."""
        ...

    def weights(self, num_keys: int) -> Integers:
        """Of each key how much there is of it: 0 for one that need not be kept."""
        ...

    def persist(self) -> None:
        """Write what has changed into the log."""
        ...

    def keep(self, codes: Integers, new_codes: Integers) -> object:
        """Forget all keys but some, which are numbered anew in their order; nothing of that is a change.

        Args:
            codes: Those that stay, which ascend.
            new_codes: By old code the new one; -1 for those that go.
        """
        ...


class ResidentKeys:
    """The keys of one operator subtask.

    Args:
        backend: The operator's keyed state.
        types: Those of the key's columns.

    Attributes:
        index: Gives resident keys their codes; tables read it, and add nothing to it.
    """

    def __init__(self, backend: KeyedStateBackend, types: Sequence[pa.DataType]) -> None:
        self.index = KeyIndex(types)
        self._types = list(types)
        self._backend = backend
        self._is_partial = backend.table_room() is not None
        self._tables: Sequence[KeyedTable] = ()
        # By code the batch in which it was used last; only if keys may be put aside.
        self._used = np.zeros(0, np.int64)
        self._num_batches = 0

    def __len__(self) -> int:
        return len(self.index)

    def attach(self, *tables: KeyedTable) -> None:
        """Name the tables; where all is in memory they take over what their logs have.

        They are written in this order. The last one says which keys there are.
        """
        self._tables = tables
        if not self._is_partial:
            for table in tables:
                rows = table.log.read()
                if rows is not None:
                    table.take_over(rows, self.index.codes_of(rows[1], rows[0])[0])
        self._count()

    # -- a batch -------------------------------------------------------------------------------------------------------

    def parts(self, columns: Sequence[pa.Array], num_rows: int) -> Iterator[Integers | None]:
        """The rows of a batch that are to be processed one part after the other; None is all of them.

        There is more than one part only if what its keys have may be more than there is room for. All rows of a key
        are in one part, in order.

        Args:
            columns: The key's.
            num_rows: Of the batch.
        """
        num_parts = self._num_parts(num_rows)
        if num_parts <= 1 or not columns:
            yield None
            return
        places = (hash_rows(list(columns)).view(np.uint64) >> np.uint64(32)).astype(np.int64) * num_parts >> 32
        order = np.argsort(places, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(places[order])) + 1)

    def _num_parts(self, num_rows: int) -> int:
        room = self._backend.table_room() if self._is_partial else None
        if room is None:
            return 1
        of_a_key = _OVERHEAD * sum(table.log.bytes_of_a_key for table in self._tables)
        return min(num_rows, 2 * num_rows * of_a_key // max(room, 1) + 1)

    def codes_of(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> Integers:
        """Return the codes of keys; all of them are resident afterwards.

        Args:
            columns: The key's.
            num_rows: How many keys there are; needed only if there is no column.
        """
        codes, num_new = self.index.codes_of(columns, num_rows)
        if self._is_partial:
            self._num_batches += 1
            self._used = grown(self._used, len(self.index))
            self._used[codes] = self._num_batches
            if num_new:
                self._take_over(len(self.index) - num_new)
        return codes

    def _take_over(self, first: int) -> None:
        """Look in the logs for keys that have just got codes, from one on."""
        if not any(table.log.num_rows for table in self._tables):
            return
        new = np.arange(first, len(self.index))
        hashes = np.unique(hashes_of(self.index.take(new), len(new)))
        for table in self._tables:
            rows = table.log.find(hashes)
            if rows is None:
                continue
            codes, _ = self.index.codes_of(rows[1], rows[0], add=False)
            wanted = np.flatnonzero(codes >= first)  # others have a hash of theirs by chance
            if len(wanted):
                table.take_over(_taken(rows, wanted), codes[wanted])

    def in_parts(self) -> Iterator[Integers]:
        """Yield the codes of all keys that the last table keeps, some at a time; they are resident until the next ones.

        The caller has room made after each part.
        """
        if not self._is_partial:
            yield np.arange(len(self.index))
            return
        self.persist()
        for num_rows, keys in self._tables[-1].log.read_keys():
            seen = KeyIndex(self._types)
            for start in range(0, num_rows, _KEYS_AT_ONCE):
                part = [key.slice(start, _KEYS_AT_ONCE) for key in keys]
                size = min(_KEYS_AT_ONCE, num_rows - start)
                known = len(seen)
                codes, _ = seen.codes_of(part, size)
                is_new = np.unique(codes[codes >= known], return_index=True)
                places = np.flatnonzero(codes >= known)[is_new[1]]
                if len(places):
                    chosen = pa.array(places)
                    yield self.codes_of([key.take(chosen) for key in part], len(places))

    # -- room ----------------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Put keys aside if tables hold too much. Called when a batch has been processed: codes change.

        Raises:
            ManagedMemoryError: If they hold too much and all must be in memory.
        """
        num_bytes = self._count()
        room = self._backend.table_room() if self._is_partial else None
        if room is not None and num_bytes > room:
            self._put_aside(room / 2 / num_bytes)

    def _count(self) -> int:
        num_bytes = self.index.nbytes + self._used.nbytes
        num_bytes += sum(table.nbytes + table.log.nbytes for table in self._tables)
        self._backend.hold_tables(num_bytes, " and ".join(table.log.name for table in self._tables))
        return num_bytes

    def _put_aside(self, share: float) -> None:
        """Keep the keys that were used last, up to a share of all that there is."""
        weights = np.zeros(len(self.index), np.int64)
        for table in self._tables:
            weights += table.weights(len(weights))
        codes = np.flatnonzero(weights)
        order = codes[np.argsort(-self._used[codes], kind="stable")]
        held = np.cumsum(weights[order])
        self.keep(np.sort(order[held <= share * weights.sum()]))

    def keep(self, codes: Integers) -> None:
        """Forget all keys but some; what is kept of the others is in the logs, if there is anything.

        Args:
            codes: Those that stay, which ascend; they are numbered anew.
        """
        for table in self._tables:
            table.persist()
        new_codes = np.full(len(self.index), -1, np.int64)
        new_codes[codes] = np.arange(len(codes))
        for table in self._tables:
            table.keep(codes, new_codes)
        self.index.compact(codes)
        if self._is_partial:
            self._used = self._used[codes]
        self._count()

    def persist(self) -> None:
        """Write what has changed."""
        for table in self._tables:
            table.persist()
        self._count()


def _taken(rows: LogRows, places: Integers) -> LogRows:
    num_rows, keys, columns = rows
    if len(places) == num_rows:
        return rows
    chosen = pa.array(places)
    return len(places), [key.take(chosen) for key in keys], [column.take(chosen) for column in columns]
