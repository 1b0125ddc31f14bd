"""The tasks of spouts: each in a thread of its own, as a spout may block; asked for tuples until many enough wait.

Between two calls it is told what is acknowledged. When it is to end though messages are not acknowledged (the job is
canceled, or goes on from an earlier checkpoint), it is told that these have failed, as Storm does for messages whose
time is over. A process that is killed tells nobody anything: what its spouts have not had acknowledged is for whatever
they read to give again.

Source: Storm's ``ShellSpout``, ``SpoutExecutor``; pystorm's ``Spout``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headrace.engine.connectors.contract import ReaderContext
from headrace.engine.errors import HeadraceError, ProgramError, UserFunctionError
from headrace.engine.functions.tracebacks import users_traceback

from ..connectors.messages.client_thread import ClientThread
from .components import Spout
from .groupings import Emission, Router
from .layout import DEFAULT_STREAM, Layout
from .shell_program import LOG, ShellProgram

__all__ = ["PythonSpoutCalls", "ShellSpoutCalls", "SpoutCalls", "SpoutTask", "SpoutTuple"]

EMPTY_PAUSE_S = 0.001
"""How long to wait when a spout has nothing; so does Storm."""

FULL_PAUSE_S = 0.005
MOST_WAITING = 256
"""How many answers of a spout may wait to be taken."""

FAIL_S = 2.0
"""How long a spout may take, when it is to end, to hear what has failed."""


class SpoutTuple(NamedTuple):
    """A tuple that a spout has emitted."""

    emission: Emission
    message_id: Any


class SpoutCalls(ABC):
    """Calls the methods of one spout; all in one thread, but for `check` and `end`."""

    def __init__(self) -> None:
        # Errors that the spout has reported, for the one that takes its tuples.
        self.reported: deque[str] = deque()

    @abstractmethod
    def start(self) -> None:
        """Get it ready."""

    @abstractmethod
    def call(self, command: str, message_id: Any = None) -> Sequence[SpoutTuple]:
        """Have it do what the protocol calls ``next``, ``ack``, ``fail``, ``activate`` or ``deactivate``; gives what it
        emits meanwhile.
        """

    @abstractmethod
    def check(self) -> None:
        """See that it does not hang."""

    @abstractmethod
    def end(self) -> None:
        """End it; may be called twice."""

    @abstractmethod
    def write_log(self) -> None:
        """Write into the log what waits for that; called by the reader."""


class PythonSpoutCalls(SpoutCalls):
    """A spout of Python."""

    def __init__(self, spout: Spout, router: Router, layout: Layout, component: str, context: ReaderContext) -> None:
        super().__init__()
        self._spout = spout
        self._router = router
        self._layout = layout
        self._component = component
        self._context = context
        self._emitted: list[SpoutTuple] = []
        self._is_started = False

    def start(self) -> None:
        self._spout._collector = self
        self._is_started = True
        layout, task = self._layout, self._router.task
        self._run("initialize", layout.conf_of(self._component), layout.context_of(self._component, task))

    def call(self, command: str, message_id: Any = None) -> Sequence[SpoutTuple]:
        if command in ("ack", "fail"):
            self._run(command, message_id)
        else:
            self._run("next_tuple" if command == "next" else command)
        emitted, self._emitted = self._emitted, []
        return emitted

    def _run(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._spout, method)(*arguments)
        except HeadraceError:
            raise
        except BaseException as error:
            name = f"{type(self._spout).__name__}.{method}"
            message = f"{name} raised {type(error).__name__}: {error}"
            trace = users_traceback(error)
            raise UserFunctionError(message, component=self._component, traceback=trace) from error

    def emit(self, values: Iterable[Any], stream: str | None, message_id: Any, direct: int | None) -> list[int]:
        """Take a tuple."""
        try:
            hash(message_id)
        except TypeError as error:
            message = f"the id of a message is told apart from others by its hash; {error}"
            raise ProgramError(message) from error
        is_tracked = message_id is not None
        emission = self._router.route(stream or DEFAULT_STREAM, values, is_tracked=is_tracked, direct=direct)
        self._emitted.append(SpoutTuple(emission, message_id))
        return self._router.task_ids(emission)

    def metric(self, name: str, value: Any) -> None:
        """Take what the spout has measured."""
        _note_metric(self._context, self._component, name, value)

    def check(self) -> None:
        """Do nothing: a spout of Python may block as long as it likes."""

    def write_log(self) -> None:
        """Do nothing: a spout of Python writes its log itself."""

    def end(self) -> None:
        if self._is_started:
            self._is_started = False
            self._run("stop")


class ShellSpoutCalls(SpoutCalls):
    """A spout that is an external program."""

    def __init__(
        self, program: ShellProgram, router: Router, layout: Layout, component: str, context: ReaderContext
    ) -> None:
        super().__init__()
        self._program = program
        self._router = router
        self._layout = layout
        self._component = component
        self._context = context
        self._place = f"component {component!r}, task {router.task}"

    def start(self) -> None:
        layout, component = self._layout, self._component
        self._program.start(layout.conf_of(component), layout.context_of(component, self._router.task))

    def call(self, command: str, message_id: Any = None) -> Sequence[SpoutTuple]:
        self._program.owes(True)
        try:
            return self._talk(command, message_id)
        except ProgramError as error:
            raise self._program.failed(error.message) from error
        finally:
            self._program.owes(False)

    def _talk(self, command: str, message_id: Any) -> list[SpoutTuple]:
        self._program.send({"command": command} if message_id is None else {"command": command, "id": message_id})
        emitted: list[SpoutTuple] = []
        while (message := self._program.receive()).command != "sync":
            if message.command == "emit":
                is_tracked = message.message_id is not None
                emission = self._router.route(
                    message.stream, message.values, is_tracked=is_tracked, direct=message.task
                )
                if message.wants_tasks:
                    self._program.send(self._router.task_ids(emission))
                emitted.append(SpoutTuple(emission, message.message_id))
            elif message.command == "metrics":
                _note_metric(self._context, self._component, message.name, message.params)
            elif message.command in ("log", "error"):
                self._program.note(message)
                if message.command == "error":
                    self.reported.append(f"{self._place} reports an error: {message.text[:1_000]}")
            else:
                error = f"a spout does not say {message.command!r}"
                raise ProgramError(error)
        return emitted

    def check(self) -> None:
        self._program.end_if_it_hangs()
        self._program.write_log()

    def end(self) -> None:
        self._program.stop()

    def write_log(self) -> None:
        self._program.write_log()


def _note_metric(context: ReaderContext, component: str, name: str, value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        context.metrics.gauge(f"storm.{name}", float(value))
    else:
        LOG.info("component %r: metric %s is %r", component, name, value)


class SpoutTask(ClientThread):
    """One task of a spout.

    Args:
        name: Of the thread.
        calls: Of the spout.
        max_pending: How many messages may be emitted and not acknowledged; None for any number.
        tracks: Whether messages are acknowledged when a checkpoint covers them, and not at once.
    """

    def __init__(self, name: str, calls: SpoutCalls, max_pending: int | None, *, tracks: bool) -> None:
        super().__init__(name, MOST_WAITING, 0.0)
        self._calls = calls
        self._max_pending = max_pending
        self._tracks = tracks
        # Ids of what is acknowledged, put in by the reader and taken out by the thread.
        self._acked: deque[Any] = deque()
        # Ids of what was emitted and is not acknowledged.
        self._pending: Counter[Any] = Counter()
        self._num_pending = 0
        # What a spout has emitted when it heard of an acknowledgement.
        self._later: list[SpoutTuple] = []
        self._is_started = False
        self.waits_for_checkpoint = False

    def acknowledge(self, message_ids: Iterable[Any]) -> None:
        """Have messages acknowledged; called by the reader."""
        self._acked.extend(message_ids)

    def check(self) -> Iterable[str]:
        """See that the spout does not hang; gives what errors it has reported. Called by the reader."""
        self._calls.check()
        while self._calls.reported:
            yield self._calls.reported.popleft()

    def end_spout(self) -> None:
        """End a spout that does not end by itself; called by the reader."""
        self._calls.end()
        self._calls.write_log()

    # ---------------------------------------------------------------------------------------------------- in the thread
    def connect(self) -> None:
        self._calls.start()
        self._is_started = True
        self._emit(self._calls.call("activate"))

    def work(self) -> None:
        self._tell_acked()
        later, self._later = self._later, []
        self._emit(later)
        self.waits_for_checkpoint = self._max_pending is not None and self._num_pending >= self._max_pending
        if self.waits_for_checkpoint:
            self.pause(FULL_PAUSE_S)
            return
        emitted = self._calls.call("next")
        if emitted:
            self._emit(emitted)
        else:
            self.pause(EMPTY_PAUSE_S)

    def _emit(self, emitted: Sequence[SpoutTuple]) -> None:
        if not emitted:
            return
        for one in emitted:
            if one.message_id is None:
                continue
            if self._tracks:
                self._pending[one.message_id] += 1
                self._num_pending += 1
            else:
                self._acked.append(one.message_id)
        self.give(emitted)

    def while_waiting(self) -> None:
        self._tell_acked()

    def _tell_acked(self) -> None:
        while self._acked:
            message_id = self._acked.popleft()
            self._forget(message_id)
            self._later += self._calls.call("ack", message_id)

    def _forget(self, message_id: Any) -> None:
        if self._pending[message_id] > 0:
            self._num_pending -= 1
        self._pending[message_id] -= 1
        if self._pending[message_id] <= 0:
            del self._pending[message_id]

    def disconnect(self) -> None:
        if self._is_started:
            self._is_started = False
            self._try(self._say_what_failed)
        self._try(self._calls.end)

    @staticmethod
    def _try(call: Callable[[], None]) -> None:
        """Do the last of what there is to do: if it goes wrong, that changes nothing any more."""
        try:
            call()
        except HeadraceError as error:
            LOG.warning("a spout that ends has failed: %s", error)

    def _say_what_failed(self) -> None:
        """Tell a spout that ends what was acknowledged last, and what is to come again; it may have failed itself."""
        until = time.monotonic() + FAIL_S
        self._tell_acked()
        for message_id in list(self._pending.elements()):
            if time.monotonic() > until:
                LOG.warning("a spout takes long to hear what has failed; it is not told all")
                break
            self._calls.call("fail", message_id)
        self._calls.call("deactivate")
