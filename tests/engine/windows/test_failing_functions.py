"""What an error says of the key, window and record that a function of a window, or of a join, was called with.

Each way that windows take (whole batches, record by record, sessions that merge, counts) has a function that fails in
one place only, so that the record, key and window are known beforehand.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from operator_harness import OperatorHarness

from headrace.engine.columns.records import MAX_WATERMARK, Batch
from headrace.engine.errors import StateAccessError, UserFunctionError
from headrace.engine.functions.cofunctions import CoGroupFunction, FlatJoinFunction
from headrace.engine.functions.contract import AggregateFunction, ProcessWindowFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.joins.interval import IntervalJoinOperator
from headrace.engine.joins.window import CoGroupWindowFunction, JoinWindowFunction, WindowCoGroupOperator
from headrace.engine.operators.process import KeyedReduceOperator
from headrace.engine.operators.row_operators import MapBatchesOperator
from headrace.engine.windows.all_windows import OneKey, without_key
from headrace.engine.windows.assigners import (
    CountWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from headrace.engine.windows.evictors import CountEvictor
from headrace.engine.windows.row_functions import ApplyBatchesFunction, ApplyFunction
from headrace.engine.windows.triggers import EventTimeTrigger, TriggerResult
from headrace.engine.windows.window_operator import WindowOperator

BY_KEY = KeySelector.of_field(0)
MAX = MAX_WATERMARK.timestamp_ms
BAD = -1
RECORDS, TIMES = [("a", 4), ("b", 2), ("b", BAD), ("a", 3)], [1_000, 11_000, 12_000, 13_000]
TEN_SECONDS = "[1970-01-01T00:00:10.000Z, 1970-01-01T00:00:20.000Z)"
AT_12 = "1970-01-01T00:00:12.000Z"
TUMBLING = TumblingEventTimeWindows.of("10 s")


def check(value):
    if value == BAD:
        message = f"{value} is bad"
        raise ValueError(message)
    return value


def reduce(left, right):
    return (right[0], check(right[1]))


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + check(value[1])

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Result(Sum):
    """Fails when it is asked, for what has 1 as its sum."""

    def add(self, value, accumulator):
        return accumulator + value[1]

    def get_result(self, accumulator):
        return check(-accumulator)


class Merging(Sum):
    def merge(self, acc_a, acc_b):
        raise ValueError(acc_a)


class Clearing(ProcessWindowFunction):
    def process(self, key, context, elements):
        return [key]

    def clear(self, context):
        check(-1 if context.window().start == 10_000 else 0)


class Failing(EventTimeTrigger):
    def __init__(self, method):
        self.method = method

    def on_element(self, element, timestamp, window, ctx):
        if self.method == "on_element":
            check(element[1])
        return (
            TriggerResult.CONTINUE
            if self.method == "on_element"
            else super().on_element(element, timestamp, window, ctx)
        )

    def on_event_time(self, time, window, ctx):
        check(BAD if window.start == 10_000 else 0)
        return TriggerResult.FIRE


class FailingEvictor(CountEvictor):
    def evict_before(self, elements, size, window, evictor_context):
        for element in elements:
            check(element.value[1])


def process(key, context, elements):
    for element in elements:
        yield check(element[1])


def apply(key, window, elements):
    return [check(element[1]) for element in elements]


RECORD = {"record": "('b', -1)", "event_time": AT_12}

WAYS = {
    "reduce": (WindowOperator(BY_KEY, TUMBLING, reduce=reduce), {"key": "'b'", "window": TEN_SECONDS, **RECORD}),
    "aggregate": (WindowOperator(BY_KEY, TUMBLING, aggregate=Sum()), {"key": "'b'", "window": TEN_SECONDS, **RECORD}),
    "result": (WindowOperator(BY_KEY, TUMBLING, aggregate=Result()), {"key": "'b'", "window": TEN_SECONDS}),
    "process": (WindowOperator(BY_KEY, TUMBLING, process=process), {"key": "'b'", "window": TEN_SECONDS}),
    "process of one result": (
        WindowOperator(BY_KEY, TUMBLING, aggregate=Result(), process=Clearing()),
        {"key": "'b'", "window": TEN_SECONDS},
    ),
    "apply": (WindowOperator(BY_KEY, TUMBLING, process=ApplyFunction(apply)), {"key": "'b'", "window": TEN_SECONDS}),
    "clear": (WindowOperator(BY_KEY, TUMBLING, process=Clearing()), {"key": "'b'", "window": TEN_SECONDS}),
    "sliding": (
        WindowOperator(BY_KEY, SlidingEventTimeWindows.of("10 s", "5 s"), reduce=reduce),
        {"key": "'b'", "window": TEN_SECONDS, **RECORD},
    ),
    "session": (
        WindowOperator(BY_KEY, EventTimeSessionWindows.with_gap("2 s"), reduce=reduce),
        {"key": "'b'", "window": "[1970-01-01T00:00:11.000Z, 1970-01-01T00:00:14.000Z)", **RECORD},
    ),
    "count": (WindowOperator(BY_KEY, CountWindows(2, 2), reduce=reduce), {"key": "'b'", **RECORD}),
    "sliding count": (WindowOperator(BY_KEY, CountWindows(3, 1), reduce=reduce), {"key": "'b'", **RECORD}),
    "trigger": (
        WindowOperator(BY_KEY, TUMBLING, trigger=Failing("on_element"), process=process),
        {"key": "'b'", "window": TEN_SECONDS, **RECORD},
    ),
    "trigger's timer": (
        WindowOperator(BY_KEY, TUMBLING, trigger=Failing("on_event_time"), process=Clearing()),
        {"key": "'b'", "window": TEN_SECONDS},
    ),
    "reduce, record by record": (
        WindowOperator(BY_KEY, TUMBLING, trigger=EventTimeTrigger(), reduce=reduce),
        {"key": "'b'", "window": TEN_SECONDS, **RECORD},
    ),
    "evictor": (
        WindowOperator(BY_KEY, TUMBLING, evictor=FailingEvictor(9), process=Clearing()),
        {"key": "'b'", "window": TEN_SECONDS},
    ),
    "window of the whole stream": (
        WindowOperator(OneKey(), TUMBLING, process=without_key(lambda context, elements: process(0, 0, elements))),
        {"key": "()", "window": TEN_SECONDS},
    ),
    "running reduce": (KeyedReduceOperator(BY_KEY, reduce), {"key": "'b'", **RECORD}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_function_names_key_window_and_record(way):
    operator, expected = WAYS[way]
    harness = OperatorHarness(operator)
    with pytest.raises(UserFunctionError, match="ValueError: -1 is bad") as caught:
        harness.process(RECORDS, TIMES)
        harness.watermark(MAX)
    context = caught.value.context
    assert {what: context[what] for what in ("record", "key", "window", "event_time") if what in context} == expected
    assert list(context)[:3] == ["operator", "subtask", "function"]
    assert "in check" in context["traceback"]
    if "window" in expected:
        assert f"window {expected['window']}" in str(caught.value).splitlines()[0]


def test_sessions_that_merge_name_what_they_become():
    harness = OperatorHarness(WindowOperator(BY_KEY, EventTimeSessionWindows.with_gap("2 s"), aggregate=Merging()))
    harness.process([("a", 1), ("a", 2)], [1_000, 4_000])
    with pytest.raises(UserFunctionError) as caught:
        harness.process([("a", 3)], [2_500])
    assert caught.value.context["window"] == "[1970-01-01T00:00:01.000Z, 1970-01-01T00:00:06.000Z)"
    assert caught.value.context["key"] == "'a'"


def test_a_late_record_that_makes_a_window_fire_again_is_named():
    harness = OperatorHarness(WindowOperator(BY_KEY, TUMBLING, reduce=reduce, allowed_lateness_ms=60_000))
    harness.process([("a", 1)], [1_000])
    harness.watermark(10_000)
    with pytest.raises(UserFunctionError) as caught:
        harness.process([("a", BAD)], [2_000])
    context = caught.value.context
    assert (context["key"], context["record"]) == ("'a'", "('a', -1)")
    assert context["window"] == "[1970-01-01T00:00:00.000Z, 1970-01-01T00:00:10.000Z)"
    assert context["event_time"] == "1970-01-01T00:00:02.000Z"


def test_errors_of_our_own_say_it_too_behind_their_place():
    harness = OperatorHarness(
        WindowOperator(
            BY_KEY, EventTimeSessionWindows.with_gap(10), process=lambda key, context, elements: context.window_state()
        )
    )
    harness.process([("a", 1)], [1_000])
    with pytest.raises(StateAccessError) as caught:
        harness.watermark(MAX)
    assert list(caught.value.context)[:2] == ["operator", "subtask"]
    assert caught.value.context["key"] == "'a'"
    assert caught.value.context["window"] == "[1970-01-01T00:00:01.000Z, 1970-01-01T00:00:01.010Z)"


# --------------------------------------------------------------------------------------------------------------- joins


class Flat(FlatJoinFunction):
    def join(self, first, second):
        yield check(second[1])


class Group(CoGroupFunction):
    def co_group(self, first, second):
        return [check(row[1]) for row in second]


@pytest.mark.parametrize(
    ("function", "name", "record"),
    [
        (JoinWindowFunction(lambda left, right: check(right[1])), "<lambda>", "(('b', 7), ('b', -1))"),
        (JoinWindowFunction(Flat()), "Flat", "(('b', 7), ('b', -1))"),
        (CoGroupWindowFunction(Group()), "Group", None),
    ],
    ids=["join", "flat join", "co-group"],
)
def test_a_window_join_names_its_pair(function, name, record):
    harness = OperatorHarness(WindowCoGroupOperator(BY_KEY, BY_KEY, TUMBLING, function))
    harness.process([("a", 1), ("b", 7)], [11_000, 11_000])
    harness.process([("a", 1), ("b", 2), ("b", BAD)], [12_000, 12_000, 13_000], 1)
    with pytest.raises(UserFunctionError) as caught:
        harness.watermark(MAX)
    context = caught.value.context
    assert (context.get("record"), context["key"], context["window"]) == (record, "'b'", TEN_SECONDS)
    assert name in context["function"]


def test_an_interval_join_names_pair_key_and_time():
    operator = IntervalJoinOperator(BY_KEY, BY_KEY, -5_000, 5_000, lambda left, right, ctx: [check(right[1])])
    harness = OperatorHarness(operator)
    harness.process([("b", 7)], [11_000])
    with pytest.raises(UserFunctionError) as caught:
        harness.process([("b", 2), ("b", BAD)], [12_000, 12_000], 1)
    context = caught.value.context
    assert (context["record"], context["key"], context["event_time"]) == ("(('b', 7), ('b', -1))", "'b'", AT_12)


# ------------------------------------------------------------------------------------------------- columns, and keys


def test_a_function_of_batches_says_how_many_rows_it_was_given():
    def fails(batch):
        raise KeyError(batch.schema.names[0])

    harness = OperatorHarness(MapBatchesOperator(fails))
    with pytest.raises(UserFunctionError, match=r"function '.*fails', rows 3\)") as caught:
        harness.operator.process_batch(Batch.of_columns(pa.record_batch({"n": [1, 2, 3]})), 0)
    assert (caught.value.context["operator"], caught.value.context["subtask"]) == ("op", "1/1")


def test_a_function_of_the_columns_of_a_window_names_key_and_window():
    def fails(key, window, batch):
        return check(BAD if key == "b" else 0) or None

    process = ApplyBatchesFunction(fails, None)
    harness = OperatorHarness(WindowOperator(KeySelector.of_field("k"), TUMBLING, process=process))
    harness.process([{"k": "a", "n": 1}, {"k": "b", "n": 1}], [11_000, 12_000])
    with pytest.raises(UserFunctionError) as caught:
        harness.watermark(MAX)
    assert (caught.value.context["key"], caught.value.context["window"]) == ("'b'", TEN_SECONDS)


def test_a_key_function_names_the_record_that_it_failed_for():
    selector = KeySelector.of_function(lambda row: check(row[1]))
    harness = OperatorHarness(WindowOperator(selector, TUMBLING, process=process))
    with pytest.raises(UserFunctionError) as caught:
        harness.process(RECORDS, TIMES)
    assert caught.value.context["record"] == "('b', -1)"
