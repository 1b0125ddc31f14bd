"""The interval join: pairs of records of two keyed streams whose event times are near enough to each other.

A left record at time ``l`` and a right record at ``r`` of the same key make a pair if ``l + lower <= r <= l + upper``.
The pair is given to the function as soon as its second record is there, and the result carries the later of both
times, so it is never behind the watermark.

A record behind the watermark is late: it is dropped and counted, or goes to a side output. Every other record is paired
with all partners that are not late, whatever the order of arrival. For that a left record is kept until no right record
in time can reach it: until the watermark is past ``l + upper``; a right one until it is past ``r - lower``. A record
that has no such future is not kept at all.

Invariant: state holds exactly the buckets that the watermark has not passed. A bucket is a namespace, a span of event
time, and holds each key's records of one side in it; so looking for partners looks at few buckets, and forgetting is
dropping a namespace.

Source: Flink's ``IntervalJoinOperator``, whose lateness this is: a record at the watermark's own time is not late.
Flink keeps a record for its own time too where the bounds do not ask for it, and forgets it one millisecond earlier,
which can lose a pair at the watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from headrace.state.keyed.contract import KeyedStateBackend, StateTable
from headrace.state.keyed.kinds import StateDescriptor

from ..columns.records import MIN_TIMESTAMP, Batch, Watermark
from ..errors import ProgramError
from ..functions.keys import KeySelector
from ..functions.operator import OperatorContext
from ..functions.side_outputs import OutputTag, SideOutputs
from ..functions.timers import DueQueue
from ..functions.user_function import keys_of
from ..operators.event_time import OperatorWatermark
from ..operators.row_operators import FunctionOperator
from ..windows.contents import MISSING, ElementContents
from .pair_loop import Pair, PairCalls

__all__ = ["IntervalJoinContext", "IntervalJoinOperator"]

BUCKETS_PER_INTERVAL = 4
"""How finely time is cut: a record looks for partners in at most one bucket more than that."""

Span = tuple[int, int]


class IntervalJoinContext:
    """What ``ProcessJoinFunction.process_element`` may know of a pair; valid during the call only."""

    __slots__ = ("_backend", "_sides", "left_ms", "right_ms")

    def __init__(self, backend: KeyedStateBackend, sides: SideOutputs) -> None:
        self._backend = backend
        self._sides = sides
        # The event times of the pair, set by the operator before each call.
        self.left_ms = self.right_ms = MIN_TIMESTAMP

    def get_left_timestamp(self) -> int:
        """Return the left record's event time, epoch milliseconds."""
        return self.left_ms

    def get_right_timestamp(self) -> int:
        """Return the right record's event time, epoch milliseconds."""
        return self.right_ms

    def get_timestamp(self) -> int:
        """Return the results' event time: the later of both, epoch milliseconds."""
        return max(self.left_ms, self.right_ms)

    def get_current_key(self) -> Any:
        """Return the key of both."""
        return self._backend.current_key

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit to a side output, with the results' event time."""
        self._sides.add(tag, value, self.get_timestamp())


