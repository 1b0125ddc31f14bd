"""The Dispatcher that leads, waits or has been replaced: what it stores, takes over, acknowledges and ends.

Families: contract (each message and each failure of the store), planted bugs; the simulator has the rest.
"""

from __future__ import annotations

import pytest
from control_harness import complete, of_kind, sent, settings, submission
from leading_kit import JOB, LEASE_MS, Head, successor

from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint.io import Fenced, prepare_job, publish_checkpoint, remove_checkpoints
from headrace.engine.checkpoint.restore_choice import JobPast
from headrace.engine.cluster import job_store_io
from headrace.engine.cluster.dispatcher import MAX_STORE_ATTEMPTS
from headrace.engine.cluster.leadership import (
    EndStandby,
    LeaderFound,
    LeaderRefused,
    StandbyReported,
    WhoLeads,
)
from headrace.engine.cluster.standbys import StandbysDue
from headrace.engine.errors import (
    CheckpointError,
    CheckpointLostError,
    ClusterUnavailableError,
    ConfigurationError,
    StorageError,
    SupersededError,
)
from headrace.engine.kernel.config import CheckpointSettings
from headrace.engine.kernel.machine import (
    Address,
    Asked,
    HostTerminated,
    KillHost,
    Offload,
    Send,
    SpawnHost,
    StopHost,
)
from headrace.engine.protocol.control_messages import AllReleased, JobArchived
from headrace.engine.protocol.messages import FindJobManager, JobSubmitted, ListJobs, ShutDownCluster
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import FileLease
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem


@pytest.fixture
def fs():
    return MemoryFileSystem()


# ----------------------------------------------------------------------------------------------------------- dispatcher
def fails_on(fs, operation, part):
    def fault(done, path):
        if done == operation and part in path:
            message = f"could not {operation} a file: the storage is unwell"
            raise StorageError(message, operation=operation)

    fs.fault = fault


def test_a_submission_is_stored_before_it_is_acknowledged(fs):
    head = Head(fs)
    head.is_io_free = False
    assert head.submit() is None
    assert not head.spawned()
    [store] = head.works
    assert store.name == "store_submission"
    head.is_io_free = True
    head.give(complete(head.works.pop()))
    assert head.replies["0"] == JobSubmitted(JOB)
    assert head.stored()[JOB].submission.facts["name"] == "test"
    assert head.spawned() == [f"jm-{JOB}-{(1 << 20) + 1}"]


def test_a_leader_that_was_replaced_while_it_slept_stores_no_submission(fs):
    head = Head(fs)
    head.is_io_free = False
    head.submit()
    successor(fs, head)
    done = complete(head.works.pop())
    assert isinstance(done.error, SupersededError)
    assert not head.stored()


def test_a_leader_that_may_not_trust_what_is_stored_says_so_until_it_may(fs, monkeypatch):
    """It is the heads' disk that counts: nobody else may be able to look."""

    def refuse(_store, _job_ids=()):
        message = "others can write there"
        raise ConfigurationError(message)

    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "require_trusted", refuse)
        head = Head(fs)
        assert isinstance(head.submit().error, ConfigurationError)
        assert isinstance(head.ask(ListJobs()).error, ConfigurationError)
        assert isinstance(head.ask(ShutDownCluster()), LeaderRefused)
    head.pass_time(10_000)
    assert head.submit() == JobSubmitted(JOB)


def test_a_submission_asked_for_again_meanwhile_is_stored_once(fs):
    head = Head(fs)
    head.is_io_free = False
    head.submit()
    head.submit()
    assert len(head.works) == 1
    head.give(complete(head.works.pop()))
    assert head.replies == {"0": JobSubmitted(JOB), "1": JobSubmitted(JOB)}
    assert len(head.spawned()) == 1


def test_a_submission_that_cannot_be_stored_is_tried_again_and_then_refused(fs):
    head = Head(fs)
    fails_on(fs, "create", "submission")
    assert head.submit() is None
    for _ in range(MAX_STORE_ATTEMPTS):
        head.pass_time(600)
    assert isinstance(head.replies["0"].error, StorageError)
    assert not head.spawned()
    fs.fault = None
    head.pass_time(1_000)
    assert head.stored()[JOB].submission is None  # it has an end, so nobody starts it


