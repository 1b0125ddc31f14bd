"""A store that is slow, full or broken, over some seeds; and the harness notices failures that are taken for success.

Families: crash (the store's own weather beside kills), mutation.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from simulation.lost_checkpoints import all_is_forgotten
from simulation.planted import caught_by
from simulation.storage_faults import run_full_disk_seed, run_storage_seed

from headrace.engine.checkpoint import coordinator as checkpointing
from headrace.engine.kernel.restart_backoff import RestartBackoff
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.errors import StorageError

pytestmark = pytest.mark.slow


def test_no_failure_of_the_store_loses_or_doubles_anything() -> None:
    num_struck = sum(run_storage_seed(seed)[1].total() for seed in range(8))  # `storage_faults.py` has the others
    assert num_struck > 20


@pytest.mark.campaign
def test_a_disk_that_is_full_for_a_while_costs_few_restarts() -> None:
    outcomes = [run_full_disk_seed(seed) for seed in range(12)]
    assert max(outcome.restarts for outcome in outcomes) > 3


@pytest.mark.campaign
def test_pauses_that_do_not_grow_are_noticed() -> None:
    def next_backoff_ms(self: RestartBackoff, strategy: Any, now_ms: int) -> int:
        return 200

    with mock.patch.object(RestartBackoff, "_next_backoff_ms", next_backoff_ms):
        assert caught_by("store: pauses_do_not_grow", run_full_disk_seed, 50)[0] is not None


def is_noticed(bug: str, max_seeds: int) -> bool:
    return caught_by(f"store: {bug}", run_storage_seed, max_seeds)[0] is not None


@pytest.mark.campaign
def test_a_publication_that_failed_and_is_taken_for_done_is_noticed() -> None:
    """A job waits for what was never published until its events are used up: 15 s."""
    original = checkpointing.publish_checkpoint

    def publish(directory: str, job: Any, *rest: Any) -> Any:
        try:
            return original(directory, job, *rest)
        except StorageError:
            return f"{directory}/{job.job_id}/manifests/chk-1.json"

    with mock.patch.object(checkpointing, "publish_checkpoint", publish):
        assert is_noticed("publication_that_failed_and_is_taken_for_done", 300)


def test_a_list_of_checkpoints_that_failed_and_is_taken_for_empty_is_noticed() -> None:
    original = CheckpointStorage.list_complete

    def list_complete(self: CheckpointStorage) -> list[int]:
        try:
            return original(self)
        except StorageError:
            return []

    # The checkpoint would be missed, and found by its name, by one that remembers it.
    with mock.patch.object(CheckpointStorage, "list_complete", list_complete), all_is_forgotten():
        assert is_noticed("list_of_checkpoints_that_failed_and_is_taken_for_empty", 300)
