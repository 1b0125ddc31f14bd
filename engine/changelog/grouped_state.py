"""What a group aggregate keeps: a code for each key, how many records it has, and its accumulators.

Groups whose last record is gone are forgotten when they are more than half of all; the others are numbered anew then.
Groups that are not in memory come back from their logs (`headrace.engine.tables.resident_keys`).

The log has a row for each group that has changed: its key, the number of records (-1 once it is gone) and the
accumulators; counts of values have logs of their own.

With a time to live a group that has expired is forgotten as one without records is, and nothing goes out. What takes
records back that have expired is passed over: nothing is taken from a group that has no records, nor from a count, a
sum or a list of values that has none. A group whose last record is taken back begins anew, with whatever it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError

from ..columns.records import RowKinds
from ..functions.aggregates.contract import Aggregate
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, Truths, same_rows
from ..tables.growing import grown
from ..tables.key_index import LocalCodes
from ..tables.key_times import KeyTimes
from ..tables.lifetime import lifetime_of
from ..tables.resident_keys import ResidentKeys
from ..tables.run_log import LogForm, LogRows, RunLog
from .accumulators.contract import Accumulator, Touched, folded, unknown_in
from .accumulators.counted_values import CountedValues
from .accumulators.group_accumulators import accumulator_of
from .accumulators.partial_results import PartialColumns
from .changes import places_of_changes, refuse_unknown_row

__all__ = ["FORM_OF_GROUPS", "GroupedState"]

_MIN_DEAD = 1_024
_GONE = -1

FORM_OF_GROUPS = LogForm([], lambda columns: columns[0].to_numpy(zero_copy_only=False) == _GONE)
"""What rows of the log of groups mean."""


class GroupedState:
    """The groups of one subtask.

    Args:
        context: The operator's.
        keys: Names of the key's columns.
        aggregates: By name.
        schema: Of the records.
        takes_back: Whether records are taken back.
        ttl_ms: How long a group lives that has no record; 0 for ever.

    Attributes:
        residents: Which groups are in memory.
        log: Where they are kept.
    """

    def __init__(
        self,
        context: OperatorContext,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema,
        *,
        takes_back: bool,
        ttl_ms: int = 0,
    ) -> None:
        self._backend = context.keyed_state
        self._schema = schema
        self._aggregates = dict(aggregates)
        self._takes_back = takes_back
        self._keys = [schema.field(key) for key in keys]
        self._local = LocalCodes()
        self.residents = ResidentKeys(self._backend, [field.type for field in self._keys])
        self._index = self.residents.index
        # Place of the next record in the order of arrival, for first and last; grows over restores.
        self._orders = context.operator_state.union_list_state("orders")
        self._next_order = max(self._orders.get(), default=0)
        lifetime = lifetime_of(context, ttl_ms)
        self._times = None if lifetime is None else KeyTimes(self._backend, self._keys, self._index, lifetime)
        self._values = CountedValues(
            self._aggregates, schema, self._backend, self._keys, self._index, takes_back=takes_back, times=self._times
        )
        self._accumulators = self._fresh_accumulators()
        self._partial = PartialColumns(self._keys, self._accumulators, self._values)
        self._begin_groups()
        is_over = None if self._times is None else self._times.is_over
        self.log = RunLog(self._backend, "groups", self._keys, self._log_fields(), FORM_OF_GROUPS, is_over)
        self.residents.attach(*([] if self._times is None else [self._times]), *self._values.tables, self)

    def _fresh_accumulators(self) -> dict[str, Accumulator]:
        return {
            name: accumulator_of(
                aggregate,
                self._schema,
                takes_back=self._takes_back,
                next_order=lambda: self._next_order,
                values_of=self._values.of,
                expires=self._times is not None,
            )
            for name, aggregate in self._aggregates.items()
        }

    def _begin_groups(self) -> None:
        # By group: its number of records, whether it has a row, and whether the log has something else.
        self._num_records = np.zeros(0, np.int64)
        self._has_row = np.zeros(0, np.bool_)
        self._is_changed = np.zeros(0, np.bool_)
        self._num_live = 0

    # -- records -------------------------------------------------------------------------------------------------------

    def process(
        self, batch: pa.RecordBatch, signs: Integers | None, *, is_partial: bool = False
    ) -> tuple[list[pa.Array], RowKinds]:
        """Take records; returns the changes of results: the columns of keys and results, and kinds.

        Args:
            batch: The records, or partial results.
            signs: -1 for records that are taken back; None if none is.
            is_partial: Whether they are partial results.

        Raises:
            UserFunctionError: If one is taken back that was not there, or a sum does not fit.
        """
        codes = self.residents.codes_of(self.key_columns(batch), batch.num_rows)
        touched = Touched(*self._local.of(codes, len(self._index)), signs)
        groups = touched.groups
        self._make_room(len(self._index))
        if self._times is not None:
            self._times.lifetime.begin()
            self._expire(self._times.expired(groups))
        had_row, before = self._has_row[groups], self._results(groups)
        is_written = np.ones(len(groups), np.bool_)
        if is_partial:
            self._merge(batch, touched, codes)
        elif self._times is None:
            self._add(batch, touched, codes)
        else:
            is_written = self._add_known(batch, touched, codes)
        has_row = self._num_records[groups] > 0 if self._keys else had_row | is_written
        self._has_row[groups] = has_row
        self._is_changed[groups] = True
        self._num_live += int(has_row.sum()) - int(had_row.sum())
        for accumulator in self._accumulators.values():
            accumulator.reset(groups[~has_row])
        # What reads the changes has a time to live, too: it hears that the group lives, though nothing has changed.
        is_heard = is_written if self._times is not None and self._accumulators else None
        made = self._changes(groups, before, had_row, has_row, is_heard)
        self._next_order += batch.num_rows
        if self._times is not None:
            self._times.touch(groups[is_written & has_row])
            self._times.forget(groups[~has_row])
            self._expire(self._times.swept())
        if len(self._index) - self._num_live > max(self._num_live, _MIN_DEAD):
            self.residents.keep(np.flatnonzero(self._has_row[: len(self._index)]))
        self._values.compact()
        self.residents.make_room()
        return made

    def all_rows(self) -> Iterator[list[pa.Array]]:
        """Yield the rows that there are, some at a time: the columns of keys and results."""
        for codes in self.residents.in_parts():
            self._make_room(len(self._index))
            groups = codes[self._has_row[codes]]
            if self._times is not None:
                self._times.lifetime.begin()
                groups = np.setdiff1d(groups, self._times.expired(groups), assume_unique=True)
            if len(groups):
                yield [*self._index.take(groups), *self._results(groups)]
            self.residents.make_room()

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of records' keys."""
        return [batch.column(key.name) for key in self._keys]

    def _make_room(self, size: int) -> None:
        self._num_records = grown(self._num_records, size)
        self._has_row = grown(self._has_row, size, False)
        self._is_changed = grown(self._is_changed, size, False)

    def _results(self, groups: Integers) -> list[pa.Array]:
        results = []
        for name, accumulator in self._accumulators.items():
            try:
                results.append(accumulator.results(groups))
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {self._aggregates[name]!r}")
                raise
        return results

    def _count(self, batch: pa.RecordBatch, touched: Touched, codes: Integers, numbers: Integers | None) -> None:
        """Count the records of groups: 1 for each row, or a number."""
        net = np.bincount(touched.local, numbers, len(touched.groups)).astype(np.int64)
        self._num_records[touched.groups] += net
        if numbers is not None and (self._num_records[touched.groups] < 0).any():
            row = int(np.argmax(self._num_records[codes] < 0))
            refuse_unknown_row(batch.columns, batch.schema.names, row)

    def _merge(self, batch: pa.RecordBatch, touched: Touched, codes: Integers) -> None:
        """Add partial results."""
        numbers = self._partial.num_records(batch)
        self._count(batch, touched, codes, numbers)
        if not self._values.merge(self._partial.values_of(batch), codes):
            refuse_unknown_row(batch.columns, batch.schema.names, int(np.argmin(numbers)))
        for name, accumulator in self._accumulators.items():
            try:
                folded(accumulator).merge(self._partial.parts_of(name, batch), touched)
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {self._aggregates[name]!r}")
                raise

    def _add(self, batch: pa.RecordBatch, touched: Touched, codes: Integers) -> None:
        self._count(batch, touched, codes, touched.signs)
        # Aggregates of different values read what has appeared and vanished.
        if not self._values.add(batch, codes, touched.all_signs):
            refuse_unknown_row(batch.columns, batch.schema.names, int(np.argmax(touched.all_signs < 0)))
        for name, accumulator in self._accumulators.items():
            try:
                accumulator.add(*self._known_to(accumulator, batch, touched))
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {self._aggregates[name]!r}")
                raise

    def _changes(
        self, groups: Integers, before: list[pa.Array], had_row: Truths, has_row: Truths, is_heard: Truths | None
    ) -> tuple[list[pa.Array], RowKinds]:
        """What the groups' rows were and what they are, key by key, where they differ or are to be heard of."""
        num, after = len(groups), self._results(groups)
        differs = ~same_rows(before, after, num) if had_row.any() else np.ones(num, np.bool_)
        if is_heard is not None:
            differs |= is_heard
        places, kinds = places_of_changes(had_row, has_row, differs)
        keys, chosen = self._index.take(np.concatenate([groups, groups])[places]), pa.array(places)
        results = [pa.concat_arrays([one, other]).take(chosen) for one, other in zip(before, after, strict=True)]
        return [*keys, *results], kinds

    # -- time to live --------------------------------------------------------------------------------------------------

    def _expire(self, groups: Integers) -> None:
        """Forget groups that have expired; some may be none."""
        assert self._times is not None
        live = groups[self._has_row[groups]]
        self._begin_anew(live)
        self._values.forget(groups)
        self._times.forget(groups)
        self._has_row[live] = False
        self._num_live -= len(live)
        self._times.lifetime.count(num_expired=len(live))

    def _begin_anew(self, groups: Integers) -> None:
        self._num_records[groups] = 0
        self._is_changed[groups] = True
        for accumulator in self._accumulators.values():
            accumulator.reset(groups)

    def _add_known(self, batch: pa.RecordBatch, touched: Touched, codes: Integers) -> Truths:
        """Add records, but for those that take back what has expired; returns which groups others have touched."""
        assert self._times is not None
        groups, signs = touched.groups, touched.signs
        unknown = None if signs is None else unknown_in(self._num_records[groups], touched.local, signs)
        if unknown is None:
            self._add(batch, touched, codes)
            return np.ones(len(groups), np.bool_)
        emptied = groups[unknown.is_emptied]
        self._begin_anew(emptied)
        self._values.forget(emptied)
        self._times.lifetime.count(num_ignored=int(unknown.is_ignored.sum()))
        rows = np.flatnonzero(unknown.is_lasting)
        self._add(batch.take(pa.array(rows)), touched.taken(rows), codes[rows])
        is_written = np.zeros(len(groups), np.bool_)
        is_written[touched.local[~unknown.is_ignored]] = True
        return is_written

    def _known_to(
        self, accumulator: Accumulator, batch: pa.RecordBatch, touched: Touched
    ) -> tuple[pa.RecordBatch, Touched]:
        """The records without those whose values an aggregate cannot take away, as it has none."""
        if self._times is None or touched.signs is None:
            return batch, touched
        counts = accumulator.counts(touched.groups)
        if counts is None:
            return batch, touched
        is_counted = accumulator.counted(batch)
        signs = touched.signs if is_counted is None else np.where(is_counted, touched.signs, 0)
        unknown = unknown_in(counts, touched.local, signs)
        if unknown is None:
            return batch, touched
        accumulator.reset(touched.groups[unknown.is_emptied])
        rows = np.flatnonzero(unknown.is_lasting)
        return batch.take(pa.array(rows)), touched.taken(rows)

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """How many bytes groups take, but for the counts of their values."""
        arrays = (self._num_records, self._has_row, self._is_changed)
        return sum(array.nbytes for array in arrays) + sum(one.nbytes for one in self._accumulators.values())

    def weights(self, num_keys: int) -> Integers:
        """1 for each group that has a row."""
        self._make_room(num_keys)
        return self._has_row[:num_keys].astype(np.int64)

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Forget all groups but some; see `headrace.engine.tables.resident_keys.KeyedTable`."""
        self._make_room(len(new_codes))
        codes = codes[self._has_row[codes]]
        num_records = self._num_records[codes]
        states = {name: one.state(codes) for name, one in self._accumulators.items()}
        self._accumulators = self._fresh_accumulators()
        self._begin_groups()
        self._put(new_codes[codes], num_records, states)

    def _put(self, groups: Integers, num_records: Integers, states: Mapping[str, Sequence[pa.Array]]) -> None:
        self._make_room(int(groups.max(initial=-1)) + 1)
        self._num_records[groups] = num_records
        self._has_row[groups] = True
        self._num_live += len(groups)
        for name, accumulator in self._accumulators.items():
            accumulator.put(groups, states[name])

    # -- state ---------------------------------------------------------------------------------------------------------

    def _log_fields(self) -> list[pa.Field]:
        parts = [
            pa.field(f"{name}${field.name}", field.type)
            for name, accumulator in self._accumulators.items()
            for field in accumulator.fields
        ]
        return [pa.field("records", pa.int64()), *parts]

    def persist(self) -> None:
        """Write which groups have changed."""
        changed = np.flatnonzero(self._is_changed)
        self.log.write(self._rows(changed), self._num_live)
        self._is_changed[:] = False

    def persist_all(self) -> None:
        """Write what has changed of all that is kept."""
        if self._times is not None:
            self._times.lifetime.begin()
            self._expire(self._times.swept(is_forced=True))
            self._times.lifetime.snapshot()
        self.residents.persist()
        self._orders.update([self._next_order])

    def _rows(self, groups: Integers) -> LogRows:
        records = np.where(self._has_row[groups], self._num_records[groups], _GONE)
        parts = [array for accumulator in self._accumulators.values() for array in accumulator.state(groups)]
        return len(groups), self._index.take(groups), [pa.array(records), *parts]

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of groups; codes are those of the rows."""
        _, _, (records, *parts) = rows
        taken, states = iter(parts), {}
        for name, accumulator in self._accumulators.items():
            states[name] = [next(taken) for _field in accumulator.fields]
            if any(array.null_count for array in states[name]):
                states[name] = accumulator.completed(states[name], records)
        self._put(codes, records.to_numpy(zero_copy_only=False), states)
