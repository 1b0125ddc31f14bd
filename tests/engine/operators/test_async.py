"""Requests to outside systems: order, capacity, barriers, time, failures, end of input.

Oracle: under any order of completions, any snapshots and restores, every record gives its results exactly once, in
order where that is promised, and no result is on the wrong side of a watermark. The operator is driven by hand; real
tasks, with kills, are in the simulated jobs at the end.
"""

from __future__ import annotations

from collections import Counter

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness

from headrace.engine.columns.records import MAX_WATERMARK, Batch, LatencyMarker, StreamStatus, Watermark
from headrace.engine.errors import ConfigurationError, ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.functions.async_functions import (
    AsyncFunction,
    AsyncRetryStrategies,
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
    empty_result_predicate,
)
from headrace.engine.operators.async_operator import AsyncWaitOperator


async def twice(value):
    return [value, value + 0.5]


def operator(function=twice, **options):
    return AsyncWaitOperator(function, **{"ordered": True, "capacity": 100, "timeout_ms": 0, **options})


def harness(function=twice, **options):
    return OperatorHarness(operator(function, **options))


def emitted(run):
    """Records and watermarks in the order they went out."""
    elements, run.output.elements = run.output.elements, []
    out = []
    for element in elements:
        if isinstance(element, Batch):
            out.extend(element.rows)
        else:
            out.append(element)
    return out


# --------------------------------------------------------------------------------------------------------------- order
def test_ordered_results_wait_for_those_before_them():
    run = harness()
    run.process([1, 2, 3], [10, 20, 30])
    assert list(run.works) == [1, 2, 3]
    run.do_work(3)
    run.do_work(2)
    run.advance_clock(0)
    assert run.take() == []
    run.do_work(1)
    run.advance_clock(0)
    assert run.take() == [(1, 10), (1.5, 10), (2, 20), (2.5, 20), (3, 30), (3.5, 30)]


def test_unordered_results_overtake_each_other_but_no_watermark():
    run = harness(ordered=False)
    run.process([1, 2], [10, 20])
    run.watermark(20)
    run.process([3], [30])
    run.do_work(3)
    run.do_work(2)
    run.advance_clock(0)
    assert emitted(run) == [2, 2.5]
    run.do_work(1)
    run.advance_clock(0)
    assert emitted(run) == [1, 1.5, Watermark(20), 3, 3.5]


@pytest.mark.parametrize("ordered", [True, False])
def test_controls_pass_at_once_when_nothing_is_in_flight_and_else_in_their_turn(ordered):
    run = harness(ordered=ordered)
    run.watermark(5)
    assert emitted(run) == [Watermark(5)]
    run.process([1])
    run.watermark(6)
    run.operator.process_status(StreamStatus(True))
    marker = LatencyMarker(0, "s", 0)
    run.operator.process_marker(marker)
    assert emitted(run) == []
    run.do_all_work()
    assert emitted(run) == [1, 1.5, Watermark(6), StreamStatus(True), marker]


def test_completions_of_one_turn_are_emitted_as_one_batch():
    run = harness()
    run.process([1, 2, 3])
    for _ in range(3):
        run.do_work()
    run.advance_clock(0)
    assert [element.num_rows for element in run.output.elements] == [6]


def test_a_completion_is_noted_and_not_emitted_before_the_operator_is_asked():
    run = harness()
    run.process([1])
    run.do_work()
    assert run.output.elements == []
    assert run.operator.next_processing_time() <= 0


# ------------------------------------------------------------------------------------------------------------- capacity
def test_what_is_beyond_the_capacity_waits_and_blocks_the_operator():
    run = harness(capacity=2)
    run.process([1, 2])
    assert not run.operator.is_blocked
    run.process([3, 4])
    run.watermark(7)
    assert run.operator.is_blocked
    assert len(run.works) == 2
    run.do_work(1)
    run.advance_clock(0)
    assert len(run.works) == 2
    assert run.operator.is_blocked
    run.do_work(2)
    run.advance_clock(0)
    assert not run.operator.is_blocked
    assert emitted(run) == [1, 1.5, 2, 2.5]
    run.do_all_work()
    assert emitted(run) == [3, 3.5, 4, 4.5, Watermark(7)]


def test_an_answered_record_that_waits_for_its_turn_counts_for_the_capacity():
    run = harness(capacity=2)
    run.process([1, 2, 3])
    run.do_work(2)
    run.advance_clock(0)
    assert list(run.works) == [1]


