"""Jobs that programs run themselves: what the Dispatcher shows of them, who hears of a cancellation, and what becomes
of a job whose program is silent.

Families: words that come late, twice, or not at all; the same id as another job's; a new leader.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_harness import DISPATCHER, JOB, RESOURCE_MANAGER, complete, settings, submission
from leading_kit import Head

from headrace.engine.cluster import archive
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.reported_jobs import LOOK_MS, MAX_SILENT_LOOKS, ReportsDue
from headrace.engine.cluster.stored_jobs import end_as_facts, end_from_facts
from headrace.engine.errors import JobNotFoundError
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import Asked, HostTerminated, Reply, Send, SpawnHost, Started, StartTimer
from headrace.engine.protocol.control_messages import ReleaseAll
from headrace.engine.protocol.details import JobDetails
from headrace.engine.protocol.messages import (
    CancelReportedJob,
    FindJobManager,
    JobReported,
    JobStatusChanged,
    ListJobs,
    ReportJob,
    RequestFailed,
)
from headrace.engine.protocol.states import JobStatus, StageState
from headrace.engine.protocol.views import FailureView, JobView, StageView
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

SETS = JobId("f" * 32)
STAGE = StageView(3, "map -> count", StageState.RUNNING, 8, 2, 4, 1, 70, 900, 1_000, (1, 2))


def view(version, state="RUNNING", job_id=SETS, **more):
    ended_ms = 9_000 if JobStatus(state).is_terminal else None
    return JobView(
        job_id, "sums", JobStatus(state), version, started_ms=1_000, ended_ms=ended_ms, **{"stages": (STAGE,), **more}
    )


class Driver:
    """A Dispatcher, what it is asked, and time."""

    def __init__(self, **options):
        self.dispatcher = Dispatcher(DISPATCHER, RESOURCE_MANAGER, ClusterSettings(**options))
        self.timers, self.spawned, self.now, self.count = {}, [], 5, 0

    def give(self, event):
        answer = None
        for command in self.dispatcher.handle(event, self.now):
            if isinstance(command, StartTimer):
                self.timers[command.key] = command
            elif isinstance(command, Reply):
                answer = command.value
            elif isinstance(command, SpawnHost):
                self.spawned.append(command)
        return answer

    def ask(self, request):
        self.count += 1
        return self.give(Asked(str(self.count), request))

    def tell(self, version, state="RUNNING", **more):
        return self.ask(ReportJob(JobDetails(view(version, state, **more), plan="the plan"), "process 7 on here"))

    def look(self, times=1):
        for _ in range(times):
            timer = self.timers.pop("reports due")
            self.now += timer.delay_ms
            self.give(timer.message)

    @property
    def job(self):
        (found,) = self.ask(ListJobs())
        return found


@pytest.fixture
def driver():
    return Driver()


def test_a_job_is_shown_as_its_program_tells_it(driver):
    assert driver.tell(1) == JobReported(is_canceled=False, is_kept=False)
    assert driver.job == view(1)
    found = driver.ask(FindJobManager(SETS))
    assert (found.address, found.details.plan, found.details.settings) == (None, "the plan", None)
    assert driver.spawned == [], "the program runs it, and nobody else"
    done = view(2, "FINISHED", stages=(replace(STAGE, state=StageState.FINISHED),))
    assert driver.ask(ReportJob(JobDetails(done), "process 7")) == JobReported(is_canceled=False, is_kept=True)
    assert driver.job == done


def test_a_late_word_changes_nothing(driver):
    driver.tell(1)
    driver.tell(3)
    driver.tell(2, stages=())
    assert driver.job == view(3)
    driver.tell(4, "FINISHED")
    for _ in range(2):
        driver.tell(3)
        assert driver.job == view(4, "FINISHED")
    assert driver.tell(4, "FINISHED") == JobReported(is_canceled=False, is_kept=True), "its answer was lost"


def test_a_cancellation_is_heard_with_the_next_word_and_answered_at_the_end(driver):
    driver.tell(1)
    assert driver.ask(CancelReportedJob(SETS)) is False
    assert driver.job.state == "RUNNING", "nobody has ended it yet"
    assert driver.tell(2) == JobReported(is_canceled=True, is_kept=False)
    assert driver.tell(3) == JobReported(is_canceled=True, is_kept=False), "said again, as an answer may be lost"
    driver.tell(4, "CANCELED")
    assert driver.ask(CancelReportedJob(SETS)) is True
    assert driver.job.state == "CANCELED"


def test_a_program_that_is_silent_has_failed_and_what_is_known_is_said(driver):
    driver.tell(1)
    driver.look(MAX_SILENT_LOOKS - 1)
    assert driver.job.state == "RUNNING"
    driver.tell(2)
    driver.look(MAX_SILENT_LOOKS - 1)
    assert driver.job.state == "RUNNING", "it was heard of meanwhile"
    driver.look()
    job = driver.job
    assert (job.state, job.ended_ms) == ("FAILED", driver.now)
    seconds = LOOK_MS * MAX_SILENT_LOOKS // 1_000
    assert f"its program (process 7 on here) was not heard of for {seconds} seconds" in job.failure
    assert [failure.text for failure in job.failures] == [job.failure]
    assert job.stages == (replace(STAGE, state=StageState.FAILED, num_running=0),)
    driver.look()
    assert driver.timers == {}, "nobody is waited for any more"


def test_a_program_that_was_only_cut_off_is_believed_again(driver):
    driver.tell(1)
    driver.look(MAX_SILENT_LOOKS)
    assert driver.job.state == "FAILED"
    driver.tell(1)
    assert driver.job.state == "FAILED", "that is no news"
    driver.tell(2)
    assert driver.job == view(2)
    driver.tell(3, "FINISHED")
    assert driver.job.state == "FINISHED"


def test_a_program_that_was_cut_off_hears_of_a_cancellation_when_it_is_back(driver):
    driver.tell(1)
    driver.ask(CancelReportedJob(SETS))
    driver.look(MAX_SILENT_LOOKS + 1)
    assert driver.job.state == "FAILED"
    assert driver.tell(2).is_canceled


def test_how_long_a_program_was_silent_does_not_follow_a_clock_that_is_set(driver):
    driver.tell(1)
    driver.now -= 3_600_000
    driver.look(MAX_SILENT_LOOKS)
    assert f"for {LOOK_MS * MAX_SILENT_LOOKS // 1_000} seconds" in driver.job.failure


def test_many_data_sets_push_no_stream_out_of_the_history(driver, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ARCHIVED", 3)
    driver.ask(replace(submission(job_settings=settings()), job_id=JOB))
    found = driver.ask(FindJobManager(JOB))
    driver.give(JobStatusChanged(JOB, found.epoch, replace(found.view, state=JobStatus.FINISHED, version=2)))
    driver.give(HostTerminated(driver.spawned[0].host, "done"))
    ids = [JobId(f"{number:032x}") for number in range(5)]
    for number in ids:
        driver.tell(1, "FINISHED", job_id=number)
    assert [job.job_id for job in driver.ask(ListJobs())] == [*reversed(ids[-3:]), JOB]


def test_of_old_data_sets_stages_and_plans_are_not_kept(driver, monkeypatch):
    monkeypatch.setattr(archive, "MAX_STAGES", 25)
    monkeypatch.setattr(archive, "MAX_DETAILED_SUBTASKS", 25)
    plan = "x" * (archive.CHARACTERS_OF_SUBTASK * 9)
    going_on, *ended = ids = [JobId(f"{number:032x}") for number in range(6)]
    for number in ids:
        last = view(1, "RUNNING" if number == going_on else "FINISHED", job_id=number, stages=(STAGE,) * 10)
        driver.ask(ReportJob(JobDetails(last, plan=plan), "process 7"))
    found = {number: driver.ask(FindJobManager(number)).details for number in ids}
    kept = ended[-2:]
    for number in ended:
        stages, left_out = ((STAGE,) * 10, 0) if number in kept else ((), 10)
        assert (found[number].view.stages, found[number].view.num_stages_left_out) == (stages, left_out)
        assert found[number].plan == (plan if number in kept else "")
    assert (len(found[going_on].view.stages), found[going_on].plan) == (10, plan), "it has not ended"


def test_its_end_is_taken_even_if_nothing_was_told_before(driver):
    failure = FailureView(9_000, "ZeroDivisionError", "division by zero")
    answer = driver.tell(5, "FAILED", failure="division by zero", failures=(failure,))
    assert answer == JobReported(is_canceled=False, is_kept=True)
    assert driver.job.failures == (failure,)
    assert driver.timers.pop("reports due", None) is None


def test_two_jobs_of_one_name_are_two(driver):
    other = JobId("e" * 32)
    driver.tell(1)
    driver.tell(1, job_id=other)
    driver.ask(CancelReportedJob(other))
    assert driver.tell(2).is_canceled is False
    assert driver.tell(2, job_id=other).is_canceled is True
    assert [job.job_id for job in driver.ask(ListJobs())] == [other, SETS]


def test_a_stream_cannot_be_told_of_or_canceled_so(driver):
    driver.ask(replace(submission(job_settings=settings()), job_id=JOB))
    before = driver.job
    for word in (view(99, job_id=JOB), replace(view(99), stages=None)):
        assert isinstance(driver.ask(ReportJob(JobDetails(word), "process 7")), RequestFailed)
    refused = driver.ask(CancelReportedJob(JOB))
    assert isinstance(refused, RequestFailed)
    assert isinstance(refused.error, JobNotFoundError)
    assert driver.job == before


def test_a_cluster_that_ends_with_its_jobs_does_not_wait_for_data_sets():
    driver = Driver(ends_with_jobs=True)
    driver.give(Started(DISPATCHER))
    driver.tell(1)
    commands = driver.dispatcher.handle(driver.timers["jobs awaited"].message, driver.now)
    assert [command.message for command in commands if isinstance(command, Send)] == [ReleaseAll(DISPATCHER)]


def test_what_a_history_keeps_is_the_same_job():
    last = view(7, "FAILED", failure="no", num_stages_left_out=12)
    assert end_from_facts(SETS, end_as_facts(last)) == last
    older = end_as_facts(last)
    del older["view"]["stages"], older["view"]["num_stages_left_out"]
    assert not end_from_facts(SETS, older).is_data_set, "it was stored before there were any"


def test_what_a_program_says_waits_while_an_end_of_its_job_is_stored():
    head = Head(MemoryFileSystem())

    def tell(version, state):
        return head.ask(ReportJob(JobDetails(view(version, state)), "process 7"))

    tell(1, "RUNNING")
    head.is_io_free = False
    for _ in range(MAX_SILENT_LOOKS):
        head.give(ReportsDue())  # its program is taken for gone
    tell(2, "RUNNING")
    assert not tell(3, "FINISHED").is_kept
    [first] = head.works
    assert first.name == "store_end"
    head.is_io_free = True
    head.give(complete(head.works.pop()))
    tell(3, "FINISHED")
    assert tell(3, "FINISHED").is_kept
    assert head.stored()[SETS].end["view"]["state"] == "FINISHED"
    assert head.ask(FindJobManager(SETS)).view.state == "FINISHED"
