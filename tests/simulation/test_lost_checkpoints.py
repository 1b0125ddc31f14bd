"""Completed checkpoints that are damaged, deleted or away, over some seeds; and planted bugs that the output shows.

Families: crash (a process dies when its checkpoint is gone), corruption, mutation.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.lost_checkpoints import LASTING, PASSING, all_is_forgotten, both, run_lost_seed
from simulation.planted import caught_by
from simulation.transactions import PROVING

from headrace.engine.connectors import commits
from headrace.engine.job.phases import failures, preparing

pytestmark = pytest.mark.slow


def test_the_output_of_a_job_whose_checkpoint_is_lost_is_exact_or_it_says_so() -> None:
    outcomes = [run_lost_seed(seed) for seed in range(25)]  # `lost_checkpoints.py` has the others
    assert sum(outcome.struck.total() for outcome in outcomes) > 10
    assert {outcome.state for outcome in outcomes} == {"FINISHED", "FAILED"}


@pytest.mark.parametrize("kind", PASSING)
@pytest.mark.sampled(9)
def test_what_is_away_for_a_moment_fails_no_job(kind: str) -> None:
    outcomes = [run_lost_seed(seed, kinds=(kind,)) for seed in range(200, 220)]
    assert sum(outcome.struck.total() for outcome in outcomes) > 10
    assert {outcome.state for outcome in outcomes} == {"FINISHED"}


@pytest.mark.parametrize("block", blocks(1, 3))
def test_a_sink_that_can_prove_what_it_has_committed_keeps_jobs_alive(block: int) -> None:
    outcomes = [run_lost_seed(seed, LASTING[:4], PROVING) for seed in seeds(block, 20)]
    assert any(outcome.proven for outcome in outcomes)


def the_newest_is_passed_over_in_silence() -> Any:
    """Whatever is damaged, the one before it is taken, and no sink is asked."""
    return both(
        mock.patch.object(preparing, "may_fall_back", return_value=True),
        mock.patch.object(failures, "may_fall_back", return_value=True),
        mock.patch.object(commits, "_prove"),
    )


def proofs_are_not_asked_for() -> Any:
    """A sink that could tell what it has committed is not asked."""
    return mock.patch.object(commits, "_prove")


def one_look_is_enough() -> Any:
    """A store that lacks a checkpoint for a moment has lost it."""
    return mock.patch.object(preparing, "MAX_LOSSES", 0)


@pytest.mark.parametrize(
    "plant", [all_is_forgotten, the_newest_is_passed_over_in_silence, proofs_are_not_asked_for, one_look_is_enough]
)
def test_a_planted_bug_is_noticed(plant: Any) -> None:
    with plant():
        seed, how = caught_by(f"lost: {plant.__name__}", run_lost_seed, 400)
    assert seed is not None
    is_refused = "made public behind it" in how  # file sinks notice by themselves
    assert "too many" in how or is_refused or plant is one_look_is_enough, how
