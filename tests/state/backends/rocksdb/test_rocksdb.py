"""The RocksDB backend beyond the contract: keys that begin alike, incremental snapshots, failing disks, what it
leaves behind.

Families: crash (kill -9, full disk, damaged files), rules one by one.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from campaigns import examples
from cloudpickle import cloudpickle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rocksdb_kit import ALL, OPERATOR, VALUE, restored, stored, written

from headrace.state.backends.choice import make_keyed_backend, restore_keyed_backend
from headrace.state.backends.rocksdb import database as rocksdb_database
from headrace.state.backends.rocksdb.backend import RocksDBKeyedStateBackend
from headrace.state.backends.rocksdb.database import SlotMemory
from headrace.state.checkpoints.snapshot import StateFile
from headrace.state.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigurationError,
    StorageError,
    TypeMismatchError,
)
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.keys.hashing import hash_key
from headrace.state.keys.key_groups import KeyGroupRange
from headrace.state.reading.program_classes import ProgramClasses

# --------------------------------------------------------------------------------------------- keys that begin alike
SIMILAR = ["", "\0", "\0\0", "a", "a\0", "a\0x", b"", b"\0", b"a", b"a\0", ("a",), ("a\0",), ("a", "\0")]


@pytest.mark.parametrize("windowed", [False, True])
def test_lists_and_maps_of_keys_that_begin_alike_do_not_mix(folder, windowed):
    """NUL ends an encoded text and, escaped, is part of one: all keys are in one key group, next to each other."""

    @settings(max_examples=examples(60))
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["put", "put", "add", "add", "remove", "clear", "update"]),
                st.sampled_from(SIMILAR),
                st.sampled_from(SIMILAR),
            ),
            max_size=30,
        )
    )
    @example([("put", "a", 1), ("put", "a\0", 2), ("add", "a", 1), ("add", "a\0", 2), ("clear", "a", 0)])
    def check(steps):
        memory = SlotMemory.of_slot("similar", 16 << 20)
        backend = RocksDBKeyedStateBackend(OPERATOR, 3, KeyGroupRange(0, 0), 1, lambda: 0, memory, folder, 1)
        try:
            entries = backend.handle(MapStateDescriptor("map"), windowed=windowed)
            elements = backend.handle(ListStateDescriptor("list"), windowed=windowed)
            backend.current_namespace = (0, 10) if windowed else None
            maps, lists = {}, {}
            for action, key, inner in steps:
                backend.current_key = key
                if action == "put":
                    entries.put(inner, key)
                    maps.setdefault(key, {})[inner] = key
                elif action == "remove":
                    entries.remove(inner)
                    maps.get(key, {}).pop(inner, None)
                elif action == "add":
                    elements.add(inner)
                    lists.setdefault(key, []).append(inner)
                elif action == "update":
                    elements.update([inner, key])
                    lists[key] = [inner, key]
                else:
                    entries.clear()
                    elements.clear()
                    maps.pop(key, None)
                    lists.pop(key, None)
                backend.current_key = key
                assert dict(entries.items()) == maps.get(key, {})
                assert elements.get() == lists.get(key, [])
                assert entries.is_empty() == (not maps.get(key))
            tables = backend.tables()
            assert dict(tables["list"].namespace(backend.current_namespace)) == {k: v for k, v in lists.items() if v}
            assert dict(tables["map"].namespace(backend.current_namespace)) == {k: v for k, v in maps.items() if v}
        finally:
            backend.close()

    check()


# ------------------------------------------------------------------------------------------------------------ snapshots
def files_of(parts):
    return {part.metadata["name"]: part.reused is not None for part in parts}


def test_a_snapshot_stores_only_files_that_its_base_lacks(make):
    backend = make()
    rows = backend.table(StateDescriptor("t")).namespace(None)
    rows.update({key: key for key in range(1_000)})
    first = backend.snapshot()
    backend.snapshot_stored(1, stored(first, 1))
    rows[5] = "changed"
    second = backend.snapshot(base_checkpoint=1)
    reused = files_of(second)
    assert {name for name in files_of(first) if name != "frame"} == {name for name, is_old in reused.items() if is_old}
    assert list(reused.values()).count(False) == 2  # the frame, and what has changed
    again = restored(make, second)
    assert again.table(StateDescriptor("t")).namespace(None)[5] == "changed"


def test_without_a_known_base_everything_is_stored(make):
    backend = make()
    rows = backend.table(StateDescriptor("t")).namespace(None)
    rows[1] = 1
    first = backend.snapshot()
    backend.snapshot_stored(1, stored(first, 1))
    rows[2] = 2
    backend.snapshot_stored(2, stored(backend.snapshot(base_checkpoint=1), 2))
    # Checkpoint 2 was aborted, 3 is of another attempt; 0: there is none.
    for base in (3, 0):
        assert not any(files_of(backend.snapshot(base_checkpoint=base)).values())


def test_a_restored_checkpoint_is_a_base_at_the_same_and_at_another_range(make):
    backend = make()
    backend.table(StateDescriptor("t")).namespace(None).update({key: key for key in range(1_000)})
    parts = written(backend.snapshot())
    kept = [
        dataclasses.replace(
            part, stored=(7, StateFile(f"shared/{part.metadata['name']}", 1, "0" * 64, part.state, part.kind))
        )
        for part in parts
    ]
    for owned in (ALL, KeyGroupRange(0, 63)):
        again = make(owned)
        again.restore(kept)
        again.table(StateDescriptor("t"))
        reused = [part.reused for part in again.snapshot(base_checkpoint=7) if part.reused is not None]
        assert [file.path for file in reused] == [
            part.stored[1].path for part in kept if part.metadata["name"] != "frame"
        ]
        assert {file.key_groups for file in reused} == {tuple(owned)}


def test_a_snapshot_does_not_see_later_changes_and_its_files_go_with_it(make, folder):
    backend = make()
    rows = backend.table(StateDescriptor("t")).namespace(None)
    rows[1] = "before"
    parts = backend.snapshot()
    rows[1] = "after"
    rows.update({key: key for key in range(2, 1_000)})
    backend.snapshot()
    again = restored(make, parts)
    assert dict(again.table(StateDescriptor("t")).namespace(None)) == {1: "before"}
    again.close()
    del parts
    gc.collect()
    (own,) = [name for name in os.listdir(folder) if not name.endswith(".lock")]
    assert os.listdir(f"{folder}/{own}") == ["db"]


@pytest.mark.parametrize("old", [1, 2, 3, 5])
@pytest.mark.parametrize("new", [1, 2, 4])
def test_everything_finds_its_key_group_at_any_parallelism(make, old, new):
    from headrace.state.keys.key_groups import key_group_range

    schema = pa.schema([("user", pa.int64()), ("n", pa.int64())])

    def states(backend):
        return (
            backend.handle(VALUE),
            backend.handle(ListStateDescriptor("list")),
            backend.handle(MapStateDescriptor("map")),
            backend.table(StateDescriptor("windows"), windowed=True),
            backend.columnar_table("runs", schema, ("user",)),
        )

    snapshots = []
    for subtask in range(old):
        owned = key_group_range(128, old, subtask)
        backend = make(owned)
        # Not every subtask has met every state, nor in the same order.
        if subtask % 2:
            backend.table(StateDescriptor("only-some"))
        value, values, entries, windows, runs = states(backend)
        mine = [key for key in range(300) if owned.contains(hash_key(key) % 128)]
        for key in mine:
            backend.current_key = key
            value.update(key)
            values.add_all([key, "x"])
            entries.put((key, 1), "y")
            windows.namespace((key % 3, 9))[key] = key
        runs.append((0, 1), pa.record_batch({"user": mine, "n": [1] * len(mine)}, schema))
        snapshots.append(backend.snapshot())
    seen = []
    for subtask in range(new):
        owned = key_group_range(128, new, subtask)
        backend = restored(make, *snapshots, owned=owned)
        value, values, entries, windows, runs = states(backend)
        held = sorted(row["user"] for run in runs.runs((0, 1)) for row in run.to_pylist())
        mine = [key for key in range(300) if owned.contains(hash_key(key) % 128)]
        assert held == mine
        for key in range(300):
            backend.current_key = key
            if key in mine:
                assert (value.value(), values.get(), dict(entries.items())) == (key, [key, "x"], {(key, 1): "y"})
        assert sorted(key for n in windows.namespaces() for key in windows.namespace(n)) == mine
        assert sorted(backend.table(VALUE).namespace(None)) == mine
        seen += mine
    assert sorted(seen) == list(range(300))


# --------------------------------------------------------------------------------------------------- what goes wrong
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing"])
def test_damage_shows_before_the_first_record(make, damage):
    backend = make()
    backend.table(StateDescriptor("t")).namespace(None).update(dict.fromkeys(range(1000), "x" * 100))
    parts = written(backend.snapshot())
    for index, part in enumerate(parts):
        data = part.data
        if damage == "missing":
            broken = parts[:index] + parts[index + 1 :]
        else:
            changed = {
                "cut": data[: len(data) // 2],
                "empty": b"",
                "flip": b"\xff" + data[1:-1] + bytes([data[-1] ^ 1]),
            }
            broken = [*parts[:index], dataclasses.replace(part, data=changed[damage]), *parts[index + 1 :]]
        with pytest.raises(CheckpointCorruptError):
            make().restore(broken)


@pytest.mark.parametrize(("there", "here"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_a_checkpoint_of_the_other_backend_is_refused_by_name(folder, there, here):
    def backend_of(name):
        return make_keyed_backend(name, OPERATOR, 0, ALL, 128, lambda: 0, local_directory=folder)

    old, new = backend_of(there), backend_of(here)
    old.current_key = 1
    old.handle(VALUE).update(1)
    message = f"is of the backend '{there}'; the program has the backend '{here}'"
    with pytest.raises(CheckpointMismatchError, match=message) as caught:
        restore_keyed_backend(new, here, written(old.snapshot()), OPERATOR)
    assert caught.value.context["operator"] == OPERATOR
    old.close()
    new.close()


def test_there_are_two_backends():
    with pytest.raises(ConfigurationError, match="must be one of heap, rocksdb; got 'redis'"):
        make_keyed_backend("redis", OPERATOR, 0, ALL, 128, lambda: 0)


def test_a_failing_database_names_operator_subtask_and_state(make, monkeypatch):
    backend = make()
    rows = backend.table(StateDescriptor("totals")).namespace(None)
    rows[1] = 1
    database = backend._database

    class Failing:
        def __getattr__(self, name):
            def fail(*_arguments):
                message = "IO error: No space left on device: While appending to file"
                raise Exception(message)

            return fail

    sound = database._db
    monkeypatch.setattr(database, "_db", Failing())
    for action in (backend.snapshot, lambda: rows[2], lambda: list(rows), rows.clear):
        with pytest.raises(StorageError, match="No space left on device") as caught:
            action()
        assert (caught.value.context["operator"], caught.value.context["subtask"]) == (OPERATOR, 3)
        assert caught.value.context["state"] == "totals"
    monkeypatch.setattr(database, "_db", sound)


def test_a_write_that_waits_for_a_disk_that_is_full_fails(make, monkeypatch):
    """RocksDB waits for room itself, but for ever: it counts on somebody to make some. So it is asked again and again,
    and may one time say what is wrong.
    """
    backend = make()
    rows = backend.table(StateDescriptor("totals")).namespace(None)
    rows[1] = 1
    database = backend._database

    class Full:
        def __init__(self):
            self.answers = ["Result incomplete: Write stall"] * 3 + ["IO error: No space left on device"]

        def write(self, batch, options):
            assert options.no_slowdown
            raise Exception(self.answers.pop(0))

        def __getattr__(self, name):
            return getattr(sound, name)

    sound = database._db
    monkeypatch.setattr(database, "_db", Full())
    with pytest.raises(StorageError, match="No space left on device"):
        backend.snapshot()
    assert database._db.answers == []
    monkeypatch.setattr(database, "_db", sound)


def test_a_write_that_never_finds_room_fails_in_the_end(make, monkeypatch):
    backend = make()
    backend.table(StateDescriptor("totals")).namespace(None)[1] = 1
    database, num_asked = backend._database, 0

    class Hanging:
        def write(self, batch, options):
            nonlocal num_asked
            num_asked += 1
            message = "Result incomplete: Write stall"
            raise Exception(message)

        def __getattr__(self, name):
            return getattr(sound, name)

    sound = database._db
    monkeypatch.setattr(rocksdb_database, "_MAX_STALL_POLLS", 3)
    monkeypatch.setattr(database, "_db", Hanging())
    with pytest.raises(StorageError, match="no room for a write"):
        backend.snapshot()
    assert num_asked == 3
    monkeypatch.setattr(database, "_db", sound)


def run_python(program, folder):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_full_disk_fails_the_snapshot_and_not_silently(tmp_path):
    """The real thing: the system refuses to let any file grow beyond a size."""
    program = """
        import resource, sys
        from headrace.state.backends.choice import make_keyed_backend
        from headrace.state.keyed.descriptors import (ValueStateDescriptor)
        from headrace.state.errors import StorageError
        from headrace.state.keys.key_groups import KeyGroupRange

        owned = KeyGroupRange(0, 127)
        backend = make_keyed_backend("rocksdb", "op", 0, owned, 128, lambda: 0, local_directory=sys.argv[1])
        state = backend.handle(ValueStateDescriptor("v"))
        backend.current_key = 0
        state.update(0)
        before = backend.snapshot()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        import random
        for key in range(20_000):
            backend.current_key = key
            state.update(random.randbytes(100))
        try:
            backend.snapshot()
        except StorageError as error:
            assert error.context["operator"] == "op", error
            print("refused")
        # What was snapshotted before is whole.
        assert all(part.write() for part in before)
        """
    ended = run_python(program, str(tmp_path))
    assert (ended.stdout.strip(), ended.returncode) == ("refused", 0), ended.stderr


# ------------------------------------------------------------------------------------------------ what is left behind
def test_nothing_is_left_after_close_or_when_nobody_has_it_any_more(make, folder):
    backend = make()
    backend.table(StateDescriptor("t")).namespace(None)[1] = 1
    backend.snapshot()
    backend.close()
    backend.close()
    assert os.listdir(folder) == []
    dropped = RocksDBKeyedStateBackend(OPERATOR, 0, ALL, 128, lambda: 0, SlotMemory.of_slot("slot", 16 << 20), folder)
    dropped.table(StateDescriptor("t")).namespace(None)[1] = 1
    assert os.listdir(folder)
    del dropped
    gc.collect()
    assert os.listdir(folder) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(make, folder):
    program = """
        import os, signal, sys
        from headrace.state.backends.choice import make_keyed_backend
        from headrace.state.keyed.descriptors import (ValueStateDescriptor)
        from headrace.state.keys.key_groups import KeyGroupRange

        owned = KeyGroupRange(0, 127)
        backend = make_keyed_backend("rocksdb", "op", 0, owned, 128, lambda: 0, local_directory=sys.argv[1])
        backend.current_key = 1
        backend.handle(ValueStateDescriptor("v")).update(1)
        backend.snapshot()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    living = make()
    living.table(StateDescriptor("t")).namespace(None)[1] = 1
    mine = set(os.listdir(folder))
    assert run_python(program, folder).returncode == -9
    assert len(os.listdir(folder)) == 4
    other = make()
    other.table(StateDescriptor("t"))
    assert len(os.listdir(folder)) == 4
    assert mine < set(os.listdir(folder))
    other.close()
    assert set(os.listdir(folder)) == mine


