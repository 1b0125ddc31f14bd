"""Metrics of user functions: kinds, groups, names, and adding up over subtasks."""

from __future__ import annotations

import math
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.kernel.metrics import QUANTILES, MetricGroup, combined


def test_a_counter_is_one_whoever_asks_for_it_and_shows_before_it_counts():
    group = MetricGroup()
    counter = group.counter("a")
    assert group.statistics() == {"a": 0}
    counter.inc()
    group.counter("a").inc(5)
    counter.dec(2)
    assert counter.get_count() == 4
    group.count("a")
    assert group.statistics() == {"a": 5}


def test_a_gauge_is_asked_for_each_report():
    group = MetricGroup()
    values = [1, 2.5]
    group.gauge("left", lambda: values.pop(0))
    assert [group.statistics(), group.statistics()] == [{"left": 1}, {"left": 2.5}]


@pytest.mark.parametrize(("function", "kind"), [(lambda: 1 / 0, ProgramError), (lambda: "much", TypeMismatchError)])
def test_a_bad_gauge_is_named_with_its_groups(function, kind):
    group = MetricGroup()
    group.add_group("g", "h").gauge("bad", function)
    with pytest.raises(kind, match=r"gauge 'g\.h\.bad'"):
        group.statistics()


def test_groups_make_names_and_one_group_is_one():
    group = MetricGroup()
    inner = group.add_group("a").add_group("b", "c")
    inner.counter("n").inc()
    group.add_group("a").add_group("b", "c").counter("n").inc()
    assert inner.get_scope_components() == ["a", "b", "c"]
    assert inner.get_metric_identifier("n") == "a.b.c.n"
    assert group.statistics() == {"a.b.c.n": 2}


def test_a_name_is_of_one_kind():
    group = MetricGroup()
    group.counter("a")
    with pytest.raises(ProgramError, match="'a' cannot be a meter: another metric has this name"):
        group.meter("a")
    group.distribution("b")
    with pytest.raises(ProgramError, match="'b' cannot be a gauge"):
        group.gauge("b", lambda: 1)
    with pytest.raises(ProgramError, match="a text that is not empty"):
        group.counter("")


def test_a_meter_gives_the_rate_of_its_span():
    now_ms = [0]
    meter = MetricGroup(lambda: now_ms[0]).meter("m", 10)
    assert meter.get_rate() == 0.0
    meter.mark_event(20)
    now_ms[0] = 5_000
    assert meter.get_rate() == 4.0  # 20 in the 5 s since the beginning
    now_ms[0] = 10_000
    assert meter.get_rate() == 2.0
    for now_ms[0] in (15_000, 20_000):
        assert meter.get_rate() == 0.0
    meter.mark_event(5)
    now_ms[0] = 25_000
    assert meter.get_rate() == 0.5
    assert meter.get_count() == 25


def test_a_distribution_without_values_is_not_reported():
    group = MetricGroup()
    group.distribution("d")
    assert group.statistics() == {}


@given(st.lists(st.lists(st.integers(-50, 50), max_size=5), min_size=1, max_size=4))
def test_distributions_and_counters_add_up_over_subtasks(parts):
    groups = [MetricGroup() for _ in parts]
    for group, values in zip(groups, parts, strict=True):
        for value in values:
            group.distribution("d").update(value)
            group.counter("n").inc()
    everything = [value for values in parts for value in values]
    expected = {}
    if everything:
        expected = {
            "n": len(everything),
            "d.count": len(everything),
            "d.sum": sum(everything),
            "d.min": min(everything),
            "d.max": max(everything),
            "d.mean": sum(everything) / len(everything),
        }
    found = combined(pickle.loads(pickle.dumps(group.statistics())) for group in groups)
    quantiles = {name: found.pop(f"d.{name}") for name in QUANTILES if f"d.{name}" in found}
    assert found == expected
    for name, value in quantiles.items():
        rank = max(math.ceil(QUANTILES[name] * len(everything)), 1)
        assert value == pytest.approx(sorted(everything)[rank - 1], rel=0.011), name
    assert len(quantiles) == (len(QUANTILES) if everything else 0)


def test_a_distribution_of_infinities_has_no_quantiles_and_breaks_nothing():
    group = MetricGroup()
    for value in (math.inf, -math.inf, math.nan):
        group.distribution("d").update(value)
    found = combined([group.statistics()])
    assert (found["d.count"], found["d.max"]) == (3, math.inf)
    assert "d.p50" not in found
    group.distribution("d").update(1e300)
    group.distribution("d").update(1e-300)
    assert combined([group.statistics()])["d.p99"] == pytest.approx(1e300, rel=0.011)


@pytest.mark.parametrize("value", [sys.float_info.max, -sys.float_info.max, 5e-324])
def test_the_largest_and_smallest_numbers_have_quantiles(value):
    group = MetricGroup()
    group.distribution("d").update(value)
    assert combined([group.statistics()])["d.p99"] == value
