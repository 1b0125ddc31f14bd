"""The Dispatcher: submission, replacement of JobManagers under growing epochs, the archive, shutdown."""

from dataclasses import replace

import pytest
from control_harness import DISPATCHER, JOB, RESOURCE_MANAGER, complete, of_kind, sent, settings, submission

from headrace.engine.checkpoint.coordinator import CheckpointCoordinator
from headrace.engine.cluster.cleanup import MAX_ATTEMPTS
from headrace.engine.cluster.dispatched_jobs import MAX_VAIN_EPOCHS, STEADY_MS
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.errors import (
    ClusterUnavailableError,
    JobFailedError,
    JobNotFoundError,
    NoResourceAvailableError,
    StorageError,
)
from headrace.engine.job.job_manager import JobManager
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.kernel.machine import (
    Address,
    Asked,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    OffloadCompleted,
    PingHost,
    Reply,
    SpawnHost,
    Started,
    StartTimer,
    StopHost,
)
from headrace.engine.protocol.control_messages import AllReleased, JobArchived, ReleaseAll
from headrace.engine.protocol.details import JobDetails, SubtaskTotals, SubtaskView, VertexDetails
from headrace.engine.protocol.messages import (
    CancelJob,
    FindJobManager,
    JobStatusChanged,
    JobSubmitted,
    ListJobs,
    ReleaseJob,
    RequestFailed,
    ShutDownCluster,
)
from headrace.engine.protocol.states import JobStatus, TaskState
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem


class Driver:
    def __init__(self, **options):
        self.dispatcher = Dispatcher(DISPATCHER, RESOURCE_MANAGER, ClusterSettings(**options))
        self.timers, self.replies, self.spawned = {}, {}, []
        self.count = 0
        self.now = 5

    def give(self, event):
        commands = self.dispatcher.handle(event, self.now)
        for command in commands:
            if isinstance(command, StartTimer):
                self.timers[command.key] = command
            elif isinstance(command, Reply):
                self.replies[command.ask_id] = command.value
            elif isinstance(command, SpawnHost):
                self.spawned.append(command)
        return commands

    def ask(self, request):
        self.count += 1
        self.give(Asked(str(self.count), request))
        return self.replies.get(str(self.count))

    def fire(self, key):
        return self.give(self.timers.pop(key).message)

    def submit(self, job_id=JOB, **options):
        options.setdefault("restart", RestartStrategy(-1, 10))
        return self.ask(replace(submission(job_settings=settings(**options)), job_id=job_id))

    def status(self, state, epoch=1, job_id=JOB, **changes):
        view = replace(self.ask(FindJobManager(job_id)).view, state=JobStatus(state), version=7, **changes)
        return self.give(JobStatusChanged(job_id, epoch, view))

    def die(self, epoch, job_id=JOB, reason="killed"):
        return self.give(HostTerminated(f"jm-{job_id}-{epoch}", reason))


def test_submission_starts_a_job_manager_with_its_coordinator():
    driver = Driver()
    assert driver.submit() == JobSubmitted(JOB)
    [spawn] = driver.spawned
    assert spawn.host == f"jm-{JOB}-1"
    machines = {name: build(Address(spawn.host, name)) for name, build in spawn.actors}
    assert isinstance(machines["jm"], JobManager)
    assert isinstance(machines["cc"], CheckpointCoordinator)
    assert driver.ask(FindJobManager(JOB)).address == Address(spawn.host, "jm")


def test_submission_is_idempotent():
    driver = Driver()
    driver.submit()
    assert driver.submit() == JobSubmitted(JOB)
    assert len(driver.spawned) == 1


def test_hopeless_submission_is_refused_with_numbers():
    driver = Driver(max_slots=2)
    answer = driver.ask(submission(num_slots=5))
    assert isinstance(answer.error, NoResourceAvailableError)
    assert "5 slots needed, 2 available" in str(answer.error)
    assert not driver.spawned


