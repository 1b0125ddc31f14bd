"""Sources that make their records up: numbered, resumable at any number, and at a chosen rate.

A `GeneratorSource` is a function of the record's number. The numbers are dealt out over splits in chunks, round robin,
so that all splits advance through them side by side; a split's position is how many of its numbers it has produced. As
a record depends on nothing but its number, every restart and every parallelism gives the same records.

`RateLimitedSource` slows any other source down. Rates are kept with the injected clock: at each poll as many records
are due as the time since the first poll allows, less what was given. A reader that was held up catches up on at most
one second's worth.

Source: Flink's ``DataGeneratorSource``, ``NumberSequenceSource`` and ``RateLimitedSourceReader``.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import MAX_TIMESTAMP, Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    TypeMismatchError,
    UserFunctionError,
    raise_from_outside,
)
from headrace.engine.functions.checkpointed import Wrapper
from headrace.engine.functions.life import refuse_life
from headrace.engine.functions.timers import DueQueue
from headrace.state.type_variables import OUT

from ..arguments.data_types import Types, schema_of

__all__ = ["GeneratorSource", "RateLimitedSource", "number_sequence"]

EMIT_INTERVAL_MS = 5
"""A rate-limited reader is asked at most this often: 200 batches a second are few enough to cost nothing and hide in no
latency."""

CATCH_UP_MS = 1_000
"""How far a rate-limited reader may fall behind and still make up for it."""


MAX_BATCH_ROWS = 65_536
"""A task reads no more at once by default."""


class _RatePace:
    """How many records are due, at a steady rate."""

    def __init__(self, records_per_second: float, now_ms: Callable[[], int]) -> None:
        self._per_ms = records_per_second / 1_000
        self._now_ms = now_ms
        # The rate is kept from `_since_ms` on, counting `_given` records; both are moved together when falling too far
        # behind.
        self._since_ms: float | None = None
        self._given = 0

    def due(self) -> int:
        """Records that may be given now; the first one is due at once."""
        now = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now
        behind_ms = now - self._since_ms - self._given / self._per_ms
        if behind_ms > CATCH_UP_MS:
            self._since_ms += behind_ms - CATCH_UP_MS
        return max(0, int((now - self._since_ms) * self._per_ms + 1e-6) + 1 - self._given)

    def give(self, count: int) -> None:
        self._given += count

    def due_ms(self) -> int:
        """Return when the next record is due, 0 for the first one."""
        return 0 if self._since_ms is None else math.ceil(self._since_ms + self._given / self._per_ms)

    def next_ms(self) -> int:
        """Return when to ask again: when the next record is due, but not before the emit interval has passed."""
        now = self._now_ms()
        return max(now + EMIT_INTERVAL_MS if self._per_ms * EMIT_INTERVAL_MS > 1 else now + 1, self.due_ms())


def _check_rate(records_per_second: float | None) -> None:
    if records_per_second is not None and not records_per_second > 0:
        message = f"records_per_second must be above 0; got {records_per_second}"
        raise ConfigurationError(message)


class GeneratorSource(Source[OUT]):
    """Makes record number i by calling ``function(i)``, for i from 0 on.

    Args:
        function: Gives the record of a number; called once per record, in the slot. Must depend on nothing but the
            number, else a restart gives other records than the first run.
        count: How many records in all; None for a stream without end.
        records_per_second: Rate of the whole source, over all its splits; None for as fast as possible.
        number_of_splits: How many parts can be read in parallel; None for the source's parallelism when the job first
            starts.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    def __init__(
        self,
        function: Callable[[int], OUT],
        count: int | None = None,
        records_per_second: float | None = None,
        *,
        number_of_splits: int | None = None,
    ) -> None:
        if count is not None and count < 0:
            message = f"count must not be negative; got {count}"
            raise ConfigurationError(message)
        if number_of_splits is not None and number_of_splits < 1:
            message = f"number_of_splits must be at least 1; got {number_of_splits}"
            raise ConfigurationError(message)
        _check_rate(records_per_second)
        self._function: Callable[..., Any] = function
        self._count = count
        self._rate = records_per_second
        self._number_of_splits = number_of_splits
        # Consecutive numbers of one split; 1 for functions of one number, so that splits interleave as finely as
        # possible.
        self._chunk = 1
        self._is_batch = False
        self.is_bounded = count is not None

    @classmethod
    def batches(
        cls,
        function: Callable[[int, int], pa.RecordBatch | Batch],
        count: int | None = None,
        records_per_second: float | None = None,
        *,
        number_of_splits: int | None = None,
        batch_size: int | None = None,
    ) -> GeneratorSource[Any]:
        """Make records by the batch: ``function(start, n)`` gives numbers ``start`` to ``start + n - 1``.

        Args:
            function: Gives a record batch of exactly n rows (or a `Batch`, to set event times); depends on nothing but
                its arguments.
            count: As in the constructor.
            records_per_second: As in the constructor.
            number_of_splits: As in the constructor.
            batch_size: n at most; also how many consecutive numbers belong to one split before it is the next split's
                turn. None for 65,536, or with a rate for what comes in 50 ms.

        Raises:
            ConfigurationError: If a number is out of its range.
        """
        if batch_size is not None and batch_size < 1:
            message = f"batch_size must be at least 1; got {batch_size}"
            raise ConfigurationError(message)
        source = cls(
            cast("Callable[[int], Any]", function), count, records_per_second, number_of_splits=number_of_splits
        )
        source._function = function
        if batch_size is None:
            batch_size = MAX_BATCH_ROWS if records_per_second is None else int(records_per_second / 20)
            batch_size = max(1, min(batch_size, MAX_BATCH_ROWS))
        source._chunk = batch_size
        source._is_batch = True
        return source

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Deal the numbers out over the splits."""
        return _GeneratorEnumerator(self._number_of_splits or context.parallelism, self._chunk, self._count)

    def create_reader(self) -> SourceReader:
        """Make a reader of one or several splits."""
        return _GeneratorReader(self._function, self._is_batch, self._count, self._rate)


def number_sequence(first: int, last: int, parallelism: int) -> GeneratorSource[int]:
    """Return the whole numbers from one to another, both included.

    Args:
        first: The first.
        last: The last.
        parallelism: How many readers there are likely to be: each should have several turns.

    Raises:
        ConfigurationError: If there is no number between them, or one has more than 64 bits.
    """
    for name, number in (("first", first), ("last", last)):
        if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63:
            message = f"the {name} number of a sequence must be a whole number of 64 bits; got {number!r}"
            raise ConfigurationError(message)
    if first > last:
        message = f"a sequence must not end before it begins; got {first} to {last}"
        raise ConfigurationError(message)
    count, schema = last - first + 1, schema_of(Types.LONG())

    def numbers(start: int, length: int) -> pa.RecordBatch:
        low = first + start
        values = np.arange(length, dtype=np.int64) + np.int64(low)
        return pa.RecordBatch.from_arrays([pa.array(values)], schema=schema)

    turns = max(1, min(MAX_BATCH_ROWS, count // (4 * parallelism)))
    return GeneratorSource.batches(numbers, count, batch_size=turns)


class _GeneratorEnumerator:
    discovery_interval_ms: int | None = None

    def __init__(self, number_of_splits: int, chunk: int, count: int | None) -> None:
        self._number_of_splits = number_of_splits
        self._chunk = chunk
        self._count = count

    def discover(self) -> Discovery:
        n = self._number_of_splits
        payload = {"of": n, "chunk": self._chunk, "count": self._count}
        # All advance through the same numbers: one that waited for the end of another would be behind in event time.
        splits = [Split(f"{i}/{n}", {"index": i, **payload}, is_bounded=False) for i in range(n)]
        return Discovery(splits, is_final=True)


class _OpenRange:
    """The numbers of one split that are still to come."""

    __slots__ = ("chunk", "done", "index", "number", "of", "pace", "split")

    def __init__(self, split: Split, number: int, rate: float | None, now_ms: Callable[[], int]) -> None:
        self.split = split
        # In the order in which the reader got its splits.
        self.number = number
        self.index: int = split.payload["index"]
        self.of: int = split.payload["of"]
        self.chunk: int = split.payload["chunk"]
        self.done: int = split.position or 0
        self.pace = None if rate is None else _RatePace(rate / self.of, now_ms)

    def next_run(self, wanted: int, count: int | None) -> tuple[int, int]:
        """Return the next consecutive numbers: first one and how many; none when the split is finished."""
        turn, offset = divmod(self.done, self.chunk)
        start = (turn * self.of + self.index) * self.chunk + offset
        length = min(wanted, self.chunk - offset)
        if count is not None:
            length = min(length, max(0, count - start))
        return start, length


class _GeneratorReader:
    """Reads one or several splits, turn about, so that none waits for the end of another that never ends.

    With a rate each split has its own, and the turn is that of the one whose next record has been due for longest. No
    poll looks at all splits, of which there may be thousands.
    """

    def __init__(self, function: Callable[..., Any], is_batch: bool, count: int | None, rate: float | None) -> None:
        self._function = function
        self._is_batch = is_batch
        self._count = count
        self._rate = rate
        self._splits: dict[int, _OpenRange] = {}
        self._num_added = 0
        # Numbers of the splits that may be read, by when they have their turn: with a rate the time of the next record,
        # else a count of turns.
        self._turns = DueQueue()
        self._num_turns = 0
        # Splits held back by watermark alignment.
        self._paused: frozenset[str] = frozenset()

    def open(self, context: ReaderContext) -> None:
        self._context = context

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._check(split)
            self._num_added += 1
            added = _OpenRange(split, self._num_added, self._rate, self._context.now_ms)
            self._splits[added.number] = added
            self._line_up(added)

    def _check(self, split: Split) -> None:
        """Make sure that a restored split can be gone on with by this source.

        Raises:
            CheckpointMismatchError: If it counts further than the splits that may have finished before, or gives
                batches where single values were given.
        """
        count = split.payload.get("count", self._count)
        if count != self._count and count is not None and (self._count is None or self._count > count):
            message = f"the generator was begun with count={count} and has count={self._count}"
            hint = "splits that have finished would give nothing more: begin a new source, with another uid"
            raise CheckpointMismatchError(message, hint=hint, split=split.split_id)
        if not self._is_batch and split.payload["chunk"] != 1:
            message = "the generator was begun with a function of batches, and has one of single numbers"
            raise CheckpointMismatchError(message, split=split.split_id)

    def pause_splits(self, split_ids: frozenset[str]) -> None:
        """Read these splits no further until told otherwise."""
        changed = self._paused ^ split_ids
        self._paused = split_ids
        for each in self._splits.values():
            if each.split.split_id in changed:
                self._turns.remove(each.number)
                self._line_up(each)

    def _line_up(self, each: _OpenRange) -> None:
        """Give a split its next turn, unless it is held back; one that has come to its end is told of at once."""
        if each.split.split_id in self._paused:
            return
        turn = 0
        if each.pace is None:
            self._num_turns += 1
            turn = self._num_turns
        elif not self._is_finished(each):
            turn = each.pace.due_ms()
        self._turns.add(turn, each.number)

    def _is_finished(self, each: _OpenRange) -> bool:
        return each.next_run(1, self._count)[1] == 0

    def poll(self, max_records: int) -> Any:
        if not self._splits:
            return ALL_SPLITS_FINISHED
        number = self._turns.first_due(self._num_turns if self._rate is None else self._context.now_ms())
        if number is None:
            return NOTHING_NOW
        self._turns.remove(number)
        current = self._splits[number]
        if self._is_finished(current):
            del self._splits[number]
            return SplitFinished(current.split.split_id)
        # Its time has come: rounding may say that nothing is due yet.
        wanted = max_records if current.pace is None else min(max_records, max(current.pace.due(), 1))
        batch = self._make_batch(current, wanted) if self._is_batch else self._make_rows(current, wanted)
        current.done += batch.num_rows
        if current.pace is not None:
            current.pace.give(batch.num_rows)
        self._line_up(current)
        return Polled(current.split.split_id, batch)

    def next_poll_ms(self) -> int | None:
        number = self._turns.first_due(MAX_TIMESTAMP)
        pace = None if number is None else self._splits[number].pace
        return None if pace is None else pace.next_ms()

    def snapshot(self) -> list[Split]:
        return [Split(s.split.split_id, s.split.payload, s.done) for s in self._splits.values()]

    def close(self) -> None:
        self._splits = {}

    def _make_rows(self, current: _OpenRange, wanted: int) -> Batch:
        start, _ = current.next_run(1, self._count)
        stop = start + wanted * current.of
        if self._count is not None:
            stop = min(stop, self._count)
        function = self._function
        try:
            return Batch.of_rows([function(i) for i in range(start, stop, current.of)])
        except BaseException as error:
            raise_from_outside(error)
            message = f"the generator's function raised {error!r}"
            raise UserFunctionError(
                message,
                split=current.split.split_id,
                position=f"{start} to {stop - 1}",
                traceback=traceback.format_exc(),
            ) from error

    def _make_batch(self, current: _OpenRange, wanted: int) -> Batch:
        start, length = current.next_run(wanted, self._count)
        try:
            made = self._function(start, length)
        except BaseException as error:
            raise_from_outside(error)
            message = f"the generator's function raised {error!r}"
            raise UserFunctionError(
                message, split=current.split.split_id, position=start, traceback=traceback.format_exc()
            ) from error
        batch = Batch.of_columns(made) if isinstance(made, pa.RecordBatch) else made
        if not isinstance(batch, Batch) or batch.num_rows != length:
            got = f"{batch.num_rows} rows" if isinstance(batch, Batch) else type(made).__name__
            message = f"the generator's function must give a record batch of {length} rows; got {got}"
            raise TypeMismatchError(message, split=current.split.split_id, position=start)
        return batch


class RateLimitedSource(Source[OUT]):
    """Another source, slowed down to a rate.

    Args:
        source: Any source.
        records_per_second: Rate of all subtasks together; each gives its even share.

    Raises:
        ConfigurationError: If the rate is not above 0.
    """

    def __init__(self, source: Source[OUT], records_per_second: float) -> None:
        _check_rate(records_per_second)
        refuse_life(source, "a source", "its reader may have state and hear of checkpoints")
        self._source = source
        self._rate = records_per_second
        self.is_bounded = source.is_bounded

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return the wrapped source's own."""
        return self._source.create_enumerator(context)

    def create_reader(self) -> SourceReader:
        """Return the wrapped source's reader behind a brake."""
        return cast("SourceReader", _RateLimitedReader(self._source.create_reader(), self._rate))


class _RateLimitedReader(Wrapper):
    """Another reader behind a brake. What a reader may have beside its contract is that one's own."""

    def __init__(self, reader: SourceReader, rate: float) -> None:
        self.wrapped_function = reader
        self._rate = rate
        self._is_early = False

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped_function":  # not there yet: it is being unpickled
            raise AttributeError(name)
        return getattr(self.wrapped_function, name)

    def open(self, context: ReaderContext) -> None:
        self._pace = _RatePace(self._rate / context.parallelism, context.now_ms)
        self.wrapped_function.open(context)

    def poll(self, max_records: int) -> Any:
        due = self._pace.due()
        self._is_early = due == 0
        if self._is_early:
            return NOTHING_NOW
        polled = self.wrapped_function.poll(min(max_records, due))
        for part in polled if isinstance(polled, list) else (polled,):
            if isinstance(part, Polled):
                self._pace.give(part.batch.num_rows)
        return polled

    def next_poll_ms(self) -> int | None:
        return self._pace.next_ms() if self._is_early else self.wrapped_function.next_poll_ms()
