"""Calls of a user's object that run outside the task's thread, and how what they raise comes back.

A coroutine function runs on the host's one event loop, any other in a thread of its own; ``open`` and ``close`` of the
object run where its calls run, so a client that is bound to its loop is made and used on the same one. A caller that
makes calls is told of their ends on the task's thread (`headrace.engine.functions.operator.OperatorContext.offload`),
so no operator that asks the outside ever blocks its slot or needs a lock.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import UserFunctionError
from ..functions.operator import OffloadEnd, OperatorContext, place_of
from ..functions.user_function import UserFunction, raise_in_function
from ..kernel.machine import OffloadKind

__all__ = ["MAX_WAIT_MS", "OutsideCalls"]

MAX_WAIT_MS = 60_000
"""So long ``open`` and ``close`` may wait for a thread; the job's history says so if they take longer once they run."""


class _Watched:
    """A call of ``open`` or ``close`` that something waits for.

    Args:
        call: The call.
    """

    __slots__ = ("_call", "cancel_alarm", "has_begun")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        # Set where it runs.
        self.has_begun = False
        # Of the alarm that is set.
        self.cancel_alarm: Callable[[], None] | None = None

    def __call__(self) -> Any:
        self.has_begun = True
        return self._call()


class OutsideCalls:
    """The calls of one function object.

    Args:
        function: The user's.

    Attributes:
        kind: Where they run.
    """

    def __init__(self, function: UserFunction) -> None:
        self._function = function
        call = function.bind()
        is_coroutine = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
        self.kind: OffloadKind = "coroutine" if is_coroutine else "blocking"
        self._watched: _Watched | None = None

    def begin_if_there(self, context: OperatorContext, name: str, on_end: OffloadEnd | None, *arguments: Any) -> bool:
        """Have ``open`` or ``close`` of the object run; False if it has none of that name.

        The threads are those of the process: calls that never return, also of attempts that have ended, may hold them
        all. A call that waits for one too long fails the task; not if nothing waits for its end (``on_end`` is None).
        """
        self.leave()
        function = self._function.function
        method = getattr(function, name, None) if self._function.has_life else None
        if not callable(method):
            return False
        work = self.work_of(method, *arguments)
        if on_end is None:
            context.offload(work, lambda _result, _error: None, self.kind)
            return True
        watched = self._watched = _Watched(work)

        def ended(result: Any, error: BaseException | None) -> None:
            self.leave()
            on_end(result, error)

        context.offload(watched, ended, self.kind)
        alarm = context.call_later(MAX_WAIT_MS, functools.partial(self._look, context, name, watched))
        watched.cancel_alarm = functools.partial(context.cancel_offload, alarm)
        return True

    def leave(self) -> None:
        """Wait no longer for ``open`` or ``close``."""
        watched, self._watched = self._watched, None
        if watched is not None and watched.cancel_alarm is not None:
            watched.cancel_alarm()

    def _look(self, context: OperatorContext, name: str, watched: _Watched) -> None:
        watched.cancel_alarm = None
        seconds, what = MAX_WAIT_MS // 1_000, f"{self._function.name}.{name}"
        if watched.has_begun:
            context.warn(f"{what} has not returned for {seconds} s; it is waited for")
            return
        message = f"{what} has waited {seconds} s for a thread of the process: calls that have not returned hold them"
        hint = "give the clients of services a timeout, or use coroutine functions"
        place = place_of(context.name, context.subtask, context.parallelism)
        raise UserFunctionError(message, hint=hint, **place, function=what)

    def work_of(self, method: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Return a call to be offloaded, of a method that may be a coroutine function or not."""
        if self.kind == "coroutine":
            return functools.partial(_awaited, method, *arguments)
        return functools.partial(method, *arguments)

    def fail(self, context: OperatorContext, error: BaseException, method: str | None, record: Any = None) -> NoReturn:
        """Raise what a call raised again, with its place.

        Args:
            context: Of the operator.
            error: What it raised.
            method: Which; None for the object itself, as a function.
            record: What it was called for, if that is one record.

        Raises:
            HeadraceError: Always.
        """
        if not isinstance(error, Exception):  # SystemExit, or a CancelledError that nobody but the function asked for
            message = f"the call was interrupted: {error!r}"
            error = UserFunctionError(message)
        name = self._function.name if method is None else f"{self._function.name}.{method}"
        raise_in_function(error, name, context, **({} if record is None else {"record": record}))


async def _awaited(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call on the event loop what may or may not be a coroutine function."""
    result = method(*arguments)
    return await result if inspect.isawaitable(result) else result