def test_records_under_way_are_held():
    run = harness()
    assert not run.operator.holds_records()
    run.process([1])
    assert run.operator.holds_records()
    run.do_work()
    assert run.operator.holds_records()
    run.advance_clock(0)
    assert not run.operator.holds_records()


# ------------------------------------------------------------------------------------------------------------ functions
class Full(AsyncFunction):
    """Tells what was called."""

    def __init__(self, log):
        self.log = log

    def open(self, runtime_context):
        self.log.append(("open", runtime_context.get_index_of_this_subtask()))

    async def async_invoke(self, value):
        return [(value, self.log)]

    async def timeout(self, value):
        return [("late", value)]

    def close(self):
        self.log.append("close")


def test_a_function_is_opened_before_the_first_request_and_closed_behind_the_last():
    run = harness(Full([]), capacity=1)
    run.process([1, 2])
    assert len(run.works) == 1  # its opening
    assert run.operator.is_blocked
    run.do_work()
    run.do_work()
    run.advance_clock(0)
    [(first, log)] = run.take_rows()
    assert (first, log) == (1, [("open", 0)])
    run.operator.end_input(0)
    assert run.operator.has_pending
    run.do_work()
    run.advance_clock(0)
    assert log == [("open", 0)]
    run.do_work()
    assert log == [("open", 0), "close"]
    assert not run.operator.has_pending
    run.operator.close()
    assert not run.works


def test_closing_before_the_end_gives_up_what_is_under_way():
    run = harness(Full([]))
    run.operator.close()
    run = harness(Full([]))
    run.do_work()
    run.process([1, 2])
    assert len(run.works) == 2
    run.operator.close()
    assert [kind for _, _, kind in run.works.values()] == ["coroutine"]  # closing the function
    run.operator.close()
    assert len(run.works) == 1


def test_blocking_callables_run_in_threads_and_map_one_to_one():
    run = harness(lambda value: [value], is_single=True)
    run.process([1])
    assert [kind for _, _, kind in run.works.values()] == ["blocking"]
    run.do_all_work()
    assert run.take_rows() == [[1]]


def test_none_is_no_record():
    async def nothing(value):
        return None

    run = harness(nothing)
    run.process([1])
    run.watermark(3)
    run.do_all_work()
    assert emitted(run) == [Watermark(3)]


def test_an_async_lambda_in_disguise_is_refused():
    run = harness(lambda value: twice(value))
    run.process([1])
    with pytest.raises(ProgramError, match="write it as async def"):
        run.do_work()


def test_a_result_that_is_no_list_names_its_function():
    async def text(value):
        return "letters"

    run = harness(text)
    run.process([1])
    with pytest.raises(TypeMismatchError, match="text") as caught:
        run.do_work()
    assert caught.value.context["operator"] == "op"


@pytest.mark.parametrize("name", ["open", "close"])
def test_a_failing_life_cycle_is_told(name):
    class Bad(AsyncFunction):
        async def async_invoke(self, value):
            return [value]

    def fail(self, *_):
        message = "no such host"
        raise OSError(message)

    setattr(Bad, name, fail)
    run = harness(Bad())
    with pytest.raises(UserFunctionError, match=rf"no such host.*\n?.*{name}") as caught:
        run.do_work()
        run.operator.end_input(0)
        run.do_work()
    assert caught.value.context["subtask"] == "1/1"


# ------------------------------------------------------------------------------------------------- failures and time
class Flaky:
    """Fails a number of times, then answers."""

    def __init__(self, failures):
        self.failures = failures
        self.calls = 0

    async def __call__(self, value):
        self.calls += 1
        if self.calls <= self.failures:
            message = f"call {self.calls}"
            raise ConnectionError(message)
        return [self.calls]


def test_a_failure_names_operator_subtask_function_and_record():
    async def bad(value):
        return [1 / value]

    run = harness(bad)
    run.process([0])
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        run.do_work()
    context = caught.value.context
    assert (context["operator"], context["subtask"], context["record"]) == ("op", "1/1", "0")
    assert context["function"].endswith("bad")
    assert "1 / value" in context["traceback"]


def test_a_fixed_delay_goes_by_the_clock():
    run = harness(Flaky(2), retry=AsyncRetryStrategies.fixed_delay(2, "100 ms"))
    run.process([1])
    run.do_work()
    assert run.operator.next_processing_time() == 100
    run.advance_clock(99)
    assert not run.works
    run.advance_clock(100)
    run.do_work()
    run.advance_clock(200)
    run.do_all_work()
    assert run.take_rows() == [3]
    assert run.metrics.counters["num_retries"] == 2


