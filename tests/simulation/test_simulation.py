"""The simulator as part of the suite: a few hundred seeds, exact replay, and planted bugs; the campaigns run more.

Families: crash (random faults against a reference), and mutation (a harness that cannot fail proves nothing).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from campaigns import blocks, planted
from simulation.loops import countdown, far_apart
from simulation.mutants import MUTANTS, is_caught, run_for
from simulation.simulator import run_seed
from simulation.two_streams import TWO_STREAMS

from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import CheckpointingMode

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", range(2))  # `campaign.py` has the others
def test_committed_output_equals_the_reference(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        run_seed(seed)


@pytest.mark.parametrize("block", blocks(1, 3))
def test_committed_output_of_two_streams_equals_the_reference(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        run_seed(seed, shapes=TWO_STREAMS)


def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17, 42):
        assert run_seed(seed).digest == run_seed(seed).digest


def test_a_seed_replays_exactly_in_any_process() -> None:
    """Not even the order of a set of strings, which differs from process to process, may change what happens."""
    command = [sys.executable, "-c", "from simulation.simulator import run_seed; print(run_seed(3).digest)"]
    digests = set()
    for hash_seed in ("1", "2"):
        surroundings = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
        digests.add(done.stdout.split()[-1])
    assert len(digests) == 1


@pytest.mark.parametrize("block", blocks(1, 3))
def test_without_alignment_loops_may_repeat_but_lose_nothing(block: int) -> None:
    failures: dict[int, str] = {}
    for seed in range(*[(30, 40), (40, 60), (60, 90)][block]):  # each block has some that show it
        try:
            run_seed(seed, mutate=without_alignment, shapes=(countdown, far_apart))
        except AssertionError as error:
            failures[seed] = str(error)
    assert failures, "the mode made no difference"
    assert all(f"seed {seed}: lost 0 [], too many" in text for seed, text in failures.items()), failures


def without_alignment(graph: JobGraph) -> JobGraph:
    assert graph.settings.checkpoints is not None
    checkpoints = replace(graph.settings.checkpoints, mode=CheckpointingMode.AT_LEAST_ONCE, unaligned=False)
    return replace(graph, settings=replace(graph.settings, checkpoints=checkpoints))


SLOW = ("split_answer_is_taken_twice", "unaligned_records_are_not_partitioned_again")


@pytest.mark.parametrize("name", planted(MUTANTS, SLOW))
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=1_000)
    assert seed is not None, "the simulator did not notice"
    run_for(name, seed)  # without the bug the seed passes
