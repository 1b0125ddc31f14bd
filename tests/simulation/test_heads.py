"""Clusters with several heads in the simulator: seeds, exact replay, and planted bugs.

Families: crash (heads killed and stopped, a slow and failing store, against a reference), and mutation.
"""

from __future__ import annotations

import pytest
from simulation.head_mutants import HEAD_MUTANTS, is_caught
from simulation.heads import run_heads_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", range(6))
def test_jobs_survive_their_leaders(block: int) -> None:
    outcomes = [run_heads_seed(seed) for seed in range(20 * block, 20 * block + 20)]
    assert sum(outcome.leaders for outcome in outcomes) > 40
    assert sum(outcome.heads_killed for outcome in outcomes) > 10
    assert sum(outcome.heads_frozen for outcome in outcomes) > 10


def test_a_seed_replays_exactly() -> None:
    assert run_heads_seed(5).digest == run_heads_seed(5).digest


@pytest.mark.parametrize("name", sorted(HEAD_MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=200)
    assert seed is not None, "the simulator did not notice"
    run_heads_seed(seed)  # without the bug the seed passes
