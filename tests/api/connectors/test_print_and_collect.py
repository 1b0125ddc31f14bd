"""Families: crash (collected rows over restarts), the form of printed lines."""

from __future__ import annotations

import pytest

from headrace.connectors.collect import CollectSink
from headrace.connectors.print import PrintSink
from headrace.engine.errors import UserFunctionError
from headrace.engine.job.phases.failures import FailureDomain, domain_of


def collected(reports):
    """What the JobManager's side makes of reports: the first of each id counts."""
    seen = {}
    for name, (identity, rows) in reports:
        assert name == "collect"
        assert seen.setdefault(identity, rows) == rows
    return [row for rows in seen.values() for row in rows]


@pytest.mark.parametrize(
    ("sink", "parallelism", "lines"),
    [
        (PrintSink(), 1, ["(1, 'a')", "None"]),
        (PrintSink(), 2, ["2> (1, 'a')", "2> None"]),
        (PrintSink("x"), 1, ["x> (1, 'a')", "x> None"]),
        (PrintSink("x"), 2, ["x:2> (1, 'a')", "x:2> None"]),
    ],
)
def test_printed_lines_name_subtask_and_identifier(sink_job, sink, parallelism, lines):
    job = sink_job(sink, parallelism)
    job.start()
    job.write([(1, "a"), None], parallelism - 1)
    assert job.reports == [("print", lines)]
    job.checkpoint(1)
    job.finish()
    assert len(job.reports) == 1


def test_collected_rows_appear_with_their_checkpoint(sink_job):
    job = sink_job(CollectSink(), 2)
    job.start()
    job.write([1, {"a": (2, None)}], 0)
    job.checkpoint(1, notifies=False)
    job.write([3], 1)
    assert job.reports == []
    job.notify(1)
    assert collected(job.reports) == [1, {"a": (2, None)}]
    job.checkpoint(2)
    job.finish()
    assert collected(job.reports) == [1, {"a": (2, None)}, 3]


def test_collected_rows_are_told_apart_over_restarts(sink_job):
    job = sink_job(CollectSink())
    job.start()
    job.write([1])
    job.checkpoint(1)
    job.write([2])
    job.start()
    job.write([2])
    job.checkpoint(2, notifies=False)
    job.start()
    job.checkpoint(3)
    job.finish()
    assert len(job.reports) > 2
    assert collected(job.reports) == [1, 2]


def test_without_checkpoints_rows_are_collected_at_once(sink_job):
    job = sink_job(CollectSink(), checkpointing=False)
    job.start()
    job.write([1, 2])
    job.write([1])
    assert collected(job.reports) == [1, 2, 1]
    job.finish()
    assert len(job.reports) == 2


def test_many_rows_are_reported_in_pieces(sink_job):
    job = sink_job(CollectSink())
    job.start()
    job.write(list(range(200_000)))
    job.checkpoint(1)
    assert collected(job.reports) == list(range(200_000))
    assert max(len(rows) for _, (_, rows) in job.reports) == 65_536


class NoText:
    def __init__(self, error):
        self.error = error

    def __repr__(self):
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no text"), SystemExit(3)])
def test_records_without_a_text_are_the_programs_fault(sink_job, error):
    job = sink_job(PrintSink())
    job.start()
    with pytest.raises(UserFunctionError, match=f"raised {type(error).__name__}.*text of NoText") as caught:
        job.write([1, NoText(error)])
    assert domain_of(caught.value) is FailureDomain.USER_CODE
