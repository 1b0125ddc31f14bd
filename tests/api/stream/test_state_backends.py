"""Programs on both state backends, through the API: the same answers, over a failure and a restore at another
parallelism, and what a checkpoint consists of.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from headrace import (
    CheckpointMismatchError,
    ConfigurationError,
    ExternalizedCheckpointRetention,
    HashMapStateBackend,
    JobFailedError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RestartStrategies,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.state.backends.rocksdb.database import Database
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import StorageError

NUM_RECORDS = 6_000


class Count(KeyedProcessFunction):
    """Counts a key's records; fails once, when `fail_at` records have come and there is no mark of it yet."""

    def __init__(self, mark=None, fail_at=0):
        self._mark, self._fail_at = mark, fail_at

    def open(self, context):
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self._seen = context.get_map_state(MapStateDescriptor("seen"))
        self._last = context.get_list_state(ListStateDescriptor("last"))

    def process_element(self, value, context):
        count = self._count.value() + 1
        self._count.update(count)
        self._seen.put(value % 4, (self._seen.get(value % 4) or 0) + 1)
        self._last.add(value)
        if count == 1:
            context.timer_service().register_event_time_timer(2**62)
        if self._fail_at and value >= self._fail_at and not os.path.exists(self._mark):
            Path(self._mark).touch()
            message = "on purpose"
            raise OSError(message)

    def on_timer(self, timestamp, context):
        seen = sorted(self._seen.items())
        yield context.get_current_key(), self._count.value(), len(self._last.get()), seen


def environment(system, parallelism, backend, directory=None):
    env = StreamExecutionEnvironment.get_execution_environment(system, parallelism=parallelism)
    env.set_state_backend(backend)
    if directory is not None:
        env.enable_checkpointing(20, directory=directory)
        config = env.get_checkpoint_config()
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    return env


def counted(env, function, num_records=NUM_RECORDS, rate=None):
    numbers = env.from_source(
        GeneratorSource(lambda i: i, count=num_records, records_per_second=rate),
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value),
        "numbers",
    )
    return numbers.key_by(lambda value: value % 97).process(function)


def expected(num_records=NUM_RECORDS):
    rows = []
    for key in range(97):
        values = range(key, num_records, 97)
        rows.append((key, len(values), len(values), sorted(Counter(value % 4 for value in values).items())))
    return rows


@pytest.mark.parametrize("system", ["local", "sim"])
@pytest.mark.parametrize("name", ["heap", "rocksdb"])
@pytest.mark.sampled(3)
def test_a_failure_changes_nothing_on_any_backend(tmp_path, system, name):
    backend = name if name == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "local"))
    with environment(system, 2, backend, str(tmp_path / "checkpoints")) as env:
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
        stream = counted(env, Count(str(tmp_path / "failed"), NUM_RECORDS // 2), rate=20_000)
        assert sorted(stream.execute_and_collect()) == expected()
    assert (tmp_path / "failed").exists()
    left = str(tmp_path / "local")
    assert not os.path.exists(left) or os.listdir(left) == []


def test_a_database_that_fails_fails_the_job_which_then_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    write, failures = Database.write, iter([3, 5])  # even the fewest checkpoints make so many writes
    num_writes, due = 0, next(failures)

    def failing_write(database, batch, state):
        nonlocal num_writes, due
        num_writes += 1
        if num_writes == due:
            due = next(failures, 0)
            message = "the local state database failed: IO error: No space left on device"
            raise StorageError(message, operator="counter", state=state)
        write(database, batch, state)

    monkeypatch.setattr(Database, "write", failing_write)
    backend = RocksDBStateBackend(16 << 20, str(tmp_path / "local"))
    with environment("local", 2, backend, str(tmp_path / "checkpoints")) as env:
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))
        assert sorted(counted(env, Count(), rate=20_000).execute_and_collect()) == expected()
    assert due == 0


def test_windows_are_the_same_on_both_backends(tmp_path):
    answers = []
    for backend in (HashMapStateBackend(), RocksDBStateBackend(local_directory=str(tmp_path / "local"))):
        with environment("local", 2, backend) as env:
            numbers = env.from_source(
                GeneratorSource(lambda i: (i % 7, i), count=2_000),
                WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[1]),
                "numbers",
            )
            windows = numbers.key_by(lambda row: row[0]).window(TumblingEventTimeWindows.of(100))
            answers.append(Counter(windows.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect()))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 140


def run_until_checkpoints(env, num_checkpoints):
    """Run the program until it has completed some checkpoints, and cancel it: long before its data ends."""
    counted(env, Count(), rate=NUM_RECORDS // 20).print()
    client = env.execute_async("count")
    for view in client.views():
        if view.checkpoints_completed >= num_checkpoints:
            break
    client.cancel()


def manifests_in(directory):
    storage = CheckpointStorage.at(directory)
    return storage, [storage.load(checkpoint_id) for checkpoint_id in storage.list_complete()]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1)])
def test_a_checkpoint_goes_on_at_another_parallelism_and_names_files_again(tmp_path, before, after):
    directory, local = tmp_path / "checkpoints", str(tmp_path / "local")
    backend = RocksDBStateBackend(16 << 20, local)
    with environment("local", before, backend, str(directory)) as env:
        env.get_checkpoint_config().set_max_retained_checkpoints(5)
        run_until_checkpoints(env, 6)
    [job] = [path for path in directory.iterdir() if path.is_dir()]
    storage, manifests = manifests_in(str(job))
    newest = manifests[-1]
    storage.verify(newest)
    # Every few checkpoints a compaction makes all of such a small database anew.
    assert any(not file.is_made_for(each.checkpoint_id) for each in manifests for file in each.files())
    named = {file.path for manifest in manifests for file in manifest.files()}
    on_disk = {str(path.relative_to(job)) for path in (job / "shared").rglob("*") if path.is_file()}
    assert on_disk >= {path for path in named if path.startswith("shared/")}
    with environment("local", after, backend, str(tmp_path / "more")) as env:
        env.set_restore_path(job / "manifests" / f"chk-{newest.checkpoint_id}.json")
        stream = counted(env, Count())
        assert sorted(stream.execute_and_collect()) == expected()
    [other] = [path for path in (tmp_path / "more").iterdir() if path.is_dir()] or [None]
    if other is not None:  # every folder is complete in itself
        for manifest in manifests_in(str(other))[1]:
            for file in manifest.files():
                assert (other / file.path).exists()


def test_a_checkpoint_of_the_other_backend_is_refused(tmp_path):
    directory = tmp_path / "checkpoints"
    with environment("local", 2, "heap", str(directory)) as env:
        run_until_checkpoints(env, 4)
    [job] = directory.iterdir()
    backend = RocksDBStateBackend(local_directory=str(tmp_path / "local"))
    with environment("local", 2, backend, str(tmp_path / "more")) as env:
        env.set_restore_path(job)
        env.set_restart_strategy(RestartStrategies.no_restart())
        with pytest.raises((JobFailedError, CheckpointMismatchError), match="is of the backend 'heap'"):
            list(counted(env, Count()).execute_and_collect())


def test_settings_are_checked_where_they_are_made():
    env = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ConfigurationError, match="must be one of heap, rocksdb; got 'redis'"):
        env.set_state_backend("redis")
    with pytest.raises(ConfigurationError, match="at least 8 MiB"):
        RocksDBStateBackend(managed_memory_bytes=1 << 20)
    assert env.set_state_backend("rocksdb") is env