def test_after_the_last_attempt_the_failure_counts():
    run = harness(Flaky(9), retry=AsyncRetryStrategies.fixed_delay(2, 10))
    run.process([1])
    for now_ms in (10, 20):
        run.do_work()
        run.advance_clock(now_ms)
    with pytest.raises(UserFunctionError, match="call 3"):
        run.do_work()


def test_only_what_the_predicate_names_is_repeated():
    retry = AsyncRetryStrategies.fixed_delay(2, 10, exception_predicate=lambda error: isinstance(error, KeyError))
    run = harness(Flaky(1), retry=retry)
    run.process([1])
    with pytest.raises(UserFunctionError, match="call 1"):
        run.do_work()


def test_too_little_is_asked_for_again_and_in_the_end_taken_as_it_is():
    calls = []

    async def empty(value):
        calls.append(value)
        return []

    run = OperatorHarness(operator(twice, retry=FixedDelayRetryStrategy(1, 10, empty_result_predicate, None)))
    run.operator._call = empty
    run.process([1])
    run.watermark(4)
    run.do_work()
    run.advance_clock(10)
    run.do_all_work()
    assert calls == [1, 1]
    assert emitted(run) == [Watermark(4)]


def test_a_failing_predicate_fails_the_operator():
    retry = AsyncRetryStrategies.fixed_delay(2, 10, exception_predicate=lambda error: error.no_such_thing)
    run = harness(Flaky(1), retry=retry)
    run.process([1])
    with pytest.raises(UserFunctionError, match="no_such_thing"):
        run.do_work()


def test_exponential_delays_depend_on_nothing_but_the_number_of_attempts():
    strategy = ExponentialBackoffDelayRetryStrategy(4, "10 ms", "50 ms", 2)
    assert [strategy.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 3, 9_999)] == [10, 20, 40, 50, 40, 50]
    assert [strategy.can_retry(n) for n in (1, 4, 5)] == [True, True, False]
    assert not NoRetryStrategy().can_retry(1)


def test_numbers_of_strategies_must_be_positive():
    for make in (
        lambda: FixedDelayRetryStrategy(0, 1),
        lambda: FixedDelayRetryStrategy(1, 0),
        lambda: ExponentialBackoffDelayRetryStrategy(1, 1, 1, -1),
    ):
        with pytest.raises(ConfigurationError, match="greater than 0"):
            make()


def test_without_a_result_in_time_the_job_fails_and_the_request_is_given_up():
    run = harness(timeout_ms=50)
    run.process([7])
    assert run.operator.next_processing_time() == 50
    run.advance_clock(49)
    with pytest.raises(UserFunctionError, match="no result within 50 ms") as caught:
        run.advance_clock(50)
    assert not run.works
    assert caught.value.context["record"] == "7"
    assert caught.value.context["function"].endswith("twice")


def test_the_function_may_say_what_comes_instead():
    run = harness(Full([]), timeout_ms=50)
    run.do_work()
    run.process([7, 8])
    run.do_work(max(run.works))
    run.advance_clock(60)
    run.do_all_work()
    assert [row[0] for row in run.take_rows()] == ["late", 8]
    assert run.metrics.counters["num_timeouts"] == 1
    assert run.operator.next_processing_time() is None


def test_the_time_covers_all_attempts():
    run = harness(Flaky(9), timeout_ms=50, retry=AsyncRetryStrategies.fixed_delay(9, 30))
    run.process([7])
    run.do_work()
    run.advance_clock(30)
    run.do_work()
    with pytest.raises(UserFunctionError, match="no result within 50 ms, after 2 attempts"):
        run.advance_clock(60)


def test_an_answer_in_time_stops_the_clock():
    run = harness(timeout_ms=50)
    run.process([7])
    run.do_all_work()
    run.advance_clock(100)
    assert run.take_rows() == [7, 7.5]
    assert run.operator.next_processing_time() is None


# ------------------------------------------------------------------------------------------------------------ snapshots
def restored(runs, parallelism, **options):
    parts = [part for run in runs for part in run.snapshot()]
    return [
        OperatorHarness(operator(**options), subtask=i, parallelism=parallelism, restored=parts)
        for i in range(parallelism)
    ]


