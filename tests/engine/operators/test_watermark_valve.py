"""Watermarks of several inputs: a slow oracle that looks at the whole past, and the cases that people meet."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from headrace.engine.operators.watermark_valve import CombinedWatermarkStatus, StatusWatermarkValve, TaskWatermark

END = MAX_TIMESTAMP
EVENTS = st.integers(0, 2**32).map(
    lambda seed: [
        (rng.randrange(3), rng.choices((rng.randint(0, 5) + number, True, False, END), (12, 4, 4, 1))[0])
        for rng in [random.Random(seed)]
        for number in range(rng.randint(0, 30))
    ]
)
"""A number is a channel's watermark, True is idle, False is active again."""


# --------------------------------------------------------------------------------------------------------------- oracle
@dataclass
class Past:
    """What has happened on a channel, as (number of the event, event), and what was passed on before each event."""

    events: list[tuple[int, int | bool]] = field(default_factory=list)

    def has_ended(self) -> bool:
        return any(event is not True and event == END for _, event in self.events)

    def is_idle(self) -> bool:
        turns = [event for _, event in self.events if isinstance(event, bool)]
        return bool(turns) and turns[-1]

    def watermark(self) -> int:
        """The highest one that came while it was active and had not ended."""
        highest, idle = MIN_TIMESTAMP, False
        for _, event in self.events:
            if isinstance(event, bool):
                idle = event
            elif event == END:
                break
            elif not idle:
                highest = max(highest, event)
        return highest

    def counts(self, passed_on: list[int]) -> bool:
        """Whether it is active and, since it is, has once been as far as what had been passed on by then."""
        if self.is_idle() or self.has_ended():
            return False
        woken = [place for place, (_, event) in enumerate(self.events) if event is False and self._was_idle(place)]
        if not woken:
            return True
        for place in range(woken[-1], len(self.events)):
            number, _ = self.events[place]
            if Past(self.events[: place + 1]).watermark() >= passed_on[number]:
                return True
        return False

    def _was_idle(self, place: int) -> bool:
        return Past(self.events[:place]).is_idle()


def oracle(num_channels: int, events: list[tuple[int, int | bool]]) -> tuple[list[int], list[bool]]:
    """What a valve has passed on after each event, and whether it is idle."""
    pasts = [Past() for _ in range(num_channels)]
    passed_on, idle = [MIN_TIMESTAMP], []
    for number, (index, event) in enumerate(events):
        were_active = [past for past in pasts if not past.is_idle() and not past.has_ended()]
        pasts[index].events.append((number, event))
        active = [past for past in pasts if not past.is_idle() and not past.has_ended()]
        live = [past for past in pasts if not past.has_ended()]
        counting = [past.watermark() for past in pasts if past.counts(passed_on)]
        wanted = min(counting, default=MIN_TIMESTAMP)
        if not live:
            wanted = END
        elif were_active and not active and pasts[index].watermark() == passed_on[-1]:
            wanted = max(past.watermark() for past in pasts)
        passed_on.append(max(passed_on[-1], wanted))
        idle.append(bool(live) and not active)
    return passed_on[1:], idle


@settings(max_examples=examples(500), deadline=None)
@given(num_channels=st.integers(1, 3), events=EVENTS)
def test_a_valve_does_what_the_oracle_says(num_channels, events):
    events = [(index % num_channels, event) for index, event in events]
    valve, watermarks, idle = StatusWatermarkValve(num_channels), [], []
    for index, event in events:
        before = valve.watermark_ms
        result = valve.set_idle(index, event) if isinstance(event, bool) else valve.update(index, event)
        assert result == (None if valve.watermark_ms == before else valve.watermark_ms)
        watermarks.append(valve.watermark_ms)
        idle.append(valve.is_idle)
    assert (watermarks, idle) == oracle(num_channels, events)


@settings(max_examples=examples(200), deadline=None)
@given(events=EVENTS)
def test_parts_that_are_combined_give_the_lowest_that_is_active_and_never_go_back(events):
    combined, highest, idle, last = CombinedWatermarkStatus(), dict.fromkeys(range(3), MIN_TIMESTAMP), set(), []
    for index in highest:
        combined.add(index)
    for index, event in events:
        if isinstance(event, bool):
            combined.set_idle(index, event)
            (idle.add if event else idle.discard)(index)
        else:
            combined.update(index, event)
            highest[index] = max(highest[index], event)
        combined.combine()
        active = [time for name, time in highest.items() if name not in idle and time < END]
        wanted = END if min(highest.values()) == END else min(active, default=MIN_TIMESTAMP)
        last.append(max(wanted, last[-1] if last else MIN_TIMESTAMP))
        assert combined.watermark_ms == last[-1]
        live = [name for name, time in highest.items() if time < END]
        assert combined.is_idle == (bool(live) and all(name in idle for name in live))