def test_unknown_job_is_said_to_be_unknown():
    answer = Driver().ask(FindJobManager("nobody"))
    assert isinstance(answer, RequestFailed)
    assert isinstance(answer.error, JobNotFoundError)


def test_jobs_are_listed_newest_first():
    driver = Driver()
    for job_id in ("a", "b"):
        driver.submit(job_id)
    assert [view.job_id for view in driver.ask(ListJobs())] == ["b", "a"]


def test_dead_job_manager_is_replaced_under_a_higher_epoch():
    driver = Driver()
    driver.submit()
    driver.status("RUNNING")
    driver.die(1)
    assert driver.spawned[-1].host == f"jm-{JOB}-2"
    found = driver.ask(FindJobManager(JOB))
    assert (found.address.host, found.epoch, found.view.state) == (f"jm-{JOB}-2", 2, "RESTARTING")


def test_epoch_given_by_the_store_counts():
    driver = Driver()
    driver.submit()
    driver.status("RUNNING", epoch=5)
    driver.status("FAILED", epoch=4)
    assert driver.ask(FindJobManager(JOB)).view.state == "RUNNING"
    driver.die(1)
    assert driver.spawned[-1].host == f"jm-{JOB}-6"


def test_job_managers_that_die_without_progress_are_the_jobs_failure():
    driver = Driver()
    driver.submit()
    for epoch in range(1, MAX_VAIN_EPOCHS + 2):
        driver.die(epoch, reason="crash in a loop")
    view = driver.ask(FindJobManager(JOB)).view
    assert view.state == "FAILED"
    assert isinstance(view.error, JobFailedError)
    assert "crash in a loop" in view.failure
    assert driver.ask(FindJobManager(JOB)).address is None


def test_progress_resets_the_count():
    driver = Driver()
    driver.submit()
    for epoch in range(1, 2 * MAX_VAIN_EPOCHS):
        driver.status("RUNNING", epoch=epoch, checkpoints_completed=epoch)
        driver.die(epoch)
    assert driver.ask(FindJobManager(JOB)).view.state == "RESTARTING"


def test_running_for_a_while_is_progress_of_a_job_that_takes_no_checkpoints():
    driver = Driver()
    driver.submit()
    for epoch in range(1, 2 * MAX_VAIN_EPOCHS):
        driver.status("RUNNING", epoch=epoch)
        driver.now += STEADY_MS
        driver.die(epoch)
    assert driver.ask(FindJobManager(JOB)).view.state == "RESTARTING"
    for epoch in range(2 * MAX_VAIN_EPOCHS, 3 * MAX_VAIN_EPOCHS):
        driver.status("RUNNING", epoch=epoch)
        driver.now += STEADY_MS
        driver.status("RESTARTING", epoch=epoch)  # it has not run to its end
        driver.die(epoch)
    assert driver.ask(FindJobManager(JOB)).view.state == "FAILED"


def test_job_without_restart_strategy_fails_with_its_job_manager():
    driver = Driver()
    driver.submit(restart=RestartStrategy.none())
    driver.status("RUNNING")
    commands = driver.die(1)
    assert driver.ask(FindJobManager(JOB)).view.state == "FAILED"
    assert sent(commands, ReleaseJob, RESOURCE_MANAGER)


def test_job_manager_that_dies_before_anything_ran_is_replaced_in_any_case():
    driver = Driver()
    driver.submit(restart=RestartStrategy.none())
    driver.die(1)
    assert len(driver.spawned) == 2


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def test_recorded_end_is_confirmed_and_final(state):
    driver = Driver()
    driver.submit()
    for _ in range(2):
        commands = driver.status(state)
        assert sent(commands, JobArchived, Address(f"jm-{JOB}-1", "jm")) == [JobArchived(JOB, 1)]
    driver.status("RUNNING")
    assert driver.ask(FindJobManager(JOB)).view.state == state
    assert sent(driver.die(1, reason="stopped"), ReleaseJob, RESOURCE_MANAGER)
    assert len(driver.spawned) == 1
    found = driver.ask(FindJobManager(JOB))
    assert (found.address, found.view.state) == (None, state)


