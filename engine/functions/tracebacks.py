"""Tracebacks as the writer of a program wants them: from the first frame of a user's function on, without ours."""

from __future__ import annotations

import traceback
from types import TracebackType

from ..errors import HeadraceError

__all__ = ["users_traceback", "without_engine_frames"]

_OUR_CALLERS = ("headrace.engine.", "headrace.actors.")
"""Modules that call user functions, here or in an event loop or thread: what is above them in a traceback is ours."""


def users_traceback(error: BaseException) -> str:
    """Return the traceback from the first frame that is not ours, as text; all of it if there is no such frame."""
    return "".join(traceback.format_exception(type(error), error, _users_frames(error) or error.__traceback__))


def without_engine_frames(error: BaseException | None) -> BaseException | None:
    """Return a failure as its user should see it: it and its causes with the frames of users' code alone.

    A failure of another process has no frames any more; one of this process would show all of the engine's.
    """
    seen: set[int] = set()
    one = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None if isinstance(one, HeadraceError) else _users_frames(one) or one.__traceback__
        one = one.__cause__ or one.__context__
    return error


def _users_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame that is not ours; None if there is no such frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OUR_CALLERS):
        trace = trace.tb_next
    return trace
