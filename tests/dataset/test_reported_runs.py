"""Data sets as a cluster shows them: in REST, in the history and on the command line, while they run and after.

Families: what is told against what the program itself knows; runs that fail, are canceled, have hostile names or are
many; tokens that only look, or none; nobody to tell, and somebody who does not answer any more.
"""

from __future__ import annotations

import json
import threading

import pytest
from dashboard_kit import HOSTILE, until
from rest_kit import ask, rest_environment

from headrace import ExecutionEnvironment, RestSettings
from headrace.actors import connecting
from headrace.cli.main import main
from headrace.dataset import reported_runs
from headrace.dataset.run_record import MOST_CHARACTERS_OF_NAME, RunRecord, now_ms
from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, HeadraceError, JobCanceledError
from headrace.engine.plan.run_watch import MOST_STAGES, RunWatch
from headrace.engine.protocol.states import StageState
from headrace.engine.protocol.views import StageView

BEGUN, GO_ON = threading.Event(), threading.Event()
PATIENCE_S = 20


def waits(n):
    BEGUN.set()
    assert GO_ON.wait(PATIENCE_S)
    return n


def divides(n):
    return 1 // (n - 3)


@pytest.fixture(autouse=True)
def gate():
    BEGUN.clear()
    GO_ON.clear()
    yield
    GO_ON.set()


@pytest.fixture
def env():
    rest = RestSettings(bind_port="0", view_ttl_ms=0)
    with ExecutionEnvironment.get_execution_environment("local", 2, rest=rest) as made:
        yield made


