"""What is deleted after a job's end, by whom, and that it may be interrupted and repeated anywhere.

Families: contract, and crash (each deletion fails once; the next one finishes the work).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_harness import JOB, ControlWorld, of_kind, settings, submission

from headrace.engine.checkpoint.io import clean_up_job
from headrace.engine.cluster.cleanup import MAX_ATTEMPTS, CleanUpAgain, JobCleanedUp, JobCleanup
from headrace.engine.errors import CheckpointError, StorageError
from headrace.engine.kernel.config import JobSettings, RestoreMode
from headrace.engine.kernel.machine import Offload, OffloadCompleted, StartTimer
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import StopMode
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

STORE = "cleanup"


@pytest.fixture
def store():
    MemoryFileSystem.forget(STORE)
    yield MemoryFileSystem.named(STORE)
    MemoryFileSystem.forget(STORE)


def ended(state, *, stopping=None, retain=False, claims=False):
    """A job with two complete checkpoints, one that was given up, a claimed snapshot, and three leaders behind it."""
    earlier = CheckpointStorage.open(f"memory://{STORE}/earlier", "other")
    if claims:
        w = ControlWorld(job(f"memory://{STORE}/earlier", "other")).run()
        for _ in range(2):
            w.fire(w.cc.address, "interval")
    given = {"restore_from": earlier.uri, "restore_mode": RestoreMode.CLAIM} if claims else {}
    submitted = job(f"memory://{STORE}/checkpoints", JOB, **given)
    storage = CheckpointStorage.open(f"memory://{STORE}/checkpoints", JOB)
    w = ControlWorld(submitted, epoch=3).run()
    for _ in range(2):
        w.fire(w.cc.address, "interval")
    root = f"{storage.root}/"
    for epoch in (1, 2):  # as if the last leader had completed no checkpoint, after which they go
        storage.fs.write_bytes(f"{root}epochs/{epoch:012d}", b"%d\n" % epoch)
    storage.fs.write_bytes(f"{root}chk-9/map/3.0-0-late.arrow", b"given up")
    storage.fs.write_bytes(f"{root}shared/map/1-3.0-0-nobody-names.sst", b"given up")
    checkpoints = replace(submitted.settings.checkpoints, retain_on_cancellation=retain)
    view = replace(w.jm.view(), state=JobStatus(state), stopping=stopping)
    assert len(storage.list_complete()) == 2
    assert storage.highest_epoch() == 3
    return replace(submitted.settings, checkpoints=checkpoints), view


def job(directory, job_id, **options):
    options = settings(checkpoints=True, directory=directory, num_retained=3, attached=False, **options)
    return replace(submission(job_settings=options), job_id=JobId(job_id))


def left(store, folder=f"checkpoints/{JOB}"):
    return sorted(path.removeprefix(f"{folder}/") for path in store.files if path.startswith(f"{folder}/"))


EPOCH = "epochs/000000000003"

ENDS = {
    "finished": {"state": "FINISHED"},
    "canceled": {"state": "CANCELED"},
    "stopped": {"state": "FINISHED", "stopping": StopMode.SUSPEND},
    "retained": {"state": "CANCELED", "retain": True},
    "failed": {"state": "FAILED"},
}


def test_failovers_leave_no_trail_of_epochs(store):
    storage = CheckpointStorage.open(f"memory://{STORE}/checkpoints", JOB)
    for _ in range(20):
        storage.claim_epoch()
    w = ControlWorld(job(f"memory://{STORE}/checkpoints", JOB), epoch=21).run()
    assert len([path for path in left(store) if path.startswith("epochs/")]) == 21
    w.fire(w.cc.address, "interval")
    kept = [path for path in left(store) if path.startswith("epochs/")]
    assert kept == [f"epochs/{epoch:012d}" for epoch in (19, 20, 21)]


@pytest.mark.parametrize("claims", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_it_leaves_what_the_settings_say(store, end, claims):
    options, view = ended(**ENDS[end], claims=claims)
    before = left(store)
    clean_up_job(options, view)
    after = left(store)
    manifests = [path for path in after if path.startswith("manifests/")]
    if end in ("finished", "canceled"):
        assert after == []
    elif end == "stopped":
        assert manifests == [f"manifests/chk-{view.last_checkpoint}.json"]
        assert [path for path in after if path.startswith(("chk-9", "shared/", "epochs/", "claimed"))] == [EPOCH]
    else:
        assert after == [path for path in before if not path.startswith("epochs/") or path == EPOCH]
    owned = left(store, "earlier/other")
    assert bool(owned) == (claims and end not in ("finished", "stopped"))


@pytest.mark.parametrize("end", ENDS)
def test_it_may_fail_anywhere_and_is_finished_by_whoever_comes_next(store, end):
    options, view = ended(**ENDS[end], claims=True)
    before = dict(store.files)
    clean_up_job(options, view)
    expected = dict(store.files)
    clean_up_job(options, view)
    assert store.files == expected, "again"
    num_failures = 0
    while True:
        store.files.clear()
        store.files.update(before)
        if not fails_at(store, num_failures, options, view):
            break
        num_failures += 1
        clean_up_job(options, view)
        assert store.files == expected, f"after the failure of operation {num_failures}"
    assert num_failures > 2


def fails_at(store, number, options, view):
    """Let the n-th operation on the store fail; gives whether there was one."""
    seen = []

    def fault(operation, path):
        seen.append(path)
        if len(seen) == number + 1:
            message = "the power went out"
            raise StorageError(message, operation=operation)

    store.fault = fault
    try:
        clean_up_job(options, view)
    except StorageError:
        return True
    finally:
        store.fault = None
    return False


def test_nothing_is_deleted_while_what_is_to_stay_cannot_be_read(store):
    options, view = ended("FINISHED", stopping=StopMode.SUSPEND)
    store.files[f"checkpoints/{JOB}/manifests/chk-{view.last_checkpoint}.json"] = b"{"
    before = dict(store.files)
    with pytest.raises(CheckpointError):
        clean_up_job(options, view)
    assert store.files == before


def test_without_checkpoints_there_is_nothing_to_do(store):
    _, view = ended("FINISHED")
    before = dict(store.files)
    clean_up_job(JobSettings(), view)
    assert store.files == before


# ---------------------------------------------------------------------------------------------------------- in its turn
FAILURE = StorageError("the storage is unwell")


def works(commands):
    return [command.token.job_id for command in of_kind(commands, Offload)]


def end(cleanup, job_id, error=None):
    return cleanup.ended(OffloadCompleted("clean_up_job", JobCleanedUp(job_id), None, error))


def test_one_job_at_a_time():
    cleanup = JobCleanup()
    assert works(cleanup.add("a", dict)) == ["a"]
    assert cleanup.add("b", dict) == []
    assert cleanup.add("a", dict) == [], "it is being done"
    commands, problem = end(cleanup, "a")
    assert (works(commands), problem) == (["b"], None)
    assert "a" not in cleanup
    assert not cleanup.is_idle
    assert end(cleanup, "b") == ([], None)
    assert cleanup.is_idle


def test_a_failure_is_tried_again_and_then_told_and_holds_up_no_other():
    cleanup = JobCleanup()
    cleanup.add("a", dict)
    cleanup.add("b", dict)
    for _ in range(MAX_ATTEMPTS - 1):
        [timer], problem = end(cleanup, "a", FAILURE)
        assert isinstance(timer, StartTimer)
        assert timer.message == CleanUpAgain()
        assert problem is None
        assert works(cleanup.again()) == ["a"]
    commands, problem = end(cleanup, "a", FAILURE)
    assert works(commands) == ["b"]
    assert problem == f"could not delete the job's checkpoints: {FAILURE}"
    [timer], _ = end(cleanup, "b", FAILURE)
    assert isinstance(timer, StartTimer), "it has its own attempts"
