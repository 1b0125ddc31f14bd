"""The task of a bolt: gets tuples, and gives what was emitted, acknowledged and failed, in that order.

`PythonBoltTask` calls an object of Python, which is done when `give` returns. `ShellBoltTask` has a program in two
threads of its own: one writes to it (numbers of tasks first, as the program waits for them), the other one reads, and
chooses the tasks that get what it emits. Neither ever waits for the operator's thread but when nobody takes what the
program says.

Source: Storm's ``ShellBolt``; pystorm's ``Bolt``.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import HeadraceError, ProgramError, UserFunctionError
from headrace.engine.functions.checkpointed import attach
from headrace.engine.functions.isolation import copied
from headrace.engine.functions.operator import OperatorContext
from headrace.engine.functions.user_function import raise_in_function

from .components import Bolt, Tuple
from .groupings import Emission, Router, Sent
from .layout import DEFAULT_STREAM, SYSTEM_TASK, TICK_STREAM, Layout
from .multilang import Message, heartbeat, tuple_message
from .shell_program import LOG, ShellProgram

__all__ = [
    "Acked",
    "BoltTask",
    "Event",
    "Failed",
    "Given",
    "InFlight",
    "PythonBoltTask",
    "ShellBoltTask",
    "note_metric",
]

HEARTBEAT_S = 1.0
MOST_EVENTS = 10_000
"""How much of what a program says may wait to be taken."""

MOST_AT_ONCE = 256
"""How many tuples are written in one go."""

MOST_UNTRACKED = 10_000
"""How many tuples are remembered that nobody waits for."""


class Given:
    """A tuple that a bolt was given."""

    __slots__ = ("attempts", "component", "number", "sent", "since")

    def __init__(self, number: str, sent: Sent, component: str, attempts: int) -> None:
        self.number = number
        self.sent = sent
        self.component = component
        # How often the bolt has failed it.
        self.attempts = attempts
        # When it was written (monotonic seconds); None while it waits for that.
        self.since: float | None = None


class InFlight:
    """The tuples that a bolt was given and has not acknowledged, by the ids that it knows them by.

    What need not be acknowledged is remembered for a while only, as a bolt may never do so.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._number = 0
        self.tracked: dict[str, Given] = {}
        self._untracked: dict[str, Given] = {}

    def add(self, sent: Sent, attempts: int = 0) -> Given:
        """Take a tuple that is to be given."""
        self._number += 1
        component = self._layout.component_of(sent.task)
        given = Given(str(self._number), sent, component, attempts)
        if sent.is_tracked:
            self.tracked[given.number] = given
        else:
            self._untracked[given.number] = given
            if len(self._untracked) > MOST_UNTRACKED:
                del self._untracked[next(iter(self._untracked))]
        return given

    def tick(self, seconds: float) -> Given:
        """A tuple of the clock."""
        return self.add(Sent(SYSTEM_TASK, TICK_STREAM, (seconds,), is_tracked=False, target=0))

    def is_tracked(self, anchors: Iterable[str]) -> bool:
        """Return whether tuples that are made from these are to be acknowledged. May be called in any thread.

        Raises:
            ProgramError: If the bolt was never given one of them.
        """
        found = False
        for number in anchors:
            self.check(number)
            # One that is done already was tracked, unless it is known not to be.
            found |= number not in self._untracked
        return found

    def check(self, number: str) -> None:
        """See that the bolt was given a tuple of that id; raises `ProgramError` if not."""
        is_number = isinstance(number, str) and number.isascii() and number.isdecimal() and len(number) < 20
        if not is_number or not 0 < int(number) <= self._number:
            message = f"it was given no tuple with the id {number!r}"
            raise ProgramError(message)

    def done(self, number: str) -> Given | None:
        """Forget a tuple; None if that has happened before.

        Raises:
            ProgramError: If there was none of that id.
        """
        self.check(number)
        found = self.tracked.pop(number, None)
        return found if found is not None else self._untracked.pop(number, None)

    def first_since(self) -> tuple[Given, float] | None:
        """Return the tuple that has waited for longest to be acknowledged, and since when."""
        for given in self.tracked.values():
            return None if given.since is None else (given, given.since)
        return None


@dataclass(frozen=True, slots=True)
class Acked:
    """A bolt has worked a tuple off."""

    number: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A bolt could not work a tuple off."""

    number: str


Event = Emission | Acked | Failed


class BoltTask(ABC):
    """One task of a bolt."""

    polls = False
    """Whether it must be asked again and again."""

    heard_since = 0.0
    """Since when nothing that the bolt says has had to wait for the operator (monotonic seconds)."""

    num_waiting = 0
    """How many tuples have not got to the bolt."""

    is_synced = True
    """Whether all that was given before `sync` has got to the bolt."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def give(self, tuples: Sequence[Given]) -> None:
        """Give tuples to the bolt."""

    @abstractmethod
    def take(self) -> Sequence[Event]:
        """Return what the bolt has done since the last call.

        Raises:
            HeadraceError: If it has failed.
        """

    @abstractmethod
    def sync(self) -> None:
        """Have the bolt say when it has got what was given so far."""

    @abstractmethod
    def close(self) -> None:
        """End it."""


