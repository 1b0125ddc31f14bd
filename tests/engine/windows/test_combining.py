"""Records that are combined before the shuffle, against the oracle of windows, which sees them one by one.

Families: oracle (some subtasks before the shuffle, each with its own event time, idle at times; a snapshot at a random
cut, restored at another parallelism), planted bugs.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from campaigns import blocks, seeds
from operator_harness import OperatorHarness, ParallelHarness, count_late
from oracles import WindowOracle, sliding_spans

from headrace.engine.columns.records import MAX_WATERMARK, StreamStatus
from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.functions.contract import AggregateFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows import combining, contents
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headrace.engine.windows.combining import LocalCombiner
from headrace.engine.windows.window_operator import WindowOperator

BY_KEY = KeySelector.of_field(0)
MAX, NEVER = MAX_WATERMARK.timestamp_ms, -(2**63)


class Sorted(AggregateFunction):
    """All values in order: neither the order nor the groups in which they come can be seen."""

    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return tuple(sorted((*accumulator, *value[1])))

    def get_result(self, accumulator):
        return ("any key", accumulator)

    def merge(self, acc_a, acc_b):
        return tuple(sorted(acc_a + acc_b))


class SortedInPlace(Sorted):
    """Accumulators are lists, which are changed into the new ones: of two that are merged one of them."""

    def __init__(self, *, into_first):
        self.into_first = into_first

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.extend(value[1])
        return accumulator

    def get_result(self, accumulator):
        return super().get_result(tuple(sorted(accumulator)))

    def merge(self, acc_a, acc_b):
        into, other = (acc_a, acc_b) if self.into_first else (acc_b, acc_a)
        into.extend(other)
        return into


def reduced(left, right):
    """The key is not in it: what is found in a partial result is not its key."""
    return ("any key", tuple(sorted(left[1] + right[1])))


FUNCTIONS = (
    {"reduce": reduced},
    {"aggregate": Sorted()},
    {"aggregate": SortedInPlace(into_first=True)},
    {"aggregate": SortedInPlace(into_first=False)},
)


def row_of(key, window, result):
    return key, (window.start, window.end), result[1]


class Pipeline:
    """Subtasks before the shuffle, with an event time of each, and the windows behind it."""

    def __init__(self, assigner, function, lateness, parallelism):
        local = LocalCombiner(BY_KEY, assigner, allowed_lateness_ms=lateness, **function)
        self.make = lambda **options: OperatorHarness(local, **options)
        self.windows = ParallelHarness(
            WindowOperator(
                BY_KEY, assigner, result_row=row_of, allowed_lateness_ms=lateness, is_combined=True, **function
            ),
            parallelism,
        )
        self.start([self.make() for _ in range(3)])
        self.num_late = 0

    def start(self, local):
        self.local = local
        # How far event time is in each; None while it is idle.
        self.times = [NEVER] * len(local)

    def process(self, number, records):
        if self.times[number] is None:
            self.times[number] = NEVER
        local = self.local[number]
        local.process([(key, (value,)) for key, _, value in records], [time for _, time, _ in records])
        pairs = local.take()
        rows = [pair for pair, _ in pairs]
        self.windows.process([row[0] for row in rows], rows, [time for _, time in pairs])

    def watermark(self, number, time_ms):
        self.times[number] = time_ms
        self.local[number].watermark(time_ms)

    def idle(self, number):
        self.times[number] = None
        self.local[number].operator.process_status(StreamStatus(idle=True))

    def time_behind(self):
        """The least event time of those that are not idle; None if all are."""
        return min((time for time in self.times if time is not None), default=None)

    def restored(self, parallelism):
        self.num_late += self.late_now()
        parts = [part for harness in self.windows.subtasks for part in harness.snapshot()]
        self.windows = self.windows.restored(parallelism)
        self.start([self.make(restored=parts) for _ in range(2)])

    def late_now(self):
        return sum(count_late(harness.context, of_parts=True) for harness in self.windows.subtasks)


def last_of(firings):
    """Of each key and window what it gave last: the most values."""
    last = {}
    for key, span, values, _ in firings:
        last[key, span] = max(last.get((key, span), ()), values, key=len)
    return Counter(last.items())


def mismatch(seed):
    """What differs from the oracle for a seed; None for nothing."""
    rng = random.Random(seed)
    size = rng.randint(1, 25)
    slide, offset = rng.choice((size, size, rng.randint(1, 30))), 0
    offset = rng.randrange(slide)
    lateness = rng.choice((0, 0, 6, 40))
    assigner = (
        TumblingEventTimeWindows.of(size, offset) if slide == size else SlidingEventTimeWindows.of(size, slide, offset)
    )
    pipeline = Pipeline(assigner, rng.choice(FUNCTIONS), lateness, rng.randint(1, 3))
    oracle = WindowOracle(lambda time: sliding_spans(time, size, slide, offset), lateness=lateness)
    num_steps, value = rng.randint(3, 25), 0
    cut, begins_behind = rng.randrange(2 * num_steps), rng.random() < 0.5
    expected, found = Counter(), Counter()
    for step in range(num_steps):
        if step == cut:
            pipeline.restored(rng.randint(1, 3))
        number, what = rng.randrange(len(pipeline.local)), rng.random()
        firings = []
        if what < 0.1:
            pipeline.idle(number)
        elif what < 0.4:
            ahead = pipeline.times[number]
            # Event time behind the shuffle goes on over a restore; that of a subtask here may begin anew.
            least = NEVER if step >= cut and begins_behind else oracle.watermark
            pipeline.watermark(number, max(NEVER if ahead is None else ahead, least, rng.randint(-30, 90)))
        else:
            records = []
            for _ in range(rng.choice((1, 3, 12))):
                value += 1
                records.append((rng.choice("ab"), rng.randint(-40, 100), value))
            pipeline.process(number, records)
            for key, time, each in records:
                firings += oracle.record(key, time, each)
        behind = pipeline.time_behind()
        if behind is not None and behind > oracle.watermark:
            pipeline.windows.watermark(behind)
            firings += oracle.advance(behind)
        expected.update((f.key, f.span, tuple(sorted(f.values)), f.span[1] - 1) for f in firings)
        found.update((*row, time) for row, time in pipeline.windows.take())
    pipeline.windows.watermark(MAX)
    expected.update((f.key, f.span, tuple(sorted(f.values)), f.span[1] - 1) for f in oracle.advance(MAX))
    found.update((*row, time) for row, time in pipeline.windows.take())
    late = pipeline.num_late + pipeline.late_now()
    if step >= cut and begins_behind:  # then a window that fires again may do so once for some records
        found, expected = last_of(found), last_of(expected)
    if found == expected and late == len(oracle.late):
        return None
    return f"seed {seed}: more {found - expected}, less {expected - found}, late {late} and {len(oracle.late)}"


@pytest.mark.parametrize("block", blocks(1, 12))
def test_windows_are_those_of_records_that_come_one_by_one(block):
    for seed in seeds(block, 300):
        assert (problem := mismatch(seed)) is None, problem


def knows_no_lateness(plant):
    plant.setattr(combining.BeforeShuffle, "process_watermark", lambda self, _: None)


def forgets_that_it_was_idle(plant):
    plant.setattr(combining.BeforeShuffle, "process_status", lambda self, _: None)


def thinks_that_a_restored_job_begins(plant):
    plant.setattr(combining.BeforeShuffle, "open", lambda self, context: setattr(self, "context", context))


def counts_pairs_as_records(plant):
    plant.setattr(contents.CombinedContents, "num_records", lambda pairs: len(list(pairs)))


def shares_accumulators_among_windows(plant):
    plant.setattr(contents, "copied", lambda value: value)


BUGS = (
    knows_no_lateness,
    forgets_that_it_was_idle,
    thinks_that_a_restored_job_begins,
    counts_pairs_as_records,
    shares_accumulators_among_windows,
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug, monkeypatch):
    bug(monkeypatch)
    assert any(mismatch(seed) is not None for seed in range(600))


def pairs_of(harness, records):
    harness.process([(key, (value,)) for key, _, value in records], [time for _, time, _ in records])
    return harness.take()


def test_a_batch_gives_one_pair_for_a_key_and_slice_with_its_last_millisecond():
    harness = OperatorHarness(LocalCombiner(BY_KEY, SlidingEventTimeWindows.of(20, 15), reduce=reduced))
    found = pairs_of(harness, [("a", 1, 1), ("b", 2, 2), ("a", 4, 3), ("a", 5, 4), ("a", 3, 5)])
    assert found == [
        (("a", ("any key", (1, 3, 5))), 4),
        (("b", ("b", (2,))), 4),
        (("a", ("a", (4,))), 9),
    ]


def test_records_of_a_batch_that_are_of_many_slices_go_on_together():
    harness = OperatorHarness(LocalCombiner(BY_KEY, TumblingEventTimeWindows.of(10), reduce=reduced))
    harness.process([("a", (time,)) for time in range(100)], list(range(100)))
    (batch,) = harness.output.elements
    assert [pair[1][1] for pair in batch.rows] == [tuple(range(start, start + 10)) for start in range(0, 100, 10)]


def test_what_is_in_no_window_and_not_late_goes_nowhere():
    """As without combining no function is called for it. Whether it is late is not known in a job that was restored."""
    function = Sorted()
    windows = SlidingEventTimeWindows.of(2, 10)
    harness = OperatorHarness(LocalCombiner(BY_KEY, windows, aggregate=function))
    in_gap = [("a", 5, 1), ("a", 5, 2), ("a", 8, 3)]
    assert pairs_of(harness, in_gap) == []
    harness.watermark(5)
    assert pairs_of(harness, in_gap) == [(("a", (1,)), 5), (("a", (2,)), 5)]
    harness.context.is_restored = True
    assert len(pairs_of(harness, in_gap)) == 3


def test_batches_are_passed_on_where_hardly_two_records_have_one_key_and_tried_again():
    harness = OperatorHarness(LocalCombiner(BY_KEY, TumblingEventTimeWindows.of(10), reduce=reduced))
    thrice, once = [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)], [(key, 1, 1) for key in "abcdefghij"]
    assert [len(pairs_of(harness, once)) for _ in range(6)] == [10] * 6
    assert len(pairs_of(harness, thrice)) == 1, "nothing is judged by 60 records"
    assert len(pairs_of(harness, once)) == 10
    assert [len(pairs_of(harness, thrice)) for _ in range(33)] == [3] * 31 + [1, 1]


def test_late_records_say_nothing_of_whether_it_pays():
    harness = OperatorHarness(LocalCombiner(BY_KEY, TumblingEventTimeWindows.of(10), reduce=reduced))
    harness.watermark(9)
    assert len(pairs_of(harness, [("a", 1, 1)] * 100)) == 100
    assert len(pairs_of(harness, [("a", 11, 1)] * 100)) == 1


@pytest.mark.parametrize("lateness", [0, 5])
def test_behind_idleness_records_are_combined_where_no_window_fires_again(lateness):
    windows = TumblingEventTimeWindows.of(10)
    harness = OperatorHarness(LocalCombiner(BY_KEY, windows, reduce=reduced, allowed_lateness_ms=lateness))
    harness.operator.process_status(StreamStatus(idle=True))
    harness.operator.process_status(StreamStatus(idle=False))
    found = [pair for pair, _ in pairs_of(harness, [("a", 1, 1), ("a", 2, 2)])]
    assert found == ([("a", ("a", (1,))), ("a", ("a", (2,)))] if lateness else [("a", ("any key", (1, 2)), 2)])


def test_what_cannot_be_combined_is_refused():
    for assigner in (EventTimeSessionWindows.with_gap(5), TumblingProcessingTimeWindows.of(5)):
        with pytest.raises(ProgramError, match="tumbling and sliding windows of event time only"):
            LocalCombiner(BY_KEY, assigner, reduce=reduced)

    class Counting(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + 1

        def get_result(self, accumulator):
            return accumulator

    with pytest.raises(ProgramError, match="Counting lacks merge"):
        LocalCombiner(BY_KEY, TumblingEventTimeWindows.of(5), aggregate=Counting())


def test_a_function_that_fails_is_named_with_the_record_at_hand():
    def fails(left, right):
        return left / 0

    harness = OperatorHarness(LocalCombiner(BY_KEY, TumblingEventTimeWindows.of(10), reduce=fails))
    with pytest.raises(UserFunctionError, match="fails") as failed:
        pairs_of(harness, [("a", 1, 1), ("a", 2, 2)])
    assert "('a', (2,))" in "".join(getattr(failed.value.__cause__, "__notes__", ())) + str(failed.value)
