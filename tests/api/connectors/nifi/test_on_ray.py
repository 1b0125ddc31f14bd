"""Ports of NiFi on Ray, where slots die for real.

Risks and families: flow files lost or doubled with a slot, transactions that outlive their reader.
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from nifi_kit import NiFi
from storm_kit import rows_in

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.connectors.nifi import JsonMessages, NiFiSink, NiFiSource

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.campaign]

NUM_FLOW_FILES = 3_000
NUM_KILLS = 4
DEADLINE_S = 200


def test_flow_files_are_read_once_and_written_at_least_once_while_slots_are_killed(ray_session, tmp_path):
    nifi = NiFi(ttl_s=2)
    given = iter(range(NUM_FLOW_FILES))
    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2) as env:
        env.enable_checkpointing(200, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(100, 10))
        source = NiFiSource(nifi.url, "out", value=JsonMessages({"n": "int64"}))
        numbers = env.from_source(source, None, "in").rebalance().map(lambda row: {"n": row["n"]})
        numbers.sink_to(FileSink.json_lines(str(tmp_path / "out")))
        numbers.sink_to(NiFiSink(nifi.url, "in", value=JsonMessages()))
        client = env.execute_async("killed")
        kills, next_kill = 0, 3
        deadline = time.monotonic() + DEADLINE_S
        for view in client.views():
            assert view.state not in ("FAILED", "FINISHED"), view.failures
            assert time.monotonic() < deadline, (nifi.left, len(rows_in(tmp_path / "out")), view.state)
            nifi.fill(json.dumps({"n": n}) for _, n in zip(range(100), given, strict=False))
            if view.state == "RUNNING" and view.checkpoints_completed >= next_kill and kills < NUM_KILLS:
                client.kill_slot(kills % len(view.slots))
                kills += 1
                next_kill = view.checkpoints_completed + 3
            nifi.roll_back()
            is_through = len(rows_in(tmp_path / "out")) >= NUM_FLOW_FILES and nifi.left == 0
            if kills == NUM_KILLS and is_through:
                break
        client.cancel()
    nifi.stop()
    assert Counter(row["n"] for row in rows_in(tmp_path / "out")) == Counter(range(NUM_FLOW_FILES))
    assert {json.loads(one.content)["n"] for one in nifi.taken} == set(range(NUM_FLOW_FILES))
