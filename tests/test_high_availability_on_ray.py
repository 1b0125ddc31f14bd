"""Clusters that lose what leads them, on Ray, with processes that die for real.

Leases are short here, so that tests are; on a machine with much to do a leader may lose its lease for want of time,
which costs one more failover and changes no result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter

import cloudpickle
import pytest
from campaigns import campaign

from headrace import HighAvailabilitySettings, StreamExecutionEnvironment
from headrace.actors.connecting import connect, list_clusters
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.protocol.messages import ListJobs

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

PATIENCE_S = 240


def names():
    import ray

    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


@pytest.mark.parametrize("what", ["head", campaign("job-manager"), campaign("stop-head")])
@pytest.mark.campaign
def test_output_is_exact_though_what_leads_is_lost(tmp_path, what):
    import kill_soak
    from failover import failover

    cloudpickle.register_pickle_by_value(kill_soak)  # processes of the cluster do not find the tests' modules
    figures = failover(what, 1, tmp_path, lease_ms=4_000, seconds_each=6.0)
    assert figures["disturbances"] == 1
    assert (figures["lost"], figures["duplicated"], figures["changed files"]) == (0, 0, 0)
    assert figures["left processes"] == 0


DRIVER = """
    import sys, time
    from headrace import HighAvailabilitySettings, StreamExecutionEnvironment
    from headrace.connectors.datagen import GeneratorSource
    from headrace.connectors.files import FileSink

    address, directory, cluster, detached = sys.argv[1:5]
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", address, parallelism=2, detached=detached == "detached",
        high_availability=HighAvailabilitySettings(directory + "/ha", cluster, lease_ms=4_000),
    )
    env.enable_checkpointing(200, directory=directory + "/checkpoints")
    source = GeneratorSource(lambda n: n, count=4_000, records_per_second=400)
    stream = env.from_source(source).key_by(lambda n: n % 7)
    stream.map(lambda n: {"n": n}).sink_to(FileSink.json_lines(directory + "/out"))
    client = env.execute_async("survivor")
    while client.view().checkpoints_completed < 3:
        time.sleep(0.1)
    print("under way", flush=True)
    time.sleep(1_000)
"""


def kill_a_driver(directory, cluster, detached):
    """Run a program until its job is under way, then kill it."""
    import ray

    address = ray.get_runtime_context().gcs_address
    program = directory / "driver.py"
    program.write_text(textwrap.dedent(DRIVER))
    command = [sys.executable, str(program), address, str(directory), cluster, detached]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline().strip() == "under way"
        finally:
            driver.kill()


def committed(directory):
    rows = [
        json.loads(line)["n"] for path in (directory / "out").rglob("part-*") for line in path.read_text().splitlines()
    ]
    return Counter(rows)


def wait_for_end(cluster):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        [view] = cluster.ask_dispatcher(ListJobs(), 60_000)
        if view.state in ("FINISHED", "FAILED", "CANCELED"):
            return view
        cluster.system.wait(300)
    message = f"the job is still {view.state}: {view.failure}"
    raise AssertionError(message)


@pytest.mark.campaign
def test_a_detached_job_outlives_its_driver(tmp_path):
    name = f"detached-{uuid.uuid4().hex[:6]}"
    kill_a_driver(tmp_path, name, "detached")
    assert name in [cluster.name for cluster in list_clusters()]
    with connect("ray", detached=True, name=name, settings=settings(tmp_path, name)) as cluster:
        assert wait_for_end(cluster).state == "FINISHED"
        cluster.shut_down()
    assert committed(tmp_path) == Counter(range(4_000))


@pytest.mark.campaign
def test_a_dead_cluster_is_recovered_by_a_new_process(tmp_path, capsys):
    """The driver's death takes its cluster along, heads and all; what it has stored is enough."""
    from headrace.cli import main

    name = f"dead-{uuid.uuid4().hex[:6]}"
    kill_a_driver(tmp_path, name, "attached")
    deadline = time.monotonic() + PATIENCE_S
    while any(name in actor for actor in names()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    import ray

    address = ray.get_runtime_context().gcs_address
    options = ["--address", address, "--ha-dir", str(tmp_path / "ha"), "--cluster-id", name, "--lease-ms", "4000"]
    assert main(["recover", *options]) == 0
    assert "survivor" in capsys.readouterr().out
    with connect("ray", detached=True, settings=settings(tmp_path, name)) as cluster:
        assert wait_for_end(cluster).state == "FINISHED"
    assert main(["cluster", "stop", "--address", address, name]) == 0
    assert committed(tmp_path) == Counter(range(4_000))


def settings(directory, name):
    ha = HighAvailabilitySettings(str(directory / "ha"), name, lease_ms=4_000)
    return ClusterSettings(high_availability=ha)


@pytest.mark.campaign
def test_collected_rows_come_once_though_the_leader_dies(tmp_path):
    """The program goes on iterating over another leader's answers without noticing."""
    import signal

    from failover import leader_pid

    name = f"rows-{uuid.uuid4().hex[:6]}"
    ha = HighAvailabilitySettings(str(tmp_path / "ha"), name, lease_ms=4_000)
    env = StreamExecutionEnvironment.get_execution_environment("ray", parallelism=2, high_availability=ha)
    from headrace.connectors.datagen import GeneratorSource

    env.enable_checkpointing(200, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=2_400, records_per_second=300)
    got = []
    with (
        env,
        env.from_source(source).key_by(lambda n: n % 3).map(lambda n: n).execute_and_collect() as rows,
    ):
        for row in rows:
            got.append(row)
            if len(got) == 300:
                os.kill(leader_pid(ha), signal.SIGKILL)
    assert sorted(got) == list(range(2_400))
