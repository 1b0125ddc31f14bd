"""What is signed holds in its place only: a copy elsewhere, or of another cluster with the same key, is refused.

Family: exhaustive (every record in the place of every other one).
"""

from __future__ import annotations

import itertools
import secrets

import pytest

from headrace.engine.checkpoint.restore_choice import JobPast, choose_checkpoint
from headrace.state.checkpoints.job_store import JobStore
from headrace.state.checkpoints.leases import FileLease, LeaderRecord, LeaseState
from headrace.state.checkpoints.manifest import CHECKPOINT, SAVEPOINT, Manifest
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointCorruptError, CheckpointMismatchError
from headrace.state.files.memory import MemoryFileSystem

CLUSTERS, JOBS = ("one", "two"), ("a", "b")


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"k {secrets.token_hex(32)}\n")
    path.chmod(0o600)
    return str(path)


def swaps(fs, folder):
    """Each file below a folder with each other one's name."""
    files = [path for path, _ in fs.list_files(folder)]
    return [(path, fs.files[other]) for path, other in itertools.permutations(files, 2)]


def test_an_entry_of_the_job_store_is_taken_in_its_place_only(key_file):
    fs = MemoryFileSystem()
    stores = {cluster: JobStore(fs, f"ha/{cluster}", key_file) for cluster in CLUSTERS}
    for cluster, store in stores.items():
        for job in JOBS:
            store.put_submission(job, 1, {"name": job}, f"{cluster} {job}".encode())
    for path, theirs in swaps(fs, "ha"):
        _, cluster, _, job, _ = path.split("/")
        own, fs.files[path] = fs.files[path], theirs
        found = {job.job_id: job for job in stores[cluster].read_all()}
        assert found[job].submission is None
        assert found[job].problem
        fs.files[path] = own
        assert {job.submission.program for job in stores[cluster].read_all()} == {
            f"{cluster} {job}".encode() for job in JOBS
        }


def test_the_end_of_a_job_is_taken_in_its_place_only(key_file):
    fs = MemoryFileSystem()
    stores = {cluster: JobStore(fs, f"ha/{cluster}", key_file) for cluster in CLUSTERS}
    for store in stores.values():
        for job, epoch in itertools.product(JOBS, (1, 2)):
            store.put_end(job, epoch, {"end": epoch})
    for path, theirs in swaps(fs, "ha"):
        _, cluster, _, job, _, epoch = path.split("/")
        own, fs.files[path] = fs.files[path], theirs
        found = {job.job_id: job for job in stores[cluster].read_all()}[job]
        assert (found.problem is None) == (int(epoch) == 1), "the newer end is the one that is read"
        fs.files[path] = own


def test_the_record_of_a_leader_is_believed_for_its_cluster_and_epoch_only(key_file):
    """A successor ends the process that it names."""
    fs = MemoryFileSystem()
    leases = {cluster: FileLease(fs, f"ha/{cluster}/leader", key_file) for cluster in CLUSTERS}
    for cluster, lease in leases.items():
        for epoch in (1, 2, 3):
            record = LeaderRecord(f"{cluster}-{epoch}", 1_000, {"pid": "17"})
            assert lease.acquire(record, LeaseState(epoch - 1, None, "", is_free=True)) is not None
    for path, theirs in swaps(fs, "ha"):
        _, cluster, _, _, epoch = path.split("/")
        own, fs.files[path] = fs.files[path], theirs
        seen = leases[cluster].observe()
        assert seen.epoch == 3
        assert (seen.leader is None) == (int(epoch) == 3)
        fs.files[path] = own
        assert leases[cluster].observe().leader == LeaderRecord(f"{cluster}-3", 1_000, {"pid": "17"})


def folder(fs, job, key_file):
    found = CheckpointStorage.open(f"memory://{fs}/checkpoints", job, key_file)
    if found.highest_epoch() == 0:
        found.claim_epoch()
    return found


@pytest.fixture
def fs():
    MemoryFileSystem.forget("places")
    return "places"


def test_the_note_of_a_claimed_snapshot_holds_for_its_job_only(fs, key_file):
    """It says what a job may delete."""
    for job in JOBS:
        folder(fs, job, key_file).note_claim(f"memory://{fs}/savepoint-of-{job}")
    files = MemoryFileSystem.named(fs).files
    files["checkpoints/a/claimed"] = files["checkpoints/b/claimed"]
    assert folder(fs, "b", key_file).claimed() == f"memory://{fs}/savepoint-of-b"
    with pytest.raises(CheckpointMismatchError, match="another place"):
        folder(fs, "a", key_file).claimed()


def publish(storage, job, checkpoint_id, kind=CHECKPOINT):
    storage.publish(Manifest(job, job, checkpoint_id, 1, 1, (), kind=kind), 1)
    return f"{storage.root}/manifests/chk-{checkpoint_id}.json"


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("kind", [CHECKPOINT, SAVEPOINT])
def test_a_job_goes_on_from_its_own_checkpoints_only(fs, key_file, kind, is_signed):
    """Those of another job, and savepoints, are not its own, however well they are signed."""
    keys = key_file if is_signed else None
    own = folder(fs, "a", keys)
    publish(own, "a", 3)
    assert choose_checkpoint(own, JobPast()).manifest.checkpoint_id == 3
    elsewhere = CheckpointStorage.at(f"memory://{fs}/elsewhere", keys)
    elsewhere.claim_epoch()
    theirs = publish(elsewhere, "a" if kind == SAVEPOINT else "b", 7, kind)
    files = MemoryFileSystem.named(fs).files
    files["checkpoints/a/manifests/chk-7.json"] = files[theirs]
    with pytest.raises(CheckpointCorruptError, match="somebody has put it there"):
        choose_checkpoint(own, JobPast())


def test_a_folder_of_checkpoints_may_be_moved(fs, key_file):
    publish(folder(fs, "a", key_file), "a", 3)
    files = MemoryFileSystem.named(fs).files
    for path in [path for path in files if path.startswith("checkpoints/a/")]:
        files[path.replace("checkpoints/a/", "moved/x/")] = files.pop(path)
    storage, manifest = CheckpointStorage.from_manifest(f"memory://{fs}/moved/x", key_file)
    assert (storage.root, manifest.job_id) == ("moved/x", "a")
