"""The job store: what counts, whatever late writers of earlier leaders do; damage; who may read it.

Families: property (every interleaving of two leaders' writes), corruption, permissions.
"""

from __future__ import annotations

import itertools
import os
import stat

import pytest

from headrace.state.errors import AlreadyExistsError, ConfigurationError, StorageError
from headrace.state.job_store import JobStore, StoredJob
from headrace.state.memory_filesystem import MemoryFileSystem


@pytest.fixture
def store():
    return JobStore(MemoryFileSystem(), "cluster")


def jobs(store):
    return {job.job_id: job for job in store.read_all()}


def test_a_submission_is_read_back(store):
    store.put_submission("a", 1, b"graph")
    assert jobs(store) == {"a": StoredJob("a", b"graph", None)}


def test_the_same_submission_again_is_no_error_and_another_one_is(store):
    store.put_submission("a", 1, b"graph")
    store.put_submission("a", 2, b"graph")
    with pytest.raises(AlreadyExistsError):
        store.put_submission("a", 2, b"another")


def test_a_job_that_has_ended_keeps_its_submission_until_that_is_dropped(store):
    store.put_submission("a", 1, b"graph")
    store.put_end("a", 1, b"view")
    assert jobs(store)["a"] == StoredJob("a", b"graph", b"view")
    store.drop_submission("a")
    assert jobs(store)["a"] == StoredJob("a", None, b"view")


def test_an_end_stands_without_a_sound_submission(store):
    store.put_submission("a", 1, b"graph")
    store.put_end("a", 1, b"view")
    [path] = [path for path in store.fs.files if path.endswith("/submission")]
    store.fs.files[path] = b"torn"
    assert jobs(store)["a"] == StoredJob("a", None, b"view")


def test_an_end_of_a_leader_that_was_replaced_does_not_count(store):
    store.put_submission("a", 1, b"graph")
    store.adopt("a", 2)
    store.put_end("a", 1, b"too late")
    assert jobs(store)["a"].submission == b"graph"
    store.put_end("a", 2, b"view")
    assert jobs(store)["a"].end == b"view"


def test_a_refusal_of_a_leader_that_was_replaced_does_not_end_what_the_next_one_took(store):
    store.put_submission("a", 1, b"graph")
    store.put_submission("a", 2, b"graph")
    store.put_end("a", 1, b"refused")
    assert jobs(store)["a"].submission == b"graph"


def test_the_newest_end_counts(store):
    store.put_submission("a", 1, b"graph")
    store.put_end("a", 1, b"old")
    store.adopt("a", 2)
    store.put_end("a", 3, b"new")
    assert jobs(store)["a"].end == b"new"


@pytest.mark.parametrize("cut", range(4))
def test_a_job_that_is_half_removed_is_not_open_again(store, cut):
    store.put_submission("a", 1, b"graph")
    store.adopt("a", 2)
    store.put_end("a", 2, b"view")
    store.drop_submission("a")
    removed = itertools.count()

    def fault(operation, _path):
        if operation == "delete" and next(removed) == cut:
            message = "the power went out"
            raise StorageError(message, operation=operation)

    store.fs.fault = fault
    if cut < 3:
        with pytest.raises(StorageError):
            store.remove("a")
    else:
        store.remove("a")
    store.fs.fault = None
    left = jobs(store)
    assert all(job.submission is None for job in left.values())
    assert bool(left) == (cut < 3)


@pytest.mark.parametrize("entry", ["submission", "ended/000000000001"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_entry_is_named_and_hides_no_other(store, entry, damage):
    store.put_submission("sound", 1, b"graph")
    store.put_submission("bad", 1, b"graph of bad")
    if entry != "submission":
        store.put_end("bad", 1, b"view of bad")
    path = f"cluster/jobs/bad/{entry}"
    data = store.fs.files[path]
    store.fs.files[path] = {
        "cut": data[:-3],
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "empty": b"",
        "foreign": store.fs.files["cluster/jobs/sound/submission"],
    }[damage]
    found = jobs(store)
    assert found["sound"].submission == b"graph"
    assert (found["bad"].submission, found["bad"].end) == (None, None)
    assert path in found["bad"].problem


def test_an_entry_of_a_newer_format_is_named(store):
    store.put_submission("a", 1, b"graph")
    path = "cluster/jobs/a/submission"
    store.fs.files[path] = store.fs.files[path].replace(b'"format": 1', b'"format": 2')
    assert "format 2" in jobs(store)["a"].problem


def test_a_store_that_fails_is_not_a_damaged_entry(store):
    store.put_submission("a", 1, b"graph")

    def fault(operation, _path):
        if operation == "read":
            message = "could not read a file: no route to host"
            raise StorageError(message, operation=operation)

    store.fs.fault = fault
    with pytest.raises(StorageError, match="no route"):
        store.read_all()


def test_other_files_are_passed_over(store):
    store.put_submission("a", 1, b"graph")
    store.fs.files["cluster/jobs/a/.submission.123.tmp"] = b"half"
    store.fs.files["cluster/jobs/..hidden/submission"] = b"?"
    store.fs.files["cluster/jobs/readme"] = b"?"
    assert list(jobs(store)) == ["a"]


def test_a_job_id_is_a_name(store):
    with pytest.raises(ConfigurationError):
        store.put_submission("../a", 1, b"")


def test_on_a_disk_it_is_for_its_owner_alone(tmp_path):
    umask = os.umask(0)
    try:
        store = JobStore.open(str(tmp_path / "ha" / "c"))
        store.put_submission("a", 1, b"graph")
        store.put_end("a", 1, b"view")
        store.adopt("a", 2)
    finally:
        os.umask(umask)
    for directory, _, names in os.walk(tmp_path / "ha"):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) == 0o600 for name in names)
