"""Whose turn it is in a slot, beside a scan of all tasks: who has the next turn, whether there is one, and when.

Family: model. The simulator compares the same with real tasks (``tests/simulation/turns.py``).
"""

from __future__ import annotations

import random

import pytest

from headrace.engine.task.turns import SOURCE_TURN, Turns


class Waiting:
    """What turns know of a task: it can go on at a time, has output to send at a time, and counts who asks."""

    def __init__(self, name, is_source=False):
        self.name = name
        self.is_source = is_source
        self.step_ms = self.unsent_ms = None
        self.last_turn = 0
        self.num_asked = 0

    def __repr__(self):
        return self.name

    def next_step_ms(self):
        self.num_asked += 1
        return self.step_ms


class Slot:
    """A slot of such tasks, and the scan of all of them."""

    def __init__(self):
        self.turns = Turns()
        self.tasks = []
        self.now_ms = 1_000
        self.num_turns = 0

    def add(self, name, step_ms=None, is_source=False):
        task = Waiting(name, is_source)
        task.step_ms = step_ms
        self.tasks.append(task)
        self.turns.add(task)
        return task

    def remove(self, task):
        self.tasks.remove(task)
        self.turns.remove(task)

    def chosen_of_all(self):
        runnable = [task for task in self.tasks if task.step_ms is not None and task.step_ms <= self.now_ms]
        if not runnable:
            return None
        sources_first = (self.num_turns + 1) % SOURCE_TURN == 0
        return min(runnable, key=lambda task: (task.is_source != sources_first, task.last_turn))

    def step(self, then=lambda _task: None):
        """Give a turn; ``then`` says what becomes of the task in it. Gives the task."""
        expected = self.chosen_of_all()
        self.turns.ask_touched()
        task = self.turns.take_next(self.now_ms)
        assert task is expected
        if task is not None:
            self.num_turns += 1
            task.last_turn = self.num_turns
            self.turns.touch(task)
            then(task)
        for touched in self.turns.take_touched(self.now_ms):
            if touched.unsent_ms is not None and touched.unsent_ms <= self.now_ms:
                touched.unsent_ms = None
            self.turns.note(touched, touched.next_step_ms(), touched.unsent_ms)
        assert all(task.unsent_ms is None or task.unsent_ms > self.now_ms for task in self.tasks)
        assert self.turns.can_go_on(self.now_ms) == (self.chosen_of_all() is not None)
        if self.chosen_of_all() is None:
            times = [time for task in self.tasks for time in (task.step_ms, task.unsent_ms) if time is not None]
            assert self.turns.wake_ms == min(times, default=None)
        return task


def act(rng, slot):
    """Something happens to some tasks, time goes on, and there is a step."""

    def change(task):
        task.step_ms = rng.choice((None, 0, 0, -5, slot.now_ms, slot.now_ms + rng.randrange(1, 60)))
        task.unsent_ms = rng.choice((None, None, slot.now_ms + rng.randrange(1, 60)))

    for _ in range(rng.choice((0, 0, 1, 1, 3))):
        kind = rng.random()
        if kind < 0.06 and len(slot.tasks) < 40:
            slot.add(f"task {rng.randrange(10**6)}", is_source=rng.random() < 0.3)
        elif kind < 0.1 and slot.tasks:
            slot.remove(rng.choice(slot.tasks))
        elif slot.tasks:
            task = rng.choice(slot.tasks)
            slot.turns.touch(task)
            change(task)
    slot.now_ms += rng.choice((0, 0, 0, 1, 10))
    slot.step(change)


@pytest.mark.parametrize("seed", range(10))
def test_the_turns_are_those_that_a_scan_of_all_tasks_gives(seed):
    rng, slot = random.Random(seed), Slot()
    for number in range(rng.choice((1, 3, 30))):
        slot.add(f"task {number}", is_source=number % 3 == 0)
    for _ in range(1_500):
        act(rng, slot)
    assert slot.num_turns > 300


def test_a_task_to_which_nothing_happens_is_not_asked():
    slot = Slot()
    waiting = [slot.add(f"waiting {number}") for number in range(100)]
    timed = slot.add("timed", step_ms=1_020)
    slot.add("busy", step_ms=0)
    slot.step()
    asked = [task.num_asked for task in waiting]
    for _ in range(50):
        assert slot.step().name == "busy"
    assert [task.num_asked for task in waiting] == asked
    slot.now_ms = 1_020
    assert slot.step(lambda task: setattr(task, "step_ms", None)) is timed
    assert slot.step().name == "busy"


def test_the_task_whose_last_turn_is_longest_ago_comes_first():
    """However long the others have been able to go on: what happens seldom does not wait behind what always happens."""
    slot = Slot()
    for name in ("a", "b", "c"):
        slot.add(name, step_ms=0)
    seldom = slot.add("seldom")
    for _ in range(6):
        slot.step()
    seldom.step_ms = 0
    slot.turns.touch(seldom)
    assert slot.step(lambda task: setattr(task, "step_ms", None)) is seldom


def test_what_changes_its_time_at_each_turn_leaves_nothing_behind():
    slot = Slot()
    task = slot.add("task", step_ms=0)
    for number in range(5_000):
        task.step_ms = 0 if number % 2 else 10**9 + number
        task.unsent_ms = 10**9 - number
        slot.turns.touch(task)
        slot.step()
    turns = slot.turns
    assert len(turns._others) <= 1
    assert max(len(turns._waiting._heap), len(turns._unsent._heap)) < 100
