"""What the interval join keeps: the rows of both sides that a row to come may make a pair with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..changelog.join_type import JoinType
from ..columns.conditions import where_true
from ..columns.expressions import Expression
from ..columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from ..tables.columns import Integers, Truths
from ..tables.key_index import KeyIndex, LocalCodes
from .timed_rows import TimedRows
from .times import finer, last_passed, milliseconds, units_in

__all__ = ["IntervalState"]

_MIN_DEAD = 1_024
_IS_DONE = 1
"""The number of a row that has gone out, or must not go out alone."""

MAX_PAIRS = 262_144
"""So many pairs are made at once, about."""


class _Matches(NamedTuple):
    """Pairs of rows that have come and rows that are held: places among those, and numbers of these."""

    places: Integers
    held: Integers


class IntervalState:
    """The rows of one subtask.

    Args:
        backend: The operator's keyed state.
        join_type: Which rows go out.
        schemas: Of both sides.
        keys: Names of the keys' columns, of both sides.
        times: The columns of event time, of both sides.
        bounds_ms: How far a right row's time is from the left one's at least, and at most.
        projection: What pairs are made of.
        condition: What else is true of a pair.
        output: The schema of what goes out.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        join_type: JoinType,
        schemas: tuple[pa.Schema, pa.Schema],
        keys: tuple[Sequence[str], Sequence[str]],
        times: tuple[str, str],
        bounds_ms: tuple[int, int],
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None,
        output: pa.Schema,
    ) -> None:
        self._type = join_type
        self._schemas = schemas
        self._projection = [(side, schemas[side].names.index(column), name) for side, column, name in projection]
        self._condition = condition
        self._output = output
        self._index = KeyIndex([schemas[0].field(key).type for key in keys[0]])
        self._sides = (
            TimedRows(backend, "left", schemas[0], keys[0], self._index, times[0]),
            TimedRows(backend, "right", schemas[1], keys[1], self._index, times[1]),
        )
        # Times of both sides are compared in the finer of their units.
        self._unit, self._per_ms = finer(self._sides[0].kind, self._sides[1].kind)
        self._bounds_ms = bounds_ms
        # How long behind a row's own time one of the other side may be that makes a pair with it.
        self._kept_ms = (bounds_ms[1], -bounds_ms[0])
        self._local = LocalCodes()

    # -- rows that come ------------------------------------------------------------------------------------------------

    def add(self, rows: pa.RecordBatch, side: int, watermark_ms: int) -> tuple[int, list[Batch]]:
        """Take rows of a side; returns how many are late, which are left out, and what goes out.

        Args:
            rows: The rows.
            side: 0 for the left one.
            watermark_ms: How far event time is.
        """
        own = self._sides[side]
        rows, times, num_late = own.in_time(rows, watermark_ms)
        if not rows.num_rows:
            return num_late, []
        codes = own.codes_in(rows)
        has_key = _has_key(rows, own.keys)
        made = []
        has_pair = np.zeros(rows.num_rows, np.bool_)
        for pairs in self._pairs(np.where(has_key, codes, -1), times, side):
            pairs, columns = self._true(rows, pairs, side)
            has_pair[pairs.places] = True
            made += self._of_pairs(rows, times, pairs, columns, side)
        made += self._alone(rows, times, has_pair, side)
        self._keep(rows, times, codes, has_key, has_pair, side, watermark_ms)
        return num_late, made

    def _pairs(self, codes: Integers, times: Integers, side: int) -> Iterator[_Matches]:
        """The pairs of rows, by their keys' codes and times, with rows of the other side; a part of them at a time."""
        own, other = self._sides[side], self._sides[1 - side]
        touched, local = self._local.of(np.maximum(codes, 0), len(self._index))
        owners, held = other.store.by_key.of(touched)
        if not len(held):
            return
        low, high = self._bounds_ms if side == 0 else (-self._bounds_ms[1], -self._bounds_ms[0])
        around = units_in(times, own.kind, self._unit)
        held_times = units_in(other.times[held], other.kind, self._unit)
        ranks = np.unique(held_times)
        # A key and a time of it as one number: held rows in that order are looked up from bound to bound.
        numbers = owners * (len(ranks) + 1) + np.searchsorted(ranks, held_times)
        order = np.argsort(numbers, kind="stable")
        numbers, held = numbers[order], held[order]
        firsts = np.searchsorted(ranks, around + low * self._per_ms)
        lasts = np.searchsorted(ranks, around + high * self._per_ms, side="right")
        begins = np.searchsorted(numbers, local * (len(ranks) + 1) + firsts)
        ends = np.searchsorted(numbers, local * (len(ranks) + 1) + lasts)
        counts = np.where(codes < 0, 0, ends - begins)
        running = np.cumsum(counts)
        start = 0
        while start < len(counts):
            before = running[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(running, before + MAX_PAIRS, side="right")))
            some = counts[start:end]
            places = np.repeat(np.arange(start, end), some)
            within = np.arange(len(places)) - np.repeat(np.cumsum(some) - some, some)
            if len(places):
                yield _Matches(places, held[begins[places] + within])
            start = end

    def _true(self, rows: pa.RecordBatch, pairs: _Matches, side: int) -> tuple[_Matches, pa.RecordBatch | None]:
        """Those pairs for which the condition is true; and their columns, if they were made for it."""
        if self._condition is None:
            return pairs, None
        columns = self._columns_of(rows, pairs, side)
        chosen = where_true(self._condition, columns)
        if chosen.all():
            return pairs, columns
        return _Matches(pairs.places[chosen], pairs.held[chosen]), columns.filter(pa.array(chosen))

    def _columns_of(self, rows: pa.RecordBatch, pairs: _Matches, side: int) -> pa.RecordBatch:
        """All columns of pairs."""
        store, places = self._sides[1 - side].store, pa.array(pairs.places)
        arrays = [
            rows.column(column).take(places) if at == side else store.take_column(column, pairs.held)
            for at, column, _ in self._projection
        ]
        fields = [(name, self._schemas[at].field(column).type) for at, column, name in self._projection]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _of_pairs(
        self, rows: pa.RecordBatch, times: Integers, pairs: _Matches, columns: pa.RecordBatch | None, side: int
    ) -> list[Batch]:
        """What goes out for pairs; the rows that are held are marked."""
        left, other = self._sides[0], self._sides[1 - side]
        if self._type.gives_left_rows:
            if side == 0:
                return []
            first = np.unique(pairs.held[left.store.codes[pairs.held] >= 0])
            made = self._of_left(first) if self._type is JoinType.SEMI else []
            left.store.remove(first)
            return made
        if self._type.preserves[1 - side]:
            other.store.set_numbers(pairs.held, np.full(len(pairs.held), _IS_DONE))
        if not len(pairs.places):
            return []
        columns = self._columns_of(rows, pairs, side) if columns is None else columns
        of_left = times[pairs.places] if side == 0 else left.times[pairs.held]
        return [Batch.of_columns(columns, milliseconds(of_left, left.kind))]

    def _alone(self, rows: pa.RecordBatch, times: Integers, has_pair: Truths, side: int) -> list[Batch]:
        """Left rows of a semi join that have found a pair."""
        if side or self._type is not JoinType.SEMI or not has_pair.any():
            return []
        chosen = rows.filter(pa.array(has_pair))
        arrays = [chosen.column(column) for at, column, _ in self._projection if at == 0]
        columns = pa.RecordBatch.from_arrays(arrays, schema=self._output)
        return [Batch.of_columns(columns, milliseconds(times[has_pair], self._sides[0].kind))]

    def _keep(
        self, rows: pa.RecordBatch, times: Integers, codes: Integers, has_key: Truths, has_pair: Truths, side: int,
        watermark_ms: int,
    ) -> None:  # fmt: skip
        """Hold rows that may yet make a pair, or that go out alone if they do not."""
        own = self._sides[side]
        goes_alone = self._goes_alone(side)
        is_reached = has_key & (times > self._last_done(side, watermark_ms))
        if side == 0 and self._type.gives_left_rows:
            is_kept = ~has_pair & (goes_alone | is_reached)
        else:
            is_kept = is_reached | (goes_alone & ~has_pair)
        chosen = np.flatnonzero(is_kept)
        if len(chosen):
            numbers = np.where(has_pair[chosen], _IS_DONE, 0)
            kept = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
            own.add(kept, times[chosen], codes[chosen], numbers)

    def _goes_alone(self, side: int) -> bool:
        return self._type.preserves[side] or (side == 0 and self._type is JoinType.ANTI)

    def _last_done(self, side: int, watermark_ms: int) -> int:
        """The last time of rows that nothing to come makes a pair with."""
        if watermark_ms in (MIN_TIMESTAMP, MAX_TIMESTAMP):
            return watermark_ms
        return last_passed(watermark_ms - self._kept_ms[side], self._sides[side].kind)

    # -- time ----------------------------------------------------------------------------------------------------------

    def pass_time(self, watermark_ms: int) -> list[Batch]:
        """Forget rows that nothing to come makes a pair with; those that have found none may go out."""
        made = []
        for side, own in enumerate(self._sides):
            done = own.begun(watermark_ms - self._kept_ms[side])
            if self._goes_alone(side):
                made += self._padded(done[own.store.numbers[done] != _IS_DONE], side)
            own.store.remove(done)
        self._make_room()
        return made

    def end_time(self) -> list[Batch]:
        """Give the rows that have found no pair. They stay: a program may go on from here with more input."""
        made = []
        for side, own in enumerate(self._sides):
            if self._goes_alone(side):
                ids = own.live()
                ids = ids[own.store.numbers[ids] != _IS_DONE]
                made += self._padded(ids, side)
                own.store.set_numbers(ids, np.full(len(ids), _IS_DONE))
        return made

    def _padded(self, ids: Integers, side: int) -> list[Batch]:
        """Rows that have found no pair, with nulls for the other side."""
        if not len(ids):
            return []
        if self._type.gives_left_rows:
            return self._of_left(ids)
        store = self._sides[side].store
        arrays = [
            store.take_column(column, ids) if at == side else pa.nulls(len(ids), self._schemas[at].field(column).type)
            for at, column, _ in self._projection
        ]
        own = self._sides[side]
        return [
            Batch.of_columns(
                pa.RecordBatch.from_arrays(arrays, schema=self._output), milliseconds(own.times[ids], own.kind)
            )
        ]

    def _of_left(self, ids: Integers) -> list[Batch]:
        left = self._sides[0]
        if not len(ids):
            return []
        arrays = [left.store.take_column(column, ids) for at, column, _ in self._projection if at == 0]
        columns = pa.RecordBatch.from_arrays(arrays, schema=self._output)
        return [Batch.of_columns(columns, milliseconds(left.times[ids], left.kind))]

    # -- room and state ------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        for own in self._sides:
            if own.store.is_sparse:
                own.store.compact()
                own.find_all()
        stores = [own.store for own in self._sides]
        if len(self._index) > 2 * sum(store.num_live for store in stores) + _MIN_DEAD:
            kept = np.unique(np.concatenate([store.codes[: store.size] for store in stores]))
            kept = kept[kept >= 0]
            new_codes = np.full(len(self._index), -1, np.int64)
            new_codes[kept] = np.arange(len(kept))
            for own in self._sides:
                own.store.recode(new_codes)
            self._index.compact(kept)

    def persist(self) -> None:
        """Write what has changed."""
        for own in self._sides:
            own.store.persist()


def _has_key(rows: pa.RecordBatch, keys: Sequence[str]) -> Truths:
    has_key = np.ones(rows.num_rows, np.bool_)
    for key in keys:
        has_key &= rows.column(key).is_valid().to_numpy(zero_copy_only=False)
    return has_key
