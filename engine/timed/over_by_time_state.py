"""What OVER keeps on a stream: rows that wait, rows that later ones see, and what aggregates have come to.

All rows are in one `RowStore`; the number that each carries says whether it is out. What aggregates have come to lies
in a second one, a row for each partition, as values of their parts; it goes before the partition's next rows as if it
were one of them. Of counts of different values the values are kept beside it.

Invariant: a row waits, or is in the chain of its partition's rows that are out, which is in the order of event time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..columns.records import MAX_BATCH_ROWS, MIN_TIMESTAMP, Timestamps
from ..frames.folds import Folded, finalised, lifted, over_frames
from ..frames.frame_calls import Frame, Neighbour, Place, value_of
from ..frames.ordered_rows import OrderedRows, first_of_runs
from ..tables.columns import Integers, Truths
from ..tables.growing import grown
from ..tables.key_index import KeyIndex, LocalCodes
from ..tables.lifetime import Lifetime
from ..tables.ordering import SortKey, sorted_rows
from ..tables.row_store import Chains, RowStore
from .expiring_keys import ExpiringKeys
from .kept import Kept
from .times import last_passed, milliseconds, times_of

__all__ = ["OverState"]

_MIN_DEAD = 1_024
_WAITS, _IS_OUT = 0, 1
_NUM_BLOCKS = 16
"""Rows of a restored state are forgotten in so many parts."""

_Given = tuple[list[pa.Array], list[pa.Array], Timestamps]


class OverState:
    """The rows of one subtask.

    Args:
        backend: The operator's keyed state.
        schema: Of the records.
        partition_keys: Names of the partition's columns.
        time: The column that rows are ordered by.
        columns: What is computed.
        frame: Which rows aggregates see, in units of the time column.
        kept: What is kept of rows that are out.
        lifetime: How long that lives of a partition in which nothing is written; None for ever. What goes by distance
            is forgotten by the watermark alone.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        schema: pa.Schema,
        partition_keys: Sequence[str],
        time: str,
        columns: Mapping[str, Any],
        frame: Frame | None,
        kept: Kept,
        lifetime: Lifetime | None = None,
    ) -> None:
        keys = [schema.field(key) for key in partition_keys]
        self._schema = schema
        self._keys = list(partition_keys)
        self._time = schema.names.index(time)
        self._time_type = schema.field(time).type
        self._specs = list(columns.values())
        self._frame = frame
        self._kept = kept
        used = frozenset().union(*(_columns_used(one) for one in self._specs))
        # What is computed from: places of columns in the records; one at least.
        self._used = [i for i, name in enumerate(schema.names) if name in used] or [self._time]
        self._index = KeyIndex([key.type for key in keys])
        self._rows = RowStore(backend, "rows", keys, self._index, list(schema))
        self._folds = (
            _FoldedRows(backend, keys, self._index, self._specs, self._used_schema) if kept.is_folded else None
        )
        self._local = LocalCodes()
        self._find_all()
        self._expiring: ExpiringKeys | None = None
        if lifetime is not None and kept.distance is None:
            self._expiring = ExpiringKeys(backend, keys, self._index, lifetime, self._waits)

    def _waits(self, codes: Integers) -> Truths:
        """Which partitions have rows that wait."""
        return np.isin(codes, self._rows.codes[self._waiting])

    @property
    def _used_schema(self) -> pa.Schema:
        return pa.schema([self._schema.field(i) for i in self._used])

    def _find_all(self) -> None:
        """Tell rows that wait from those that are out."""
        store = self._rows
        live = np.flatnonzero(store.codes[: store.size] >= 0)
        self._times = np.zeros(store.size, np.int64)
        self._times[live] = times_of(store.take_column(self._time, live), self._schema.names[self._time])
        is_out = store.numbers[live] == _IS_OUT
        # Rows that wait, in order of arrival.
        self._waiting = live[~is_out]
        out = live[is_out]
        out = out[sorted_rows([store.codes[out], self._times[out], out])]
        # By partition: its rows that are out.
        self._out = Chains()
        self._out.append(store.codes[out], out)
        # The same in parts, each with the time of its last row, where rows are forgotten by their times.
        self._parts: deque[tuple[Integers, int]] = deque()
        if self._kept.distance is not None:
            in_order = out[np.argsort(self._times[out], kind="stable")]
            for part in np.array_split(in_order, _NUM_BLOCKS):
                self._keep_part(part)

    def _keep_part(self, ids: Integers) -> None:
        if len(ids):
            self._parts.append((ids, int(self._times[ids].max())))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def add(self, records: pa.RecordBatch, watermark_ms: int) -> int:
        """Let records wait; returns how many are late, which are left out.

        Args:
            records: The records.
            watermark_ms: How far event time is.

        Raises:
            ProgramError: If one has no time.
        """
        times = times_of(records.column(self._time), self._schema.names[self._time])
        is_late = times <= last_passed(watermark_ms, self._time_type)
        num_late = int(is_late.sum()) if watermark_ms > MIN_TIMESTAMP else 0
        if num_late:
            records, times = records.filter(pa.array(~is_late)), times[~is_late]
        if records.num_rows:
            codes, _ = self._index.codes_of([records.column(key) for key in self._keys], records.num_rows)
            if self._expiring is not None:
                self._expiring.begin()
                self._forget_expired(self._expiring, self._expiring.expired(codes))
                self._expiring.touch(codes)
            ids = self._rows.add(codes, records.columns)
            self._times = grown(self._times, self._rows.size)
            self._times[ids] = times
            self._waiting = np.concatenate([self._waiting, ids])
        return num_late

    def pass_time(self, watermark_ms: int, kept_ms: int) -> Iterator[_Given]:
        """Let event time go on; gives the rows that it passes with their new columns and event times.

        Args:
            watermark_ms: How far it is.
            kept_ms: How far what is kept goes by it.
        """
        is_due = self._times[self._waiting] <= last_passed(watermark_ms, self._time_type)
        due = self._waiting[is_due]
        if self._expiring is not None:
            self._expiring.begin()
            self._expiring.touch(self._rows.codes[due])
        if len(due):
            self._waiting = self._waiting[~is_due]
            ids, new = self._computed(due)
            for start in range(0, len(ids), MAX_BATCH_ROWS):
                some = ids[start : start + MAX_BATCH_ROWS]
                columns = [array.slice(start, len(some)) for array in new]
                yield self._rows.take(some), columns, milliseconds(self._times[some], self._time_type)
            self._put_out(ids)
        self._forget_until(kept_ms)
        if self._expiring is not None:
            self._forget_expired(self._expiring, self._expiring.swept())
        self._make_room()

    def _computed(self, due: Integers) -> tuple[Integers, list[pa.Array]]:
        """Rows in order, and the new columns for them."""
        codes = self._rows.codes[due]
        touched, local = self._local.of(codes, len(self._index))
        if self._folds is not None:
            order = sorted_rows([local, self._times[due], due])
            ids, partitions = due[order], local[order]
            return ids, self._folds.add(touched, partitions, self._times[ids], self._taken(ids), self._frame)
        owners, seen = self._out.of(touched)
        partitions = np.concatenate([owners, local])
        ids = np.concatenate([seen, due])
        is_new = np.arange(len(ids)) >= len(seen)
        order = sorted_rows([partitions, self._times[ids], ids])
        ids, partitions, is_new = ids[order], partitions[order], is_new[order]
        times = self._times[ids]
        rows = OrderedRows(first_of_runs([partitions]), first_of_runs([partitions, times]), SortKey(None, times))
        columns = self._taken(ids)
        new = [self._column(one, rows, columns, is_new) for one in self._specs]
        if self._kept.num_rows is not None:
            # Of rows that are out those that no later one will see; of new ones when they are out.
            is_past = rows.ends - np.arange(len(ids)) > self._kept.num_rows
            self._forget(ids[is_past & ~is_new])
        return ids[is_new], new

    def _column(self, spec: Any, rows: OrderedRows, columns: pa.RecordBatch, is_new: Truths) -> pa.Array:
        if isinstance(spec, Neighbour):
            return rows.neighbours(spec, columns, slice(0, len(rows))).filter(pa.array(is_new))
        lows, highs = rows.bounds(self._frame)
        parts = [over_frames(part, lows[is_new], highs[is_new]) for part in lifted(spec, columns)]
        return finalised(spec, parts)

    def _taken(self, ids: Integers) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._rows.take_column(i, ids) for i in self._used], schema=self._used_schema
        )

    def _put_out(self, ids: Integers) -> None:
        """Keep what later rows may see of rows that have gone out; they stand in order, partition by partition."""
        codes = self._rows.codes[ids]
        if self._kept.num_rows is not None:
            ends = np.append(np.flatnonzero(first_of_runs([codes]))[1:], len(codes))
            behind = np.repeat(ends, np.diff(ends, prepend=0)) - np.arange(len(codes))
            is_seen = behind <= self._kept.num_rows
            self._rows.remove(ids[~is_seen])
            ids, codes = ids[is_seen], codes[is_seen]
        if self._kept.is_folded:
            self._rows.remove(ids)
            return
        self._rows.set_numbers(ids, np.full(len(ids), _IS_OUT))
        self._out.append(codes, ids)
        if self._kept.distance is not None:
            self._keep_part(ids)

    def _forget_until(self, watermark_ms: int) -> None:
        """Forget rows that are in no frame of a row that can still come."""
        if self._kept.distance is None:
            return
        before = last_passed(watermark_ms, self._time_type) - self._kept.distance + 1
        while self._parts and self._parts[0][1] < before:
            self._forget(self._parts.popleft()[0])

    def _forget(self, ids: Integers) -> None:
        self._out.remove(self._rows.codes[ids], ids)
        self._rows.remove(ids)

    def _forget_expired(self, expiring: ExpiringKeys, codes: Integers) -> None:
        """Forget what is kept of partitions whose rows are all out."""
        if not len(codes):
            return
        owners, ids = self._out.of(codes)
        self._forget(ids)
        num_folds = 0 if self._folds is None else self._folds.forget(codes)
        expiring.forget(codes, len(np.unique(owners)) + num_folds)

    # -- room and state ------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        if self._rows.is_sparse:
            self._rows.compact()
            self._find_all()
        num_folds = 0 if self._folds is None else self._folds.num_live
        if len(self._index) > 2 * (self._rows.num_live + num_folds) + _MIN_DEAD:
            self._forget_partitions()

    def _forget_partitions(self) -> None:
        """Number the partitions anew that have something."""
        codes = self._rows.codes[: self._rows.size]
        if self._folds is not None:
            codes = np.concatenate([codes, self._folds.codes])
        kept = np.unique(codes[codes >= 0])
        new_codes = np.full(len(self._index), -1, np.int64)
        new_codes[kept] = np.arange(len(kept))
        if self._expiring is not None:
            self._expiring.leave(kept)
        self._rows.recode(new_codes)
        if self._folds is not None:
            self._folds.recode(new_codes)
        self._index.compact(kept)
        if self._expiring is not None:
            self._expiring.keep(kept, new_codes)
        self._find_all()

    def persist(self) -> None:
        """Write what has changed."""
        if self._expiring is not None:
            self._forget_expired(self._expiring, self._expiring.before_snapshot())
            self._expiring.persist()
        self._rows.persist()
        if self._folds is not None:
            self._folds.persist()


