"""Planted bugs of loops: their log, their barrier, and how they end.

They are run by `simulation.mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulation.planted import Mutant, patch, planted_in

from headrace.engine.columns.records import Batch, CheckpointBarrier
from headrace.engine.task import loop_head, loop_progress

LOOP_MUTANTS: dict[str, Mutant] = {}
mutant = planted_in(LOOP_MUTANTS)


@mutant
def loop_log_is_forgotten() -> Iterator[None]:
    """What was in a loop is not in it again after a restore."""
    with patch(loop_head, "_own_share", lambda entries, subtask, parallelism: []):
        yield


@mutant
def loop_is_acknowledged_before_its_log_is_complete() -> Iterator[None]:
    """The head of a loop does not wait until the barrier has come back."""
    original = loop_head.IterationHead.snapshot_state

    def snapshot_state(self: loop_head.IterationHead, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        self._logs[checkpoint_id].awaited.clear()

    with patch(loop_head.IterationHead, "snapshot_state", snapshot_state):
        yield


@mutant
def loop_forgets_its_backlog() -> Iterator[None]:
    """What the head has taken and not sent on is not logged."""
    original = loop_head.IterationHead.snapshot_state

    def snapshot_state(self: loop_head.IterationHead, checkpoint_id: int) -> None:
        backlog, self._backlog = self._backlog, type(self._backlog)()
        original(self, checkpoint_id)
        backlog.extend(self._backlog)
        self._backlog = backlog

    with patch(loop_head.IterationHead, "snapshot_state", snapshot_state):
        yield


@mutant
def loop_logs_what_follows_the_barrier() -> Iterator[None]:
    """Records that come back behind the barrier are logged with those before it."""

    def take_barrier(self: loop_head.IterationHead, channel: int, barrier: CheckpointBarrier) -> None:
        original(self, channel, barrier)
        log = self._logs.get(barrier.checkpoint_id)
        if log is not None and log.awaited:
            log.awaited.add(-1 - channel)  # a mark: behind the barrier here

    def take_records(self: loop_head.IterationHead, channel: int, batch: Any) -> None:
        for log in self._logs.values():
            if -1 - channel in log.awaited and channel not in log.awaited:
                log.batches.append(batch)
        original_records(self, channel, batch)

    def take_complete_logs(self: loop_head.IterationHead) -> Any:
        for log in self._logs.values():
            if all(channel < 0 for channel in log.awaited):
                log.awaited.clear()
        return original_complete(self)

    original = loop_head.IterationHead._take_barrier
    original_records = loop_head.IterationHead._take_records
    original_complete = loop_head.IterationHead.take_complete_logs
    with (
        patch(loop_head.IterationHead, "_take_barrier", take_barrier),
        patch(loop_head.IterationHead, "_take_records", take_records),
        patch(loop_head.IterationHead, "take_complete_logs", take_complete_logs),
    ):
        yield


@mutant
def loop_does_not_set_the_future_aside() -> Iterator[None]:
    """What comes back behind a barrier that the head has yet to take is processed before its snapshot."""
    original = loop_head.IterationHead.join

    def join(self: loop_head.IterationHead, task: loop_head.LoopTask) -> None:
        original(self, replace(task, is_aligned=False))

    with patch(loop_head.IterationHead, "join", join):
        yield


@mutant
def one_clean_round_only() -> Iterator[None]:
    """A head takes the loop for empty when its neighbours have seen nothing for one round."""
    original = loop_progress.LoopProgress.__init__

    def init(self: loop_progress.LoopProgress, channels: Any, num_heads: int) -> None:
        original(self, channels, 1)

    with patch(loop_progress.LoopProgress, "__init__", init):
        yield


@mutant
def loop_forgets_the_rest_of_its_backlog() -> Iterator[None]:
    """A batch that has come back and is emitted in pieces does not belong to the checkpoint any more."""
    original = loop_head.IterationHead.emit_next

    def emit_next(self: loop_head.IterationHead, cut: Any = None) -> None:
        first = self._backlog[0]
        original(self, cut)
        if isinstance(first, Batch) and self._backlog and isinstance(self._backlog[0], Batch):
            rest = self._backlog[0]
            if first.num_rows > rest.num_rows and first.rows[-rest.num_rows :] == rest.rows:
                self._backlog.popleft()
                self._backlog_rows -= rest.num_rows

    with patch(loop_head.IterationHead, "emit_next", emit_next):
        yield
