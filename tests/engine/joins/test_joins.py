"""Joins of two streams against slow oracles that keep every record and try every pair.

Families: oracle (random out-of-order input of both sides), crash (restore at any step and at another parallelism in the
same runs), bounded state (what no partner can reach any more is gone), and single rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness, count_late
from oracles import MIN, WindowOracle, sliding_spans

from headrace.engine.columns.records import MAX_WATERMARK, Batch, Watermark
from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.functions.cofunctions import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.joins.interval import IntervalJoinOperator
from headrace.engine.joins.temporal import TemporalJoinOperator
from headrace.engine.joins.window import CoGroupWindowFunction, JoinWindowFunction, WindowCoGroupOperator
from headrace.engine.windows.assigners import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from headrace.engine.windows.evictors import CountEvictor
from headrace.engine.windows.triggers import CountTrigger, PurgingTrigger
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor

BY_KEY = KeySelector.of_field(0)

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 40)), min_size=1, max_size=5)
STEPS = st.lists(st.one_of(st.integers(-10, 50), st.tuples(st.integers(0, 1), RECORDS)), max_size=16)
"""A watermark, or records (key, event time) of one input."""
CUTS = st.tuples(st.integers(0, 16), st.integers(1, 3), st.integers(1, 3))
"""Before which step to restore; parallelism before and after."""


def numbered(steps):
    """Gives each record a number, so that all are different: (key, time, number)."""
    number = 0
    for step in steps:
        if isinstance(step, int):
            yield step
        else:
            records = []
            for key, time in step[1]:
                number += 1
                records.append((key, time, number))
            yield step[0], records


def feed(harness, step):
    if isinstance(step, int):
        harness.watermark(step)
    else:
        side, records = step
        harness.process([record[0] for record in records], records, [record[1] for record in records], side)


def run_both(operator, oracle, steps, cuts, check=None):
    """The operator must give what the oracle gives, step by step, and what it calls late."""
    cut, before, after = cuts
    harness = ParallelHarness(operator, before)
    late = {"left-late": [], "right-late": []}
    for position, step in enumerate(numbered([*steps, MAX_WATERMARK.timestamp_ms])):
        if position == cut:
            harness = harness.restored(after)
        feed(harness, step)
        assert sorted(harness.take(), key=repr) == sorted(oracle.step(step), key=repr)
        for tag, records in late.items():
            records.extend(record for record, _ in harness.take_side(tag))
        if check is not None:
            check(harness, oracle)
    for tag, records in late.items():
        assert sorted(records) == sorted(oracle.late[tag])
    return harness


def entries(harness, name):
    """All (namespace, key, value) of a table, over all subtasks."""
    for subtask in harness.subtasks:
        table = subtask.keyed_state.table(StateDescriptor(name), windowed=True)
        for namespace in table.namespaces():
            for key, value in table.namespace(namespace).items():
                yield namespace, key, value


@dataclass
class Oracle:
    """Keeps every record that was not late."""

    watermark: int = MIN
    # The watermark without the end of event time, which leaves no trace in state.
    lasting: int = MIN
    seen: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    late: dict[str, list[Any]] = field(default_factory=lambda: {"left-late": [], "right-late": []})

    def step(self, step):
        if isinstance(step, int):
            if step <= self.watermark:
                return []
            before, self.watermark = self.watermark, step
            if step < MAX_WATERMARK.timestamp_ms:
                self.lasting = step
            return self.advanced(before)
        side, records = step
        return [result for record in records for result in self.record(side, record)]

    def advanced(self, before):
        return []


# ------------------------------------------------------------------------------------------------------ interval join


@dataclass
class IntervalOracle(Oracle):
    lower: int = 0
    upper: int = 0

    def record(self, side, record):
        key, time, _ = record
        if time < self.watermark:
            self.late[("left-late", "right-late")[side]].append(record)
            return
        self.seen[side].append(record)
        for other in self.seen[1 - side]:
            left, right = (record, other) if side == 0 else (other, record)
            if other[0] == key and left[1] + self.lower <= right[1] <= left[1] + self.upper:
                yield (left, right), max(time, other[1])


def pair_up(left, right, ctx):
    assert ctx.get_left_timestamp() == left[1]
    assert ctx.get_right_timestamp() == right[1]
    assert ctx.get_timestamp() == max(left[1], right[1])
    assert ctx.get_current_key() == left[0] == right[0]
    return [(left, right)]


def interval_join(lower, upper, function=pair_up):
    return IntervalJoinOperator(
        BY_KEY, BY_KEY, lower, upper, function, left_late_tag="left-late", right_late_tag="right-late"
    )


@settings(deadline=None, max_examples=examples(150))
@given(steps=STEPS, bounds=st.tuples(st.integers(-15, 15), st.integers(0, 20)), cuts=CUTS)
def test_an_interval_join_gives_every_pair_in_bounds_once_and_frees_its_state(steps, bounds, cuts):
    lower, upper = bounds[0], bounds[0] + bounds[1]
    bucket = max(1, (upper - lower) // 4)

    def check(harness, oracle):
        for name, keep in (("interval-join-left", upper), ("interval-join-right", -lower)):
            for (start, end), _, content in entries(harness, name):
                assert end - start == bucket
                assert oracle.lasting < end + keep, "no partner in time can reach any record of this bucket"
                for run in content:
                    assert all(start <= time < end for time, _ in run)

    run_both(interval_join(lower, upper), IntervalOracle(lower=lower, upper=upper), steps, cuts, check=check)


@settings(deadline=None, max_examples=examples(100))
@given(
    steps=STEPS, more=STEPS, bounds=st.tuples(st.integers(-15, 15), st.integers(0, 20)), parallelism=st.integers(1, 3)
)
def test_an_interval_join_that_was_drained_goes_on_as_if_it_had_not_been(steps, more, bounds, parallelism):
    """Oracle: the same records without an end of event time in the middle."""
    lower, upper = bounds[0], bounds[0] + bounds[1]
    oracle, found = IntervalOracle(lower=lower, upper=upper), []
    harness = ParallelHarness(interval_join(lower, upper), 2)
    expected = []
    for position, step in enumerate(numbered([*steps, 0, *more])):
        if position == len(steps):
            harness.watermark(MAX_WATERMARK.timestamp_ms)
            parts = [part for subtask in harness.subtasks for part in subtask.snapshot()]
            found += harness.take()
            harness = ParallelHarness(interval_join(lower, upper), parallelism, restored=parts)
            continue
        feed(harness, step)
        expected += oracle.step(step)
    assert sorted([*found, *harness.take()]) == sorted(expected)


def test_only_what_can_still_be_reached_is_kept():
    harness = ParallelHarness(interval_join(-8, 4), 1)  # buckets of 3 ms
    for time in range(0, 30):
        feed(harness, (0, [("a", time, time)]))
        feed(harness, (1, [("a", time, -time)]))
        feed(harness, time)

    def kept(name):
        return [time for _, _, content in entries(harness, name) for run in content for time, _ in run]

    assert sorted(kept("interval-join-left")) == list(range(24, 30)), "29 - 4 = 25 is in the bucket from 24 on"
    assert sorted(kept("interval-join-right")) == list(range(21, 30))
    never = ParallelHarness(interval_join(-8, -4), 1)
    never.watermark(20)
    feed(never, (0, [("a", 21, 1)]))
    assert not list(entries(never, "interval-join-left")), "rights up to 17 would be late"


def test_a_partner_at_the_watermark_is_still_found():
    harness = ParallelHarness(interval_join(5, 5), 1)
    feed(harness, (0, [("a", 3, 1)]))
    harness.watermark(8)
    feed(harness, (1, [("a", 8, 2)]))
    assert harness.take() == [((("a", 3, 1), ("a", 8, 2)), 8)]
    harness.watermark(9)
    assert not list(entries(harness, "interval-join-left"))


def test_other_bounds_after_a_restore_find_the_kept_records():
    first = ParallelHarness(interval_join(-20, 20), 2)
    feed(first, (0, [("a", 3, 1), ("b", 13, 2), ("a", 15, 3)]))
    parts = [part for subtask in first.subtasks for part in subtask.snapshot()]
    second = ParallelHarness(interval_join(-3, 3), 3, restored=parts)
    feed(second, (1, [("a", 6, 4), ("b", 10, 5), ("a", 19, 6)]))
    assert sorted(second.take()) == [((("a", 3, 1), ("a", 6, 4)), 6), ((("b", 13, 2), ("b", 10, 5)), 13)]
    second.watermark(100)
    assert not list(entries(second, "interval-join-left"))


def test_late_records_are_counted_where_nobody_wants_them():
    harness = OperatorHarness(IntervalJoinOperator(BY_KEY, BY_KEY, 0, 0, pair_up))
    harness.watermark(10)
    harness.process([("a", 9, 1), ("a", 10, 2), ("a", 8, 3)], [9, 10, 8])
    harness.process([("a", 9, 4), ("a", 10, 5)], [9, 10], 1)
    assert harness.take_rows() == [(("a", 10, 2), ("a", 10, 5))], "a record at the watermark is in time, as in Flink"
    assert harness.metrics.counters["num_late_records_dropped"] == 3


def test_interval_joins_are_of_event_time_only():
    for times in (None, [MIN]):
        harness = OperatorHarness(interval_join(0, 0))
        with pytest.raises(ProgramError, match="interval join got a record without event time"):
            harness.process([("a", 1, 1)], times)
    with pytest.raises(ProgramError, match="must not be above its upper bound; got 3 ms to 2 ms"):
        interval_join(3, 2)


def test_a_process_join_function_has_state_and_side_outputs():
    class Counting(ProcessJoinFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

        def process_element(self, left, right, ctx):
            self.count.update(self.count.value() + 1)
            ctx.output(OutputTag("all"), right)
            yield OutputTag("counts"), self.count.value()
            if right[2] < 0:
                raise ValueError(right)

    harness = OperatorHarness(interval_join(-5, 5, Counting()))
    harness.process([("a", 1, 1), ("b", 1, 2)], [1, 1])
    harness.process([("a", 3, 3), ("b", 2, 4), ("a", 0, 5)], [3, 2, 0], 1)
    assert harness.take_side("counts") == [(1, 3), (1, 2), (2, 1)]
    assert harness.take_side("all") == [(("a", 3, 3), 3), (("b", 2, 4), 2), (("a", 0, 5), 1)]
    assert harness.take() == []
    with pytest.raises(UserFunctionError, match="ValueError") as caught:
        harness.process([("a", 3, -1)], [3], 1)
    assert caught.value.context["function"].endswith("Counting")


def test_many_pairs_are_emitted_in_pieces():
    harness = OperatorHarness(interval_join(0, 0, lambda left, right, ctx: [1] * 1_000))
    harness.process([("a", 0, n) for n in range(100)], [0] * 100)
    harness.process([("a", 0, 0)], [0], 1)
    assert [element.num_rows for element in harness.output.elements] == [66_000, 34_000]
    assert {time for _, time in harness.take()} == {0}


# ------------------------------------------------------------------------------------------------------ temporal join


@dataclass
class TemporalOracle(Oracle):
    is_outer: bool = False

    def record(self, side, record):
        if side == 0 and record[1] <= self.watermark:
            self.late["left-late"].append(record)
        else:
            self.seen[side].append(record)
        return ()

    def advanced(self, before):
        due = [left for left in self.seen[0] if before < left[1] <= self.watermark]
        for left in sorted(due, key=lambda record: record[1]):
            versions = [right for right in self.seen[1] if right[0] == left[0] and right[1] <= left[1]]
            if versions or self.is_outer:
                # Of equal times the one that came last.
                yield (left, max(versions, key=lambda right: right[1:], default=None)), left[1]


@settings(deadline=None, max_examples=examples(150))
@given(steps=STEPS, is_outer=st.booleans(), cuts=CUTS)
def test_a_temporal_join_finds_the_version_of_the_time_and_frees_old_ones(steps, is_outer, cuts):
    def check(harness, oracle):
        behind = [right for right in oracle.seen[1] if right[1] <= oracle.lasting]
        valid = [
            subtask.keyed_state.table(StateDescriptor("temporal-join-valid-versions")).namespace(None)
            for subtask in harness.subtasks
        ]
        assert sum(map(len, valid)) == len({right[0] for right in behind}), "one version per key and no more"
        assert {time for (time, _), _, _ in entries(harness, "temporal-join-versions")} == {
            right[1] for right in oracle.seen[1] if right[1] > oracle.lasting
        }
        waiting = [left for _, _, runs in entries(harness, "temporal-join-left") for run in runs for left in run]
        assert sorted(waiting) == sorted(left for left in oracle.seen[0] if left[1] > oracle.watermark)

    operator = TemporalJoinOperator(
        BY_KEY, BY_KEY, lambda left, right: (left, right), is_outer=is_outer, late_tag="left-late"
    )
    run_both(operator, TemporalOracle(is_outer=is_outer), steps, cuts, check=check)


@settings(deadline=None, max_examples=examples(100))
@given(steps=STEPS, more=STEPS, is_outer=st.booleans(), parallelism=st.integers(1, 3))
def test_a_temporal_join_that_was_drained_knows_the_versions_of_any_time(steps, more, is_outer, parallelism):
    """Oracle: the same records without an end of event time in the middle, but left records that waited then are
    joined with what had come."""
    operator = TemporalJoinOperator(
        BY_KEY, BY_KEY, lambda left, right: (left, right), is_outer=is_outer, late_tag="left-late"
    )
    oracle, harness = TemporalOracle(is_outer=is_outer), ParallelHarness(operator, 2)
    found, expected = [], []
    for position, step in enumerate(numbered([*steps, 0, *more, MAX_WATERMARK.timestamp_ms])):
        if position == len(steps):
            harness.watermark(MAX_WATERMARK.timestamp_ms)
            parts = [part for subtask in harness.subtasks for part in subtask.snapshot()]
            found += harness.take()
            harness = ParallelHarness(operator, parallelism, restored=parts)
            lasting, oracle.watermark = oracle.watermark, MAX_WATERMARK.timestamp_ms
            expected += oracle.advanced(lasting)
            oracle.watermark = lasting
            oracle.seen[0][:] = [left for left in oracle.seen[0] if left[1] <= lasting]
            continue
        feed(harness, step)
        expected += oracle.step(step)
    assert sorted([*found, *harness.take()], key=repr) == sorted(expected, key=repr)


def test_left_records_come_out_in_the_order_of_their_times_before_the_watermark():
    harness = OperatorHarness(TemporalJoinOperator(BY_KEY, BY_KEY, lambda left, right: (left[2], right[2])))
    harness.process([("a", 30, 1), ("a", 10, 2), ("b", 20, 3), ("a", 10, 4)], [30, 10, 20, 10])
    harness.process([("a", 25, "new"), ("a", 5, "old"), ("b", 20, "b")], [25, 5, 20], 1)
    harness.watermark(24)
    assert harness.take() == [((2, "old"), 10), ((4, "old"), 10), ((3, "b"), 20)]
    harness.process([("a", 24, 5)], [24])
    assert harness.metrics.counters["num_late_records_dropped"] == 1
    harness.process([("a", 23, "late but newer than 5"), ("b", 19, "late and old")], [23, 19], 1)
    harness.process([("a", 25, 6), ("b", 26, 7), ("a", 26, 8)], [24 + 1, 26, 26])
    harness.watermark(40)
    assert harness.take() == [((6, "new"), 25), ((7, "b"), 26), ((8, "new"), 26), ((1, "new"), 30)]
    assert harness.take_controls() == [Watermark(24), Watermark(40)]


def test_a_late_version_is_valid_for_what_is_still_to_come():
    harness = OperatorHarness(TemporalJoinOperator(BY_KEY, BY_KEY, lambda left, right: right[2]))
    harness.watermark(10)
    harness.process([("a", 7, "seven"), ("a", 7, "seven again"), ("a", 5, "five")], [7, 7, 5], 1)
    harness.process([("a", 11, 1)], [11])
    harness.watermark(11)
    assert harness.take_rows() == ["seven again"]


def test_flat_join_functions_give_any_number_and_failures_are_named():
    class Twice(FlatJoinFunction):
        def join(self, first, second):
            if second is None:
                return None
            return [first[2], second[2]]

    harness = OperatorHarness(TemporalJoinOperator(BY_KEY, BY_KEY, Twice(), is_outer=True))
    harness.process([("a", 5, 1), ("b", 5, 2)], [5, 5])
    harness.process([("a", 5, 3)], [5], 1)
    harness.watermark(5)
    assert harness.take() == [(1, 5), (3, 5)]
    harness = OperatorHarness(TemporalJoinOperator(BY_KEY, BY_KEY, lambda left, right: right[2], is_outer=True))
    harness.process([("a", 5, 1)], [5])
    with pytest.raises(UserFunctionError, match="TypeError"):
        harness.watermark(5)
    with pytest.raises(ProgramError, match="temporal join got a record without event time"):
        harness.process([("a", 5, 1)], None, 1)


def test_a_temporal_join_emits_in_pieces():
    class Many(FlatJoinFunction):
        def join(self, first, second):
            return [first[2]] * 40_000

    harness = OperatorHarness(TemporalJoinOperator(BY_KEY, BY_KEY, Many(), is_outer=True))
    harness.process([("a", time, time) for time in range(3)], [0, 1, 2])
    harness.watermark(5)
    assert [element.num_rows for element in harness.output.elements if isinstance(element, Batch)] == [80_000, 40_000]
    assert set(harness.take()) == {(0, 0), (1, 1), (2, 2)}


# --------------------------------------------------------------------------------------------------- joins in windows


class Grouping(CoGroupFunction):
    def co_group(self, first, second):
        yield tuple(first), tuple(second)


WINDOWS = (
    (TumblingEventTimeWindows.of(10), {"spans_of": lambda time: sliding_spans(time, 10, 10)}),
    (SlidingEventTimeWindows.of(12, 5), {"spans_of": lambda time: sliding_spans(time, 12, 5)}),
    (EventTimeSessionWindows.with_gap(4), {"gap": 4}),
)


@settings(deadline=None, max_examples=examples(100))
@given(
    steps=STEPS, windows=st.sampled_from(WINDOWS), lateness=st.sampled_from((0, 7)), cuts=CUTS, is_join=st.booleans()
)
def test_window_joins_and_co_groups_are_those_of_the_window_oracle(steps, windows, lateness, cuts, is_join):
    """The oracle is the window oracle over the union of both streams, with its firings told apart."""
    assigner, arguments = windows
    function = JoinWindowFunction(lambda left, right: (left, right)) if is_join else CoGroupWindowFunction(Grouping())
    operator = WindowCoGroupOperator(BY_KEY, BY_KEY, assigner, function, allowed_lateness_ms=lateness)
    oracle = WindowOracle(lateness=lateness, **arguments)
    cut, before, after = cuts
    harness, num_late = ParallelHarness(operator, before), 0

    def dropped(harness):
        return sum(count_late(subtask.context) for subtask in harness.subtasks)

    for position, step in enumerate(numbered([*steps, MAX_WATERMARK.timestamp_ms])):
        if position == cut:
            num_late += dropped(harness)
            harness = harness.restored(after)
        if isinstance(step, int):
            fired = oracle.advance(step)
        else:
            fired = [firing for record in step[1] for firing in oracle.record(record[0], record[1], (step[0], record))]
        expected = []
        for firing in fired:
            sides = ([], [])
            for side, record in firing.values:
                sides[side].append(record)
            given = (
                [(left, right) for left in sides[0] for right in sides[1]] if is_join else [tuple(map(tuple, sides))]
            )
            expected.extend((each, firing.span[1] - 1) for each in given)
        feed(harness, step)
        assert sorted(harness.take(), key=repr) == sorted(expected, key=repr)
    assert num_late + dropped(harness) == len(oracle.late)
    assert not any(part.kind == "keyed" for subtask in harness.subtasks for part in subtask.keyed_state.snapshot())


def test_each_input_has_its_own_key():
    operator = WindowCoGroupOperator(
        BY_KEY, KeySelector.of_field("k"), TumblingEventTimeWindows.of(10), JoinWindowFunction(lambda a, b: (a[1], b))
    )
    harness = OperatorHarness(operator)
    harness.process([("x", 1), ("y", 2)], [1, 1])
    harness.process([{"k": "y"}], [2], 1)
    harness.watermark(9)
    assert harness.take_rows() == [(2, {"k": "y"})]


def test_triggers_and_evictors_see_both_streams():
    trigger = PurgingTrigger.of(CountTrigger.of(2))
    operator = WindowCoGroupOperator(
        BY_KEY, BY_KEY, TumblingEventTimeWindows.of(10), CoGroupWindowFunction(Grouping()), trigger=trigger
    )
    harness = OperatorHarness(operator)
    harness.process([("a", 1, 1), ("b", 1, 2)], [1, 1])
    harness.process([("a", 2, 3)], [2], 1)
    assert harness.take_rows() == [((("a", 1, 1),), (("a", 2, 3),))]
    operator = WindowCoGroupOperator(
        BY_KEY,
        BY_KEY,
        TumblingEventTimeWindows.of(10),
        CoGroupWindowFunction(lambda first, second: [(first, second)]),
        evictor=CountEvictor.of(2),
    )
    harness = OperatorHarness(operator)
    harness.process([("a", 1, 1), ("a", 1, 2)], [1, 1])
    harness.process([("a", 2, 3)], [2], 1)
    harness.watermark(9)
    assert harness.take() == [(([("a", 1, 2)], [("a", 2, 3)]), 9)]


def test_join_functions_have_a_life():
    class Named(JoinFunction):
        def open(self, runtime_context):
            self.task = runtime_context.get_task_name()
            self.metrics = runtime_context.get_metrics_group()

        def join(self, first, second):
            return self.task, first[2], second[2]

        def close(self):
            self.metrics.count("closed", 1)

    operator = WindowCoGroupOperator(BY_KEY, BY_KEY, TumblingEventTimeWindows.of(10), JoinWindowFunction(Named()))
    harness = OperatorHarness(operator)
    harness.process([("a", 1, 1)], [1])
    harness.process([("a", 2, 2), ("b", 2, 3)], [2, 2], 1)
    harness.watermark(9)
    assert harness.take() == [(("op", 1, 2), 9)]
    harness.operator.close()
    harness.operator.close()
    assert harness.operator.context.metrics.counters["closed"] == 1

    class Flat(FlatJoinFunction):
        def join(self, first, second):
            return "text"

    operator = WindowCoGroupOperator(BY_KEY, BY_KEY, TumblingEventTimeWindows.of(10), JoinWindowFunction(Flat()))
    harness = OperatorHarness(operator)
    harness.process([("a", 1, 1)], [1])
    harness.process([("a", 2, 2)], [2], 1)
    with pytest.raises(Exception, match="must yield records"):
        harness.watermark(9)
