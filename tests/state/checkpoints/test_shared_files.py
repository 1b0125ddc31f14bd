"""Shared files of checkpoints: no published checkpoint ever names a file that is gone, and garbage does go.

One test per way in which that could fail (see `headrace.state.checkpoints.storage`), and a property over random
histories of a leader, its tasks and its deposed predecessors.
"""

from __future__ import annotations

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.checkpoint.io import collect_garbage
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import FileKind, OperatorSnapshot, SnapshotPart
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointCorruptError, StorageError
from headrace.state.files.local_directories import LocalDirectory, LocalFile
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId

UID = OperatorId("count")
JOB = JobId("job")


@pytest.fixture
def directory(tmp_path):
    made = LocalDirectory.make(str(tmp_path), "files")
    yield made
    made.close()


@pytest.fixture
def store(request):
    MemoryFileSystem.forget("shared-files")
    yield CheckpointStorage.open("memory://shared-files/checkpoints", JOB)
    MemoryFileSystem.forget("shared-files")


def collected(store, retained, bases=(), epoch=1):
    return collect_garbage("memory://shared-files/checkpoints", JOB, epoch, retained, bases)


class Task:
    """One attempt of a subtask with a database: files by name, and what the base holds of them is named again."""

    def __init__(self, store, directory, *, number=0, epoch=1, restored=None):
        self.store, self.directory = store, directory
        self.attempt = ExecutionAttemptId(epoch, number, VertexId("v"), 0)
        # Checkpoint -> its files by name.
        self.known = {} if restored is None else {restored[0]: {f.metadata["name"]: f for f in restored[1].files()}}
        self.names = {name: name for files in self.known.values() for name in files}

    def write(self, name):
        self.names[name] = name

    def snapshot(self, checkpoint_id, base=0):
        """The asynchronous part; gives the files."""
        known = self.known.get(base, {})
        files = []
        for name in self.names:
            path = f"{self.directory.path}/{name}"
            with open(path, "w") as file:
                file.write(f"content of {name}")
            local = LocalFile(path, self.directory)
            metadata = {"name": name, "key_groups": [0, 15]}
            part = SnapshotPart("(database)", FileKind.DATABASE, metadata, local.read, local, known.get(name))
            files.append(self.store.data_files.write_part(checkpoint_id, self.attempt, UID, part))
        self.known[checkpoint_id] = {file.metadata["name"]: file for file in files}
        return tuple(files)


def publish(store, checkpoint_id, files, epoch=1):
    operator = OperatorState(UID, "Count", 1, 16, (OperatorSnapshot(UID, 0, files),))
    manifest = Manifest("job", "a job", checkpoint_id, epoch, 5, (operator,))
    store.publish(manifest, epoch)
    return manifest


def shared(store):
    return sorted(path.rpartition("/")[2] for path, _ in store._shared())


def names_of(files):
    return [file.path.rpartition("/")[2] for file in files]


