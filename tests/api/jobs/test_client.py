"""The client against a scripted cluster: how a job ends for it, and that reports are handed on once, in order."""

import asyncio
import threading

import pytest

from headrace.engine.errors import (
    ClusterUnavailableError,
    JobCanceledError,
    JobFailedError,
    JobNotFoundError,
    UserFunctionError,
)
from headrace.engine.protocol.messages import CancelJob, FetchReports, ReportsFetched, WaitForJob
from headrace.engine.protocol.views import JobView
from headrace.jobs.client import JobClient, JobStatus
from headrace.stream.collected_rows import CollectedRows


def view(state, version, **changes):
    return JobView("j", "test", JobStatus(state), version, **{"started_ms": 1_000, "ended_ms": None, **changes})


class ScriptedCluster:
    """Answers long polls with one view after the other, the last one for ever; keeps a log of reports."""

    def __init__(self, *views, reports=()):
        self.views = list(views)
        self.reports = list(reports)
        self.is_gone = False
        self.asked = []

    def ask_job(self, job_id, request, timeout_ms):
        assert job_id == "j"
        self.asked.append(request)
        if isinstance(request, WaitForJob):
            return self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(request, CancelJob):
            self.views = [view("CANCELED", 99, ended_ms=2_000)]
            return True
        assert isinstance(request, FetchReports)
        if self.is_gone:
            message = "no such job"
            raise JobNotFoundError(message)
        part = self.reports[request.offset : request.offset + 2]
        return ReportsFetched(request.offset + len(part), part)


def client_of(cluster, **options):
    return JobClient(cluster, "j", "test", **options)


def test_a_finished_job_gives_its_result():
    cluster = ScriptedCluster(
        view("RUNNING", 1), view("FINISHED", 2, ended_ms=4_500, num_restarts=2, checkpoints_completed=7)
    )
    result = client_of(cluster).result()
    assert (result.job_name, result.get_job_id(), result.get_net_runtime()) == ("test", "j", 3_500)
    assert (result.num_restarts, result.checkpoints_completed) == (2, 7)


def test_a_failed_job_raises_with_its_first_failure_as_cause():
    cause = UserFunctionError("user function raised ValueError: 7", operator="map", subtask="1/2")
    client = client_of(ScriptedCluster(view("FAILED", 1, failure=str(cause), error=cause)))
    with pytest.raises(JobFailedError, match="job 'test' failed: user function raised ValueError: 7") as caught:
        client.result()
    assert caught.value.__cause__ is cause
    assert str(caught.value).count("ValueError: 7") == 1


def test_a_canceled_job_raises():
    with pytest.raises(JobCanceledError, match="job 'test' was canceled"):
        client_of(ScriptedCluster(view("CANCELED", 1))).result()


def test_waiting_ends_in_time_although_the_job_goes_on():
    client = client_of(ScriptedCluster(view("RUNNING", 1)))
    with pytest.raises(TimeoutError, match=r"job 'test' is still RUNNING after 0\.01 s"):
        client.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        client.wait(timeout=0)
    assert client.get_job_status() == "RUNNING"


def test_cancel_returns_when_the_job_has_ended():
    client = client_of(ScriptedCluster(view("RUNNING", 1)))
    client.cancel()
    assert client.get_job_status() is JobStatus.CANCELED


def test_a_status_equals_its_name():
    assert client_of(ScriptedCluster(view("RESTARTING", 1))).get_job_status() == "RESTARTING" == JobStatus.RESTARTING


def test_progress_is_told_once_per_version():
    seen = []
    cluster = ScriptedCluster(view("CREATED", 1), view("RUNNING", 2), view("RUNNING", 2), view("FINISHED", 3))
    client_of(cluster, on_progress=lambda v: seen.append(v.version)).result()
    assert seen == [1, 2, 3]
    assert [a.seen_version for a in cluster.asked if isinstance(a, WaitForJob)] == [-1, 1, 2, 2]


