"""Long requests of many at once, and names of metrics: nobody waits behind the patience of others."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from headrace.actors.rest.resources import operations
from headrace.actors.rest.resources.metrics import Sample, _Exposition
from headrace.actors.rest.resources.operations import Operations
from headrace.actors.rest.resources.routes import RestError, RestRequest
from headrace.engine.protocol.states import JobStatus

PATIENCE_S = 30


class Cluster:
    """Jobs that are rescaled once somebody says so."""

    def __init__(self):
        self.go_on = threading.Event()
        self.told = []
        self.begun = threading.Semaphore(0)

    def details(self, _job_id):
        return SimpleNamespace(view=SimpleNamespace(state=JobStatus.RUNNING, is_data_set=False))

    def tell(self, job_id, _order, _timeout_ms):
        self.told.append(job_id)
        self.begun.release()
        assert self.go_on.wait(PATIENCE_S)
        return True


def test_rescales_that_wait_keep_nobody_waiting_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(operations, "MOST_OPERATIONS", 9)
    cluster, begun = Cluster(), Operations(60_000)

    def rescale(number):
        return begun.rescale(RestRequest({"jobid": f"job-{number}"}, {"parallelism": 2}, {}, cluster))

    answers = [rescale(number) for number in range(9)]
    for _ in answers:
        assert cluster.begun.acquire(timeout=PATIENCE_S)
    assert sorted(cluster.told) == [f"job-{number}" for number in range(9)]
    with pytest.raises(RestError, match="9 rescales and checkpoints are under way") as refused:
        rescale(9)
    assert refused.value.status == 503
    cluster.go_on.set()
    for number, answer in enumerate(answers):
        path = {"jobid": f"job-{number}", "triggerid": answer.content["request-id"]}
        while begun.rescale_status(RestRequest(path, {}, {}, cluster))["status"]["id"] != "COMPLETED":
            cluster.go_on.wait(PATIENCE_S)
    rescale(9)


def test_what_fails_unexpectedly_is_not_told_as_done():
    class Failing(Cluster):
        def tell(self, *_order):
            message = "secret"
            raise RuntimeError(message)

    begun = Operations(60_000)

    def ended(answer, status):
        path = {"jobid": "job", "triggerid": answer.content["request-id"]}
        while True:
            told = status(RestRequest(path, {}, {}, Failing()))
            if told["status"]["id"] == "COMPLETED":
                return told["operation"]

    rescaled = ended(
        begun.rescale(RestRequest({"jobid": "job"}, {"parallelism": 2}, {}, Failing())), begun.rescale_status
    )
    taken = ended(begun.checkpoint(RestRequest({"jobid": "job"}, {}, {}, Failing())), begun.checkpoint_status)
    for cause in (rescaled["failure-cause"], taken["failureCause"]):
        assert "failed unexpectedly" in str(cause)
        assert "secret" not in str(cause)


def test_metrics_whose_names_look_the_same_to_prometheus_stay_two():
    found = _Exposition()
    found.add(Sample("task", {"a.b": 1.0, "a_b": 2.0, 'a"b': 3.0}, {"job": "x"}))
    assert found.text().splitlines() == [
        "# TYPE headrace_task_a_b gauge",
        'headrace_task_a_b{job="x",metric="a.b"} 1',
        'headrace_task_a_b{job="x"} 2',
        'headrace_task_a_b{job="x",metric="a\\"b"} 3',
    ]
