"""The Dispatcher of a cluster: takes jobs, starts and replaces their JobManagers, remembers how they ended.

Each job has a host of its own with its JobManager and its CheckpointCoordinator
(`headrace.engine.cluster.job_manager_hosts`). If that host dies before the job's end is recorded, a successor with a
larger epoch takes over; it finds the newest checkpoint itself. A successor that dies without having achieved anything,
several times in a row, is the job's failure. A job without a restart strategy fails with its JobManager.

With high availability it is one of several. It does nothing before it has been elected and has read the job store;
then it starts a JobManager for every job that has not ended. A submission is acknowledged, and an end recorded, only
once it is stored and no other leader had come by then. A leader that loses its lease ends at once, and its JobManagers
and TaskManagers, which no other process knows, end with it: as children of its process, and, should they live on for a
while, because the JobManagers of the next leader claim larger epochs in the checkpoint store.

Invariants: a job whose end is recorded is never started again; no JobManager tells its clients of the end before that
(it waits for `JobArchived`); and only after that are its checkpoints deleted (`headrace.engine.cluster.cleanup`).

Source: Flink's ``Dispatcher``, ``JobManagerRunner`` and ``SessionDispatcherLeaderProcess``;
``docs/design/013-high-availability.md`` for the epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.state.credentials import masked
from headrace.state.identifiers import JobId

from ..errors import (
    ClusterUnavailableError,
    ConfigurationError,
    InternalError,
    JobNotFoundError,
    SupersededError,
)
from ..kernel.config import ClusterSettings
from ..kernel.event_log import EventLog
from ..kernel.machine import (
    Address,
    Asked,
    Command,
    HostPinged,
    HostTerminated,
    KillHost,
    OffloadCompleted,
    Reply,
    Send,
    Started,
    StopHost,
    kind_of,
)
from ..protocol.control_messages import AllReleased, JobArchived, TaskManagersAsked
from ..protocol.messages import (
    CancelReportedJob,
    FindJobManager,
    JobManagerFound,
    JobStatusChanged,
    JobSubmitted,
    ListJobs,
    ListTaskManagers,
    ReleaseJob,
    ReportJob,
    RequestFailed,
    ShutDownCluster,
    SubmitJob,
)
from ..protocol.views import JobView
from .archive import overdue_jobs, thin_out
from .cleanup import CleanUpAgain, JobCleanedUp, JobCleanup
from .dispatched_jobs import (
    LEADER_LOST,
    NO_STRATEGY,
    DispatchedJob,
    ended_job,
    failed_view,
    first_view,
    restarting_view,
    taken_over_view,
    too_large,
)
from .job_manager_hosts import JobManagerHosts, PingDue, job_manager_of
from .job_store_io import RecoveredJob, clean_up_ended_job
from .leadership import (
    EndStandby,
    LeaderElection,
    LeaderFound,
    LeaderRefused,
    LeaseReleased,
    StandbyReported,
    WhoLeads,
)
from .reported_jobs import ReportedJobs, ReportsDue
from .shutdown import JobsAwaited, Shutdown, ShutdownTimedOut, await_jobs
from .standbys import HighAvailability, PredecessorEnded, Standbys, StandbysDue, end_predecessor
from .store_work import (
    Acceptance,
    EndStored,
    JobForgotten,
    JobsRecovered,
    StoreAgain,
    StoreWork,
    SubmissionStored,
    store_later,
)

__all__ = ["Dispatcher"]

MAX_STORE_ATTEMPTS = 5
"""A submission that could not be stored so often is refused."""


class Dispatcher:
    """The machine.

    Args:
        address: Its own address.
        resource_manager: The cluster's ResourceManager.
        settings: How the cluster is laid out.
        high_availability: What it needs to be one of several; None: it leads, and forgets everything when it ends.
    """

    def __init__(
        self,
        address: Address,
        resource_manager: Address,
        settings: ClusterSettings,
        high_availability: HighAvailability | None = None,
    ) -> None:
        self.address = address
        self.log = EventLog(machine="Dispatcher")
        # This process's monotonic clock, put here by the host; only leases need it.
        self.monotonic_ms: Callable[[], int] = _no_clock
        # The epoch under which it leads; 0 before, and without high availability.
        self.term = 0
        self._resource_manager = resource_manager
        self._settings = settings
        # Every job that is known, oldest first, ended ones included.
        self._jobs: dict[JobId, DispatchedJob] = {}
        # The shutdown under way, if any.
        self._shutdown: Shutdown | None = None
        self._ha = high_availability
        self._election: LeaderElection | None = None
        if high_availability is not None:
            ha = high_availability
            self._election = LeaderElection(ha.lease, ha.record, ha.born_after, lambda: self.monotonic_ms(), self.log)
        # It leads and knows all jobs.
        self._is_active = high_availability is None
        # A cluster that ends with its jobs has had one under this leader, or has waited in vain.
        self._may_end_with_jobs = False
        # Why it does not take over what is stored, though it leads, until somebody has mended that.
        self._refusal: ConfigurationError | None = None
        self._standbys: Standbys | None = None
        # Has the job store written, once it leads; None without high availability.
        self._store: StoreWork | None = None
        # Submissions that are not acknowledged yet.
        self._accepting: dict[JobId, Acceptance] = {}
        self._cleanup = JobCleanup()
        self._hosts = JobManagerHosts(address, resource_manager, self.log)
        self._reported = ReportedJobs(self._jobs, self._end)
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            Asked: self._on_asked,
            JobStatusChanged: self._on_status,
            HostTerminated: self._on_terminated,
            HostPinged: self._on_pinged,
            PingDue: self._on_ping_due,
            AllReleased: self._on_all_released,
            ShutdownTimedOut: self._on_shutdown_timed_out,
            Started: self._on_started,
            JobsAwaited: self._on_jobs_awaited,
            JobCleanedUp: self._cleaned_up,
            StoreAgain: self._on_store_again,
            CleanUpAgain: lambda _timer, _now_ms: self._cleanup.again(),
            StandbyReported: self._on_standby_reported,
            StandbysDue: self._on_standbys_due,
            EndStandby: self._on_end_standby,
            ReportsDue: self._reported.look,
        }
        self._store_handlers: dict[type, Callable[[OffloadCompleted, int], list[Command]]] = {
            SubmissionStored: self._submission_stored,
            EndStored: self._end_stored,
            JobsRecovered: self._recovered,
            LeaseReleased: self._lease_released,
            PredecessorEnded: self._predecessor_ended,
        }
        self._handlers |= dict.fromkeys((*self._store_handlers, JobForgotten), self._on_stored)

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        commands: list[Command] = []
        if self._election is not None:
            about_election = self._follow(self._election, event, now_ms)
            if about_election is not None:
                return about_election
        handler = self._handlers.get(kind_of(event))
        if handler is not None:
            commands += handler(event, now_ms)
        commands += self._end_with_jobs()
        if self._election is not None and self._election.is_over:
            return self._step_down()  # what it was about to do, it may not do any more
        return commands

    # --------------------------------------------------------------------------------------------------------- clients
    def _on_asked(self, event: Asked, now_ms: int) -> list[Command]:
        request = event.request
        if isinstance(request, WhoLeads):
            return [Reply(event.ask_id, self._leader())]
        if not self._is_active:
            refusal = None if isinstance(request, ShutDownCluster) else self._refusal
            refused = LeaderRefused() if refusal is None else RequestFailed(refusal)
            return [Reply(event.ask_id, refused)]
        if isinstance(request, SubmitJob):
            return self._submit(event.ask_id, request, now_ms)
        if isinstance(request, ListJobs):
            return [Reply(event.ask_id, [job.view for job in reversed(self._jobs.values())])]
        if isinstance(request, ListTaskManagers):  # it is on this host, and answers itself
            return [Send(self._resource_manager, TaskManagersAsked(event.ask_id))]
        if isinstance(request, FindJobManager):
            return [Reply(event.ask_id, self._find(request.job_id))]
        if isinstance(request, ShutDownCluster):
            return self._shut_down(event.ask_id)
        if isinstance(request, ReportJob):
            commands = self._reported.report(event.ask_id, request, now_ms)
            thin_out(self._jobs)
            return [*commands, *self._drop_oldest_ended()]
        if isinstance(request, CancelReportedJob):
            return self._reported.cancel(event.ask_id, request)
        message = f"the Dispatcher does not answer {type(request).__name__}"
        return [Reply(event.ask_id, RequestFailed(InternalError(message)))]

    def _submit(self, ask_id: str, submission: SubmitJob, now_ms: int) -> list[Command]:
        if submission.job_id in self._jobs:
            return [Reply(ask_id, JobSubmitted(submission.job_id))]
        refusal = _shutting_down() if self._shutdown is not None else too_large(submission, self._settings.max_slots)
        if refusal is not None:
            return [Reply(ask_id, RequestFailed(refusal))]
        if self._ha is None:
            return [*self._accept(submission, now_ms), Reply(ask_id, JobSubmitted(submission.job_id))]
        acceptance = self._accepting.get(submission.job_id)
        if acceptance is not None:  # asked again
            acceptance.ask_ids.append(ask_id)
            return []
        self._accepting[submission.job_id] = Acceptance(submission, [ask_id])
        return self._store_submission(submission.job_id)

    def _accept(self, submission: SubmitJob, now_ms: int) -> list[Command]:
        job = DispatchedJob(submission, first_view(submission, now_ms))
        self._jobs[submission.job_id] = job
        return [*self._drop_oldest_ended(), *self._start_job_manager(job, now_ms)]

    def _find(self, job_id: JobId) -> JobManagerFound | RequestFailed:
        job = self._jobs.get(job_id)
        if job is None:
            message = f'there is no job "{job_id}" in this cluster'
            return RequestFailed(JobNotFoundError(message))
        address = None if job.host is None else job_manager_of(job.host)
        return JobManagerFound(address, job.epoch, job.view, job.present_details())

    def _drop_oldest_ended(self) -> list[Command]:
        commands: list[Command] = []
        for job_id in overdue_jobs(self._jobs, lambda job_id: job_id not in self._cleanup):
            del self._jobs[job_id]
            if self._store is not None:
                commands.append(self._store.forget(job_id))
        return commands

    # ---------------------------------------------------------------------------------------------------- job managers
    def _start_job_manager(self, job: DispatchedJob, now_ms: int) -> list[Command]:
        self._may_end_with_jobs = self._settings.ends_with_jobs
        return self._hosts.start(job, self.term, now_ms)

    def _on_ping_due(self, timer: PingDue, now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        return [] if job is None or job.host != timer.host else self._hosts.ping(job, timer.host, now_ms)

    def _on_pinged(self, event: HostPinged, _now_ms: int) -> list[Command]:
        job = next((job for job in self._jobs.values() if job.host == event.host), None)
        if job is not None:
            job.num_unanswered, job.is_alive = 0, True
        return []

    def _on_status(self, message: JobStatusChanged, now_ms: int) -> list[Command]:
        job = self._jobs.get(message.job_id)
        if job is None or message.epoch < job.epoch or job.host is None:
            return []
        if job.has_ended:
            return self._archived(job, now_ms)
        job.epoch = message.epoch  # the store may have given the leader a larger one
        if job.ending is not None:
            return []
        if message.details is not None:
            job.details = message.details
            thin_out(self._jobs)
        job.note_progress(message.view, now_ms)
        if message.view.state.is_terminal:
            return self._end(job, message.view, now_ms)
        job.view = message.view
        return []

    def _end(self, job: DispatchedJob, view: JobView, now_ms: int) -> list[Command]:
        """Record a job's last word, then act upon it."""
        if self._ha is None:
            job.view = view
            return self._archived(job, now_ms)
        job.ending = view
        return self._store_end(job)

    def _archived(self, job: DispatchedJob, now_ms: int) -> list[Command]:
        """Tell a JobManager that its job's end is recorded, or, if there is none, tidy up after it."""
        job_id = job.submission.job_id
        self.log.add(now_ms, f"job {job_id}", f"ended {job.view.state}")
        commands = self._clean_up(job)
        if job.host is None:
            return [*commands, self._release(job_id), *self._shut_down_further()]
        return [*commands, Send(job_manager_of(job.host), JobArchived(job_id, job.epoch))]

    def _clean_up(self, job: DispatchedJob) -> list[Command]:
        """Have deleted what an ended job has left behind, whatever became of its JobManager."""
        if job.has_cleanup or (self._ha is None and job.submission.settings.checkpoints is None):
            return []
        job.has_cleanup = True
        jobs = None if self._ha is None else self._ha.jobs
        work = functools.partial(clean_up_ended_job, jobs, job.submission.settings, job.view)
        return self._cleanup.add(job.submission.job_id, work)

    def _cleaned_up(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        commands, problem = self._cleanup.ended(event)
        job = self._jobs.get(event.token.job_id)
        if problem is not None and job is not None:
            self.log.add(now_ms, f"job {event.token.job_id}", problem)
            job.view = replace(job.view, history=(*job.view.history, (now_ms, problem)))
        return [*commands, *self._shut_down_further()]

    def _on_terminated(self, event: HostTerminated, now_ms: int) -> list[Command]:
        job = next((job for job in self._jobs.values() if job.host == event.host), None)
        if job is None:
            return []
        job_id = job.submission.job_id
        job.host = None
        self.log.add(now_ms, f"job {job_id}", f"JobManager {event.host} gone: {event.reason}")
        if job.has_ended:  # its JobManager may have died before it could give the slots back
            return [self._release(job_id), *self._shut_down_further()]
        if job.ending is not None:  # goes on when that is stored
            return []
        reason = f"its JobManager {event.host} was lost: {masked(event.reason)}"
        if self._shutdown is not None:
            return self._fail(job, f"the cluster was shut down; {reason}", now_ms)
        problem = job.note_loss(now_ms)
        if problem is not None:
            return self._fail(job, f"{reason}; {problem}", now_ms)
        job.view = restarting_view(job, reason, now_ms)
        return self._start_job_manager(job, now_ms)

    def _fail(self, job: DispatchedJob, reason: str, now_ms: int) -> list[Command]:
        return self._end(job, failed_view(job, masked(reason), now_ms), now_ms)

    def _release(self, job_id: JobId) -> Send:
        # The ResourceManager may know a larger epoch than was told here: the store gives them out.
        return Send(self._resource_manager, ReleaseJob(job_id, _BEYOND_ANY_EPOCH))

    # -------------------------------------------------------------------------------------------------------- shutdown
    def _shut_down(self, ask_id: str) -> list[Command]:
        commands: list[Command] = []
        if self._shutdown is None:
            self._shutdown = Shutdown(self.address, self._resource_manager)
            commands = self._shutdown.begin(self._living_hosts())
        self._shutdown.ask_ids.append(ask_id)
        return commands + self._shut_down_further()

    def _on_started(self, _event: Started, _now_ms: int) -> list[Command]:
        return self._await_jobs() if self._is_active else []

    def _await_jobs(self) -> list[Command]:
        return [await_jobs()] if self._settings.ends_with_jobs else []

    def _on_jobs_awaited(self, _timer: JobsAwaited, _now_ms: int) -> list[Command]:
        self._may_end_with_jobs = True
        return []

    def _end_with_jobs(self) -> list[Command]:
        """End a cluster that is there for its jobs alone, once they have ended and their JobManagers have gone."""
        if not self._may_end_with_jobs or self._shutdown is not None or self._accepting or self._living_hosts():
            return []
        if not all(job.has_ended or job.view.is_data_set for job in self._jobs.values()):
            return []  # a data set is only shown here, and runs elsewhere
        self._shutdown = Shutdown(self.address, self._resource_manager, is_own=True)
        return [*self._shutdown.begin([]), *self._shut_down_further()]

    def _living_hosts(self) -> list[str]:
        return [job.host for job in self._jobs.values() if job.host is not None]

    def _shut_down_further(self) -> list[Command]:
        if self._shutdown is None:
            return []
        is_unfinished = not self._cleanup.is_idle or any(job.ending is not None for job in self._jobs.values())
        return self._shutdown.go_on(
            has_hosts=bool(self._living_hosts()),
            is_unfinished=is_unfinished or bool(self._accepting),
            give_back=None if self._election is None else self._give_back,
        )

    def _give_back(self) -> list[Command]:
        assert self._election is not None
        ends = [] if self._standbys is None else self._standbys.end_all(self.address.actor)
        return [*ends, *self._election.give_back()]

    def _on_all_released(self, _message: AllReleased, _now_ms: int) -> list[Command]:
        if self._shutdown is not None:
            self._shutdown.released()
        return self._shut_down_further()

    def _on_shutdown_timed_out(self, _timer: ShutdownTimedOut, _now_ms: int) -> list[Command]:
        if self._shutdown is None:
            return []
        return self._shutdown.timed_out(self._living_hosts()) or self._shut_down_further()

    # ----------------------------------------------------------------------------------------------- high availability
    def _leader(self) -> LeaderFound:
        if self._is_active and self._election is not None:
            return LeaderFound(self.term, self.address.host)
        return LeaderFound(0, None) if self._election is None else self._election.seen_leader

    def _follow(self, election: LeaderElection, event: Any, now_ms: int) -> list[Command] | None:
        """Give an event to the election first; None if it is not about that and may be handled."""
        if isinstance(event, Started):
            return election.start()
        commands = election.handle(event, now_ms)
        if election.is_over:
            return self._step_down()
        taken_over: list[Command] = []
        if election.leads and self.term == 0:
            self.term = election.epoch
            taken_over = self._take_over()
        if commands is not None:
            return [*commands, *taken_over, *([] if self.term else election.report_to_leader(self.address))]
        if not taken_over:
            return None
        handler = self._handlers.get(kind_of(event))
        return taken_over + ([] if handler is None else handler(event, now_ms))

    def _step_down(self) -> list[Command]:
        """End, with all that it has started."""
        self._is_active = False
        reason = "the cluster's leader has lost its lease"
        kills: list[Command] = [KillHost(host, reason) for host in self._living_hosts()]
        self._jobs.clear()
        return [*kills, StopHost()]

    def _take_over(self) -> list[Command]:
        """Take over as the elected leader: see what there is to do, and that the one before does nothing more."""
        assert self._ha is not None
        assert self._election is not None
        self._standbys = Standbys(self._ha, self.term)
        self._store = StoreWork(self._ha, self.term)
        return [
            *self._standbys.start(),
            self._store.recover(),
            *end_predecessor(self._ha, self._election.predecessor),
        ]

    def _recovered(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        self._refusal = event.error if isinstance(event.error, ConfigurationError) else None
        if event.error is not None:
            return [store_later(event.token)]
        if self._is_active:
            return []
        self._is_active = True
        commands = self._await_jobs()
        found: list[RecoveredJob] = event.result
        for recovered in found:
            if recovered.submission is None or recovered.view is not None:
                ended = self._jobs[recovered.job_id] = ended_job(recovered, now_ms)
                if recovered.problem is not None:
                    self.log.add(now_ms, f"job {recovered.job_id}", recovered.problem)
                if recovered.submission is not None:
                    commands += self._clean_up(ended)  # the leader before did not come to that
                continue
            submission = recovered.submission
            job = DispatchedJob(submission, first_view(submission, now_ms), is_first=False, has_run=True)
            self._jobs[recovered.job_id] = job
            self.log.add(now_ms, f"job {recovered.job_id}", f"taken over under epoch {self.term}")
            if not job.may_restart:
                commands += self._fail(job, f"{LEADER_LOST}; {NO_STRATEGY}", now_ms)
            else:
                job.view = taken_over_view(job, self.term, now_ms)
                commands += self._start_job_manager(job, now_ms)
        thin_out(self._jobs)
        return commands

    def _store_submission(self, job_id: JobId) -> list[Command]:
        assert self._store is not None
        return [self._store.store_submission(self._accepting[job_id])]

    def _submission_stored(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        job_id: JobId = event.token.job_id
        acceptance = self._accepting.get(job_id)
        if acceptance is None:
            return []
        if event.error is not None and acceptance.num_attempts < MAX_STORE_ATTEMPTS:
            return [store_later(event.token)]
        del self._accepting[job_id]
        error = event.error if self._shutdown is None else event.error or _shutting_down()
        if error is None:
            answer: JobSubmitted | RequestFailed = JobSubmitted(job_id)
            commands = self._accept(acceptance.submission, now_ms)
        else:  # it is in the store, or may be all the same, so it needs an end there
            answer = RequestFailed(error)
            job = DispatchedJob(acceptance.submission, first_view(acceptance.submission, now_ms))
            self._jobs[job_id] = job
            reason = str(error) if event.error is None else f"it could not be stored: {error}"
            commands = self._fail(job, reason, now_ms)
        return [*commands, *(Reply(ask_id, answer) for ask_id in acceptance.ask_ids)]

    def _store_end(self, job: DispatchedJob) -> list[Command]:
        assert self._store is not None
        assert job.ending is not None
        return [self._store.store_end(job.ending)]

    def _end_stored(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        job = self._jobs.get(event.token.job_id)
        if job is None or job.ending is None:
            return []
        if event.error is not None:
            return [store_later(event.token)]
        job.view, job.ending = job.ending, None
        return self._archived(job, now_ms)

    def _on_store_again(self, timer: StoreAgain, _now_ms: int) -> list[Command]:
        work = timer.work
        if isinstance(work, JobsRecovered):
            return [] if self._is_active or self._store is None else [self._store.recover()]
        if isinstance(work, SubmissionStored):
            return self._store_submission(work.job_id) if work.job_id in self._accepting else []
        job = self._jobs.get(work.job_id)
        return [] if job is None or job.ending is None else self._store_end(job)

    def _on_stored(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """What the end of any work on the store means; what else it means is for its own handler."""
        if self._election is None:
            return []
        if isinstance(event.error, SupersededError):
            self._election.lost(str(event.error), now_ms)
            return []
        if event.error is not None:
            self.log.add(now_ms, event.name, f"failed for {event.token}: {event.error}")
        handler = self._store_handlers.get(kind_of(event))
        return [] if handler is None else handler(event, now_ms)

    def _lease_released(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if self._shutdown is None:
            return []
        again = [] if self._election is None else self._election.released(event, now_ms)
        if again:
            return again
        self._shutdown.given_back()
        return self._shut_down_further()

    def _predecessor_ended(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.result:
            self.log.add(now_ms, "lease", event.result)
        return []

    def _on_standby_reported(self, message: StandbyReported, _now_ms: int) -> list[Command]:
        if self._standbys is not None:
            self._standbys.reported(message.host, self.monotonic_ms())
        return []

    def _on_standbys_due(self, _timer: StandbysDue, _now_ms: int) -> list[Command]:
        if self._standbys is None or self._shutdown is not None:
            return []
        return self._standbys.look(self.monotonic_ms())

    def _on_end_standby(self, message: EndStandby, _now_ms: int) -> list[Command]:
        assert self._election is not None
        return [] if self.term or self._election.has_seen_newer(message.epoch) else [StopHost()]


_BEYOND_ANY_EPOCH = 2**62


def _shutting_down() -> ClusterUnavailableError:
    message = "the cluster is shutting down and takes no jobs"
    return ClusterUnavailableError(message)


def _no_clock() -> int:
    message = "a Dispatcher of several needs its host's monotonic clock"
    raise InternalError(message)