class IntervalJoinOperator(FunctionOperator):
    """Joins two keyed streams by nearness in event time; input 0 is the left one.

    Args:
        left_keys: Finds the keys of input 0.
        right_keys: Finds the keys of input 1; keys of both must be of one type to be equal.
        lower_ms: How far a right record's time may be from the left one's at least, milliseconds; may be negative.
        upper_ms: How far at most; both bounds are inclusive.
        function: ProcessJoinFunction, or callable of (left, right, context).
        left_late_tag: Side output for late left records; None drops and counts them.
        right_late_tag: Side output for late right records.

    Raises:
        ProgramError: If the lower bound is above the upper bound.
    """

    keyed = True

    def __init__(
        self,
        left_keys: KeySelector,
        right_keys: KeySelector,
        lower_ms: int,
        upper_ms: int,
        function: Any,
        *,
        left_late_tag: str | None = None,
        right_late_tag: str | None = None,
    ) -> None:
        super().__init__(function, "process_element")
        if lower_ms > upper_ms:
            message = f"an interval's lower bound must not be above its upper bound; got {lower_ms} ms to {upper_ms} ms"
            raise ProgramError(message)
        self._key_selectors = (left_keys, right_keys)
        self._lower_ms = lower_ms
        self._upper_ms = upper_ms
        self._late_tags = (left_late_tag, right_late_tag)

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return self._key_selectors

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._watermark = OperatorWatermark.of(context)
        sides = SideOutputs()
        self._join_context = IntervalJoinContext(context.keyed_state, sides)
        # A record has many partners, and waits for more: both are copied.
        arguments = (self._join_context,)
        self._calls = PairCalls(self.function, context, sides.take, (True, True), arguments, sides)
        size_ms = max(1, (self._upper_ms - self._lower_ms) // BUCKETS_PER_INTERVAL)
        state = context.keyed_state
        self._buffers = (
            _Buffer(state.table(StateDescriptor("interval-join-left"), windowed=True), size_ms, self._upper_ms),
            _Buffer(state.table(StateDescriptor("interval-join-right"), windowed=True), size_ms, -self._lower_ms),
        )

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        batch = self._without_late(batch, input_index)
        if batch.num_rows == 0:
            return
        assert batch.timestamps is not None
        keys = keys_of(self._key_selectors[input_index], batch, self.context)
        times = batch.timestamps.tolist()
        self._calls.give(self._pairs(input_index, keys, batch.rows, times))
        self._buffers[input_index].add(keys, batch.rows, times, self._watermark.current_ms)

    def _without_late(self, batch: Batch, input_index: int) -> Batch:
        times = batch.timestamps
        earliest = None if times is None else int(times.min())
        if times is None or earliest == MIN_TIMESTAMP:
            message = "an interval join got a record without event time"
            raise ProgramError(
                message, hint="call assign_timestamps_and_watermarks on both streams: intervals are of event time only"
            )
        watermark_ms = self._watermark.current_ms
        if earliest is not None and earliest >= watermark_ms:
            return batch
        is_late = times < watermark_ms
        self.context.reject_late(int(is_late.sum()), lambda: batch.filter(is_late), self._late_tags[input_index])
        return batch.filter(~is_late)

    def _pairs(self, input_index: int, keys: list[Any], rows: list[Any], times: list[int]) -> Iterator[Pair]:
        """The pairs with a record of this batch; while one is out, its event times are in the context.

        The batch's records are all of one side, so none of them is a partner of another.
        """
        partners, context = self._buffers[1 - input_index].partners, self._join_context
        if input_index == 0:
            lower, upper = self._lower_ms, self._upper_ms
            for key, row, time in zip(keys, rows, times, strict=True):
                for other_time, other in partners(key, time + lower, time + upper):
                    context.left_ms, context.right_ms = time, other_time
                    yield key, row, other, time if time > other_time else other_time
        else:
            lower, upper = -self._upper_ms, -self._lower_ms
            for key, row, time in zip(keys, rows, times, strict=True):
                for other_time, other in partners(key, time + lower, time + upper):
                    context.left_ms, context.right_ms = other_time, time
                    yield key, other, row, time if time > other_time else other_time

    def process_watermark(self, watermark: Watermark) -> None:
        if self._watermark.advance(watermark.timestamp_ms):
            for buffer in self._buffers:
                # At the end of event time, too, only what could be forgotten before: a job that starts again from a
                # last checkpoint with more input finds partners.
                buffer.forget_until(self._watermark.kept_ms)
            self.context.output.emit_watermark(watermark)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._watermark.snapshot()


class _Buffer:
    """One side's records that may still find partners: in buckets of event time, by key.

    Args:
        table: Where they are kept: namespace a bucket's span, value a content of `ElementContents` with pairs of time
            and record.
        size_ms: How long a bucket is.
        keep_ms: How long after its own time a record may find partners; negative if only before.
    """

    __slots__ = ("_contents", "_keep_ms", "_mappings", "_queue", "_size_ms", "_table")

    def __init__(self, table: StateTable, size_ms: int, keep_ms: int) -> None:
        self._table = table
        self._size_ms = size_ms
        self._keep_ms = keep_ms
        self._contents = ElementContents()
        # By start; together with the table.
        self._mappings: dict[int, MutableMapping[Any, Any]] = {}
        # Starts of buckets, due when the watermark is past the last record's last partner.
        self._queue = DueQueue()
        for span in list(table.namespaces()):
            assert span is not None
            if span[1] - span[0] == size_ms and span[0] % size_ms == 0:
                self._open(span[0])
            else:
                self._cut_anew(span)

    def _cut_anew(self, span: Span) -> None:
        """Move a bucket that was made when the program had other bounds."""
        old = dict(self._table.namespace(span))
        self._table.drop(span)
        for key, content in old.items():
            for time, row in self._contents.elements(content):
                self._add_run(time - time % self._size_ms, key, [(time, row)])

    def _open(self, start: int) -> MutableMapping[Any, Any]:
        mapping = self._mappings.get(start)
        if mapping is None:
            end = start + self._size_ms
            mapping = self._mappings[start] = self._table.namespace((start, end))
            self._queue.add(end + self._keep_ms, start)  # the last record, at end - 1, is reachable until one before
        return mapping

    def _add_run(self, start: int, key: Any, run: list[tuple[int, Any]]) -> None:
        mapping = self._open(start)
        mapping[key] = self._contents.add_run(mapping.get(key, MISSING), run)

    def add(self, keys: list[Any], rows: list[Any], times: list[int], watermark_ms: int) -> None:
        """Keep records, in order of arrival, but for those that no partner in time can reach."""
        size_ms, reachable_from = self._size_ms, watermark_ms - self._keep_ms
        runs: dict[tuple[int, Any], list[tuple[int, Any]]] = {}
        get = runs.get
        for key, row, time in zip(keys, rows, times, strict=True):
            if time < reachable_from:
                continue
            place = (time - time % size_ms, key)
            run = get(place)
            if run is None:
                runs[place] = [(time, row)]
            else:
                run.append((time, row))
        for (start, key), run in runs.items():
            self._add_run(start, key, run)

    def partners(self, key: Any, first_ms: int, last_ms: int) -> Iterator[tuple[int, Any]]:
        """Yield the key's records with times from ``first_ms`` to ``last_ms``, bucket by bucket."""
        size_ms, mappings = self._size_ms, self._mappings
        for start in range(first_ms - first_ms % size_ms, last_ms + 1, size_ms):
            content = mappings[start].get(key) if start in mappings else None
            if content is not None:
                for entry in self._contents.elements(content):
                    if first_ms <= entry[0] <= last_ms:
                        yield entry

    def forget_until(self, watermark_ms: int) -> None:
        """Drop the buckets of which no record can be reached by one that is not late."""
        queue = self._queue
        while (start := queue.first_due(watermark_ms)) is not None:
            queue.remove(start)
            del self._mappings[start]
            self._table.drop((start, start + self._size_ms))
