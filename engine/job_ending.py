"""What a JobManager still has to do once its job has ended: have that recorded, tidy up, stay for its clients, leave.

In this order: the Dispatcher records the end (it is told again and again until it says so); then the slots are given
back, the checkpoints that nobody will restore are deleted, and clients are told; and when none of them is expected
any more, the host stops. Whoever dies half-way through leaves a job that is either not recorded, and is then run on
by a successor that finds everything in place, or recorded, and then the Dispatcher gives its slots back.

Source: Flink's ``JobManagerRunner`` termination and ``CheckpointProperties`` (which checkpoints are discarded when).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from headrace.engine.checkpoint_io import collect_garbage, remove_checkpoints
from headrace.engine.config import RestoreMode
from headrace.engine.execution import JobStatus
from headrace.engine.job_record import JobRecord
from headrace.engine.machine import Address, CancelTimer, Command, Offload, OffloadCompleted, Send, StopHost
from headrace.engine.messages import ReleaseJob, SubmitJob

__all__ = ["JobEnding"]


class JobEnding:
    """The last part of a job's life.

    Args:
        job: The job.
        record: What is known of it.
        resource_manager: Who gets the slots back.
    """

    def __init__(self, job: SubmitJob, record: JobRecord, resource_manager: Address) -> None:
        self._job = job
        self._record = record
        self._resource_manager = resource_manager
        # The Dispatcher has recorded the end.
        self.is_archived = False
        # Checkpoints are being deleted.
        self._is_cleaning = False
        # No client is expected any more.
        self._is_linger_over = False

    def archived(self, epoch: int) -> list[Command]:
        """The end is recorded: give back, delete, tell."""
        if self.is_archived:
            return []
        self.is_archived = True
        self._record.clients.archived()
        release = Send(self._resource_manager, ReleaseJob(self._job.job_id, epoch))
        return [CancelTimer("archive"), release, *self._clean_up(epoch), *self.linger(), *self._leave_if_done()]

    def _clean_up(self, epoch: int) -> list[Command]:
        """Delete what nobody will restore.

        Those are the checkpoints of a finished job, but for the last one if it was stopped, and those of a canceled
        one unless they are to stay.
        """
        checkpoints = self._job.settings.checkpoints
        if checkpoints is None:
            return []
        status = self._record.status
        is_dropped = status is JobStatus.CANCELED and not checkpoints.retain_on_cancellation
        if status is not JobStatus.FINISHED and not is_dropped:
            return []
        self._is_cleaning = True
        directory, job_id, last = checkpoints.directory, self._job.job_id, self._record.last_checkpoint
        # A finished job needs the snapshot that it claimed no more than its own; a canceled one leaves it where it is.
        owns = self._job.settings.restore_mode is RestoreMode.CLAIM and status is JobStatus.FINISHED
        work: Callable[[], object] = functools.partial(remove_checkpoints, directory, job_id, releases_claim=owns)
        if status is JobStatus.FINISHED and self._record.stopping is not None and last is not None:
            work = functools.partial(collect_garbage, directory, job_id, epoch, (last,), releases_claim=owns)
        return [Offload("remove_checkpoints", None, work)]

    def cleaned(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """The deletion has ended."""
        self._is_cleaning = False
        if event.error is not None:
            self._record.note(now_ms, f"could not delete the job's checkpoints: {event.error}")
        return self._leave_if_done()

    def linger(self) -> list[Command]:
        """A client has asked, or may ask now: stay for a while."""
        return self._record.clients.linger(has_reports=not self._record.reports.is_empty)

    def leave(self) -> list[Command]:
        """No client is expected any more: stop as soon as the rest is done."""
        self._is_linger_over = True
        return self._leave_if_done()

    def _leave_if_done(self) -> list[Command]:
        return [StopHost()] if self.is_archived and self._is_linger_over and not self._is_cleaning else []
