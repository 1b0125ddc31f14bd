"""Records combined before the shuffle: what a batch holds of one key and slice of time goes on as one partial result.

A function that may be given partial results of its own can do most of its work where records come from: what is hashed,
pickled and sent is then a pair of key and content for each key of a batch, not every record, and a key that has most of
the records no longer goes to one subtask whole. The window operator merges the contents; its state is the same either
way.

Every record keeps the effect that it has by itself. Only those are combined that are ahead of the watermark, and so
cannot be late behind the shuffle; others go on one by one, so each is counted as late, or makes its window fire again,
as before. Records that no window covers, and that are not late, go nowhere.

Once this input was idle, or the job was restored, the watermark behind the shuffle may be ahead of that here
(`BeforeShuffle`). Then pairs say of how many records they are, so that what is late is counted right, and without
allowed lateness all records are combined. With it windows may fire again: after idleness all records go on one by one;
in a job that was restored those ahead of the watermark are combined, and make a window fire again once for a pair.

Batches that have hardly two records of a key gain nothing: then the next ones go on record by record, too, until some
are tried again.

Source: Flink's ``LocalSlicingWindowAggOperator`` and ``AggregatePhaseStrategy``; Beam's combiner lifting.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..columns.records import MIN_TIMESTAMP, Batch, Timestamps
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

_Places: TypeAlias = npt.NDArray[np.intp]

_LEAST_RECORDS = 64
"""So many records must have been combined, of one batch or of some, before it is judged whether that pays."""

_TRIED_EVERY = 32
"""Where combining does not pay one of so many batches is combined all the same."""


class LocalCombiner(BeforeShuffle):
    """Makes pairs of key and content of records; for tumbling and sliding windows of event time.

    Args:
        key_selector: Finds keys.
        assigner: The windows.
        reduce: ReduceFunction or callable of two records: the content is a record.
        aggregate: AggregateFunction with ``merge``, instead: the content is an accumulator.
        allowed_lateness_ms: How long after their end windows are kept.

    Raises:
        ProgramError: If windows are of another kind, or the aggregate function cannot merge.
    """

    def __init__(
        self,
        key_selector: KeySelector,
        assigner: WindowAssigner,
        *,
        reduce: Any = None,
        aggregate: Any = None,
        allowed_lateness_ms: int = 0,
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
        self._fires_again = allowed_lateness_ms > 0
        # How many batches are passed on, record by record, before one is combined again.
        self._num_passed_on = 0
        # Since it was judged last whether that pays: how many records were combined, to how many pairs.
        self._num_tried = self._num_pairs = 0

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
            pairs, their_times = self._pairs(keys, batch.rows, times)
        except BaseException as error:
            note_event_time(error, batch.rows, times)
            raise_in_function(error, self._function.name, self.context)
        self.context.output.emit(Batch.of_rows(pairs, their_times))

    def _pairs(self, keys: list[Any], rows: list[Any], times: Timestamps) -> tuple[list[tuple[Any, ...]], Timestamps]:
        """The records as pairs of key and content, and the times of these: of a slice its last millisecond."""
        if self._num_passed_on:
            self._num_passed_on -= 1
            return self._one_by_one(keys, rows), times
        ends, alone, ahead = self._divided(times)
        if len(ahead) == len(keys) and (ends == ends[0]).all():  # as most batches are
            pairs = self._combined(keys, rows)
            pair_times = np.full(len(pairs), ends[0], np.int64)
        else:
            places = alone.tolist()
            pairs = self._one_by_one([keys[i] for i in places], [rows[i] for i in places])
            found = [times[alone]]
            for members in _runs_of(ahead, ends):
                places = members.tolist()
                combined = self._combined([keys[i] for i in places], [rows[i] for i in places])
                pairs += combined
                found.append(np.full(len(combined), ends[members[0]], np.int64))
            pair_times = np.concatenate(found)
        if self._num_tried >= _LEAST_RECORDS:
            if 2 * self._num_pairs > self._num_tried:
                self._num_passed_on = _TRIED_EVERY - 1
            self._num_tried = self._num_pairs = 0
        return pairs, pair_times

    def _divided(self, times: Timestamps) -> tuple[Timestamps, _Places, _Places]:
        """The last millisecond of each record's slice; which records go on one by one, and which are combined: their
        places, in order. Those that are neither are in no window, and not late.
        """
        layout, late_until_ms = self._layout, self._late_until_ms
        if self._tells_numbers and not self._fires_again:
            late_until_ms = MIN_TIMESTAMP
        indices, base = layout.slice_indices(times)
        ends: Timestamps = base + (indices + 1) * layout.width_ms - 1
        if not layout.has_gaps:
            is_alone, is_ahead = ends <= late_until_ms, ends > late_until_ms
        else:  # what is in a gap is late by its own time
            in_gap = layout.in_gap(times)
            may_be_late = self._tells_numbers | (times <= late_until_ms)
            is_alone = np.where(in_gap, may_be_late, ends <= late_until_ms)
            is_ahead = ~(in_gap | is_alone)
        return ends, np.flatnonzero(is_alone), np.flatnonzero(is_ahead)

    @property
    def _tells_numbers(self) -> bool:
        """Whether pairs say of how many records they are, as some may be late that are ahead of the watermark here."""
        return self.context.is_restored or self._has_been_idle

    def _combined(self, keys: list[Any], rows: list[Any]) -> list[tuple[Any, ...]]:
        """One pair for each key of records of one slice."""
        contents: dict[Any, Any] = {}
        self._contents.add_all(contents, keys, rows)
        self._num_folded.inc(len(keys))
        self._num_tried += len(keys)
        self._num_pairs += len(contents)
        if self._tells_numbers:
            numbers = Counter(keys)
            return [(key, content, numbers[key]) for key, content in contents.items()]
        return list(contents.items())

    def _one_by_one(self, keys: list[Any], rows: list[Any]) -> list[tuple[Any, ...]]:
        if self._reduces:
            return list(zip(keys, rows, strict=True))
        add_run = self._contents.add_run
        return [(key, add_run(MISSING, (row,))) for key, row in zip(keys, rows, strict=True)]

    def close(self) -> None:
        self._function.close(self.context)

    def __repr__(self) -> str:
        return f"LocalCombiner({self._key_selector!r}, {self._function.name})"


def _runs_of(places: _Places, ends: Timestamps) -> list[_Places]:
    """Places of records by slice, oldest first, each in order."""
    if not len(places):
        return []
    ordered = places[np.argsort(ends[places], kind="stable")]
    return np.split(ordered, np.flatnonzero(np.diff(ends[ordered])) + 1)
