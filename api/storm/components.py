"""Spouts and bolts: of Python, in the shape of streamparse and pystorm, and external programs.

What a component does is here; who calls it, and what becomes of what it emits, is in `bolt_tasks` and `spout_tasks`.

Source: pystorm's ``Spout``, ``Bolt``, ``Tuple``; Storm's ``ShellSpout``, ``ShellBolt``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.engine.errors import ConfigurationError, ProgramError

from .layout import SYSTEM_COMPONENT, TICK_STREAM

__all__ = ["Bolt", "BoltCollector", "ShellBolt", "ShellComponent", "ShellSpout", "Spout", "SpoutCollector", "Tuple"]

MOST_RESOURCE_BYTES = 64 << 20


class Tuple(NamedTuple):
    """A tuple as a bolt gets it."""

    id: str
    """What it is acknowledged by."""
    component: str
    """That has emitted it."""
    stream: str
    """That it was emitted to."""
    task: int
    """That has emitted it."""
    values: list[Any]
    """Its values, in the order of the stream's fields."""


class SpoutCollector(Protocol):
    """Takes what a spout emits."""

    def emit(self, values: Iterable[Any], stream: str | None, message_id: Any, direct: int | None) -> list[int]:
        """Take a tuple; gives the numbers of the tasks that get it."""
        ...

    def metric(self, name: str, value: Any) -> None:
        """Take what a component has measured."""
        ...


class BoltCollector(Protocol):
    """Takes what a bolt emits, acknowledges and fails."""

    def emit(self, values: Iterable[Any], stream: str | None, anchors: Sequence[str], direct: int | None) -> list[int]:
        """Take a tuple; gives the numbers of the tasks that get it."""
        ...

    def ack(self, number: str) -> None:
        """Acknowledge a tuple that is worked off."""
        ...

    def fail(self, number: str) -> None:
        """Give back a tuple that could not be worked off."""
        ...

    def metric(self, name: str, value: Any) -> None:
        """Take what a component has measured."""
        ...


