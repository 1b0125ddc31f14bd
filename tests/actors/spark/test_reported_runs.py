"""A run on Spark, as a cluster shows it: its stages as Spark counts them, a failure, and a cancellation."""

from __future__ import annotations

import threading

import pytest
from dashboard_kit import until

from headrace import ExecutionEnvironment, RestSettings
from headrace.actors.connecting import all_jobs, connect
from headrace.dataset import reported_runs
from headrace.engine.errors import HeadraceError, JobCanceledError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARALLELISM = 3


@pytest.fixture
def env(spark):
    rest = RestSettings(bind_port="0", view_ttl_ms=0)
    env = ExecutionEnvironment(spark, PARALLELISM, options={}, rest=rest)
    yield env
    env._reports.close()  # the session is of all tests


def only(rest):
    (job,) = rest.jobs()
    return rest.job(job["jid"])


def test_stages_of_spark_are_the_vertices_of_a_job(env):
    left = env.generate_sequence(1, 300).map(lambda n: (n % 5, n)).group_by(0).sum(1)
    right = env.generate_sequence(1, 30).map(lambda n: (n % 5, n)).group_by(0).sum(1)
    assert left.union(right).group_by(0).max(1).count() == 5
    job = only(env.get_rest_client(read_only=True))
    assert (job["state"], job["job-type"]) == ("FINISHED", "DATASET")
    stages = {stage["id"]: stage for stage in job["vertices"]}
    assert len(stages) >= 3
    assert all(stage["status"] == "FINISHED" for stage in stages.values())
    assert all(stage["stage"]["tasks-done"] == stage["parallelism"] > 0 for stage in stages.values())
    assert all(job["start-time"] <= stage["start-time"] <= job["end-time"] for stage in stages.values())
    # Two stages begin, and what they give comes together in one further on.
    inputs = {node["id"]: [one["id"] for one in node.get("inputs", ())] for node in job["plan"]["nodes"]}
    assert sum(not ones for ones in inputs.values()) == 2
    assert any(len(ones) == 2 for ones in inputs.values())
    assert all(one in stages for ones in inputs.values() for one in ones)
    # Five keys of each partition are moved.
    assert [stages[one]["stage"]["rows"] for one, ones in inputs.items() if not ones] == [5 * PARALLELISM] * 2


def test_a_failure_is_the_functions_own(env):
    def divides(n):
        return 1 // (n - 7)

    with pytest.raises(HeadraceError):
        env.generate_sequence(1, 20).map(divides).count()
    rest = env.get_rest_client(read_only=True)
    job = only(rest)
    assert job["state"] == "FAILED"
    assert "FAILED" in [stage["status"] for stage in job["vertices"]]
    reason = rest.get(f"/jobs/{job['jid']}/exceptions")["root-exception"]
    assert "ZeroDivisionError" in reason
    assert "divides" in reason


def test_a_run_is_canceled_by_rest_while_its_tasks_wait(env, tmp_path):
    go_on = tmp_path / "go on"

    def wait(n):
        for _ in range(2_400):
            if go_on.exists():
                break
            threading.Event().wait(0.05)
        return n

    errors = []

    def run():
        try:
            env.generate_sequence(1, 8).map(wait).count()
        except HeadraceError as error:
            errors.append(error)

    rest = env.get_rest_client()
    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: bool(rest.jobs()) and only(rest)["status-counts"]["RUNNING"] > 0, "no stage runs", 120)
    assert rest.cancel(only(rest)["jid"]) == "CANCELED"
    thread.join(60)
    go_on.touch()
    assert [type(error) for error in errors] == [JobCanceledError]


def on_ray(spark):
    """An environment as of users: the cluster on the same Ray is found, if there is one."""
    env = ExecutionEnvironment(spark, PARALLELISM, options={})
    env._reports = reported_runs.RunReports("spark", None, None, None, says_where=False)
    return env


def test_without_a_cluster_on_ray_no_run_is_watched(spark, monkeypatch):
    ExecutionEnvironment(spark, PARALLELISM, options={}).from_elements(1).count()  # now this process is connected
    monkeypatch.setattr(reported_runs, "ToldRun", None)
    assert on_ray(spark).from_elements(1, 2).count() == 2


def test_the_only_cluster_on_ray_is_told(spark):
    ExecutionEnvironment(spark, PARALLELISM, options={}).from_elements(1).count()
    with connect("ray", name="shows"):
        env = on_ray(spark)
        assert env.from_elements(1, 2).count() == 2

        def told():
            return [(job.is_data_set, job.state) for name, job in all_jobs() if name == "shows"]

        # A program waits only for a while until it is heard.
        until(lambda: told() == [(True, "FINISHED")], "its end is not told")
        env._reports.close()
