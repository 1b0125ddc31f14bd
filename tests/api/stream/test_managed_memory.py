"""Managed memory as programs meet it: columnar state beyond a slot's share, and what views say of TaskManagers."""

from __future__ import annotations

import pytest

from headrace import (
    JobFailedError,
    KeyedProcessFunction,
    ManagedMemoryError,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from headrace.actors.connecting import connect
from headrace.cli.cluster import task_manager_lines
from headrace.connectors.scripted import Pause, ScriptedSource, Timed
from headrace.engine.graph.chaining import build_job_graph
from headrace.engine.kernel.config import ClusterSettings, JobSettings
from headrace.engine.kernel.slot_resources import MachineResources, NetworkInterface
from headrace.engine.protocol.messages import WaitForJob
from headrace.functions import sum as sum_of
from headrace.state.backends.rocksdb.database import SlotMemory

NUM_KEYS = 3_000
MACHINE = MachineResources(
    4.0, 8 << 30, 6 << 30, "/data", 100 << 30, 40 << 30, (NetworkInterface("eth0", ("10.0.0.7",)),), "worker-7"
)


@pytest.fixture(params=["local", "sim"])
def make(request, tmp_path):
    made = []

    def make(parallelism, managed_memory_bytes):
        env = StreamExecutionEnvironment.get_execution_environment(
            request.param,
            parallelism=parallelism,
            slots_per_task_manager=parallelism,
            managed_memory_bytes=managed_memory_bytes,
        )
        env.set_max_parallelism(16)
        env.enable_checkpointing(50, directory=tmp_path / "ckpt")
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def build(env, pause):
    """A window of many keys, of 24 bytes or more each; held until the script ends."""
    script = [*(Timed({"k": n, "v": n}, 5) for n in range(NUM_KEYS)), pause, Timed({"k": 0, "v": 0}, 500)]
    source = env.from_source(ScriptedSource(script), WatermarkStrategy.for_monotonous_timestamps(), "script")
    stream = source.uid("script").set_parallelism(1)
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(100))
    return windows.aggregate(n=count(), total=sum_of("v")).uid("windows")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_columns_beyond_a_slots_share_end_the_job_with_whose_they_are(make, parallelism):
    env = make(parallelism, NUM_KEYS * 24 // 2)
    build(env, Pause(0)).print()
    with pytest.raises(JobFailedError) as failed:
        env.execute("too much")
    cause = failed.value.__cause__
    assert isinstance(cause, ManagedMemoryError)
    assert cause.context["operator"]
    assert str(cause.context["subtask"])
    assert "slots_per_task_manager" in cause.hint


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.sampled(4)
def test_a_restore_into_a_smaller_share_is_refused_and_a_larger_one_goes_on(make, parallelism):
    env = make(parallelism, 3 << 20)
    build(env, Pause()).print()
    client = env.execute_async("held")
    for view in client.views():
        held = [operator.metrics.get("managed_memory.used_bytes", 0) for v in view.vertices for operator in v.operators]
        if sum(held) >= NUM_KEYS * 24:
            break
    assert sum(held) < 1 << 20
    assert [manager.slot_memory_bytes for manager in view.task_managers] == [(3 << 20) // parallelism]
    path = client.stop()
    small = make(parallelism, NUM_KEYS * 24 // 2)
    build(small, Pause(0)).print()
    with pytest.raises(JobFailedError, match="does not fit into memory") as failed:
        small.execute("smaller", from_checkpoint=path)
    assert isinstance(failed.value.__cause__, ManagedMemoryError)
    large = make(parallelism, 4 << 20)
    large.set_restore_path(path)
    with build(large, Pause(0)).execute_and_collect() as rows:
        assert len(list(rows)) == NUM_KEYS + 1


def test_a_backend_that_wants_more_than_the_share_is_refused(make):
    env = make(1, 16 << 20)
    env.set_state_backend(RocksDBStateBackend(managed_memory_bytes=32 << 20))
    build(env, Pause(0)).print()
    with pytest.raises(JobFailedError, match=r"share is 16\.0 MiB"):
        env.execute("too much")


class Keeping(KeyedProcessFunction):
    """Keeps a text of each key."""

    def open(self, context):
        self.text = context.get_state(ValueStateDescriptor("text", str))

    def process_element(self, value, context):
        self.text.update(f"{value['k']:05}" * 40)
        yield value


def test_two_databases_of_a_slot_share_it_before_and_after_a_rescale(tmp_path):
    share = 8 << 20
    with StreamExecutionEnvironment.get_execution_environment(
        "local", parallelism=2, slots_per_task_manager=1, managed_memory_bytes=share
    ) as env:
        env.set_max_parallelism(16)
        env.enable_checkpointing(100, directory=tmp_path / "ckpt")
        env.set_state_backend("rocksdb")
        script = ScriptedSource([*({"k": n} for n in range(20_000)), Pause()])
        keyed = env.from_source(script, None, "script").key_by("k").process(Keeping()).uid("one")
        keyed.map(lambda row: {"k": row["k"] + 1}).key_by("k").process(Keeping()).uid("two").filter(
            lambda _: False
        ).print()
        client = env.execute_async("two databases")
        for parallelism in (2, 3):
            if parallelism == 3:
                client.rescale(3)
            used = wait_for_databases(client, parallelism)
            assert sum(used) <= parallelism * share
            memories = [memory for memory in SlotMemory._of_slot.values() if memory.databases]
            assert [memory.managed_bytes for memory in memories] == [share] * parallelism
            assert [len(memory.databases) for memory in memories] == [2] * parallelism
            for memory in memories:  # blocks and memtables, objects in front of them: all within the share
                assert memory.cache.get_usage() + memory.object_bytes <= share * 1.05
        client.cancel()


def wait_for_databases(client, parallelism):
    """What both operators hold, once each subtask of both has written and checkpoints go on."""
    checkpoint = None
    for view in client.views():
        operators = [operator for vertex in view.vertices for operator in vertex.operators]
        used = [o.metrics["managed_memory.used_bytes"] for o in operators if "managed_memory.used_bytes" in o.metrics]
        parallelisms = [vertex.parallelism for vertex in view.vertices if vertex.name.startswith("process")]
        if view.state == "RUNNING" and len(used) == 2 and all(used) and parallelisms == [parallelism] * 2:
            if checkpoint is None:
                checkpoint = view.checkpoints_completed
            elif view.checkpoints_completed > checkpoint + 1:
                return used
    message = "the job has ended"
    raise AssertionError(message)


@pytest.mark.parametrize("actor_system", ["sim", "local"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_views_show_memory_disk_and_network_of_task_managers(actor_system, parallelism):
    plan = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    script = ScriptedSource([1, 2, Pause()], is_bounded=False)
    plan.from_source(script, WatermarkStrategy.no_watermarks(), "script").map(str).print()
    graph = build_job_graph(plan.get_stream_graph(), "a job", JobSettings(attached=False))
    with connect(actor_system, settings=ClusterSettings(), examine=lambda _disk: MACHINE) as cluster:
        job_id = cluster.submit(graph, parallelism)
        view = cluster.ask_job(job_id, WaitForJob(-1, 0))
        while view.state != "RUNNING":
            view = cluster.ask_job(job_id, WaitForJob(view.version, 5_000))
        assert cluster.task_managers() == list(view.task_managers)
    [manager] = view.task_managers
    assert (manager.num_slots, manager.machine) == (parallelism, MACHINE)
    assert manager.managed_memory_bytes == int(0.4 * parallelism / 4 * (8 << 30))
    text = "\n".join(task_manager_lines(manager))
    for part in ("6.0 GiB of 8.0 GiB available", "40.0 GiB of 100.0 GiB free in /data", "eth0 10.0.0.7", "worker-7"):
        assert part in text