@settings(max_examples=examples(200), deadline=None)
@given(inputs=st.lists(st.integers(0, 1), min_size=1, max_size=3), events=EVENTS)
def test_a_task_is_its_valves_combined(inputs, events):
    """Oracle: a valve for the channels of each input, fed with that input's events alone."""
    events = [(channel % len(inputs), event) for channel, event in events]
    task = TaskWatermark(inputs)
    for number in range(len(events)):
        channel, event = events[number]
        task.set_idle(channel, event) if isinstance(event, bool) else task.update(channel, event)
        last, idle = {}, {}
        for input_index in set(inputs):
            channels = [place for place, one in enumerate(inputs) if one == input_index]
            own = [(channels.index(at), what) for at, what in events[: number + 1] if at in channels]
            watermarks, statuses = oracle(len(channels), own)
            last[input_index], idle[input_index] = [MIN_TIMESTAMP, *watermarks][-1], [False, *statuses][-1]
        live = [one for one in last if last[one] < END]
        assert task.is_idle == (bool(live) and all(idle[one] for one in live))
        active = [last[one] for one in live if not idle[one]]
        if active:
            assert task.watermark_ms >= min(active)
        assert (task.watermark_ms == END) == (not live)


# ---------------------------------------------------------------------------------------------------------------- cases
def test_the_lowest_active_channel_counts():
    valve = StatusWatermarkValve(2)
    assert valve.update(0, 10) is None
    assert valve.update(1, 5) == 5
    assert valve.update(1, 20) == 10
    assert valve.update(0, 9) is None
    assert valve.set_idle(0, True) == 20


def test_a_channel_that_wakes_far_behind_holds_nobody_back_until_it_has_caught_up():
    valve = StatusWatermarkValve(2)
    valve.update(0, 10)
    valve.update(1, 10)
    valve.set_idle(0, True)
    assert valve.update(1, 100) == 100
    valve.set_idle(0, False)
    assert valve.update(0, 20) is None
    assert valve.update(1, 200) == 200
    assert valve.update(0, 200) is None, "it has caught up"
    assert valve.update(1, 300) is None
    assert valve.update(0, 250) == 250


def test_a_channel_that_wakes_as_the_only_one_that_counts_is_passed_on_at_once():
    """It is ahead of the others, of which one has ended idleness far behind and the last one falls idle."""
    valve = StatusWatermarkValve(3)
    for index, watermark_ms in ((0, 2), (1, 8), (2, 3)):
        valve.update(index, watermark_ms)
    valve.set_idle(1, True)
    valve.update(0, 10)
    valve.set_idle(0, True)
    assert valve.update(2, 9) == 9
    valve.set_idle(1, False)
    assert valve.set_idle(2, True) is None, "channel 1 is active, and behind"
    assert valve.set_idle(0, False) == 10


def test_when_all_channels_fall_idle_it_does_not_matter_which_one_is_last():
    for order in ((0, 1), (1, 0)):
        valve = StatusWatermarkValve(2)
        valve.update(0, 10)
        valve.update(1, 20)
        for index in order:
            valve.set_idle(index, True)
        assert (valve.is_idle, valve.watermark_ms) == (True, 20)


def test_event_time_ends_only_once_every_channel_has_ended():
    valve = StatusWatermarkValve(2)
    valve.update(0, 10)
    valve.update(1, 5)
    assert valve.set_idle(1, True) == 10
    assert valve.update(0, END) is None
    assert valve.is_idle
    valve.set_idle(1, False)
    assert valve.update(1, 30) == 30
    assert valve.update(1, END) == END
    assert not valve.is_idle


def test_splits_that_fall_idle_together_leave_the_watermark_where_it_is():
    combined = CombinedWatermarkStatus()
    for name, time in (("low", 500), ("high", 1_000)):
        combined.add(name)
        combined.update(name, time)
    assert combined.combine() == 500
    for name in ("low", "high"):
        combined.set_idle(name, True)
    assert combined.combine() is None
    assert combined.is_idle


def test_splits_come_and_go():
    combined = CombinedWatermarkStatus()
    assert combined.combine() is None
    assert not combined.is_idle
    combined.add("a")
    combined.update("a", 10)
    assert combined.combine() == 10
    combined.add("b")
    combined.update("a", 20)
    assert combined.combine() is None
    combined.remove("b")
    assert combined.combine() == 20
    combined.remove("a")
    assert combined.combine() is None
    assert combined.watermark_ms == 20


def test_inputs_that_are_both_idle_do_not_move_each_other():
    task = TaskWatermark([0, 1])
    task.update(0, 1_000)
    assert task.update(1, 500) == 500
    task.set_idle(0, True)
    assert task.set_idle(1, True) is None
    assert (task.is_idle, task.watermark_ms) == (True, 500)


def test_of_two_inputs_the_order_in_which_they_fall_idle_counts():
    """While one is idle and the other not, the other one counts alone: so it is in Flink's valve of inputs, too."""
    slow, fast = 0, 1
    for first, second, expected_ms in ((fast, slow, 500), (slow, fast, 1_000)):
        task = TaskWatermark([0, 1])
        task.update(slow, 500)
        task.update(fast, 1_000)
        task.set_idle(first, True)
        task.set_idle(second, True)
        assert (task.is_idle, task.watermark_ms) == (True, expected_ms)
        task.set_idle(slow, False)
        assert task.update(slow, 700) == (700 if expected_ms == 500 else None), "then it is late up to 1,000"
        task.set_idle(fast, False)
        assert task.update(fast, 2_000) is None, "the one that is behind holds the other"
