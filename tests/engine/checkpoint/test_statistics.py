"""Statistics of checkpoints, against NumPy and a plain list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.checkpoint.stats_tracker import HISTORY_LENGTH, CheckpointStatistics, figures
from headrace.engine.protocol.details import CheckpointView, RestoredCheckpoint, TaskAcknowledgement
from headrace.engine.protocol.states import CheckpointStatus


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_figures_are_numpys(values):
    found = figures(values)
    parts = (50, 90, 95, 99, 99.9)
    expected = (min(values), max(values), np.mean(values), *(np.percentile(values, part) for part in parts))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-6)


checkpoints = st.lists(st.tuples(st.sampled_from(["COMPLETED", "FAILED"]), st.booleans(), st.integers(0, 1000)))


@given(checkpoints)
def test_what_is_told_is_what_has_happened(ended):
    statistics = CheckpointStatistics()
    views = []
    for number, (status, is_savepoint, size) in enumerate(ended, 1):
        task = TaskAcknowledgement("v", 0, 1, size, size, 0, 0, 0, 0, is_unaligned=False)
        views.append(CheckpointView(number, CheckpointStatus(status), is_savepoint, False, 0, size, 1, (task,)))
        statistics.ended(views[-1])
    told = statistics.view()
    complete = [view for view in views if view.status == "COMPLETED"]
    assert told.history == tuple(views[::-1][:HISTORY_LENGTH])
    assert (told.num_completed, told.num_failed) == (len(complete), len(views) - len(complete))
    assert told.latest_completed == next((view for view in complete[::-1] if not view.is_savepoint), None)
    assert told.latest_savepoint == next((view for view in complete[::-1] if view.is_savepoint), None)
    assert told.latest_failed == next((view for view in views[::-1] if view.status == "FAILED"), None)
    if complete:
        sizes = [view.tasks[0].state_bytes for view in complete]
        assert told.summary["state_bytes"] == told.summary["duration_ms"] == figures(sizes)
    else:
        assert told.summary == {}


def test_what_was_restored_is_told():
    statistics = CheckpointStatistics()
    statistics.restored(RestoredCheckpoint(3, 10, is_savepoint=False, path="there"))
    assert (statistics.view().num_restored, statistics.view().restored.checkpoint_id) == (1, 3)
