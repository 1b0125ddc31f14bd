"""The operator that drives a source's reader: splits in, timed batches and watermarks out.

It decides when another split is wanted, gives records their event times, joins the watermarks of the splits it reads
and tells when the source has ended; it knows neither how splits are found nor how requests travel. Each split has an
event-time tracker of its own and the subtask's watermark is the lowest of them, so that reading two files or partitions
side by side makes nothing late.

Between two splits a subtask stays active and its watermark stands still: were it idle, other subtasks could run ahead
and make the next split's records late. A subtask of an unbounded source may wait for ever; it becomes idle if the
strategy has an idleness (`WatermarkStrategy.with_idleness`) and it has waited for so long. Splits that are all idle
leave the watermark where it is.

Under watermark alignment splits above the group's limit are not read: single ones if the reader can leave them out,
else the subtask waits until its slowest split may go on. Waiting is neither idleness nor silence: the splits' clocks
stand still. Everything else (barriers, split requests, the end) goes on as ever. A source that was told to stop reads
nothing more; under ``drain`` it also ends, as if its input had, but its splits and positions stay in its state.

Invariant: state ``splits`` holds, per split, the position behind the last record emitted and the tracker's state at
that record.

Source: Flink's ``SourceOperator`` and ``ProgressiveTimestampsAndWatermarks``; FLIP-27, FLIP-180, FLIP-182, FLIP-217.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from headrace.state.keyed.contract import ListStateHandle

from ..columns.records import MAX_WATERMARK, MIN_TIMESTAMP, Batch, StreamStatus, Watermark
from ..columns.rejected_records import BAD
from ..errors import InternalError, ProgramError
from ..functions.checkpointed import attach
from ..functions.event_time_parts import WatermarkPart
from ..functions.operator import Operator, OperatorContext
from ..functions.steps import WithheldWatermark
from ..functions.timers import DueQueue
from ..operators.event_time import EventTimeTracker, WatermarkStrategy
from ..operators.watermark_valve import CombinedWatermarkStatus
from .contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitFinished,
)
from .source_protocols import check_reader

__all__ = ["DEAD_LETTER_TAG", "PollResult", "SourceOperator"]

DEAD_LETTER_TAG = "dead-letter"
"""Side output of input that cannot be decoded, under the policy of that name."""

EMIT_LAG, WATERMARK_LAG, SOURCE_IDLE_TIME = "current_emit_event_time_lag", "watermark_lag", "source_idle_time"
"""Gauges of FLIP-33, in milliseconds: how far the last record's event time and the watermark are behind the clock, and
how long nothing was emitted.
"""

DEFAULT_POLL_MS = 20
"""How soon a reader that has nothing and names no time is asked again."""

REPEAT_REPORT_MS = 1_000
"""How soon a report to the alignment group that has not been answered is repeated, at the earliest."""


class PollResult(Enum):
    """What a poll has found."""

    MORE = "more"
    """Records or progress; poll again at once."""
    NOTHING = "nothing"
    """Nothing now; poll again at ``next_poll_ms``, or when a split has come."""
    ENDED = "ended"
    """No record will ever follow; the end of event time has been emitted."""


class SourceOperator(Operator):
    """The head of a source's chain; polled by its task instead of fed.

    A bounded split is asked for when the reader has none, or is a `SideBySideReader` that wants another one. Splits
    without end come by themselves, as many as there are: for these a request is always under way, with how many splits
    the reader has.

    Args:
        source: What to read.
        watermark_strategy: Event times and watermarks.
    """

    requests_split = True
    face = "as given"

    def __init__(self, source: Source, watermark_strategy: WatermarkStrategy) -> None:
        self.source = source
        self.watermark_strategy = watermark_strategy
        # Made in `open`; None before, so that `close` after a failed start has nothing to do.
        self._reader: SourceReader | None = None
        # Split id -> its event time, for every split that the reader has and has not finished.
        self._trackers: dict[str, EventTimeTracker] = {}
        self._combined = CombinedWatermarkStatus()
        # Split ids by when their trackers want to be called. A reader may have thousands of splits, and most of them
        # have nothing to do at a poll.
        self._checks = DueQueue()
        # Whether strange event times have been told: once, however many splits have them.
        self._has_warned = False
        # Splits that have come and brought no record yet; and whether one was told of that began too late.
        self._unread: set[str] = set()
        self._has_told_of_late = False
        # What was emitted last, so that only changes are emitted.
        self._emitted_ms = MIN_TIMESTAMP
        self._is_idle = False
        # When records were emitted last.
        self._emitted_at_ms = 0
        # Those of them that end.
        self._bounded: set[str] = set()
        # Splits were asked for and none has come: whether a bounded one was, too. None if they were not.
        self._requested: bool | None = None
        # How many splits were read then.
        self._num_told = 0
        # None will come any more.
        self._has_no_more = False
        # Since when there has been no split; None while there is one.
        self._waiting_since_ms: int | None = None
        self._has_ended = False
        # How it was told to stop reading: None not at all, False where it is, True as if its input ended there.
        self._drains: bool | None = None
        # Alignment: how far splits may go, by the answer to report number so-and-so; how many reports there were and
        # when the last one was made.
        self._alignment = watermark_strategy.alignment
        self._limit_ms = MIN_TIMESTAMP
        self._answered_report = self._num_reports = 0
        self._reported_ms = MIN_TIMESTAMP
        # The first of the reports, up to the newest, that all named a watermark: older answers are to a subtask that
        # did not count. None if the newest did not.
        self._counts_since_report: int | None = None
        # Splits that the reader was told to leave out; and whether none may be read.
        self._paused: frozenset[str] = frozenset()
        self._is_held = False
        self._pause_splits: Callable[[frozenset[str]], None] | None = None

    # -------------------------------------------------------------------------------------------------------- lifecycle
    def open(self, context: OperatorContext) -> None:
        """Make the reader and give it the restored splits."""
        super().open(context)
        if context.is_batch:
            self.watermark_strategy = self.watermark_strategy.in_batch()
            self._alignment = None
        self._state: ListStateHandle = context.operator_state.list_state("splits")
        reader = self.source.create_reader()
        check_reader(reader, context.name)
        self._reader = reader
        attach(reader, context, None)
        reader.open(
            ReaderContext(
                operator_name=context.name,
                subtask=context.subtask,
                parallelism=context.parallelism,
                now_ms=context.now_ms,
                metrics=context.metrics,
                emit_dead_letter=self._emit_dead_letter,
                attempt=context.attempt,
                send_source_event=context.send_source_event,
                checkpointing=context.checkpointing,
                warn=context.warn,
                note_skipped=self._note_skipped,
            )
        )
        self._snapshot_for = getattr(reader, "snapshot_for", None) or (lambda _checkpoint_id: reader.snapshot())
        self._pause_splits = getattr(reader, "pause_splits", None)
        self._withheld = WithheldWatermark(context.step)
        now_ms = self._emitted_at_ms = context.now_ms()
        context.metrics.gauge(SOURCE_IDLE_TIME, lambda: max(context.now_ms() - self._emitted_at_ms, 0))
        splits: list[Split] = []
        for element in self._state.get():
            stored = element["split"]
            split = Split(stored["split_id"], stored["payload"], stored["position"])
            splits.append(split)
            tracker = self._track(split.split_id, now_ms, is_bounded=stored.get("is_bounded"))
            tracker.restore(element["event_time"])
        for split_id, tracker in self._trackers.items():
            self._combined.update(split_id, tracker.watermark_ms)
        self._combined.combine()
        if splits:
            reader.add_splits(splits)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Put the splits, with positions and event time, in operator state."""
        elements = []
        self._opened()
        for split in self._snapshot_for(checkpoint_id):
            stored = {"split_id": split.split_id, "payload": split.payload, "position": split.position}
            stored["is_bounded"] = split.split_id in self._bounded
            tracker = self._trackers.get(split.split_id)
            if tracker is None:
                message = "a reader's snapshot holds a split that it was not given or has finished"
                raise InternalError(message, split=split.split_id)
            elements.append({"split": stored, "event_time": tracker.snapshot()})
        self._state.update(elements)

    def close(self) -> None:
        """Close the reader, if there is one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # ----------------------------------------------------------------------------------------------------------- splits
    @property
    def wants_split(self) -> bool:
        """Whether to ask the enumerator for a split now; also again as there is time for a bounded one now, as all are
        finished of which it was told, or as some of them are only kept.
        """
        if self._has_no_more or self._drains is not None:
            return False
        if self._requested:
            num_read = self._num_read
            return num_read < self._num_told and (num_read == 0 or num_read < len(self._trackers))
        return self._is_hungry or (self._requested is None and not self.source.is_bounded)

    @property
    def _is_hungry(self) -> bool:
        return not self._bounded or bool(getattr(self._reader, "wants_split", False))

    @property
    def _num_read(self) -> int:
        """How many splits are read, without those that have ended and are kept."""
        return len(self._trackers) - int(getattr(self._reader, "num_kept", 0))

    @property
    def is_waiting_for_split(self) -> bool:
        """Whether nothing can be read before a split comes, or ever because the source was stopped."""
        return self._drains is not None or (not self._trackers and not self._has_no_more)

    def split_requested(self) -> tuple[int, bool]:
        """Note that the task asks for a split; gives how many are read, and whether a bounded one would be."""
        self._requested = self._is_hungry
        self._num_told = self._num_read
        return self._num_told, self._requested

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take splits, the answer to a request."""
        self._requested = None
        for split in splits:
            self._track(split.split_id, self.context.now_ms(), is_bounded=split.is_bounded)
            self._unread.add(split.split_id)
        self._opened().add_splits(list(splits))

    def handle_source_event(self, event: Any) -> None:
        """Hand the reader an event of its enumerator.

        Raises:
            ProgramError: If the reader does not listen.
        """
        handle = getattr(self._opened(), "handle_source_event", None)
        if handle is None:
            message = f"the enumerator sends events, and {type(self._reader).__name__} has no handle_source_event"
            raise ProgramError(message)
        handle(event)

    def no_more_splits(self) -> None:
        """Take the answer to a request that no split is left, and none will come."""
        self._requested = None
        self._has_no_more = True

    def stop(self, *, drain: bool) -> None:
        """Read nothing more, from the next poll on; the first word counts.

        Args:
            drain: Whether to end then as if the input had; else nothing more is emitted at all.
        """
        if self._drains is None:
            self._drains = drain

    # ---------------------------------------------------------------------------------------------------------- polling
    def poll_next(self, max_records: int) -> PollResult:
        """Emit the next batch, if there is one, and what event time has become.

        Args:
            max_records: About how many records to read at most.

        Raises:
            SourceError: If the source cannot be read.
            MalformedRecordError: If a record cannot be decoded and the policy is to fail.
            UserError: If records get no event times.
        """
        if self._drains is not None:
            return self._end() if self._drains else PollResult.NOTHING
        now_ms = self.context.now_ms()
        if not self._trackers:
            return self._poll_without_split(now_ms)
        if self._alignment is not None:
            self._hold_back(now_ms)
            if self._is_held:
                self._check_time(now_ms)
                self._emit_watermark()
                return PollResult.NOTHING
        polled = self._opened().poll(max_records)
        for index, part in enumerate(polled if isinstance(polled, list) else (polled,)):
            if isinstance(part, Polled):
                self.context.step.has_read(part.batch, max_records, goes_on=index > 0)
            self._take(part, now_ms)
        self._check_time(now_ms)
        self._emit_watermark()
        return PollResult.NOTHING if polled is NOTHING_NOW else PollResult.MORE

    def _take(self, polled: Any, now_ms: int) -> None:
        """Emit what a poll gave of one split, and see what event time it is there."""
        if isinstance(polled, Polled):
            tracker = self._trackers[polled.split_id]
            batch = tracker.take(polled.batch, now_ms)
            self._combined.set_idle(polled.split_id, tracker.is_idle)
            self._update_status(self._combined.is_idle)
            if batch.num_rows:
                self.context.metrics.count("num_records_in", batch.num_rows)  # read, as in FLIP-33
                self._withheld.add(batch.num_rows)
                self._note_emission(batch, now_ms)
                if polled.split_id in self._unread:
                    self._judge_first(polled.split_id, batch)
                self.context.output.emit(batch)
            if polled.watermark_ms is not None and not self.context.is_batch:
                self.context.step.is_cut = False  # it stands where the source has put it
                tracker.advance(polled.watermark_ms)
            self._combined.update(polled.split_id, tracker.watermark_ms)
        elif isinstance(polled, SplitFinished):
            self._forget(polled.split_id)
        elif polled is ALL_SPLITS_FINISHED:
            for split_id in list(self._trackers):
                self._forget(split_id)

    def _note_emission(self, batch: Batch, now_ms: int) -> None:
        """Say when records were emitted last, and how far behind its event time the last one was."""
        self._emitted_at_ms = now_ms
        if batch.timestamps is not None:
            self.context.metrics.gauge(EMIT_LAG, float(now_ms - int(batch.timestamps[-1])))

    def _judge_first(self, split_id: str, batch: Batch) -> None:
        """Tell of a split that begins behind event time: splits are read one after another, and it came too late.

        The operators behind decide about its records; windows drop them. A split that was not handed out yet
        holds no event time, as nobody knows where it begins.
        """
        self._unread.discard(split_id)
        if self._has_told_of_late or batch.timestamps is None or self.context.is_batch:
            return
        last_ms = int(batch.timestamps.max())
        if last_ms <= self._emitted_ms:
            self._has_told_of_late = True
            self.context.warn(
                f"split {split_id!r} begins {self._emitted_ms - last_ms} ms behind event time, where splits that were"
                " read before have brought it: its records are late, and windows drop those (num_late_records_dropped)."
                " Read bounded input in batch mode, with as many readers as splits, or with a larger out-of-orderness"
            )

    def _watermark_lag(self) -> float:
        has_ended = self._emitted_ms >= MAX_WATERMARK.timestamp_ms
        return 0.0 if has_ended else float(self.context.now_ms() - self._emitted_ms)

    def next_poll_ms(self) -> int | None:
        """After NOTHING: when to poll again at the latest, epoch milliseconds; None: when a split has come."""
        if self._drains is not None:
            return None
        times: list[int] = []
        if self._alignment is not None:
            times.append(self._report_due_ms)
        if self._trackers:
            if not self._is_held:
                due = self._opened().next_poll_ms()
                times.append(self.context.now_ms() + DEFAULT_POLL_MS if due is None else due)
            check_ms = self._checks.next_time()
            if check_ms is not None:
                times.append(check_ms)
        elif not self._is_idle and (idle_ms := self._idle_without_split_ms) is not None:
            times.append(idle_ms)
        return min(times, default=None)

    def _poll_without_split(self, now_ms: int) -> PollResult:
        if not self._has_no_more:
            if self._waiting_since_ms is None:
                self._waiting_since_ms = now_ms
            idle_ms = self._idle_without_split_ms
            if idle_ms is not None and now_ms >= idle_ms:
                self._update_status(True)
            return PollResult.NOTHING
        return self._end()

    @property
    def _idle_without_split_ms(self) -> int | None:
        """When waiting for a split makes the subtask idle; None for never."""
        timeout_ms, since_ms = self.watermark_strategy.idle_timeout_ms, self._waiting_since_ms
        if timeout_ms is None or since_ms is None or self.source.is_bounded:
            return None
        return since_ms + timeout_ms

    def _end(self) -> PollResult:
        if not self._has_ended:
            self._has_ended = True
            self._update_status(False)
            self._emitted_ms = MAX_WATERMARK.timestamp_ms
            self.context.output.emit_watermark(MAX_WATERMARK)
        return PollResult.ENDED

    def watermark_parts(self) -> list[WatermarkPart]:
        return [
            tracker.as_part(split_id, is_held=split_id in self._paused or self._is_held)
            for split_id, tracker in self._trackers.items()
        ]

    # -------------------------------------------------------------------------------------------------------- alignment
    def take_watermark_report(self, now_ms: int) -> tuple[int, int | None] | None:
        """Return what to report to the alignment group now, if anything.

        Returns:
            The report's number, and the lowest watermark of the splits that count, None if there is none. Or None if
            the source is in no group, or no report is due: one is with each interval, and with the first watermark.
        """
        if self._alignment is None:
            return None
        active = [t.watermark_ms for t in self._trackers.values() if not t.is_idle and t.watermark_ms != MIN_TIMESTAMP]
        counts_anew = bool(active) and self._counts_since_report is None
        if now_ms < self._report_due_ms and not counts_anew:
            return None
        self._reported_ms = now_ms
        self._num_reports += 1
        if not active:
            self._counts_since_report = None
            return self._num_reports, None
        if self._counts_since_report is None:
            self._counts_since_report = self._num_reports
        return self._num_reports, min(active)

    @property
    def _report_due_ms(self) -> int:
        """When to report again: an interval after the last report, longer as long as that has not been answered.

        Links deliver in order whatever gets lost: more reports than a slow one carries would queue up in front of
        everything else that the task has to tell. It is repeated in the end, as the JobManager does not answer a task
        that it does not take for running yet.
        """
        assert self._alignment is not None
        interval_ms = self._alignment.update_interval_ms
        is_answered = self._answered_report == self._num_reports
        return self._reported_ms + (interval_ms if is_answered else max(REPEAT_REPORT_MS, 10 * interval_ms))

    def limit_watermark(self, number: int, limit_ms: int) -> bool:
        """Take the group's answer to report ``number``.

        Returns:
            Whether it is news: an answer that is no newer than the last is not.
        """
        if number <= self._answered_report:
            return False
        self._answered_report = number
        self._limit_ms = limit_ms
        return True

    def _hold_back(self, now_ms: int) -> None:
        """See which splits are above the limit; before it is known, those that have a watermark are. Never idle ones:
        a record is what would make them count again.
        """
        since = self._counts_since_report
        limit_ms = MIN_TIMESTAMP if since is None or self._answered_report < since else self._limit_ms
        active = {split_id: t.watermark_ms for split_id, t in self._trackers.items() if not t.is_idle}
        ahead = frozenset(split_id for split_id, watermark_ms in active.items() if watermark_ms > limit_ms)
        if self._pause_splits is None:
            # All or none: as long as the slowest may go on, the others come along.
            ahead = frozenset(self._trackers) if ahead and len(ahead) == len(active) else frozenset()
        elif ahead != self._paused:
            self._pause_splits(ahead)
        self._paused = ahead
        self._is_held = len(ahead) == len(self._trackers)
        for split_id in ahead:
            self._trackers[split_id].hold(now_ms)

    def _forget(self, split_id: str) -> None:
        del self._trackers[split_id]
        self._bounded.discard(split_id)
        self._unread.discard(split_id)
        self._combined.remove(split_id)
        self._checks.remove(split_id)

    def _track(self, split_id: str, now_ms: int, *, is_bounded: bool | None) -> EventTimeTracker:
        if split_id in self._trackers:
            message = "a split was handed out twice"
            raise InternalError(message, split=split_id)
        tracker = self._trackers[split_id] = EventTimeTracker(self.watermark_strategy, now_ms, self._warn_once)
        self._combined.add(split_id)
        self._plan_check(split_id)
        if self.source.is_bounded if is_bounded is None else is_bounded:
            self._bounded.add(split_id)
        self._waiting_since_ms = None
        return tracker

    def _warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self.context.warn(sentence)

    def _check_time(self, now_ms: int) -> None:
        """Let clock-driven watermarks and idleness of the splits go on."""
        while (split_id := self._checks.first_due(now_ms)) is not None:
            tracker = self._trackers[split_id]
            tracker.on_time(now_ms)
            self._checks.remove(split_id)
            self._plan_check(split_id)
            self._combined.set_idle(split_id, tracker.is_idle)
            self._combined.update(split_id, tracker.watermark_ms)
        if self._trackers:
            self._update_status(self._combined.is_idle)

    def _plan_check(self, split_id: str) -> None:
        check_ms = self._trackers[split_id].next_time()
        if check_ms is not None:
            self._checks.add(check_ms, split_id)

    def _update_status(self, is_idle: bool) -> None:
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            self.context.output.emit_status(StreamStatus(is_idle))

    def _emit_watermark(self) -> None:
        self._combined.combine()
        watermark_ms = self._combined.watermark_ms
        if watermark_ms > self._emitted_ms and not self._withheld.waits(self.context.now_ms()):
            if self._emitted_ms == MIN_TIMESTAMP:
                self.context.metrics.gauge(WATERMARK_LAG, self._watermark_lag)
            self._emitted_ms = watermark_ms
            self.context.output.emit_watermark(Watermark(watermark_ms))

    def _emit_dead_letter(self, batch: Batch) -> None:
        self._note_skipped(lambda: batch)
        self.context.output.emit_side(DEAD_LETTER_TAG, batch)

    def _note_skipped(self, letters: Callable[[], Batch]) -> None:
        if self.context.rejected is not None:
            self.context.rejected.keep(BAD, letters())

    def _opened(self) -> SourceReader:
        if self._reader is None:
            message = "the source's reader is not open"
            raise InternalError(message)
        return self._reader
