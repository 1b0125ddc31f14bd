"""Iterations: the head of a loop, what it keeps in a checkpoint, and how it knows that nothing is left in the loop.

A loop is a cycle of the job graph through the feedback edges of exactly one operator, its *head* (`IterationHead`). The
head's input 0 is the stream that was iterated; its feedback channels bring back what the body closed the loop with.
Loops may follow each other, but not be nested or share operators: ``streamgraph`` refuses that.

**No deadlock by backpressure.** A cycle of bounded buffers could fill up and stand still. So the head takes what comes
back whether or not it has credit for its own output, into a backlog without bound, and therefore always gives credit
to the end of the loop. Then every channel of the loop drains as long as what the body sends out of the loop is taken,
which is the ordinary, acyclic case. Memory is bounded by the population of the loop, not by the input: new records are
taken while the backlog is below a bound, and above it one element for each full turn of the backlog, so that neither
input nor barriers starve behind a loop that is always busy.

**Checkpoints of a cycle** (Carbone et al., *Lightweight asynchronous snapshots for distributed dataflows*, 4.3; Flink
never did this). Only regular channels are aligned; feedback channels never block. When barrier n has come on all
regular channels the head's snapshot n is taken and barrier n goes round the body. The records in the loop at n are
those in the backlog at that moment and those that come on a feedback channel before barrier n does: they are the log
of checkpoint n, part of the head's snapshot, and the head's task acknowledges only when n has come back on every
feedback channel. With several subtasks barrier n may come back before a head has taken its snapshot n: what follows it
on that channel is the future of n and must not be processed before the snapshot, so it is set aside (taken off the
channel all the same, hence still no deadlock). With alignment switched off nothing is set aside; records may then be
both in the log and in the effects of others, but none is in neither. On restore the log is emitted first, by whichever
subtask: the same as before at equal parallelism, else dealt out; what keys need, the partitioning behind the head does.

**Event time.** What is in the loop is found with probes (`headrace.engine.task.loop_progress`): a time W such that
nothing in the loop, and nothing that will ever come into it, is at or before W. The head passes W on as its watermark;
those of its feedback do not count. So event time works for what leaves a loop: windows behind it see no record late
because it went round for long. Inside the loop, a window's result comes after the watermark that fired it; the head
processes such late records and counts them (``num_late_feedback_records``).

**The end.** W is the end of event time when all input has ended and the loop is empty. The head sends that watermark:
timers and windows in the body fire, and what they emit may come back and goes round as before. When the loop is then
found empty a second time the head ends. What still comes back, emitted by an operator because its input has ended,
cannot be processed any more: it is refused, and the job fails, rather than lost. With ``max_wait_time`` the head ends
instead when its input has ended and nothing has come back for that long; what comes later is dropped and counted
(``num_feedback_records_dropped``), as in Flink, which knows no other end.

Source: Flink's ``StreamIterationHead``, ``StreamIterationTail``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import SnapshotPart
from headrace.state.reading.arrow_reading import read_arrow_schema, read_arrow_stream

from ..columns.records import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    Batch,
    CheckpointBarrier,
    Element,
    EndOfInput,
    LatencyMarker,
    LoopProbe,
    StreamStatus,
    Watermark,
)
from ..errors import ProgramError
from ..functions.operator import Operator, OperatorContext
from .channels import CutBatch
from .loop_progress import NOTHING_LEFT, ONLY_IDLE, LoopProgress

__all__ = ["IterationHead", "LoopTask"]

WAVE_INTERVAL_MS = 100
"""While input comes: pause between two findings of what is in the loop; it adds to the delay of watermarks."""

QUIET_INTERVAL_MS = 1_000
"""The same where no progress is waiting: other heads may need this one's word."""

LAST_INTERVAL_MS = 5
"""Once input has ended: pause after a finding that the loop is not empty yet."""

_LOG = "iteration-log"


