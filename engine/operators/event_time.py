"""Event time: how watermarks are made and combined. Timestamps are made in `headrace.engine.functions.timestamps`.

A `WatermarkStrategy` is the user's description. In a source each split, elsewhere each operator subtask, makes an
`EventTimeTracker` of it, which gives records their event times and says how far event time has come. How watermarks of
several inputs are joined is in `headrace.engine.operators.watermark_valve`. All of it is pure: the clock's readings are
arguments.

Invariants: what a tracker or an `OperatorWatermark` says never goes back, not even over a restore (the operator's
watermark is part of its snapshot), so a record is late or not for good.

Source: Flink's ``WatermarkStrategy``, ``BoundedOutOfOrdernessWatermarks``, ``WatermarksWithIdleness`` (with the
pausable clock of its later versions); FLIP-182 for alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.state.keyed.contract import OperatorStateBackend
from headrace.state.keys.key_groups import KeyGroupRange

from ..columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps
from ..errors import ConfigurationError, ProgramError
from ..functions.event_time_parts import WatermarkPart
from ..functions.life import refuse_life
from ..functions.timestamps import SECONDS_WARNING, TimestampExtractor, are_like_seconds, extractor_of
from ..kernel.config import parse_duration_ms

if TYPE_CHECKING:
    from ..functions.operator import OperatorContext

__all__ = [
    "WATERMARK_INTERVAL_MS",
    "EventTimeProgress",
    "EventTimeTracker",
    "OperatorWatermark",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "of_own_keys",
]

WATERMARK_INTERVAL_MS = 200
"""How often generators that go by the clock are asked: Flink's default ``pipeline.auto-watermark-interval``."""

# ----------------------------------------------------------------------------------------------------------- watermarks


class WatermarkGenerator:
    """Says how far event time has come, from the event times it sees. Subclasses override what they need.

    Contract:
        * One generator sees the records of one split (or subtask) in order (*asserted* by its owner).
        * What it returns may go back; its owner keeps the highest (*asserted*).
    """

    interval_ms: int | None = WATERMARK_INTERVAL_MS
    """How often ``on_periodic_emit`` is called, milliseconds; None for never."""

    def on_event(self, value: Any, timestamp: int) -> int | None:
        """Look at a record that passes. For generators that look at records; takes time for each.

        Returns:
            The watermark it allows, or None for no news.
        """
        return None

    def on_batch(self, timestamps: Timestamps, batch: Batch) -> int | None:
        """Look at a batch that passes.

        The watermark it allows follows the batch. By default asks ``on_event`` about each record.
        """
        found = [self.on_event(row, time) for row, time in zip(batch.rows, timestamps.tolist(), strict=True)]
        return max((time for time in found if time is not None), default=None)

    def on_periodic_emit(self, now_ms: int) -> int | None:
        """Return the watermark that is allowed as processing time goes on, or None."""
        return None

    def snapshot(self) -> Any:
        """Return what to go on from after a restore; JSON-able."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from what ``snapshot`` gave."""


class _NoWatermarks(WatermarkGenerator):
    """For processing time."""

    interval_ms = None

    def on_batch(self, timestamps: Timestamps, batch: Batch) -> int | None:
        return None


class _OnlyTheEnd(_NoWatermarks):
    """For batches with event time."""


class _BoundedOutOfOrderness(WatermarkGenerator):
    """Records come at most ``bound_ms`` later than the latest seen so far."""

    interval_ms = None

    def __init__(self, bound_ms: int) -> None:
        self._bound_ms = bound_ms
        self._max_ms = MIN_TIMESTAMP

    def on_batch(self, timestamps: Timestamps, batch: Batch) -> int | None:
        self._max_ms = max(self._max_ms, int(timestamps.max()))
        # One less than the bound: another record of the very same time may still come.
        return None if self._max_ms == MIN_TIMESTAMP else self._max_ms - self._bound_ms - 1

    def snapshot(self) -> Any:
        return self._max_ms

    def restore(self, state: Any) -> None:
        self._max_ms = int(state)


