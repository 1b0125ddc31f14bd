"""Stops under faults, over many seeds. Crash family: whatever dies while a job stops, stop and resume together give
what an uninterrupted run gives; and the harness notices a planted bug.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks
from simulation.planted import caught_by
from simulation.stopping import run_stop_seed

from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.job import checkpointing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 10))
def test_stop_and_resume_give_what_one_run_gives(block: int) -> None:
    ends = Counter(run_stop_seed(seed) for seed in range(10 * block, 10 * block + 10))
    assert ends["suspend"] > 1


def is_noticed(bug: str, max_seeds: int) -> bool:
    return caught_by(f"stop: {bug}", run_stop_seed, max_seeds)[0] is not None


def test_a_job_that_ends_before_its_last_checkpoint_is_noticed() -> None:
    original = checkpointing.checkpoint_completed

    def on_completed(job: Any, message: Any, now_ms: int) -> Any:
        job.state.final_ids.add(message.checkpoint_id)
        return original(job, message, now_ms)

    with mock.patch.object(checkpointing, "checkpoint_completed", on_completed):
        assert is_noticed("job_that_ends_before_its_last_checkpoint", 100)


def test_a_stopped_source_that_forgets_its_splits_is_noticed() -> None:
    original = SourceOperator.snapshot_state

    def snapshot_state(self: SourceOperator, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        if self._drains is not None:
            self._state.update([])

    with mock.patch.object(SourceOperator, "snapshot_state", snapshot_state):
        assert is_noticed("stopped_source_that_forgets_its_splits", 100)
