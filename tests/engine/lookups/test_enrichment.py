"""Lookups: joining, the cache by the clock, metrics. Oracle: a cache that keeps everything and looks at all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import OperatorHarness

from headrace.engine.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from headrace.engine.functions.async_functions import AsyncRetryStrategies, empty_result_predicate
from headrace.engine.functions.keys import KeySelector
from headrace.engine.lookups.enrichment import (
    AsyncLookupFunction,
    CachedRows,
    LookupCache,
    LookupFunction,
    LookupOperator,
    RowJoin,
)

TABLE = {"a": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "b": {"x": 5, "y": 6}}


async def table(key):
    return TABLE.get(key)


def harness(function=table, **options):
    known = {
        "is_left": True,
        "join": RowJoin(),
        "cache": None,
        "ordered": True,
        "capacity": 10,
        "timeout_ms": 0,
    }
    return OperatorHarness(LookupOperator(function, KeySelector.of_field("k"), **{**known, **options}))


def looked_up(run, keys):
    run.process([{"k": key} for key in keys])
    run.do_all_work()
    return run.take_rows()


def figures(run):
    return {name.removeprefix("lookup."): n for name, n in run.metrics.statistics().items() if "lookup." in name}


# -------------------------------------------------------------------------------------------------------------- joining
def test_a_left_lookup_keeps_records_without_a_row_and_an_inner_one_drops_them():
    rows = [{"k": "a", "x": 1, "y": 2}, {"k": "a", "x": 3, "y": 4}, {"k": "b", "x": 5, "y": 6}]
    assert looked_up(harness(), "abc") == [*rows, {"k": "c"}]
    assert looked_up(harness(is_left=False), "abc") == rows


def test_chosen_fields_are_there_in_every_record():
    run = harness(join=RowJoin(["y"]))
    assert looked_up(run, "bc") == [{"k": "b", "y": 6}, {"k": "c", "y": None}]
    with pytest.raises(TypeMismatchError, match="no field 'z'; its fields are \\['x', 'y'\\]"):
        looked_up(harness(join=RowJoin(["z"])), "b")


def test_what_is_no_dict_is_paired():
    assert RowJoin()(1, (2, 3)) == (1, (2, 3))
    assert RowJoin()(1, None) == (1, None)
    assert RowJoin()({"a": 1}, 2) == ({"a": 1}, 2)


def test_a_failing_join_is_named():
    def divide(record, row):
        return 1 / 0

    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        looked_up(harness(join=divide), "a")
    assert caught.value.context["function"].endswith("divide")


def test_function_objects_of_both_kinds_are_called_by_key():
    class Blocking(LookupFunction):
        def lookup(self, key):
            return {"of": key}

    class Async(AsyncLookupFunction):
        async def async_lookup(self, key):
            return [{"of": key}]

    for function in (Blocking(), Async()):
        assert looked_up(harness(function), "a") == [{"k": "a", "of": "a"}]


def test_what_a_key_lacks_can_be_asked_for_again():
    retry = AsyncRetryStrategies.fixed_delay(1, 10, result_predicate=empty_result_predicate)
    run = harness(retry=retry)
    assert looked_up(run, "c") == []
    run.advance_clock(10)
    run.do_all_work()
    assert run.take_rows() == [{"k": "c"}]


def test_requests_in_flight_are_made_again_for_their_keys_after_a_restore():
    run = harness(capacity=1)
    run.process([{"k": "b"}, {"k": "c"}])
    again = OperatorHarness(
        run.operator.__class__(table, KeySelector.of_field("k"), **options()), restored=run.snapshot()
    )
    again.do_all_work()
    assert again.take_rows() == [{"k": "b", "x": 5, "y": 6}, {"k": "c"}]


def options():
    return {"is_left": True, "join": RowJoin(), "cache": None, "ordered": True, "capacity": 1, "timeout_ms": 0}


# ------------------------------------------------------------------------------------------------------------ the cache
def test_a_known_key_is_not_asked_for():
    run = harness(cache=LookupCache())
    first = looked_up(run, "ab")
    run.process([{"k": "b"}, {"k": "a"}, {"k": "b"}])
    assert not run.works
    assert run.take_rows() == [first[2], first[0], first[1], first[2]]
    assert figures(run) == {
        "hit_count": 3, "miss_count": 2, "load_count": 2, "num_load_failures": 0, "num_cached_records": 2
    }  # fmt: skip


def test_hits_wait_for_misses_before_them():
    run = harness(cache=LookupCache())
    looked_up(run, "b")
    run.process([{"k": "a"}, {"k": "b"}])
    assert run.take_rows() == []
    run.do_all_work()
    assert [row["k"] for row in run.take_rows()] == ["a", "a", "b"]


def test_a_batch_of_hits_is_one_batch_whatever_the_capacity():
    run = harness(cache=LookupCache(), capacity=1)
    looked_up(run, "b")
    run.process([{"k": "b"}] * 50)
    assert [element.num_rows for element in run.output.elements] == [50]


def test_that_a_key_is_missing_is_remembered_unless_that_is_not_wanted():
    for remembers in (True, False):
        run = harness(cache=LookupCache(cache_missing_key=remembers))
        looked_up(run, "c")
        run.process([{"k": "c"}])
        assert bool(run.works) is not remembers


def test_an_answer_expires_by_the_clock():
    run = harness(cache=LookupCache(expire_after_write="1 s"))
    looked_up(run, "b")
    run.advance_clock(999)
    assert looked_up(run, "b")
    assert figures(run)["hit_count"] == 1
    run.advance_clock(1_000)
    run.process([{"k": "b"}])
    assert run.works


def test_a_failed_load_is_counted_and_leaves_nothing():
    def fail(key):
        message = "gone"
        raise OSError(message)

    run = harness(fail, cache=LookupCache())
    with pytest.raises(UserFunctionError, match="gone"):
        looked_up(run, "a")
    assert figures(run)["num_load_failures"] == 1
    assert figures(run)["num_cached_records"] == 0


def test_a_key_must_be_hashable():
    with pytest.raises(TypeMismatchError, match="must be hashable; got \\['a'\\]"):
        looked_up(harness(cache=LookupCache()), [["a"]])


def test_settings_are_checked():
    with pytest.raises(ConfigurationError, match="at least 1; got 0"):
        LookupCache(max_rows=0)
    with pytest.raises(ConfigurationError, match="must be positive; got '0 s'"):
        LookupCache(expire_after_write="0 s")


@given(
    max_rows=st.none() | st.integers(1, 4),
    expires=st.none() | st.integers(1, 6),
    remembers=st.booleans(),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=60),
)
def test_the_cache_against_one_that_looks_at_everything(max_rows, expires, remembers, actions):
    cache = CachedRows(LookupCache(max_rows, expires, remembers))
    known = {}  # key -> (written, rows, last use)
    now_ms = 0
    for use, (is_put, key, wait_ms, is_missing) in enumerate(actions):
        now_ms += wait_ms
        if expires is not None:
            known = {k: entry for k, entry in known.items() if entry[0] + expires > now_ms}
        if is_put:
            rows = [] if is_missing else [use]
            cache.put(key, rows, now_ms)
            known.pop(key, None)
            if rows or remembers:
                known[key] = (now_ms, rows, use)
            if max_rows is not None and len(known) > max_rows:
                del known[min(known, key=lambda k: known[k][2])]
        else:
            found = cache.get(key, now_ms)
            assert found == (known[key][1] if key in known else None)
            if key in known:
                known[key] = (*known[key][:2], use)
        assert len(cache) == len(known)
