"""Queryable state on Ray: slots in processes of their own answer, also behind the death of one.

The job's output is exact: it is stopped in order, and each key's records are numbered from one on without a gap.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict

import cloudpickle
import pytest

from headrace import KeyedProcessFunction, RestartStrategies, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.jobs.snapshots import Snapshot

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("ray_session")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules


class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, queryable="count"))

    def process_element(self, value, context):
        self.count.update((self.count.value() or 0) + 1)
        yield [value, self.count.value()]


def numbers_in(folder):
    """By key, the numbers of its records, sorted."""
    found = defaultdict(list)
    for part in folder.glob("part-*"):
        for line in part.read_text().splitlines():
            key, number = json.loads(line)
            found[key].append(number)
    return {key: sorted(numbers) for key, numbers in found.items()}


def test_state_is_asked_for_behind_the_death_of_a_slot(tmp_path):
    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2) as env:
        env.set_state_backend("rocksdb")
        env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
        env.get_checkpoint_config().set_max_retained_checkpoints(100)  # the one that is opened stays meanwhile
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 100))
        numbers = env.from_source(GeneratorSource(lambda n: n % 10, records_per_second=2_000), None, "numbers")
        numbers.key_by(lambda n: n).process(Count()).uid("count").sink_to(FileSink.json_lines(str(tmp_path / "out")))
        client = env.execute_async("asked")
        keys = [*range(10), 99]
        for view in client.views():
            if view.checkpoints_completed >= 2:
                break
        before = client.query_state("count", "count", keys, timeout=30)
        assert before["found"].to_pylist() == [True] * 10 + [False]
        committed = client.query_state("count", "count", keys, consistency="checkpoint", timeout=30)
        assert committed["found"].to_pylist() == [True] * 10 + [False]
        client.kill_slot(0)
        deadline = time.monotonic() + 60
        while True:
            table = client.query_state("count", "count", keys, timeout=60)
            if client.view().num_restarts and min(filter(None, table["value"].to_pylist()), default=0) > max(
                committed["value"].to_pylist()[:10]
            ):
                break
            assert time.monotonic() < deadline
        with Snapshot.open(str(client.view().last_checkpoint_path)) as snapshot:
            assert [state.queryable for state in snapshot.states("count") if state.name == "count"] == ["count"]
        client.stop_with_savepoint(tmp_path / "savepoint")
    numbers = numbers_in(tmp_path / "out")
    assert sorted(numbers) == list(range(10))
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
