"""The slow oracle of whose turn it is in a slot: all of its tasks are asked, at each step and after some events.

A slot asks only tasks that something has happened to (`headrace.engine.task.turns`), and goes by what the others have
answered before. Here every slot of a simulated run is compared with one that asks all: what is kept of each task that
has not been touched must be what it answers now, and the turn must go to the task that a scan of all would choose. A
difference names the task: it would have been forgotten, or called in vain, or out of turn. It kills the slot, as any
bug in a machine does; as the job might get over that, it also fails the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from headrace.engine.cluster import task_manager
from headrace.engine.kernel.machine import Command, StepOutcome
from headrace.engine.task.slot import SlotMachine
from headrace.engine.task.task import Task
from headrace.engine.task.turns import SOURCE_TURN, Turns

__all__ = ["ComparedSlot", "chosen_of_all", "slots_compared"]

EVENTS = 4
"""After one in so many events all are asked: an answer that has become old stays so until its task is touched."""


def unsent_ms(task: Task) -> int | None:
    """When output that a task has gathered is to be sent; None if none waits for time."""
    outputs = task._outputs
    times = [channel.due_ms(outputs._buffer_timeout_ms) for channel in outputs._channels]
    return min((time for time in times if time is not None), default=None)


def chosen_of_all(turns: Turns, tasks: list[Task], now_ms: int) -> Task | None:
    """The task that has the next turn, by asking all."""
    runnable = [task for task in tasks if task.is_runnable(now_ms)]
    sources_first = (turns._turn + 1) % SOURCE_TURN == 0
    return min(
        runnable, key=lambda task: (task.is_source != sources_first, turns._places[task].last_turn), default=None
    )


_differences: list[str] = []
"""Those of the present run."""


@contextmanager
def slots_compared() -> Iterator[None]:
    """Compare all slots of the simulated runs within; fails at the end if there was a difference. Also a decorator."""
    _differences.clear()
    with mock.patch.object(task_manager, "SlotMachine", ComparedSlot):
        yield
    assert not _differences, _differences[0]


def _differ(difference: str) -> None:
    _differences.append(difference)
    raise AssertionError(difference)


class ComparedSlot(SlotMachine):
    """A slot that compares."""

    _num_events = 0

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        commands = super().handle(event, now_ms)
        self._num_events += 1
        if self._num_events % EVENTS == 0:
            self._compare()
        return commands

    def step(self, now_ms: int) -> StepOutcome:
        expected = chosen_of_all(self._turns, self.tasks, now_ms)
        self._stepped: Task | None = None
        outcome = super().step(now_ms)
        if self._stepped is not expected:
            _differ(f"{_name(self._stepped)} had the turn of {_name(expected)}")
        self._compare()
        now_ms = self.clock()
        is_runnable = any(task.is_runnable(now_ms) for task in self.tasks)
        if outcome.runnable != is_runnable:
            _differ(f"another step: {outcome.runnable}, by asking all {is_runnable}")
        times = [time for task in self.tasks for time in (task.next_step_ms(), unsent_ms(task)) if time is not None]
        wake_ms = None if is_runnable else min(times, default=None)
        if outcome.wake_at_ms != wake_ms:
            _differ(f"wakes at {outcome.wake_at_ms}, by asking all at {wake_ms}")
        return outcome

    def _run(self, task: Task, now_ms: int) -> None:
        self._stepped = task
        super()._run(task, now_ms)

    def _compare(self) -> None:
        """Compare what is kept of the tasks that have not been touched."""
        turns, now_ms = self._turns, self.clock()
        if list(turns._places) != self.tasks:
            _differ("other tasks have turns")
        for task, place in turns._places.items():
            if place.number in turns._touched:
                continue
            kept, answer = (0 if place.is_ready else place.step_ms), task.next_step_ms()
            is_due = kept == 0 and answer is not None and answer <= now_ms  # its time has come
            if kept != answer and not is_due:
                _differ(f"{_name(task)} goes on at {answer}, and {kept} is kept")
            kept, answer = place.unsent_ms, unsent_ms(task)
            if kept != answer:
                _differ(f"{_name(task)} has output to send at {answer}, and {kept} is kept")


def _name(task: Task | None) -> str:
    return "nobody" if task is None else f"{task.name} ({task.attempt})"
