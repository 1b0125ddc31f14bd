"""What a rank keeps: rows by the codes of their partitions, and for each partition the list of its first rows.

A batch touches partitions in which a row has come that may be among the first ones, or one of those was taken back.
Their *candidates* are sorted anew: the first rows that there were and those that have come or, when a full list has
lost a row, all rows of the partition. The lists before and after tell what goes out.

The *bound* of a partition whose list is full is the first sort key of its last row, if that is not null and means the
same in every batch: a row behind it cannot be among the first ones.

With a time to live a partition that has expired is forgotten whole, and nothing goes out. A row that is taken back and
is not there, as it has expired, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..columns.records import RowKind, RowKinds
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, Truths, same_rows
from ..tables.expiring_rows import ExpiringRows
from ..tables.growing import grown
from ..tables.hashes import hash_rows
from ..tables.key_index import LocalCodes
from ..tables.ordering import first_of_groups, is_lasting, sort_key, sorted_rows
from ..tables.resident_keys import ResidentKeys
from ..tables.row_store import Chains
from ..tables.run_log import LogRows
from .changes import refuse_unknown_row

__all__ = ["RankState"]

_MIN_DEAD = 1_024
_LARGEST = np.iinfo(np.int64).max


class _Listed(NamedTuple):
    """The first rows of partitions: the partition's number among those touched, the place in its list, and the row."""

    partitions: Integers
    places: Integers
    ids: Integers


