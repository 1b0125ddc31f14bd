"""Checkpoint storage: damage of every kind is found (examples), fencing by epochs (races), retention, rescaling."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.backends.heap.backend import HeapKeyedStateBackend, HeapOperatorStateBackend
from headrace.state.checkpoints.assignment import assign_restore, unmatched_operators
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot, RestoredPart, SnapshotPart, StateFile
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointLostError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigurationError,
    StorageError,
    SupersededError,
    TypeMismatchError,
)
from headrace.state.files.local import LocalFileSystem
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_group_range, key_groups_of, subtask_of

UID = OperatorId("count")


@pytest.fixture
def storage():
    return CheckpointStorage(MemoryFileSystem(), "checkpoints/job")


def attempt(subtask=0, epoch=1, number=0):
    return ExecutionAttemptId(epoch, number, VertexId("v"), subtask)


def part(state="items", kind=FileKind.LIST, data=b"content", **metadata):
    return SnapshotPart(state, kind, metadata, lambda: data)


def manifest_of(storage, checkpoint_id=1, epoch=1, parts=(part(),), **changes):
    files = tuple(storage.data_files.write_part(checkpoint_id, attempt(epoch=epoch), UID, each) for each in parts)
    operator = OperatorState(UID, "Count", 1, 16, (OperatorSnapshot(UID, 0, files),))
    fields = {
        "job_id": "job",
        "job_name": "a job",
        "timestamp_ms": 5,
        "operators": (operator,),
        "enumerators": {"src": {"pos": [1, "é"]}},
    }
    return Manifest(checkpoint_id=checkpoint_id, epoch=epoch, **{**fields, **changes})


def published(storage, checkpoint_id=1, epoch=1):
    manifest = manifest_of(storage, checkpoint_id, epoch)
    storage.publish(manifest, epoch)
    return manifest


# --------------------------------------------------------------------------------------------------------- round trip
def test_a_published_checkpoint_is_loaded_and_verified(storage):
    manifest = manifest_of(storage, parts=(part(), part("counts", FileKind.KEYED, b"keyed", key_groups=[3, 9])))
    path = storage.publish(manifest, 1)
    assert storage.load(1) == storage.load(path) == storage.load("manifests/chk-1.json") == manifest
    storage.verify(manifest)
    first, second = manifest.files()
    assert (first.key_groups, second.key_groups) == (None, (3, 9))
    assert storage.data_files.read_part(second) == b"keyed"
    assert second.sha256 == hashlib.sha256(b"keyed").hexdigest()
    assert storage.list_complete() == [1]


def test_the_layout_is_as_documented(tmp_path):
    storage = CheckpointStorage.open(str(tmp_path), "job-1")
    storage.claim_epoch()
    published(storage)
    names = [path[len(str(tmp_path)) + 1 :] for path, _ in LocalFileSystem().list_files(str(tmp_path))]
    digest = hashlib.sha256(b"items").hexdigest()[:8]
    operator = f"count-{hashlib.sha256(b'count').hexdigest()[:8]}"
    assert names == [
        f"job-1/chk-1/{operator}/1.0-0-items-{digest}.list.arrow",
        "job-1/epochs/000000000001",
        "job-1/manifests/chk-1.json",
    ]
    document = json.loads((tmp_path / "job-1/manifests/chk-1.json").read_bytes())
    assert document["manifest"]["operators"][0]["subtasks"][0]["files"][0]["path"] == names[0][len("job-1/") :]


def test_names_of_operators_and_states_never_leave_the_folder_or_collide(storage):
    paths = set()
    for uid in ("../../etc", "a/b", "a_b", "a b", "", "é", "x" * 500, "\0"):
        for state in ("../s", "s", "é"):
            file = storage.data_files.write_part(1, attempt(), OperatorId(uid), part(state))
            paths.add(file.path)
            assert file.path.startswith("chk-1/")
            assert ".." not in file.path
    assert len(paths) == 24


def test_attempts_never_write_the_same_file(storage):
    attempts = [attempt(), attempt(1), attempt(number=1), attempt(epoch=2)]
    assert len({storage.data_files.write_part(1, each, UID, part()).path for each in attempts}) == 4


@pytest.mark.parametrize("job_id", ["", "..", ".", "a/b", ".hidden", "a b"])
def test_a_job_id_must_name_a_folder(job_id):
    with pytest.raises(ConfigurationError, match="job id"):
        CheckpointStorage.open("memory://x", job_id)


def test_what_json_cannot_hold_is_not_published(storage):
    for enumerators in ({"s": object()}, {"s": float("nan")}, {"s": b"x"}):
        with pytest.raises(TypeMismatchError, match="JSON"):
            storage.publish(manifest_of(storage, enumerators=enumerators), 1)
    assert storage.list_complete() == []


# ------------------------------------------------------------------------------------------------------------- damage
def test_any_changed_byte_of_a_manifest_is_found(storage):
    published(storage)
    path = "checkpoints/job/manifests/chk-1.json"
    data = storage.fs.read_bytes(path)
    for position in range(len(data)):
        for flipped in (data[position] ^ 1, data[position] ^ 0x20, 0x20, 0x0A):
            if flipped != data[position]:
                storage.fs.files[path] = data[:position] + bytes([flipped]) + data[position + 1 :]
                with pytest.raises(CheckpointCorruptError):
                    storage.load(1)


def test_a_truncated_or_extended_manifest_is_found(storage):
    published(storage)
    path = "checkpoints/job/manifests/chk-1.json"
    data = storage.fs.read_bytes(path)
    for damaged in (
        b"",
        b"{}",
        b"null",
        b"[1]",
        data[:-1],
        data[: len(data) // 2],
        data + b" ",
        b"\xff\xfe",
        b"[" * 100_000,
    ):
        storage.fs.files[path] = damaged
        with pytest.raises(CheckpointCorruptError):
            storage.load(1)


def test_a_manifest_under_another_id_is_found(storage):
    published(storage)
    storage.fs.files["checkpoints/job/manifests/chk-2.json"] = storage.fs.files["checkpoints/job/manifests/chk-1.json"]
    with pytest.raises(CheckpointCorruptError, match="its name says otherwise"):
        storage.load(2)


def resigned(manifest, change):
    """A manifest's bytes after a change of its JSON, with a right hash: what only a bug or an attacker writes."""
    body = json.loads(manifest.to_json())["manifest"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f'{{"manifest":{text},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}\n'.encode()


def file_of(body):
    return body["operators"][0]["subtasks"][0]["files"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("job_id"),
        lambda body: body.update(extra=1),
        lambda body: body.update(checkpoint_id="1"),
        lambda body: body.update(checkpoint_id=0),
        lambda body: body.update(epoch=-1),
        lambda body: body.update(operators=5),
        lambda body: body.update(operators=body["operators"] * 2),
        lambda body: body.update(enumerators=[]),
        lambda body: body["operators"][0].update(uid=5),
        lambda body: body["operators"][0].update(parallelism=0),
        lambda body: body["operators"][0]["subtasks"][0].update(subtask=1),
        lambda body: body["operators"][0]["subtasks"][0].update(operator="other"),
        lambda body: file_of(body).update(path="../../../etc/passwd"),
        lambda body: file_of(body).update(path="/etc/passwd"),
        lambda body: file_of(body).update(path=5),
        lambda body: file_of(body).update(path=None),
        lambda body: file_of(body).update(sha256=5),
        lambda body: body["operators"][0].update(subtasks=[5]),
        lambda body: file_of(body).update(size=-1),
        lambda body: file_of(body).update(size=True),
        lambda body: file_of(body).update(sha256="abc"),
        lambda body: file_of(body).update(kind="odd"),
        lambda body: file_of(body).update(kind="keyed"),
        lambda body: file_of(body).update(kind="keyed", key_groups=[0, 16]),
        lambda body: file_of(body).update(key_groups=[2, 1]),
        lambda body: file_of(body).update(metadata=None),
    ],
)
def test_a_manifest_of_the_wrong_structure_is_corrupt(storage, change):
    with pytest.raises(CheckpointCorruptError, match="wrong structure"):
        Manifest.from_json(resigned(manifest_of(storage), change), "x")