def note_metric(context: OperatorContext, place: str, name: str, value: Any) -> None:
    """Keep what a component has measured: a number as a gauge, all else in the log."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        context.metrics.gauge(f"storm.{name}", float(value))
    else:
        LOG.info("%s: metric %s is %r", place, name, value)


class PythonBoltTask(BoltTask):
    """Calls a bolt of Python, on the operator's thread."""

    def __init__(
        self, bolt: Bolt, router: Router, in_flight: InFlight, layout: Layout, context: OperatorContext
    ) -> None:
        self._bolt = bolt
        self._router = router
        self._in_flight = in_flight
        self._layout = layout
        self._context = context
        self._events: list[Event] = []
        self._is_started = False

    @property
    def _name(self) -> str:
        return type(self._bolt).__name__

    def start(self) -> None:
        bolt, context = self._bolt, self._context
        attach(bolt, context, None, lambda error, method: raise_in_function(error, f"{self._name}.{method}", context))
        bolt._collector = self
        component = self._layout.owner_of(self._router.task)
        assert component is not None
        self._is_started = True
        try:
            bolt.initialize(
                self._layout.conf_of(component[0]), self._layout.context_of(component[0], self._router.task)
            )
        except BaseException as error:
            raise_in_function(error, f"{self._name}.initialize", context)

    def give(self, tuples: Sequence[Given]) -> None:
        bolt = self._bolt
        for given in tuples:
            given.since = time.monotonic()
            sent = given.sent
            is_tick = sent.stream == TICK_STREAM and sent.task == SYSTEM_TASK
            values = sent.values if self._context.reuses_objects else copied(sent.values)
            tup = Tuple(given.number, given.component, sent.stream, sent.task, list(values))
            bolt._current = tup
            try:
                if is_tick:
                    bolt.process_tick(tup)
                else:
                    bolt.process(tup)
            except BaseException as error:
                name = f"{self._name}.{'process_tick' if is_tick else 'process'}"
                raise_in_function(error, name, self._context, record=tup.values)
            finally:
                bolt._current = None
            if bolt.auto_ack or is_tick:
                self.ack(given.number)

    def take(self) -> Sequence[Event]:
        events, self._events = self._events, []
        return events

    def sync(self) -> None:
        """Do nothing: a bolt of Python has a tuple once it was given."""

    def emit(self, values: Iterable[Any], stream: str | None, anchors: Sequence[str], direct: int | None) -> list[int]:
        """Take a tuple."""
        is_tracked = self._in_flight.is_tracked(anchors)
        emission = self._router.route(stream or DEFAULT_STREAM, values, is_tracked=is_tracked, direct=direct)
        self._events.append(emission)
        return self._router.task_ids(emission)

    def ack(self, number: str) -> None:
        """Acknowledge a tuple that is worked off."""
        self._events.append(Acked(number))

    def fail(self, number: str) -> None:
        """Give back a tuple that could not be worked off."""
        self._events.append(Failed(number))

    def metric(self, name: str, value: Any) -> None:
        """Take what the bolt has measured."""
        note_metric(self._context, self._name, name, value)

    def close(self) -> None:
        if self._is_started:
            self._is_started = False
            try:
                self._bolt.stop()
            except BaseException as error:
                raise_in_function(error, f"{self._name}.stop", self._context)