# ---------------------------------------------------------------------------------------------------- files as such
def test_a_file_is_stored_once_and_named_again(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    first = task.snapshot(1)
    publish(store, 1, first)
    task.write("2.sst")
    second = task.snapshot(2, base=1)
    publish(store, 2, second)
    assert second[0] is first[0]
    assert [file.is_made_for(2) for file in second] == [False, True]
    assert names_of(second)[0].startswith("1-1.0-0-")
    assert names_of(second)[1].startswith("2-1.0-0-")
    store.verify(store.load(2))


def test_shared_files_come_to_a_subtask_in_pieces_and_verified(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    (file,) = task.snapshot(1)
    part = store.data_files.restore_part(file, 4, directory, (1, file))
    assert (part.file.read(), part.data, part.source_subtask, part.stored) == (b"content of 1.sst", b"", 4, (1, file))
    path = f"checkpoints/{JOB}/{file.path}"
    whole = store.fs.files[path]
    for damaged in (whole[:-1], b"x" + whole[1:], None):
        if damaged is None:
            store.fs.delete(path)
        else:
            store.fs.files[path] = damaged
        with pytest.raises(CheckpointCorruptError):
            store.data_files.restore_part(file, 5 + len(damaged or b""), directory)
        with pytest.raises(CheckpointCorruptError):
            store.verify(publish_like(file))


def publish_like(file):
    return Manifest(
        "job", "a job", 1, 1, 5, (OperatorState(UID, "Count", 1, 16, (OperatorSnapshot(UID, 0, (file,)),)),)
    )


def test_ids_of_shared_files_are_not_used_again(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    task.snapshot(7)
    assert store.highest_checkpoint_id() == 7


def test_a_local_file_that_is_gone_is_an_error_of_storage(store, directory):
    local = LocalFile(f"{directory.path}/none", directory)
    part = SnapshotPart("(database)", FileKind.DATABASE, {"name": "none"}, local.read, local)
    with pytest.raises(StorageError, match="could not copy"):
        store.data_files.write_part(1, ExecutionAttemptId(1, 0, VertexId("v"), 0), UID, part)


# ------------------------------------------------------------------------------------------------------------- garbage
def test_what_only_old_checkpoints_name_goes(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    del task.names["1.sst"]  # compacted into another
    task.write("2.sst")
    publish(store, 2, task.snapshot(2, base=1))
    assert collected(store, [2]) == [1]
    assert [name[-5:] for name in shared(store)] == ["2.sst"]
    store.verify(store.load(2))


def test_a_checkpoint_under_way_keeps_what_its_base_names(store, directory):
    """Checkpoint 3 was triggered when 1 was complete, and 2 completes first: 1 stays until 3 has ended."""
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    third = task.snapshot(3, base=1)
    del task.names["1.sst"]
    task.write("2.sst")
    publish(store, 2, task.snapshot(2, base=1))
    assert collected(store, [2], bases=[1]) == []
    publish(store, 3, third)
    store.verify(store.load(3))
    assert collected(store, [3]) == [1, 2]
    assert [name[-5:] for name in shared(store)] == ["1.sst"]


def test_a_lost_notification_only_costs_uploads(store, directory):
    """The task has never heard that 2 is complete; the barrier of 3 says so, and what 1 named alone is gone."""
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    del task.names["1.sst"]
    task.write("2.sst")
    publish(store, 2, task.snapshot(2, base=1))
    collected(store, [2])
    publish(store, 3, task.snapshot(3, base=2))
    store.verify(store.load(3))
    # One that does not know the base at all stores everything.
    files = task.snapshot(4, base=99)
    assert all(file.is_made_for(4) for file in files)


def test_files_of_an_aborted_checkpoint_are_never_named_and_go(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    task.write("2.sst")
    aborted = task.snapshot(2, base=1)
    third = task.snapshot(3, base=1)
    assert names_of(aborted)[1] not in names_of(third)
    publish(store, 3, third)
    collected(store, [3])
    assert shared(store) == sorted(names_of(third))
    store.verify(store.load(3))


def test_late_uploads_of_a_dead_attempt_replace_nothing_and_go(store, directory):
    dead = Task(store, directory)
    dead.write("1.sst")
    manifest = publish(store, 1, dead.snapshot(1))
    dead.write("2.sst")
    living = Task(store, directory, number=1, restored=(1, manifest))
    living.write("2.sst")
    second = living.snapshot(3, base=1)
    late = dead.snapshot(2, base=1)
    assert not {*names_of(late)[1:]} & {*names_of(second)[1:]}
    publish(store, 3, second)
    dead.snapshot(2, base=1)
    collected(store, [3])
    assert shared(store) == sorted(names_of(second))
    store.verify(store.load(3))


def test_a_restart_goes_on_with_the_files_of_the_checkpoint_it_restored(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    manifest = publish(store, 1, task.snapshot(1))
    again = Task(store, directory, number=1, restored=(1, manifest))
    again.write("2.sst")
    files = again.snapshot(2, base=1)
    assert names_of(files)[0].startswith("1-1.0-0-")
    publish(store, 2, files)
    collected(store, [2])
    store.verify(store.load(2))


def test_a_restart_from_an_older_checkpoint_stores_everything(store, directory):
    """2 is damaged, 1 was restored; the newest complete one is still 2."""
    task = Task(store, directory)
    task.write("1.sst")
    manifest = publish(store, 1, task.snapshot(1))
    publish(store, 2, task.snapshot(2, base=1))
    again = Task(store, directory, number=1, restored=(1, manifest))
    assert all(file.is_made_for(3) for file in again.snapshot(3, base=2))


def test_several_in_flight_store_their_own_copies(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    task.write("2.sst")
    second, third = task.snapshot(2, base=1), task.snapshot(3, base=1)
    assert names_of(second)[0] == names_of(third)[0]
    assert names_of(second)[1] != names_of(third)[1]
    publish(store, 2, second)
    collected(store, [2], bases=[1])
    publish(store, 3, third)
    collected(store, [3])
    store.verify(store.load(3))
    assert shared(store) == sorted(names_of(third))


def test_a_deposed_leader_deletes_nothing(store, directory):
    old = store.claim_epoch()
    task = Task(store, directory, epoch=old)
    task.write("1.sst")
    manifest = publish(store, 1, task.snapshot(1), old)
    new = store.claim_epoch()
    again = Task(store, directory, epoch=new, restored=(1, manifest))
    again.write("2.sst")
    files = again.snapshot(5, base=1)
    assert collected(store, [2], epoch=old) == []
    publish(store, 5, files, new)
    # One that had looked at the epochs before, and deletes only now, with its view of then.
    store.collect_garbage([1])
    store.verify(store.load(5))


def test_no_shared_file_goes_while_a_kept_manifest_cannot_be_read(store, directory):
    task = Task(store, directory)
    task.write("1.sst")
    publish(store, 1, task.snapshot(1))
    del task.names["1.sst"]
    task.write("2.sst")
    publish(store, 2, task.snapshot(2, base=1))
    publish(store, 3, task.snapshot(3, base=2))
    path = f"checkpoints/{JOB}/manifests/chk-2.json"
    store.fs.files[path] = store.fs.files[path][:-5]
    before = shared(store)
    collected(store, [2, 3])
    assert shared(store) == before


def test_a_retained_checkpoint_keeps_its_files(store, directory):
    task = Task(store, directory)
    for number in (1, 2, 3):
        task.names.clear()
        task.write(f"{number}.sst")
        publish(store, number, task.snapshot(number, base=number - 1))
    collected(store, [2, 3])
    for number in (2, 3):
        store.verify(store.load(number))
    assert len(shared(store)) == 2


def test_operators_of_one_chain_restore_into_one_directory(store, directory, tmp_path):
    """Their databases name files alike, in the same subtask of the same attempt."""
    attempt = ExecutionAttemptId(1, 0, VertexId("v"), 0)
    files = []
    for operator in ("first", "second"):
        (tmp_path / operator).mkdir()
        (tmp_path / operator / "8.sst").write_text(operator)
        local = LocalFile(str(tmp_path / operator / "8.sst"), directory)
        part = SnapshotPart("(database)", FileKind.DATABASE, {"name": "8.sst"}, lambda: b"", local)
        files.append(store.data_files.write_part(1, attempt, OperatorId(operator), part))
    parts = [store.data_files.restore_part(file, 0, directory) for file in files]
    assert [part.file.read() for part in parts] == [b"first", b"second"]


# ------------------------------------------------------------------------------------------------------------- property
COMMON = ("write", "compact", "trigger", "trigger", "upload", "upload", "upload", "complete", "complete")
steps = st.lists(
    st.sampled_from([*COMMON, *COMMON, "abort", "restart", "late", "takeover", "collect"]), min_size=30, max_size=120
)


def test_no_history_leaves_a_checkpoint_without_its_files(tmp_path):
    @settings(max_examples=examples(300), deadline=None)
    @given(steps, st.integers(1, 3), st.randoms(use_true_random=False))
    def check(history, num_retained, rng):
        MemoryFileSystem.forget("shared-files")
        store = CheckpointStorage.open("memory://shared-files/checkpoints", JOB)
        directory = LocalDirectory.make(str(tmp_path), "files")
        epoch, number = store.claim_epoch(), 0
        task = Task(store, directory, epoch=epoch)
        dead, completed, next_id, next_file = [], [], 1, 0
        in_flight = {}  # id -> (base, files or None)
        for step in history:
            if step == "write":
                next_file += 1
                task.write(f"{next_file}.sst")
            elif step == "compact" and len(task.names) > 1:
                for name in rng.sample(sorted(task.names), 2):
                    del task.names[name]
                next_file += 1
                task.write(f"{next_file}.sst")
            elif step == "trigger":
                in_flight[next_id] = (completed[-1] if completed else 0, None)
                next_id += 1
            elif step == "upload" and in_flight:
                checkpoint_id = rng.choice(sorted(in_flight))
                base, files = in_flight[checkpoint_id]
                in_flight[checkpoint_id] = (base, files or task.snapshot(checkpoint_id, base))
            elif step == "complete":
                done = [checkpoint_id for checkpoint_id, (_, files) in sorted(in_flight.items()) if files is not None]
                if done:
                    checkpoint_id = rng.choice(done)
                    publish(store, checkpoint_id, in_flight[checkpoint_id][1], epoch)
                    in_flight = {other: state for other, state in in_flight.items() if other > checkpoint_id}
                    completed = [*completed, checkpoint_id][-num_retained:]
                    bases = {base for base, _ in in_flight.values() if base}
                    if rng.random() < 0.8:
                        collected(store, completed, bases, epoch)
            elif step == "abort" and in_flight:
                del in_flight[rng.choice(sorted(in_flight))]
            elif step in ("restart", "takeover"):
                dead.append((task, dict(in_flight), list(completed)))
                in_flight.clear()
                number += 1
                if step == "takeover":
                    epoch = store.claim_epoch()
                    completed = store.list_complete()[-num_retained:]
                    next_id = store.highest_checkpoint_id() + 1
                restored = (completed[-1], store.load(completed[-1])) if completed else None
                task = Task(store, directory, number=number, epoch=epoch, restored=restored)
            elif step == "late" and dead:
                zombie, pending, _ = rng.choice(dead)
                for checkpoint_id, (base, _) in pending.items():
                    zombie.snapshot(checkpoint_id, base)
            elif step == "collect" and dead:
                zombie, _, view = rng.choice(dead)
                if zombie.attempt.epoch < epoch:  # it looked at the epochs before the takeover
                    store.collect_garbage(view)
            for checkpoint_id in completed:
                store.verify(store.load(checkpoint_id))
        # In the end nothing but what is named stays; a deposed leader may have given ids that its successor does not
        # know.
        next_id += 100
        final = task.snapshot(next_id, completed[-1] if completed else 0)
        publish(store, next_id, final, epoch)
        collected(store, [next_id], (), epoch)
        assert shared(store) == sorted(names_of(final))
        store.verify(store.load(next_id))
        directory.close()

    check()
