"""Calling user functions of data sets: opening them, wrapping what they raise, taking what they give.

A failure names the operator, the subtask, the function and, where it is known, the record or the key; nothing of that
costs anything as long as all goes well.

Source: `headrace.engine.functions.contract` does the same for streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NoReturn

from headrace.state.values.sharing import shown

from ..columns.records import Batch
from ..errors import HeadraceError, ProgramError
from ..functions.checkpointed import CheckpointedFunction, CheckpointListener
from ..functions.contract import UserFunction, raise_in_function, records_of
from ..functions.operator import add_place
from .context import DataSetRuntimeContext, TaskContext
from .wire import MAX_BATCH_ROWS

__all__ = ["OpenFunction", "Tracked", "opened", "placed", "record_at"]


class OpenFunction:
    """A user function that is open.

    Attributes:
        call: What to call.
        function: The object that the program gave.
    """

    __slots__ = ("_context", "call", "function", "name")

    def __init__(self, user: UserFunction, context: TaskContext) -> None:
        self._context = context
        self.function = user.function
        self.call: Callable[..., Any] = user.bind()
        self.name = user.name

    def fail(self, error: BaseException, **about: Any) -> NoReturn:
        """Raise what the function raised, with its place.

        Args:
            error: What it raised.
            **about: ``record`` or ``key``: shown, shortened.

        Raises:
            UserFunctionError: For everything but Headrace's own errors.
        """
        try:
            raise_in_function(error, self.name, self._context)  # type: ignore[arg-type]
        except HeadraceError as raised:
            for name, value in about.items():
                raised.context.setdefault(name, _shown(value))
            raise

    def produced(self, given: Any, **about: Any) -> Iterator[Batch]:
        """Yield what the function gave, an iterable of records or None, in batches; it may still raise on the way."""
        try:
            records = iter(records_of(given))
        except BaseException as error:
            self.fail(error, **about)
        while True:
            try:
                rows = list(islice(records, MAX_BATCH_ROWS))
            except BaseException as error:
                self.fail(error, **about)
            if not rows:
                return
            yield Batch.of_rows(rows)


class _Shown(str):
    """A text that an error shows without quotes, as it is a repr already."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(value: Any) -> str:
    return _Shown(shown(value))


def checked_function(function: Any, *methods: str) -> UserFunction:
    """Return a user's function for a data set, whose job takes no checkpoints.

    Raises:
        ProgramError: If it is no function, or has state of its subtask, or hears of checkpoints.
    """
    user = UserFunction(function, *methods)
    if isinstance(function, (CheckpointedFunction, CheckpointListener)):
        message = f"data sets take no checkpoints, so {user.name} would never be asked for its state or told of one"
        raise ProgramError(message, hint="keep it in the function; a job over data sets that fails begins anew")
    return user


@contextmanager
def opened(function: Any, context: TaskContext, *methods: str) -> Iterator[OpenFunction]:
    """Open a function for one subtask and close it in the end, whatever happens.

    Args:
        function: A function object or a callable.
        context: Of the subtask.
        *methods: The methods to look for.
    """
    user = checked_function(function, *methods)
    handle = OpenFunction(user, context)
    # As on streams: a bound method or a partial has no life of its own.
    has_life = user.has_life
    _call_if_there(handle, has_life, "open", DataSetRuntimeContext(context))
    try:
        yield handle
    finally:
        _call_if_there(handle, has_life, "close")


def _call_if_there(handle: OpenFunction, has_life: bool, name: str, *arguments: Any) -> None:
    method = getattr(handle.function, name, None) if has_life else None
    if callable(method):
        try:
            method(*arguments)
        except BaseException as error:
            handle.fail(error)


def record_at(rows: list[Any], pending: Iterator[Any]) -> Any:
    """Return the record that an iterator over ``rows`` gave last."""
    hint = getattr(pending, "__length_hint__", None)
    remaining = hint() if hint is not None else 0
    return rows[max(len(rows) - remaining - 1, 0)] if rows else None


class Tracked:
    """An iterator over the records of batches that remembers the last one it gave."""

    __slots__ = ("_rows", "count", "last")

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._rows = (row for batch in batches for row in batch.rows)
        self.last: Any = None
        self.count = 0

    def __iter__(self) -> Tracked:
        return self

    def __next__(self) -> Any:
        self.last = next(self._rows)
        self.count += 1
        return self.last


def placed(batches: Iterator[Batch], context: TaskContext) -> Iterator[Batch]:
    """Yield the same batches; an error of the tree that comes instead is given operator and subtask."""
    try:
        yield from batches
    except HeadraceError as error:
        place = {"operator": context.name, "subtask": f"{context.subtask + 1}/{context.parallelism}"}
        add_place(error, place, context.operator)
        raise