class ShellBoltTask(BoltTask):
    """Has an external program.

    Args:
        program: Not started.
        place: Component and task, for the log.
        router: Chooses who gets what it emits.
        in_flight: What it was given.
        setup: Its settings, and its place.
        context: Of the operator.
    """

    polls = True

    def __init__(
        self,
        program: ShellProgram,
        place: str,
        router: Router,
        in_flight: InFlight,
        setup: tuple[dict[str, Any], dict[str, Any]],
        context: OperatorContext,
    ) -> None:
        self._program = program
        self._place = place
        self._router = router
        self._in_flight = in_flight
        self._setup = setup
        self._context = context
        # Guards what follows.
        self._changed = threading.Condition()
        self._task_ids: deque[list[int]] = deque()
        self._tuples: deque[Given] = deque()
        self._events: deque[Event] = deque()
        self._metrics: deque[tuple[str, Any]] = deque()
        self._warnings: deque[str] = deque()
        # Heartbeats that were sent, and answers to them.
        self._num_beats = self._num_syncs = 0
        # At how many answers all that was given before `sync` has got there; None for a beat that is still to be sent.
        self._synced_at: int | None = 0
        self._wants_beat = False
        # Whether what the program says waits for the operator.
        self._is_held = False
        self._is_stopped = False
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"{name} {place}", daemon=True)
            for name, work in (("reads", self._read), ("writes", self._write))
        ]
        self._is_ready = threading.Event()

    # --------------------------------------------------------------------------------------------- on the task's thread
    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def give(self, tuples: Sequence[Given]) -> None:
        with self._changed:
            self._tuples.extend(tuples)
            self._changed.notify_all()

    @property
    def num_waiting(self) -> int:  # type: ignore[override]
        """How many tuples are not written yet."""
        return len(self._tuples)

    def take(self) -> Sequence[Event]:
        if not self._is_held:
            self._program.end_if_it_hangs()
        self._program.write_log()
        with self._changed:
            events, self._events = self._events, deque()
            self._changed.notify_all()
        while self._metrics:
            note_metric(self._context, self._place, *self._metrics.popleft())
        while self._warnings:
            self._context.warn(self._warnings.popleft())
        if not events and self._error is not None:
            raise self._error
        return list(events)

    def sync(self) -> None:
        with self._changed:
            self._synced_at, self._wants_beat = None, True
            self._changed.notify_all()

    @property
    def is_synced(self) -> bool:  # type: ignore[override]
        """Whether the program has answered a heartbeat behind all that was given before `sync`."""
        with self._changed:
            return self._synced_at is not None and self._num_syncs >= self._synced_at

    def close(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._program.stop()
        self._program.write_log()

    # ------------------------------------------------------------------------------------------------- in other threads
    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            if not isinstance(error, HeadraceError):
                message = f"the task of {self._place} has failed: {error!r}"
                error = UserFunctionError(message)
            with self._changed:
                if self._error is None and not self._is_stopped:
                    self._error = error
                self._is_stopped = True
                self._changed.notify_all()
        finally:
            self._is_ready.set()

    def _read(self) -> None:
        self._program.start(*self._setup)
        self._is_ready.set()
        while not self._is_stopped:
            message = self._program.receive()
            try:
                self._act_on(message)
            except ProgramError as error:
                raise self._program.failed(error.message) from error

    def _act_on(self, message: Message) -> None:
        if message.command == "emit":
            is_tracked = self._in_flight.is_tracked(message.anchors)
            emission = self._router.route(message.stream, message.values, is_tracked=is_tracked, direct=message.task)
            if message.wants_tasks:
                with self._changed:
                    self._task_ids.append(self._router.task_ids(emission))
                    self._changed.notify_all()
            self._say(emission)
        elif message.command in ("ack", "fail"):
            self._in_flight.check(message.message_id)
            self._say((Acked if message.command == "ack" else Failed)(message.message_id))
        elif message.command == "sync":
            self._on_sync()
        elif message.command == "metrics":
            self._metrics.append((message.name, message.params))
        else:
            self._program.note(message)
            if message.command == "error":
                self._warnings.append(f"{self._place} reports an error: {message.text[:1_000]}")

    def _say(self, event: Event) -> None:
        with self._changed:
            if len(self._events) >= MOST_EVENTS:
                self._is_held, self.heard_since = True, math.inf
                self._changed.wait_for(lambda: len(self._events) < MOST_EVENTS or self._is_stopped)
                self._is_held, self.heard_since = False, time.monotonic()
                self._program.begin_anew()  # it has not been silent, nobody has listened
            self._events.append(event)

    def _on_sync(self) -> None:
        with self._changed:
            self._num_syncs += 1
            if self._num_syncs >= self._num_beats:
                self._program.owes(False)

    def _write(self) -> None:
        self._is_ready.wait()
        beat_at = time.monotonic() + HEARTBEAT_S
        while not self._is_stopped:
            with self._changed:
                self._changed.wait_for(self._has_work, max(0.0, beat_at - time.monotonic()))
                messages: list[Any] = list(self._task_ids)
                self._task_ids.clear()
                tuples = [self._tuples.popleft() for _ in range(min(MOST_AT_ONCE, len(self._tuples)))]
                messages += [
                    tuple_message(one.number, one.component, one.sent.stream, one.sent.task, one.sent.values)
                    for one in tuples
                ]
                is_beat_wanted = self._wants_beat and not self._tuples
                if is_beat_wanted or time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + HEARTBEAT_S
                    self._num_beats += 1
                    messages.append(heartbeat(f"heartbeat-{self._num_beats}"))
                    self._program.owes(True)
                    if is_beat_wanted:
                        self._wants_beat, self._synced_at = False, self._num_beats
            if messages and not self._is_stopped:
                self._program.send_all(messages)
                now = time.monotonic()
                for given in tuples:
                    given.since = now

    def _has_work(self) -> bool:
        return bool(self._task_ids or self._tuples or self._wants_beat or self._is_stopped)
