"""Batches in the simulator. Families: crash (random faults against a reference), mutation."""

from __future__ import annotations

import pytest
from campaigns import blocks, campaign, seeds
from simulation.batches import BATCH_MUTANTS, run_batch_seed
from simulation.planted import caught_by

from headrace.actors.sim.faults import FaultPlan

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 10))
def test_committed_output_equals_the_reference(block: int) -> None:
    for seed in seeds(block, 10):
        outcome = run_batch_seed(seed)
        assert outcome.checkpoints <= 1 + outcome.restarts


@pytest.mark.parametrize(
    "point", ["sink.prepare", "sink.commit.before", "sink.commit.0", "sink.commit.after", "send.FinishTask"]
)
@pytest.mark.parametrize("nth", [1, campaign(2), campaign(3)])
@pytest.mark.sampled(4)
def test_a_death_around_the_commits_neither_loses_nor_doubles(point: str, nth: int) -> None:
    for seed in range(6):
        run_batch_seed(seed, faults=FaultPlan(kills_at=((point, nth),)))


@pytest.mark.parametrize("name", sorted(BATCH_MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    with BATCH_MUTANTS[name]() as mutate:
        found, _ = caught_by(name, lambda seed: run_batch_seed(seed, mutate), 150)
    assert found is not None, "the simulator did not notice"
    run_batch_seed(found)  # without the bug it passes
