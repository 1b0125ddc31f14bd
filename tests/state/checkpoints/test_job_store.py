"""The job store: what counts, whatever late writers of earlier leaders do; damage; who may read it.

Families: property (every interleaving of two leaders' writes), corruption, hostile entries, permissions.
"""

from __future__ import annotations

import itertools
import json
import os
import stat

import pytest

from headrace.state.checkpoints import job_store
from headrace.state.checkpoints.job_store import JobStore, StoredJob, StoredSubmission
from headrace.state.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DamagedFileError,
    StorageError,
    TypeMismatchError,
)
from headrace.state.files.memory import MemoryFileSystem

FACTS = {"name": "x", "settings": {"interval_ms": 5}}
GRAPH = StoredSubmission(FACTS, b"graph")


@pytest.fixture
def store():
    return JobStore(MemoryFileSystem(), "cluster")


def jobs(store):
    return {job.job_id: job for job in store.read_all()}


def test_a_submission_is_read_back(store):
    store.put_submission("a", 1, FACTS, b"graph")
    assert jobs(store) == {"a": StoredJob("a", GRAPH, None)}


def test_the_same_submission_again_is_no_error_and_another_one_is(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_submission("a", 2, FACTS, b"graph")
    with pytest.raises(AlreadyExistsError):
        store.put_submission("a", 2, FACTS, b"another")


def test_a_job_that_has_ended_keeps_its_submission_until_that_is_dropped(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_end("a", 1, {"end": "view"})
    assert jobs(store)["a"] == StoredJob("a", GRAPH, {"end": "view"})
    store.drop_submission("a")
    assert jobs(store)["a"] == StoredJob("a", None, {"end": "view"})


def test_an_end_stands_without_a_sound_submission(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_end("a", 1, {"end": "view"})
    [path] = [path for path in store.fs.files if path.endswith("/submission")]
    store.fs.files[path] = b"torn"
    assert jobs(store)["a"] == StoredJob("a", None, {"end": "view"})


def test_an_end_of_a_leader_that_was_replaced_does_not_count(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.adopt("a", 2)
    store.put_end("a", 1, {"end": "too late"})
    assert jobs(store)["a"].submission == GRAPH
    store.put_end("a", 2, {"end": "view"})
    assert jobs(store)["a"].end == {"end": "view"}


def test_a_refusal_of_a_leader_that_was_replaced_does_not_end_what_the_next_one_took(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_submission("a", 2, FACTS, b"graph")
    store.put_end("a", 1, {"end": "refused"})
    assert jobs(store)["a"].submission == GRAPH


def test_the_newest_end_counts(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_end("a", 1, {"end": "old"})
    store.adopt("a", 2)
    store.put_end("a", 3, {"end": "new"})
    assert jobs(store)["a"].end == {"end": "new"}


@pytest.mark.parametrize("cut", range(4))
def test_a_job_that_is_half_removed_is_not_open_again(store, cut):
    store.put_submission("a", 1, FACTS, b"graph")
    store.adopt("a", 2)
    store.put_end("a", 2, {"end": "view"})
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
    store.put_submission("sound", 1, FACTS, b"graph")
    store.put_submission("bad", 1, FACTS, b"graph of bad")
    if entry != "submission":
        store.put_end("bad", 1, {"end": "view of bad"})
    path = f"cluster/jobs/bad/{entry}"
    data = store.fs.files[path]
    store.fs.files[path] = {
        "cut": data[:-3],
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "empty": b"",
        "foreign": store.fs.files["cluster/jobs/sound/submission"],
    }[damage]
    found = jobs(store)
    assert found["sound"].submission == GRAPH
    assert (found["bad"].submission, found["bad"].end) == (None, None)
    assert path in found["bad"].problem


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_an_entry_of_another_format_is_named(store, version):
    store.put_submission("a", 1, FACTS, b"graph")
    path = "cluster/jobs/a/submission"
    store.fs.files[path] = store.fs.files[path].replace(b'"format":2', b'"format":' + json.dumps(version).encode())
    assert f"format {version!r}; this Headrace reads format 2" in jobs(store)["a"].problem


def test_an_entry_that_is_too_large_is_refused_before_it_is_read(store, monkeypatch):
    """Ten gigabytes in the place of a submission are named, as all damage is, and cost nobody their memory."""
    store.put_submission("sound", 1, FACTS, b"graph")
    store.put_submission("a", 1, FACTS, b"graph")
    read_bytes, list_files, read = store.fs.read_bytes, store.fs.list_files, []

    def huge(prefix):
        return [(path, 10 << 30 if "/a/" in path else size) for path, size in list_files(prefix)]

    def watched(path, max_bytes=None):
        read.append((path, max_bytes))
        return read_bytes(path, max_bytes)

    monkeypatch.setattr(store.fs, "list_files", huge)
    monkeypatch.setattr(store.fs, "read_bytes", watched)
    found = jobs(store)
    assert "10,737,418,240 bytes" in found["a"].problem
    assert found["sound"].submission == GRAPH
    assert [path for path, _ in read] == ["cluster/jobs/sound/submission"]
    assert all(max_bytes is not None for _, max_bytes in read)


@pytest.mark.parametrize("kind", ["submission", "ended/000000000001"])
def test_an_entry_that_grows_while_it_is_read_is_named(store, monkeypatch, kind):
    store.put_submission("a", 1, FACTS, b"graph")
    store.put_end("a", 1, {})
    if kind == "submission":
        store.fs.delete("cluster/jobs/a/ended/000000000001")
    monkeypatch.setattr(job_store, "_MAX_ENTRY_BYTES", 10)
    listed = [(path, 1) for path, _ in store.fs.list_files("cluster")]
    monkeypatch.setattr(store.fs, "list_files", lambda _prefix: listed)
    assert "more than the 10 bytes" in jobs(store)["a"].problem


def test_what_is_too_large_is_not_stored(store, monkeypatch):
    monkeypatch.setattr(job_store, "MAX_PROGRAM_BYTES", 10)
    monkeypatch.setattr(job_store, "MAX_FACTS_BYTES", 100)
    with pytest.raises(TypeMismatchError, match="program of a job of 11 bytes"):
        store.put_submission("a", 1, FACTS, b"x" * 11)
    with pytest.raises(TypeMismatchError, match="facts of a job of"):
        store.put_end("a", 1, {"x": "y" * 100})
    assert store.fs.files == {}


@pytest.mark.parametrize("facts", [{"x": float("nan")}, {"x": {1, 2}}, {"x": b"y"}])
def test_facts_are_json_values(store, facts):
    with pytest.raises(TypeMismatchError):
        store.put_end("a", 1, facts)


def test_an_entry_on_unreadable_blocks_is_damaged_and_no_outage(store):
    store.put_submission("sound", 1, FACTS, b"graph")
    store.put_submission("a", 1, FACTS, b"graph")

    def fault(operation, path):
        if operation == "read" and "/a/" in path:
            message = "could not read a file: input/output error"
            raise DamagedFileError(message, operation=operation)

    store.fs.fault = fault
    found = jobs(store)
    assert found["sound"].submission == GRAPH
    assert "input/output error" in found["a"].problem


# --------------------------------------------------------------------------------------------------------- with a key
@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("k " + "5a" * 32)
    path.chmod(0o600)
    return str(path)


def changed_header(data, **changes):
    """An entry whose header says something else, and is right about it: what only a signature can tell."""
    head, _, rest = data.partition(b"\n")
    header = {**json.loads(head), **changes}
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + rest


def test_an_end_stands_for_the_epoch_that_it_was_written_in(store, key_file):
    """A signed end of an old epoch under the name of a newer one would end a job that runs."""
    for own_store in (store, JobStore(store.fs, "signed", key_file)):
        own_store.put_submission("a", 1, FACTS, b"graph")
        own_store.put_end("a", 1, {"end": "too late"})
        own_store.adopt("a", 2)
        assert jobs(own_store)["a"].submission == GRAPH
        old = f"{own_store.root}/jobs/a/ended/000000000001"
        store.fs.files[f"{own_store.root}/jobs/a/ended/000000000003"] = store.fs.files[old]
        found = jobs(own_store)["a"]
        assert found.end is None
        assert "does not have the content" in found.problem or "is of another place" in found.problem


@pytest.mark.parametrize("forged", ["program", "facts", "job", "epoch", "unsigned"])
def test_with_a_key_nothing_of_a_forged_entry_is_handed_out(store, key_file, forged):
    signed = JobStore(store.fs, "cluster", key_file)
    signed.put_submission("a", 1, FACTS, b"graph")
    signed.put_submission("other", 1, FACTS, b"graph")
    path = "cluster/jobs/a/submission"
    data = store.fs.files[path]
    if forged == "job":
        store.fs.files[path] = store.fs.files["cluster/jobs/other/submission"]
    elif forged == "epoch":
        store.fs.files[path] = changed_header(data, epoch=7)
    else:
        store.put_submission("b", 1, {"name": "evil"} if forged == "facts" else FACTS, b"evil")
        theirs = store.fs.files.pop("cluster/jobs/b/submission")
        signature = json.loads(data.partition(b"\n")[0])["signature"]
        store.fs.files[path] = theirs if forged == "unsigned" else changed_header(theirs, job="a", signature=signature)
    found = jobs(signed)
    assert found["other"].submission == GRAPH
    assert (found["a"].submission, found["a"].end) == (None, None)
    assert found["a"].problem


def test_an_end_that_is_named_in_another_way_hides_no_job(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.fs.files["cluster/jobs/a/ended/0000000000009"] = b"?"
    assert jobs(store)["a"].submission == GRAPH


def test_a_store_that_fails_is_not_a_damaged_entry(store):
    store.put_submission("a", 1, FACTS, b"graph")

    def fault(operation, _path):
        if operation == "read":
            message = "could not read a file: no route to host"
            raise StorageError(message, operation=operation)

    store.fs.fault = fault
    with pytest.raises(StorageError, match="no route"):
        store.read_all()


def test_other_files_are_passed_over(store):
    store.put_submission("a", 1, FACTS, b"graph")
    store.fs.files["cluster/jobs/a/.submission.123.tmp"] = b"half"
    store.fs.files["cluster/jobs/..hidden/submission"] = b"?"
    store.fs.files["cluster/jobs/readme"] = b"?"
    assert list(jobs(store)) == ["a"]


def test_a_job_id_is_a_name(store):
    with pytest.raises(ConfigurationError):
        store.put_submission("../a", 1, {}, b"")


def test_on_a_disk_it_is_for_its_owner_alone(tmp_path):
    umask = os.umask(0)
    try:
        store = JobStore.open(str(tmp_path / "ha" / "c"))
        store.put_submission("a", 1, FACTS, b"graph")
        store.put_end("a", 1, {"end": "view"})
        store.adopt("a", 2)
    finally:
        os.umask(umask)
    for directory, _, names in os.walk(tmp_path / "ha"):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) == 0o600 for name in names)
