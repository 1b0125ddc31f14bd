"""Restarts of single regions, and rescaling, on Ray, where a slot is a process and dies for real."""

from __future__ import annotations

import json
import sys
from collections import Counter

import cloudpickle
import global_lists
import pytest

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

COUNT = 6_000


def rows_in(folder):
    return [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]


def wait_until(client, is_enough):
    for view in client.views():
        if is_enough(view):
            return view
    message = "the job ended before"
    raise AssertionError(message)


@pytest.fixture(scope="module")
def env(ray_session):
    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2) as environment:
        yield environment


@pytest.mark.campaign
def test_a_killed_slot_restarts_its_own_region_alone(env, tmp_path):
    env.set_parallelism(4)
    env.enable_checkpointing(200, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=1_000)
    env.from_source(source, None, "numbers").map(lambda n: n).sink_to(FileSink.json_lines(str(tmp_path / "out")))
    client = env.execute_async("regions")
    view = wait_until(client, lambda view: view.state == "RUNNING" and view.checkpoints_completed >= 2)
    assert [vertex.attempts for vertex in view.vertices] == [(0, 0, 0, 0)]
    killed = client.kill_slot(1)
    view = wait_until(client, lambda view: view.state == "RUNNING" and view.num_restarts > 0)
    [vertex] = view.vertices
    assert sorted(vertex.attempts) == [0, 0, 0, 1]
    assert killed not in {slot.address.host for slot in view.slots}
    result = client.result(timeout=120)
    assert result.num_restarts == 1
    [vertex] = result.view.vertices
    assert sorted(vertex.attempts) == [0, 0, 0, 1]
    assert sorted(rows_in(tmp_path / "out")) == list(range(COUNT))


class RunningCount(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield [value % 37, count]


@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_rescaled_up_and_down_while_it_runs(env, tmp_path, backend):
    env.set_parallelism(2).set_state_backend(backend)
    env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=400)
    counted = env.from_source(source, None, "numbers").key_by(lambda n: n % 37).process(RunningCount()).uid("count")
    counted.sink_to(FileSink.json_lines(str(tmp_path / "out")))
    client = env.execute_async("rescaled")
    wait_until(client, lambda view: view.state == "RUNNING" and view.checkpoints_completed >= 1)
    for parallelism in (3, 1):
        client.rescale(parallelism)
        view = client.view()
        assert view.state == "RUNNING"
        assert {vertex.parallelism for vertex in view.vertices} == {parallelism}
        done = view.checkpoints_completed
        wait_until(client, lambda view, done=done: view.checkpoints_completed > done)
    result = client.result(timeout=120)
    assert result.num_restarts == 0
    expected = Counter((n % 37, n // 37 + 1) for n in range(COUNT))
    assert Counter(map(tuple, rows_in(tmp_path / "out"))) == expected


@pytest.mark.campaign
def test_a_list_of_the_program_is_copied_to_each_attempt_of_a_task(env, tmp_path):
    names = global_lists.check(env, tmp_path)
    assert names["other"] == ["given"], "tasks are in other processes"
