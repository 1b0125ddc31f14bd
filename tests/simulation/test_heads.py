"""Clusters with several heads in the simulator: seeds, exact replay, and planted bugs.

Families: crash (heads killed and stopped, a slow and failing store, against a reference), and mutation.
"""

from __future__ import annotations

import random

import pytest
from campaigns import blocks, planted, seeds
from simulation.head_mutants import HEAD_MUTANTS, is_caught
from simulation.heads import Watcher, draw_sleep, run_heads_seed

from headrace.actors.sim.system import SimSystem
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 6))
def test_jobs_survive_their_leaders(block: int) -> None:
    outcomes = [run_heads_seed(seed) for seed in seeds(block, 20, part=3)]
    assert sum(outcome.leaders for outcome in outcomes) > 20
    assert sum(outcome.heads_killed for outcome in outcomes) > 10
    assert sum(outcome.heads_frozen for outcome in outcomes) > 10


@pytest.mark.parametrize("block", blocks(1, 12))
def test_jobs_survive_long_sleeps(block: int) -> None:
    for seed in seeds(block, 10):
        run_heads_seed(seed, faults=draw_sleep(random.Random(seed)))


def test_a_seed_replays_exactly() -> None:
    assert run_heads_seed(5).digest == run_heads_seed(5).digest


def test_a_publication_for_a_job_that_has_ended_is_noticed() -> None:
    MemoryFileSystem.forget("ended")
    storage = CheckpointStorage.open("memory://ended", JobId("job"))
    watcher = Watcher(0, SimSystem())
    with watcher.watching():
        storage.publish(Manifest("job", "job", 1, storage.claim_epoch(), 0, ()), 1)
        watcher.check()
        storage.remove()
        storage.publish(Manifest("job", "job", 2, 1, 0, ()), 1)
    with pytest.raises(AssertionError, match="publishes checkpoint 2 of a job that has ended"):
        watcher.check()


@pytest.mark.parametrize("name", planted(HEAD_MUTANTS, {"names_are_used_again"}))
@pytest.mark.sampled(5)
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=200)
    assert seed is not None, "the simulator did not notice"
    run_heads_seed(seed)  # without the bug the seed passes
