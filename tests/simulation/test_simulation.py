"""The simulator as part of the suite: a few hundred seeds, exact replay, and planted bugs; the campaigns run more.

Families: crash (random faults against a reference), and mutation (a harness that cannot fail proves nothing).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from campaigns import blocks, planted, seeds
from simulation.loops import countdown, far_apart
from simulation.mutants import MUTANTS, is_caught, run_for
from simulation.simulator import run_seed
from simulation.two_streams import TWO_STREAMS

from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import CheckpointingMode

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 2))  # `campaign.py` has the others
def test_committed_output_equals_the_reference(block: int) -> None:
    for seed in seeds(block, 20):
        run_seed(seed)


@pytest.mark.parametrize("block", blocks(1, 6))
@pytest.mark.campaign
def test_committed_output_of_two_streams_equals_the_reference(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        run_seed(seed, shapes=TWO_STREAMS)


def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17, 42):
        assert run_seed(seed).digest == run_seed(seed).digest


def test_a_seed_replays_exactly_in_any_process() -> None:
    """Not even the order of a set of strings, which differs from process to process, may change what happens."""
    command = [sys.executable, "-c", "from simulation.simulator import run_seed; print(run_seed(3).digest)"]
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    surroundings = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
    assert done.stdout.split()[-1] == run_seed(3).digest


@pytest.mark.parametrize("block", blocks(1, 3))
@pytest.mark.campaign
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


SLOW = (
    "barrier_comes_before_the_rest_of_its_batch",
    "barrier_is_dropped",
    "barriers_are_not_aligned",
    "debloated_growth_is_not_granted",
    "debloated_windows_close",
    "keyed_state_is_not_restored",
    "loop_does_not_set_the_future_aside",
    "loop_forgets_its_backlog",
    "loop_is_acknowledged_before_its_log_is_complete",
    "loop_log_is_forgotten",
    "ordered_barrier_that_came_ahead_has_no_place",
    "publish_without_all_acknowledgements",
    "source_positions_are_not_restored",
    "split_answer_is_taken_twice",
    "storm_leaves_frames_to_one_repair_per_silence",
    "storm_makes_hosts_give_each_other_up",
    "unaligned_cut_drops_what_the_consumer_did_not_want",
    "unaligned_forgets_what_it_has_not_replayed",
    "unaligned_input_is_logged_one_batch_short",
    "unaligned_log_ends_with_the_snapshot",
    "unaligned_log_goes_on_behind_the_barrier",
    "unaligned_output_is_not_stored",
    "unaligned_records_are_not_partitioned_again",
    "unaligned_rest_of_a_batch_is_doubled",
    "unaligned_rest_of_what_was_restored_is_lost",
    "unaligned_windows_fire_again",
)
"""They take more than half a second each."""


@pytest.mark.parametrize("name", planted(MUTANTS, SLOW))
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=1_000)
    assert seed is not None, "the simulator did not notice"
    run_for(name, seed)  # without the bug the seed passes
