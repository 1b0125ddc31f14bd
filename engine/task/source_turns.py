"""A source at the head of a task: when it is asked for records, what it asks of its enumerator, what it is told.

Source: Flink's ``SourceOperatorStreamTask``.
"""

from __future__ import annotations

from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ..columns.records import LatencyMarker
from ..connectors.sources import PollResult, SourceOperator
from ..functions.steps import StepMeter
from ..kernel.config import JobSettings
from ..protocol.task_messages import NextInputSplit, ReportWatermark, RequestNextInputSplit, WatermarkLimit
from .chain import ChainLink
from .outbox import TaskOutbox

__all__ = ["SourceTurns"]

DEFAULT_POLL_MS = 20
"""A source that has nothing now and names no time is asked again after this long."""


class SourceTurns:
    """The source of one task.

    Args:
        head: The head of the chain, whose operator it is.
        attempt: The task's.
        settings: The job's.
        meter: Says how much to read at once.
        outbox: Takes messages to the JobManager.
    """

    def __init__(
        self,
        head: ChainLink,
        attempt: ExecutionAttemptId,
        settings: JobSettings,
        meter: StepMeter,
        outbox: TaskOutbox,
    ) -> None:
        assert isinstance(head.operator, SourceOperator)
        self._source = head.operator
        self._head = head
        self._attempt = attempt
        self._settings = settings
        self._meter = meter
        self._outbox = outbox
        # There is nothing to poll before this time; None: before something happens.
        self.poll_again_ms: int | None = 0
        # Number of the last split request.
        self._split_nonce = 0
        # When the next latency marker is due.
        self._next_marker_ms = 0

    # --------------------------------------------------------------------------------------------------------- messages
    def take_split(self, answer: NextInputSplit) -> None:
        """Take the answer to a split request; answers to earlier requests are ignored."""
        if answer.nonce != self._split_nonce:
            return
        self._split_nonce += 1  # a doubled answer is an old one
        if answer.no_more:
            self._source.no_more_splits()
        else:
            self._head.call(self._source.add_splits, answer.splits)
        self.poll_again_ms = 0

    def take_event(self, event: Any) -> None:
        """Take what the source's enumerator tells."""
        self._head.call(self._source.handle_source_event, event)
        self.poll_again_ms = 0

    def stop(self, *, drain: bool) -> None:
        """Read no more."""
        self._source.stop(drain=drain)
        self.poll_again_ms = 0

    def limit_watermark(self, limit: WatermarkLimit) -> None:
        """Take the answer to a report of the source's watermark."""
        if self._source.limit_watermark(limit.number, limit.limit_ms):
            self.poll_again_ms = 0

    # ----------------------------------------------------------------------------------------------------------- turns
    def poll(self, now_ms: int) -> bool:
        """Ask the source for records, once, and send what it wants to know; gives whether its input has ended."""
        source = self._source
        self._emit_marker(now_ms)
        result = self._head.call(source.poll_next, self._meter.rows_to_read(self._settings.max_batch_rows))
        self._meter.took()
        if result is PollResult.ENDED:
            return True
        if result is PollResult.MORE:
            self.poll_again_ms = 0
        elif source.is_waiting_for_split:
            self.poll_again_ms = source.next_poll_ms()
        else:
            due_ms = source.next_poll_ms()
            self.poll_again_ms = now_ms + DEFAULT_POLL_MS if due_ms is None else due_ms
        operator = OperatorId(self._head.uid)
        if source.wants_split:
            num_splits, is_hungry = source.split_requested()
            request = RequestNextInputSplit(self._attempt, operator, self._split_nonce, num_splits, is_hungry)
            self._outbox.tell_job_manager(request)
        report = source.take_watermark_report(now_ms)
        if report is not None:
            self._outbox.tell_job_manager(ReportWatermark(self._attempt, operator, *report))
        return False

    def _emit_marker(self, now_ms: int) -> None:
        interval_ms = self._settings.latency_interval_ms
        if interval_ms and now_ms >= self._next_marker_ms:
            self._next_marker_ms = now_ms + interval_ms
            self._head.output.emit_marker(LatencyMarker(now_ms, self._head.name, self._attempt.subtask))
