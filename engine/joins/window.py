"""Window joins and co-groups: records of two keyed streams that fall in the same window.

Both are one window operator over the union of the two streams: every record is tagged with the input it came from, so
windows, triggers, evictors, lateness and snapshots are those of any window, and sessions merge over both streams. When
a window fires, its records are told apart again. A co-group gives each key and window to the function as two lists; a
join is a co-group that goes over all pairs, so a record without a partner in its window gives nothing.

Source: Flink's ``CoGroupedStreams``, ``JoinedStreams``, which build the same of ``union`` and a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..columns.records import Batch
from ..functions.cofunctions import FlatJoinFunction
from ..functions.contract import ProcessWindowFunction
from ..functions.given import records_of
from ..functions.keys import KeySelector
from ..functions.tracebacks import note_in_hand
from ..functions.user_function import FunctionWrapper, UserFunction, keys_of
from ..windows.assigners import WindowAssigner
from ..windows.window_operator import WindowOperator

__all__ = ["CoGroupWindowFunction", "JoinWindowFunction", "WindowCoGroupOperator"]


class CoGroupWindowFunction(FunctionWrapper, ProcessWindowFunction):
    """A CoGroupFunction, or callable of two lists, as a function of a window of tagged records."""

    def __init__(self, function: Any) -> None:
        super().__init__(UserFunction(function, "co_group"))

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any] | None:
        first, second = _told_apart(elements)
        given: Iterable[Any] | None = self._call(first, second)
        return given


class JoinWindowFunction(FunctionWrapper, ProcessWindowFunction):
    """A JoinFunction, FlatJoinFunction or callable of a pair, as a function of a window of tagged records."""

    def __init__(self, function: Any) -> None:
        super().__init__(UserFunction(function, "join"))
        self._is_flat = isinstance(function, FlatJoinFunction)

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        first, second = _told_apart(elements)
        call: Callable[[Any, Any], Any] = self._call
        for left in first:
            for right in second:
                try:
                    given = call(left, right)
                    yield from records_of(given) if self._is_flat else (given,)
                except BaseException as error:
                    note_in_hand(error, record=(left, right))
                    raise


def _told_apart(elements: Iterable[tuple[int, Any]]) -> tuple[list[Any], list[Any]]:
    sides: tuple[list[Any], list[Any]] = ([], [])
    for input_index, row in elements:
        sides[input_index].append(row)
    return sides


class _CurrentKeys(KeySelector):
    """Gives the keys that were found before records were tagged, by the selector of their input."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        super().__init__((), None)
        self.current: list[Any] = []

    def keys(self, batch: Batch) -> list[Any]:
        return self.current


class WindowCoGroupOperator(WindowOperator):
    """Windows over two keyed streams.

    Args:
        first_keys: Finds the keys of input 0.
        second_keys: Finds the keys of input 1; keys of both must be of one type to be equal.
        assigner: Finds windows.
        function: CoGroupWindowFunction or JoinWindowFunction.
        **options: What else `WindowOperator` takes: ``trigger``, ``evictor``, ``allowed_lateness_ms``. A trigger or
            evictor sees records as pairs of the input's number and the record.
    """

    def __init__(
        self,
        first_keys: KeySelector,
        second_keys: KeySelector,
        assigner: WindowAssigner,
        function: CoGroupWindowFunction | JoinWindowFunction,
        **options: Any,
    ) -> None:
        self._found_keys = _CurrentKeys()
        super().__init__(self._found_keys, assigner, process=function, **options)
        self._key_selectors = (first_keys, second_keys)

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return self._key_selectors

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        self._found_keys.current = keys_of(self._key_selectors[input_index], batch, self.context)
        tagged = Batch.of_rows([(input_index, row) for row in batch.rows], batch.timestamps)
        super().process_batch(tagged, 0)
