"""Links: property tests for exactly-once in order under any network, unit tests for the timing rules."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.link import BARE, MAX_REPAIRED, MAX_RESENT, Frame, LinkReceiver, LinkSender, LinkTiming

TIMING = LinkTiming(ack_delay_ms=5, retry_ms=100, max_retry_ms=800, give_up_ms=5_000)


def sender() -> LinkSender:
    return LinkSender("a", "b", TIMING)


def send(link: LinkSender, *messages: object, now_ms: int = 0) -> Frame:
    return link.send(tuple(("m", message) for message in messages), 0, now_ms)


def test_the_first_frame_has_sequence_zero():
    assert [send(link := sender(), "x").sequence, send(link, "y").sequence] == [0, 1]


def test_nothing_is_sent_again_before_its_time():
    link = sender()
    send(link, "x")
    assert link.retransmit(0, 99) == []
    assert [frame.sequence for frame in link.retransmit(0, 100)] == [0]


def test_silence_between_retransmissions_doubles_up_to_a_bound():
    link = sender()
    send(link, "x")
    times = []
    while link.retry_at is not None and link.retry_at < 4_000:
        times.append(link.retry_at)
        link.retransmit(0, link.retry_at)
    assert times == [100, 300, 700, 1_500, 2_300, 3_100, 3_900]


def test_an_acknowledgement_resets_the_silence():
    link = sender()
    send(link, "x")
    send(link, "y")
    for now in (100, 300):
        link.retransmit(0, now)
    link.acknowledge(1, 400)
    assert link.retry_at == 500
    link.acknowledge(2, 450)
    assert link.retry_at is None
    assert len(link) == 0


def test_old_and_doubled_acknowledgements_change_nothing():
    link = sender()
    for message in "xyz":
        send(link, message)
    link.acknowledge(2, 10)
    link.acknowledge(2, 50)
    link.acknowledge(1, 60)
    assert len(link) == 1
    assert link.retry_at == 110


def test_only_the_oldest_frames_are_sent_again_and_with_a_fresh_acknowledgement():
    link = sender()
    for message in range(10):
        send(link, message)
    again = link.retransmit(7, 100)
    assert [frame.sequence for frame in again] == list(range(MAX_RESENT))
    assert {frame.ack for frame in again} == {7}


def test_what_else_was_sent_before_a_silence_follows_as_fast_as_it_is_acknowledged():
    link, receiver = sender(), LinkReceiver()
    for message in range(500):
        send(link, message)
    now, sizes = 100, []
    while link.retry_at is not None:
        again = link.retransmit(0, now)
        sizes.append(len(again))
        for frame in again:
            receiver.receive(frame)
        now += 10  # a round trip
        link.acknowledge(receiver.expected, now)
    assert sizes[:5] == [MAX_RESENT, 8, 16, MAX_REPAIRED, MAX_REPAIRED]
    assert now < 100 + 500, "the silence of 100 ms was waited for once"


def test_frames_sent_after_the_silence_are_not_sent_again_at_once():
    link = sender()
    for message in range(5):
        send(link, message)
    assert len(link.retransmit(0, 100)) == MAX_RESENT
    send(link, "new", now_ms=105)
    link.acknowledge(5, 110)
    assert link.retry_at == 210


def test_a_repair_ends_where_the_silence_began():
    link = sender()
    for message in range(6):
        send(link, message)
    link.retransmit(0, 100)
    for message in range(5):
        send(link, message, now_ms=105)
    link.acknowledge(4, 110)
    assert [frame.sequence for frame in link.retransmit(0, 110)] == [4, 5]


def test_a_repair_that_is_lost_again_waits_for_a_silence():
    link = sender()
    for message in range(20):
        send(link, message)
    link.retransmit(0, 100)
    link.acknowledge(4, 110)
    assert [frame.sequence for frame in link.retransmit(0, 110)] == list(range(4, 12))
    link.acknowledge(6, 120)
    assert link.retry_at == 220
    assert [frame.sequence for frame in link.retransmit(0, 220)] == [6, 7, 8, 9]


def test_acknowledgements_that_come_together_ask_for_one_repair():
    link = sender()
    for message in range(100):
        send(link, message)
    link.retransmit(0, 100)
    link.acknowledge(4, 110)
    link.acknowledge(9, 110)
    assert [frame.sequence for frame in link.retransmit(0, 110)] == list(range(9, 17))
    assert link.retransmit(0, 110) == []
    link.acknowledge(100, 115)
    assert link.retry_at is None


def test_a_peer_that_stays_silent_is_given_up_for_good():
    link = sender()
    send(link, "x")
    for now in range(0, 6_000, 50):
        link.retransmit(0, now)
    assert link.is_closed
    send(link, "y", now_ms=6_000)
    assert len(link) == 0
    assert link.retransmit(0, 10_000) == []


def test_an_early_frame_waits_and_a_doubled_one_is_dropped():
    link, receiver = sender(), LinkReceiver()
    first, second, third = send(link, 1), send(link, 2, 3), send(link, 4)
    assert list(receiver.receive(third)) == []
    assert list(receiver.receive(second)) == []
    assert list(receiver.receive(first)) == [("m", 1), ("m", 2), ("m", 3), ("m", 4)]
    assert list(receiver.receive(second)) == []
    assert receiver.expected == 3
    assert receiver.bare("b", "a") == Frame("b", "a", BARE, 3, ())


def test_times_that_make_no_sense_are_refused():
    with pytest.raises(ConfigurationError):
        LinkTiming(ack_delay_ms=200, retry_ms=100)


# What becomes of a frame on its way: lost, or some copies each so many rounds late.
fates = st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=200)


@given(num_messages=st.integers(1, 30), there=fates, back=fates, burst=st.integers(1, 5))
def test_any_network_delivers_each_message_once_in_order(num_messages, there, back, burst):
    """Whatever is lost, doubled and overtaken while the fates last; afterwards the network is healthy."""
    link, receiver = sender(), LinkReceiver()
    there_fates, back_fates = deque(there), deque(back)
    flying: list[tuple[int, Frame]] = []
    acks: list[tuple[int, int]] = []
    delivered: list[object] = []
    sent = 0
    for now in range(0, 200_000, 50):
        outgoing = link.retransmit(0, now)
        for _ in range(burst):
            if sent < num_messages:
                outgoing.append(send(link, sent, now_ms=now))
                sent += 1
        for frame in outgoing:
            flying.extend((now + 50 * late, frame) for late in (there_fates.popleft() if there_fates else [0]))
        arrived = [frame for at, frame in flying if at <= now]
        flying = [(at, frame) for at, frame in flying if at > now]
        for frame in arrived:
            delivered.extend(message for _, message in receiver.receive(frame))
            acks.extend((now + 50 * late, receiver.expected) for late in (back_fates.popleft() if back_fates else [0]))
        for at, ack in acks:
            if at <= now:
                link.acknowledge(ack, now)
        acks = [(at, ack) for at, ack in acks if at > now]
        assert delivered == list(range(len(delivered))), "never a hole, never a double"
        if sent == num_messages and not len(link):
            break
        if link.is_closed:  # the fates were bad for longer than anyone waits: a prefix is all that was promised
            return
    assert delivered == list(range(num_messages))
    assert link.retry_at is None