class _Component:
    """What spouts and bolts of Python have in common."""

    outputs: Any = None
    """Names of the fields of what it emits to the default stream, and `Stream` objects for others."""

    _collector: Any = None

    @property
    def logger(self) -> logging.Logger:
        """Where it may log."""
        return logging.getLogger(f"headrace.storm.{type(self).__name__}")

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        """Get ready; called once per task.

        Args:
            storm_conf: What was set for the topology and for the component.
            context: Its place, as the protocol tells it: ``taskid``, ``componentid``, ``task->component`` ...
        """

    def stop(self) -> None:
        """Let go of resources; called once per task, also after a failure."""

    def log(self, message: str, level: str = "info") -> None:
        """Write into the log.

        Args:
            message: The text.
            level: ``trace``, ``debug``, ``info``, ``warn`` or ``error``.
        """
        levels = {"trace": logging.DEBUG, "debug": logging.DEBUG, "warn": logging.WARNING, "error": logging.ERROR}
        self.logger.log(levels.get(level, logging.INFO), "%s", message)

    def report_metric(self, name: str, value: Any) -> None:
        """Report a number, as a gauge of the operator."""
        self._collector.metric(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_collector"}


class Spout(_Component, ABC):
    """Emits tuples that come from outside.

    Its methods are called in a thread of its own, one after the other, and may block for a while.
    """

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit the next tuples, or none if there are none; called again and again."""

    def ack(self, tup_id: Any) -> None:
        """Forget a message, if it is kept: a complete checkpoint holds all that it led to."""

    def fail(self, tup_id: Any) -> None:
        """Emit a message again: the job goes on from a checkpoint that does not hold it."""

    def activate(self) -> None:
        """Begin: the first tuple is about to be asked for."""

    def deactivate(self) -> None:
        """End: no further tuple is asked for."""

    def emit(
        self,
        tup: Iterable[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple.

        Args:
            tup: Its values.
            tup_id: What it is acknowledged by; None if it need not be.
            stream: To which stream; None for the default one.
            direct_task: The number of the task that gets it; None for whom the groupings say.
            need_task_ids: Whether to give the numbers of the tasks that get it.

        Raises:
            ProgramError: If the stream is not declared, the tuple has another number of fields, or the task does not
                take it.
        """
        found: list[int] = self._collector.emit(tup, stream, tup_id, direct_task)
        return found if need_task_ids else None


class Bolt(_Component, ABC):
    """Works off tuples, and may emit others.

    One that has state of its subtask (`headrace.CheckpointedFunction`) finds it again after a failure.
    """

    auto_anchor = True
    """Whether what is emitted is anchored to the tuple that is being worked off, if nothing else is said."""
    auto_ack = True
    """Whether a tuple is acknowledged when ``process`` has returned; else by `ack`."""

    _current: Tuple | None = None

    @abstractmethod
    def process(self, tup: Tuple) -> None:
        """Work a tuple off. What it raises fails the subtask."""

    def process_tick(self, tup: Tuple) -> None:
        """Take a tick: one comes each ``topology.tick.tuple.freq.secs`` seconds, if that is set."""

    @staticmethod
    def is_tick(tup: Tuple) -> bool:
        """Return whether a tuple is one of the clock."""
        return tup.component == SYSTEM_COMPONENT and tup.stream == TICK_STREAM

    def emit(
        self,
        tup: Iterable[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple | str] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple.

        Args:
            tup: Its values.
            stream: To which stream; None for the default one.
            anchors: The tuples that it was made from; None for the one that is being worked off, where ``auto_anchor``.
            direct_task: The number of the task that gets it; None for whom the groupings say.
            need_task_ids: Whether to give the numbers of the tasks that get it.

        Raises:
            ProgramError: As `Spout.emit`.
        """
        if anchors is None:
            anchors = [self._current] if self.auto_anchor and self._current is not None else []
        numbers = [anchor.id if isinstance(anchor, Tuple) else anchor for anchor in anchors]
        found: list[int] = self._collector.emit(tup, stream, numbers, direct_task)
        return found if need_task_ids else None

    def ack(self, tup: Tuple | str) -> None:
        """Say that a tuple is worked off."""
        self._collector.ack(tup.id if isinstance(tup, Tuple) else tup)

    def fail(self, tup: Tuple | str) -> None:
        """Say that a tuple could not be worked off: it is given to the bolt again, after a pause."""
        self._collector.fail(tup.id if isinstance(tup, Tuple) else tup)


class ShellComponent:
    """A program of its own that speaks Storm's multi-lang protocol.

    ``ShellBolt("python3", "split.py", outputs=["word"])``.

    Args:
        *command: Its words.
        outputs: Names of the fields of what it emits to the default stream, and `Stream` objects for others.
        env: Variables of its environment, beside those of the process that starts it.
        resources: A folder whose files travel with the program: it runs in a copy of it. None: it runs in the folder of
            the process that starts it, and what it needs must be on each machine.

    Raises:
        ProgramError: If there is no command.
        ConfigurationError: If the resources cannot be read, or are more than 64 MiB.
    """

    def __init__(
        self,
        *command: str,
        outputs: Any = None,
        env: Mapping[str, str] | None = None,
        resources: str | Path | None = None,
    ) -> None:
        if not command or not all(isinstance(word, str) and word for word in command):
            message = f"a {type(self).__name__} needs a command, of texts; got {command!r}"
            raise ProgramError(message, hint='ShellBolt("python3", "split.py", outputs=["word"])')
        self.command = command
        self.outputs = outputs
        self.env = dict(env or {})
        self.resources = None if resources is None else _files_in(Path(resources))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.command))})"


class ShellSpout(ShellComponent):
    """An external program as a spout."""


class ShellBolt(ShellComponent):
    """An external program as a bolt. What it keeps in its memory is no part of checkpoints."""


def _files_in(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        message = f"resources must be a folder; {str(folder)!r} is none"
        raise ConfigurationError(message)
    files: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            size += path.stat().st_size
            if size > MOST_RESOURCE_BYTES:
                message = f"resources travel with the program and are 64 MiB at most; {str(folder)!r} has more"
                raise ConfigurationError(message)
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files
