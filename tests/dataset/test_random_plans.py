"""Differential: optimised plans against plans as they were written, on random programs and data.

The optimiser moves, drops and replaces operators; what it must not do is change a result. Failures are equal too: an
optimised plan fails iff the other does.
"""

from dataclasses import replace

import pytest
from campaigns import examples
from dataset_kit import OPERATORS, Program, Step, assert_equal, build, multiset, programs, row
from hypothesis import HealthCheck, Phase, given, settings

from headrace import ExecutionEnvironment
from headrace.engine.optimizer import optimizer, properties
from headrace.engine.optimizer.optimizer import RULES, Rule, choose_broadcasts, push_filters
from headrace.engine.optimizer.rewriting import readers_of, rewritten
from headrace.engine.plan.plan import BROADCAST, FORWARD, FilterColumns, Join


def optimized(parallelism):
    return ExecutionEnvironment.get_execution_environment("local", parallelism)


def as_written(parallelism):
    return ExecutionEnvironment.get_execution_environment("local", parallelism, optimize=False)


def one_partition(_parallelism):
    return ExecutionEnvironment.get_execution_environment("local", 1, optimize=False)


SETTINGS = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(programs())
def test_optimised_plans_give_what_plans_as_written_give(program):
    assert_equal(program, optimized, as_written)


@SETTINGS
@given(programs())
def test_results_do_not_depend_on_the_number_of_partitions(program):
    assert_equal(program, as_written, one_partition)


def search(operators):
    """Look for a difference in programs of some operators."""

    @settings(
        max_examples=examples(400),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(operators))
    def run(program):
        assert_equal(program, optimized, as_written)

    run()


def broadcast_whatever(roots, parallelism):
    """Sends the second input of every join everywhere, also where its unmatched records are asked for."""
    return rewritten(roots, lambda node: replace(node, ships=(FORWARD, BROADCAST)) if isinstance(node, Join) else node)


def push_filters_that_others_need(roots, _parallelism):
    """Moves filters by readers that were right before the filters in front of them moved."""
    readers = readers_of(roots)

    def visit(node):
        if not isinstance(node, FilterColumns) or len(readers[node.inputs[0].id]) > 1:
            return node
        return optimizer._filter_below(node, node.inputs[0]) or node

    return rewritten(roots, visit)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["a shuffle too few", "a sort too few", "a join too small", "a filter too far"])
def test_planted_bugs_are_found(monkeypatch, bug):
    """The search above can fail: found in programs of the operators that the rule is about."""
    operators = ["map", "partition_by_range", "sort_partition", "reduce_group", "as columns", "group reduce"]
    if bug == "a shuffle too few":
        monkeypatch.setattr(properties.Known, "brings_together", lambda self, key: True)
    elif bug == "a sort too few":
        monkeypatch.setattr(optimizer, "_same_orders", lambda one, other: True)
        monkeypatch.setattr(optimizer, "_is_grouped", lambda before, key, orders: True)
        operators = ["map", "groups of partitions sorted the other way", "groups of sorted partitions"]
    elif bug == "a filter too far":
        rules = tuple(Rule("bug", push_filters_that_others_need) if r.apply is push_filters else r for r in RULES)
        monkeypatch.setattr(optimizer, "RULES", rules)
        operators = ["map", "filter by expression", "filter of a shared filter", "two filters of a filter"]
    else:
        rules = tuple(Rule("bug", broadcast_whatever) if r.apply is choose_broadcasts else r for r in RULES)
        monkeypatch.setattr(optimizer, "RULES", rules)
        operators = ["map", "inner join", "full join", "right join"]
    with pytest.raises(AssertionError, match="results differ after"):
        search(operators)


ROWS = tuple(
    row(k, s, v, x) for k, s, v, x in [(1, "a", 3, 0.5), (1, None, -2, None), (None, "b", 8, 1.0), (4, "", 6, 2.0)]
)


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_operator_of_the_kit_runs_and_gives_records(operator):
    """So that no operator of the kit fails always, on both sides alike."""
    program = Program((ROWS * 3, ROWS[:3]), (True, False), (Step(operator, 0, 1),), 3)
    results = [build(make(3), program)[-1].collect() for make in (optimized, as_written)]
    assert results[0]
    assert multiset(results[0]) == multiset(results[1])
    assert all(set(r) == {"k", "s", "v", "x"} for r in results[0])
