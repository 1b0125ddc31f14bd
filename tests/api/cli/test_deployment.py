"""Deployment modes from the command line: session and per job on Ray, and what an application sends to the cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import pytest

from headrace import StreamExecutionEnvironment
from headrace.actors.connecting import _one_of, all_jobs, connect
from headrace.actors.ray.system import clusters_on_ray
from headrace.cli.applications import EXCLUDED, entrypoint, runtime_env
from headrace.cli.main import main
from headrace.cli.program_options import program_variables
from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, ProgramError
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.protocol.messages import WaitForJob
from headrace.jobs.deployment import Deployment, DeploymentTarget, DetachedJobExecutionResult

BOUND_S = 180.0

PROGRAM = """
import sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink

out, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(parallelism=1)
env.enable_checkpointing(200, directory=checkpoints)
env.from_sequence(1, 50).map(lambda n: n * n).sink_to(FileSink.json_lines(out))
result = env.execute("squares")
print("went on", result.get_job_id() != "")
"""

SQUARES = sorted(n * n for n in range(1, 51))


@pytest.fixture
def clean_environment():
    """What the command line puts into the variables of this process is taken out again."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def run(tmp_path, clean_environment, monkeypatch, capsys):
    """Runs the program with options; gives exit status, what was printed, and its folder of output."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr("sys.argv", ["headrace"])
    monkeypatch.setattr("sys.path", list(sys.path))

    def command(*options):
        status = main(["run", "--quiet", *options, str(program), str(tmp_path / "out"), str(tmp_path / "checkpoints")])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return command


def numbers_in(folder: Path) -> list[int]:
    return sorted(json.loads(line) for part in folder.glob("part-*") for line in part.open())


def wait_for(what, is_there):
    deadline = time.monotonic() + BOUND_S
    while not is_there():
        assert time.monotonic() < deadline, f"there is no {what} after {BOUND_S:g} s"


def end_of(cluster, job_id):
    view = cluster.ask_job(job_id, WaitForJob(-1, 0))
    while view.ended_ms is None:
        view = cluster.ask_job(job_id, WaitForJob(view.version, 5_000))
    return view.state


@pytest.mark.campaign
@pytest.mark.ray
def test_a_detached_program_submits_to_the_cluster_of_the_name_and_goes(ray_session, run, tmp_path):
    session = connect("ray", detached=True, name="orders")
    try:
        status, out, err = run("--detached", "--cluster-id", "orders")
        assert status == 0, err
        [(name, view)] = all_jobs()
        assert name == "orders"
        assert out == f"submitted {view.job_id} (squares) to cluster orders\nwent on True\n"
        assert clusters_on_ray() == ["orders"]
        assert "there is no Headrace cluster 'ordres'" in run("--target", "session", "--cluster-id", "ordres")[2]
        assert "a cluster 'orders' runs already" in run("--target", "per-job", "--cluster-id", "orders")[2]
        assert end_of(session, view.job_id) == "FINISHED"
        assert numbers_in(tmp_path / "out") == SQUARES
    finally:
        session.shut_down()


def test_a_session_is_the_cluster_of_the_name_or_the_only_one():
    assert _one_of(["orders"], None) == _one_of(["bids", "orders"], "orders") == "orders"
    with pytest.raises(ClusterUnavailableError, match="no Headrace cluster 'ordres'") as refused:
        _one_of(["bids", "orders"], "ordres")
    assert refused.value.hint == "There are 'bids', 'orders'."
    with pytest.raises(ClusterUnavailableError, match="2 Headrace clusters run, and none of them was named"):
        _one_of(["bids", "orders"], None)
    with pytest.raises(ClusterUnavailableError, match="no Headrace cluster to submit to"):
        _one_of([], None)


@pytest.mark.ray
def test_a_cluster_for_one_job_ends_with_it_although_its_client_has_gone(ray_session, run, tmp_path):
    status, out, err = run("--target", "per-job", "--detached")
    assert status == 0, err
    assert "went on True" in out
    wait_for("end of the cluster", lambda: clusters_on_ray() == [])
    assert numbers_in(tmp_path / "out") == SQUARES


def test_local_has_no_cluster(run, tmp_path):
    assert run("--target", "local", "--cluster-id", "orders")[0] == 2
    assert run("--target", "local")[0] == 0
    assert numbers_in(tmp_path / "out") == SQUARES


def test_what_is_said_outside_counts_on_ray_only(clean_environment):
    os.environ.update(HEADRACE_TARGET="per-job", HEADRACE_CLUSTER_ID="a", HEADRACE_DETACHED="1")
    assert Deployment.from_environment("ray") == Deployment(DeploymentTarget.PER_JOB, "a", is_detached=True)
    assert Deployment.from_environment("local") == Deployment()
    os.environ["HEADRACE_TARGET"] = "yarn"
    with pytest.raises(ConfigurationError, match="one of session, per-job; got 'yarn'"):
        Deployment.from_environment("ray")


def test_a_detached_result_knows_nothing_but_the_job():
    result = DetachedJobExecutionResult("job-1", "squares")
    assert (result.get_job_id(), result.job_name) == ("job-1", "squares")
    with pytest.raises(ProgramError, match="its view is not known here"):
        result.get_all_accumulator_results()


# -------------------------------------------------------------------------------------------------------- applications
def options_of(tmp_path, *arguments, **given):
    defaults = {
        "parallelism": None, "ha_dir": None, "cluster_id": None, "zookeeper": None, "executor": None,
        "slot_timeout": None, "launch_timeout": None, "rest_port": None, "from_savepoint": None,
        "allow_non_restored_state": False, "restore_mode": None, "runtime_env": None, "python": "python",
        "configuration": [],
    }  # fmt: skip
    program = tmp_path / "jobs" / "job.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text("")
    return argparse.Namespace(**{**defaults, "program": str(program), "arguments": list(arguments), **given})


def test_the_command_is_that_of_a_copy_of_the_folder(tmp_path):
    options = options_of(tmp_path, "a b", "--x=1")
    assert entrypoint(options, tmp_path) == "python jobs/job.py 'a b' --x=1"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(ConfigurationError, match="is not in the working directory"):
        entrypoint(options, elsewhere)
    with pytest.raises(ConfigurationError, match="there is no folder"):
        entrypoint(options, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("excludes: data", "excludes of a runtime environment is a list of texts"),
        ("excludes:", "excludes of a runtime environment is a list of texts"),
        ("env_vars: {A: 1}", "variables of a runtime environment are texts"),
        ("working_dir: elsewhere", "has a working_dir"),
    ],
)
def test_a_runtime_environment_that_means_something_else_is_refused(tmp_path, text, said):
    (tmp_path / "env.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        runtime_env(options_of(tmp_path, runtime_env=str(tmp_path / "env.yaml")), tmp_path)


def test_options_travel_as_variables_beside_those_of_the_runtime_environment(tmp_path):
    (tmp_path / "env.yaml").write_text("pip: [orjson]\nenv_vars: {A: b}\nexcludes: [data]\n")
    options = options_of(tmp_path, runtime_env=str(tmp_path / "env.yaml"), parallelism=4, cluster_id="orders")
    assert runtime_env(options, tmp_path) == {
        "pip": ["orjson"],
        "working_dir": str(tmp_path),
        "excludes": ["data", *EXCLUDED],
        "env_vars": {
            "HEADRACE_APPLICATION": "1",
            "HEADRACE_PARALLELISM": "4",
            "HEADRACE_CLUSTER_ID": "orders",
            "A": "b",
        },
    }
    (tmp_path / "env.yaml").write_text("[1]")
    with pytest.raises(ConfigurationError, match="is an object"):
        runtime_env(options, tmp_path)


def test_the_autoscaler_is_set_by_flinks_keys(tmp_path, clean_environment):
    pairs = ["job.autoscaler.enabled=true", "job.autoscaler.metrics.window=1 min"]
    os.environ.update(program_variables(options_of(tmp_path, configuration=pairs)))
    env = StreamExecutionEnvironment.get_execution_environment("local")
    assert env.get_autoscaler() == AutoscalerSettings(metrics_window_ms=60_000)
    env.set_autoscaler(None)
    assert env.get_autoscaler() is None, "what the program says wins"
    env.set_autoscaler(AutoscalerSettings())
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match="goes on from checkpoints; it takes none"):
        env.get_job_graph()
    for wrong in ("job.autoscaler.enabled", "parallelism.default=3", "job.autoscaler.enabled=1"):
        with pytest.raises(ConfigurationError):
            program_variables(options_of(tmp_path, configuration=[wrong]))


def test_an_application_without_a_job_server_says_so(tmp_path, clean_environment, capsys):
    from free_ports import free_port

    program = options_of(tmp_path).program
    assert main(["run-application", "--address", f"127.0.0.1:{free_port()}", program]) == 1
    assert "is named by its URL" in capsys.readouterr().err
    assert main(["run-application", "--address", f"http://127.0.0.1:{free_port()}", program]) == 1
    assert "] no job server of Ray answers" in capsys.readouterr().err
