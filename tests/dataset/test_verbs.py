"""Oracle: every verb against plain Python, on random tables with nulls, NaN, decimals, times and frequent keys."""

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from verbs_oracle import VERBS, check, lefts, tables

from headrace import ExecutionEnvironment


@pytest.mark.parametrize("name", VERBS)
@settings(max_examples=examples(12))
@given(pair=tables, parallelism=st.integers(1, 4), optimize=st.booleans())
def test_a_verb_gives_what_plain_python_gives(name, pair, parallelism, optimize):
    env = ExecutionEnvironment.get_execution_environment("local", parallelism, optimize=optimize)
    check(VERBS[name], env, *pair)


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("empty", [(), (0,), (1,), (0, 1)])
def test_a_verb_of_nothing(name, empty):
    from verbs_oracle import random_tables

    inputs = [[] if side in empty else rows for side, rows in enumerate(random_tables(3, 9, 5))]
    check(VERBS[name], ExecutionEnvironment.get_execution_environment("local", 3), *inputs)


def test_the_hour_that_the_clock_shows_twice_is_told_from_the_first_one():
    """Python compares times of one zone by what the clock shows there."""
    env = ExecutionEnvironment.get_execution_environment("local", 2)
    rows = lefts([(1, None, None, None, hours, None) for hours in (3, 2)])
    assert [row["t"].fold for row in rows] == [1, 0]
    check(VERBS["max_by"], env, rows, [])
    data = env.from_collection([(row["i"], row["t"]) for row in rows])
    assert data.min_by(1, 0).map(lambda pair: pair[0]).collect() == [1]
    assert data.sort(lambda pair: pair[1]).map(lambda pair: pair[0]).collect() == [1, 0]
    assert data.map(lambda pair: pair[1]).distinct().count() == 2
    assert data.group_by(1).reduce(lambda a, b: a).count() == 2
