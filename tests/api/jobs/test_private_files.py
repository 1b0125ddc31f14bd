"""What Headrace makes for itself is its user's alone, whatever the umask: looked at while jobs run, and after.

Families: end to end (both backends, checkpoints, savepoints, sorted batches, local state, high availability).
"""

from __future__ import annotations

import os
import stat

import pytest

from headrace import (
    HighAvailabilitySettings,
    KeyedProcessFunction,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.state.files.local_directories import LocalDirectory
from headrace.state.files.spilling import SpillFile


@pytest.fixture(autouse=True)
def _everything_is_allowed():
    old = os.umask(0)
    yield
    os.umask(old)


def reachable(root):
    """What others reach below a directory: folders are looked into only if others may, and files by their own mode."""
    found = []
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if mode & 0o077:
            found.append(f"{path} {mode:o}")
        if os.path.isdir(path) and mode & 0o011:
            found += reachable(path)
    return found


class Spy(KeyedProcessFunction):
    """Looks at the disk while its state is there."""

    def __init__(self, root):
        self._root = root

    def open(self, runtime_context):
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value, ctx):
        self._seen.update(self._seen.value() + 1)
        files = sum(len(names) for _, _, names in os.walk(f"{self._root}/local"))
        yield value[0], files, reachable(self._root)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_job_makes_nothing_that_others_reach(tmp_path, backend):
    root = str(tmp_path)
    ha = HighAvailabilitySettings(f"{root}/ha", "one", lease_ms=2_000)
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, high_availability=ha)
    env.set_state_backend(
        RocksDBStateBackend(local_directory=f"{root}/local/deep") if backend == "rocksdb" else backend
    )
    env.enable_checkpointing(20, directory=f"{root}/checkpoints")
    script = [(key, 1) for key in "abcd" for _ in range(5)]
    records = env.from_source(ScriptedSource([*script, Pause()], is_bounded=False), None, "s").uid("s")
    results = records.key_by(lambda record: record[0]).process(Spy(root)).uid("spy").execute_and_collect("spied")
    seen = [next(results) for _ in script]
    results.stop_with_savepoint(f"{root}/savepoints")
    assert all(found == [] for _, _, found in seen)
    assert (max(num_files for _, num_files, _ in seen) > 0) == (backend == "rocksdb")
    local = ["local"] if backend == "rocksdb" else []
    assert sorted(os.listdir(root)) == ["checkpoints", "ha", *local, "savepoints"]
    assert reachable(root) == []


def test_directories_for_what_does_not_fit_in_memory_are_made_for_their_owner(tmp_path):
    """Also those above them: somebody who can write there puts another one in their place."""
    spill = SpillFile(str(tmp_path / "a" / "b" / "c"))
    spill.write(b"records")
    directory = LocalDirectory.make(str(tmp_path / "d" / "e" / "f"), "state")
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    spill.close()
    directory.close()