def test_a_manifest_of_another_version_is_refused(storage):
    data = resigned(manifest_of(storage), lambda body: body.update(format_version=3))
    with pytest.raises(CheckpointMismatchError, match="format version 3"):
        Manifest.from_json(data, "x")


def test_a_damaged_data_file_is_found(storage):
    manifest = published(storage)
    (file,) = manifest.files()
    path = f"checkpoints/job/{file.path}"
    data = storage.fs.files[path]
    damaged = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    for content in (*damaged, b"", data[:-1], data + b"\0"):
        storage.fs.files[path] = content
        with pytest.raises(CheckpointCorruptError):
            storage.verify(manifest)
    del storage.fs.files[path]
    with pytest.raises(CheckpointCorruptError, match="missing"):
        storage.data_files.read_part(file)


def test_swapped_files_of_two_checkpoints_are_found(storage):
    one = published(storage, 1).files()[0]
    two = storage.data_files.write_part(2, attempt(), UID, part(data=b"CONTENT"))
    files = storage.fs.files
    paths = [f"checkpoints/job/{file.path}" for file in (one, two)]
    files[paths[0]], files[paths[1]] = files[paths[1]], files[paths[0]]
    for file in (one, two):
        with pytest.raises(CheckpointCorruptError):
            storage.data_files.read_part(file)


