"""Where the dashboard shows a job: when that is asked and said, and how the server waits to be asked.

Risks: a job that starts later for it, a server that nobody can find, a thread that outlives its cluster.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from dashboard_kit import until
from rest_kit import ask, rest_environment

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ClusterUnavailableError, ConfigurationError
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView
from headrace.jobs import deployment
from headrace.rest import job_link
from headrace.rest.job_link import JobLink, link_line
from headrace.state.files.rest_addresses import read_addresses, write_address
from headrace.state.identifiers import JobId

JOB = JobId("ab" * 16)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(job_link, "SETTLED_S", 0)
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


class Cluster:
    """Goes through the states of a job, and serves REST somewhere."""

    name = "shop"

    def __init__(self, states, addresses):
        self._states = list(states)
        self._addresses = addresses
        self.num_asked = 0

    def ask_job(self, _job, _request, _timeout_ms):
        if not self._states:
            message = "the connection to the cluster was closed"
            raise ClusterUnavailableError(message)
        return JobView(JOB, "orders", JobStatus(self._states.pop(0)), 1, 0, None)

    def rest_addresses(self):
        self.num_asked += 1
        if isinstance(self._addresses, Exception):
            raise self._addresses
        return self._addresses


def address(url="http://127.0.0.1:8083", token="secret"):
    return SimpleNamespace(url=url, tokens=SimpleNamespace(write=token))


def said(cluster):
    lines = []
    link = JobLink(cluster, JOB, lines.append)
    link._thread.join(30)
    link.close()
    return lines


def test_it_is_said_once_the_job_runs_and_without_the_token():
    write_address("shop", "head", "http://127.0.0.1:8083", "secret", "r")
    cluster = Cluster(["CREATED", "CREATED", "RUNNING"], [address()])
    assert said(cluster) == [f"dashboard: http://127.0.0.1:8083/#/job/{JOB} (its token: headrace dashboard shop)"]
    assert cluster.num_asked == 1


@pytest.mark.parametrize("states", [["CREATED", "FINISHED"], ["CREATED"], []], ids=["over", "cluster gone", "never"])
def test_a_job_that_is_over_or_out_of_reach_has_no_link_and_starts_no_server(states):
    cluster = Cluster(states, [address()])
    assert (said(cluster), cluster.num_asked) == ([], 0)


def test_a_head_elsewhere_and_a_cluster_that_serves_nothing_are_told():
    line = link_line(Cluster([], [address()]), JOB)
    assert line.startswith("dashboard, on the machine of the cluster's head: http://127.0.0.1:8083/#/job/")
    refused = ConfigurationError("no port of 8081-8180 is free on 127.0.0.1", hint="rest.bind-port may be a range")
    assert link_line(Cluster([], refused), JOB).startswith("no dashboard: no port of 8081-8180 is free on 127.0.0.1")
    assert "\n" not in link_line(Cluster([], refused), JOB)
    assert link_line(Cluster([], []), JOB) == "no dashboard: the cluster has no head that serves it"


@pytest.mark.parametrize(
    ("variables", "actor_system", "ports"),
    [
        ({"HEADRACE_REST": "1"}, "ray", "8081-8180"),
        ({"HEADRACE_REST": "1"}, "local", None),
        ({"HEADRACE_REST": "1", "HEADRACE_REST_PORT": "9000"}, "ray", "9000"),
        ({"HEADRACE_REST": "1", "HEADRACE_REST_PORT": "9000"}, "local", "9000"),
        ({"HEADRACE_REST": "1", "HEADRACE_REST_PORT": "9000"}, "sim", None),
        ({"HEADRACE_REST": "0"}, "ray", None),
        ({}, "ray", None),
    ],
    ids=["default", "in process", "a port", "a port, in process", "simulated", "none", "plain Python"],
)
def test_what_a_program_serves_where(monkeypatch, variables, actor_system, ports):
    for name in ("HEADRACE_REST", "HEADRACE_REST_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = deployment.rest_from_environment(actor_system)
    assert (None if found is None else found.bind_port) == ports
    assert found is None or (found.bind_address, found.is_loopback) == ("127.0.0.1", True)


def numbers(env):
    source = env.from_source(GeneratorSource(lambda n: n, records_per_second=10), None, "numbers")
    source.filter(lambda _n: False).print()
    return env.execute_async("numbers")


def test_a_server_waits_until_it_is_asked_for():
    with rest_environment(rest={"start_delay_ms": 3_600_000}) as env:
        job = numbers(env).get_job_id()
        assert read_addresses() == []
        client = env.get_rest_client()
        assert [one["jid"] for one in client.jobs()] == [job]
        assert ask(client.url, "/jobs", "").status == 401
        assert len(read_addresses()) == 1
        assert link_line(env._cluster, job) == (
            f"dashboard: {client.url}/#/job/{job} (its token: headrace dashboard local)"
        )
    assert read_addresses() == []
    assert not [one for one in threading.enumerate() if one.name == "headrace-link"]


def test_a_server_that_nobody_asks_for_starts_by_itself():
    with rest_environment(rest={"start_delay_ms": 1}) as env:
        numbers(env)
        (found,) = until(lambda: read_addresses() or None, "nothing is served")
        assert ask(found.url, "/overview", found.token).status == 200


def test_a_cluster_that_serves_none_says_so():
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        job = numbers(env).get_job_id()
        assert link_line(env._cluster, job) == "no dashboard: cluster 'local' serves no REST"


def test_one_that_was_never_asked_for_leaves_nothing():
    with rest_environment(rest={"start_delay_ms": 3_600_000}) as env:
        numbers(env)
    assert read_addresses() == []