@dataclass(slots=True)
class _Log:
    """What belongs to one checkpoint of the head although it came, or left, after the snapshot."""

    awaited: set[int]
    """Feedback channels on which the barrier has not come back."""
    batches: list[Batch]


@dataclass(slots=True)
class LoopTask:
    """What the head needs of its task; see `IterationHead.join`."""

    channels: Sequence[int]
    """The feedback channels, by index."""
    is_aligned: bool
    """Whether barriers are aligned (exactly-once)."""
    max_backlog_rows: int
    """Above this many records in the backlog new input has to wait."""
    send_probe: Callable[[LoopProbe], None]
    """Sends a probe to the body."""
    end: Callable[[], None]
    """Ends the task's output."""


class IterationHead(Operator):
    """The head of a loop: passes on what comes in and what comes back.

    Its task gives it the elements of feedback channels by `take`, at any time, and lets it emit by `emit_next` when
    there is credit. Everything that goes out, records, watermarks, probes and the end, goes through one queue: what is
    in it keeps its order.

    Args:
        max_wait_ms: Once input has ended: the head ends when nothing has come back for so long, in processing time;
            None ends it when the loop is empty.
    """

    may_change_records = False

    def __init__(self, max_wait_ms: int | None = None) -> None:
        self._max_wait_ms = max_wait_ms

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # What is to be emitted, in order, and the records among it.
        self._backlog: deque[Batch | Watermark | StreamStatus | LoopProbe | EndOfInput] = deque()
        self._backlog_rows = 0
        # Above the bound of the backlog: records to emit before the next element of input 0 is taken.
        self._rows_before_input = 0
        # Elements of feedback channels that must wait for this subtask's next snapshot, by channel; a barrier is first.
        self._set_aside: dict[int, deque[Element]] = {}
        # Logs that wait for barriers, by checkpoint, ascending.
        self._logs: dict[int, _Log] = {}
        # The newest snapshot, or the newest one that was given up before it was taken here.
        self._newest = 0
        self._aborted: set[int] = set()
        # Without alignment: the newest barrier that has come back on each channel.
        self._newest_of_channel: dict[int, int] = {}
        # Input 0 has ended (since when); the end has been put into the backlog; it has been emitted.
        self._input_ended_ms: int | None = None
        self._is_ending = self._has_ended = False
        # Watermark of input 0, the one passed on, and whether the output is said to be idle.
        self._input_watermark_ms = self._released_ms = MIN_TIMESTAMP
        self._is_input_idle = self._is_idle = False
        # When something last came back; when the next finding may begin, and whether the last one changed anything.
        self._last_feedback_ms = context.now_ms()
        self._next_wave_ms = self._quiet_until_ms = context.now_ms()
        state = context.operator_state.union_list_state(_LOG)
        for batch in _own_share(state.get(), context.subtask, context.parallelism):
            self._append(batch)
        state.update([])  # from here on it is in the backlog

    def join(self, task: LoopTask) -> None:
        """Become part of a task. Called once, after `open`, before anything is processed."""
        self._task = task
        self._progress = LoopProgress(task.channels, self.context.parallelism)

    # ------------------------------------------------------------------------------------------------------- input 0
    def process_batch(self, batch: Batch, input_index: int) -> None:
        self._rows_before_input = self._backlog_rows
        self._emit(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        self._input_watermark_ms = watermark.timestamp_ms
        self._input_changed()

    def process_status(self, status: StreamStatus) -> None:
        self._is_input_idle = status.idle
        self._input_changed()

    def end_input(self, input_index: int) -> None:
        self._input_ended_ms = self.context.now_ms()
        self._next_wave_ms = self._quiet_until_ms = self._input_ended_ms
        self._input_changed()
        self._end_after_waiting(self._input_ended_ms)

    @property
    def wants_input(self) -> bool:
        """Whether an element of input 0 may be taken now."""
        return self._backlog_rows < self._task.max_backlog_rows or self._rows_before_input <= 0

    def _input_changed(self) -> None:
        if self._input_ended_ms is not None:
            self._progress.input_ms = NOTHING_LEFT
        elif self._is_input_idle:
            self._progress.input_ms = ONLY_IDLE
        else:
            # The end of event time without the end of input is an idle input that will say no more of it.
            self._progress.input_ms = min(self._input_watermark_ms, ONLY_IDLE)
        self._advance()

    # ------------------------------------------------------------------------------------------------------ feedback
    def take(self, channel: int, element: Element) -> None:
        """Take an element of a feedback channel; never blocks, never emits.

        Raises:
            ProgramError: If it is records and the head has ended for good.
        """
        if isinstance(element, Batch):
            self._last_feedback_ms = self.context.now_ms()
        behind = self._set_aside.get(channel)
        if behind is not None:
            behind.append(element)
        else:
            self._take(channel, element)

    def _take(self, channel: int, element: Element) -> None:
        if isinstance(element, Batch):
            self._take_records(channel, element)
        elif isinstance(element, CheckpointBarrier):
            self._take_barrier(channel, element)
        elif isinstance(element, LoopProbe):
            self._progress.take_probe(channel, element)
            self._advance()
        elif isinstance(element, EndOfInput):
            self._progress.end_channel(channel)
            self._advance()
        # Watermarks, idleness and latency markers have come round: they end here.

    def _take_records(self, channel: int, batch: Batch) -> None:
        if self._is_ending:
            if self._max_wait_ms is None:
                message = f"{batch.num_rows} records came back to the head of an iteration whose loop had ended"
                hint = "an operator in the loop emits when its input ends; take it out of the loop or its output"
                raise ProgramError(message, hint=hint)
            self.context.metrics.count("num_feedback_records_dropped", batch.num_rows)
            return
        times = batch.timestamps
        if times is None or not len(times):
            self._progress.take_records(MIN_TIMESTAMP)
        else:
            self._progress.take_records(max(int(times.min()), MIN_TIMESTAMP + 1) - 1)
            num_late = int(np.count_nonzero(times <= self._released_ms))
            if num_late:
                self.context.metrics.count("num_late_feedback_records", num_late)
        self.context.metrics.count("num_feedback_records", batch.num_rows)
        self._append(batch)
        for log in self._logs.values():
            if channel in log.awaited:
                log.batches.append(batch)

    def _append(self, batch: Batch) -> None:
        self._backlog.append(batch)
        self._backlog_rows += batch.num_rows

    def _take_barrier(self, channel: int, barrier: CheckpointBarrier) -> None:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id > self._newest:
            if checkpoint_id in self._aborted:
                return
            if self._task.is_aligned:
                self._set_aside[channel] = deque([barrier])
            else:
                self._newest_of_channel[channel] = checkpoint_id
            return
        for number, log in list(self._logs.items()):
            if number == checkpoint_id:
                log.awaited.discard(channel)
            elif number < checkpoint_id and channel in log.awaited:
                del self._logs[number]  # it will never come: a task of the loop has given that checkpoint up

    def _release(self, channel: int) -> None:
        """Take what was set aside, up to the next barrier that must wait."""
        behind = self._set_aside.pop(channel)
        while behind:
            self._take(channel, behind.popleft())
            if channel in self._set_aside:
                self._set_aside[channel].extend(behind)
                return

    # ---------------------------------------------------------------------------------------------------- checkpoints
    def snapshot_state(self, checkpoint_id: int) -> None:
        """Begin the log: what is in the backlog belongs to it, and what comes back before the barrier does."""
        self._newest = checkpoint_id
        self._aborted = {number for number in self._aborted if number > checkpoint_id}
        awaited = {c for c in self._task.channels if self._newest_of_channel.get(c, 0) < checkpoint_id}
        batches = [element for element in self._backlog if isinstance(element, Batch)]
        self._logs[checkpoint_id] = _Log(awaited, batches)
        for channel in list(self._set_aside):
            self._release(channel)

    def take_complete_logs(self) -> list[tuple[int, list[SnapshotPart]]]:
        """Return the logs that have become complete, by checkpoint: parts of the head's snapshot."""
        complete = [number for number, log in self._logs.items() if not log.awaited]
        return [(number, self._log_parts(self._logs.pop(number))) for number in complete]

    def _log_parts(self, log: _Log) -> list[SnapshotPart]:
        place = (self.context.subtask, self.context.parallelism)
        backend = HeapOperatorStateBackend(self.context.operator)
        backend.union_list_state(_LOG).update([_logged(batch, *place) for batch in log.batches])
        return backend.snapshot()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._logs.pop(checkpoint_id, None)
        if checkpoint_id <= self._newest:
            return
        self._aborted.add(checkpoint_id)
        for channel, behind in list(self._set_aside.items()):
            barrier = behind[0]
            if isinstance(barrier, CheckpointBarrier) and barrier.checkpoint_id == checkpoint_id:
                self._release(channel)

    # --------------------------------------------------------------------------------------------------------- output
    @property
    def has_backlog(self) -> bool:
        """Whether `emit_next` would do something."""
        return bool(self._backlog)

    def emit_next(self, cut: CutBatch | None = None) -> None:
        """Emit the next element of the backlog, or a piece of it; called only when there is credit.

        Args:
            cut: Says how many records of a batch to emit; None emits all.
        """
        element = self._backlog.popleft()
        if isinstance(element, Batch):
            num_rows = element.num_rows if cut is None else cut(element, 0)
            if num_rows < element.num_rows:
                self._backlog.appendleft(element.slice(num_rows, element.num_rows - num_rows))
                element = element.slice(0, num_rows)
            self._backlog_rows -= element.num_rows
            self._rows_before_input -= element.num_rows
            self._emit(element)
        elif isinstance(element, LoopProbe):
            self._task.send_probe(element)
        elif isinstance(element, Watermark):
            self._set_idle(is_idle=False)
            self.context.output.emit_watermark(element)
        elif isinstance(element, StreamStatus):
            self._set_idle(is_idle=element.idle)
        else:
            self._has_ended = True
            self._task.end()

    def _emit(self, batch: Batch) -> None:
        self._set_idle(is_idle=False)
        self.context.output.emit(batch)

    def _set_idle(self, *, is_idle: bool) -> None:
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            self.context.output.emit_status(StreamStatus(is_idle))

    # -------------------------------------------------------------------------------------------------------- progress
    def holds_records(self) -> bool:
        return False  # its times are those of probes

    def next_processing_time(self) -> int | None:
        if self._is_ending:
            return None
        times: list[int] = []
        if self._input_ended_ms is not None and self._max_wait_ms is not None and not self._is_waiting_pointless:
            times.append(max(self._input_ended_ms, self._last_feedback_ms) + self._max_wait_ms)
        if self._progress.is_between_findings and self._progress.input_ms > MIN_TIMESTAMP:
            if self._is_progress_wanted:
                times.append(self._next_wave_ms)
            elif self._input_ended_ms is None:
                times.append(self._quiet_until_ms)
        return min(times, default=None)

    def on_processing_time(self, now_ms: int) -> None:
        self._end_after_waiting(now_ms)
        self._advance()

    @property
    def _is_progress_wanted(self) -> bool:
        """Whether a finding could let event time, or the end, go on."""
        if self._input_ended_ms is not None:
            return self._max_wait_ms is None or self._released_ms < NOTHING_LEFT
        if self._progress.input_ms == ONLY_IDLE:
            return not self._is_idle
        return self._progress.input_ms > self._released_ms

    def _advance(self) -> None:
        """Close the round that has come back, and begin the next one if it is time."""
        progress = self._progress
        while not self._is_ending:
            if progress.close_round():
                if progress.is_between_findings:
                    self._learn(progress.known_ms)
            elif progress.is_open or not self._may_begin():
                return
            else:
                self._backlog.append(progress.begin_round())

    def _may_begin(self) -> bool:
        progress = self._progress
        if not progress.is_between_findings or progress.is_asked:
            return True
        now_ms = self.context.now_ms()
        if self._is_progress_wanted:
            return now_ms >= self._next_wave_ms
        return self._input_ended_ms is None and progress.input_ms > MIN_TIMESTAMP and now_ms >= self._quiet_until_ms

    def _learn(self, lowest_ms: int) -> None:
        """A finding: nothing in the loop is, or will be, at or before ``lowest_ms``."""
        now_ms = self.context.now_ms()
        self._next_wave_ms = now_ms + WAVE_INTERVAL_MS
        self._quiet_until_ms = now_ms + QUIET_INTERVAL_MS
        if self._input_ended_ms is not None:
            self._next_wave_ms = now_ms + (0 if lowest_ms == NOTHING_LEFT else LAST_INTERVAL_MS)
        if lowest_ms == NOTHING_LEFT and self._released_ms == NOTHING_LEFT:
            if self._max_wait_ms is None:
                self._end()
        elif lowest_ms == ONLY_IDLE:
            self._backlog.append(StreamStatus(idle=True))
        elif lowest_ms > self._released_ms:
            self._released_ms = lowest_ms
            self._backlog.append(Watermark(lowest_ms))
            if lowest_ms == NOTHING_LEFT:
                # What the end of event time lets go may be in the loop from now on.
                self._progress.take_records(MIN_TIMESTAMP)

    def _end_after_waiting(self, now_ms: int) -> None:
        """With a waiting time: end when nothing has come back for so long."""
        if self._input_ended_ms is None or self._max_wait_ms is None or self._is_ending or self._is_waiting_pointless:
            return
        if now_ms >= max(self._input_ended_ms, self._last_feedback_ms) + self._max_wait_ms:
            self._end()

    @property
    def _is_waiting_pointless(self) -> bool:
        """Whether what has come back has yet to be sent on."""
        return self._backlog_rows > 0 or bool(self._set_aside)

    def _end(self) -> None:
        self._is_ending = True
        if self._released_ms < NOTHING_LEFT:
            self._released_ms = NOTHING_LEFT
            self._backlog.append(MAX_WATERMARK)
        self._backlog.append(EndOfInput())

    def process_marker(self, marker: LatencyMarker) -> None:
        self.context.output.emit_marker(marker)


# ---------------------------------------------------------------------------------------------------------- log entries
def _logged(batch: Batch, subtask: int, parallelism: int) -> tuple[Any, ...]:
    """A batch as a value of operator state, with who logged it; the face that came first is kept, and the types."""
    times = None if batch.timestamps is None else batch.timestamps.tobytes()
    if batch.is_of_rows:
        if batch.schema is None:
            return (subtask, parallelism, times, "rows", batch.rows)
        return (subtask, parallelism, times, "typed rows", (batch.rows, batch.schema.serialize().to_pybytes()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.columns.schema) as writer:
        writer.write_batch(batch.columns)
    return (subtask, parallelism, times, "columns", sink.getvalue().to_pybytes())


def _own_share(entries: Sequence[tuple[Any, ...]], subtask: int, parallelism: int) -> list[Batch]:
    """The batches that this subtask emits again: its own, or its share of all at another parallelism."""
    share: list[Batch] = []
    for index, (writer, num_writers, times, kind, payload) in enumerate(entries):
        place = writer if num_writers == parallelism else index % parallelism
        if place != subtask:
            continue
        timestamps = None if times is None else np.frombuffer(times, dtype=np.int64)
        if kind == "rows":
            share.append(Batch.of_rows(list(payload), timestamps))
            continue
        if kind == "typed rows":
            schema = read_arrow_schema(payload[1], "the type of records of a loop")
            share.append(Batch.of_rows(list(payload[0]), timestamps, schema))
            continue
        share += [Batch.of_columns(batch, timestamps) for batch in read_arrow_stream(payload, "records of a loop")[1]]
    return share
