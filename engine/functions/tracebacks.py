"""What the writer of a program wants to know of a function that raised: its own lines, and what it was called with.

Tracebacks begin with the first frame of a user's function, without ours. What it was called with is noted on the error
while that passes, where it is known, and said where the error gets its place: the loops that call users' functions know
the record and the key, those around them the window. So nothing needs to be kept for the case that a call fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from operator import length_hint
from types import TracebackType
from typing import Any

from ..columns.records import MIN_TIMESTAMP, Timestamps
from ..errors import HeadraceError

__all__ = [
    "EventTime",
    "note_event_time",
    "note_in_hand",
    "taken_last",
    "users_traceback",
    "what_was_in_hand",
    "without_engine_frames",
]

_OUR_CALLERS = ("headrace.engine.", "headrace.actors.", "headrace.table.functions")
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


# ------------------------------------------------------------------------------------------------ what was in hand


class EventTime(int):
    """Epoch milliseconds that an error shows as a time, where a calendar knows it."""

    def __repr__(self) -> str:
        try:
            at = datetime.fromtimestamp(self / 1_000, timezone.utc)
        except (OverflowError, ValueError, OSError):
            return str(int(self))
        return f"{at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


_NAME = "_headrace_in_hand"
_ORDER = ("record", "rows", "key", "window", "event_time")


def note_in_hand(error: BaseException, **about: Any) -> None:
    """Note what a function was called with; what was noted closer to the function counts.

    Args:
        error: What it raised.
        **about: ``record``, ``rows`` (their number), ``key``, ``window``, ``event_time``.
    """
    noted: dict[str, Any] = error.__dict__.setdefault(_NAME, {})
    for what, value in about.items():
        noted.setdefault(what, value)


def note_event_time(error: BaseException, rows: Sequence[Any], times: Timestamps | None) -> None:
    """Note when the record happened that a function was called with, if that was noted.

    Args:
        error: What the function raised.
        rows: The records of which it is one.
        times: Their event times; None if they have none.
    """
    noted = error.__dict__.get(_NAME, {})
    if times is None or "record" not in noted:
        return
    index = next((i for i, row in enumerate(rows) if row is noted["record"]), None)
    if index is not None and times[index] > MIN_TIMESTAMP:
        noted.setdefault("event_time", EventTime(int(times[index])))


def what_was_in_hand(error: BaseException, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was noted, and what else is known, in the order in which it is shown; the notes are taken off.

    Args:
        error: What a function raised.
        about: What is known where the error gets its place.
    """
    known = {**about, **error.__dict__.pop(_NAME, {})}
    return {what: known[what] for what in sorted(known, key=_ORDER.index)}


def taken_last(rows: Sequence[Any], pending: Any) -> int:
    """Return the index of the record that a list's iterator gave last; 0 if it has given none."""
    return max(len(rows) - length_hint(pending) - 1, 0)
