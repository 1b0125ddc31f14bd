"""What the checkpoints of a job have come to: counts, the newest ones in full, and figures over many.

Kept by the JobManager, who hears of each one's end; what goes on is known to the CheckpointCoordinator. A later leader
begins anew, as in Flink; the counters of the job's view go on.

Source: Flink's ``CheckpointStatsTracker``, ``CompletedCheckpointStatsSummary`` and ``web.checkpoints.history``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ..protocol.details import CheckpointStatisticsView, CheckpointView, Figures, RestoredCheckpoint
from ..protocol.states import CheckpointStatus

__all__ = ["CheckpointStatistics", "figures"]

HISTORY_LENGTH = 10
"""Ended checkpoints that are kept in full: Flink's ``web.checkpoints.history``."""

SUMMARY_LENGTH = 1_000
"""Complete checkpoints that a summary is of, the newest ones."""

_SUMMED = ("state_bytes", "uploaded_bytes", "persisted_bytes")


class CheckpointStatistics:
    """The ended checkpoints and savepoints of one job under one leader."""

    def __init__(self) -> None:
        self._num_restored = self._num_completed = self._num_failed = 0
        self._history: deque[CheckpointView] = deque(maxlen=HISTORY_LENGTH)
        self._latest_completed: CheckpointView | None = None
        self._latest_savepoint: CheckpointView | None = None
        self._latest_failed: CheckpointView | None = None
        self._restored: RestoredCheckpoint | None = None
        # Of each complete checkpoint the numbers that are summed up, and its duration.
        self._samples: deque[tuple[float, ...]] = deque(maxlen=SUMMARY_LENGTH)

    def ended(self, view: CheckpointView) -> None:
        """Take a checkpoint or savepoint that is complete, or will never be."""
        self._history.appendleft(view)
        if view.status is not CheckpointStatus.COMPLETED:
            self._num_failed += 1
            self._latest_failed = view
            return
        self._num_completed += 1
        if view.is_savepoint:
            self._latest_savepoint = view
        else:
            self._latest_completed = view
        totals = [sum(getattr(task, name) for task in view.tasks) for name in _SUMMED]
        self._samples.append((*totals, view.duration_ms or 0))

    def restored(self, checkpoint: RestoredCheckpoint) -> None:
        """Note what the job goes on from."""
        self._num_restored += 1
        self._restored = checkpoint

    def view(self) -> CheckpointStatisticsView:
        """Everything, for people."""
        names = (*_SUMMED, "duration_ms")
        columns = zip(*self._samples, strict=True) if self._samples else ()
        return CheckpointStatisticsView(
            num_restored=self._num_restored,
            num_completed=self._num_completed,
            num_failed=self._num_failed,
            history=tuple(self._history),
            latest_completed=self._latest_completed,
            latest_savepoint=self._latest_savepoint,
            latest_failed=self._latest_failed,
            restored=self._restored,
            summary={name: figures(column) for name, column in zip(names, columns, strict=False)},
        )


def figures(values: Iterable[float]) -> Figures:
    """Return what some numbers, at least one, come to; percentiles lie between neighbours in proportion."""
    ordered = sorted(values)
    parts = (_percentile(ordered, part) for part in (0.5, 0.9, 0.95, 0.99, 0.999))
    return Figures(ordered[0], ordered[-1], sum(ordered) / len(ordered), *parts)


def _percentile(ordered: Sequence[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
