"""Restarts of single regions and rescales under faults, over many seeds; and planted bugs in both.

Families: crash (whatever fails, and whatever the parallelism was meanwhile, the output is the reference's), and
mutation.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, planted
from simulation.region_mutants import REGION_MUTANTS, is_caught, run_for
from simulation.regions import REGIONS
from simulation.rescaling import run_rescale_seed
from simulation.simulator import run_seed

from headrace.engine.job.phases import failures

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 8))
def test_regions_that_fail_alone_lose_and_double_nothing(block: int) -> None:
    scopes: list[bool] = []
    original = failures.note_restart

    def note_restart(job: Any, error: Any, scope: Any, now_ms: int) -> None:
        scopes.append(job.execution is not None and not job.execution.is_whole(scope))
        original(job, error, scope, now_ms)

    with mock.patch.object(failures, "note_restart", note_restart):
        for seed in range(10 * block, 10 * block + 10):
            run_seed(seed, shapes=REGIONS)
    assert sum(scopes) >= 5, "hardly any restart was one of a region alone"


@pytest.mark.parametrize("block", blocks(1, 4))
@pytest.mark.campaign
def test_rescaled_jobs_lose_and_double_nothing(block: int) -> None:
    outcomes = [run_rescale_seed(seed) for seed in range(10 * block, 10 * block + 10)]
    assert sum(outcome.done for outcome in outcomes) >= 5, "hardly any rescale was carried out"


def test_a_rescale_without_faults_is_no_restart() -> None:
    for seed in range(10):
        assert run_rescale_seed(seed, may_fail=False).num_restarts == 0


SLOW = (
    "checkpoint_completes_with_acknowledgements_of_dead_attempts",
    "lists_are_dealt_out_to_a_region",
    "one_member_of_a_region_runs_on",
    "rescale_writes_the_submitted_parallelism_into_checkpoints",
    "restart_does_not_wait_for_the_coordinator",
)


@pytest.mark.parametrize("name", planted(REGION_MUTANTS, SLOW))
@pytest.mark.sampled(5)
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=600)
    assert seed is not None, "the simulator did not notice"
    run_for(name, seed)  # without the bug the seed passes
