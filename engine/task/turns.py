"""Whose turn it is in a slot: which tasks can go on, and when the others will want to.

A slot may have hundreds of tasks, and most of them wait. Asking each before each step whether it can go on costs more
than the step. What a task answers follows from its state alone, and that changes only when something happens to it: a
message or the end of work outside, a step of its own, or sending what it has gathered. So the slot says which tasks it
has *touched*; they are asked again, and of all others the last answer holds:

* it can go on at once: it waits for its turn;
* it can at some time, as a timer or a source's next poll is due then;
* it cannot until it is touched.

Beside it is kept when gathered output is to be sent at the latest.

Invariant: of a task that has not been touched the kept answer is what it would answer now. The simulator compares all
of them at each step (``tests/simulation/turns.py``): a task that was touched unnoticed would wait for ever.

Source: Flink's mailbox, where input that becomes available completes a future.
"""

from __future__ import annotations

import heapq

from ..functions.timers import DueQueue
from .task import Task

__all__ = ["SOURCE_TURN", "Turns"]

SOURCE_TURN = 8
"""Of so many steps one goes to a source, if there is one that can run, however much has arrived for the others."""


class _Place:
    """What is known of one task."""

    __slots__ = ("is_queued", "is_ready", "last_turn", "number", "step_ms", "task", "unsent_ms")

    def __init__(self, task: Task, number: int) -> None:
        self.task = task
        # In the order in which tasks came.
        self.number = number
        # The number of its last turn, 0 for none.
        self.last_turn = 0
        # Whether it can go on; whether it is in the queue of those, where it may stay for a while when it cannot.
        self.is_ready = self.is_queued = False
        # Later times: when it can go on, and when output is to be sent; None if nothing waits for time.
        self.step_ms: int | None = None
        self.unsent_ms: int | None = None


class Turns:
    """The tasks of a slot, by when they can go on.

    Used as follows, at each step: `ask_touched`; `take_next`; for each of `take_touched`, `note`; `can_go_on` and
    `wake_ms` say when there is to be another step.
    """

    def __init__(self) -> None:
        self._places: dict[Task, _Place] = {}
        # The same by number.
        self._numbered: dict[int, _Place] = {}
        self._num_added = 0
        # Turns taken.
        self._turn = 0
        # Those that something has happened to since `take_touched`.
        self._touched: dict[int, _Place] = {}
        # Those that can go on, as (last turn, number): sources, and others.
        self._sources: list[tuple[int, int]] = []
        self._others: list[tuple[int, int]] = []
        # Numbers of those that can at some time, and of those with output to be sent.
        self._waiting = DueQueue()
        self._unsent = DueQueue()

    def add(self, task: Task) -> None:
        """Add a task that has come to the slot."""
        self._num_added += 1
        place = self._places[task] = self._numbered[self._num_added] = _Place(task, self._num_added)
        self._touched[place.number] = place

    def remove(self, task: Task) -> None:
        """Forget a task that has ended."""
        place = self._places.pop(task)
        place.is_ready = False
        del self._numbered[place.number]
        self._touched.pop(place.number, None)
        self._waiting.remove(place.number)
        self._unsent.remove(place.number)

    def clear(self) -> None:
        """Forget all tasks."""
        for task in list(self._places):
            self.remove(task)

    # ----------------------------------------------------------------------------------------------------------- asking
    def touch(self, task: Task) -> None:
        """Note that something happens to a task."""
        place = self._places[task]
        self._touched[place.number] = place

    def ask_touched(self) -> None:
        """Ask those that have been touched when they can go on; they stay touched, as they may have output to send."""
        for place in self._touched.values():
            self._note_step(place, place.task.next_step_ms())

    def take_touched(self, now_ms: int) -> list[Task]:
        """Return those that have been touched and those whose output is due, in the order in which they came."""
        unsent = self._unsent
        while (number := unsent.first_due(now_ms)) is not None:
            place = self._touched[number] = self._numbered[number]
            self._note_unsent(place, None)
        touched, self._touched = self._touched, {}
        return [touched[number].task for number in sorted(touched)]

    def note(self, task: Task, step_ms: int | None, unsent_ms: int | None) -> None:
        """Take what a task answers now.

        Args:
            task: The task.
            step_ms: When it can go on: `headrace.engine.task.task.Task.next_step_ms`.
            unsent_ms: When it has output to send, None if nothing waits for time.
        """
        place = self._places[task]
        self._note_step(place, step_ms)
        self._note_unsent(place, unsent_ms)

    def _note_step(self, place: _Place, step_ms: int | None) -> None:
        place.is_ready = step_ms == 0
        if place.is_ready:
            self._queue(place)
            step_ms = None
        if step_ms != place.step_ms:
            place.step_ms = step_ms
            self._waiting.remove(place.number)
            if step_ms is not None:
                self._waiting.add(step_ms, place.number)

    def _note_unsent(self, place: _Place, unsent_ms: int | None) -> None:
        if unsent_ms != place.unsent_ms:
            place.unsent_ms = unsent_ms
            self._unsent.remove(place.number)
            if unsent_ms is not None:
                self._unsent.add(unsent_ms, place.number)

    # ------------------------------------------------------------------------------------------------------------ turns
    def take_next(self, now_ms: int) -> Task | None:
        """Give the turn to a task that can go on, None if there is none; it is to be touched.

        What has arrived is worked off before sources bring more. Queues stay short that way, so barriers pass soon and
        batches are still in the processor's cache. A source that could run gets every `SOURCE_TURN`-th step
        nevertheless: one that starved beside a busy consumer would hold back event time for the whole job. Among equals
        the one has the turn whose last one is longest ago.
        """
        self._wake(now_ms)
        turn = self._turn + 1
        queues = (self._sources, self._others) if turn % SOURCE_TURN == 0 else (self._others, self._sources)
        for queue in queues:
            place = self._first(queue)
            if place is not None:
                heapq.heappop(queue)
                place.is_ready = place.is_queued = False
                self._turn = place.last_turn = turn
                return place.task
        return None

    def can_go_on(self, now_ms: int) -> bool:
        """Return whether a task can go on now; asked when none is touched."""
        self._wake(now_ms)
        return self._first(self._others) is not None or self._first(self._sources) is not None

    @property
    def wake_ms(self) -> int | None:
        """When there is something to do if nothing happens, None for never; asked when no task can go on now."""
        times = [time for time in (self._waiting.next_time(), self._unsent.next_time()) if time is not None]
        return min(times, default=None)

    def _wake(self, now_ms: int) -> None:
        """Let those whose time has come wait for their turn."""
        while (number := self._waiting.first_due(now_ms)) is not None:
            place = self._numbered[number]
            self._waiting.remove(number)
            place.step_ms, place.is_ready = None, True
            self._queue(place)

    def _queue(self, place: _Place) -> None:
        if not place.is_queued:
            place.is_queued = True
            queue = self._sources if place.task.is_source else self._others
            heapq.heappush(queue, (place.last_turn, place.number))

    def _first(self, queue: list[tuple[int, int]]) -> _Place | None:
        """The first of a queue that can still go on."""
        while queue:
            place = self._numbered.get(queue[0][1])
            if place is not None:
                if place.is_ready:
                    return place
                place.is_queued = False
            heapq.heappop(queue)
        return None
