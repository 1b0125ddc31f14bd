"""Functions that give up and ones that change their records, under faults: some seeds, and planted bugs.

Families: crash, and mutation.
"""

from __future__ import annotations

import pytest
from campaigns import blocks, seeds
from simulation.users_code import USERS_MUTANTS, is_caught, run_users_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 6))
def test_results_are_exact_whatever_functions_raise_or_change(block: int) -> None:
    for seed in seeds(block, 10):
        run_users_seed(seed)


@pytest.mark.parametrize("name", sorted(USERS_MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=200)
    assert seed is not None, "the simulator did not notice"
    run_users_seed(seed)  # without the bug the seed passes
