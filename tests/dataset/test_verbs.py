"""Oracle: every verb against plain Python, on random tables with nulls, NaN, decimals, times and frequent keys."""

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from verbs_oracle import VERBS, check, tables

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
