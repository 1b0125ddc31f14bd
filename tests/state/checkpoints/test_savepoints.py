"""Savepoints as folders: what is one, what disposing and claiming delete, and what they never touch (examples)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.checkpoint.io import collect_garbage, remove_checkpoints
from headrace.state.checkpoints.manifest import CHECKPOINT, SAVEPOINT, Manifest, OperatorState
from headrace.state.checkpoints.savepoints import delete_claimed, discard_folder, dispose_savepoint, savepoint_folder
from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot, SnapshotPart
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    StorageError,
)
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId

UID = OperatorId("count")
ATTEMPT = ExecutionAttemptId(1, 0, VertexId("v"), 0)


def publish(storage, checkpoint_id=1, kind=CHECKPOINT, job="job"):
    """A snapshot with one file; gives its manifest's place."""
    part = SnapshotPart("items", FileKind.LIST, {}, lambda: b"content")
    file = storage.data_files.write_part(checkpoint_id, ATTEMPT, UID, part)
    operator = OperatorState(UID, "Count", 1, 16, (OperatorSnapshot(UID, 0, (file,)),))
    return storage.publish(Manifest(job, "a job", checkpoint_id, 1, 5, (operator,), kind=kind), 1)


@pytest.fixture
def savepoint(tmp_path):
    folder = savepoint_folder(str(tmp_path / "savepoints"), "0123456789", "request")
    storage = CheckpointStorage.at(folder)
    storage.claim_epoch(1)
    publish(storage, kind=SAVEPOINT)
    return storage


def test_a_savepoint_has_a_folder_of_its_own_named_after_its_job():
    folder = savepoint_folder("s3://bucket/dir?region=x", "0123456789", "one")
    assert folder.startswith("s3://bucket/dir/savepoint-012345-")
    assert folder.endswith("?region=x")
    assert len(folder.split("-")[2].split("?")[0]) == 12
    assert folder != savepoint_folder("s3://bucket/dir?region=x", "0123456789", "two")
    assert folder == savepoint_folder("s3://bucket/dir?region=x", "0123456789", "one")
    assert "/../" not in savepoint_folder("/dir", "../../etc", "one").removeprefix("/dir")


def test_a_savepoint_is_found_by_its_folder_wherever_that_is_moved(savepoint, tmp_path):
    moved = tmp_path / "elsewhere"
    (tmp_path / "savepoints").rename(moved)
    [folder] = moved.iterdir()
    _, manifest = CheckpointStorage.from_manifest(str(folder))
    assert manifest.kind == SAVEPOINT


def test_manifests_of_before_have_no_kind_and_are_those_of_checkpoints(tmp_path):
    storage = CheckpointStorage.at(str(tmp_path / "job"))
    publish(storage)
    manifest = storage.load(1)
    from headrace.state.checkpoints import manifest as module

    raw = module.dataclasses.asdict(manifest)
    del raw["kind"]
    data = module._envelope(module._canonical(raw))
    assert Manifest.from_json(data, "old").kind == CHECKPOINT


def test_a_kind_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(CheckpointCorruptError, match="structure"):
        publish(CheckpointStorage.at(str(tmp_path / "job")), kind="sketch")


@pytest.mark.parametrize(
    ("below", "place"),
    [
        ("", "."),
        ("", "chk-1"),
        ("", "manifests/chk-1.json"),
        ("", "manifests//chk-1.json"),
        ("manifests", "chk-1.json"),
        ("chk-1", "../chk-1/"),
    ],
)
def test_a_snapshot_is_found_by_a_relative_path(savepoint, monkeypatch, below, place):
    monkeypatch.chdir(Path(savepoint.uri, below))
    for path in (place, Path(place)):
        found, manifest = CheckpointStorage.from_manifest(path)
        assert (found.uri, manifest) == (savepoint.uri, savepoint.load(1))


@pytest.mark.parametrize("by", ["folder", "manifest", "path"])
def test_disposing_a_savepoint_leaves_nothing(savepoint, tmp_path, by):
    places = {"folder": savepoint.uri, "manifest": savepoint.manifest_uri(1), "path": Path(savepoint.uri)}
    dispose_savepoint(places[by])
    assert list((tmp_path / "savepoints").iterdir()) == []
    with pytest.raises(CheckpointNotFoundError):
        dispose_savepoint(savepoint.uri)


def test_disposing_touches_only_what_a_savepoint_has(savepoint, tmp_path):
    [folder] = (tmp_path / "savepoints").iterdir()
    (folder / "notes.txt").write_text("mine")
    dispose_savepoint(savepoint.uri)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_checkpoint_is_not_disposed_of(tmp_path):
    storage = CheckpointStorage.at(str(tmp_path / "job"))
    place = publish(storage)
    for path in (place, storage.uri):
        with pytest.raises(CheckpointMismatchError, match="is not a savepoint"):
            dispose_savepoint(path)
    assert CheckpointStorage.from_manifest(place)


def test_a_savepoint_that_lacks_files_can_still_be_disposed_of(savepoint, tmp_path):
    [file] = savepoint.load(1).files()
    savepoint.fs.delete(f"{savepoint.root}/{file.path}")
    with pytest.raises(CheckpointCorruptError):
        CheckpointStorage.from_manifest(savepoint.uri)
    dispose_savepoint(savepoint.uri)
    assert list((tmp_path / "savepoints").iterdir()) == []


