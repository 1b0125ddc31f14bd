"""The one loop in which joins give pairs of records to a function, and send on what it gives.

A join yields pairs; how many there will be nobody knows before, so results go out in batches of a bounded size and the
rest of the pairs waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from headrace.state.keyed.kinds import NO_KEY

from ..columns.records import MAX_BATCH_ROWS, Batch
from ..functions.isolation import copied
from ..functions.operator import OperatorContext
from ..functions.side_outputs import SideOutputs
from ..functions.tracebacks import EventTime, note_in_hand
from ..functions.user_function import UserFunction, raise_in_function

__all__ = ["Pair", "PairCalls"]

Pair = tuple[Any, Any, Any, int]
"""Key, left record, right record and the event time of their result, epoch milliseconds."""


class PairCalls:
    """Calls a join's function with pairs; made when the operator is opened.

    Args:
        function: The user's.
        context: The operator's.
        take: Adds what the function gave to the rows of a batch: what it gave, the rows, the pair's event time.
        copies: Whether the function gets a copy of the left record, and of the right one: a record that has more than
            one partner. With object reuse it gets none.
        arguments: What the function is given behind the pair.
        sides: The side outputs that go out with each batch; None for none.
    """

    def __init__(
        self,
        function: UserFunction,
        context: OperatorContext,
        take: Callable[[Any, list[Any], int], None],
        copies: tuple[bool, bool],
        arguments: tuple[Any, ...] = (),
        sides: SideOutputs | None = None,
    ) -> None:
        self._call = function.bind()
        self._name = function.name
        self._context = context
        self._take = take
        self._own = [copied if is_copied and not context.reuses_objects else None for is_copied in copies]
        self._arguments = arguments
        self._sides = sides

    def give(self, pairs: Iterable[Pair]) -> None:
        """Call the function with each pair, while the pair's key is the current one; emit what it gives.

        Raises:
            UserFunctionError: If the function fails; names the pair, its key and its event time.
        """
        left_over = iter(pairs)
        while self._give_some(left_over):
            pass

    def _give_some(self, pairs: Iterator[Pair]) -> bool:
        """Give pairs until there are rows for a batch; True if there may be more pairs."""
        backend, call, take, more_arguments = self._context.keyed_state, self._call, self._take, self._arguments
        own_left, own_right = self._own
        rows: list[Any] = []
        # For each pair its results' event time, and how many rows there were after it.
        times: list[int] = []
        ends: list[int] = []
        is_full = False
        key = left = right = time = None
        try:
            for key, left, right, time in pairs:
                backend.current_key = key
                given = call(
                    left if own_left is None else own_left(left),
                    right if own_right is None else own_right(right),
                    *more_arguments,
                )
                take(given, rows, time)
                times.append(time)
                ends.append(len(rows))
                if len(rows) >= MAX_BATCH_ROWS:
                    is_full = True
                    break
        except BaseException as error:
            if time is not None:
                note_in_hand(error, record=(left, right), key=key, event_time=EventTime(time))
            raise_in_function(error, self._name, self._context)
        finally:
            backend.current_key = NO_KEY
        if rows:
            timestamps = np.repeat(np.array(times, dtype=np.int64), np.diff(ends, prepend=0))
            self._context.output.emit(Batch.of_rows(rows, timestamps))
        if self._sides is not None:
            self._sides.emit(self._context.output)
        return is_full
