"""What the CheckpointCoordinator has deleted: checkpoints that are no longer retained, and what is left of savepoints.

Nothing here is needed for the next checkpoint. What could not be deleted is tried again after the next one that is
complete; a savepoint that was given up is deleted twice: at once, and when no task can write there any more.

Source: Flink's ``CheckpointsCleaner``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..kernel.config import RestoreMode
from ..kernel.event_log import EventLog
from ..kernel.machine import Command, Offload, OffloadCompleted
from ..protocol.messages import SubmitJob
from .io import collect_garbage, discard_savepoint

__all__ = ["CheckpointGarbage", "GarbageCollected", "SavepointDiscarded", "discard"]


@dataclass(frozen=True, slots=True)
class GarbageCollected:
    """Token of an offloaded collection; ``retained`` are the checkpoints that stay."""

    retained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SavepointDiscarded:
    """Token of an offloaded deletion of what is left of a savepoint."""

    root: str


def discard(root: str) -> Offload:
    """Delete what is left of a savepoint, by its folder."""
    return Offload("discard_savepoint", SavepointDiscarded(root), functools.partial(discard_savepoint, root))


class CheckpointGarbage:
    """The garbage of one job.

    Args:
        job: The job.
        log: The coordinator's.
    """

    def __init__(self, job: SubmitJob, log: EventLog) -> None:
        self._job = job
        self._log = log
        # Some is being deleted; more has come up meanwhile.
        self._is_collecting = self._has_more = False
        # Folders of savepoints that were given up under the present deployment: its tasks may still write there.
        self._abandoned: list[str] = []

    def collect(self, epoch: int, retained: tuple[int, ...], bases: frozenset[int]) -> list[Command]:
        """Delete all checkpoints but some, unless that is being done: then once more when it has ended.

        Args:
            epoch: Of the leader.
            retained: The complete checkpoints that stay.
            bases: Those that checkpoints under way build on.
        """
        settings = self._job.settings.checkpoints
        assert settings is not None
        if self._is_collecting:
            self._has_more = True
            return []
        self._is_collecting, self._has_more = True, False
        work = functools.partial(collect_garbage, settings.directory, self._job.job_id, epoch, retained, bases)
        if self._job.settings.restore_mode is RestoreMode.CLAIM and len(retained) >= settings.num_retained:
            work = functools.partial(work, releases_claim=True, key_file=self._job.settings.checkpoint_key_file)
        return [Offload("collect_garbage", GarbageCollected(retained), work)]

    def collected(self, event: OffloadCompleted, now_ms: int) -> bool:
        """Take the end of it; returns whether more has come up meanwhile."""
        self._is_collecting = False
        self._note(event, now_ms)  # no danger: it is tried again after the next checkpoint
        return event.error is None and self._has_more

    def abandon(self, root: str) -> None:
        """Delete what is there of a savepoint once more, in `sweep`."""
        self._abandoned.append(root)

    def sweep(self) -> list[Command]:
        """Delete what tasks have written of savepoints since they were given up: the tasks are gone."""
        roots, self._abandoned = self._abandoned, []
        return list(map(discard, roots))

    def discarded(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """Take the end of the deletion of a savepoint; what stays is none."""
        self._note(event, now_ms)
        return []

    def _note(self, event: OffloadCompleted, now_ms: int) -> None:
        if event.error is not None:
            self._log.add(now_ms, "garbage", f"could not be deleted: {event.error}")