def test_requests_in_flight_belong_to_the_snapshot_and_are_made_again_in_order():
    run = harness(capacity=2)
    run.process([1, 2, 3, 4], [10, 20, 30, 40])
    run.do_work(1)  # what is known goes out before the barrier
    [again] = restored([run], 1, capacity=2)
    assert run.take_rows() == [1, 1.5]
    again.watermark(50)
    again.do_all_work()
    assert emitted(again) == [2, 2.5, 3, 3.5, 4, 4.5, Watermark(50)]


def test_a_snapshot_keeps_what_was_answered_out_of_turn():
    run = harness()
    run.process([1, 2], [10, 20])
    run.do_work(2)
    [again] = restored([run], 1)
    again.do_all_work()
    assert again.take() == [(1, 10), (1.5, 10), (2, 20), (2.5, 20)]


def test_after_the_end_there_is_nothing_in_the_snapshot():
    run = harness()
    run.process([1])
    run.do_all_work()
    run.operator.end_input(0)
    assert run.snapshot() == []


def test_at_the_same_parallelism_every_subtask_goes_on_with_its_own_records():
    runs = [OperatorHarness(operator(), subtask=i, parallelism=2) for i in range(2)]
    runs[0].process([1, 2, 3])
    runs[1].process([11, 12])
    again = restored(runs, 2)
    for run in again:
        run.do_all_work()
    assert [[row for row in run.take_rows() if row == int(row)] for run in again] == [[1, 2, 3], [11, 12]]


@settings(max_examples=examples(150), deadline=None)
@given(
    ordered=st.booleans(),
    capacity=st.integers(1, 4),
    parallelism=st.integers(1, 3),
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("batch"), st.integers(0, 2), st.integers(1, 5)),
            st.tuples(st.just("watermark"), st.integers(0, 2)),
            st.tuples(st.just("complete"), st.integers(0, 2), st.integers(0, 99)),
            st.tuples(st.just("step"), st.integers(0, 2)),
            st.tuples(st.just("restore"), st.integers(1, 3)),
        ),
        max_size=60,
    ),
)
def test_every_record_counts_once_whatever_happens(ordered, capacity, parallelism, actions):
    """Records are numbered per first subtask; a watermark promises that all before it have gone out."""
    options = {"ordered": ordered, "capacity": capacity}
    runs = [OperatorHarness(operator(**options), subtask=i, parallelism=parallelism) for i in range(parallelism)]
    out, sent = [], []
    next_value, was_rescaled = 0, False
    before_watermark = {}  # watermark -> records that must have gone out when it does

    def gather(subtask):
        for item in emitted(runs[subtask]):
            if isinstance(item, Watermark):
                must = before_watermark[item.timestamp_ms]
                assert not Counter(must) - Counter(value for _, value in out), "a watermark has overtaken a record"
            else:
                out.append((subtask, item))

    for action, *arguments in actions:
        if action == "restore":
            new = arguments[0]
            parts = [part for run in runs for part in run.snapshot()]
            for subtask in range(len(runs)):
                gather(subtask)
            was_rescaled = was_rescaled or new != len(runs)
            runs = [
                OperatorHarness(operator(**options), subtask=i, parallelism=new, restored=parts) for i in range(new)
            ]
            before_watermark = {}
            continue
        subtask = arguments[0] % len(runs)
        run = runs[subtask]
        if action == "batch" and not run.operator.is_blocked:
            values = list(range(next_value, next_value + arguments[1]))
            next_value += arguments[1]
            run.process(values)
            sent.extend((subtask, value) for value in values)
        elif action == "watermark" and not run.operator.is_blocked:
            mark = 1_000_000 + next_value
            next_value += 1
            before_watermark[mark] = [value for place, value in sent if place == subtask and not was_rescaled]
            run.watermark(mark)
        elif action == "complete" and run.works:
            run.do_work(sorted(run.works)[arguments[1] % len(run.works)])
        elif action == "step":
            run.advance_clock(0)
        assert run.operator._queue.num_requests <= capacity
        gather(subtask)
    for subtask, run in enumerate(runs):
        run.watermark(MAX_WATERMARK.timestamp_ms)
        before_watermark[MAX_WATERMARK.timestamp_ms] = []
        run.operator.end_input(0)
        run.do_all_work()
        assert not run.operator.has_pending
        gather(subtask)
    assert Counter(value for _, value in out) == Counter(result for _, value in sent for result in (value, value + 0.5))
    if ordered and not was_rescaled:
        for subtask in range(parallelism):
            mine = [value for place, value in out if place == subtask]
            assert mine == sorted(mine)