def test_the_next_leader_runs_what_has_not_ended_under_larger_epochs(fs):
    head = Head(fs)
    head.submit()
    head.submit("job-2")
    head.status("FINISHED", "job-2")
    after = successor(fs, head)
    assert after.spawned() == [f"jm-{JOB}-{(2 << 20) + 1}"]
    assert [(view.job_id, view.state) for view in after.ask(ListJobs())] == [
        (JOB, "RESTARTING"),
        ("job-2", "FINISHED"),
    ]
    assert after.submit() == JobSubmitted(JOB)


def test_an_end_is_archived_and_told_only_once_it_is_stored(fs):
    head = Head(fs)
    head.submit()
    fails_on(fs, "write", "ended")
    commands = head.status("FINISHED")
    assert not sent(head.out, JobArchived)
    assert not of_kind(commands, Send)
    assert head.ask(FindJobManager(JOB)).view.state != "FINISHED"
    fs.fault = None
    head.pass_time(600)
    assert sent(head.out, JobArchived)
    assert head.ask(FindJobManager(JOB)).view.state == "FINISHED"


def test_what_a_job_has_left_is_deleted_by_the_next_leader_if_this_one_does_not_come_to_it(fs):
    MemoryFileSystem.forget("left")
    store = MemoryFileSystem.named("left")
    head = Head(fs)
    head.submit(checkpoints=True, directory="memory://left")
    CheckpointStorage.open("memory://left", JOB).claim_epoch()
    head.is_io_free = False
    head.status("FINISHED")
    head.give(complete(head.works.pop()))
    assert sent(head.out, JobArchived), "the end is stored"
    assert [work.name for work in head.works] == ["clean_up_job"]
    assert store.files
    after = successor(fs, head)
    assert after.ask(FindJobManager(JOB)).view.state == "FINISHED"
    assert after.spawned() == []
    assert not store.files
    assert after.stored()[JOB].submission is None
    third = successor(fs, after, "head-c")
    third.is_io_free = False
    assert "clean_up_job" not in [work.name for work in of_kind(third.out, Offload)], "it is done for good"
    assert third.ask(FindJobManager(JOB)).view.state == "FINISHED"


def test_the_submission_stays_until_all_is_deleted(fs):
    MemoryFileSystem.forget("left")
    store = MemoryFileSystem.named("left")
    head = Head(fs)
    head.submit(checkpoints=True, directory="memory://left")
    CheckpointStorage.open("memory://left", JOB).claim_epoch()
    fails_on(store, "delete", "epochs")
    head.status("FINISHED")
    assert head.stored()[JOB].submission is not None
    store.fault = None
    head.pass_time(600)
    assert not store.files
    assert head.stored()[JOB].submission is None


def test_a_job_manager_that_dies_while_its_end_is_stored_is_not_replaced(fs):
    head = Head(fs)
    head.submit()
    head.is_io_free = False
    head.status("FINISHED")
    head.give(HostTerminated(head.spawned()[0], "killed"))
    assert len(head.spawned()) == 1
    head.give(complete(head.works.pop()))
    assert head.ask(FindJobManager(JOB)).view.state == "FINISHED"


def test_a_deposed_leader_archives_nothing_and_ends(fs):
    head = Head(fs)
    head.submit()
    after = successor(fs, head)
    head.machine.monotonic_ms = lambda: 0  # it believes that no time has passed
    head.status("FINISHED")
    assert not sent(head.out, JobArchived)
    assert head.out[-1] == StopHost()
    assert after.stored()[JOB].end is None


def test_a_deposed_leader_acknowledges_nothing(fs):
    head = Head(fs)
    after = successor(fs, head)
    head.machine.monotonic_ms = lambda: 0
    assert head.submit() is None
    assert head.out[-1] == StopHost()
    assert after.ask(ListJobs()) == []


def no_look_at_the_epoch(_lease, _epoch):
    """Planted: nobody looks whether another leader had come."""


def no_mark_of_adoption(_store, _job_id, _epoch):
    """Planted: a leader does not say what it has taken over."""


