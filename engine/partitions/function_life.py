"""The life of a user function in a data set: checked when the plan is made, open as long as its subtask runs.

How it is called is in `headrace.engine.functions.row_calls`, for streams and data sets alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..columns.records import Batch
from ..errors import HeadraceError, ProgramError
from ..functions.checkpointed import CheckpointedFunction, CheckpointListener
from ..functions.operator import add_closing, add_place, place_of
from ..functions.row_calls import RowCalls
from ..functions.user_function import UserFunction
from .context import DataSetRuntimeContext, TaskContext

__all__ = ["Tracked", "checked_function", "opened", "placed"]


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
def opened(function: Any, context: TaskContext, *methods: str) -> Iterator[RowCalls]:
    """Open a function for one subtask and close it in the end, whatever happens.

    What ``close`` raises after a failure is a footnote to that.

    Args:
        function: A function object or a callable.
        context: Of the subtask.
        *methods: The methods to look for.
    """
    user = checked_function(function, *methods)
    try:
        user.open_stateless(context, DataSetRuntimeContext(context))
        yield RowCalls(user.bind(), user.name, context)
    except GeneratorExit:  # no failure of ours: who reads has enough
        user.close(context)
        raise
    except BaseException as error:
        try:
            user.close(context)
        except HeadraceError as failure:
            add_closing(error, failure)
        raise
    user.close(context)


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
        place = place_of(context.name, context.subtask, context.parallelism)
        add_place(error, place, context.operator)
        raise
