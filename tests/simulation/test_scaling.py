"""Jobs on clusters that launch nodes: what they get, how long they wait, what they are told; and planted bugs."""

import pytest
from campaigns import blocks
from simulation.scaling import SCALING_MUTANTS, is_caught, run_scaling_seed


@pytest.mark.parametrize("block", blocks(1, 2))
def test_jobs_get_nodes_where_none_was_and_give_them_back(block):
    runs = [run_scaling_seed(seed) for seed in range(15 * block, 15 * block + 15)]
    assert {state for _, _, state in runs} == {"FINISHED", "FAILED"}
    assert sum(system.num_launched > 1 for _, system, _ in runs) > 2


def test_a_seed_repeats():
    assert run_scaling_seed(5)[0].digest == run_scaling_seed(5)[0].digest


@pytest.mark.parametrize("name", sorted(SCALING_MUTANTS))
def test_planted_bugs_are_noticed(name):
    seed, how = is_caught(name, 60)
    assert seed is not None, f"{name} survived"
    run_scaling_seed(seed)  # without the bug the seed passes
    assert how
