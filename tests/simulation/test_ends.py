"""Nothing stays behind a job that has ended, no matter what dies around its end; and planted bugs.

Families: crash, and mutation.
"""

from __future__ import annotations

import pytest
from campaigns import blocks, seeds
from simulation.ends import END_MUTANTS, HEAD_POINTS, JOB_POINTS, end_with_a_kill, is_caught

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", [*HEAD_POINTS, *JOB_POINTS])
@pytest.mark.parametrize("block", blocks(1, 4))
@pytest.mark.sampled(4)
def test_nothing_stays_behind_whoever_dies(point: str, block: int) -> None:
    for seed in seeds(block, 3):
        end_with_a_kill(point, seed)


@pytest.mark.parametrize("name", sorted(END_MUTANTS))
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(name: str) -> None:
    found, _ = is_caught(name, max_seeds=20)
    assert found is not None, "the simulator did not notice"
    end_with_a_kill(*found)  # without the bug it passes
