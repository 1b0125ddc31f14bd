"""A batch on Ray at parallelism 3, state in RocksDB: a slot, a TaskManager and the JobManager die
at random moments, and files and a table hold what an independent computation says. The long form:
``tests/actors/fault_soak.py --batch``.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace import RuntimeExecutionMode, StreamExecutionEnvironment

sys.path.insert(0, str(Path(__file__).resolve().parent / "actors"))

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]

COUNT = 1_500
RATE = 600


@pytest.mark.campaign
def test_a_batch_is_exact_though_its_processes_die(tmp_path):
    import fault_soak
    import kill_soak

    rng = random.Random(11)
    kinds = ["slot", "TaskManager", "JobManager"]
    num_kills = len(kinds)
    rng.shuffle(kinds)
    with contextlib.closing(sqlite3.connect(tmp_path / "windows.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE windows (k INTEGER, w INTEGER, n INTEGER)")
    killed = []
    with StreamExecutionEnvironment.get_execution_environment(actor_system="ray", parallelism=3, max_slots=4) as env:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        env.set_state_backend("rocksdb")
        env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
        fault_soak.build(env, tmp_path, COUNT, RATE)
        client = env.execute_async("a batch")
        num_records = rng.randint(1, COUNT // 2)
        for view in client.views():
            if view.state != "RUNNING" or not kinds or view.vertices[0].records_in < num_records:
                continue
            hosts = kill_soak.living_hosts()
            candidates = sorted(host for host in hosts if kill_soak.kind_of(host) == kinds[-1])
            if candidates:
                os.kill(hosts[rng.choice(candidates)], signal.SIGKILL)
                killed.append(kinds.pop())
                num_records = rng.randint(1, COUNT // 2)  # early enough to be seen before the end
        result = client.result(timeout=120)
    assert len(killed) == num_kills
    assert result.num_restarts > 0
    assert set(fault_soak.judge(tmp_path, COUNT).values()) == {0}
    folder = tmp_path / "out"
    assert all(path.name.startswith("part-") for path in folder.rglob("*") if path.is_file()), "nothing is left staged"
