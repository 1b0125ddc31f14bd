"""Memory and disk of a batch that sorts: its part of the slot's managed memory, full disks, what is left behind."""

from __future__ import annotations

import gc
import tempfile

import pytest
from full_disk import a_disk_that_takes, open_files

from headrace import (
    JobFailedError,
    KeyedProcessFunction,
    ManagedMemoryError,
    RocksDBStateBackend,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.state.errors import StorageError
from headrace.state.files.spilling import SpillFile
from headrace.state.keyed.managed_memory import MIN_SORT_BYTES, MemoryUse
from headrace.stream.restart_strategies import RestartStrategies

MIB = 1 << 20


class Counting(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value, context):
        self.count.update(self.count.value() + 1)
        yield value["key"], self.count.value()


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes environments that spill to a folder of their own."""
    (tmp_path / "spills").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spills"))
    made = []

    def make(parallelism, memory_bytes):
        env = StreamExecutionEnvironment.get_execution_environment(
            "local", parallelism=parallelism, slots_per_task_manager=1, managed_memory_bytes=memory_bytes
        )
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def large_rows(num_rows):
    return [{"key": n % 11, "n": n, "text": f"{n:010}" * 200} for n in range(num_rows)]


def metrics_of(client):
    found = {}
    for view in client.views():
        for vertex in view.vertices:
            for operator in vertex.operators:
                sort = {name: value for name, value in operator.metrics.items() if name.startswith("sorted_input.")}
                if sort:
                    found.setdefault(operator.name, []).append(sort)
    client.result()
    return found


@pytest.mark.parametrize("parallelism", [1, 3])
def test_operators_that_sort_have_equal_parts_and_state_has_its_own(make, parallelism):
    env = make(parallelism, 32 * MIB)
    env.set_state_backend("rocksdb")
    stream = env.from_collection([{"key": n % 7} for n in range(2_000)]).key_by(lambda row: row["key"])
    counted = stream.process(Counting()).name("one")
    counted.key_by(lambda pair: pair[0]).reduce(lambda a, b: max(a, b)).name("two").print()
    graph = env.get_job_graph()
    uses = {vertex.memory_use for vertex in graph.vertices.values()}
    assert uses == {MemoryUse(2, keeps_state=True)}
    [use] = uses
    assert use.state_bytes(32 * MIB) == 16 * MIB


def test_slots_of_another_group_have_their_own_memory(make):
    env = make(1, 32 * MIB)
    stream = env.from_collection([{"key": n % 7} for n in range(20)]).key_by(lambda row: row["key"])
    counted = stream.process(Counting()).slot_sharing_group("apart").name("one")
    counted.key_by(lambda pair: pair[0]).reduce(lambda a, b: max(a, b)).slot_sharing_group("other").print()
    graph = env.get_job_graph()
    assert {vertex.slot_sharing_group: vertex.memory_use for vertex in graph.vertices.values()} == {
        "default": MemoryUse(0, keeps_state=False),
        "apart": MemoryUse(1, keeps_state=False),
        "other": MemoryUse(1, keeps_state=False),
    }


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.sampled(4)
def test_a_sorting_operator_keeps_to_its_part_and_spills_the_rest(make, parallelism, backend):
    env = make(parallelism, 16 * MIB)  # of each slot, as each TaskManager has one
    env.set_state_backend(backend)
    rows = large_rows(9_000)
    env.from_collection(rows).rebalance().key_by(lambda row: row["key"]).process(Counting()).name("counts").print()
    for sorting in metrics_of(env.execute_async("sort")).values():
        memory = max(sort["sorted_input.memory_bytes"] for sort in sorting)
        assert memory <= parallelism * (16 if backend == "heap" else 8) * MIB
        assert max(sort["sorted_input.spilled_bytes"] for sort in sorting) > 0 or parallelism == 3


def test_columns_keep_their_part_while_others_sort(make):
    """The window of a batch holds all its columns until the end; what is sorted beside it is spilled instead."""
    env = make(1, 6 * MIB)
    rows = [{"k": n, "v": n, "ts": n} for n in range(30_000)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    timed = env.from_collection(rows).assign_timestamps_and_watermarks(strategy)
    windows = timed.key_by("k").window(TumblingEventTimeWindows.of(100_000)).aggregate(n=count())
    sorted_too = windows.map(lambda row: {"key": row["k"] % 5, "text": f"{row['k']:010}" * 20}).key_by("key")
    with sorted_too.process(Counting()).execute_and_collect() as found:
        assert len(list(found)) == 30_000


def test_too_little_memory_to_sort_is_refused_with_its_place(make):
    env = make(3, MIN_SORT_BYTES - 1)
    env.from_collection([{"key": 1}]).key_by(lambda row: row["key"]).process(Counting()).name("counts").print()
    with pytest.raises(JobFailedError) as failed:
        env.execute("little")
    cause = failed.value.__cause__
    assert isinstance(cause, ManagedMemoryError)
    assert "sorting input needs 1.0 MiB" in str(cause)
    assert cause.context["operator"] == "counts"
    assert cause.context["subtask"].endswith("/3")
    assert "managed_memory_bytes" in cause.hint


def test_a_backend_that_takes_all_leaves_nothing_to_sort_in(make):
    env = make(1, 16 * MIB)
    env.set_state_backend(RocksDBStateBackend(managed_memory_bytes=16 * MIB))
    env.from_collection([{"key": 1}]).key_by(lambda row: row["key"]).process(Counting()).print()
    with pytest.raises(JobFailedError, match=r"sorting input needs 1\.0 MiB of managed memory; 0 bytes"):
        env.execute("nothing left")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_full_disk_fails_with_operator_subtask_and_folder_and_leaves_nothing(make, parallelism, tmp_path):
    env = make(parallelism, 2 * MIB)
    env.set_restart_strategy(RestartStrategies.no_restart())
    rows = large_rows(6_000 * parallelism)
    stream = env.from_collection(rows).rebalance().key_by(lambda row: row["n"])
    stream.process(Counting()).name("counts").print()
    with a_disk_that_takes(2 * MIB), pytest.raises(JobFailedError) as failed:
        env.execute("full")
    cause = failed.value.__cause__
    assert isinstance(cause, StorageError)
    assert cause.context["operator"] == "counts"
    assert cause.context["subtask"].endswith(f"/{parallelism}")
    assert str(tmp_path / "spills") in str(cause)
    assert not left_behind(tmp_path)


def test_cancellation_leaves_nothing(make, tmp_path, monkeypatch):
    env = make(1, 2 * MIB)
    source = ScriptedSource([*large_rows(3_000), Pause()])
    env.from_source(source, None, "rows").key_by(lambda row: row["n"]).process(Counting()).print()
    client = env.execute_async("canceled")
    for view in client.views():
        spilled = [o.metrics.get("sorted_input.spilled_bytes", 0) for v in view.vertices for o in v.operators]
        if sum(spilled) > 0:
            break
    assert left_behind(tmp_path), "it spills to where we look"
    client.cancel()
    assert not left_behind(tmp_path)


def left_behind(tmp_path):
    """Files of the folder for spills, with and without a name."""
    gc.collect()
    folder = tmp_path / "spills"
    return [*folder.iterdir(), *(link for link in open_files("self") if link.startswith(str(folder)))]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_full_disk_that_gets_room_again_costs_a_restart(make, parallelism, monkeypatch):
    """By default a batch starts over, as after any failure from outside."""
    refusals = []
    write = SpillFile.write

    def refuse_twice(self, data):
        if len(refusals) < 2:
            refusals.append(1)
            message = "no space left on device"
            raise StorageError(message)
        return write(self, data)

    monkeypatch.setattr(SpillFile, "write", refuse_twice)
    env = make(parallelism, 2 * MIB)
    rows = large_rows(3_000)
    with env.from_collection(rows).key_by(lambda row: row["key"]).process(Counting()).execute_and_collect() as found:
        counts = list(found)
    assert refusals == [1, 1]
    assert {(key, n) for key, n in counts} >= {(key, 1) for key in range(11)}
