"""Metrics and traces at a collector of our own: of a job that loses a slot, against what it and its files say.

Risks: a checkpoint or recovery without a trace, or with two; spans outside of their parents; numbers that are not
REST's; a collector that is gone and keeps the job from anything; two heads that both report.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from otlp_collector import Collector
from rest_kit import NUM_RECORDS, SEEN, build

from headrace import StreamExecutionEnvironment
from headrace.actors.reporters import spans
from headrace.actors.reporters.reporter import Reporter
from headrace.actors.reporters.spans import traces_of
from headrace.engine.cluster.leadership import LeaderFound
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.reporter_settings import ExporterSettings, ReporterSettings, SpanDetail
from headrace.engine.protocol.details import CheckpointStatisticsView, CheckpointView, JobDetails, TaskAcknowledgement
from headrace.engine.protocol.messages import FetchJobDetails, ListJobs
from headrace.engine.protocol.states import CheckpointStatus, JobStatus
from headrace.engine.protocol.views import JobView
from headrace.state.identifiers import JobId, VertexId

PATIENCE_S = 60
SUBTASKS = {"numbers": 2, "end/less": 2, "note": 2}


def until(find, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(what)


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


def environment(url, **options):
    exporter = ExporterSettings(url, service_name="shop", service_version="7")
    reporters = ReporterSettings(exporter, exporter, interval_ms=100)
    return StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, reporters=reporters, **options)


def check_trace(found):
    """Every span is in the time of its parent, which is one of the same trace."""
    by_id = {span.span_id: span for span, _ in found}
    assert len(by_id) == len(found)
    root, *others = (span for span, _ in found)
    assert not root.parent_span_id
    for span in others:
        parent = by_id[span.parent_span_id]
        assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
    assert len({attributes["jobId"] for _, attributes in found}) == 1


def test_a_job_that_loses_a_slot_is_told_in_metrics_and_traces(collector, tmp_path):
    SEEN.clear()
    env = environment(collector.url)
    try:
        build(env, tmp_path / "checkpoints")
        job = env.execute_async("reported")
        until(lambda: job.view().checkpoints_completed >= 2 and SEEN["number"] == NUM_RECORDS, "no checkpoint")
        # What is read is told: as many records as the functions have seen themselves, subtask by subtask.
        until(lambda: read_by(collector) == {"0": SEEN["note", 0], "1": SEEN["note", 1]}, "the numbers are others")
        job.kill_slot()
        until(lambda: job.view().num_restarts == 1 and job.view().state == "RUNNING", "no restart")
        restored = job.view().last_checkpoint
        until(lambda: job.view().last_checkpoint > restored, "no checkpoint behind it")
        until(lambda: len(beginnings(collector)) == 2, "nothing is told of the second attempt")
        place = job.stop()
        view = job.view()
    finally:
        env.close()

    checkpoints = collector.traces("Checkpoint")
    ids = Counter(found[0][1]["checkpointId"] for found in checkpoints.values())
    statuses = Counter(found[0][1]["checkpointStatus"] for found in checkpoints.values())
    assert max(ids.values()) == 1
    assert statuses["COMPLETED"] == view.checkpoints_completed
    assert statuses["FAILED"] <= view.checkpoints_failed + 1  # one that the kill has ended counts for nothing
    for found in checkpoints.values():
        check_trace(found)
        (_root, attributes), *parts = found
        assert attributes["jobId"] == view.job_id
        if attributes["checkpointStatus"] == "COMPLETED":
            by_kind = Counter(span.name for span, _ in parts)
            assert by_kind == {"Checkpoint_Task": 3, "Checkpoint_Subtask": 6}
            of_subtasks = [more for span, more in parts if span.name == "Checkpoint_Subtask"]
            assert sorted((one["vertexId"], one["subtask"]) for one in of_subtasks) == [
                (vertex, index) for vertex in sorted(SUBTASKS) for index in range(2)
            ]
            assert sum(one["fullSize"] for one in of_subtasks) == attributes["fullSize"]
            operators = {one["vertexId"]: one["operators"] for _, one in parts if "operators" in one}
            assert operators["numbers"] == "numbers"
            assert operators["note"].startswith("note,none,")
    newest = max(ids)
    assert Path(place).name == f"chk-{newest}.json"

    starts = sorted(collector.traces("JobInitialization").values(), key=lambda found: found[0][0].start_time_unix_nano)
    assert [found[0][1]["numRestarts"] for found in starts] == [0, 1]
    for found in starts:
        check_trace(found)
    first, recovery = starts
    assert "checkpointId" not in first[0][1]
    of_root = recovery[0][1]
    assert statuses_of(checkpoints, of_root["checkpointId"]) == "COMPLETED"
    assert "killed on purpose" in of_root["reason"] or "lost" in of_root["reason"], of_root
    names = {span.name for span, _ in recovery}
    assert {"Phase: stopping", "Phase: preparing", "Phase: deploying", "JobInitialization_Task"} <= names
    restarted = [more for span, more in recovery if span.name == "JobInitialization_Subtask"]
    assert sorted((one["vertexId"], one["subtask"]) for one in restarted) == [
        (vertex, index) for vertex in sorted(SUBTASKS) for index in range(2)
    ]

    name = "headrace.jobmanager.job.numberOfCompletedCheckpoints"
    told = [one for one in collector.points if one[1].name == name]
    assert told
    for resource, metric, _point, attributes in told:
        assert metric.WhichOneof("data") == "gauge"
        assert (resource["service.name"], resource["service.version"]) == ("shop", "7")
        assert attributes == {"cluster": "local", "job_id": view.job_id, "job_name": "reported"}
    assert number_of(told[-1][2]) == view.checkpoints_completed
    counted = [one for one in collector.points if one[1].name == READ]
    assert all(one[1].sum.is_monotonic and one[1].sum.aggregation_temporality == 2 for one in counted)


READ = "headrace.taskmanager.job.task.numRecordsIn"


def number_of(point):
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def beginnings(collector):
    """Since when a subtask's counter has counted: it begins anew with each attempt, and says so."""
    own = {"task_id": "note", "subtask_index": "0"}
    found = [one for one in list(collector.points) if one[1].name == READ and own.items() <= one[3].items()]
    return {point.start_time_unix_nano for _, _, point, _ in found}


