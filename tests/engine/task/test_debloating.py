"""Debloating by a manual clock: what is in flight follows what the consumer takes, down and up again.

Family: scenario with a model of one producer that always has more and one consumer of a known speed.
"""

from __future__ import annotations

import pytest

from headrace.engine.columns.records import Batch
from headrace.engine.functions.steps import STEP_US, UNBOUNDED_ROWS, StepMeter
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.task_messages import DataMessage
from headrace.engine.task.channels import MESSAGES_PER_WINDOW, InputChannel, OutputChannel
from headrace.engine.task.debloating import MIN_MESSAGE_MS, MIN_WINDOW_BYTES, BufferDebloater
from headrace.state.identifiers import ExecutionAttemptId, VertexId

PRODUCER = ExecutionAttemptId(1, 0, VertexId("p"), 0)
CONSUMER = ExecutionAttemptId(1, 0, VertexId("c"), 0)
HERE = Address("host", "slot")
MAX_ROWS = 4_096
FULL = 4 * MAX_ROWS * 64
ROW_BYTES = 64


class Pipe:
    """A producer with more records than anybody takes, one channel, and a consumer of so many records per second."""

    def __init__(self, target_ms: int = 1_000) -> None:
        self.output = OutputChannel(0, PRODUCER, CONSUMER, HERE, MAX_ROWS, 8 << 20)
        self.inlet = InputChannel(0, 0, 0, PRODUCER, CONSUMER, HERE, 4, FULL)
        self.debloater = BufferDebloater([self.inlet], target_ms, 0)
        self.meter = StepMeter(lambda: int(1_000 * self.now_ms), MAX_ROWS, 8 << 20)
        self.now_ms = 0.0
        self.longest_step_ms = 0.0
        self.num_rows = 0
        self.output.add_credit(self.inlet.initial_credit())

    def run(
        self,
        rows_per_s: float,
        for_ms: int,
        offered_per_s: float | None = None,
        *,
        others_ms: float = 0,
        turn_us: int = 0,
        outside_ms: float = 0,
        wanted_rows: int = UNBOUNDED_ROWS,
    ) -> None:
        """Run it for a while.

        Args:
            rows_per_s: Its own speed.
            for_ms: How long.
            offered_per_s: Records that come; None for as many as there is credit for.
            others_ms: Others have their turn for so long before each of its own ...
            turn_us: ... which takes so long whatever it has to do.
            outside_ms: Behind each record it waits so long for work outside.
            wanted_rows: Its own consumers want so many records at once.
        """
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            if offered_per_s is None:
                while not self.output.is_full:
                    wanted = max(1, self.output.limit_bytes // ROW_BYTES) if self.output.is_limited else None
                    self.output.add_batch(Batch.of_rows([0] * (MAX_ROWS if wanted is None else wanted)), 0)
            elif not self.inlet.has_element:
                self.now_ms += 20
                self.output.add_batch(Batch.of_rows([0] * int(offered_per_s / 50)), 0)
            while self.output.due_ms(0) is not None:
                self.inlet.receive(self.output.take_message())
            if not self.inlet.has_element:
                continue
            self.now_ms += others_ms
            consumed_bytes = self.inlet.consumed_bytes
            self.meter.want(wanted_rows)
            batch = self.inlet.take(self.meter.rows_of)
            assert isinstance(batch, Batch)
            started_ms = self.now_ms
            self.debloater.wakes(round(self.now_ms))
            self.now_ms += 1_000 * batch.num_rows / rows_per_s + turn_us / 1_000
            work_us, wanted_share = self.meter.took(), self.meter.wanted_share
            self.num_rows += batch.num_rows
            self.longest_step_ms = max(self.longest_step_ms, self.now_ms - started_ms)
            credit = self.inlet.credit_due()
            num_bytes = self.inlet.consumed_bytes - consumed_bytes
            if self.debloater.took(num_bytes, round(self.now_ms), work_us, wanted_share):
                credit = self.inlet.grant()
            if credit is not None:
                self.output.add_credit(credit)
            if outside_ms:
                self.debloater.note_blocked(round(self.now_ms), is_blocked=True)
                self.now_ms += outside_ms * batch.num_rows
                self.debloater.note_blocked(round(self.now_ms), is_blocked=False)

    @property
    def in_flight_rows(self) -> int:
        return sum(batch.num_rows for batch in self.inlet.in_flight(1)[0]) + sum(
            element.num_rows for element in self.output._pending if isinstance(element, Batch)
        )


@pytest.mark.parametrize("rows_per_s", [500, 4_000])
def test_a_slow_consumer_has_about_the_target_in_flight(rows_per_s: int) -> None:
    pipe = Pipe()
    pipe.run(rows_per_s, 60_000)
    assert 0.4 * rows_per_s < pipe.in_flight_rows < 2 * rows_per_s
    pipe.longest_step_ms = 0
    pipe.run(rows_per_s, 5_000)
    assert pipe.longest_step_ms <= 2 * STEP_US / 1_000


def test_a_shorter_target_lets_less_be_in_flight() -> None:
    pipe = Pipe(target_ms=100)
    pipe.run(4_000, 60_000)
    assert pipe.in_flight_rows < 2 * 4_000 * 0.1 + 2 * MIN_WINDOW_BYTES / ROW_BYTES


def test_one_small_batch_is_always_allowed() -> None:
    pipe = Pipe()
    pipe.run(1, 30_000_000)
    assert pipe.inlet.window_bytes == MIN_WINDOW_BYTES
    assert pipe.num_rows > 25_000


def test_windows_grow_again_when_the_consumer_is_fast() -> None:
    pipe = Pipe()
    pipe.run(100, 300_000)
    small = pipe.inlet.window_bytes
    assert pipe.longest_step_ms <= 2 * STEP_US / 1_000
    pipe.run(2_000_000, 5_000)
    assert pipe.inlet.window_bytes == FULL > 50 * small
    assert not pipe.inlet.has_rest, "batches are taken whole again"


def test_a_consumer_that_keeps_up_keeps_its_windows() -> None:
    pipe = Pipe()
    pipe.run(20_000, 20_000, offered_per_s=2_000)
    assert pipe.inlet.window_bytes == FULL


def test_nothing_is_sent_before_it_is_known_how_slow_a_consumer_is() -> None:
    pipe = Pipe(target_ms=100)
    pipe.run(200, 1_000)  # 5 ms for each record
    assert pipe.in_flight_rows < 2 * 200 * 0.1 + 2, "from the first second on"


def test_windows_of_a_fast_consumer_are_open_after_a_few_messages() -> None:
    pipe = Pipe()
    pipe.run(2_000_000, 100)
    assert pipe.inlet.window_bytes == FULL


def test_a_consumer_that_becomes_slow_is_given_less_within_a_second() -> None:
    pipe = Pipe(target_ms=100)
    pipe.run(100_000, 5_000)
    pipe.run(1_000, 20_000)
    assert pipe.in_flight_rows < 2 * 1_000 * 0.1


def test_many_channels_have_messages_worth_some_milliseconds_each() -> None:
    inlets = [InputChannel(i, i, 0, PRODUCER, CONSUMER, HERE, 4, 16 << 20) for i in range(100)]
    debloater = BufferDebloater(inlets, 100, 0)
    now_ms = 0
    for _ in range(100):  # 1,000 bytes a millisecond, always something to do
        for inlet in inlets[:2]:
            inlet.receive(DataMessage(inlet.edge_id, PRODUCER, CONSUMER, inlet._sequence, (Batch.of_rows([0]),), 64))
        debloater.wakes(now_ms)
        inlets[0].take()
        now_ms += 10
        debloater.took(10_000, now_ms)
        inlets[1].take()
    assert {inlet.window_bytes for inlet in inlets} == {MESSAGES_PER_WINDOW * MIN_MESSAGE_MS * 1_000}


def test_time_without_anything_to_do_is_not_taken_for_slowness() -> None:
    pipe = Pipe()
    pipe.run(50_000, 20_000, offered_per_s=50)
    assert pipe.inlet.window_bytes == FULL


def test_one_of_many_tasks_of_a_slot_is_not_taken_for_slow() -> None:
    """Its turn comes seldom, and costs what it costs: with a few records each time the slot would do nothing else."""
    pipe = Pipe(target_ms=100)
    pipe.run(1_000_000, 20_000, others_ms=200, turn_us=50)
    before, turns = pipe.num_rows, 20_000 / 200
    pipe.run(1_000_000, 20_000, others_ms=200, turn_us=50)
    assert (pipe.num_rows - before) / turns > 500, "half of a millisecond of its work each time, at least"


def test_one_that_waits_for_work_outside_is_slow_however_little_it_does_itself() -> None:
    """As an operator that asks a service: what has come is on its way as long as the service takes."""
    pipe = Pipe(target_ms=100)
    pipe.run(1_000_000, 20_000, outside_ms=5)
    assert in_flight_ms(pipe, 200) < 200


def test_one_that_waits_for_its_own_consumers_is_given_no_more_than_they_want_at_once() -> None:
    """As a fast operator in front of a slow one, which takes three records at once, of 5 ms each."""
    pipe = Pipe(target_ms=100)
    pipe.run(1_000_000, 20_000, others_ms=15, wanted_rows=3)
    assert in_flight_ms(pipe, 200) < 200


def in_flight_ms(pipe: Pipe, rows_per_s: float) -> float:
    """How long what is allowed to be in flight, and what is gathered, takes at that speed."""
    return 1_000 * (1 + 1 / MESSAGES_PER_WINDOW) * pipe.inlet.window_bytes / ROW_BYTES / rows_per_s
