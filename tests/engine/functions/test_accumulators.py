"""Accumulators: kinds, merging on the way to the client, clashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import OperatorHarness

from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.functions.accumulators import (
    Accumulator,
    Accumulators,
    AverageAccumulator,
    DoubleCounter,
    Histogram,
    IntCounter,
    ListAccumulator,
    LongCounter,
    accumulated_value,
    merged_parts,
)
from headrace.engine.functions.contract import MapFunction
from headrace.engine.operators.row_operators import MapOperator


class Longest(Accumulator):
    """A user's kind."""

    def __init__(self):
        self.text = ""

    def add(self, value):
        self.text = max(self.text, value, key=len)

    def get_local_value(self):
        return self.text

    def reset_local(self):
        self.text = ""

    def merge(self, other):
        self.add(other.text)


KINDS = {
    IntCounter: sum,
    LongCounter: sum,
    DoubleCounter: lambda values: float(sum(values)),
    AverageAccumulator: lambda values: sum(values) / len(values) if values else 0.0,
    Histogram: lambda values: {value: values.count(value) for value in sorted(set(values))},
    ListAccumulator: list,
}


@given(st.sampled_from(list(KINDS)), st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=4))
def test_the_total_is_that_of_all_values(kind, parts):
    reports = []
    for values in parts:
        mine = Accumulators()
        mine.add("a", kind())
        for value in values:
            mine.get("a").add(value)
        reports.append(mine.report("op"))
    merged = merged_parts(reports)
    everything = [value for values in parts for value in values]
    assert accumulated_value("a", merged["a"]) == KINDS[kind](everything)
    assert accumulated_value("a", merged["a"]) == KINDS[kind](everything), "reading changes nothing"
    if kind not in (Histogram, ListAccumulator):
        assert len(merged["a"]) == 1


def test_a_report_does_not_go_on_counting():
    mine = Accumulators()
    counter = mine.get_or_add("n", IntCounter)
    counter.add(1)
    report = mine.report("op")
    counter.add(1)
    assert accumulated_value("n", [report["n"]]) == 1


def test_a_kind_of_ones_own_travels_unopened():
    reports = []
    for text in ("ab", "abc", "a"):
        mine = Accumulators()
        mine.add("longest", Longest())
        mine.get("longest").add(text)
        reports.append(mine.report("op"))
    parts = merged_parts(reports)["longest"]
    assert all(isinstance(part.content, bytes) for part in parts)
    assert accumulated_value("longest", parts) == "abc"


def test_none_of_no_parts():
    assert accumulated_value("a", ()) is None


def test_two_kinds_under_one_name_are_refused_with_both_places():
    reports = []
    for operator, kind in (("first", IntCounter), ("second", LongCounter)):
        mine = Accumulators()
        mine.add("n", kind())
        reports.append(mine.report(operator))
    with pytest.raises(ProgramError, match="'n' is a IntCounter in operator 'first' and a LongCounter in"):
        accumulated_value("n", merged_parts(reports)["n"])


def test_names_and_kinds_are_checked_where_they_are_registered():
    mine = Accumulators()
    mine.add("n", IntCounter())
    with pytest.raises(ProgramError, match="'n' has been added already, as IntCounter"):
        mine.add("n", IntCounter())
    with pytest.raises(ProgramError, match="is a IntCounter, no Histogram"):
        mine.get_or_add("n", Histogram)
    with pytest.raises(ProgramError, match=r"no accumulator 'm'; there are \['n'\]"):
        mine.get("m")
    with pytest.raises(ProgramError, match="must be an Accumulator"):
        mine.add("m", 3)
    with pytest.raises(ProgramError, match="a text that is not empty"):
        mine.add("", IntCounter())


def test_a_counter_takes_numbers_of_its_kind():
    with pytest.raises(TypeMismatchError, match=r"IntCounter adds int; got 1\.5"):
        IntCounter().add(1.5)
    counter = DoubleCounter()
    counter.add(1)
    counter.add(1.5)
    assert counter.get_local_value() == 2.5


@pytest.mark.parametrize("kind", list(KINDS))
def test_reset_starts_again(kind):
    accumulator = kind()
    accumulator.add(1)
    accumulator.reset_local()
    assert accumulator.get_local_value() == kind().get_local_value()
    accumulator.add(3)
    assert accumulator.get_local_value() == KINDS[kind]([3])


def test_what_cannot_be_pickled_is_named():
    mine = Accumulators()
    mine.add("locks", ListAccumulator())
    mine.get("locks").add(one for one in ())
    with pytest.raises(TypeMismatchError, match="accumulator 'locks' holds what cannot be pickled"):
        mine.report("op")


def test_values_of_mixed_kinds_are_counted_in_the_order_they_came():
    histogram = Histogram()
    for value in ("b", 1, "b"):
        histogram.add(value)
    assert list(histogram.get_local_value().items()) == [("b", 2), (1, 1)]


def test_functions_reach_them_by_their_context():
    class Counting(MapFunction):
        def open(self, runtime_context):
            self.context = runtime_context
            self.longs, self.doubles = runtime_context.get_long_counter("l"), runtime_context.get_double_counter("d")
            self.histogram = runtime_context.get_histogram("h")
            runtime_context.add_accumulator("n", IntCounter())

        def map(self, value):
            for accumulator in (self.longs, self.doubles, self.histogram, self.context.get_accumulator("n")):
                accumulator.add(value)
            return value

    run = OperatorHarness(MapOperator(Counting()))
    run.process([1, 2])
    report = run.context.accumulators.report("op")
    assert {name: accumulated_value(name, [part]) for name, part in report.items()} == {
        "l": 3, "d": 3.0, "h": {1: 1, 2: 1}, "n": 3
    }  # fmt: skip