def read_by(collector):
    """What the subtasks of a vertex have told last of the records they have read."""
    return {
        attributes["subtask_index"]: number_of(point)
        for _, metric, point, attributes in list(collector.points)
        if metric.name == READ and attributes["task_id"] == "note"
    }


def statuses_of(checkpoints, number):
    (status,) = (f[0][1]["checkpointStatus"] for f in checkpoints.values() if f[0][1]["checkpointId"] == number)
    return status


class Answering:
    """A cluster with one job, whose details are given."""

    name = "played"

    def __init__(self, details, leader="head-1"):
        self.details, self.leader = details, leader

    def ask_dispatcher(self, request, _timeout_ms):
        assert isinstance(request, ListJobs)
        return [self.details.view]

    def ask_job(self, _job_id, request, _timeout_ms):
        assert isinstance(request, FetchJobDetails)
        return self.details

    def ask_machine(self, _address, _request, _timeout_ms):
        return LeaderFound(1, self.leader)


def checkpoint(number, num_subtasks, reason=""):
    tasks = tuple(
        TaskAcknowledgement(VertexId("v"), index, 1_020 + index % 5, 10, 5, 0, 3.0, 2.0, 4.0, False)
        for index in range(num_subtasks)
    )
    status = CheckpointStatus.FAILED if reason else CheckpointStatus.COMPLETED
    return CheckpointView(number, status, False, False, 1_000, 1_050, num_subtasks, tasks, "", reason)


def details_of(*checkpoints):
    view = JobView(JobId("j"), "job", JobStatus.RUNNING, 0, 0, None, (), 0, 0, 0, None, None, None, None, None)
    return JobDetails(view, checkpoints=CheckpointStatisticsView(history=checkpoints))


def reporter_of(cluster, url):
    settings = ReporterSettings(traces=ExporterSettings(url), interval_ms=100)
    return Reporter(cluster, settings, Address("head-1", "dispatcher"))


def test_only_the_head_that_leads_reports_and_one_that_takes_over_repeats_ids(collector):
    cluster = Answering(details_of(checkpoint(2, 1), checkpoint(1, 1)), leader="head-2")
    first, second = reporter_of(cluster, collector.url), reporter_of(cluster, collector.url)
    first.start()
    first.finish()
    assert not collector.spans
    cluster.leader = "head-1"
    first.finish()
    sent = [(span.trace_id, span.span_id) for _, _, span, _ in collector.spans]
    assert len(sent) == 6
    first.finish()
    assert len(collector.spans) == 6, "what was sent is not sent again"
    second.start()
    second.finish()
    assert sorted((span.trace_id, span.span_id) for _, _, span, _ in collector.spans) == sorted(2 * sent)
    for one in (first, second):
        one.close()


def test_what_a_collector_has_refused_is_sent_when_it_takes_it_again(collector):
    reporter = reporter_of(Answering(details_of(checkpoint(1, 1, "no disk; password=hunter2"))), collector.url)
    collector.refuses = True
    reporter.start()
    until(lambda: collector.num_refused, "nothing was tried")
    collector.refuses = False
    reporter.finish()
    ((span, attributes), *_) = next(iter(collector.traces("Checkpoint").values()))
    assert span.status.code == 2
    assert (attributes["checkpointStatus"], attributes["reason"]) == ("FAILED", "no disk; password=***")
    assert "hunter2" not in span.status.message
    reporter.close()


def test_what_fails_again_and_again_is_complained_of_once(collector, caplog):
    """Also where something else is sent in between."""
    reporter = reporter_of(Answering(details_of(checkpoint(1, 1))), collector.url)

    def refused():
        message = "no room"
        raise OSError(message)

    for _ in range(3):
        reporter._try("metrics", refused)
        reporter._try("traces", reporter.report_traces)
    assert [record.getMessage() for record in caplog.records] == ["metrics could not be reported: OSError('no room')"]
    reporter.close()


def test_a_trace_is_bounded_and_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(spans, "MOST_SPANS", 10)
    (trace,) = traces_of(details_of(checkpoint(1, 100)), SpanDetail.SUBTASKS)
    assert len(trace.spans) == 10
    assert trace.spans[0].attributes["spansLeftOut"] == 92
    for detail, number in ((SpanDetail.JOB, 1), (SpanDetail.TASKS, 2)):
        (trace,) = traces_of(details_of(checkpoint(1, 100)), detail)
        assert len(trace.spans) == number
