"""Records combined before the shuffle: what a batch holds of one key and slice of time goes on as one partial result.

A function that may be given partial results of its own can do most of its work where records come from: what is hashed,
pickled and sent is then a pair of key and content for each key of a batch, not every record, and a key that has most of
the records no longer goes to one subtask whole. The window operator merges the contents; its state is the same either
way.

Every record keeps the effect that it has by itself. Only those are combined that cannot be late behind the shuffle;
others go on one by one, so each is counted as late, or makes its window fire again, as before. A batch that has hardly
two records of a key gains nothing: then the next ones go on record by record, too, until one is tried again.

Source: Flink's ``LocalSlicingWindowAggOperator`` and ``AggregatePhaseStrategy``; Beam's combiner lifting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..columns.records import Batch, Timestamps
from ..errors import ProgramError
from ..functions.keys import KeySelector
from ..functions.operator import OperatorContext
from ..functions.tracebacks import note_event_time
from ..functions.user_function import UserFunction, keys_of, raise_in_function
from .assigners import SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner
from .columnar.phases import BeforeShuffle
from .columnar.slice_grouping import SliceLayout
from .columnar.window_grouping import event_times
from .contents import MISSING, AggregatedContents, ReducedContents, WindowContents
from .window_operator import checked_aggregate

__all__ = ["LocalCombiner"]

_LEFT_ALONE = 31
"""How many batches are not combined behind one where that did not pay."""


class LocalCombiner(BeforeShuffle):
    """Makes pairs of key and content of records; for tumbling and sliding windows of event time.

    Args:
        key_selector: Finds keys.
        assigner: The windows.
        reduce: ReduceFunction or callable of two records: the content is a record.
        aggregate: AggregateFunction with ``merge``, instead: the content is an accumulator.

    Raises:
        ProgramError: If windows are of another kind, or the aggregate function cannot merge.
    """

    def __init__(
        self, key_selector: KeySelector, assigner: WindowAssigner, *, reduce: Any = None, aggregate: Any = None
    ) -> None:
        super().__init__()
        if type(assigner) not in (TumblingEventTimeWindows, SlidingEventTimeWindows):
            message = f"records are combined for tumbling and sliding windows of event time only; got {assigner!r}"
            raise ProgramError(message)
        self._key_selector = key_selector
        self._layout = SliceLayout.of(assigner)
        self._reduces = reduce is not None
        if self._reduces:
            self._function = UserFunction(reduce, "reduce")
        else:
            self._function = checked_aggregate(aggregate, needs_merge=True)
        # How many batches are still left alone.
        self._left_alone = 0

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._function.open(context)
        self._num_folded = context.metrics.counter("num_records_folded")
        function = self._function
        self._contents: WindowContents
        self._contents = ReducedContents(function) if self._reduces else AggregatedContents(function.function)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        times = event_times(batch)
        keys = keys_of(self._key_selector, batch, self.context)
        try:
            for pairs, their_times in self._pairs(keys, batch.rows, times):
                self.context.output.emit(Batch.of_rows(pairs, their_times))
        except BaseException as error:
            note_event_time(error, batch.rows, times)
            raise_in_function(error, self._function.name, self.context)

    def _pairs(
        self, keys: list[Any], rows: list[Any], times: Timestamps
    ) -> Iterator[tuple[list[tuple[Any, Any]], Timestamps]]:
        """The records as pairs of key and content, and the times of these: of a slice its last millisecond."""
        if self._left_alone:
            self._left_alone -= 1
            yield self._one_by_one(keys, rows), times
            return
        ends = self._ends_of_slices(times)
        num_pairs = 0
        for members in self._groups_of(ends):
            chosen_keys, chosen_rows = keys, rows
            if len(members) < len(keys):
                places = members.tolist()
                chosen_keys, chosen_rows = [keys[i] for i in places], [rows[i] for i in places]
            end_ms = int(ends[members[0]])
            if end_ms <= self._late_until_ms:
                pairs, their_times = self._one_by_one(chosen_keys, chosen_rows), times[members]
            else:
                contents: dict[Any, Any] = {}
                self._contents.add_all(contents, chosen_keys, chosen_rows)
                self._num_folded.inc(len(chosen_keys))
                pairs, their_times = list(contents.items()), np.full(len(contents), end_ms, np.int64)
            num_pairs += len(pairs)
            yield pairs, their_times
        if 2 * num_pairs > len(keys):
            self._left_alone = _LEFT_ALONE

    def _ends_of_slices(self, times: Timestamps) -> Timestamps:
        """The last millisecond of each record's slice; for a record that no window covers its own time."""
        layout = self._layout
        indices, base = layout.slice_indices(times)
        ends: Timestamps = base + (indices + 1) * layout.width_ms - 1
        return np.where(layout.in_gap(times), times, ends) if layout.has_gaps else ends

    def _groups_of(self, ends: Timestamps) -> Iterator[npt.NDArray[np.intp]]:
        """The places of records that may be late, in order, as each may fire a window; then those of each slice."""
        if self._late_until_ms < ends[0] and (ends == ends[0]).all():  # as most batches are
            yield np.arange(len(ends))
            return
        order = np.argsort(ends, kind="stable")
        first_ahead = int(np.searchsorted(ends, self._late_until_ms, "right", sorter=order))
        if first_ahead:
            yield np.sort(order[:first_ahead])
        ahead = order[first_ahead:]
        if len(ahead):
            yield from np.split(ahead, np.flatnonzero(np.diff(ends[ahead])) + 1)

    def _one_by_one(self, keys: list[Any], rows: list[Any]) -> list[tuple[Any, Any]]:
        if self._reduces:
            return list(zip(keys, rows, strict=True))
        add_run = self._contents.add_run
        return [(key, add_run(MISSING, (row,))) for key, row in zip(keys, rows, strict=True)]

    def close(self) -> None:
        self._function.close(self.context)

    def __repr__(self) -> str:
        return f"LocalCombiner({self._key_selector!r}, {self._function.name})"
