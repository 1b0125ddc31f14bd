"""What a JobManager still has to do once its job has ended: have that recorded, stay for its clients, leave.

In this order: the Dispatcher records the end (it is told again and again until it says so), and from then on sees to
the checkpoints that nobody will restore, see `headrace.engine.cluster.job_cleanup`; the slots are given back, and
clients are told; and when none of them is expected any more, the host stops. Whoever dies half-way through leaves a job
that is either not recorded, and is then run on by a successor that finds everything in place, or recorded, and then the
Dispatcher gives its slots back.

Source: Flink's ``JobManagerRunner`` termination.
"""

from __future__ import annotations

from ..kernel.machine import Address, CancelTimer, Command, Send, StopHost
from ..protocol.messages import ReleaseJob, SubmitJob
from .record import JobRecord

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
        # No client is expected any more.
        self._is_linger_over = False

    def archived(self, epoch: int) -> list[Command]:
        """The end is recorded: give back, tell."""
        if self.is_archived:
            return []
        self.is_archived = True
        self._record.clients.archived()
        release = Send(self._resource_manager, ReleaseJob(self._job.job_id, epoch))
        return [CancelTimer("archive"), release, *self.linger(), *self._leave_if_done()]

    def linger(self) -> list[Command]:
        """A client has asked, or may ask now: stay for a while."""
        return self._record.clients.linger(has_reports=not self._record.reports.is_empty)

    def leave(self) -> list[Command]:
        """No client is expected any more: stop as soon as the rest is done."""
        self._is_linger_over = True
        return self._leave_if_done()

    def _leave_if_done(self) -> list[Command]:
        return [StopHost()] if self.is_archived and self._is_linger_over else []
