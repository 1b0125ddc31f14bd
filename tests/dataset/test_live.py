"""A data set's run, watched: its stages, its end, and what a notebook shows of it.

Risks: a run that cannot be stopped, a failure that is not shown, a count of rows that is not the data's.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest
from live_kit import outputs  # noqa: F401

from headrace import ExecutionEnvironment
from headrace.engine.errors import JobCanceledError, ProgramError
from headrace.engine.plan.run_watch import MOST_STAGES, RunWatch
from headrace.engine.protocol.states import StageState
from headrace.engine.protocol.views import StageView

PATIENCE_S = 60


class Person(NamedTuple):
    n: int
    text: str


@pytest.fixture
def env():
    with ExecutionEnvironment.get_execution_environment(executor="local", parallelism=3) as made:
        yield made


def test_each_stage_tells_its_rows_and_tasks(env):
    watch = RunWatch()
    rows = env.generate_sequence(1, 1_000).filter(lambda n: n % 2 == 0).map(lambda n: (n % 5, n)).group_by(0).sum(1)
    table = rows.to_arrow(watch=watch)
    expected = {key: sum(n for n in range(2, 1_001, 2) if n % 5 == key) for key in range(5)}
    assert dict(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
    assert [stage.state for stage in watch.stages] == ["FINISHED"] * len(watch.stages)
    assert watch.stages[0].rows == 1_000
    assert watch.stages[-1].rows == len(expected)
    assert {stage.num_tasks for stage in watch.stages} == {3}
    assert all(stage.num_done == stage.num_tasks for stage in watch.stages)


def test_a_run_ends_at_its_next_batch_once_it_is_canceled(env):
    watch = RunWatch()

    def look(n):
        watch.cancel()
        return n

    calls = []
    seen = env.generate_sequence(1, 100).map(look).rebalance().map(lambda n: calls.append(n) or n)
    with pytest.raises(JobCanceledError):
        seen.to_arrow(watch=watch)
    assert calls == []


def test_a_run_ends_within_a_batch_once_it_is_canceled(env):
    """A function that takes its time has a batch for minutes."""
    watch, calls, number = RunWatch(), [], 30_000

    def look(n):
        calls.append(n)
        if len(calls) == 2:
            watch.cancel()
        return n

    with pytest.raises(JobCanceledError):
        env.generate_sequence(1, number).map(look).to_arrow(watch=watch)
    assert 2 <= len(calls) < 1_000


def test_batches_that_are_cut_have_all_rows_in_their_order(env):
    rows = env.generate_sequence(1, 20_000).map(lambda n: (n, str(n))).flat_map(lambda row: [row] * (row[0] % 3))
    watched, unwatched = rows.to_arrow(watch=RunWatch()), rows.to_arrow()
    assert watched.to_pylist() == unwatched.to_pylist()
    assert watched.num_rows == sum(n % 3 for n in range(1, 20_001))


def test_only_the_newest_stages_are_kept():
    watch = RunWatch()
    for number in range(MOST_STAGES + 7):
        watch.tell(StageView(number, "stage", StageState.RUNNING))
    watch.has_failed()
    assert watch.num_left_out == 7
    assert [stage.id for stage in watch.stages] == list(range(7, MOST_STAGES + 7))
    assert {stage.state for stage in watch.stages} == {"FAILED"}


# --------------------------------------------------------------------------------------------------------- in notebooks
def test_live_shows_stages_and_then_the_first_records(env, outputs):  # noqa: F811
    go_on = threading.Event()

    def wait(n):
        assert go_on.wait(PATIENCE_S)
        return Person(n, "<b>")

    output = env.generate_sequence(1, 30).map(wait, output_type=Person).live(limit=3)
    assert output.is_running
    go_on.set()
    assert output.wait(PATIENCE_S)
    assert "FINISHED" in outputs[-1]
    assert "the first 3 of 30 records" in outputs[-1]
    assert outputs[-1].count("&lt;b&gt;") == 3
    assert "<td style='text-align:left'>3</td>" in outputs[-1]
    assert output.client.result().num_rows == 30


def test_live_is_stopped_and_a_failure_is_shown(env, outputs):  # noqa: F811
    has_begun, go_on = threading.Event(), threading.Event()

    def wait(n):
        has_begun.set()
        assert go_on.wait(PATIENCE_S)
        return n

    output = env.generate_sequence(1, 30).map(wait).rebalance().map(lambda n: n).live()
    assert has_begun.wait(PATIENCE_S)
    threading.Timer(0.05, go_on.set).start()  # what runs is not interrupted; the next batch is not begun
    output.stop()
    assert not output.is_running
    with pytest.raises(JobCanceledError):
        output.client.result()
    assert "CANCELED" in outputs[-1]

    failing = env.generate_sequence(1, 3).map(lambda n: 1 // (n - 2)).live()
    assert failing.wait(PATIENCE_S)
    assert "FAILED" in outputs[-1]
    assert "ZeroDivisionError" in outputs[-1]


def test_outside_of_a_notebook_nothing_runs(env):
    calls = []
    with pytest.raises(ProgramError, match="below a cell of a notebook"):
        env.generate_sequence(1, 3).map(calls.append).live()
    assert calls == []
