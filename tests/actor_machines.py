"""Machines for tests of actor systems: a puppet that does what it is told and remembers what it hears."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.engine.kernel.machine import Address, Asked, Command, Reply, Send, StepOutcome


@dataclass(frozen=True)
class Do:
    """Ask or message: give these commands. Answer: True."""

    commands: list[Command]


@dataclass(frozen=True)
class Until:
    """Ask: answered with everything heard so far, once ``is_enough`` of it holds."""

    is_enough: Callable[[list[Any]], bool]


@dataclass(frozen=True)
class Fail:
    """Message: raise."""

    text: str


class Unpicklable:
    def __reduce__(self):
        message = "this stays where it is"
        raise TypeError(message)


class Puppet:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.heard: list[Any] = []
        self.waiting: list[tuple[str, Until]] = []

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        match event:
            case Asked(ask_id, Do(wanted)):
                commands = [*wanted, Reply(ask_id, True)]
            case Asked(ask_id, Until() as until):
                self.waiting.append((ask_id, until))
            case Do(wanted):
                commands = list(wanted)
            case Fail(text):
                raise ValueError(text)
            case _:
                self.heard.append(event)
        for ask_id, until in list(self.waiting):
            if until.is_enough(self.heard):
                self.waiting.remove((ask_id, until))
                commands.append(Reply(ask_id, list(self.heard)))
        return commands


class Echo:
    """Sends back ``(n, sender)`` as ``n``."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        return [Send(event[1], event[0])] if isinstance(event, tuple) else []


@dataclass(frozen=True)
class Work:
    """Message: take so many steps, each blocking for so long, then send ``done`` to somebody."""

    steps: int
    seconds: float
    then_tell: Address


class Worker:
    """A stepping machine whose steps may block."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.probe: Callable[[str], None] = lambda name: None
        self.clock: Callable[[], int] = lambda: -1
        self.doing = ""
        self.left = 0
        self.work: Work | None = None

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        if isinstance(event, Work):
            self.work = event
            self.left = event.steps
        return []

    def step(self, now_ms: int) -> StepOutcome:
        if self.work is None or not self.left:
            return StepOutcome([], runnable=False)
        self.doing = "working hard (subtask 0)"
        threading.Event().wait(self.work.seconds)
        self.doing = ""
        self.left -= 1
        self.probe("step")
        if self.left:
            return StepOutcome([], runnable=True)
        return StepOutcome([Send(self.work.then_tell, "done")], runnable=False)


def broken(address: Address) -> Any:
    message = f"{address} cannot be built"
    raise ValueError(message)