class Run:
    """A run in a thread, whose functions wait for `GO_ON`."""

    def __init__(self, env, folder, name="sums"):
        self.error = self.result = None
        sums = env.from_collection(range(6)).map(waits).map(lambda n: (n % 2, n)).group_by(0).sum(1)
        sums.write_as_text(str(folder))
        self._thread = threading.Thread(target=self._run, args=(env, name))
        self._thread.start()
        assert BEGUN.wait(PATIENCE_S)

    def _run(self, env, name):
        try:
            self.result = env.execute(name)
        except HeadraceError as error:
            self.error = error

    def join(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def only(rest):
    (job,) = rest.jobs()
    return job


def running_stages(rest):
    """The stages that run, of the only job, if there is one yet."""
    jobs = rest.jobs()
    return [one for one in rest.job(jobs[0]["jid"])["vertices"] if one["status"] == "RUNNING"] if jobs else []


def test_a_run_is_seen_while_it_goes_on_and_after(env, tmp_path):
    rest = env.get_rest_client()
    run = Run(env, tmp_path / "out")
    until(lambda: bool(running_stages(rest)), "no stage is told")
    job = rest.job(only(rest)["jid"])
    assert (job["name"], job["state"], job["job-type"], job["end-time"]) == ("sums", "RUNNING", "DATASET", -1)
    (stage,) = running_stages(rest)
    assert stage["tasks"]["RUNNING"] == 1
    assert only(rest)["tasks"]["running"] == 1
    assert rest.overview()["jobs-running"] == 1
    GO_ON.set()
    run.join()
    job = rest.job(job["jid"])
    assert (job["state"], only(rest)["state"], only(rest)["job-type"]) == ("FINISHED", "FINISHED", "DATASET")
    assert abs(job["duration"] - run.result.get_net_runtime()) < 5_000
    stages = {stage["id"]: stage for stage in job["vertices"]}
    assert {stage["status"] for stage in stages.values()} == {"FINISHED"}
    # Two sums were given on, and the graph leads from the first to the last.
    assert [stage["stage"]["rows"] for stage in stages.values() if "sum" in stage["name"]] == [2]
    nodes = {node["id"]: [one["id"] for one in node.get("inputs", ())] for node in job["plan"]["nodes"]}
    assert set(nodes) == set(stages)
    assert sum(not inputs for inputs in nodes.values()) == 1
    assert all(inputs == [before] for before, inputs in zip(list(nodes), list(nodes.values())[1:], strict=False))
    assert "sum" in job["plan"]["explained"]
    begun = [stage["start-time"] for stage in stages.values()]
    assert begun == sorted(begun)
    assert job["start-time"] <= begun[0] <= job["end-time"]


def test_a_run_that_fails_says_why(env):
    rest = env.get_rest_client()
    with pytest.raises(HeadraceError) as raised:
        env.from_collection(range(6)).map(divides).collect()
    job = rest.job(only(rest)["jid"])
    assert job["state"] == "FAILED"
    assert [stage["status"] for stage in job["vertices"]] == ["FINISHED", "FAILED"]
    exceptions = rest.get(f"/jobs/{job['jid']}/exceptions")
    assert exceptions["root-exception"] == str(raised.value)
    assert "division" in exceptions["root-exception"]
    (entry,) = exceptions["exceptionHistory"]["entries"]
    assert entry["exceptionName"] == type(raised.value).__name__


def test_a_run_is_canceled_by_who_may(env, tmp_path):
    rest, looks = env.get_rest_client(), env.get_rest_client(read_only=True)
    run = Run(env, tmp_path / "out")
    until(lambda: bool(running_stages(rest)), "no stage is told")
    job_id = only(rest)["jid"]
    path = f"/jobs/{job_id}"
    assert ask(rest.url, path).status == 401
    assert ask(rest.url, path, method="PATCH").status == 401
    assert ask(rest.url, path, looks.token).status == 200
    assert ask(rest.url, path, looks.token, method="PATCH").status == 403
    # What means nothing for a data set is refused, by name.
    refused = [
        ask(rest.url, f"{path}/savepoints", rest.token, method="POST", body={"target-directory": str(tmp_path)}),
        ask(rest.url, f"{path}/checkpoints", rest.token, method="POST", body={}),
        ask(rest.url, f"{path}/stop", rest.token, method="POST", body={}),
        ask(rest.url, f"{path}/rescaling?parallelism=3", rest.token, method="PATCH", body={}),
        ask(rest.url, f"{path}?mode=stop", rest.token, method="PATCH"),
    ]
    for response in refused:
        assert response.status == 409
        assert "is a data set" in response.json["errors"][0]
    for part in ("config", "checkpoints/config"):
        assert "is a data set" in ask(rest.url, f"{path}/{part}", rest.token).json["errors"][0]
    stage = rest.job(job_id)["vertices"][0]["id"]
    assert (
        "is a stage of data set" in ask(rest.url, f"{path}/vertices/{stage}/subtasktimes", rest.token).json["errors"][0]
    )
    assert rest.job_status(job_id) == "RUNNING"
    running = running_stages(rest)[0]["id"]
    assert ask(rest.url, path, rest.token, method="PATCH").status == 202
    until(lambda: rest.job_status(job_id) != "RUNNING", "its program does not hear of it")
    assert rest.job_status(job_id) == "CANCELLING"
    GO_ON.set()
    run.join()
    assert isinstance(run.error, JobCanceledError)
    assert rest.job_status(job_id) == "CANCELED"
    (ended,) = [one for one in rest.job(job_id)["vertices"] if one["id"] == running]
    assert (ended["status"], ended["stage"]["state"]) == ("CANCELED", "CANCELED")
    assert ended["end-time"] >= ended["start-time"] > 0
    assert list(rest.get(f"{path}/exceptions")["exceptionHistory"]["entries"]) == []
    assert not any((tmp_path / "out").glob("part*")), "what was canceled has written nothing"
    assert ask(rest.url, path, rest.token, method="PATCH").status == 409


def test_two_runs_of_one_hostile_name_are_two_jobs(env, tmp_path):
    name = HOSTILE + "\ud800" + "x" * 5_000
    for number in range(2):
        env.from_elements(number).write_as_text(str(tmp_path / str(number)))
        env.execute(name)
    jobs = env.get_rest_client().jobs()
    assert len({job["jid"] for job in jobs}) == 2
    for job in jobs:
        assert job["state"] == "FINISHED"
        assert job["name"].startswith(HOSTILE + "?xxx")
        assert len(job["name"]) == MOST_CHARACTERS_OF_NAME


def test_of_very_many_stages_the_newest_are_told_and_the_others_counted():
    watch = RunWatch(now_ms)
    rest = RestSettings(bind_port="0", view_ttl_ms=0)
    reports = reported_runs.RunReports("local", None, None, rest, says_where=False)
    with reports.tell(RunRecord("many", watch)):
        for number in range(MOST_STAGES + 300):
            watch.tell(StageView(number, f"stage {number}", StageState.FINISHED, 100_000, 100_000))
    client = reports.get_rest_client(read_only=True)
    job = client.job(only(client)["jid"])
    assert [stage["id"] for stage in job["vertices"]] == [str(300 + number) for number in range(MOST_STAGES)]
    assert job["stages-left-out"] == 300
    assert only(client)["tasks"]["finished"] == 100_000 * MOST_STAGES
    reports.close()


def test_the_command_line_shows_it(env, tmp_path, monkeypatch, capsys):
    rest = env.get_rest_client(read_only=True)
    monkeypatch.setenv("HEADRACE_REST_TOKEN", rest.token)
    run = Run(env, tmp_path / "out")
    until(lambda: bool(running_stages(rest)), "no stage is told")
    job = rest.job(only(rest)["jid"])
    assert main(["top", "--url", rest.url, "--times", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 running, 0 of 0 slots used"
    assert lines[1] == f"{job['jid']}  RUNNING  sums"
    (running,) = running_stages(rest)
    assert lines[2] == f"  {running['name']}: RUNNING, 0 rows"
    assert lines[-1].strip().startswith("data set: ")
    assert main(["top", "--url", rest.url, "--times", "1", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [one["jid"] for one in json.loads(line)["jobs"]] == [job["jid"]]
    GO_ON.set()
    run.join()


def test_without_anybody_to_tell_nothing_is_done(monkeypatch):
    monkeypatch.setattr(reported_runs, "ToldRun", None)
    with ExecutionEnvironment.get_execution_environment("local", 2) as env:
        assert env.from_elements(1, 2).count() == 2
        with pytest.raises(ConfigurationError):
            env.get_rest_client()


class Wavering:
    """A cluster that is not there for a while."""

    def __init__(self, cluster):
        self._cluster, self.name, self.is_gone, self.num_asked_in_vain = cluster, cluster.name, False, 0

    def ask_dispatcher(self, request, timeout_ms):
        if self.is_gone:
            self.num_asked_in_vain += 1
            message = "the head has ended"
            raise ClusterUnavailableError(message)
        return self._cluster.ask_dispatcher(request, timeout_ms)

    def close(self):
        pass


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_cluster_that_is_gone_in_between_does_not_disturb(tmp_path, monkeypatch, caplog, comes_back):
    monkeypatch.setattr(reported_runs, "LAST_WORD_S", PATIENCE_S if comes_back else 0.5)
    monkeypatch.setattr(reported_runs, "INTERVAL_S", 0.05)
    with rest_environment() as streams:
        cluster = Wavering(streams._connect())
        with ExecutionEnvironment.get_execution_environment("local", 2) as env:
            reports = env._reports
            reports._must_be_there = True
            monkeypatch.setattr(reports, "_find_or_start", lambda: cluster)
            monkeypatch.setattr(connecting, "only_cluster_on_ray", lambda _name: cluster)
            run = Run(env, tmp_path / "out")
            rest = streams.get_rest_client()
            until(lambda: bool(rest.jobs()), "it is not told")
            cluster.is_gone = True
            until(lambda: cluster.num_asked_in_vain > 0, "nothing is told any more")
            cluster.is_gone = not comes_back
            GO_ON.set()
            run.join()
            assert run.error is None
            written = "".join(part.read_text() for part in (tmp_path / "out").glob("*"))
            assert sorted(written.split("\n")) == ["", "(0, 6)", "(1, 9)"]
        assert only(rest)["state"] == ("FINISHED" if comes_back else "RUNNING")
    assert caplog.text.count("is not told of data set 'sums'") == 1