def test_a_failing_store_is_not_taken_for_a_corrupt_checkpoint(storage):
    manifest = published(storage)

    def fail(operation, path):
        message = "injected"
        raise StorageError(message, operation=operation, path=path)

    storage.fs.fault = fail
    for call in (lambda: storage.load(1), lambda: storage.verify(manifest)):
        with pytest.raises(StorageError, match="injected"):
            call()


# ------------------------------------------------------------------------------------------------------- by its place
def test_a_checkpoint_is_found_by_any_of_its_names(tmp_path):
    storage = CheckpointStorage.open(str(tmp_path), "job")
    published(storage, 1)
    newest = published(storage, 2)
    root = f"{tmp_path}/job"
    for path in (
        f"{root}/manifests/chk-2.json",
        f"{root}/chk-2",
        f"{root}/chk-2/",
        root,
        f"file://{root}/",
        f"file://{root}/chk-2",
    ):
        found, manifest = CheckpointStorage.from_manifest(path)
        assert manifest == newest
        found.verify(manifest)
        CheckpointStorage.at(found.uri).verify(manifest)
    assert CheckpointStorage.from_manifest(f"{root}/chk-1")[1].checkpoint_id == 1


def test_a_folder_does_not_mean_an_older_one_when_its_newest_is_gone(tmp_path):
    storage = CheckpointStorage.open(str(tmp_path), "job")
    for checkpoint_id in (1, 2):
        published(storage, checkpoint_id)
        storage.completions.note(checkpoint_id)
    storage.discard(2)
    with pytest.raises(CheckpointLostError, match=r"checkpoint 2 was complete(.|\n)*manifests/chk-1.json"):
        CheckpointStorage.from_manifest(f"{tmp_path}/job")
    assert CheckpointStorage.from_manifest(f"{tmp_path}/job/manifests/chk-1.json")[1].checkpoint_id == 1
    storage.completions.forget_before(2)
    published(storage, 3)
    assert CheckpointStorage.from_manifest(f"{tmp_path}/job")[1].checkpoint_id == 3


def test_a_missing_checkpoint_is_never_an_empty_start(tmp_path):
    storage = CheckpointStorage.open(str(tmp_path), "job")
    published(storage, 1)
    for path in ("job/manifests/chk-2.json", "job/chk-2", "jib", "job/chk-1/manifests", "nowhere/chk-1", "job/epochs"):
        with pytest.raises(CheckpointNotFoundError):
            CheckpointStorage.from_manifest(f"{tmp_path}/{path}")
    with pytest.raises(CheckpointNotFoundError):
        storage.load(2)


