"""How often each value occurs, key by key: what distinct counts are made of, and extremes of values that may go.

A pair of a key's code and a value has a number, under which its counts are held: one for each filter, so that a pair is
looked up once for all of them. The number of different values of a key follows from the pairs that appear and vanish.
Its smallest and largest value are looked up again only when the one that was it vanishes; then all values of that key
are looked at, else only those that have appeared.

Invariant: no count is below zero; pairs whose counts are all zero do not live, and are forgotten when they are more
than half of all.

Source: Flink's ``DistinctInfo`` and ``MinWithRetractAggFunction``, whose state is a map from values to counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from . import table_loops
from .columns import Integers, Truths, plain, validity
from .growing import grown
from .key_index import KeyIndex, LocalCodes
from .key_times import KeyTimes
from .ordering import order_of
from .row_store import Chains
from .run_log import LogForm, LogRows, RunLog

__all__ = ["FORM_OF_VALUES", "Filter", "ValueCounts"]

_MIN_DEAD = 1_024
_LARGEST = np.iinfo(np.int64).max


class Filter(NamedTuple):
    """Values are counted once for each filter.

    Attributes:
        name: The column of the log that has its counts.
        extremes: Which of ``min`` and ``max`` are asked for.
    """

    name: str
    extremes: frozenset[str]


class _Counts:
    """The counts of one filter: by pair, and what follows from them by key."""

    def __init__(self, extremes: frozenset[str]) -> None:
        self.of_pairs = np.zeros(0, np.int64)
        # By key: how many values it has, and its extremes' pairs; -1 for none.
        self.num_values = np.zeros(0, np.int64)
        self.best = {name: np.full(0, -1, np.int64) for name in extremes}
        # The pairs of each key that have a count; only if extremes are asked for.
        self.chains = Chains()
        # The pairs that the last call of `add` has given a first count, and whose last one it has taken.
        self.appeared = self.vanished = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        arrays = (self.of_pairs, self.num_values, *self.best.values())
        return sum(array.nbytes for array in arrays) + self.chains.nbytes

    def make_room(self, num_pairs: int, num_keys: int) -> None:
        self.of_pairs = grown(self.of_pairs, num_pairs)
        self.num_values = grown(self.num_values, num_keys)
        self.best = {name: grown(best, num_keys, -1) for name, best in self.best.items()}


class ValueCounts:
    """Counts of values, by key and filter.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: Names and types of the key's columns.
        key_index: Gives their codes; others may share it.
        kind: Type of the values.
        filters: What is counted; at least one.
        is_attached: Whether the keys' owner says which keys are in memory (`headrace.engine.tables.resident_keys`).
        times: When keys were written, if they have a time to live: then what is taken away and is not there is passed
            over, and keys can be forgotten.

    Attributes:
        log: Where counts are kept.

    Raises:
        TypeMismatchError: If values of the type cannot be compared.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        name: str,
        keys: Sequence[pa.Field],
        key_index: KeyIndex,
        kind: pa.DataType,
        filters: Sequence[Filter],
        *,
        is_attached: bool = False,
        times: KeyTimes | None = None,
    ) -> None:
        self._keys = key_index
        self._times = times
        self._kind = kind
        self._filters = list(filters)
        counts = [pa.field(one.name, pa.int64()) for one in filters]
        is_over = None if times is None else times.is_over
        self.log = RunLog(backend, name, keys, [pa.field("value", kind), *counts], FORM_OF_VALUES, is_over)
        self._local = LocalCodes()
        self._begin()
        rows = None if is_attached else self.log.read()
        if rows is not None:
            self.take_over(rows, key_index.codes_of(rows[1], rows[0])[0])

    def _begin(self) -> None:
        self._pairs = KeyIndex([pa.int64(), self._kind])
        self._counts = [_Counts(one.extremes) for one in self._filters]
        # By pair: the key's code, and whether the log has another count.
        self._codes = np.zeros(0, np.int64)
        self._is_changed = np.zeros(0, np.bool_)
        self._num_live = 0
        # The pairs of each key; only if keys can be forgotten.
        self._by_key = Chains()

    # -- counting ------------------------------------------------------------------------------------------------------

    def add(
        self, codes: Integers, values: pa.Array, signs: Sequence[Integers], chosen: Sequence[Truths | None] = (None,)
    ) -> bool:
        """Count values, or take them away; nulls are passed over.

        Args:
            codes: Those of the keys.
            values: One per row.
            signs: For each filter, 1 or -1 for each row; more, or less, if values come several times.
            chosen: For each filter, the rows that it lets through; None for all.

        Returns:
            Whether all that is taken away was there; if not, nothing is to be relied on any more.
        """
        for counts in self._counts:
            counts.appeared = counts.vanished = np.zeros(0, np.int64)
        is_used = _used(values, chosen)
        if is_used is not None:
            codes, values, signs = codes[is_used], values.filter(pa.array(is_used)), [one[is_used] for one in signs]
            chosen = [None if rows is None else rows[is_used] for rows in chosen]
        if not len(codes):
            return True
        pairs, num_new = self._pairs.codes_of([codes, plain(values)])
        touched, local = self._local.of(pairs, len(self._pairs))
        self._make_room(num_new, touched, codes, local)
        was_live = self._is_live(touched)
        is_sound = True
        for counts, own, rows in zip(self._counts, signs, chosen, strict=True):
            of_rows, signs_of_rows = (local, own) if rows is None else (local[rows], own[rows])
            net = np.zeros(len(touched), np.int64)
            if self._times is None:
                np.add.at(net, of_rows, signs_of_rows)
            else:
                net = _net_of_known(counts.of_pairs[touched], of_rows, signs_of_rows)
            is_sound &= self._count(counts, touched, net)
        self._num_live += int(self._is_live(touched).sum()) - int(was_live.sum())
        return is_sound

    def forget(self, codes: Integers) -> None:
        """Take away all values of keys, which have a time to live."""
        _, pairs = self._by_key.of(codes)
        was_live = self._is_live(pairs)
        for counts in self._counts:
            self._count(counts, pairs, -counts.of_pairs[pairs])
            counts.appeared = counts.vanished = np.zeros(0, np.int64)
        self._num_live -= int(was_live.sum())

    def _make_room(self, num_new: int, touched: Integers, codes: Integers, local: Integers) -> None:
        size = len(self._pairs)
        self._codes, self._is_changed = grown(self._codes, size), grown(self._is_changed, size, False)
        if num_new:
            owners = np.empty(len(touched), np.int64)
            owners[local] = codes
            self._codes[touched] = owners
            if self._times is not None:
                is_new = touched >= size - num_new
                self._by_key.append(owners[is_new], touched[is_new])
        for counts in self._counts:
            counts.make_room(size, int(codes.max()) + 1)

    def _is_live(self, pairs: Integers) -> Truths:
        live = np.zeros(len(pairs), np.bool_)
        for counts in self._counts:
            live |= counts.of_pairs[pairs] > 0
        return live

    def _count(self, counts: _Counts, touched: Integers, net: Integers) -> bool:
        """Change the counts of a filter; returns whether none is below zero."""
        before = counts.of_pairs[touched]
        after = before + net
        counts.of_pairs[touched] = after
        self._is_changed[touched[net != 0]] = True
        appeared, vanished = touched[(before == 0) & (after > 0)], touched[(before > 0) & (after <= 0)]
        counts.appeared, counts.vanished = appeared, vanished
        np.add.at(counts.num_values, self._codes[appeared], 1)
        np.add.at(counts.num_values, self._codes[vanished], -1)
        if counts.best:
            counts.chains.append(self._codes[appeared], appeared)
            counts.chains.remove(self._codes[vanished], vanished)
            for name in counts.best:
                self._find_best(name, counts, appeared, vanished)
        return bool((after >= 0).all())

    def _find_best(self, name: str, counts: _Counts, appeared: Integers, vanished: Integers) -> None:
        """Find the extremes of keys anew, where they may have changed."""
        best, codes, gained = counts.best[name], self._codes, appeared
        lost_keys = codes[vanished[best[codes[vanished]] == vanished]]
        best[lost_keys] = -1
        _, remaining = counts.chains.of(lost_keys)
        if len(lost_keys):
            is_lost = np.zeros(len(best), np.bool_)
            is_lost[lost_keys] = True
            gained = gained[~is_lost[codes[gained]]]  # they remain
        held = best[self._local.of(codes[gained], len(best))[0]]
        candidates = np.concatenate([remaining, held[held >= 0], gained])
        if not len(candidates):
            return
        touched, local = self._local.of(codes[candidates], len(best))
        order = _order_of_extremes(self._pairs.take(candidates)[1], is_min=name == "min")
        smallest = np.full(len(touched), _LARGEST)
        np.minimum.at(smallest, local, order)
        is_best = order == smallest[local]  # one of each key: its values differ
        best[codes[candidates[is_best]]] = candidates[is_best]

    # -- results -------------------------------------------------------------------------------------------------------

    def changes(self, number: int) -> tuple[Integers, pa.Array, Integers]:
        """Return what the last call of `add` has changed, by a filter's number.

        Returns:
            The codes of keys, values, and 1 for each value that its key has got, -1 for each that it has lost.
        """
        counts = self._counts[number]
        pairs = np.concatenate([counts.vanished, counts.appeared])
        signs = np.repeat([-1, 1], [len(counts.vanished), len(counts.appeared)])
        values = self._pairs.take(pairs)[1] if len(pairs) else pa.nulls(0, self._kind)
        return self._codes[pairs], values, signs

    def num_distinct(self, number: int, codes: Integers) -> Integers:
        """Return how many different values keys have, by a filter's number."""
        counts = self._counts[number]
        counts.make_room(0, int(codes.max(initial=-1)) + 1)
        return counts.num_values[codes]

    def extreme(self, name: str, number: int, codes: Integers) -> pa.Array:
        """Return the smallest (``min``) or largest (``max``) values of keys, by a filter's number; NaN if
        nothing else.
        """
        counts = self._counts[number]
        counts.make_room(0, int(codes.max(initial=-1)) + 1)
        pairs = counts.best[name][codes]
        if not len(self._pairs):
            return pa.nulls(len(codes), self._kind)
        values = self._pairs.take(np.maximum(pairs, 0))[1]
        places = pa.array(np.arange(len(pairs)), mask=pairs < 0)
        return values.take(places)

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def is_sparse(self) -> bool:
        """Whether more than half of all pairs do not live."""
        return len(self._pairs) - self._num_live > max(self._num_live, _MIN_DEAD)

    def compact(self) -> None:
        """Forget pairs that do not live."""
        self.persist()
        live = self._live()
        self._renumber(live, self._codes[live])

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Have only the pairs of some keys in memory, which get other codes.

        Args:
            codes: Those that stay.
            new_codes: By old code the new one; -1 for those that go.
        """
        self.persist()
        live = self._live()
        live = live[new_codes[self._codes[live]] >= 0]
        self._renumber(live, new_codes[self._codes[live]])

    def _renumber(self, kept: Integers, codes: Integers) -> None:
        values, counted = self._pairs.take(kept)[1], [counts.of_pairs[kept] for counts in self._counts]
        self._begin()
        self._put(codes, values, counted)

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        num_bytes = self._pairs.nbytes + self._codes.nbytes + self._is_changed.nbytes + self._by_key.nbytes
        return num_bytes + sum(counts.nbytes for counts in self._counts)

    def weights(self, num_keys: int) -> Integers:
        """Return how many pairs each key has."""
        return np.bincount(self._codes[self._live()], minlength=num_keys)

    def _live(self) -> Integers:
        return np.flatnonzero(self._is_live(np.arange(len(self._pairs))))

    def _put(self, codes: Integers, values: pa.Array, counted: Sequence[Integers]) -> None:
        """Take over pairs that the log has: all are different, and all have a count."""
        pairs, num_new = self._pairs.codes_of([codes, values], len(codes))
        if not num_new:
            return
        self._make_room(num_new, pairs, codes, np.arange(len(codes)))
        for counts, numbers in zip(self._counts, counted, strict=True):
            self._count(counts, pairs, numbers)
        self._num_live += num_new
        self._is_changed[pairs] = False

    # -- state ---------------------------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write what has changed into the log."""
        changed = np.flatnonzero(self._is_changed[: len(self._pairs)])
        self._is_changed[:] = False
        self.log.write(self._rows(changed), self._num_live)

    def _rows(self, pairs: Integers) -> LogRows:
        values = self._pairs.take(pairs)[1]
        counted = [pa.array(counts.of_pairs[pairs]) for counts in self._counts]
        return len(pairs), self._keys.take(self._codes[pairs]), [values, *counted]

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of keys that have no pairs here; codes are those of the rows."""
        _, _, (values, *counts) = rows
        self._put(codes, values, [_numbers(column) for column in counts])


def _numbers(column: pa.Array) -> Integers:
    numbers: Integers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


FORM_OF_VALUES = LogForm([0], lambda columns: ~np.any([_numbers(column) > 0 for column in columns[1:]], axis=0))
"""What rows of the log of counts mean."""


def _net_of_known(before: Integers, local: Integers, signs: Integers) -> Integers:
    """What rows come to by pair, in order, where nothing is taken from a pair that has no count."""
    after, emptied = before.copy(), np.full(len(before), -1, np.int64)
    table_loops.count_to_none(local, signs, after, emptied, np.zeros(len(local), np.uint8))
    return after - before


def _used(values: pa.Array, chosen: Sequence[Truths | None]) -> Truths | None:
    """The rows that have a value and that a filter lets through; None if all do."""
    used = validity(values)
    if any(rows is None for rows in chosen):
        return used
    through = np.logical_or.reduce([rows for rows in chosen if rows is not None])
    return through if used is None else used & through


def _order_of_extremes(values: pa.Array, *, is_min: bool) -> npt.NDArray[np.int64]:
    """What the best value has the smallest of; NaN is the worst."""
    order = order_of(values)
    order = order if is_min else ~order
    if pa.types.is_floating(values.type):
        is_nan = np.isnan(values.to_numpy(zero_copy_only=False))
        order = np.where(is_nan, _LARGEST, order)
    return order
