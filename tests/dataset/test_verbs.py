"""Oracle: every verb against plain Python, on random tables with nulls, NaN, decimals, times and frequent keys."""

from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from verbs_oracle import VERBS, check, lefts, tables

from headrace import ExecutionEnvironment
from headrace.engine.partitions.wire_records import canonical


@pytest.mark.parametrize("name", VERBS)
@settings(max_examples=examples(12))
@given(pair=tables, parallelism=st.integers(1, 4), optimize=st.booleans())
def test_a_verb_gives_what_plain_python_gives(name, pair, parallelism, optimize):
    env = ExecutionEnvironment.get_execution_environment("local", parallelism, optimize=optimize)
    check(VERBS[name], env, *pair)


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.sampled(3)
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


class Labelled(At):
    """Compared as a tuple, and has attributes."""


@dataclass(frozen=True, slots=True)
class Slotted:
    at: datetime


@dataclass(unsafe_hash=True)
class Parent:
    at: datetime


class Child(Parent):
    @cached_property
    def year(self):
        return self.at.year


KEYS_OF_TIMES = [
    lambda t: t,
    lambda t: (t,),
    lambda t: At(t, "x"),
    lambda t: During(At(t, "x")),
    lambda t: Labelled(t, "x"),
    Slotted,
    Parent,
    Child,
]


@pytest.mark.parametrize("key_of", KEYS_OF_TIMES)
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


@dataclass(frozen=True)
class LocalHour:
    at: datetime

    def __eq__(self, other):
        return isinstance(other, LocalHour) and self.at.hour == other.at.hour

    def __hash__(self):
        return hash(self.at.hour)


@dataclass(frozen=True)
class CachesItsHash:
    at: datetime

    def __hash__(self):
        if "_hash" not in self.__dict__:
            self.__dict__["_hash"] = hash(self.at)
        return self.__dict__["_hash"]


@dataclass(eq=False)
class Itself:
    at: datetime


class HourOfTuple(At):
    def __eq__(self, other):
        return self.time.hour == other.time.hour

    def __hash__(self):
        return hash(self.time.hour)


@dataclass(frozen=True)
class Checked:
    at: datetime

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


def in_new_york(month):
    return datetime(2024, month, 5, 9, 10, tzinfo=ZoneInfo("America/New_York"))


@pytest.mark.parametrize("kind", [LocalHour, CachesItsHash, Itself, Checked, lambda t: HourOfTuple(t, "x")])
def test_keys_that_say_themselves_what_is_equal_are_left_alone(kind):
    key = kind(in_new_york(1))
    assert canonical(key) is key
    assert canonical((key, 1))[0] is key


def test_keys_of_own_equality_are_grouped_by_it():
    """09:10 in winter and in summer: one local hour, two hours in UTC."""
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    rows = env.from_collection([(LocalHour(in_new_york(1)), 1), (LocalHour(in_new_york(7)), 2)])
    groups = rows.group_by(lambda row: row[0]).reduce_group(lambda rows: [sorted(row[1] for row in rows)])
    assert groups.collect() == [[1, 2]]


def test_a_canonical_key_keeps_what_is_not_compared():
    labelled = Labelled(in_new_york(1), "x")
    labelled.label = "a"
    own = canonical(labelled)
    assert (type(own), own.label, own.time.tzinfo) == (Labelled, "a", timezone.utc)
    noted = canonical(During(At(in_new_york(1), "x"), note="b"))
    assert (noted.note, noted.at.time.tzinfo) == ("b", timezone.utc)
    slotted = canonical(Slotted(in_new_york(1)))
    assert slotted == Slotted(in_new_york(1))
    assert slotted.at.tzinfo is timezone.utc
    assert canonical(Slotted) is Slotted
