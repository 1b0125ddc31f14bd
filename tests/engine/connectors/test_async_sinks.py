"""Families: property (whatever a service turns away, every entry is accepted; in an ordered sink the last acceptance of
a key is what was written last), bounds one by one, refusals. Kills are in ``tests/simulation/test_services.py``."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import OperatorHarness

from headrace import (
    AIMDScalingStrategy,
    AsyncSink,
    AsyncSinkWriter,
    CongestionControlRateLimitingStrategy,
    RateLimitingStrategy,
)
from headrace.engine.columns.sizes import MIN_ROW_BYTES, rows_nbytes
from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator
from headrace.engine.errors import ConfigurationError, ProgramError, SinkError, TypeMismatchError, UserFunctionError
from headrace.engine.operators.outside_calls import MAX_WAIT_MS

CALLS = []
ANSWERS = []
LIFE = []


class Sink(AsyncSink):
    def create_writer(self):
        return Writer()


class Writer(AsyncSinkWriter):
    def open(self, _context):
        LIFE.append("open")

    async def submit_request_entries(self, request_entries):
        CALLS.append(list(request_entries))
        answer = ANSWERS.pop(0) if ANSWERS else None
        if isinstance(answer, Exception):
            raise answer
        return answer(request_entries) if callable(answer) else answer

    def close(self):
        LIFE.append("close")


@pytest.fixture(autouse=True)
def _anew():
    for one in (CALLS, ANSWERS, LIFE):
        one.clear()


def harness_of(restored=(), subtask=0, parallelism=1, **bounds):
    harness = OperatorHarness(
        AsyncSinkOperator(Sink(**bounds)), restored=restored, subtask=subtask, parallelism=parallelism
    )
    assert not harness.operator.is_settled, "it is not open yet"
    harness.do_work()
    return harness


def test_a_batch_is_sent_when_it_is_full_or_old():
    harness = harness_of(max_batch_size=3, max_time_in_buffer_ms=100)
    assert harness.operator.is_settled
    harness.process(list("abcde"))
    harness.do_all_work()
    assert CALLS == [["a", "b", "c"]]
    harness.pass_time(99)
    harness.do_all_work()
    assert len(CALLS) == 1
    harness.pass_time(1)
    harness.do_all_work()
    assert CALLS[1:] == [["d", "e"]]
    assert harness.metrics.counters["num_entries_sent"] == 5


def test_a_batch_is_bounded_in_bytes():
    harness = harness_of(max_batch_size_in_bytes=5, max_record_size_in_bytes=4, max_time_in_buffer_ms=10)
    harness.process(["aaa", "bbb", "c", "ää", b"x"])
    harness.do_all_work()
    assert CALLS == [["aaa"], ["bbb", "c"], ["ää", b"x"]]
    with pytest.raises(SinkError, match="an entry has 5 bytes, and max_record_size_in_bytes is 4") as caught:
        harness.process(["eeeee"])
    assert caught.value.context["subtask"] == "1/1"


def test_requests_are_bounded_and_a_full_buffer_blocks():
    harness = harness_of(max_batch_size=2, max_in_flight_requests=2, max_buffered_requests=3)
    harness.process([str(n) for n in range(7)])
    assert len(harness.works) == 1, "the rate begins with one batch"
    assert harness.operator.is_blocked
    harness.do_work()
    assert len(harness.works) == 2
    assert not harness.operator.is_blocked
    harness.operator.end_input(0)
    assert harness.operator.has_pending
    harness.do_all_work()
    assert [entry for call in CALLS for entry in call] == [str(n) for n in range(7)]
    assert not harness.operator.has_pending
    assert LIFE == ["open", "close"]


def test_what_is_turned_away_comes_first_after_a_pause():
    harness = harness_of(max_batch_size=2, max_in_flight_requests=1, max_time_in_buffer_ms=1_000)
    ANSWERS.append(lambda entries: entries[1:])
    harness.process(list("abcd"))
    harness.do_work()
    assert not harness.works, "it pauses"
    harness.pass_time(10)
    harness.do_all_work()
    harness.operator.end_input(0)
    harness.do_all_work()
    assert CALLS == [["a", "b"], ["b"], ["c", "d"]] or CALLS == [["a", "b"], ["b", "c"], ["d"]]
    assert harness.metrics.counters["num_entries_retried"] == 1


def test_an_ordered_sink_sends_all_behind_the_first_again():
    harness = harness_of(max_batch_size=4, ordered=True)
    ANSWERS.append(lambda entries: [entries[1]])
    harness.process(list("abcd"))
    harness.do_work()
    assert [entry.value for entry in harness.operator._buffer] == ["b", "c", "d"]


def test_what_comes_back_must_have_been_sent():
    for answer in (["z"], "a", 3, ["a", "a"]):
        harness = harness_of(max_batch_size=1)
        ANSWERS.append(answer)
        harness.process(["a"])
        with pytest.raises((UserFunctionError, ProgramError, Exception), match="submit_request_entries"):
            harness.do_work()


def test_a_failure_names_its_place():
    harness = harness_of(max_batch_size=1)
    ANSWERS.append(ValueError("no such topic"))
    harness.process(["a"])
    with pytest.raises(UserFunctionError, match="no such topic") as caught:
        harness.do_work()
    assert caught.value.context["subtask"] == "1/1"
    assert caught.value.context["operator"] == "op"
    assert caught.value.context["function"] == "Writer.submit_request_entries"


@pytest.mark.parametrize("fails", [True, False])
def test_a_request_that_takes_too_long(fails):
    harness = harness_of(max_batch_size=1, request_timeout_ms=50, fail_on_timeout=fails)
    harness.process(["a"])
    if fails:
        with pytest.raises(UserFunctionError, match="no answer within 50 ms"):
            harness.pass_time(50)
        return
    harness.pass_time(50)
    assert not harness.works
    harness.pass_time(10)
    harness.do_all_work()
    assert CALLS == [["a"]]
    assert harness.metrics.counters["num_timeouts"] == 1


class Sized(Sink):
    def __init__(self, size, **bounds):
        super().__init__(**bounds)
        self.size = size

    def create_writer(self):
        writer = Writer()
        writer.get_size_in_bytes = lambda _entry: self.size
        return writer


@pytest.mark.parametrize("size", [None, -1, "12", 1.5, True, b"x"])
def test_a_size_that_is_none_is_refused_with_its_place_and_the_entry(size):
    harness = OperatorHarness(AsyncSinkOperator(Sized(size)), parallelism=3, subtask=1)
    harness.do_work()
    with pytest.raises(
        TypeMismatchError, match=r"get_size_in_bytes must give a number of bytes, 0 or more; got"
    ) as bad:
        harness.process(["an entry"])
    place = bad.value.context
    assert (place["operator"], place["subtask"], place["record"]) == ("op", "2/3", "'an entry'")


def test_sizes_of_numpy_and_none_at_all_are_sizes():
    for size in (np.int64(3), 0):
        harness = OperatorHarness(AsyncSinkOperator(Sized(size, max_batch_size=1)))
        harness.do_work()
        harness.process(["a"])
        harness.do_all_work()
    assert CALLS == [["a"], ["a"]]


class Stuck(AsyncSinkWriter):
    """A client without a timeout of its own."""

    def submit_request_entries(self, request_entries):
        CALLS.append(list(request_entries))


class StuckSink(AsyncSink):
    def create_writer(self):
        return Stuck()


@pytest.mark.parametrize(("in_flight", "limit"), [(1, 8), (3, 8), (12, 12)])
@pytest.mark.parametrize("returns", [False, True])
def test_calls_that_never_return_fail_the_subtask_before_they_have_all_threads(in_flight, limit, returns):
    """Those that return late keep no thread."""
    sink = StuckSink(max_batch_size=1, max_in_flight_requests=in_flight, request_timeout_ms=50)
    harness = OperatorHarness(AsyncSinkOperator(sink))
    harness.do_work()
    harness.process([f"entry {number}" for number in range(limit)])
    operator = harness.operator
    begun = {}
    with contextlib.suppress(UserFunctionError) if not returns else contextlib.nullcontext():
        while len(begun) < 4 * limit:
            for request in operator._requests:
                request.has_begun, request.holds_thread = True, not returns
                begun[request] = None
            harness.pass_time(25)
    assert (len(begun) < 4 * limit) is not returns
    assert len(operator._given_up) == (0 if returns else limit)


@pytest.mark.parametrize(("in_flight", "limit"), [(1, 8), (12, 12)])
@pytest.mark.parametrize("begins", [False, True])
def test_calls_that_never_get_a_thread_fail_the_subtask(in_flight, limit, begins):
    """Others may have all threads of the process; a thread now and then is enough to go on."""
    sink = StuckSink(max_batch_size=1, max_in_flight_requests=in_flight, request_timeout_ms=50)
    harness = OperatorHarness(AsyncSinkOperator(sink))
    harness.do_work()
    harness.process([f"entry {number}" for number in range(limit)])
    operator = harness.operator
    begun = {}
    refused = pytest.raises(UserFunctionError, match=f"{2 * limit} requests in a row .* before a thread .* was free")
    with contextlib.nullcontext() if begins else refused:
        while len(begun) < 6 * limit:
            for request in operator._requests:
                number = begun.setdefault(request, len(begun))
                request.has_begun = begins and number % limit == 0
            harness.pass_time(25)
    assert begins is (len(begun) >= 6 * limit)


class Blocking(Stuck):
    def open(self, _context):
        LIFE.append("open")

    def close(self):
        LIFE.append("close")


class BlockingSink(AsyncSink):
    def create_writer(self):
        return Blocking()


def test_a_writer_that_gets_no_thread_to_open_in_fails_the_subtask():
    """Calls of earlier attempts that never return hold them all."""
    harness = OperatorHarness(AsyncSinkOperator(BlockingSink()))
    harness.pass_time(MAX_WAIT_MS - 1)
    with pytest.raises(UserFunctionError, match=r"Blocking\.open has waited 60 s for a thread") as failure:
        harness.pass_time(1)
    assert {"operator", "subtask"} <= set(failure.value.context)


def test_a_writer_that_gets_no_thread_to_close_in_fails_the_subtask():
    harness = OperatorHarness(AsyncSinkOperator(BlockingSink()))
    harness.do_work()
    harness.operator.end_input(0)
    with pytest.raises(UserFunctionError, match=r"Blocking\.close has waited 60 s for a thread"):
        harness.pass_time(MAX_WAIT_MS)


def test_a_writer_whose_open_takes_long_is_waited_for_and_said():
    harness = OperatorHarness(AsyncSinkOperator(BlockingSink()))
    harness.operator._outside._watched.has_begun = True
    harness.pass_time(2 * MAX_WAIT_MS)
    assert [name for name, _ in harness.reports] == ["warning"]
    assert "Blocking.open has not returned for 60 s" in harness.reports[0][1]
    harness.do_work()
    assert harness.operator.is_settled


def test_a_writer_that_is_open_is_watched_no_longer():
    harness = OperatorHarness(AsyncSinkOperator(BlockingSink()))
    harness.do_work()
    harness.pass_time(2 * MAX_WAIT_MS)
    assert not harness.reports


def test_a_service_that_accepts_nothing_is_said():
    harness = harness_of(max_batch_size=1)
    ANSWERS.extend([list] * 10)
    harness.process(["a"])
    for _ in range(10):
        harness.do_all_work()
        harness.pass_time(1_000)
    assert [name for name, _ in harness.reports] == ["warning"]
    assert "accepted nothing of 10 requests" in harness.reports[0][1]


@given(st.lists(st.integers(0, 3), max_size=30), st.data())
def test_the_last_of_each_key_comes_last_when_ordered(keys, data):
    entries = [f"{key}:{number}" for number, key in enumerate(keys)]
    accepted = []

    def answer(request):
        refused = [entry for entry in request if data.draw(st.booleans())] if data.draw(st.booleans()) else []
        accepted.extend(entry for entry in request if entry not in refused)
        return refused

    for one in (CALLS, ANSWERS):
        one.clear()
    ANSWERS.extend([answer] * 40)
    ANSWERS.extend([lambda request: accepted.extend(request)] * 40)
    harness = harness_of(max_batch_size=3, ordered=True)
    harness.process(entries)
    harness.operator.end_input(0)
    for _ in range(200):
        harness.do_all_work()
        harness.pass_time(1_000)
    assert set(accepted) == set(entries)
    last = {entry.split(":")[0]: entry for entry in accepted}
    assert last == {entry.split(":")[0]: entry for entry in entries}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_is_not_accepted_is_restored_in_order(parallelism):
    parts = []
    for subtask in range(2):
        harness = harness_of(subtask=subtask, parallelism=2, max_batch_size=2)
        harness.process([f"{subtask}{letter}" for letter in "abc"])
        assert len(harness.works) == 1
        parts += harness.snapshot()
    found = []
    for subtask in range(parallelism):
        restored = harness_of(parts, subtask=subtask, parallelism=parallelism, max_batch_size=100, ordered=True)
        is_behind = any(restored.works)
        assert restored.operator.is_settled is not is_behind
        restored.do_all_work()
        assert restored.operator.is_settled
        found += CALLS
        CALLS.clear()
    assert sorted(entry for call in found for entry in call) == ["0a", "0b", "0c", "1a", "1b", "1c"]
    for call in found:
        for subtask in "01":
            own = [entry for entry in call if entry[0] == subtask]
            assert own == sorted(own)


def test_rates_rise_slowly_and_fall_at_once():
    scaling = AIMDScalingStrategy(30, increase_rate=10, decrease_factor=0.5)
    rates = CongestionControlRateLimitingStrategy(10, scaling)
    assert rates.get_max_batch_size() == 10
    assert not rates.should_block(10)
    rates.register_in_flight_request(10)
    assert rates.should_block(1)
    allowed = []
    for num_failed in (0, 0, 0, 1, 1, 1, 1, 1, 0):
        rates.register_completed_request(0, num_failed)
        allowed.append(rates.get_max_batch_size())
    assert allowed == [20, 30, 30, 15, 7, 3, 1, 1, 11]


def test_a_strategy_that_goes_by_something_else_is_asked_again():
    class Sometimes(RateLimitingStrategy):
        asked = 0

        def register_in_flight_request(self, batch_size):
            """Not counted."""

        def register_completed_request(self, batch_size, num_failed):
            """Not counted."""

        def should_block(self, batch_size):
            self.asked += 1
            return self.asked < 3

        def get_max_batch_size(self):
            return 5

    harness = harness_of(max_batch_size=1, max_buffered_requests=2, rate_limiting_strategy=Sometimes())
    harness.process(["a"])
    assert not harness.works
    harness.pass_time(20)
    harness.do_all_work()
    assert CALLS == [["a"]]


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_batch_size": 0},
        {"max_in_flight_requests": 0},
        {"max_batch_size": 10, "max_buffered_requests": 10},
        {"max_batch_size_in_bytes": 5, "max_record_size_in_bytes": 6},
        {"max_time_in_buffer_ms": 0},
        {"request_timeout_ms": True},
    ],
)
def test_bounds_that_do_not_fit_are_refused(bounds):
    with pytest.raises(ConfigurationError):
        Sink(**bounds)


def test_a_writer_of_another_kind_is_refused():
    class Wrong(AsyncSink):
        def create_writer(self):
            return object()

    with pytest.raises(ProgramError, match="must give an AsyncSinkWriter"):
        AsyncSinkOperator(Wrong())
    with pytest.raises(ProgramError, match="must be a RateLimitingStrategy"):
        Sink(rate_limiting_strategy=3)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_objects_that_do_not_tell_their_size_have_some(error):
    class Sizeless:
        def __sizeof__(self):
            raise error

    assert rows_nbytes([Sizeless(), [Sizeless()]]) >= 2 * MIN_ROW_BYTES
