"""Topologies on Ray, where a slot is a process and dies for real, and its programs with it.

Risks and families: lines lost with a slot or a program, programs that outlive their slot.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from storm_kit import acked, bolt, lines_spout, rows_in

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.storm import Fields, TopologyBuilder

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.campaign,
    pytest.mark.lane("storm"),
]

NUM_LINES = 4_000
NUM_KILLS = 6
DEADLINE_S = 200


def programs_of(folder):
    """Process ids of programs, and their keepers, whose command names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(int(path.parent.name))
    return found


def test_lines_come_at_least_once_while_slots_and_programs_are_killed(ray_session, tmp_path):
    lines = [f"a{n} b{n}" for n in range(NUM_LINES)]
    expected = {word for line in lines for word in line.split()}
    chance = random.Random(11)
    builder = TopologyBuilder()

    def out():
        return {row["word"] for row in rows_in(tmp_path / "out")}

    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2) as env:
        env.enable_checkpointing(200, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(100, 10))
        builder.set_spout("lines", lines_spout(tmp_path, lines), 2)
        builder.set_bolt("words", bolt("split.py", str(tmp_path)), 2).shuffle_grouping("lines")
        builder.set_bolt("again", bolt("split.py", str(tmp_path)), 2).fields_grouping("words", Fields("word"))
        builder.create_topology(env).stream("again").sink_to(FileSink.json_lines(str(tmp_path / "out")))
        client = env.execute_async("killed")
        kills, next_kill = 0, 3
        deadline = time.monotonic() + DEADLINE_S
        for view in client.views():
            assert view.state not in ("FAILED", "FINISHED"), view.failures
            assert time.monotonic() < deadline, (len(acked(tmp_path)), len(out()), view.state)
            if view.state == "RUNNING" and view.checkpoints_completed >= next_kill and kills < NUM_KILLS:
                if kills % 3 == 2:
                    victims = programs_of(tmp_path)
                    os.kill(chance.choice(victims), signal.SIGKILL)
                else:
                    client.kill_slot(chance.randrange(len(view.slots)))
                kills += 1
                next_kill = view.checkpoints_completed + 3
            if kills == NUM_KILLS and len(acked(tmp_path)) == NUM_LINES and out() == expected:
                break
        assert client.view().num_restarts >= NUM_KILLS - 1  # two deaths may be one restart
        client.cancel()
        while programs_of(tmp_path):
            assert time.monotonic() < deadline, programs_of(tmp_path)
            time.sleep(0.05)
