"""Jobs that have ended, after their cluster has gone: what REST says of them is what it said of them before.

Families: end to end against the living cluster's own answers; everything that would change something is refused.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys

import pytest
from rest_kit import ask, part, rest_environment

from headrace import ExecutionEnvironment, HighAvailabilitySettings
from headrace.actors.rest.resources.routes import Right
from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.cli import cluster
from headrace.cli.main import main
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import HeadraceError, JobFailedError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.messages import ListJobs


def fails_at_seven(n):
    if n == 7:
        message = "seven"
        raise ValueError(message)
    return n


PATHS = ("", "/status", "/exceptions", "/accumulators", "/metrics", "/plan", "/checkpoints")


def without_times(content):
    """Answers differ in when they were given, and of a living cluster in what its JobManager has told beyond a view."""
    return {key: value for key, value in content.items() if key not in ("now", "plan", "vertices", "job-type")}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What a cluster has said of two jobs and a data set that have ended, and where their history is."""
    directory = tmp_path_factory.mktemp("ha")
    env = rest_environment(high_availability=HighAvailabilitySettings(str(directory), "of-two"))
    with env:
        numbers = env.from_source(GeneratorSource(lambda n: n, 20), None, "numbers").uid("numbers")
        numbers.map(lambda n: n).name("good").filter(lambda n: False).print()
        good = env.execute_async("good")
        assert good.result() is not None
        numbers = env.from_source(GeneratorSource(lambda n: n, 20), None, "numbers").uid("numbers")
        numbers.map(fails_at_seven).name("bad").filter(lambda n: False).print()
        bad = env.execute_async("bad")
        with pytest.raises(JobFailedError):
            bad.result()
        sets = ExecutionEnvironment.get_execution_environment("local", 2)  # not closed: it would end the cluster
        sets._reports._must_be_there, sets._reports._cluster = True, env._cluster
        with pytest.raises(HeadraceError):
            sets.from_collection(range(20)).map(fails_at_seven).count()
        (of_sets,) = [view.job_id for view in env._cluster.ask_dispatcher(ListJobs()) if view.is_data_set]
        address = env._cluster.rest_addresses()[0]

        def said(path):
            response = ask(address.url, path, address.tokens.read)
            return response.json if response.status == 200 else None

        before = {
            (job_id, path): said(f"/jobs/{job_id}{path}")
            for job_id in (good.get_job_id(), bad.get_job_id(), of_sets)
            for path in ("", "/status", "/exceptions")
        }
        overview = said("/jobs/overview")
    return directory / "of-two", before, overview


@pytest.fixture(scope="module")
def served(ended):
    """The history, served by the command."""
    command = [sys.executable, "-m", "headrace.cli", "history", "--rest-port", "20000-32000", str(ended[0])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    yield said, re.search(r"REST: (\S+)", said)[1], re.search(r"token: (\S+)", said)[1]
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()


def test_jobs_are_as_their_cluster_has_said_when_it_lived(ended, served):
    _, before, overview = ended
    said, url, token = served
    assert said.startswith("3 jobs of cluster of-two")
    for (job_id, path), content in before.items():
        found = ask(url, f"/jobs/{job_id}{path}", token)
        assert found.status == 200, (path, found)
        assert without_times(found.json) == without_times(content), path
    now = {job["jid"]: job for job in ask(url, "/jobs/overview", token).json["jobs"]}
    assert set(now) == {job["jid"] for job in overview["jobs"]}
    for job in overview["jobs"]:
        assert all(now[job["jid"]][key] == job[key] for key in ("name", "state", "start-time", "end-time", "duration"))
    counts = ask(url, "/overview", token).json
    assert (counts["jobs-finished"], counts["jobs-failed"], counts["taskmanagers"]) == (1, 2, 0)


def test_stages_of_a_data_set_are_kept_and_why_it_failed(ended, served):
    _, url, token = served
    (listed,) = [one for one in ask(url, "/jobs/overview", token).json["jobs"] if one.get("job-type") == "DATASET"]
    job = ask(url, f"/jobs/{listed['jid']}", token).json
    assert (job["state"], job["job-type"], listed["name"]) == ("FAILED", "DATASET", job["name"])
    before = ended[1][listed["jid"], ""]
    assert job["vertices"] == before["vertices"]
    assert [one["status"] for one in job["vertices"]] == ["FINISHED", "FAILED"]
    assert [node["id"] for node in job["plan"]["nodes"]] == [node["id"] for node in before["plan"]["nodes"]]
    assert "seven" in ask(url, f"/jobs/{listed['jid']}/exceptions", token).json["root-exception"]


def test_the_command_lists_jobs_as_json_and_serves_nothing_then(ended, capsys):
    assert main(["history", "--json", str(ended[0])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"], found["problems"]) == ("of-two", {})
    listed = {job["jid"]: job for job in found["jobs"]}
    assert set(listed) == {job["jid"] for job in ended[2]["jobs"]}
    for job in ended[2]["jobs"]:
        own = listed[job["jid"]]
        assert all(own[key] == job[key] for key in ("name", "state", "start-time", "end-time"))
        assert own.get("job-type") == job.get("job-type")


def test_a_directory_of_no_cluster_is_an_error_by_name(ended, tmp_path, capsys):
    folder = tmp_path / "other"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("x")
    for wrong in (tmp_path / "nowhere", folder, ended[0].parent):
        assert main(["history", "--json", str(wrong)]) == 1
        said = capsys.readouterr()
        assert (said.out, f"there is no cluster's directory at {str(wrong)!r}" in said.err) == ("", True), said
    assert not (tmp_path / "nowhere").exists()


def test_nothing_can_be_changed_and_nobody_is_let_in_without_a_token(ended, served):
    _, url, token = served
    job_id = next(iter(ended[1]))[0]
    table = RestServer(None, RestSettings(bind_port="0"), fresh_tokens()).table
    for route in table.routes:
        if route.right not in (Right.READ, Right.WRITE):
            continue  # it has no data
        path = re.sub(r":(\w+)", lambda match: job_id if match[1] == "jobid" else "x", route.path)
        assert ask(url, path, method=route.method).status == 401, path
        status = ask(url, path, token, method=route.method).status
        assert status == 403 if route.right is Right.WRITE else status in (200, 400, 404, 409, 503), (path, status)
    for path in PATHS:
        assert ask(url, f"/jobs/{part(job_id)}{path}", token).status == 200, path
    assert ask(url, "/jobs/other", token).status == 404


def test_a_store_that_never_answers_is_given_up_with_its_name(monkeypatch, capsys):
    """A name node's client goes on trying for minutes; here something listens and says nothing."""
    pytest.importorskip("hdfs_native")
    monkeypatch.setattr(cluster, "STORE_TIMEOUT_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/ha/cluster"
        assert main(["history", "--json", place]) == 1
    said = capsys.readouterr().err
    assert f"error: [StorageError] '{place}' has not answered within 0.5 s" in said
    assert "look at the host and port" in said
