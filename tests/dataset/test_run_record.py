"""What is shown of a data set's run to who has started it."""

import threading

import pytest

from headrace import ExecutionEnvironment
from headrace.dataset import run_record
from headrace.engine.errors import HeadraceError
from headrace.jobs.progress import Progress

PATIENCE_S = 60


class Seen(Progress):
    def __init__(self):
        self.begun = []
        self.views = []
        self.runs = threading.Event()

    def begins(self, job):
        self.begun.append(job)

    def update(self, view):
        self.views.append(view)
        if view.stages:
            self.runs.set()


@pytest.fixture
def env():
    with ExecutionEnvironment.get_execution_environment("local", 1) as made:
        yield made


def test_a_listener_is_told_of_a_run_while_it_goes_on_and_how_it_ended(env, tmp_path):
    seen = Seen()
    env.set_progress_listener(seen)

    def wait(number):
        assert seen.runs.wait(PATIENCE_S), "nothing is told while it runs"
        return number

    env.from_elements(1, 2).map(wait).write_as_text(str(tmp_path / "numbers"))
    env.execute("numbers")
    [begun] = seen.begun
    assert (begun.name, begun.delivery) == ("numbers", ())
    assert {view.job_id for view in seen.views} == {begun.job_id}
    assert [view.state for view in seen.views[:-1]] == ["RUNNING"] * (len(seen.views) - 1)
    last = seen.views[-1]
    assert last.state == "FINISHED"
    assert last.ended_ms is not None
    assert {stage.state for stage in last.stages} == {"FINISHED"}


def test_a_failure_is_told(env):
    seen = Seen()
    with env.telling(seen), pytest.raises(HeadraceError, match="ZeroDivisionError"):
        env.from_elements(1).map(lambda n: n // 0).collect()
    assert seen.views[-1].state == "FAILED"
    assert "ZeroDivisionError" in seen.views[-1].failure
    assert env.from_elements(1).count() == 1
    assert len(seen.begun) == 1, "it listens within the block alone"


def test_where_nobody_has_asked_only_long_runs_are_shown(env, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_PROGRESS", "lines")
    monkeypatch.setattr(run_record, "NOT_SHOWN_S", 3_600.0)
    assert env.from_elements(1, 2).count() == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(run_record, "NOT_SHOWN_S", 0.0)
    assert env.from_elements(1, 2).count() == 2
    assert "FINISHED | " in capsys.readouterr().err