def test_an_operator_without_state_makes_no_directory(make, folder):
    backend = make()
    assert backend.snapshot() == []
    assert not os.path.exists(folder) or os.listdir(folder) == []


def test_importing_headrace_loads_no_database():
    program = "import headrace, headrace.engine.task.slot, sys; print('rocksdict' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


# ------------------------------------------------------------------------------------------- classes that share a name
def _class_of_users():
    @dataclasses.dataclass(frozen=True)
    class User:
        number: int

    cloudpickle.dumps(User)  # which gives it an id
    return User


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor("s"), MapStateDescriptor("s")], ids=["value", "map"])
def test_a_restored_key_is_not_taken_for_one_of_another_class_of_its_name(make, descriptor):
    here, there = _class_of_users(), _class_of_users()
    is_map = isinstance(descriptor, MapStateDescriptor)

    backend = make()
    state, backend.current_key = backend.handle(descriptor, windowed=False), here(1)
    state.put("a", 1) if is_map else state.update(1)
    with ProgramClasses(lambda: [here, there]).in_use():
        again = restored(make, backend.snapshot(1))
        state, again.current_key = again.handle(descriptor, windowed=False), there(1)
        with pytest.raises(TypeMismatchError, match=r"two classes .*User"):
            state.get("a") if is_map else state.value()
        again.current_key = here(1)
        assert (state.get("a") if is_map else state.value()) == 1
