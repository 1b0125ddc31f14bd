"""Oracle: every verb against plain Python, on random tables with nulls, NaN, decimals, times and frequent keys."""

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NamedTuple
from zoneinfo import ZoneInfo

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


class At(NamedTuple):
    time: datetime
    place: str


@dataclass(frozen=True)
class During:
    at: At
    note: str = field(default="", compare=False)


@pytest.mark.parametrize("key_of", [lambda t: t, lambda t: (t,), lambda t: At(t, "x"), lambda t: During(At(t, "x"))])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_keys_with_times_of_a_zone_are_compared_by_the_instant(key_of, parallelism):
    """Also within parts of keys: when clocks are put back, two instants show the same there."""
    first = datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    again = first.replace(fold=1)
    times = [first, again, first.astimezone(timezone.utc), again.astimezone(timezone.utc)]
    env = ExecutionEnvironment.get_execution_environment("local", parallelism)
    keyed = env.from_collection([0, 1, 2, 3]).map(lambda i: (key_of(times[i]), i))
    groups = keyed.group_by(lambda row: row[0]).reduce_group(lambda rows: [sorted(row[1] for row in rows)])
    assert sorted(groups.collect()) == [[0, 2], [1, 3]]
    kept = keyed.distinct(lambda row: row[0]).collect()
    assert len(kept) == 2