def test_suspension_is_no_end():
    driver = Driver()
    driver.submit()
    driver.status("RUNNING")
    assert sent(driver.status("SUSPENDED"), JobArchived) == []
    driver.die(1, reason="stopped")
    assert len(driver.spawned) == 2


def test_frozen_job_manager_is_killed():
    driver = Driver()
    driver.submit(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    driver.give(HostPinged(f"jm-{JOB}-1", 0, ""))
    for _ in range(3):
        assert of_kind(driver.fire(f"ping-{JOB}"), PingHost)
    assert [kill.host for kill in of_kind(driver.fire(f"ping-{JOB}"), KillHost)] == [f"jm-{JOB}-1"]
    driver.die(1)
    assert driver.fire(f"ping-{JOB}")[-1] == PingHost(f"jm-{JOB}-2")


def test_shutdown_cancels_jobs_then_gives_back_then_answers():
    driver = Driver()
    driver.submit()
    driver.status("RUNNING")
    assert driver.ask(ShutDownCluster()) is None
    ask = str(driver.count)
    assert isinstance(driver.submit("late").error, ClusterUnavailableError)
    driver.status("CANCELED")
    assert sent(driver.die(1, reason="stopped"), ReleaseAll, RESOURCE_MANAGER) == [ReleaseAll(DISPATCHER)]
    assert ask not in driver.replies
    driver.give(AllReleased())
    assert driver.replies[ask] is True
    assert driver.ask(ShutDownCluster()) is True


def test_shutdown_tells_ended_jobs_not_to_linger():
    driver = Driver()
    driver.submit()
    driver.status("FINISHED")
    commands = driver.give(Asked("x", ShutDownCluster()))
    assert sent(commands, CancelJob, Address(f"jm-{JOB}-1", "jm")) == [CancelJob()]


def test_shutdown_kills_what_does_not_end_and_replaces_nothing():
    driver = Driver()
    driver.submit()
    driver.status("RUNNING")
    driver.give(Asked("x", ShutDownCluster()))
    assert [kill.host for kill in of_kind(driver.fire("shutdown"), KillHost)] == [f"jm-{JOB}-1"]
    assert sent(driver.die(1), ReleaseAll)
    assert len(driver.spawned) == 1
    assert driver.ask(FindJobManager(JOB)).view.state == "FAILED"


def test_shutdown_of_an_empty_cluster():
    driver = Driver()
    driver.give(Asked("x", ShutDownCluster()))
    driver.give(AllReleased())
    assert driver.replies["x"] is True


def test_a_cluster_for_its_jobs_alone_ends_when_the_last_has_gone():
    driver = Driver(ends_with_jobs=True)
    assert [timer.message for timer in of_kind(driver.give(Started(DISPATCHER)), StartTimer)]
    driver.submit()
    driver.submit("second")
    driver.status("FINISHED")
    assert not sent(driver.die(1, reason="stopped"), ReleaseAll), "the second one runs"
    driver.status("FAILED", job_id="second")
    assert sent(driver.die(1, "second", reason="stopped"), ReleaseAll, RESOURCE_MANAGER) == [ReleaseAll(DISPATCHER)]
    assert isinstance(driver.submit("late").error, ClusterUnavailableError)
    assert of_kind(driver.give(AllReleased()), StopHost) == [StopHost()]


def test_such_a_cluster_does_not_wait_for_ever_for_a_job():
    driver = Driver(ends_with_jobs=True)
    driver.give(Started(DISPATCHER))
    assert sent(driver.fire("jobs awaited"), ReleaseAll)
    driver = Driver(ends_with_jobs=True)
    driver.give(Started(DISPATCHER))
    driver.submit()
    assert not sent(driver.fire("jobs awaited"), ReleaseAll), "there is one, which runs"
    driver = Driver()
    driver.submit()
    driver.status("FINISHED")
    assert not sent(driver.die(1, reason="stopped"), ReleaseAll), "a session stays"


# ------------------------------------------------------------------------------------------------- what jobs have left
CHECKPOINTS = "memory://dispatcher/checkpoints"


@pytest.fixture
def store():
    MemoryFileSystem.forget("dispatcher")
    yield MemoryFileSystem.named("dispatcher")
    MemoryFileSystem.forget("dispatcher")


def dispatcher_with_job(store, **options):
    driver = Driver()
    driver.submit(checkpoints=True, directory=CHECKPOINTS, **options)
    storage = CheckpointStorage.open(CHECKPOINTS, JOB)
    storage.claim_epoch()
    return driver


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_it_is_done_whatever_becomes_of_the_job_manager(store, is_confirmed):
    driver = dispatcher_with_job(store)
    commands = driver.status("FINISHED")
    assert sent(commands, JobArchived)
    [work] = of_kind(commands, Offload)
    assert of_kind(driver.status("FINISHED"), Offload) == [], "the same word again"
    if not is_confirmed:
        assert of_kind(driver.die(1), Offload) == []
    driver.give(complete(work))
    assert sorted(store.files) == []


def test_it_is_done_for_a_job_that_the_dispatcher_itself_has_failed(store):
    driver = dispatcher_with_job(store, restart=RestartStrategy.none())
    CheckpointStorage.open(CHECKPOINTS, JOB).claim_epoch()
    driver.status("RUNNING")
    [work] = of_kind(driver.die(1), Offload)
    driver.give(complete(work))
    assert sorted(store.files) == [f"checkpoints/{JOB}/epochs/000000000002"]


def test_a_shutdown_waits_for_it(store):
    driver = dispatcher_with_job(store)
    [work] = of_kind(driver.status("FINISHED"), Offload)
    driver.die(1, reason="stopped")
    assert sent(driver.give(Asked("shutdown", ShutDownCluster())), ReleaseAll) == []
    assert sent(driver.give(complete(work)), ReleaseAll)


def test_what_could_not_be_deleted_is_told_with_the_job(store):
    driver = dispatcher_with_job(store)
    [work] = of_kind(driver.status("FINISHED"), Offload)
    failure = StorageError("the storage is unwell")
    for _ in range(MAX_ATTEMPTS - 1):
        driver.give(OffloadCompleted(work.name, work.token, None, failure))
        driver.fire("clean-up")
    driver.give(OffloadCompleted(work.name, work.token, None, failure))
    view = driver.ask(FindJobManager(JOB)).view
    assert view.state == "FINISHED"
    assert view.history[-1][1].startswith("could not delete the job's checkpoints")


@pytest.mark.parametrize("max_attempts", [0, -1])
def test_why_a_job_manager_was_lost_is_told_without_passwords(max_attempts):
    """Its last words are those of any error that it met, a file system's of other people's, say."""
    driver = Driver()
    driver.submit(restart=RestartStrategy(max_attempts, 10))
    driver.status("RUNNING")
    driver.die(1, reason="OSError('could not connect to s3://k:p4ss@host, password: p4ss')")
    view = driver.ask(FindJobManager(JOB)).view
    assert "could not connect" in view.failure
    assert "p4ss" not in f"{view!r}{view.error}"


def test_only_the_newest_ended_jobs_are_remembered_in_full(monkeypatch):
    monkeypatch.setattr("headrace.engine.cluster.archive.MAX_DETAILED_SUBTASKS", 4)
    driver = Driver()
    subtasks = (SubtaskView(0, TaskState.FINISHED, 0, "", "", "", {}, {}),)
    for job_id in ("a", "b", "c"):
        driver.submit(job_id)
        found = driver.ask(FindJobManager(job_id))
        view = replace(found.view, state=JobStatus.FINISHED)
        details = JobDetails(view, vertices=(VertexDetails("v", 1, "default", SubtaskTotals.of(subtasks), subtasks),))
        driver.give(JobStatusChanged(job_id, found.epoch, view, details))
    kept = [bool(driver.ask(FindJobManager(job_id)).details.vertices) for job_id in ("a", "b", "c")]
    assert kept == [False, True, True]