class _FoldedRows:
    """What aggregates and places have come to, for each partition.

    Args:
        backend: The operator's keyed state.
        keys: The partition's columns.
        index: Gives their codes.
        specs: What is computed.
        schema: Of what it is computed from.
    """

    def __init__(
        self, backend: KeyedStateBackend, keys: list[pa.Field], index: KeyIndex, specs: list[Any], schema: pa.Schema
    ) -> None:
        self._specs = specs
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        parts = [part for one in specs for part in _parts_of(one, nothing, np.zeros(0, np.bool_))]
        kinds = [pa.int64() if part.how == "distinct" else part.values.type for part in parts]
        fields = [pa.field(f"part{i}", kind) for i, kind in enumerate(kinds)]
        self._store = RowStore(backend, "folded", keys, index, fields)
        # For each part that counts different values: those that there were.
        self._values = {
            i: _DifferentValues(backend, f"different{i}", keys, index, part.values.type)
            for i, part in enumerate(parts)
            if part.how == "distinct"
        }

    def add(
        self, touched: Integers, partitions: Integers, times: Integers, columns: pa.RecordBatch, frame: Frame | None
    ) -> list[pa.Array]:
        """Add rows in order; returns the new columns for them.

        Args:
            touched: The codes of their partitions.
            partitions: Of each row the place of its partition among those.
            times: Those of rows.
            columns: What is computed from.
            frame: Which rows aggregates see; it begins with the partition.
        """
        owners, held = self._store.by_key.of(touched)
        # What there was goes before the rows of a partition.
        order = np.argsort(np.concatenate([2 * owners, 2 * partitions + 1]), kind="stable")
        is_row = order >= len(held)
        is_new = first_of_runs([partitions, times])
        all_partitions = np.concatenate([owners, partitions])[order]
        # Those that were there are equal to no row.
        runs = np.concatenate([np.ones(len(held), np.bool_), is_new])[order]
        rows = OrderedRows(first_of_runs([all_partitions]), runs)
        begins = np.flatnonzero(first_of_runs([all_partitions]))
        ends = np.append(begins[1:], len(order))
        number, results, totals = 0, [], []
        for spec in self._specs:
            given = []
            for part in _parts_of(spec, columns, is_new):
                before = self._store.take_column(number, held)
                part = self._counted(number, part, touched[partitions])
                whole = Folded(part.how, pa.concat_arrays([before, part.values]).take(pa.array(order)))
                given.append(over_frames(whole, *_frames(spec, rows, frame, is_row)))
                totals.append(over_frames(whole, begins, ends))
                number += 1
            results.append(_result(spec, given))
        self._store.remove(held)
        # The partitions stand in the order of their places among those that are touched.
        self._store.add(touched, totals)
        if self._store.is_sparse:
            self._store.compact()
        return results

    @property
    def num_live(self) -> int:
        """How many partitions there are."""
        return self._store.num_live

    @property
    def codes(self) -> Integers:
        """Their codes; -1 for those that are gone."""
        return self._store.codes[: self._store.size]

    def forget(self, codes: Integers) -> int:
        """Forget partitions; returns how many of them there were."""
        _, held = self._store.by_key.of(codes)
        self._store.remove(held)
        for values in self._values.values():
            values.forget(codes)
        return len(held)

    def recode(self, new_codes: Integers) -> None:
        """Let partitions have other codes: those that are given by their old ones."""
        self._store.recode(new_codes)
        for values in self._values.values():
            values.recode(new_codes)

    def _counted(self, number: int, part: Folded, codes: Integers) -> Folded:
        """A part as it is folded; for different values how many a row adds."""
        values = self._values.get(number)
        return part if values is None else Folded("count", pa.array(values.add(codes, part.values)))

    def persist(self) -> None:
        """Write what has changed."""
        self._store.persist()
        for values in self._values.values():
            values.persist()


