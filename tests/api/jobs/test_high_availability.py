"""High availability as programs see it: settings, and clusters that go on with the jobs of those that are gone."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from headrace import HighAvailabilitySettings, StreamExecutionEnvironment
from headrace.actors.connecting import start_heads
from headrace.actors.head import HeadPlan
from headrace.actors.sim.system import SimSystem
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.protocol.messages import ListJobs, ShutDownCluster, WaitForJob

COUNT = 3_000


def environment(tmp_path, backend="heap", **options):
    ha = HighAvailabilitySettings(str(tmp_path / "ha"), "one", lease_ms=2_000, **options)
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, high_availability=ha)
    env.set_state_backend(backend)
    env.enable_checkpointing(50, directory=str(tmp_path / "checkpoints"))
    return env


def program(env, tmp_path):
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=2_000)
    counted = env.from_source(source).map(lambda n: (n % 10, 1)).key_by(lambda pair: pair[0])
    totals = counted.reduce(lambda a, b: (a[0], a[1] + b[1]))
    totals.map(lambda pair: {"key": pair[0], "n": pair[1]}).sink_to(FileSink.json_lines(str(tmp_path / "out")))


def lose(env):
    """As if the process had died: nobody says good-bye, not at the end either."""
    cluster, env._cluster = env._cluster, None
    cluster.system.close()


def committed(tmp_path):
    lines = (line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines())
    return Counter((row["key"], row["n"]) for row in map(json.loads, lines))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.sampled(9)
def test_a_new_cluster_goes_on_with_the_jobs_of_one_that_is_gone(tmp_path, backend):
    env = environment(tmp_path, backend)
    program(env, tmp_path)
    client = env.execute_async("survivor")
    while client.view().checkpoints_completed < 4:
        env._cluster.system.wait(10)
    assert committed(tmp_path) != Counter((n % 10, n // 10 + 1) for n in range(COUNT))
    lose(env)
    with environment(tmp_path, backend) as again:
        cluster = again._connect()
        [view] = cluster.ask_dispatcher(ListJobs())
        assert (view.job_id, view.name) == (client.get_job_id(), "survivor")
        while view.state not in ("FINISHED", "FAILED"):
            view = cluster.ask_job(client.get_job_id(), WaitForJob(view.version, 1_000))
        assert view.state == "FINISHED", view.failure
        assert view.num_restarts > 0
    assert committed(tmp_path) == Counter((n % 10, n // 10 + 1) for n in range(COUNT))


def test_a_job_that_has_ended_is_remembered_and_left_alone(tmp_path):
    env = environment(tmp_path)
    env.from_collection([1, 2, 3]).print()
    job_id = env.execute("short").get_job_id()
    lose(env)
    with environment(tmp_path) as again:
        [view] = again._connect().ask_dispatcher(ListJobs())
        assert (view.job_id, view.state) == (job_id, "FINISHED")


def test_closing_leaves_nothing_to_recover(tmp_path):
    with environment(tmp_path) as env:
        program(env, tmp_path)
        env.execute_async("canceled with its cluster")
    with environment(tmp_path) as again:
        assert [view.state for view in again._connect().ask_dispatcher(ListJobs())] == ["CANCELED"]


def test_a_leader_that_is_lost_is_replaced_and_the_program_does_not_notice(tmp_path):
    env = environment(tmp_path, num_standbys=2)
    with env:
        source = GeneratorSource(lambda n: n, count=600, records_per_second=500)
        rows = env.from_source(source).key_by(lambda n: n % 3).map(lambda n: n).execute_and_collect()
        got = [next(rows) for _ in range(100)]
        system = env._cluster.system
        leader = env._cluster._search.address().host
        system.kill("", leader, "killed by the test")
        got += rows
        assert sorted(got) == list(range(600))
        assert leader not in system.hosts


def test_the_owner_of_a_cluster_replaces_lost_heads():
    """As on Ray, where heads that belong to their program cannot be started by each other."""
    ha = HighAvailabilitySettings("memory://replaced/ha", "one", num_standbys=1, lease_ms=400)
    system = SimSystem(11)
    plan = HeadPlan(ClusterSettings(high_availability=ha), replaces_standbys=False)
    cluster = start_heads(system, None, plan, is_owner=True)
    for _ in range(5):
        assert cluster.ask_dispatcher(ListJobs()) == []
        system.kill_now(cluster._search.address().host)
        assert cluster.ask_dispatcher(ListJobs()) == []
        system.run_for(1_000)
        assert len(system.hosts) == 2
    cluster.ask_dispatcher(ShutDownCluster())
    system.run_for(2_000)
    assert system.hosts == []


def test_settings_may_be_given_by_name(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local", cluster_name="two")
    env.set_high_availability(tmp_path, lease_ms="2 s", num_standbys=0)
    expected = HighAvailabilitySettings(str(tmp_path), "two", num_standbys=0, lease_ms=2_000)
    assert env._cluster_settings.high_availability == expected


def test_settings_come_from_the_command_line_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HA_DIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CLUSTER_ID", "three")
    monkeypatch.setenv("HEADRACE_HA_ZOOKEEPER", "zk:2181/root")
    env = StreamExecutionEnvironment.get_execution_environment("local")
    expected = HighAvailabilitySettings(str(tmp_path), "three", "zookeeper://zk:2181/root")
    assert env._cluster_settings.high_availability == expected


def test_an_id_is_needed_and_the_first_job_comes_later(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ConfigurationError, match="cluster id"):
        env.set_high_availability(tmp_path)
    with env:
        env.from_collection([1]).print()
        env.execute()
        with pytest.raises(ConfigurationError, match="before the first job"):
            env.set_high_availability(tmp_path, cluster_id="late")
