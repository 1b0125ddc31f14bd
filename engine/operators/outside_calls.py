"""Calls of a user's object that run outside the task's thread, and how what they raise comes back.

A coroutine function runs on the host's one event loop, any other in a thread of its own; ``open`` and ``close`` of the
object run where its calls run, so a client that is bound to its loop is made and used on the same one. Whoever makes
calls is told of their ends on the task's thread (`headrace.engine.functions.operator.OperatorContext.offload`), so no
operator that asks the outside ever blocks its slot or needs a lock.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import HeadraceError, UserFunctionError
from ..functions.contract import UserFunction, raise_in_function
from ..functions.operator import OffloadEnd, OperatorContext
from ..kernel.machine import OffloadKind

__all__ = ["OutsideCalls"]


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

    def begin_if_there(self, context: OperatorContext, name: str, on_end: OffloadEnd, *arguments: Any) -> bool:
        """Have a method of the object run; False if it has none of that name."""
        function = self._function.function
        method = getattr(function, name, None) if self._function.has_life else None
        if not callable(method):
            return False
        context.offload(self.work_of(method, *arguments), on_end, self.kind)
        return True

    def work_of(self, method: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """A call to be offloaded, of a method that may be a coroutine function or not."""
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
        try:
            raise_in_function(error, name, context)
        except HeadraceError as failure:
            if record is not None:
                failure.context.setdefault("record", repr(record)[:200])
            raise


async def _awaited(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call on the event loop what may or may not be a coroutine function."""
    result = method(*arguments)
    return await result if inspect.isawaitable(result) else result