def test_a_folder_may_move_but_a_manifest_may_not(tmp_path):
    storage = CheckpointStorage.open(str(tmp_path), "job")
    manifest = published(storage, 1)
    (tmp_path / "job").rename(tmp_path / "moved")
    found, loaded = CheckpointStorage.from_manifest(f"{tmp_path}/moved/chk-1")
    assert loaded == manifest
    found.verify(loaded)
    (tmp_path / "other/manifests").mkdir(parents=True)
    (tmp_path / "other/manifests/chk-1.json").write_bytes((tmp_path / "moved/manifests/chk-1.json").read_bytes())
    with pytest.raises(CheckpointCorruptError, match="missing"):
        CheckpointStorage.from_manifest(f"{tmp_path}/other/manifests/chk-1.json")


# ------------------------------------------------------------------------------------------------------------- epochs
def test_every_claim_gets_a_higher_epoch(storage):
    assert storage.highest_epoch() == 0
    assert [storage.claim_epoch(), storage.claim_epoch(), storage.claim_epoch(7), storage.claim_epoch(3)] == [
        1,
        2,
        7,
        8,
    ]
    assert storage.highest_epoch() == 8


def test_racing_claims_never_get_the_same_epoch(storage):
    barrier, claimed = threading.Barrier(8), []

    def claim():
        barrier.wait()
        with contextlib.suppress(SupersededError):
            claimed.append(storage.claim_epoch())

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(claimed)) == len(claimed)
    assert storage.highest_epoch() in claimed


def test_a_claim_that_loses_the_race_goes_on_to_the_next_epoch(storage):
    rival = CheckpointStorage(MemoryFileSystem(), storage.root)
    rival.fs.files = storage.fs.files
    claimed = []

    def overtake(operation, path):
        if operation == "create" and len(claimed) < 3:
            claimed.append(rival.claim_epoch())

    storage.fs.fault = overtake
    assert storage.claim_epoch() == 4
    assert claimed == [1, 2, 3]


def test_an_epoch_that_others_have_had_and_forgotten_is_not_given_out_again(storage):
    """A claimant may stop for any time between looking for the highest epoch and making its own."""
    rival = CheckpointStorage(MemoryFileSystem(), storage.root)
    rival.fs.files = storage.fs.files
    claimed = []

    def overtake(operation, path):
        if operation == "create" and not claimed:
            claimed.extend([rival.claim_epoch(), rival.claim_epoch(), rival.claim_epoch()])
            rival.forget_old_epochs()

    storage.fs.fault = overtake
    with pytest.raises(SupersededError, match="epoch 3 has been taken while epoch 1 was being claimed"):
        storage.claim_epoch()
    assert claimed == [1, 2, 3]
    assert storage.claim_epoch() == 4


def test_a_claim_whose_answer_was_lost_is_never_given_again(storage):
    def lose(operation, path):
        if operation == "create.done":
            message = "the answer got lost"
            raise StorageError(message, path=path)

    storage.fs.fault = lose
    with pytest.raises(StorageError):
        storage.claim_epoch()
    storage.fs.fault = None
    assert storage.claim_epoch() == 2


def test_a_deposed_leader_publishes_nothing(storage):
    epoch = storage.claim_epoch()
    manifest = manifest_of(storage, epoch=epoch)
    storage.claim_epoch()
    with pytest.raises(CheckpointError, match="epoch 2 has taken over"):
        storage.publish(manifest, epoch)
    assert storage.list_complete() == []
    with pytest.raises(CheckpointError, match="cannot publish"):
        storage.publish(manifest, 2)


