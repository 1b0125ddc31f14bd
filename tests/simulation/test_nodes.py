"""Loss of nodes, and nodes that are blocked, over many seeds; and planted bugs.

Families: crash (whatever dies together, the output is the reference's), model (what is blocked is what the rule
says), and mutation.
"""

from __future__ import annotations

import pytest
from campaigns import blocks, planted, seeds
from simulation.nodes import NODE_MUTANTS, is_caught, run_node_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 4))
def test_lost_nodes_lose_and_double_nothing(block: int) -> None:
    runs = [run_node_seed(seed) for seed in seeds(block, 15, part=3)]
    assert sum(outcome.restarts > 0 for outcome, _ in runs) >= 5, "hardly any node was missed"
    assert sum(model.num_blocks for _, model in runs) >= 2, "hardly any node was blocked"
    assert sum(model.num_lifted for _, model in runs) >= 1, "no block had to be lifted"


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_node_seed(3)[0].digest == run_node_seed(3)[0].digest


@pytest.mark.parametrize("name", planted(NODE_MUTANTS, {"slots_of_a_lost_task_manager_are_kept"}))
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(name: str) -> None:
    seed, _ = is_caught(name, max_seeds=100)
    assert seed is not None, "the simulator did not notice"
    run_node_seed(seed)  # without the bug the seed passes
