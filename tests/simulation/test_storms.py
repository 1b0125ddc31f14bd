"""Weather that is worse than what the campaigns draw: storms that end, and heavy weather that does not.

Families: crash (against a reference), liveness. Planted bugs: ``storm_...`` in `checkpoint_mutants`.
"""

from __future__ import annotations

import pytest
from campaigns import blocks
from simulation.simulator import is_heavy, run_seed
from simulation.storms import run_storm_seed

from headrace.actors.sim.faults import FaultPlan

pytestmark = pytest.mark.slow

HEAVY = FaultPlan(loss=0.2, reordering=0.3, held_up_ms=(20.0, 1_500.0))


@pytest.mark.parametrize("block", blocks(1, 4))
def test_jobs_go_on_after_any_storm(block: int) -> None:
    outcomes = [run_storm_seed(seed) for seed in range(5 * block, 5 * block + 5)]
    assert sum(outcome.restarts for outcome in outcomes) > 1, "the storms were felt"


@pytest.mark.campaign
def test_with_the_patience_of_production_heavy_weather_gives_nobody_up() -> None:
    assert is_heavy(HEAVY)
    for seed in (3, 4, 5, 8, 9, 13):  # with a timeout of 1 s these restart again and again
        assert run_seed(seed, faults=HEAVY).restarts == 0


def test_a_storm_replays_exactly() -> None:
    assert run_storm_seed(2).digest == run_storm_seed(2).digest
