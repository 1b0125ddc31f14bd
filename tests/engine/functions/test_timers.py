"""Timers: a property test against a sorted list, over restores, and the rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import keyed_state, restore_keyed_state

from headrace.engine.errors import TypeMismatchError
from headrace.engine.functions.timers import DueQueue, TimerService
from headrace.engine.operators.event_time import OperatorWatermark
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.keys.key_groups import KeyGroupRange


class Timers:
    """A timer service with its backend, which can be restored from its snapshot."""

    def __init__(self, restored=()):
        self.backend = keyed_state()
        restore_keyed_state(self.backend, restored)
        self.service = TimerService(
            self.backend, lambda: 0, OperatorWatermark(HeapOperatorStateBackend("op"), KeyGroupRange(0, 127), 128)
        )

    def restored(self):
        parts = self.backend.snapshot()
        return Timers([RestoredPart(part.state, part.kind, part.metadata, part.write(), 0) for part in parts])

    def register(self, key, time):
        self.backend.current_key = key
        self.service.register_event_time_timer(time)

    def delete(self, key, time):
        self.backend.current_key = key
        self.service.delete_event_time_timer(time)

    def fire(self, until):
        fired = []
        self.service.fire_event_time(until, lambda time, key: fired.append((time, key)) or True)
        return fired


def test_timers_fire_once_in_order_of_time_then_of_registration():
    timers = Timers()
    for key, time in (("b", 5), ("a", 5), ("a", 3), ("b", 5), ("c", 9)):
        timers.register(key, time)
    assert timers.fire(5) == [(3, "a"), (5, "b"), (5, "a")]
    assert timers.fire(5) == []
    assert timers.fire(9) == [(9, "c")]
    assert timers.backend.snapshot() == []


def test_a_timer_registered_while_others_fire_takes_part():
    timers = Timers()
    for key in ("a", "b"):
        timers.register(key, 5)
    fired = []

    def fire(time, key):
        if not fired:
            timers.register("a", 2)
            timers.register("a", 5)
            timers.register("a", 7)
            timers.delete("b", 5)
            timers.register("c", 5)
        fired.append((time, key))
        return True

    timers.service.fire_event_time(6, fire)
    assert fired == [(5, "a"), (2, "a"), (5, "a"), (5, "c")]
    assert timers.fire(7) == [(7, "a")]


def test_firing_can_be_paused():
    timers = Timers()
    for time in range(4):
        timers.register("a", time)
    fired = []
    while timers.service.fire_event_time(10, lambda time, key: fired.append(time) or False):
        fired.append("pause")
    assert fired == [0, "pause", 1, "pause", 2, "pause", 3, "pause"]


def test_a_timer_needs_an_int():
    timers = Timers()
    timers.register("a", np.int64(3))
    assert timers.fire(3) == [(3, "a")]
    for bad in (1.5, None, "3"):
        with pytest.raises(TypeMismatchError, match="timer"):
            timers.register("a", bad)


@settings(deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["register", "delete", "fire", "restore"]), st.sampled_from("abc"), st.integers(0, 12)
        ),
        max_size=40,
    )
)
def test_timers_agree_with_a_sorted_list_also_over_restores(actions):
    timers, expected = Timers(), []
    for action, key, time in actions:
        if action == "register":
            timers.register(key, time)
            if (time, key) not in expected:
                expected.append((time, key))
        elif action == "delete":
            timers.delete(key, time)
            expected = [timer for timer in expected if timer != (time, key)]
        elif action == "restore":
            timers = timers.restored()
        else:
            due = sorted((timer for timer in expected if timer[0] <= time), key=lambda timer: timer[0])
            expected = [timer for timer in expected if timer[0] > time]
            assert timers.fire(time) == due
        assert timers.service._event.next_time() == min((t for t, _ in expected), default=None)


def test_a_queue_does_not_grow_with_what_is_removed_from_it():
    queue = DueQueue()
    for time in range(10_000):
        queue.add(1_000_000 + time, time)
        queue.remove(time - 1)
    assert len(queue) == 1
    assert len(queue._heap) < 200
    assert queue.first_due(2_000_000) == 9_999
