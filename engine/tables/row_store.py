"""The rows of an input, by key: added, found again when they are taken back, and read key by key.

Each row has a number, in order of arrival, under which its columns are held; equal rows have numbers of their own. Rows
of one key are a chain through these numbers. Rows that are taken back are found by a hash of all their columns, behind
which the columns are compared; that index is made when the first row is taken back, so that inputs which never do so
pay nothing for it.

A row may carry a number that changes (how many rows match it in a join) and is kept with it. Rows that have a time to
live each keep the time at which they came, or their number changed last.

In the log a row is known by its key and its *sequence number*, which it keeps when the state is restored; a row that is
gone or whose number has changed is written without its columns. A store whose keys come and go (`resident_keys`) holds
the rows of those that are in memory; one that stands alone reads its whole log when it is made.

Invariant: chains hold exactly the rows that live, in the order of their arrival; when more than half of all rows are
gone the others are numbered anew, which `compact` tells.

Source: Flink's ``JoinRecordStateViews`` and ``RetractableTopNFunction``, whose state is a map from rows to counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from . import table_loops
from .columns import Integers, Truths, same_rows, stored_column
from .growing import grown
from .hashes import hash_rows
from .key_index import KeyIndex, LocalCodes
from .lifetime import Lifetime
from .run_log import LogForm, LogRows, RunLog

__all__ = ["FORM_OF_ROWS", "FORM_OF_TIMED_ROWS", "Chains", "RowStore"]

_GONE, _ROW, _NUMBER = 0, 1, 2
_MIN_DEAD = 1_024


class Chains:
    """Numbers in order, for each code; a number is in one chain at most."""

    def __init__(self) -> None:
        self.heads, self.tails = np.full(0, -1, np.int64), np.full(0, -1, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.nexts, self.priors = np.full(0, -1, np.int64), np.full(0, -1, np.int64)

    def append(self, codes: Integers, ids: Integers) -> None:
        """Put numbers at the ends of the chains of their codes."""
        if not len(ids):
            return
        self._make_room(int(codes.max()) + 1)
        self.nexts = grown(self.nexts, int(ids.max()) + 1, -1)
        self.priors = grown(self.priors, int(ids.max()) + 1, -1)
        table_loops.link(codes, ids, self.heads, self.tails, self.counts, self.nexts, self.priors)

    def remove(self, codes: Integers, ids: Integers) -> None:
        """Take numbers out of the chains of their codes."""
        table_loops.unlink(codes, ids, self.heads, self.tails, self.counts, self.nexts, self.priors)

    def _make_room(self, num_codes: int) -> None:
        self.heads, self.tails = grown(self.heads, num_codes, -1), grown(self.tails, num_codes, -1)
        self.counts = grown(self.counts, num_codes)

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        arrays = (self.heads, self.tails, self.counts, self.nexts, self.priors)
        return sum(array.nbytes for array in arrays)

    def counts_of(self, codes: Integers) -> Integers:
        """Return how many numbers the chains of codes have; none for code -1."""
        self._make_room(int(codes.max(initial=-1)) + 1)
        return np.where(codes >= 0, self.counts[codes], 0) if len(self.counts) else np.zeros(len(codes), np.int64)

    def of(self, codes: Integers) -> tuple[Integers, Integers]:
        """For each number in the chains of codes, one code after the other: the place of its code, and itself."""
        counts = self.counts_of(codes)
        found = np.empty(int(counts.sum()), np.int64)
        if len(found):
            table_loops.gather(codes, self.heads, self.nexts, found)
        return np.repeat(np.arange(len(codes)), counts), found


class _RowForm(LogForm):
    """A row is what was written of it last, but for its columns: these are written once.

    Args:
        num_facts: How many columns are written each time.
    """

    def __init__(self, num_facts: int = 3) -> None:
        super().__init__([0], lambda columns: _kinds_of(columns) == _GONE)
        self._num_facts = num_facts

    def taken(self, rows: LogRows, found: tuple[Integers, Integers]) -> LogRows:
        _, keys, columns = rows
        numbers, last = found
        kinds = _kinds_of(columns)
        whole = np.full(len(last), -1, np.int64)
        is_whole = np.flatnonzero(kinds == _ROW)
        whole[numbers[is_whole]] = is_whole
        kinds = np.where((kinds[last] == _NUMBER) & (whole >= 0), np.int8(_ROW), kinds[last])
        whole[kinds == _GONE] = -1
        places, of_columns = pa.array(last), pa.array(whole, mask=whole < 0)
        facts = [column.take(places) for column in columns[: self._num_facts]]
        facts[1] = pa.array(kinds)
        return (
            len(last),
            [key.take(places) for key in keys],
            [*facts, *(column.take(of_columns) for column in columns[self._num_facts :])],
        )


FORM_OF_ROWS: LogForm = _RowForm()
"""What rows of the log of a store mean."""

FORM_OF_TIMED_ROWS: LogForm = _RowForm(4)
"""The same, of rows that have a time to live."""


def _kinds_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.int8]:
    kinds: npt.NDArray[np.int8] = columns[1].to_numpy(zero_copy_only=False)
    return kinds


class RowStore:
    """The rows of one input.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: Names and types of the key's columns.
        key_index: Gives their codes; other stores may share it.
        columns: What is held of each row.
        is_attached: Whether the keys' owner says which keys are in memory (`headrace.engine.tables.resident_keys`).
        lifetime: How long each row lives; None for ever.
        is_over: Which rows of the log have outlived their time by that of their keys; None for none.

    Attributes:
        log: Where rows are kept.
        times: By number when a row was written; only if it has a time to live.
        lifetime: As given.
    """

    hash_bits = -1
    """The bits of hashes that are used; tests leave few, so that rows collide."""

    def __init__(
        self,
        backend: KeyedStateBackend,
        name: str,
        keys: Sequence[pa.Field],
        key_index: KeyIndex,
        columns: Sequence[pa.Field],
        *,
        is_attached: bool = False,
        lifetime: Lifetime | None = None,
        is_over: Callable[[LogRows], Truths] | None = None,
    ) -> None:
        self._keys = key_index
        self._fields = list(columns)
        self.lifetime = lifetime
        facts = [pa.field("row", pa.int64()), pa.field("kind", pa.int8()), pa.field("number", pa.int64())]
        form = FORM_OF_ROWS
        if lifetime is not None:
            facts.append(pa.field("time", pa.int64()))
            form, is_over = FORM_OF_TIMED_ROWS, self._is_past
        held = [pa.field(f"row.{one.name}", one.type) for one in columns]
        self.log = RunLog(backend, name, keys, [*facts, *held], form, is_over)
        self._local = LocalCodes()
        self._begin()
        self._next_sequence = 0
        rows = None if is_attached else self.log.read()
        if rows is not None:
            self.take_over(rows, key_index.codes_of(rows[1], rows[0])[0])

    def _begin(self) -> None:
        self._columns = [stored_column(field.type) for field in self._fields]
        # By number: the key's code (-1 once it is gone), the sequence number, and the number that it carries.
        self.codes = np.full(0, -1, np.int64)
        self._sequence = np.zeros(0, np.int64)
        self.numbers = np.zeros(0, np.int64)
        self.times = np.zeros(0, np.int64)
        self.size = 0
        self.num_live = 0
        self.by_key = Chains()
        self._hashes: KeyIndex | None = None
        self._by_hash = Chains()
        self._hash_codes = np.full(0, -1, np.int64)
        # Which rows the log has; and of those, which are gone or carry another number there.
        self._is_logged = np.zeros(0, np.bool_)
        self._gone: list[tuple[Integers, Integers]] = []
        self._is_changed = np.zeros(0, np.bool_)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def add(self, codes: Integers, columns: Sequence[pa.Array], numbers: Integers | None = None) -> Integers:
        """Add rows; returns their numbers.

        Args:
            codes: Those of their keys.
            columns: What is held of them.
            numbers: What they carry; 0 if it is not given.
        """
        ids = np.arange(self.size, self.size + len(codes))
        self._make_room(self.size + len(codes))
        for column, array in zip(self._columns, columns, strict=True):
            column.append(array)
        new = slice(self.size, self.size + len(codes))
        self.codes[new] = codes
        if numbers is not None:
            self.numbers[new] = numbers
        if self.lifetime is not None:
            self.times[new] = self.lifetime.now_ms
        self._sequence[new] = np.arange(self._next_sequence, self._next_sequence + len(ids))
        self._next_sequence += len(ids)
        self.size += len(ids)
        self.num_live += len(ids)
        self.by_key.append(codes, ids)
        if self._hashes is not None:
            self._index(ids, columns)
        return ids

    def _make_room(self, size: int) -> None:
        self.codes = grown(self.codes, size, -1)
        self.numbers, self._sequence = grown(self.numbers, size), grown(self._sequence, size)
        self._is_changed, self._is_logged = grown(self._is_changed, size, False), grown(self._is_logged, size, False)
        if self.lifetime is not None:
            self.times = grown(self.times, size)

    def find(
        self, codes: Integers, columns: Sequence[pa.Array], *, latest: bool, limits: Integers | None = None
    ) -> Integers:
        """Find a row for each of some that are taken back: equal to it, and another for each.

        Args:
            codes: Those of the keys; -1 for one that is not known.
            columns: What is held of rows.
            latest: Which of equal rows is found: the one that came last, or the one that came first.
            limits: For each row the number below which one is looked for, as only those have come before; they
                ascend, and the one that came first is found. None for no limit.

        Returns:
            Their numbers; -1 where there is no such row.
        """
        if not self.size:
            return np.full(len(codes), -1, np.int64)
        if self._hashes is None:
            self._hashes = KeyIndex([pa.int64()])
            live = np.flatnonzero(self.codes[: self.size] >= 0)
            self._index(live, self.take(live))
        hash_codes, _ = self._hashes.codes_of([self._hashed(codes, columns)], add=False)
        found = np.full(len(codes), -1, np.int64)
        known = np.flatnonzero(hash_codes >= 0)
        if self.lifetime is not None:
            self._forget_expired(self._by_hash.of(np.unique(hash_codes[known]))[1])
        touched, local = self._local.of(hash_codes[known], len(self._hashes))
        chains = self._by_hash
        cursors = (chains.tails if latest else chains.heads)[touched]
        candidates = np.empty(len(known), np.int64)
        if limits is None:
            table_loops.next_of_chain(local, cursors, chains.priors if latest else chains.nexts, candidates)
        else:
            table_loops.earlier_of_chain(local, cursors, chains.nexts, limits[known], candidates)
        found[known] = candidates
        is_same = (found >= 0) & (self.codes[found] == codes)
        is_same &= same_rows(self.take(found), columns, len(codes))
        if not is_same.all():
            is_unsure = np.isin(hash_codes, hash_codes[~is_same])
            self._find_one_by_one(np.flatnonzero(is_unsure), hash_codes, codes, columns, found, latest, limits)
        return found

    def _find_one_by_one(
        self,
        rows: Integers,
        hash_codes: Integers,
        codes: Integers,
        columns: Sequence[pa.Array],
        found: Integers,
        latest: bool,
        limits: Integers | None,
    ) -> None:
        """For rows whose hash other rows have too, or no row: look at all that have it. Hardly ever called."""
        taken: set[int] = set()
        for row in rows.tolist():
            _, ids = self._by_hash.of(hash_codes[row : row + 1])
            ids = ids[::-1].copy() if latest else ids
            given = [column.take(pa.array(np.full(len(ids), row))) for column in columns]
            is_same = (self.codes[ids] == codes[row]) & same_rows(self.take(ids), given, len(ids))
            if limits is not None:
                is_same &= ids < limits[row]
            left = [number for number in ids[is_same].tolist() if number not in taken]
            found[row] = left[0] if left else -1
            taken.update(left[:1])

    def remove(self, ids: Integers) -> None:
        """Forget rows, which live."""
        codes = self.codes[ids]
        self.by_key.remove(codes, ids)
        if self._hashes is not None:
            self._by_hash.remove(self._hash_codes[ids], ids)
        logged = self._is_logged[ids]
        self._gone.append((codes[logged], self._sequence[ids[logged]]))
        self.codes[ids] = -1
        self.num_live -= len(ids)

    def set_numbers(self, ids: Integers, numbers: Integers) -> None:
        """Let rows carry other numbers."""
        self.numbers[ids] = numbers
        self._is_changed[ids] = True
        if self.lifetime is not None:
            self.times[ids] = np.maximum(self.times[ids], self.lifetime.now_ms)

    # -- time to live --------------------------------------------------------------------------------------------------

    def is_expired(self, ids: Integers) -> Truths:
        """Return which rows have expired."""
        if self.lifetime is None:
            return np.zeros(len(ids), np.bool_)
        return self.lifetime.is_expired(self.times[ids])

    def sweep(self, *, is_forced: bool = False) -> None:
        """Forget all rows that have expired, if it is time to look.

        Args:
            is_forced: Whether it is.
        """
        if self.lifetime is not None and (self.lifetime.is_sweep_due or is_forced):
            self._forget_expired(np.flatnonzero(self.codes[: self.size] >= 0))

    def _forget_expired(self, ids: Integers) -> None:
        """Forget those of some rows, which live, that have expired."""
        assert self.lifetime is not None
        expired = ids[self.is_expired(ids)]
        self.remove(expired)
        self.lifetime.count(num_expired=len(expired))

    def _is_past(self, rows: LogRows) -> Truths:
        assert self.lifetime is not None
        return self.lifetime.is_expired(self.lifetime.times_of(rows[2][3]))

    # -- columns -------------------------------------------------------------------------------------------------------

    def take(self, ids: Integers) -> list[pa.Array]:
        """Return what is held of rows; null for number -1."""
        return [column.take(ids) for column in self._columns]

    def take_column(self, index: int, ids: Integers) -> pa.Array:
        """Return one column of rows; null for number -1."""
        return self._columns[index].take(ids)

    def _index(self, ids: Integers, columns: Sequence[pa.Array]) -> None:
        assert self._hashes is not None
        hash_codes, _ = self._hashes.codes_of([self._hashed(self.codes[ids], columns)])
        self._hash_codes = grown(self._hash_codes, self.size, -1)
        self._hash_codes[ids] = hash_codes
        self._by_hash.append(hash_codes, ids)

    def _hashed(self, codes: Integers, columns: Sequence[pa.Array]) -> Integers:
        return hash_rows([codes, *columns]) & np.int64(self.hash_bits)

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def is_sparse(self) -> bool:
        """Whether more than half of all rows are gone."""
        return self.size - self.num_live > max(self.num_live, _MIN_DEAD)

    def compact(self) -> Integers:
        """Forget what is gone for good; returns the new number of each row, -1 for those that are gone."""
        self.persist()
        live = np.flatnonzero(self.codes[: self.size] >= 0)
        return self._renumber(live, self.codes[live])

    def keep(self, codes: Integers, new_codes: Integers) -> Integers:
        """Have only the rows of some keys in memory, which get other codes; as `compact` otherwise.

        Args:
            codes: Those that stay.
            new_codes: By old code the new one; -1 for those that go.
        """
        self.persist()
        live = np.flatnonzero(self.codes[: self.size] >= 0)
        live = live[new_codes[self.codes[live]] >= 0]
        return self._renumber(live, new_codes[self.codes[live]])

    def _renumber(self, kept: Integers, codes: Integers) -> Integers:
        renumbered = np.full(self.size, -1, np.int64)
        renumbered[kept] = np.arange(len(kept))
        columns, numbers, sequence = self.take(kept), self.numbers[kept], self._sequence[kept]
        times = self.times[kept] if self.lifetime is not None else None
        next_sequence = self._next_sequence
        self._begin()
        self._put(codes, columns, numbers, sequence, times)
        self._next_sequence = next_sequence
        return renumbered

    def recode(self, new_codes: Integers) -> None:
        """Let keys have other codes: those that are given by their old ones."""
        self.persist()
        live = np.flatnonzero(self.codes[: self.size] >= 0)
        self.codes[live] = new_codes[self.codes[live]]
        self.by_key = Chains()
        self.by_key.append(self.codes[live], live)
        self._hashes, self._by_hash = None, Chains()

    def _put(
        self, codes: Integers, columns: list[pa.Array], numbers: Integers, sequence: Integers, times: Integers | None
    ) -> None:
        """Take over rows that the log has, in order."""
        ids = self.add(codes, columns, numbers)
        self._sequence[ids] = sequence
        if times is not None:
            self.times[ids] = times
        self._is_logged[ids] = True

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        of_rows = (
            self.codes, self._sequence, self.numbers, self.times, self._hash_codes, self._is_logged, self._is_changed,
        )  # fmt: skip
        num_bytes = sum(array.nbytes for array in of_rows) + sum(column.nbytes for column in self._columns)
        hashes = 0 if self._hashes is None else self._hashes.nbytes
        return num_bytes + hashes + self.by_key.nbytes + self._by_hash.nbytes

    def weights(self, num_keys: int) -> Integers:
        """Return how many rows each key has."""
        return self.by_key.counts_of(np.arange(num_keys))

    # -- state ---------------------------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write what has changed into the log."""
        is_live, is_logged = self.codes[: self.size] >= 0, self._is_logged[: self.size]
        new = np.flatnonzero(is_live & ~is_logged)
        changed = np.flatnonzero(is_live & is_logged & self._is_changed[: self.size])
        gone_codes = np.concatenate([codes for codes, _ in self._gone] or [np.zeros(0, np.int64)])
        gone = np.concatenate([sequence for _, sequence in self._gone] or [np.zeros(0, np.int64)])
        nothing = np.full(len(gone) + len(changed), -1, np.int64)
        times = []
        if self.lifetime is not None:
            past = np.full(len(gone), self.lifetime.now_ms)
            times.append(pa.array(np.concatenate([past, self.times[changed], self.times[new]])))
        rows: LogRows = (
            len(nothing) + len(new),
            self._keys.take(np.concatenate([gone_codes, self.codes[changed], self.codes[new]])),
            [
                pa.array(np.concatenate([gone, self._sequence[changed], self._sequence[new]])),
                pa.array(np.repeat(np.array([_GONE, _NUMBER, _ROW], np.int8), [len(gone), len(changed), len(new)])),
                pa.array(np.concatenate([np.zeros(len(gone), np.int64), self.numbers[changed], self.numbers[new]])),
                *times,
                *self.take(np.concatenate([nothing, new])),
            ],
        )
        self.log.write(rows, self.num_live)
        self._is_logged[new] = True
        self._gone.clear()
        self._is_changed[:] = False

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of keys that have no rows here; codes are those of the rows."""
        _, _, (row, _, number, *columns) = rows
        sequence, numbers = (array.to_numpy(zero_copy_only=False) for array in (row, number))
        order = np.argsort(sequence, kind="stable")
        times = self.lifetime.times_of(columns.pop(0))[order] if self.lifetime is not None else None
        places, last = pa.array(order), self._next_sequence
        self._put(codes[order], [column.take(places) for column in columns], numbers[order], sequence[order], times)
        self._next_sequence = max(last, int(sequence.max(initial=-1)) + 1)
