"""Jobs that programs run themselves, and that a cluster only shows: data sets.

The program is the one that knows. It tells the Dispatcher how its job stands, all of it each time, and hears in return
whether somebody wants the job to end. A program that is not heard of any more has failed, so no job stays RUNNING of
which nobody is there; should it be heard of again, as it was only cut off, its word counts again. So a new leader knows
of such a job with the next report, and only ends are stored. While one is being stored nothing else is taken: what a
program says is said again until its end is recorded.

Source: Flink's page lists batch jobs beside streams; what runs a job here is the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.state.identifiers import JobId

from ..errors import InternalError, JobNotFoundError
from ..kernel.config import JobSettings
from ..kernel.machine import Command, Reply, StartTimer
from ..protocol.messages import CancelReportedJob, JobReported, ReportJob, RequestFailed, SubmitJob
from ..protocol.states import JobStatus
from ..protocol.views import JobView
from .dispatched_jobs import DispatchedJob, failed_view

__all__ = ["ReportedJobs", "ReportsDue"]

LOOK_MS = 10_000
"""How often it is looked who was heard of; programs tell every second."""

MAX_SILENT_LOOKS = 3
"""A program that was not heard of for so many looks in a row is gone. Counted by looks: a head that was itself held up
must not take everybody for gone.
"""

EndJob = Callable[[DispatchedJob, JobView, int], list[Command]]


@dataclass(frozen=True, slots=True)
class ReportsDue:
    """Timer: it is looked who was heard of."""


@dataclass(slots=True)
class _Program:
    """What is known of the program behind a job.

    Attributes:
        name: For people: where it runs.
        num_silent: Looks in a row without a word.
    """

    name: str
    num_silent: int = 0


class ReportedJobs:
    """A part of the Dispatcher.

    Args:
        jobs: All jobs, which are the Dispatcher's.
        end: Records a job's last word.
    """

    def __init__(self, jobs: dict[JobId, DispatchedJob], end: EndJob) -> None:
        self._jobs = jobs
        self._end = end
        self._programs: dict[JobId, _Program] = {}
        # Jobs that somebody wants to end; remembered as long as they are, for a program may come back.
        self._to_end: set[JobId] = set()
        self._is_looking = False

    def report(self, ask_id: str, report: ReportJob, now_ms: int) -> list[Command]:
        """Take what a program says of its job."""
        view = report.details.view
        job = self._jobs.get(view.job_id)
        if not view.is_data_set or (job is not None and not job.view.is_data_set):
            error = InternalError("only a data set is run by a program itself", job=view.job_id)
            return [Reply(ask_id, RequestFailed(error))]
        if job is None:
            submission = SubmitJob(view.job_id, view.name, b"", JobSettings(), 0)
            unheard = replace(view, state=JobStatus.RUNNING, ended_ms=None, version=-1)
            job = self._jobs[view.job_id] = DispatchedJob(submission, unheard, is_first=False)
        self._programs[view.job_id] = _Program(report.program)
        commands: list[Command] = []
        if job.ending is None and view.version > job.view.version:  # else it is late, or was told before
            job.details = report.details
            if view.state.is_terminal:
                commands += self._end(job, view, now_ms)
            else:
                job.view = view
        is_kept = job.ending is None and job.has_ended
        if is_kept:
            del self._programs[view.job_id]
        is_to_end = view.job_id in self._to_end
        return [*commands, *self._look_later(), Reply(ask_id, JobReported(is_to_end, is_kept))]

    def cancel(self, ask_id: str, request: CancelReportedJob) -> list[Command]:
        """Note that a job is to end; its program hears it with its next report."""
        job = self._jobs.get(request.job_id)
        if job is None or not job.view.is_data_set:
            error = JobNotFoundError(f'there is no data set "{request.job_id}" in this cluster')
            return [Reply(ask_id, RequestFailed(error))]
        if not job.has_ended:
            self._to_end = {job_id for job_id in self._to_end if job_id in self._jobs} | {request.job_id}
        return [Reply(ask_id, job.has_ended)]

    def look(self, _timer: ReportsDue, now_ms: int) -> list[Command]:
        """Have jobs fail whose program is gone."""
        self._is_looking = False
        commands: list[Command] = []
        for job_id, program in list(self._programs.items()):
            program.num_silent += 1
            job = self._jobs.get(job_id)
            if job is None or job.has_ended:
                del self._programs[job_id]
            elif program.num_silent >= MAX_SILENT_LOOKS and job.ending is None:
                commands += self._fail_silent_job(job, program, now_ms)
        return [*commands, *self._look_later()]

    def _fail_silent_job(self, job: DispatchedJob, program: _Program, now_ms: int) -> list[Command]:
        """Have a job fail; should its program be heard of again, its next word is newer than this."""
        seconds = LOOK_MS * MAX_SILENT_LOOKS // 1_000  # by looks, too: clocks are set
        silence = f"its program ({program.name}) was not heard of for {seconds} seconds"
        reason = f"{silence}: it was killed, or does not reach the cluster any more"
        stages = tuple(stage.given_up() for stage in job.view.stages or ())
        failed = failed_view(job, reason, now_ms)
        return self._end(job, replace(failed, stages=stages, version=job.view.version), now_ms)

    def _look_later(self) -> list[Command]:
        if self._is_looking or not self._programs:
            return []
        self._is_looking = True
        return [StartTimer("reports due", LOOK_MS, ReportsDue())]