class _DifferentValues:
    """The values that there were in each partition, which only become more until it is forgotten.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: The partition's columns.
        index: Gives their codes.
        kind: The type of values.
    """

    def __init__(
        self, backend: KeyedStateBackend, name: str, keys: list[pa.Field], index: KeyIndex, kind: pa.DataType
    ) -> None:
        self._kind = kind
        self._store = RowStore(backend, name, keys, index, [pa.field("value", kind)])
        self._find_all()

    def _find_all(self) -> None:
        """Number the pairs of partitions and values that there are."""
        self._pairs = KeyIndex([pa.int64(), self._kind])
        # By number of a pair whether it has been forgotten.
        self._is_gone = np.zeros(0, np.bool_)
        ids = np.flatnonzero(self._store.codes[: self._store.size] >= 0)
        self._pairs.codes_of([self._store.codes[ids], self._store.take_column(0, ids)], len(ids))

    def add(self, codes: Integers, values: pa.Array) -> Integers:
        """1 for each row whose value is the first of its kind in its partition, 0 for others and for null."""
        adds = np.zeros(len(codes), np.int64)
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        codes, values = codes[valid], values.take(pa.array(valid))
        known = len(self._pairs)
        pairs, _ = self._pairs.codes_of([codes, values], len(codes))
        # New pairs get numbers in the order of their first rows.
        largest = np.maximum.accumulate(np.concatenate([[known - 1], pairs]))
        is_new = pairs > largest[:-1]
        if len(self._is_gone):
            self._is_gone = grown(self._is_gone, len(self._pairs), False)
            come = np.flatnonzero(self._is_gone[pairs])
            again, firsts = np.unique(pairs[come], return_index=True)
            is_new[come[firsts]] = True
            self._is_gone[again] = False
        adds[valid[is_new]] = 1
        self._store.add(codes[is_new], [values.take(pa.array(np.flatnonzero(is_new)))])
        return adds

    def forget(self, codes: Integers) -> None:
        """Forget the values of partitions."""
        owners, ids = self._store.by_key.of(codes)
        if not len(ids):
            return
        pairs, _ = self._pairs.codes_of([codes[owners], self._store.take_column(0, ids)], len(ids), add=False)
        self._is_gone = grown(self._is_gone, len(self._pairs), False)
        self._is_gone[pairs] = True
        self._store.remove(ids)
        if self._store.is_sparse:
            self._store.compact()
            self._find_all()

    def recode(self, new_codes: Integers) -> None:
        """Let partitions have other codes: those that are given by their old ones."""
        self._store.recode(new_codes)
        self._find_all()

    def persist(self) -> None:
        """Write what has changed."""
        self._store.persist()