@pytest.mark.parametrize(
    ("owner", "name", "bug", "test"),
    [
        (job_store_io, "_check_epoch", no_look_at_the_epoch, test_a_deposed_leader_archives_nothing_and_ends),
        (job_store_io, "_check_epoch", no_look_at_the_epoch, test_a_deposed_leader_acknowledges_nothing),
        (JobStore, "adopt", no_mark_of_adoption, test_a_deposed_leader_archives_nothing_and_ends),
    ],
    ids=["end told", "submission acknowledged", "end counts"],
)
def test_the_bug_that_each_of_these_tests_is_for_is_caught(fs, monkeypatch, owner, name, bug, test):
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        test(fs)


def test_a_leader_that_was_stopped_does_nothing_but_end(fs):
    head = Head(fs)
    head.submit()
    head.now += LEASE_MS
    [job_manager] = head.spawned()
    commands = head.give(HostTerminated(job_manager, "killed"))
    assert [type(command) for command in commands] == [KillHost, StopHost]
    assert head.spawned() == [job_manager]


def test_a_standby_answers_who_leads_and_refuses_everything_else(fs):
    Head(fs)
    standby = Head(fs, "head-b")
    assert standby.ask(WhoLeads()) == LeaderFound(1, "head-a")
    for request in (ListJobs(), FindJobManager(JOB), submission(), ShutDownCluster()):
        assert standby.ask(request) == LeaderRefused()
    assert Send(Address("head-a", "dispatcher"), StandbyReported("head-b")) in standby.out


def test_a_job_without_restart_strategy_fails_with_its_leader(fs):
    head = Head(fs)
    head.submit(restart=None)
    after = successor(fs, head)
    [view] = after.ask(ListJobs())
    assert view.state == "FAILED"
    assert "no restart strategy" in view.failure
    assert after.stored()[JOB].end is not None


def test_a_damaged_entry_is_shown_and_the_others_run(fs):
    head = Head(fs)
    head.submit()
    head.submit("job-2")
    fs.files[f"cluster/jobs/{JOB}/submission"] = b"nonsense"
    after = successor(fs, head)
    views = {view.job_id: view for view in after.ask(ListJobs())}
    assert views[JOB].state == "FAILED"
    assert "submission" in views[JOB].failure
    assert views["job-2"].state == "RESTARTING"
    assert fs.files[f"cluster/jobs/{JOB}/submission"] == b"nonsense"  # left for somebody to repair


def test_recovery_is_tried_again_until_the_store_answers(fs):
    head = Head(fs)
    head.submit()
    fails_on(fs, "read", "submission")
    after = successor(fs, head)
    assert after.ask(ListJobs()) == LeaderRefused()
    fs.fault = None
    after.pass_time(600)
    assert [view.job_id for view in after.ask(ListJobs())] == [JOB]


def test_the_leader_before_is_ended_by_its_successor(fs):
    head = Head(fs)
    ended = []
    after = Head(fs, "head-b", end_host=lambda record: ended.append(record.host) or "killed it")
    after.pass_time(2 * LEASE_MS)
    assert ended == [head.address.host]
    assert "killed it" in " ".join(after.machine.log.story("lease"))


