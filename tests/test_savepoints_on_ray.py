"""Savepoints on Ray, where the process of a slot is killed while one is taken: it is complete or absent.

Crash family, on real processes; the campaigns of the simulator cover the rest. Beside it, the commands that find a job
in a running cluster.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter

import cloudpickle
import pytest

from headrace import KeyedProcessFunction, SavepointError, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import CheckpointNotFoundError

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.usefixtures("ray_session")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

COUNT = 6_000
RATE = 300


class Numbered(KeyedProcessFunction):
    """Gives each key's records their number; keeps enough that a savepoint takes its time."""

    def open(self, context):
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self._ballast = context.get_state(ValueStateDescriptor("ballast"))

    def process_element(self, value, context):
        self._count.update(self._count.value() + 1)
        self._ballast.update([value] * 1_000)
        yield [context.get_current_key(), self._count.value()]


def program(env, path, rate):
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=rate, number_of_splits=2)
    stream = env.from_source(source, None, "numbers").uid("numbers").key_by(lambda n: n % 37)
    stream.process(Numbered()).uid("count").sink_to(FileSink.json_lines(path)).uid("out")


def rows_in(folder):
    return [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]


def check(rows):
    got = Counter(map(tuple, rows))
    expected = Counter((key, n + 1) for key in range(37) for n in range(len(range(key, COUNT, 37))))
    assert got == expected, f"lost {(expected - got).total()}, too many {(got - expected).total()}"


@pytest.mark.campaign
def test_a_slot_killed_while_savepoints_are_taken(tmp_path):
    out, savepoints = tmp_path / "out", tmp_path / "savepoints"
    taken, refused = [], []
    with StreamExecutionEnvironment.get_execution_environment(parallelism=2, max_slots=2) as env:
        env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
        env.set_default_savepoint_directory(savepoints)
        program(env, str(out), RATE)
        client = env.execute_async("killed")
        for kills in (True, True, False):
            runs_again(client)
            asked = threading.Thread(target=ask, args=(client, taken, refused))
            asked.start()
            if kills:
                client.kill_slot()
            asked.join(timeout=60)
            assert not asked.is_alive()
        assert len(taken) + len(refused) == 3
        assert taken, "the last one had nothing in its way"
        look_alike = [CheckpointStorage.at(str(folder)) for folder in savepoints.iterdir()]
        for storage in look_alike:
            try:
                storage.verify(CheckpointStorage.from_manifest(storage.uri)[1])
            except CheckpointNotFoundError:
                assert storage.uri not in taken
        path = client.stop_with_savepoint()
        assert client.view().num_restarts >= 1
        before = len(rows_in(out))
        assert 0 < before < COUNT
        env.set_parallelism(1)
        program(env, str(out), None)
        env.execute("goes on", from_savepoint=path)
    check(rows_in(out))


def runs_again(client):
    """Wait until the job runs, with a checkpoint behind it that it did not have before."""
    before = client.view().checkpoints_completed
    for view in client.views():
        if view.state == "RUNNING" and view.checkpoints_completed > before:
            return
    message = "the job has ended"
    raise AssertionError(message)


def ask(client, taken, refused):
    try:
        taken.append(client.trigger_savepoint())
    except SavepointError as error:
        refused.append(error)
