"""A job that is rescaled by itself, up and down, in calm and under random kills: its output is exact."""

import pytest
from campaigns import blocks
from simulation.autoscaling import PHASES, draw_faults, run_autoscaled

from headrace.actors.sim.faults import FaultPlan
from headrace.engine.autoscaler.autoscaler import AUTOSCALER


@pytest.mark.campaign
def test_a_load_that_doubles_and_falls_is_followed():
    run = run_autoscaled(0, FaultPlan())
    rises_ms = 1_000 * PHASES[0][0]
    falls_ms = rises_ms + 1_000 * PHASES[1][0]
    assert run.highest(0, rises_ms) == 1
    assert run.highest(rises_ms, falls_ms) >= 3, "one slot can do less than half of it"
    assert run.parallelism[-1][1] == 1
    assert run.view.num_restarts == 0, "a rescale is no failure"
    assert {rescale.trigger for rescale in run.view.rescales} == {AUTOSCALER}
    assert all(rescale.ended_ms is not None and not rescale.error for rescale in run.view.rescales[:-1])


@pytest.mark.parametrize("block", blocks(in_every_run=0, in_a_campaign=30))
def test_under_random_kills_nothing_is_lost_or_doubled(block):
    seed = block + 1
    run = run_autoscaled(seed, draw_faults(seed))
    assert any(rescale.trigger == AUTOSCALER and not rescale.error for rescale in run.view.rescales)
