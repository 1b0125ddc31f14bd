"""Watermark alignment: sources of one group wait for each other instead of running far ahead in event time.

Every source subtask of a group tells the JobManager, once per update interval, how far its slowest split is, and hears
in return how far any split may go: the lowest watermark of the group plus the drift its strategy allows. A subtask does
not read splits beyond that limit. Before it has heard a limit it reads until it has a watermark and no further, so no
source can run away in its first interval. A report and its answer are one round trip, numbered and repeated with every
interval: a lost one is made good by the next, a doubled or late one is recognised by its number.

Who counts: subtasks that have a split with a watermark and are not idle. A subtask that waits for a split, whose splits
are all idle or have given no record yet, or that has ended, holds no other back. The subtask with the lowest watermark
is never above the limit, so one of the group can always go on, whatever splits are still unassigned; and what is not
read is a matter of speed alone: alignment never changes a result.

Not known here: messages' ways, tasks, clocks. The JobManager has checked that a report comes from a current attempt.

Source: FLIP-182 and FLIP-217; Flink's ``SourceCoordinator.WatermarkAggregator``. There limits are broadcast by a timer
of the coordinator; here each subtask fetches its own, which needs no timer and is never later.
"""

from __future__ import annotations

from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ...columns.records import MAX_TIMESTAMP
from ...graph.job_graph import JobGraph
from ...operators.event_time import WatermarkAlignment
from ...protocol.task_messages import ReportWatermark, WatermarkLimit

__all__ = ["AlignmentCoordinator", "WatermarkAligner"]


class WatermarkAligner:
    """The members of one group and where they are."""

    def __init__(self) -> None:
        # Newest watermark of each member that counts.
        self._watermarks: dict[tuple[ExecutionAttemptId, OperatorId], int] = {}

    def reported(self, attempt: ExecutionAttemptId, operator: OperatorId, watermark_ms: int | None) -> None:
        """Note that a member is at ``watermark_ms``; None: it holds no other back."""
        if watermark_ms is None or watermark_ms >= MAX_TIMESTAMP:
            self._watermarks.pop((attempt, operator), None)
        else:
            self._watermarks[(attempt, operator)] = watermark_ms

    def ended(self, attempt: ExecutionAttemptId) -> None:
        """Note that a member will read no more."""
        for member in [member for member in self._watermarks if member[0] == attempt]:
            del self._watermarks[member]

    def limit_ms(self, max_drift_ms: int) -> int:
        """Return how far splits may go under a drift: beyond any event time if none holds another back."""
        lowest = min(self._watermarks.values(), default=MAX_TIMESTAMP)
        return min(lowest + max_drift_ms, MAX_TIMESTAMP)


class AlignmentCoordinator:
    """All groups of one job, within its JobManager.

    Args:
        job_graph: The job; sources whose strategy names a group are its members.
    """

    def __init__(self, job_graph: JobGraph) -> None:
        self._members: dict[OperatorId, WatermarkAlignment] = {}
        for vertex in job_graph.vertices.values():
            for node in vertex.chain:
                alignment = getattr(getattr(node.operator, "watermark_strategy", None), "alignment", None)
                if node.operator.requests_split and alignment is not None:
                    self._members[OperatorId(node.uid)] = alignment
        self._groups: dict[str, WatermarkAligner] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a deployment, in which no source has said anything yet."""
        self._groups = {alignment.group: WatermarkAligner() for alignment in self._members.values()}

    def reported(self, report: ReportWatermark) -> WatermarkLimit | None:
        """Take a subtask's word.

        Returns:
            The answer; None if its source is in no group.
        """
        alignment = self._members.get(report.operator)
        if alignment is None:
            return None
        group = self._groups[alignment.group]
        group.reported(report.attempt, report.operator, report.watermark_ms)
        limit_ms = group.limit_ms(alignment.max_drift_ms)
        return WatermarkLimit(report.attempt, report.operator, report.number, limit_ms)

    def ended(self, attempt: ExecutionAttemptId) -> None:
        """Forget a task that has processed all its data, or is gone."""
        for group in self._groups.values():
            group.ended(attempt)