def test_missing_standbys_are_started_once_and_again_when_they_fall_silent(fs):
    head = Head(fs, num_standbys=2, make_standby=lambda host, born_after: (("dispatcher", None),))
    head.give(StandbyReported("head-x"))
    head.pass_time(LEASE_MS // 2 - 50)
    assert not head.spawned()
    head.give(StandbyReported("head-x"))
    head.pass_time(LEASE_MS // 2)
    assert head.spawned() == ["head-1-0"]
    assert all(command.resources["detached"] for command in of_kind(head.out, SpawnHost))
    for _ in range(6):
        head.give(StandbyReported("head-1-0"))
        head.pass_time(LEASE_MS)
    assert head.spawned() == ["head-1-0", "head-1-1"]


def test_shutting_down_closes_the_lease_and_ends_the_standbys(fs):
    head = Head(fs)
    head.give(StandbyReported("head-b"))
    ask_id = str(next(head.count))
    head.give(Asked(ask_id, ShutDownCluster()))
    head.give(AllReleased())
    assert head.replies[ask_id] is True
    assert Send(Address("head-b", "dispatcher"), EndStandby(1)) in head.out
    assert FileLease(fs, "lease").observe().is_closed
    head.give(StandbysDue())
    assert not head.spawned()


def test_a_lease_that_could_not_be_given_back_is_given_back_again(fs):
    """Else a head that was asleep could take it when it has run out, and the cluster would be back."""
    head = Head(fs)
    ask_id = str(next(head.count))
    head.give(Asked(ask_id, ShutDownCluster()))
    fails_on(fs, "write", "renewals")
    head.give(AllReleased())
    assert ask_id not in head.replies
    fs.fault = None
    head.pass_time(LEASE_MS // 3)
    assert head.replies[ask_id] is True
    assert FileLease(fs, "lease").observe().is_closed


def test_a_lease_that_cannot_be_given_back_runs_out(fs):
    head = Head(fs)
    ask_id = str(next(head.count))
    head.give(Asked(ask_id, ShutDownCluster()))
    fails_on(fs, "write", "renewals")
    head.give(AllReleased())
    assert StopHost() not in head.out
    head.pass_time(LEASE_MS)
    assert StopHost() in head.out


def test_a_submission_that_is_stored_while_the_cluster_is_shut_down_is_refused_and_ended(fs):
    head = Head(fs)
    head.is_io_free = False
    assert head.submit() is None
    assert head.ask(ShutDownCluster()) is None
    head.is_io_free = True
    head.give(complete(head.works.pop(0)))
    assert head.spawned() == []
    assert isinstance(head.replies["0"].error, ClusterUnavailableError)
    assert head.stored()[JOB].end is not None, "the next cluster must not start what was refused"
    head.give(AllReleased())
    assert head.replies["1"] is True


def test_a_standby_is_ended_by_the_leader_only(fs):
    head, standby = Head(fs), Head(fs, "head-b")
    assert standby.give(EndStandby(1)) == [StopHost()]
    assert head.give(EndStandby(1)) == []
    assert Head(fs, "head-c").give(EndStandby(0)) == []


def test_a_store_of_checkpoints_refuses_job_managers_of_earlier_leaders(fs):
    directory = "memory://terms"
    MemoryFileSystem.forget("terms")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    assert isinstance(job.settings.checkpoints, CheckpointSettings)
    later = prepare_job(job, (2 << 20) + 1)
    assert later.epoch == (2 << 20) + 1
    with pytest.raises(SupersededError):
        prepare_job(job, (1 << 20) + 9)
    assert prepare_job(job, (2 << 20) + 1).epoch == (2 << 20) + 2


def test_a_job_manager_that_was_left_behind_publishes_nothing_once_the_job_has_ended_elsewhere(fs):
    """The job's folder is gone, and with it the epochs that told it that it was replaced."""
    directory = "memory://removed"
    MemoryFileSystem.forget("removed")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    old = prepare_job(job, (1 << 20) + 1).epoch
    new = prepare_job(job, (2 << 20) + 1).epoch
    assert "chk-1" in publish_checkpoint(directory, job, new, 1, 0, (), {}, ())
    assert isinstance(publish_checkpoint(directory, job, old, 2, 0, (), {}, ()), Fenced)
    store = MemoryFileSystem.named("removed")
    epochs = []
    store.fault = lambda operation, path: epochs.append(path[-12:]) if operation == "delete" else None
    remove_checkpoints(directory, job.job_id)
    store.fault = None
    assert [int(path) for path in epochs if path.isdigit()] == [old, new]
    written = []
    store.fault = lambda operation, path: written.append(path) if operation in ("write", "create") else None
    assert isinstance(publish_checkpoint(directory, job, old, 2, 0, (), {}, ()), Fenced)
    store.fault = None
    assert written == [], "nobody may see it, not even for a moment"
    assert store.files == {}


def test_no_checkpoint_reads_the_program_again(fs, monkeypatch):
    """It holds all functions of a user, and whatever they refer to."""
    read, load_program = [], checkpoint_io.load_program
    monkeypatch.setattr(checkpoint_io, "load_program", lambda program: read.append(program) or load_program(program))
    checkpoint_io._nodes_of.cache_clear()
    directory = "memory://read-once"
    MemoryFileSystem.forget("read-once")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    epoch = prepare_job(job, (1 << 20) + 1).epoch
    read.clear()
    for number in (1, 2, 3):
        assert f"chk-{number}" in publish_checkpoint(directory, job, epoch, number, 0, (), {}, ())
    assert read == [job.job_graph]


def test_a_checkpoint_whose_folder_is_deleted_while_it_is_published_is_taken_back(fs):
    directory = "memory://meanwhile"
    MemoryFileSystem.forget("meanwhile")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    epoch = prepare_job(job, (1 << 20) + 1).epoch
    store = MemoryFileSystem.named("meanwhile")

    def fault(operation: str, path: str) -> None:
        if operation == "create" and "/manifests/" in path:
            store.fault = None
            remove_checkpoints(directory, job.job_id)

    store.fault = fault
    assert isinstance(publish_checkpoint(directory, job, epoch, 1, 0, (), {}, ()), Fenced)
    assert store.fault is None, "the folder was deleted in the middle"
    assert store.files == {}


def test_a_job_that_is_taken_over_without_its_folder_does_not_start_anew(fs):
    """A folder is made before a job is stored, so one that is not there has been deleted, with who knows what."""
    MemoryFileSystem.forget("vanished")
    store = MemoryFileSystem.named("vanished")
    head = Head(fs)
    job = submission(job_settings=settings(checkpoints=True, directory="memory://vanished"))
    assert head.submit(checkpoints=True, directory="memory://vanished") == JobSubmitted(JOB)
    assert [path for path in store.files if "/epochs/" in path], "before anything is said to the client"
    taken_over = JobPast(has_run=True)
    assert prepare_job(job, (2 << 20) + 1, taken_over).restore_point is None, "it had not begun"
    store.files.clear()
    with pytest.raises(CheckpointLostError, match="the job has run, and its folder in the checkpoint store is gone"):
        prepare_job(job, (3 << 20) + 1, taken_over)
    assert not store.files, "nothing is written where another disk may be mounted in a moment"


def test_a_submission_whose_checkpoints_have_no_place_is_not_acknowledged(fs):
    MemoryFileSystem.forget("full")
    fails_on(MemoryFileSystem.named("full"), "create", "epochs")
    head = Head(fs)
    head.submit(checkpoints=True, directory="memory://full")
    head.pass_time(5_000)
    assert JOB not in head.stored() or head.stored()[JOB].end is not None


def test_what_was_complete_is_noted_before_anybody_hears_of_it(fs):
    """A JobManager may die right behind that, and the Dispatcher may not have heard of the checkpoint."""
    directory = "memory://noted"
    MemoryFileSystem.forget("noted")
    store = MemoryFileSystem.named("noted")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    epoch = prepare_job(job, 1).epoch
    fails_on(store, "write", "completed")
    with pytest.raises(StorageError):
        publish_checkpoint(directory, job, epoch, 1, 0, (), {}, ())
    store.fault = None
    publish_checkpoint(directory, job, epoch, 2, 0, (), {}, ())
    for checkpoint_id in (1, 2):
        del store.files[f"{JOB}/manifests/chk-{checkpoint_id}.json"]
    with pytest.raises(CheckpointLostError, match="checkpoint 2 was complete, and the store has none"):
        prepare_job(job, epoch + 1)


def test_an_epoch_that_somebody_has_deleted_costs_no_checkpoint(fs):
    """As whatever deletes files by their age does: the epoch is the oldest of a job's folder."""
    directory = "memory://swept"
    MemoryFileSystem.forget("swept")
    job = submission(job_settings=settings(checkpoints=True, directory=directory))
    epoch = prepare_job(job, (1 << 20) + 1).epoch
    assert "chk-1" in publish_checkpoint(directory, job, epoch, 1, 0, (), {}, ())
    storage = CheckpointStorage.open(directory, job.job_id)
    storage.fs.delete_directory(f"{storage.root}/epochs")
    with pytest.raises(CheckpointError, match="epochs have been deleted by somebody else"):
        publish_checkpoint(directory, job, epoch, 2, 0, (), {}, ())
    assert storage.list_complete() == [1]
    again = prepare_job(job, epoch + 1)
    assert (again.epoch, again.restore_point.checkpoint_id) == (epoch + 1, 1)
    assert "chk-2" in publish_checkpoint(directory, job, again.epoch, 2, 0, (), {}, ())