def test_a_removal_that_is_interrupted_leaves_no_savepoint():
    MemoryFileSystem.forget("interrupted")
    storage = CheckpointStorage.at("memory://interrupted/savepoint-a-b")
    publish(storage, kind=SAVEPOINT)
    store = MemoryFileSystem.named("interrupted")

    def fault(operation, path):
        if operation == "delete" and "/chk-" in path:
            message = "gone away"
            raise StorageError(message)

    store.fault = fault
    with pytest.raises(StorageError):
        dispose_savepoint(storage.uri)
    store.fault = None
    assert store.files
    with pytest.raises(CheckpointNotFoundError):
        CheckpointStorage.from_manifest(storage.uri)
    discard_folder(storage.uri)
    assert not store.files


# --------------------------------------------------------------------------------------------------------------- claims
@pytest.fixture
def own():
    MemoryFileSystem.forget("claims")
    storage = CheckpointStorage.open("memory://claims/checkpoints", "own")
    storage.claim_epoch(1)
    return storage


def collect(retained, **options):
    return collect_garbage("memory://claims/checkpoints", JobId("own"), 1, retained, **options)


def test_a_claimed_savepoint_goes_when_it_is_released_and_not_before(own):
    savepoint = CheckpointStorage.at("memory://claims/savepoints/savepoint-a-b")
    own.note_claim(publish(savepoint, kind=SAVEPOINT))
    publish(own, 2)
    collect([2])
    assert CheckpointStorage.from_manifest(savepoint.uri)
    collect([2], releases_claim=True)
    with pytest.raises(CheckpointNotFoundError):
        CheckpointStorage.from_manifest(savepoint.uri)
    assert own.claimed() is None
    collect([2], releases_claim=True)
    assert own.list_complete() == [2]


def test_a_deposed_leader_releases_nothing(own):
    savepoint = CheckpointStorage.at("memory://claims/savepoints/savepoint-a-b")
    own.note_claim(publish(savepoint, kind=SAVEPOINT))
    publish(own, 2)
    own.claim_epoch(2)
    collect([2], releases_claim=True)
    assert CheckpointStorage.from_manifest(savepoint.uri)


def test_a_claimed_checkpoint_takes_the_folder_of_its_job_along(own):
    earlier = CheckpointStorage.open("memory://claims/checkpoints", "earlier")
    for checkpoint_id in (1, 2, 3):
        place = publish(earlier, checkpoint_id)
    earlier.data_files.write_part(9, ATTEMPT, UID, SnapshotPart("late", FileKind.LIST, {}, lambda: b"garbage"))
    delete_claimed(place)
    assert not [path for path in earlier.fs.files if path.startswith(earlier.root)]


def interrupted(earlier, place, number):
    """Delete what was claimed, and fail at one operation; the removal of a directory is done by half then."""
    operations = []

    def fault(operation, path):
        operations.append(path)
        if len(operations) == number + 1:
            if operation == "delete" and path == f"{earlier.root}/manifests":
                earlier.fs.files.pop(place.removeprefix("memory://claims/"))
            message = "the power went out"
            raise StorageError(message, operation=operation)

    earlier.fs.fault = fault
    try:
        delete_claimed(place)
    except StorageError:
        return True
    finally:
        earlier.fs.fault = None
    return False


def test_a_claimed_checkpoint_is_deleted_to_the_end_wherever_that_was_interrupted(own):
    number = 0
    is_interrupted = True
    while is_interrupted:
        earlier = CheckpointStorage.open("memory://claims/checkpoints", f"earlier-{number}")
        earlier.claim_epoch(1)
        place = [publish(earlier, checkpoint_id) for checkpoint_id in (8, 9, 10)][-1]
        is_interrupted = interrupted(earlier, place, number)
        number += 1
        delete_claimed(place)
        assert not earlier.fs.list_files(earlier.root), f"interrupted at operation {number}"
    assert number > 10


def test_a_folder_whose_job_has_gone_on_is_left_alone(own):
    earlier = CheckpointStorage.open("memory://claims/checkpoints", "earlier")
    place = publish(earlier, 1)
    publish(earlier, 2)
    delete_claimed(place)
    for checkpoint_id in (1, 2):
        CheckpointStorage.from_manifest(earlier.manifest_uri(checkpoint_id))


def test_what_was_claimed_is_what_was_restored_whatever_the_folder_holds_later(own):
    """The settings name a folder; the note names the manifest that was read."""
    earlier = CheckpointStorage.open("memory://claims/checkpoints", "earlier")
    own.note_claim(publish(earlier, 1))
    publish(earlier, 2)
    publish(own, 2)
    collect([2], releases_claim=True)
    assert CheckpointStorage.from_manifest(earlier.uri)[1].checkpoint_id == 2


def test_a_finished_job_deletes_what_it_claimed_and_a_canceled_one_does_not(own):
    savepoint = CheckpointStorage.at("memory://claims/savepoints/savepoint-a-b")
    for releases in (False, True):
        own.note_claim(publish(savepoint, kind=SAVEPOINT))
        remove_checkpoints("memory://claims/checkpoints", JobId("own"), releases_claim=releases)
        assert bool(savepoint.fs.list_files(savepoint.root)) is not releases
        assert not own.fs.list_files(own.root)