def _columns_used(spec: Any) -> frozenset[str]:
    value = value_of(spec)
    return frozenset() if value is None else value.columns_used()


def _parts_of(spec: Any, columns: pa.RecordBatch, is_new: Truths) -> list[Folded]:
    """The parts of an aggregate; a place counts rows, or times that differ."""
    if not isinstance(spec, Place):
        return lifted(spec, columns)
    counts = is_new.astype(np.int64) if spec.name == "dense_rank" else np.ones(len(is_new), np.int64)
    return [Folded("count", pa.array(counts))]


def _frames(spec: Any, rows: OrderedRows, frame: Frame | None, is_row: Truths) -> tuple[Integers, Integers]:
    if not isinstance(spec, Place):
        lows, highs = rows.bounds(frame)
    elif spec.name == "rank":
        lows, highs = rows.starts, rows.peers
    else:
        lows, highs = rows.starts, np.arange(len(rows)) + 1
    return lows[is_row], highs[is_row]


def _result(spec: Any, given: list[pa.Array]) -> pa.Array:
    if not isinstance(spec, Place):
        if spec.name == "count_distinct":
            return given[0]
        return finalised(spec, given)
    numbers = given[0].to_numpy()
    return pa.array(numbers + 1 if spec.name == "rank" else numbers)
