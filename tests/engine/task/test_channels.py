"""Channels: property tests that any schedule of sends, grants and repetitions delivers every element once and in
order, within its credit.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import Batch, CheckpointBarrier, Watermark
from headrace.engine.errors import InternalError
from headrace.engine.kernel.machine import Address
from headrace.engine.task.channels import InputChannel, OutputChannel
from headrace.state.identifiers import ExecutionAttemptId, VertexId

PRODUCER = ExecutionAttemptId(1, 0, VertexId("p"), 0)
CONSUMER = ExecutionAttemptId(1, 0, VertexId("c"), 0)
HERE = Address("host", "slot")


def make_output(max_rows: int = 100) -> OutputChannel:
    return OutputChannel(0, PRODUCER, CONSUMER, HERE, max_rows, 1 << 20)


def make_input(num_credits: int = 4, credit_bytes: int = 1 << 20) -> InputChannel:
    return InputChannel(0, 0, 0, PRODUCER, CONSUMER, HERE, num_credits, credit_bytes)


def rows_of(batch: Batch) -> list[object]:
    return batch.rows


def test_nothing_is_sent_without_credit() -> None:
    output = make_output()
    output.add_batch(Batch.of_rows([1]), 0)
    assert output.due_ms(5) is None
    output.add_credit(make_input().initial_credit())
    assert output.due_ms(5) == 5


def test_a_barrier_is_due_at_once() -> None:
    output = make_output()
    output.add_credit(make_input().initial_credit())
    output.add_control(CheckpointBarrier(1, 0), 100, flush=True)
    assert output.due_ms(5) == 0


def test_a_watermark_replaces_the_one_right_before_it() -> None:
    output = make_output()
    output.add_control(Watermark(1), 0)
    output.add_control(Watermark(2), 0)
    assert output.take_message().elements == (Watermark(2),)


def test_small_neighbours_are_merged_but_never_over_a_watermark() -> None:
    output = make_output()
    for element in ([1], [2]):
        output.add_batch(Batch.of_rows(element, np.array([0])), 0)
    output.add_control(Watermark(5), 0)
    output.add_batch(Batch.of_rows([3], np.array([9])), 0)
    first, watermark, last = output.take_message().elements
    assert rows_of(first) == [1, 2]
    assert watermark == Watermark(5)
    assert rows_of(last) == [3]


def test_a_gap_is_refused() -> None:
    output, inputs = make_output(), make_input()
    output.add_batch(Batch.of_rows([1]), 0)
    output.take_message()
    output.add_batch(Batch.of_rows([2]), 0)
    with pytest.raises(InternalError, match="lost messages 0 to 0"):
        inputs.receive(output.take_message())


def test_a_repetition_is_dropped() -> None:
    output, inputs = make_output(), make_input()
    output.add_batch(Batch.of_rows([1]), 0)
    message = output.take_message()
    inputs.receive(message)
    inputs.receive(message)
    assert rows_of(inputs.take()) == [1]
    assert not inputs.has_element


def test_a_message_larger_than_the_credit_goes_alone() -> None:
    output, inputs = make_output(), make_input(credit_bytes=10)
    output.add_credit(inputs.initial_credit())
    output.add_batch(Batch.of_rows(list(range(1000))), 0)
    assert output.has_credit
    inputs.receive(output.take_message())
    assert not output.has_credit
    inputs.take()
    credit = inputs.credit_due()
    assert credit is not None
    output.add_credit(credit)
    assert output.has_credit


@settings(deadline=None)
@given(data=st.data(), num_credits=st.integers(1, 4), credit_bytes=st.integers(1, 2_000))
def test_every_schedule_delivers_once_in_order_within_credit(
    data: st.DataObject, num_credits: int, credit_bytes: int
) -> None:
    output, inputs = make_output(max_rows=5), make_input(num_credits, credit_bytes)
    output.add_credit(inputs.initial_credit())
    wire, grants, received, sent = [], [], [], 0
    total = data.draw(st.integers(0, 40))
    while len(received) < total:
        choices = []
        if sent < total and not output.is_full:
            choices.append("produce")
        if output.due_ms(0) is not None:
            choices.append("send")
        if wire:
            choices.append("deliver")
        if inputs.has_element:
            choices.append("consume")
        if grants:
            choices.append("grant")
        assert choices, "stalled"
        action = data.draw(st.sampled_from(choices))
        if action == "produce":
            output.add_batch(Batch.of_rows([sent]), 0)
            sent += 1
        elif action == "send":
            wire.append(output.take_message())
            assert len(wire) <= num_credits
        elif action == "deliver":
            message = wire.pop(0)
            inputs.receive(message)
            inputs.receive(message)
        elif action == "consume":
            received.extend(rows_of(inputs.take()))
            credit = inputs.credit_due()
            if credit is not None:
                grants.append(credit)
        else:
            output.add_credit(grants.pop(data.draw(st.integers(0, len(grants) - 1))))
    assert received == list(range(total))


# --------------------------------------------------------------------------------------------------------- overtaking
ACTIONS = st.lists(
    st.sampled_from(["emit", "emit", "emit", "send", "send", "arrive", "take", "take", "grant", "resize"]), max_size=60
)


@settings(deadline=None)
@given(before=ACTIONS, behind=ACTIONS, is_queued=st.booleans(), piece=st.sampled_from([0, 1, 2]))
def test_what_a_barrier_overtakes_is_what_was_emitted_and_not_taken(before, behind, is_queued, piece) -> None:
    """At any moment, and whatever came of it before: taken, overtaken here and overtaken there are all there is."""
    output, inlet = make_output(), make_input(2, 300)
    cut = None if piece == 0 else lambda batch, offset: min(piece, batch.num_rows - offset)
    output.add_credit(inlet.initial_credit())
    wire, taken, count, window = [], [], 0, 300

    def act(action: str) -> None:
        nonlocal count, window
        if action == "emit":
            output.add_batch(Batch.of_rows([count, count + 1, count + 2]), 0)
            count += 3
        elif action == "send" and output.due_ms(0) is not None:
            wire.append(output.take_message())
        elif action == "arrive" and wire:
            inlet.receive(wire.pop(0))
        elif action == "take" and inlet.has_element:
            element = inlet.take(cut)
            if isinstance(element, Batch):
                taken.extend(element.rows)
            credit = inlet.credit_due()
            if credit is not None:
                output.add_credit(credit)
        elif action == "grant":
            output.add_credit(inlet.grant())
        elif action == "resize":
            window = 130 if window == 300 else 300
            inlet.resize(window)

    for action in before:
        act(action)
    num_before, num_taken = count, len(taken)
    if is_queued:
        output.add_control(CheckpointBarrier(7, 0), 0, flush=True)
        act("emit")
    overtaken = [row for batch in output.overtake(CheckpointBarrier(7, 0)) for row in batch.rows]
    urgent = output.take_urgent()
    assert urgent is not None
    assert urgent.overtakes
    assert output.take_urgent() is None
    while wire:
        act("arrive")
    assert inlet.receive(urgent)
    assert not inlet.receive(urgent)
    batches, has_come = inlet.in_flight(7)
    assert not has_come
    waiting = [row for batch in batches for row in batch.rows]
    assert taken + waiting + overtaken == list(range(num_before)), "records are lost or doubled at the barrier"
    assert len(taken) == num_taken
    for action in behind:
        act(action)
    for _ in range(4 * count + 20):
        for action in ("send", "arrive", "take", "grant"):
            act(action)
    assert taken == list(range(count)), "the channel has lost or doubled records"
    assert not inlet.has_element


def test_a_barrier_overtakes_only_what_is_before_it_in_the_queue() -> None:
    output = make_output()
    output.add_batch(Batch.of_rows([1]), 0)
    output.add_control(CheckpointBarrier(1, 0), 0, flush=True)
    output.add_batch(Batch.of_rows([2]), 0)
    assert output.holds_barrier(1)
    assert [batch.rows for batch in output.overtake(CheckpointBarrier(1, 0))] == [[1]]
    assert not output.holds_barrier(1)
    assert output.take_urgent() is None, "the consumer has not started"
    output.add_credit(make_input().initial_credit())
    urgent = output.take_urgent()
    assert urgent is not None
    assert urgent.elements == (CheckpointBarrier(1, 0),)
    assert output.take_message().sequence == 1


def test_what_is_in_flight_ends_at_the_barrier_in_the_queue() -> None:
    output, inlet = make_output(), make_input()
    output.add_credit(inlet.initial_credit())
    for element in ([1], [2]):
        output.add_batch(Batch.of_rows(element), 0)
    output.add_control(CheckpointBarrier(1, 0), 0, flush=True)
    output.add_batch(Batch.of_rows([3]), 0)
    inlet.receive(output.take_message())
    batches, has_come = inlet.in_flight(1)
    assert ([batch.rows for batch in batches], has_come) == ([[1, 2]], True)
    batches, has_come = inlet.in_flight(2)
    assert ([batch.rows for batch in batches], has_come) == ([[1, 2], [3]], False)


def test_a_message_is_as_large_as_the_consumer_wants() -> None:
    output, inlet = make_output(), make_input(8, 1 << 20)
    inlet.resize(20 * 64)
    output.add_credit(inlet.initial_credit())
    output.add_batch(Batch.of_rows(list(range(25))), 0)
    output.add_control(CheckpointBarrier(1, 0), 0, flush=True)
    assert output.is_full
    sizes = [[e.num_rows for e in output.take_message().elements if isinstance(e, Batch)] for _ in range(2)]
    last = output.take_message()
    assert sizes == [[10], [10]]
    assert [type(element) for element in last.elements] == [Batch, CheckpointBarrier]
    assert not output.has_pending
    assert (output.is_limited, output.limit_bytes) == (True, 10 * 64)