class _IngestionTime(WatermarkGenerator):
    """Event time is the clock's, so it goes on without records too."""

    def on_batch(self, timestamps: Timestamps, batch: Batch) -> int | None:
        return int(timestamps.max()) - 1

    def on_periodic_emit(self, now_ms: int) -> int | None:
        return now_ms - 1


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """How far a source may run ahead of the others of its group; see `headrace.engine.job.sources.watermark_alignment`.

    Attributes:
        group: Sources of one job with the same name wait for each other.
        max_drift_ms: How far, in event time, a split may be ahead of the group's lowest watermark.
        update_interval_ms: How often a subtask tells where it is and hears how far it may go, in processing time.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """How records get event times and how watermarks follow from them. A value: every ``with_`` gives a new one.

    Make it with one of the ``for_`` methods or `no_watermarks`.

    Attributes:
        generator: Makes the generator of one split or subtask.
        assigner: Reads event times; None keeps those that the source has given.
        idle_timeout_ms: After this long without a record an input is idle and holds no other back; None for never.
        is_ingestion_time: Whether event time is the time of arrival.
        quiet_advance_ms: After this long without a record the watermark goes on with the clock; None for never.
        alignment: Which sources wait for each other; None for no waiting.
    """

    generator: Callable[[], WatermarkGenerator]
    assigner: TimestampExtractor | None = None
    idle_timeout_ms: int | None = None
    is_ingestion_time: bool = False
    quiet_advance_ms: int | None = None
    alignment: WatermarkAlignment | None = None

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: Any) -> WatermarkStrategy:
        """Expect records at most ``max_out_of_orderness`` late: the watermark is the latest time less that less 1 ms.

        Args:
            max_out_of_orderness: A duration as in `parse_duration_ms`, 0 or more.

        Raises:
            ConfigurationError: If it is not a duration, or negative.
        """
        bound_ms = parse_duration_ms(max_out_of_orderness)
        if bound_ms < 0:
            message = f"max_out_of_orderness must not be negative; got {max_out_of_orderness!r}"
            raise ConfigurationError(message)
        return cls(_Bounded(bound_ms))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Expect event times of one split never to go back; several records may share one."""
        return cls(_Bounded(0))

    @classmethod
    def for_ingestion_time(cls) -> WatermarkStrategy:
        """Take the time when a record comes in here for its event time: ingestion time."""
        return cls(_IngestionTime, None, None, True)

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Let event time never go on: for programs in processing time."""
        return cls(_NoWatermarks)

    @classmethod
    def for_generator(cls, factory: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Make watermarks by a generator of one's own.

        Args:
            factory: Makes one generator; called per split, or per subtask outside of sources. Picklable.
        """
        refuse_life(factory, "a watermark generator", "a generator has state by its snapshot and restore")
        return cls(factory)

    def with_timestamp_assigner(self, assigner: Any) -> WatermarkStrategy:
        """Read event times from the records.

        Args:
            assigner: A field's name; an expression over columns; a function of (record, timestamp so far) or of the
                record alone; or an object with ``extract_timestamp``. Gives int epoch milliseconds or a datetime (UTC
                if naive). A record that has no timestamp so far is handed ``-2**63``.

        Raises:
            ProgramError: If it is none of these.
        """
        return replace(self, assigner=extractor_of(assigner))

    def with_idleness(self, idle_timeout: Any) -> WatermarkStrategy:
        """Mark an input as idle when no record has come for this long in processing time.

        Others go on without it. A subtask of an unbounded source that waits for a split as long is idle, too.

        Raises:
            ConfigurationError: If it is not a duration, or not positive.
        """
        timeout_ms = parse_duration_ms(idle_timeout)
        if timeout_ms <= 0:
            message = f"idle_timeout must be positive; got {idle_timeout!r}"
            raise ConfigurationError(message)
        return replace(self, idle_timeout_ms=timeout_ms)

    def with_quiet_advance(self, after: Any) -> WatermarkStrategy:
        """Let the clock carry event time on while nothing comes, so that the last windows close by themselves.

        Once no record has come for ``after``, an input's watermark rises by as much as the clock goes on: it is where
        it was at the last record, plus the time since, less ``after``. So every window closes at the latest ``after``
        behind its end by the clock, without a dummy record. An input that never had a record has no watermark to go
        on from. Idleness (`with_idleness`) lets *other* inputs go on without this one; this lets it go on itself, and
        works for a program's only input. Time in which the input could not be read (backpressure, alignment) does not
        count as quiet.

        Results are no longer a function of the records alone: a record that comes later than ``after`` behind its
        time is late, also if it is the first one for an hour, and a program that is run again over the same input may
        close other windows early. Use it where event times are close to the clock's, with an ``after`` well above
        the usual delay; a failure of the job itself never makes a watermark go back.

        Args:
            after: How long it must be quiet first, a positive duration in processing time.

        Raises:
            ConfigurationError: If it is not a duration, or not positive.
        """
        after_ms = parse_duration_ms(after)
        if after_ms <= 0:
            message = f"after must be positive; got {after!r}"
            raise ConfigurationError(message)
        return replace(self, quiet_advance_ms=after_ms)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Any, update_interval: Any = 1_000
    ) -> WatermarkStrategy:
        """Let sources of one group wait for each other, so that none runs far ahead and fills the state of joins.

        A split whose watermark is more than the drift above the group's lowest is not read until that has risen; a
        reader that cannot leave out single splits waits as a whole. Idle and ended sources, and those without a record
        or without a split yet, hold no other back. Results are the same with and without. Only for strategies given to
        ``from_source``.

        Args:
            watermark_group: Name of the group within the job; sources of several kinds may share it.
            max_allowed_watermark_drift: A duration in event time, 0 or more.
            update_interval: How often positions are compared, a positive duration in processing time.

        Raises:
            ConfigurationError: If the group has no name, or a duration is none or out of its range.

        Source:
            FLIP-182, FLIP-217.
        """
        if not watermark_group or not isinstance(watermark_group, str):
            message = f"watermark_group must be a name; got {watermark_group!r}"
            raise ConfigurationError(message)
        drift_ms, interval_ms = parse_duration_ms(max_allowed_watermark_drift), parse_duration_ms(update_interval)
        if drift_ms < 0:
            message = f"max_allowed_watermark_drift must not be negative; got {max_allowed_watermark_drift!r}"
            raise ConfigurationError(message)
        if interval_ms <= 0:
            message = f"update_interval must be positive; got {update_interval!r}"
            raise ConfigurationError(message)
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift_ms, interval_ms))

    def in_batch(self) -> WatermarkStrategy:
        """Return the same event times, and no watermark but the end: nothing is late, and none waits for another."""
        generator = self.generator if self.generator is _NoWatermarks else _OnlyTheEnd
        return replace(self, generator=generator, idle_timeout_ms=None, quiet_advance_ms=None, alignment=None)

    def create_generator(self) -> WatermarkGenerator:
        """Return a generator for one split or subtask."""
        return self.generator()

    def extract(self, batch: Batch, now_ms: int = MIN_TIMESTAMP) -> Timestamps | None:
        """Return the event times of a batch.

        Args:
            batch: The records.
            now_ms: The clock's reading: event time under ingestion time.

        Returns:
            One per record; None if there are none, which only `no_watermarks` puts up with.

        Raises:
            TypeMismatchError: If a record has no time, or one of a wrong type.
            UserFunctionError: If the user's function fails.
        """
        if self.is_ingestion_time:
            return np.full(batch.num_rows, now_ms, dtype=np.int64)
        return batch.timestamps if self.assigner is None else self.assigner.extract(batch)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Makes generators; a class, not a closure, so that plans print and pickle well."""

    bound_ms: int

    def __call__(self) -> WatermarkGenerator:
        return _BoundedOutOfOrderness(self.bound_ms)


class EventTimeTracker:
    """Event times, watermark and idleness of one split, or of all input of one operator subtask.

    Silence (for idleness, and for `WatermarkStrategy.with_quiet_advance`) counts processing time in which its owner
    could have taken a record but there was none: a check adds no more than half the shortest timeout, so a task that
    did not run for long (backpressure, a stopped process) does not declare its waiting input idle, and time on `hold`
    does not count.

    Args:
        strategy: What to do.
        now_ms: The clock's reading: silence counts from here.
        warn: Told in a sentence if the first event times look wrong; None to tell nothing.
    """

    __slots__ = (
        "_check_interval_ms",
        "_generator",
        "_last_check_ms",
        "_most_silence_ms",
        "_next_check_ms",
        "_now_ms",
        "_quiet_from_ms",
        "_silent_ms",
        "_strategy",
        "_warn",
        "is_idle",
        "risen_ms",
        "watermark_ms",
    )

    def __init__(self, strategy: WatermarkStrategy, now_ms: int, warn: Callable[[str], None] | None = None) -> None:
        self._strategy = strategy
        # Told once, at the first records; None after that.
        self._warn = warn
        self._generator = strategy.create_generator()
        # The highest reading of the clock: ingestion time does not go back when the clock does.
        self._now_ms = now_ms
        # Processing time without a record, as far as it counts; and how much of it one check may add.
        self._silent_ms = 0
        timeouts = [time for time in (strategy.idle_timeout_ms, strategy.quiet_advance_ms) if time is not None]
        self._most_silence_ms = max(1, -(-min(timeouts) // 2)) if timeouts else 0
        # How often `on_time` wants to be called; None for never.
        self._check_interval_ms: int | None = None
        intervals = [time for time in (self._generator.interval_ms, self._most_silence_ms or None) if time is not None]
        if strategy.quiet_advance_ms is not None:
            intervals.append(WATERMARK_INTERVAL_MS)
        if intervals:
            self._check_interval_ms = max(1, min(intervals))
        self._last_check_ms = now_ms
        self._next_check_ms = None if self._check_interval_ms is None else now_ms + self._check_interval_ms
        # The highest watermark so far; `MIN_TIMESTAMP` before the first. And the one at the last record: the clock
        # carries it on from there.
        self.watermark_ms = MIN_TIMESTAMP
        self._quiet_from_ms = MIN_TIMESTAMP
        # When it rose last, by the clock.
        self.risen_ms = now_ms
        # Whether nothing has come for longer than the timeout.
        self.is_idle = False

    @property
    def wants_time(self) -> bool:
        """Whether `on_time` has anything to do."""
        return self._check_interval_ms is not None

    def take(self, batch: Batch, now_ms: int) -> Batch:
        """Give a batch its event times and move the watermark; the batch goes out before the watermark does.

        Raises:
            ProgramError: If the records have no event times.
            TypeMismatchError, UserFunctionError: As `WatermarkStrategy.extract`.
        """
        if batch.num_rows == 0:
            return batch
        self.is_idle = False
        self._silent_ms = 0
        self._last_check_ms = now_ms
        self._now_ms = max(self._now_ms, now_ms)
        timestamps = self._strategy.extract(batch, self._now_ms)
        if timestamps is None:
            if self._strategy.generator is _NoWatermarks:
                return batch
            message = "records have no event time and the watermark strategy has no timestamp assigner"
            raise ProgramError(message, hint="Add with_timestamp_assigner(...) to the strategy.")
        if self._warn is not None:
            if are_like_seconds(timestamps):
                self._warn(SECONDS_WARNING)
            self._warn = None
        timed = batch if timestamps is batch.timestamps else batch.with_timestamps(timestamps)
        self._raise_watermark(self._generator.on_batch(timestamps, timed), now_ms)
        self._quiet_from_ms = self.watermark_ms
        return timed

    def advance(self, watermark_ms: int) -> None:
        """Take a watermark that the source itself knows; the higher one counts."""
        # Only the end of the split is the end of time.
        self._raise_watermark(min(watermark_ms, MAX_TIMESTAMP - 1), self._last_check_ms)
        self._quiet_from_ms = self.watermark_ms

    def hold(self, now_ms: int) -> None:
        """Count this time not as silence: the input is not being read although there may be some."""
        self._last_check_ms = now_ms

    def next_time(self) -> int | None:
        """When `on_time` wants to be called, epoch milliseconds; None for never."""
        return self._next_check_ms

    def on_time(self, now_ms: int) -> None:
        """Ask the generator, judge idleness, go on with the clock if quiet; called at `next_time` of the clock."""
        interval = self._check_interval_ms
        if interval is None or self._next_check_ms is None or now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + interval
        self._now_ms = max(self._now_ms, now_ms)
        if self._generator.interval_ms is not None:
            self._raise_watermark(self._generator.on_periodic_emit(self._now_ms), now_ms)
        if not self._most_silence_ms:
            return
        self._silent_ms += max(0, min(now_ms - self._last_check_ms, self._most_silence_ms))
        self._last_check_ms = now_ms
        idle_after, quiet_after = self._strategy.idle_timeout_ms, self._strategy.quiet_advance_ms
        is_carried = quiet_after is not None and self._silent_ms > quiet_after
        if quiet_after is not None and is_carried and self._quiet_from_ms != MIN_TIMESTAMP:
            carried_ms = self._quiet_from_ms + self._silent_ms - quiet_after
            self._raise_watermark(min(carried_ms, MAX_TIMESTAMP - 1), now_ms)
        else:
            is_carried = False
        if idle_after is not None:  # what the clock carries on has a watermark to give, and is not idle
            self.is_idle = self._silent_ms >= idle_after and not is_carried

    def _raise_watermark(self, candidate_ms: int | None, now_ms: int) -> None:
        if candidate_ms is not None and candidate_ms > self.watermark_ms:
            self.watermark_ms = candidate_ms
            self.risen_ms = now_ms

    def as_part(self, name: str, *, is_held: bool = False) -> WatermarkPart:
        """Return where event time is in it, for people."""
        known_ms = None if self.watermark_ms == MIN_TIMESTAMP else self.watermark_ms
        return WatermarkPart(name, known_ms, self.risen_ms, self.is_idle, is_held)

    def snapshot(self) -> Any:
        """Return what to go on from after a restore; JSON-able."""
        return {"watermark_ms": self.watermark_ms, "generator": self._generator.snapshot()}

    def restore(self, state: Any) -> None:
        """Go on from what `snapshot` gave."""
        self.watermark_ms = self._quiet_from_ms = max(self.watermark_ms, int(state["watermark_ms"]))
        # The clock may be another one, which is behind: what comes now is not late for that.
        self._now_ms = max(self._now_ms, self.watermark_ms + 1)
        if state["generator"] is not None:
            self._generator.restore(state["generator"])


_Reached = TypeVar("_Reached")


def of_own_keys(
    stored: Iterable[tuple[int, int, _Reached]], key_groups: KeyGroupRange, max_parallelism: int
) -> list[_Reached]:
    """Return what those old subtasks have stored that had keys of this one.

    If there were another number of key groups then, which only state without keys survives, it is unknown whose keys
    are whose: it is what all of them have stored.

    Args:
        stored: First and last key group of each old subtask, and what it has stored; of all of them.
        key_groups: The subtask's own.
        max_parallelism: How many key groups there are now.
    """
    entries = list(stored)
    if max((last for _, last, _ in entries), default=-1) + 1 != max_parallelism:
        return [reached for _, _, reached in entries]
    return [reached for first, last, reached in entries if key_groups.overlaps(first, last)]


class EventTimeProgress:
    """How far event time is in one operator subtask, and how far of that is kept in snapshots.

    The end of event time is not kept: what it closed is gone from the state, and a program that is started again from a
    last checkpoint with more input would find all of it late.

    Args:
        restored: The watermarks that were kept, of those old subtasks that had keys of this one: the lowest counts.
            They differ where barriers overtook watermarks. The end, which old checkpoints may hold, is none.

    Attributes:
        current_ms: The watermark; `MIN_TIMESTAMP` before the first.
        kept_ms: What a snapshot holds: the last watermark before the end.
    """

    __slots__ = ("current_ms", "kept_ms")

    def __init__(self, restored: Iterable[int] = ()) -> None:
        known = [time if time < MAX_TIMESTAMP else MIN_TIMESTAMP for time in restored]
        self.current_ms = self.kept_ms = min(known, default=MIN_TIMESTAMP)

    def advance(self, watermark_ms: int) -> bool:
        """Take a watermark; False if it is no progress."""
        if watermark_ms <= self.current_ms:
            return False
        self.current_ms = watermark_ms
        if watermark_ms < MAX_TIMESTAMP:
            self.kept_ms = watermark_ms
        return True


class OperatorWatermark(EventTimeProgress):
    """How far event time is in one operator subtask; part of its snapshot.

    Args:
        operator_state: Where it is kept, as union list state ``watermark``.
        key_groups: The subtask's own.
        max_parallelism: How many key groups there are.
        starts_anew: Whether what was kept says nothing about the input that comes now: see
            `headrace.engine.functions.operator.OperatorContext.starts_event_time_anew`.
    """

    __slots__ = ("_handle", "_key_groups")

    def __init__(
        self,
        operator_state: OperatorStateBackend,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        starts_anew: bool = False,
    ) -> None:
        self._handle = operator_state.union_list_state("watermark")
        self._key_groups = key_groups
        stored = [] if starts_anew else [(first, last, time) for time, first, last in self._handle.get()]
        super().__init__(of_own_keys(stored, key_groups, max_parallelism))

    @classmethod
    def of(cls, context: OperatorContext) -> OperatorWatermark:
        """Return that of an operator which is being opened."""
        keyed = context.keyed_state
        return cls(
            context.operator_state,
            keyed.key_groups,
            keyed.max_parallelism,
            starts_anew=context.starts_event_time_anew,
        )

    def snapshot(self) -> None:
        """Put it in operator state."""
        self._handle.update([(self.kept_ms, *self._key_groups)])
