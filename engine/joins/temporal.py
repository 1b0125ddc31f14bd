"""The temporal join: each record of a stream with the version of its key that was valid at the record's event time.

The right input is a stream of versions: a version is valid from its own event time until the next one of its key. A
left record is joined with the latest version whose time is at or before its own. Which one that is, is known when the
watermark has passed the left record; then it is joined, left records in the order of their times, and the result
carries its time.

State is in event-time order by namespace: left records that wait and versions that begin later are kept under their
exact times, the version that is valid at the watermark under its key alone. Event time goes through them like a merge:
at each time first the versions that begin then take over, then the left records of that time are joined.

Invariant: per key at most one version is kept that begins at or before the watermark: an old one is gone when the next
one takes over. A version that comes behind the watermark takes over at once unless a later one already has; what was
joined before stays as it is. A left record at or behind the watermark is late, since what was valid at its time may be
gone: it is dropped and counted, or goes to a side output. Of two versions of a key with the same time the one that came
last counts.

Source: Flink's ``TemporalRowTimeJoinOperator``; it joins late left records with what is left of the versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from headrace.state.keyed.contract import StateTable
from headrace.state.keyed.kinds import StateDescriptor

from ..columns.records import MAX_WATERMARK, MIN_TIMESTAMP, Batch, Watermark
from ..errors import ProgramError
from ..functions.cofunctions import FlatJoinFunction
from ..functions.given import records_of
from ..functions.keys import KeySelector
from ..functions.operator import OperatorContext
from ..functions.timers import DueQueue
from ..functions.user_function import keys_of
from ..operators.event_time import OperatorWatermark
from ..operators.row_operators import FunctionOperator
from ..windows.contents import MISSING, ElementContents
from .pair_loop import Pair, PairCalls

__all__ = ["TemporalJoinOperator"]


class TemporalJoinOperator(FunctionOperator):
    """Joins a keyed stream with a keyed stream of versions; input 0 is the left one, input 1 the versions.

    Args:
        left_keys: Finds the keys of input 0.
        right_keys: Finds the keys of input 1; keys of both must be of one type to be equal.
        function: JoinFunction, FlatJoinFunction or callable of (left, version) that gives one record.
        is_outer: Whether a left record without a version is joined with None, instead of being left out.
        late_tag: Side output for late left records; None drops and counts them.
    """

    keyed = True

    def __init__(
        self,
        left_keys: KeySelector,
        right_keys: KeySelector,
        function: Any,
        *,
        is_outer: bool = False,
        late_tag: str | None = None,
    ) -> None:
        super().__init__(function, "join")
        self._is_flat = isinstance(function, FlatJoinFunction)
        self._key_selectors = (left_keys, right_keys)
        self._is_outer = is_outer
        self._late_tag = late_tag

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return self._key_selectors

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # A version has many partners: it is copied.
        self._calls = PairCalls(self.function, context, _add_all if self._is_flat else _add_one, (False, True))
        self._watermark = OperatorWatermark.of(context)
        state = context.keyed_state
        self._contents = ElementContents()
        # Left records that wait, per time and key a content of them in order of arrival.
        self._waiting = _ByTime(state.table(StateDescriptor("temporal-join-left"), windowed=True))
        # Versions that begin behind the watermark.
        self._coming = _ByTime(state.table(StateDescriptor("temporal-join-versions"), windowed=True))
        # Key -> (time, version): what is valid at the watermark.
        self._valid = state.table(StateDescriptor("temporal-join-valid-versions")).namespace(None)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        if batch.timestamps is None or int(batch.timestamps.min()) == MIN_TIMESTAMP:
            message = "a temporal join got a record without event time"
            raise ProgramError(message, hint="call assign_timestamps_and_watermarks on both streams")
        if input_index == 0:
            batch = self._without_late(batch)
        assert batch.timestamps is not None
        keys = keys_of(self._key_selectors[input_index], batch, self.context)
        (self._add_versions if input_index else self._add_left)(keys, batch.rows, batch.timestamps.tolist())

    def _without_late(self, batch: Batch) -> Batch:
        assert batch.timestamps is not None
        is_late = batch.timestamps <= self._watermark.current_ms
        num_late = int(is_late.sum())
        if num_late == 0:
            return batch
        self.context.reject_late(num_late, lambda: batch.filter(is_late), self._late_tag)
        return batch.filter(~is_late)

    def _add_left(self, keys: list[Any], rows: list[Any], times: list[int]) -> None:
        runs: dict[tuple[int, Any], list[Any]] = {}
        for key, row, time in zip(keys, rows, times, strict=True):
            runs.setdefault((time, key), []).append(row)
        at, add_run = self._waiting.at, self._contents.add_run
        for (time, key), run in runs.items():
            waiting = at(time)
            waiting[key] = add_run(waiting.get(key, MISSING), run)

    def _add_versions(self, keys: list[Any], rows: list[Any], times: list[int]) -> None:
        watermark_ms, at, take_over = self._watermark.current_ms, self._coming.at, self._take_over
        for key, row, time in zip(keys, rows, times, strict=True):
            if time > watermark_ms:
                at(time)[key] = row
            else:
                take_over(key, time, row)

    def _take_over(self, key: Any, time: int, version: Any) -> None:
        """Make a version the valid one, unless a later one already is."""
        valid = self._valid.get(key)
        if valid is None or valid[0] <= time:
            self._valid[key] = (time, version)

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        is_end = watermark == MAX_WATERMARK
        self._calls.give(self._pairs_at_the_end() if is_end else self._pairs_until(watermark.timestamp_ms))
        self.context.output.emit_watermark(watermark)

    def _pairs_until(self, watermark_ms: int) -> Iterator[Pair]:
        """Let event time go on; gives pairs of left record and version, and forgets what is done."""
        elements = self._contents.elements
        get, none, is_outer = self._valid.get, (MIN_TIMESTAMP, None), self._is_outer
        for time in self._times_until(watermark_ms):
            for key, version in self._coming.take(time):
                self._take_over(key, time, version)
            for key, waiting in self._waiting.take(time):
                begin, version = get(key, none)
                # Later than the record only after a restore that put the watermark back, for a record that was late.
                if begin > time:
                    begin, version = none
                if begin > MIN_TIMESTAMP or is_outer:
                    for left in elements(waiting):
                        yield key, left, version, time

    def _pairs_at_the_end(self) -> Iterator[Pair]:
        """The same for all left records that wait, but versions keep their places.

        A program that is started again from a last checkpoint with more input may get left records of before them.
        """
        elements, is_outer = self._contents.elements, self._is_outer
        valid: dict[Any, tuple[int, Any]] = {}
        for time in sorted({*self._waiting.times, *self._coming.times}):
            valid.update((key, (time, version)) for key, version in self._coming.kept_for(time))
            for key, waiting in self._waiting.take(time):
                begin, version = valid.get(key) or self._valid.get(key, (MIN_TIMESTAMP, None))
                if begin > time:
                    begin, version = MIN_TIMESTAMP, None
                if begin > MIN_TIMESTAMP or is_outer:
                    for left in elements(waiting):
                        yield key, left, version, time

    def _times_until(self, watermark_ms: int) -> Iterator[int]:
        """The times that have something, in order, each once."""
        waiting, coming = self._waiting.queue, self._coming.queue
        while (
            time := min(
                (due for due in (waiting.next_time(), coming.next_time()) if due is not None), default=watermark_ms + 1
            )
        ) <= watermark_ms:
            yield time

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._watermark.snapshot()


def _add_one(given: Any, rows: list[Any], _time: int) -> None:
    rows.append(given)


def _add_all(given: Any, rows: list[Any], _time: int) -> None:
    rows.extend(records_of(given))


class _ByTime:
    """What is kept under exact times: a table whose namespaces are times.

    Args:
        table: Where it is kept.
    """

    __slots__ = ("_mappings", "_table", "queue")

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._mappings: dict[int, MutableMapping[Any, Any]] = {}
        # The times of the table.
        self.queue = DueQueue()
        for namespace in list(table.namespaces()):
            assert namespace is not None
            self.at(namespace[0])

    def at(self, time: int) -> MutableMapping[Any, Any]:
        """Return what is kept for a time, by key."""
        mapping = self._mappings.get(time)
        if mapping is None:
            mapping = self._mappings[time] = self._table.namespace((time, time))
            self.queue.add(time, time)
        return mapping

    @property
    def times(self) -> Iterable[int]:
        """The times that something is kept for."""
        return self._mappings

    def kept_for(self, time: int) -> Iterable[tuple[Any, Any]]:
        """Return what is kept for a time: pairs of key and value."""
        return self._mappings[time].items() if time in self._mappings else ()

    def take(self, time: int) -> list[tuple[Any, Any]]:
        """Remove what is kept for a time, if anything; gives pairs of key and value."""
        mapping = self._mappings.pop(time, None)
        if mapping is None:
            return []
        taken = list(mapping.items())
        self._table.drop((time, time))
        self.queue.remove(time)
        return taken
