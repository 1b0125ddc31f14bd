"""A run on Spark, watched: its stages with tasks and rows, and its end when somebody else says so.

Every run has the same by REST, in `test_reported_runs`.
"""

from __future__ import annotations

import threading
import time

import pytest

from headrace.dataset.live_run import DataSetRun
from headrace.engine.errors import JobCanceledError
from headrace.engine.plan.run_watch import RunWatch

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]

PATIENCE_S = 120


def test_stages_tell_their_tasks_and_rows(on_spark):
    watch = RunWatch()
    sums = on_spark.generate_sequence(1, 3_000).map(lambda n: (n % 5, n)).group_by(0).sum(1)
    table = sums.to_arrow(watch=watch)
    assert table.num_rows == 5
    done = [stage for stage in watch.stages if stage.state == "FINISHED"]
    assert done
    assert all(stage.num_done == stage.num_tasks > 0 for stage in done)
    # What is shuffled is counted: records of each of the first stage's tasks, for each key.
    assert any(stage.rows for stage in done)
    # What reads the shuffle says whose it is, and both say when they began.
    first, second = done[0], done[-1]
    assert (first.inputs, second.inputs) == ((), (first.id,))
    assert first.started_ms <= second.started_ms
    assert "SKIPPED" not in {stage.state for stage in watch.stages}


def test_a_run_that_is_canceled_ends_while_its_tasks_wait(on_spark, tmp_path):
    go_on = tmp_path / "go on"

    def wait(n):
        deadline = time.monotonic() + PATIENCE_S
        while not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return n

    run = DataSetRun(lambda watch: on_spark.generate_sequence(1, 8).map(wait).to_arrow(watch=watch))
    looked = threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while not any(stage.num_running for stage in run.stages):
        assert time.monotonic() < deadline
        assert run.state == "RUNNING"
        looked.wait(0.1)
    run.cancel()
    with pytest.raises(JobCanceledError):
        run.result()
    assert run.state == "CANCELED"
    go_on.touch()
    assert on_spark.generate_sequence(1, 3).count() == 3, "the session goes on"