def test_a_leader_deposed_while_it_publishes_is_told(storage):
    """At whatever point the other one claims."""
    for moment in ("create", "create.done"):
        storage.fs.files.clear()
        epoch = storage.claim_epoch()
        manifest = manifest_of(storage, epoch=epoch)
        rival = CheckpointStorage(MemoryFileSystem(), storage.root)
        rival.fs.files = storage.fs.files

        def overtake(operation, path, moment=moment, rival=rival):
            if operation == moment and "manifests" in path:
                rival.claim_epoch()

        storage.fs.fault = overtake
        with pytest.raises(CheckpointError, match="has taken over"):
            storage.publish(manifest, epoch)
        storage.fs.fault = None
        assert storage.list_complete() == [1]  # good for the new leader, who may restore it


def test_checkpoints_are_ordered_by_epoch_before_id(storage):
    """What a deposed leader published late must not be taken for the newest."""
    published(storage, 3, epoch=1)
    published(storage, 7, epoch=1)
    late = manifest_of(storage, 9, epoch=1)
    published(storage, 8, epoch=2)
    storage.fs.create_exclusive("checkpoints/job/manifests/chk-9.json", late.to_json())
    assert storage.list_complete() == [3, 7, 9, 8]


def test_a_corrupt_manifest_keeps_its_place(storage):
    for checkpoint_id in (1, 2, 3):
        published(storage, checkpoint_id, epoch=checkpoint_id)
    storage.fs.files["checkpoints/job/manifests/chk-3.json"] = b"{"
    assert storage.list_complete() == [1, 2, 3]


# ------------------------------------------------------------------------------------------------------------ publish
def test_ids_of_checkpoints_grow(storage):
    published(storage, 5)
    for checkpoint_id in (5, 4):
        other = manifest_of(storage, checkpoint_id, timestamp_ms=6)
        with pytest.raises(CheckpointError):
            storage.publish(other, 1)
    assert storage.list_complete() == [5]


def test_publishing_again_changes_nothing(storage):
    manifest = published(storage, 5)
    assert storage.publish(manifest, 1) == "checkpoints/job/manifests/chk-5.json"


def test_a_publication_whose_answer_was_lost_has_succeeded(storage):
    manifest = manifest_of(storage)

    def lose(operation, path):
        if operation == "create.done":
            message = "the answer got lost"
            raise StorageError(message, path=path)

    storage.fs.fault = lose
    storage.publish(manifest, 1)
    storage.fs.fault = None
    assert storage.load(1) == manifest


def test_a_publication_that_failed_is_not_there(storage):
    manifest = manifest_of(storage)

    def fail(operation, path):
        if operation == "create":
            message = "disk full"
            raise StorageError(message, path=path)

    storage.fs.fault = fail
    with pytest.raises(StorageError, match="disk full"):
        storage.publish(manifest, 1)
    storage.fs.fault = None
    assert storage.list_complete() == []


# ---------------------------------------------------------------------------------------------------------- retention
def test_garbage_is_what_is_neither_kept_nor_live_nor_newer(storage):
    for checkpoint_id in (1, 2, 3):
        published(storage, checkpoint_id)
    for checkpoint_id in (4, 5, 7, 9):
        storage.data_files.write_part(checkpoint_id, attempt(), UID, part())
    published(storage, 8)
    assert storage.collect_garbage([3, 8], [5]) == [1, 2, 4, 7]
    assert storage.list_complete() == [3, 8]
    assert {path.split("/")[2] for path in storage.fs.files} == {"chk-3", "chk-5", "chk-8", "chk-9", "manifests"}
    assert storage.highest_checkpoint_id() == 9
    assert storage.collect_garbage([]) == []


def test_a_checkpoint_without_all_its_files_is_never_complete(storage):
    """Whenever deletion stops."""
    published(storage, 1)
    published(storage, 2)
    for fatal in range(10):
        count = 0

        def die(operation, path, fatal=fatal):
            nonlocal count
            count += operation == "delete"
            if count > fatal:
                message = "injected"
                raise StorageError(message, path=path)

        storage.fs.fault = die
        with contextlib.suppress(StorageError):
            storage.discard(1)
        storage.fs.fault = None
        for checkpoint_id in storage.list_complete():
            storage.verify(storage.load(checkpoint_id))
    assert storage.list_complete() == [2]
    storage.discard(1)


