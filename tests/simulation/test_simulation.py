"""The simulator as part of the suite: a few hundred seeds, exact replay, and planted bugs; the campaigns run more.

Families: crash (random faults against a reference), and mutation (a harness that cannot fail proves nothing).
"""

from __future__ import annotations

import pytest
from simulation.mutants import MUTANTS, is_caught
from simulation.simulator import run_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", range(10))
def test_committed_output_equals_the_reference(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17, 42):
        assert run_seed(seed).digest == run_seed(seed).digest


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=1_000)
    assert seed is not None, "the simulator did not notice"
    run_seed(seed)  # without the bug the seed passes
