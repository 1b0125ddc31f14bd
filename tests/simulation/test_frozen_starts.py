"""Processes that stop before they have said a word: some seeds, and planted bugs.

Families: crash, and mutation.
"""

from __future__ import annotations

import pytest
from simulation.frozen_starts import FROZEN_MUTANTS, is_caught, run_frozen_seed

pytestmark = pytest.mark.slow


def test_others_serve_in_time() -> None:
    for seed in range(20):
        run_frozen_seed(seed)


@pytest.mark.parametrize("name", sorted(FROZEN_MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=100)
    assert seed is not None, "the simulator did not notice"
    run_frozen_seed(seed)  # without the bug the seed passes