def test_reports_are_handed_on_in_order_each_once_up_to_the_last():
    reports = [("op", n % 2, "print", [f"line {n}"]) for n in range(7)] + [("op", 0, "other", 1)]
    told = []
    cluster = ScriptedCluster(view("RUNNING", 1), view("FINISHED", 2), reports=reports)
    client = client_of(cluster, on_report={"print": lambda op, subtask, lines: told.append((op, subtask, lines))})
    client.result()
    assert told == [("op", n % 2, [f"line {n}"]) for n in range(7)]
    cluster.is_gone = True
    assert client.get_job_status() == "FINISHED"


def test_a_client_can_be_awaited():
    async def main():
        return await client_of(ScriptedCluster(view("FINISHED", 1)))

    assert asyncio.run(main()).job_name == "test"


# ----------------------------------------------------------------------------------------------------------- collecting


def collected(cluster):
    rows = CollectedRows()
    rows.follow(client_of(cluster, on_report={"collect": rows.listen}))
    return rows


def test_collected_rows_end_with_the_job_and_come_once_although_reported_twice():
    reports = [("op", 0, "collect", (f"id{n // 2}", [n // 2, "x"])) for n in range(6)]
    rows = collected(ScriptedCluster(view("RUNNING", 1), view("FINISHED", 2), reports=reports))
    assert list(rows) == [0, "x", 1, "x", 2, "x"]
    assert list(rows) == []
    rows.close()


def test_a_failure_comes_after_the_rows_before_it():
    rows = collected(ScriptedCluster(view("FAILED", 2, failure="broken"), reports=[("op", 0, "collect", ("a", [1]))]))
    assert next(rows) == 1
    with pytest.raises(JobFailedError, match="broken"):
        next(rows)


def test_leaving_early_cancels_the_job():
    cluster = ScriptedCluster(view("RUNNING", 1), reports=[("op", 0, "collect", ("a", [1, 2, 3]))])
    with collected(cluster) as rows:
        assert next(rows) == 1
    assert any(isinstance(request, CancelJob) for request in cluster.asked)
    assert list(rows) == []


def test_rows_are_fetched_although_nobody_takes_them():
    reports = [("op", 0, "collect", (f"id{n}", [n])) for n in range(20)]
    cluster = ScriptedCluster(view("RUNNING", 1), view("FINISHED", 2), reports=reports)
    rows = collected(cluster)
    for thread in threading.enumerate():
        if thread.name == "headrace-collect":
            thread.join(10)
    cluster.is_gone = True
    assert list(rows) == list(range(20))


def test_a_cluster_that_goes_away_is_an_error_behind_the_rows():
    class Vanishing(ScriptedCluster):
        def ask_job(self, job_id, request, timeout_ms):
            if isinstance(request, WaitForJob) and self.asked:
                message = "gone"
                raise ClusterUnavailableError(message)
            return super().ask_job(job_id, request, timeout_ms)

    rows = collected(Vanishing(view("RUNNING", 1), reports=[("op", 0, "collect", ("a", [1, 2]))]))
    assert [next(rows), next(rows)] == [1, 2]
    with pytest.raises(ClusterUnavailableError, match="gone"):
        next(rows)


def test_a_silent_cluster_is_waited_for_minutes():
    """A machine that is busy with other things answers late; that is not the end of a healthy job."""

    class Patient(ScriptedCluster):
        patience_ms = []

        def ask_job(self, job_id, request, timeout_ms):
            self.patience_ms.append(timeout_ms)
            return super().ask_job(job_id, request, timeout_ms)

    cluster = Patient(view("RUNNING", 1), view("FINISHED", 2, ended_ms=2_000))
    client_of(cluster, on_report={"print": lambda *report: None}).result()
    assert min(cluster.patience_ms) >= 5 * 60_000
    cluster.patience_ms.clear()
    client_of(cluster).wait(timeout=40.0)  # with a bound, nobody is kept waiting for much longer
    assert max(cluster.patience_ms) <= 45_000
