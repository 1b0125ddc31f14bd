"""The clients of REST over a running job: what they give is what the server says, waiting or awaited.

Families: differential (two clients, and plain HTTP), oracle (counts of the functions).
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rest_kit import NUM_RECORDS, SEEN, ask, build, rest_environment

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, RestRequestError, SavepointError
from headrace.rest.client import AsyncRestClient, RestClient

AT_REST = {"numbers": (NUM_RECORDS, 0, 0, 0), "end/less": (2, 0, 0, 0)}
"""What the exchanges to ``note`` have carried, their rates and how full they are, once nothing comes any more: two
plans that are asked for one after the other differ until then."""


def flows(plan):
    (note,) = [node for node in plan["nodes"] if node["id"] == "note"]
    told = ("records", "records-per-second", "output-usage", "input-usage")
    return {edge["id"]: tuple(edge.get(name) for name in told) for edge in note["inputs"]}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    SEEN.clear()
    directory = tmp_path_factory.mktemp("client")
    with pytest.MonkeyPatch.context() as patch, rest_environment() as env:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))  # other processes have clusters of the same name
        build(env, directory / "checkpoints")
        job_id = env.execute_async("asked by clients").get_job_id()
        client = env.get_rest_client()
        deadline = time.monotonic() + 20
        half = NUM_RECORDS / 2
        told = {"0.numRecordsOut": half, "1.numRecordsOut": half}
        while not (
            client.metrics(job_id, "numbers", list(told)) == told
            and len(client.watermarks(job_id, "numbers")) == 2
            and {"0.numRecordsIn", "1.numRecordsIn"} <= client.metrics(job_id, "note").keys()
            and client.checkpoints(job_id)["counts"]["completed"]
            and flows(client.plan(job_id)) == AT_REST
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield env, client, job_id


def test_both_clients_give_what_the_server_says(running):
    _env, client, job_id = running
    assert client.token not in repr(client)

    def raw(path):
        return ask(client.url, path, client.token).json

    async def awaited():
        other = AsyncRestClient(client.url, client.token)
        jobs, status, plan = await asyncio.gather(other.jobs(), other.job_status(job_id), other.plan(job_id))
        return jobs, status, plan, await other.overview()

    jobs, status, plan, overview = asyncio.run(awaited())
    assert [job["jid"] for job in jobs] == [job["jid"] for job in client.jobs()] == [job_id]
    assert status == client.job_status(job_id) == "RUNNING"
    assert flows(plan) == AT_REST
    assert plan == client.plan(job_id) == raw(f"/jobs/{job_id}/plan")["plan"]
    assert overview == client.overview() == raw("/overview")
    assert {vertex["id"] for vertex in client.job(job_id)["vertices"]} == {"numbers", "end/less", "note"}
    assert client.vertex(job_id, "end/less")["parallelism"] == 2
    assert len(client.backpressure(job_id, "note")["subtasks"]) == 2
    assert client.watermarks(job_id, "numbers") == raw(f"/jobs/{job_id}/vertices/numbers/watermarks")
    assert client.exceptions(job_id) == []
    assert client.task_managers()[0]["slotsNumber"] == 2
    assert client.metrics(job_id)["numRestarts"] == 0
    assert "0.numRecordsIn" in client.metrics(job_id, "note")
    latest = client.checkpoints(job_id)["latest"]["completed"]["id"]
    assert client.checkpoint(job_id, latest)["id"] == latest
    assert len(client.checkpoint(job_id, latest, "end/less")["subtasks"]) == 2
    assert client.get("/jobs/metrics", get=["numRestarts"], agg="max") == [{"id": "numRestarts", "max": 0}]
    assert client.get("/metrics").startswith("# TYPE headrace_")


def test_a_server_is_found_by_its_cluster(running, monkeypatch):
    _env, client, _job_id = running
    assert RestClient.find("local") == client
    looking = RestClient.find("local", read_only=True)
    assert looking.overview() == client.overview()
    with pytest.raises(ClusterUnavailableError, match="no REST server of cluster 'other'"):
        RestClient.find("other")


def test_one_of_several_clusters_of_a_name_is_not_guessed(running):
    _env, client, _job_id = running
    with rest_environment() as other:
        url = other.get_rest_client().url
        with pytest.raises(ClusterUnavailableError, match="can be chosen") as caught:
            RestClient.find("local")
        assert client.url in str(caught.value)
        assert url in str(caught.value)
    assert RestClient.find("local") == client, "the other one has taken only its own file with it"


def test_refusals_are_errors_with_their_status(running):
    env, client, job_id = running
    looking = env.get_rest_client(read_only=True)
    for call, status in (
        (lambda: RestClient(client.url, "guess").overview(), 401),
        (lambda: looking.cancel(job_id), 403),
        (lambda: client.job("none"), 404),
        (lambda: client.vertex(job_id, "none"), 404),
        (lambda: client.savepoint(job_id, "relative"), 400),
        (lambda: client.rescale(job_id), 400),
        (lambda: client.rescale(job_id, operators={"nothing": 3}), 409),
    ):
        with pytest.raises(RestRequestError) as caught:
            call()
        assert caught.value.context["status"] == status, caught.value
    with pytest.raises(ClusterUnavailableError, match="does not answer"):
        RestClient("http://127.0.0.1:9", "x").overview()
    for url in ("127.0.0.1:8081", "http://", "http://x/path", "ftp://x"):
        with pytest.raises(ConfigurationError):
            RestClient(url, "x")


def test_jobs_are_changed_and_what_takes_time_is_waited_for(tmp_path):
    with rest_environment() as env:
        build(env, tmp_path / "checkpoints")
        job_id = env.execute_async("changed by clients").get_job_id()
        client = env.get_rest_client()
        while client.job_status(job_id) != "RUNNING":
            time.sleep(0.02)
        place = client.savepoint(job_id, str(tmp_path / "saved"))
        assert Path(place).is_dir()
        blocked = tmp_path / "blocked"
        blocked.write_text("a file")
        with pytest.raises(SavepointError, match="directory"):
            client.savepoint(job_id, str(blocked))
        taken = client.trigger_checkpoint(job_id, full=True)
        assert Path(taken["location"]).name == f"chk-{taken['checkpointId']}.json"
        assert client.rescale(job_id, 1) is None
        assert {vertex["parallelism"] for vertex in client.job(job_id)["vertices"]} == {1}
        other = AsyncRestClient(client.url, client.token)
        stopped = asyncio.run(other.stop_with_savepoint(job_id, str(tmp_path / "saved")))
        assert Path(stopped).is_dir()
        assert stopped != place
        assert client.wait(job_id) == "FINISHED"

        build(env, tmp_path / "checkpoints")
        second = env.execute_async("stopped").get_job_id()
        while client.job_status(second) != "RUNNING":
            time.sleep(0.02)
        assert client.stop(second) == "FINISHED"
        with pytest.raises(RestRequestError, match="has ended"):
            client.cancel(second)
        build(env, tmp_path / "checkpoints")
        third = env.execute_async("canceled").get_job_id()
        assert client.cancel(third) == "CANCELED"
        assert client.overview()["jobs-finished"] == 2


def test_a_client_may_be_made_before_any_job_and_with_tls(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = f"req -x509 -newkey ed25519 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run([openssl, *made.split(), "-addext", names], check=True, capture_output=True)
    tls = {"certificate_file": certificate, "key_file": key}
    with rest_environment(rest=tls | {"bind_address": "0.0.0.0", "address": "localhost"}) as env:
        client = env.get_rest_client()
        assert client.url.startswith("https://localhost:")
        assert client.overview()["jobs-running"] == 0
        with pytest.raises(ClusterUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            RestClient(client.url, client.token).overview()
    with (
        rest_environment(rest=tls | {"certificate_file": str(tmp_path / "none.pem")}) as env,
        pytest.raises(ConfigurationError, match="REST cannot be served"),
    ):
        env.get_rest_client()


def test_a_cluster_without_rest_has_no_client():
    from headrace import StreamExecutionEnvironment

    with (
        StreamExecutionEnvironment.get_execution_environment("local") as env,
        pytest.raises(ConfigurationError, match="serves no REST"),
    ):
        env.get_rest_client()