class RankState:
    """The rows of one subtask.

    Args:
        context: The operator's.
        schema: Of the records.
        partition_keys: Names of the partition's columns.
        orders: Column, whether the smallest comes first, whether null does.
        places: The places that are given, from 0 on: the first one, and the one behind the last.
        is_numbered: Whether the number of a row is part of the result.
        takes_back: Whether rows are taken back.
        ties_keep_last: Whether of equal rows the later one comes first.
        ttl_ms: How long a partition lives in which nothing is written; 0 for ever.

    Attributes:
        residents: Which partitions are in memory.
        log: Where rows are kept.
    """

    # By partition: the list of its first rows, in order; its bound, and whether it has one.
    _lists: Chains
    _bounds: Integers
    _is_bounded: Truths
    # By row: whether it is in its partition's list.
    _is_listed: Truths

    def __init__(
        self,
        context: OperatorContext,
        schema: pa.Schema,
        partition_keys: Sequence[str],
        orders: Sequence[tuple[str, bool, bool | None]],
        *,
        places: tuple[int, int],
        is_numbered: bool,
        takes_back: bool,
        ties_keep_last: bool,
        ttl_ms: int = 0,
    ) -> None:
        keys = [schema.field(key) for key in partition_keys]
        self._names = schema.names
        self._keys = list(partition_keys)
        self._orders = [(schema.names.index(column), ascending, nulls) for column, ascending, nulls in orders]
        self._first_place, self._num_places = places
        self._is_numbered = is_numbered
        self._takes_back = takes_back
        self._ties_keep_last = ties_keep_last
        self._has_bounds = bool(orders) and is_lasting(schema.field(orders[0][0]).type)
        self.residents = ResidentKeys(context.keyed_state, [key.type for key in keys])
        self._index = self.residents.index
        self._rows = ExpiringRows(context, keys, self._index, schema, ttl_ms, refuse_unknown_row)
        self._store = self._rows.store
        self.log = self._store.log
        self._local = LocalCodes()
        self._begin_lists()
        self.residents.attach(*self._rows.tables, self)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch, signs: Integers | None) -> tuple[list[pa.Array], RowKinds]:
        """Take records; returns the changes of the result: its columns, and kinds.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.

        Raises:
            UserFunctionError: If one is taken back that was not there.
        """
        codes = self.residents.codes_of(self.key_columns(batch), batch.num_rows)
        self._make_room_for_lists()
        self._forget(self._rows.begin(codes))
        may_be_first = self._within_bounds(batch, codes)
        is_added = np.ones(batch.num_rows, np.bool_) if signs is None else signs > 0
        kept = np.flatnonzero(is_added) if self._takes_back else self._first_of_batch(batch, codes, may_be_first)
        columns = [column if len(kept) == len(column) else column.take(pa.array(kept)) for column in batch.columns]
        size = self._store.size
        ids = self._store.add(codes[kept], columns)
        self._is_listed = grown(self._is_listed, self._store.size, False)
        gone = self._remove(batch, codes, is_added, size)
        come = ids[may_be_first[kept] & (self._store.codes[ids] >= 0)]
        made = self._listed_anew(come, gone)
        self._rows.written(ids)
        self._forget(self._rows.swept())
        self._make_room()
        return made

    def all_rows(self) -> Iterator[list[pa.Array]]:
        """Yield the rows that are given, some at a time: the columns of the result."""
        for codes in self.residents.in_parts():
            self._make_room_for_lists()
            codes = self._rows.living(codes)
            owners, ids = self._lists.of(codes)
            places = _places_in(owners)
            is_given = places >= self._first_place
            if is_given.any():
                columns = self._store.take(ids[is_given])
                yield [*columns, pa.array(places[is_given] + 1)] if self._is_numbered else columns
            self.residents.make_room()

    def counts_of(self, keys: Sequence[pa.Array], num_keys: int) -> Integers:
        """Return how many rows partitions have.

        Args:
            keys: The columns of their keys.
            num_keys: How many they are.
        """
        codes = self.residents.codes_of(keys, num_keys)
        self._make_room_for_lists()
        counts = np.where(np.isin(codes, self._rows.living(codes)), self._store.by_key.counts_of(codes), 0)
        self.residents.make_room()
        return counts

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of records' keys."""
        return [batch.column(key) for key in self._keys]

    def _within_bounds(self, batch: pa.RecordBatch, codes: Integers) -> Truths:
        """Which rows may be among the first ones of their partitions."""
        if not self._has_bounds:
            return np.ones(len(codes), np.bool_)
        column, ascending, nulls_first = self._orders[0]
        key = sort_key(batch.column(column), ascending=ascending, nulls_first=nulls_first)
        bounds = self._bounds[codes]
        # Of rows that are equal by the only key, those that were there stay.
        is_strict = len(self._orders) > 1 or self._ties_keep_last
        within = (key.values <= bounds) if is_strict else (key.values < bounds) | ~self._is_bounded[codes]
        return within if key.nulls is None else within | (key.nulls != 0)

    def _first_of_batch(self, batch: pa.RecordBatch, codes: Integers, may_be_first: Truths) -> Integers:
        """The rows that are among the first ones of their partitions in the batch: no other one can be, ever."""
        rows = np.flatnonzero(may_be_first)
        columns = [batch.column(column).take(pa.array(rows)) for column, _, _ in self._orders]
        partitions = self._local.of(codes[rows], len(self._index))[1]
        first: Integers = np.sort(self._first_of(partitions, rows, columns).ids)
        return first

    def _remove(self, batch: pa.RecordBatch, codes: Integers, is_added: Truths, size: int) -> Integers:
        """Take rows out of the store; returns the codes of partitions whose lists were full and have lost one.

        Args:
            batch: The records.
            codes: Of their partitions.
            is_added: Which of them were added.
            size: Of the store before.
        """
        if is_added.all():
            return np.zeros(0, np.int64)
        owners, found = self._rows.taken_back(batch, codes, is_added, size)
        self._store.remove(found)
        lost: Integers = owners[self._is_listed[found]]
        return lost

    def _forget(self, codes: Integers) -> None:
        """Forget partitions that have expired; some may have nothing."""
        if not len(codes):
            return
        self._make_room_for_lists()
        owners, listed = self._lists.of(codes)
        self._lists.remove(codes[owners], listed)
        self._is_listed[listed] = False
        self._bounds[codes], self._is_bounded[codes] = _LARGEST, False
        self._rows.forget(codes)

    def _listed_anew(self, come: Integers, lost: Integers) -> tuple[list[pa.Array], RowKinds]:
        """Make lists anew; returns what that changes.

        Args:
            come: Rows that may be among the first ones of their partitions.
            lost: The codes of partitions that have lost one of them.
        """
        touched, local = self._local.of(np.concatenate([self._store.codes[come], lost]), len(self._index))
        owners, ids = self._lists.of(touched)
        before = _Listed(owners, _places_in(owners), ids)
        has_lost = np.zeros(len(touched), np.bool_)
        has_lost[local[len(come) :]] = True
        is_refilled = has_lost & (self._lists.counts_of(touched) >= self._num_places)
        refilled_owners, refilled = self._store.by_key.of(touched[is_refilled])
        is_held = ~is_refilled[owners] & (self._store.codes[ids] >= 0)
        is_new = ~is_refilled[local[: len(come)]]
        partitions = np.concatenate(
            [owners[is_held], local[: len(come)][is_new], np.flatnonzero(is_refilled)[refilled_owners]]
        )
        candidates = np.concatenate([ids[is_held], come[is_new], refilled])
        after = self._first_of(partitions, candidates, self._ordered_by(candidates))
        self._set_lists(touched, before, after)
        if not self._takes_back:
            known = np.concatenate([ids, come])
            self._store.remove(known[~self._is_listed[known]])
        return self._changes(before, after)

    def _ordered_by(self, ids: Integers) -> list[pa.Array]:
        """The columns that rows are ordered by."""
        return [self._store.take_column(column, ids) for column, _, _ in self._orders]

    def _first_of(self, partitions: Integers, ids: Integers, columns: Sequence[pa.Array]) -> _Listed:
        """The first rows of partitions, in order.

        Args:
            partitions: Their partitions, small numbers.
            ids: The rows; among those that are equal in the order, smaller ones have come before.
            columns: What they are ordered by.
        """
        keys = [partitions]
        for column, (_, ascending, nulls_first) in zip(columns, self._orders, strict=True):
            nulls, values = sort_key(column, ascending=ascending, nulls_first=nulls_first)
            keys += [values] if nulls is None else [nulls, values]
        keys.append(~ids if self._ties_keep_last else ids)
        if self._num_places == 1:
            first = first_of_groups(keys)
            return _Listed(partitions[first], np.zeros(len(first), np.int64), ids[first])
        order = sorted_rows(keys)
        places = _places_in(partitions[order])
        is_first = places < self._num_places
        order = order[is_first]
        return _Listed(partitions[order], places[is_first], ids[order])

    def _set_lists(self, touched: Integers, before: _Listed, after: _Listed) -> None:
        self._lists.remove(touched[before.partitions], before.ids)
        self._lists.append(touched[after.partitions], after.ids)
        self._is_listed[before.ids] = False
        self._is_listed[after.ids] = True
        if self._has_bounds:
            self._set_bounds(touched, after)

    def _set_bounds(self, touched: Integers, listed: _Listed) -> None:
        self._bounds[touched], self._is_bounded[touched] = _LARGEST, False
        is_last = listed.places == self._num_places - 1
        column, ascending, nulls_first = self._orders[0]
        values = self._store.take_column(column, listed.ids[is_last])
        key = sort_key(values, ascending=ascending, nulls_first=nulls_first)
        codes = touched[listed.partitions[is_last]]
        has_value = np.ones(len(codes), np.bool_) if key.nulls is None else key.nulls == 0
        self._bounds[codes[has_value]] = key.values[has_value]
        self._is_bounded[codes[has_value]] = True

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _changes(self, before: _Listed, after: _Listed) -> tuple[list[pa.Array], RowKinds]:
        before, after = self._given(before), self._given(after)
        if self._is_numbered or self._num_places - self._first_place == 1:
            return self._changes_of_places(before, after)
        return self._changes_of_rows(before, after)

    def _given(self, listed: _Listed) -> _Listed:
        """Without those that are passed over."""
        if not self._first_place:
            return listed
        is_given = listed.places >= self._first_place
        return _Listed(*(array[is_given] for array in listed))

    def _changes_of_places(self, before: _Listed, after: _Listed) -> tuple[list[pa.Array], RowKinds]:
        """For each place that has another row: the row that it had, and the one that it has."""
        num = max(before.partitions.max(initial=-1), after.partitions.max(initial=-1)) + 1
        sizes = np.maximum(*(np.bincount(listed.partitions, minlength=num) for listed in (before, after)))
        firsts = np.cumsum(sizes) - sizes
        old, new = np.full(int(sizes.sum()), -1, np.int64), np.full(int(sizes.sum()), -1, np.int64)
        for row_ids, listed in ((old, before), (new, after)):
            row_ids[firsts[listed.partitions] + listed.places - self._first_place] = listed.ids
        numbers = np.arange(len(old)) - np.repeat(firsts, sizes) + self._first_place + 1
        differs = np.flatnonzero(old != new)
        old, new, numbers = old[differs], new[differs], numbers[differs]
        is_other = ~((old >= 0) & (new >= 0))
        both = np.flatnonzero(~is_other)
        is_other[both] = ~same_rows(self._store.take(old[both]), self._store.take(new[both]), len(both))
        kinds = [
            np.where(new >= 0, RowKind.UPDATE_BEFORE, RowKind.DELETE),
            np.where(old >= 0, RowKind.UPDATE_AFTER, RowKind.INSERT),
        ]
        pairs = np.stack([old, new], axis=1)
        chosen = (pairs >= 0) & is_other[:, None]
        columns = self._store.take(pairs[chosen])
        if self._is_numbered:
            columns.append(pa.array(np.stack([numbers, numbers], axis=1)[chosen]))
        return columns, np.stack(kinds, axis=1)[chosen].astype(np.int8)

    def _changes_of_rows(self, before: _Listed, after: _Listed) -> tuple[list[pa.Array], RowKinds]:
        """The rows that leave, and those that come; of each partition those that leave come first."""
        goes = ~np.isin(before.ids, after.ids)
        comes = ~np.isin(after.ids, before.ids)
        partitions = np.concatenate([before.partitions[goes], after.partitions[comes]])
        ids = np.concatenate([before.ids[goes], after.ids[comes]])
        is_new = np.arange(len(ids)) >= goes.sum()
        left = ~self._replaced_by_equal(partitions, ids, is_new)
        order = np.argsort(partitions[left], kind="stable")
        kinds = np.where(is_new, RowKind.INSERT, RowKind.DELETE).astype(np.int8)[left][order]
        return self._store.take(ids[left][order]), kinds

    def _replaced_by_equal(self, partitions: Integers, ids: Integers, is_new: Truths) -> Truths:
        """Rows that leave while an equal one comes, and those: as many of both."""
        is_replaced = np.zeros(len(ids), np.bool_)
        if is_new.all() or not is_new.any():
            return is_replaced
        hashes = hash_rows([partitions, *self._store.take(ids)])
        numbers = np.empty(len(ids), np.int64)  # the how-manieth of those that have its hash and leave, or come
        for group in (np.flatnonzero(is_new), np.flatnonzero(~is_new)):
            order = np.argsort(hashes[group], kind="stable")
            numbers[group[order]] = _places_in(hashes[group][order])
        order = np.lexsort((is_new, numbers, hashes))
        one, other = order[:-1], order[1:]
        is_pair = (hashes[one] == hashes[other]) & (numbers[one] == numbers[other]) & ~is_new[one] & is_new[other]
        one, other = one[is_pair], other[is_pair]
        same = partitions[one] == partitions[other]
        same &= same_rows(self._store.take(ids[one]), self._store.take(ids[other]), len(one))
        is_replaced[one[same]] = is_replaced[other[same]] = True
        return is_replaced

    # -- room and state ------------------------------------------------------------------------------------------------

    def _make_room_for_lists(self) -> None:
        size = len(self._index)
        self._bounds = grown(self._bounds, size, _LARGEST)
        self._is_bounded = grown(self._is_bounded, size, False)

    def _make_room(self) -> None:
        store = self._store
        if store.is_sparse:
            owners, ids = self._lists.of(np.arange(len(self._index)))
            self._take_lists(owners, store.compact()[ids])
        if len(self._index) > 2 * store.num_live + _MIN_DEAD:
            self.residents.keep(np.flatnonzero(store.weights(len(self._index))))
        self.residents.make_room()

    def _begin_lists(self) -> None:
        self._take_lists(*np.zeros((2, 0), np.int64))
        self._bounds = np.full(0, _LARGEST, np.int64)
        self._is_bounded = np.zeros(0, np.bool_)

    def _take_lists(self, codes: Integers, ids: Integers) -> None:
        """Let lists be other ones: in order, the codes of their partitions and the rows."""
        self._lists = Chains()
        self._lists.append(codes, ids)
        self._is_listed = np.zeros(self._store.size, np.bool_)
        self._is_listed[ids] = True

    @property
    def nbytes(self) -> int:
        """How many bytes rows and lists take."""
        arrays = (self._bounds, self._is_bounded, self._is_listed)
        return self._store.nbytes + self._lists.nbytes + sum(array.nbytes for array in arrays)

    def weights(self, num_keys: int) -> Integers:
        """Return how many rows each partition has."""
        return self._store.weights(num_keys)

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Forget all partitions but some; see `headrace.engine.tables.resident_keys.KeyedTable`."""
        self._make_room_for_lists()
        owners, ids = self._lists.of(codes)
        self._take_lists(owners, self._store.keep(codes, new_codes)[ids])
        self._bounds, self._is_bounded = self._bounds[codes], self._is_bounded[codes]

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of partitions, and find the first rows of each; codes are those of the rows."""
        self._store.take_over(rows, codes)
        self._make_room_for_lists()
        self._is_listed = grown(self._is_listed, self._store.size, False)
        touched = np.unique(codes)
        nothing = _Listed(*(np.zeros(0, np.int64) for _ in range(3)))
        owners, ids = self._store.by_key.of(touched)
        self._set_lists(touched, nothing, self._first_of(owners, ids, self._ordered_by(ids)))

    def persist(self) -> None:
        """Write which rows have changed."""
        self._store.persist()

    def persist_all(self) -> None:
        """Write what has changed."""
        self._forget(self._rows.before_snapshot())
        self.residents.persist()


def _places_in(partitions: Integers) -> Integers:
    """The place of each row among those of its partition, which stand together."""
    if not len(partitions):
        return np.zeros(0, np.int64)
    firsts = np.flatnonzero(np.diff(partitions, prepend=partitions[0] - 1))
    sizes = np.diff(firsts, append=len(partitions))
    return np.arange(len(partitions)) - np.repeat(firsts, sizes)