def test_removing_a_job_leaves_nothing(storage):
    storage.claim_epoch()
    published(storage)
    storage.remove()
    storage.remove()
    assert storage.fs.files == {}


# ------------------------------------------------------------------------------------------------------------ restore
@given(
    st.dictionaries(st.integers(0, 99) | st.text(max_size=2), st.integers(), max_size=20),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_state_comes_back_whole_at_any_parallelism(counts, before, after):
    storage = CheckpointStorage(MemoryFileSystem(), "job")
    owners = dict(zip(counts, subtask_of(key_groups_of(hash_keys(list(counts)), 16), 16, before).tolist(), strict=True))
    snapshots = []
    for subtask in range(before):
        keyed = HeapKeyedStateBackend(UID, key_group_range(16, before, subtask), 16)
        keyed.table(StateDescriptor("t")).namespace(None).update(
            {k: v for k, v in counts.items() if owners[k] == subtask}
        )
        plain = HeapOperatorStateBackend(UID)
        plain.list_state("l").update([subtask])
        parts = [*keyed.snapshot(), *plain.snapshot()]
        files = tuple(storage.data_files.write_part(1, attempt(subtask), UID, each) for each in parts)
        snapshots.append(OperatorSnapshot(UID, subtask, files))
    manifest = Manifest("job", "n", 1, 1, 0, (OperatorState(UID, "c", before, 16, tuple(snapshots)),))
    storage.publish(manifest, 1)
    merged, dealt = {}, []
    for subtask in range(after):
        restore = assign_restore(storage.load(1), storage.uri, [(UID, 16), ("new", 16)], subtask, after)
        assert (restore.checkpoint_id, restore.root, set(restore.operators)) == (1, "job", {UID})
        owned = key_group_range(16, after, subtask)
        keyed_files = [f for s in restore.operators[UID] for f in s.files if f.kind == "keyed"]
        assert all(owned.overlaps(*file.key_groups) for file in keyed_files)
        parts = [
            RestoredPart(file.state, file.kind, file.metadata, storage.data_files.read_part(file), snapshot.subtask)
            for snapshot in restore.operators[UID]
            for file in snapshot.files
        ]
        keyed = HeapKeyedStateBackend(UID, owned, 16)
        keyed.restore([each for each in parts if each.kind == "keyed"])
        merged.update(keyed.table(StateDescriptor("t")).namespace(None))
        plain = HeapOperatorStateBackend(UID)
        listed = [each for each in parts if each.kind == "list"]
        plain.restore(listed, subtask, after, is_undealt=UID in restore.undealt)
        if before == after:
            assert plain.list_state("l").get() == [subtask]
        dealt += plain.list_state("l").get()
    assert merged == counts
    assert sorted(dealt) == list(range(before))


def test_a_subtask_reads_only_files_of_its_key_groups(storage):
    keyed = StateFile("chk-1/a", 1, "0" * 64, "t", FileKind.KEYED, {}, (0, 7))
    listed = StateFile("chk-1/b", 1, "0" * 64, "l", FileKind.LIST)
    state = OperatorState(UID, "c", 1, 16, (OperatorSnapshot(UID, 0, (keyed, listed)),))
    manifest = Manifest("job", "n", 1, 1, 0, (state,))
    files = [assign_restore(manifest, "r", [(UID, 16)], subtask, 2).operators[UID][0].files for subtask in (0, 1)]
    assert files == [(keyed, listed), (listed,)]
    with pytest.raises(CheckpointMismatchError, match="max parallelism 16 in the checkpoint; the program gives it 32"):
        assign_restore(manifest, "r", [(UID, 32)], 0, 2)
    only_list = dataclasses.replace(state, subtasks=(OperatorSnapshot(UID, 0, (listed,)),))
    unkeyed = dataclasses.replace(manifest, operators=(only_list,))
    assert assign_restore(unkeyed, "r", [(UID, 32)], 0, 2).operators[UID][0].files == (listed,)
    assert unmatched_operators(manifest, {"other"}) == [UID]
    assert unmatched_operators(manifest, {UID}) == []
