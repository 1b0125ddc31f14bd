"""What a window holds per key, and the results it gives when it fires.

A *content* is what one key has in one window: the reduced record, the accumulator, or the records themselves. It is a
value of keyed state and is only ever replaced, never changed in place (of accumulators that is asked of the user's
function). Records are held as a tuple of lists whose lengths fall, like the digits of a binary number: appending copies
each record O(log n) times over a window's life instead of once per batch, and old contents stay whole for a snapshot
that is still being written.

`WindowResults` gathers what fired windows give, by the user's window function or directly, until the operator may emit.

Source: Flink's ``WindowOperator``, ``InternalWindowFunction``; ``ReducingState``, ``AggregatingState``, ``ListState``
as window state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from ..columns.records import MAX_BATCH_ROWS, MIN_TIMESTAMP, Batch
from ..errors import StateAccessError
from ..functions.aggregates.by_row import RowAggregates
from ..functions.contract import AggregateFunction, ProcessWindowFunction
from ..functions.isolation import copied, copied_rows
from ..functions.operator import OperatorContext, Output
from ..functions.runtime_context import RuntimeContext
from ..functions.side_outputs import OutputTag, SideOutputs
from ..functions.tracebacks import note_in_hand
from ..functions.user_function import UserFunction
from ..functions.window_state import WindowState
from ..operators.field_reducer import FieldReducer
from .windows import Bounds, GlobalWindow, Window

__all__ = [
    "MISSING",
    "AggregatedContents",
    "CombinedContents",
    "ElementContents",
    "ReducedContents",
    "WindowContents",
    "WindowContext",
    "WindowResults",
]

_MIN_RUN_ROWS = 4
"""Built-in aggregates take a key's records together where there are so many on average."""

MISSING: Any = object()
"""The content of a key that has no record in a window; None may be a content."""


class WindowContents(Protocol):
    """How records become contents, and contents results."""

    def add_all(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        """Add each record to its key's content, in order."""
        ...

    def add_run(self, content: Any, rows: Iterable[Any]) -> Any:
        """Return a content (or `MISSING`) with more records of its key."""
        ...

    def merge(self, earlier: Any, later: Any) -> Any:
        """Return one content of two: when two sessions turn out to be one, or when the later was made elsewhere."""
        ...

    def result(self, content: Any) -> Any:
        """Return what a window without a window function gives."""
        ...

    def elements(self, content: Any) -> list[Any]:
        """Return what a window function is given."""
        ...


class ReducedContents:
    """The content is one record: all records so far, reduced."""

    def __init__(self, function: UserFunction) -> None:
        self._reduce = function.bind()
        # Takes plain records together; None for functions that take them one by one.
        self._fold = function.function.fold if isinstance(function.function, FieldReducer) else None

    def add_all(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        if self._fold is not None and self._fold(contents, keys, rows):
            return
        get, reduce, missing = contents.get, self._reduce, MISSING
        key = row = None
        try:
            for key, row in zip(keys, rows, strict=True):
                content = get(key, missing)
                contents[key] = row if content is missing else reduce(content, row)
        except BaseException as error:
            note_in_hand(error, record=row, key=key)
            raise

    def add_run(self, content: Any, rows: Iterable[Any]) -> Any:
        if self._fold is not None and len(run := list(rows)) >= _MIN_RUN_ROWS:
            rows, held = run, {} if content is MISSING else {None: content}
            if self._fold(held, [None] * len(run), run):
                return held[None]
        reduce, row = self._reduce, None
        try:
            for row in rows:
                content = row if content is MISSING else reduce(content, row)
        except BaseException as error:
            note_in_hand(error, record=row)
            raise
        return content

    def merge(self, earlier: Any, later: Any) -> Any:
        return self._reduce(earlier, later)

    def result(self, content: Any) -> Any:
        return content

    def elements(self, content: Any) -> list[Any]:
        return [content]


class AggregatedContents:
    """The content is an accumulator."""

    def __init__(self, function: AggregateFunction) -> None:
        self._create = function.create_accumulator
        self._add = function.add
        self._merge = function.merge
        self._get_result = function.get_result
        # Takes the records of a key together; None for functions that take them one by one.
        self._add_many = function.add_all if isinstance(function, RowAggregates) else None

    def add_all(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        get, add, create, missing = contents.get, self._add, self._create, MISSING
        if self._add_many is not None and _MIN_RUN_ROWS * len(set(keys)) <= len(keys):
            for key, run in _runs(keys, rows).items():
                contents[key] = self.add_run(get(key, missing), run)
            return
        key = row = None
        try:
            for key, row in zip(keys, rows, strict=True):
                content = get(key, missing)
                contents[key] = add(row, create() if content is missing else content)
        except BaseException as error:
            note_in_hand(error, record=row, key=key)
            raise

    def add_run(self, content: Any, rows: Iterable[Any]) -> Any:
        add = self._add
        if content is MISSING:
            content = self._create()
        if self._add_many is not None:
            return self._add_many(list(rows), content)
        row = None
        try:
            for row in rows:
                content = add(row, content)
        except BaseException as error:
            note_in_hand(error, record=row)
            raise
        return content

    def merge(self, earlier: Any, later: Any) -> Any:
        return self._merge(earlier, later)

    def result(self, content: Any) -> Any:
        return self._get_result(content)

    def elements(self, content: Any) -> list[Any]:
        return [self._get_result(content)]


class CombinedContents:
    """Contents of which parts come ready: instead of records pairs of key and content, to be merged.

    A pair may have a third place: of how many records it is; without it is of one, or of some that cannot be late.

    Args:
        contents: How these parts were made, `ReducedContents` or `AggregatedContents`.
        overlap: Whether a part may be for several windows: then each has an accumulator of its own, as functions may
            change one accumulator into the merged one.
    """

    def __init__(self, contents: WindowContents, *, overlap: bool) -> None:
        self.merge, self.result, self.elements = contents.merge, contents.result, contents.elements
        self._own = copied if overlap and isinstance(contents, AggregatedContents) else None

    @staticmethod
    def num_records(pairs: Iterable[tuple[Any, ...]]) -> int:
        """Return of how many records pairs are."""
        return sum(pair[2] if len(pair) > 2 else 1 for pair in pairs)

    def add_all(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        get, merge, own, missing = contents.get, self.merge, self._own, MISSING
        key = part = None
        try:
            for key, pair in zip(keys, rows, strict=True):
                part = pair[1] if own is None else own(pair[1])
                content = get(key, missing)
                contents[key] = part if content is missing else merge(content, part)
        except BaseException as error:
            note_in_hand(error, record=part, key=key)
            raise

    def add_run(self, content: Any, rows: Iterable[Any]) -> Any:
        held = {} if content is MISSING else {None: content}
        run = list(rows)
        self.add_all(held, [None] * len(run), run)
        return held[None]


class ElementContents:
    """The content is the records themselves, in order of arrival."""

    def add_all(self, contents: MutableMapping[Any, Any], keys: Sequence[Any], rows: Sequence[Any]) -> None:
        for key, run in _runs(keys, rows).items():
            contents[key] = _append(contents.get(key, ()), run)

    def add_run(self, content: Any, rows: Iterable[Any]) -> Any:
        return _append(() if content is MISSING else content, list(rows))

    def merge(self, earlier: Any, later: Any) -> Any:
        return _append(earlier, self.elements(later))

    def result(self, content: Any) -> Any:
        return self.elements(content)

    def elements(self, content: Any) -> list[Any]:
        return list(chain.from_iterable(content))


def _runs(keys: Sequence[Any], rows: Sequence[Any]) -> dict[Any, list[Any]]:
    """The records of each key, in order of arrival."""
    if keys and keys[0] is keys[-1] and len(set(keys)) == 1:
        return {keys[0]: list(rows)}
    runs: dict[Any, list[Any]] = {}
    get = runs.get
    for key, row in zip(keys, rows, strict=True):
        run = get(key)
        if run is None:
            runs[key] = [row]
        else:
            run.append(row)
    return runs


def _append(runs: tuple[list[Any], ...], run: list[Any]) -> tuple[list[Any], ...]:
    while runs and len(runs[-1]) <= len(run):
        run = runs[-1] + run
        runs = runs[:-1]
    return (*runs, run)


# -------------------------------------------------------------------------------------------------------------- results


class WindowContext:
    """What ``ProcessWindowFunction.process`` may know; valid during the call only."""

    __slots__ = ("_current_watermark", "_merges", "_now_ms", "_runtime", "_sides", "_state", "_timestamp", "_window")

    def __init__(
        self,
        context: OperatorContext,
        current_watermark: Callable[[], int],
        sides: SideOutputs,
        state: WindowState,
        merges: bool,
    ) -> None:
        self._runtime = RuntimeContext(context, context.keyed_state)
        self._now_ms = context.now_ms
        self._current_watermark = current_watermark
        self._sides = sides
        self._state = state
        # Whether windows merge, so that none has state of its own.
        self._merges = merges
        # The window at hand.
        self._window: Window = GlobalWindow()
        self._timestamp: int | None = None

    def window(self) -> Window:
        """Return the window: ``start``, ``end`` and ``max_timestamp()``."""
        return self._window

    def current_watermark(self) -> int:
        """Return how far event time is."""
        return self._current_watermark()

    def current_processing_time(self) -> int:
        """Return the clock's reading."""
        return self._now_ms()

    def global_state(self) -> RuntimeContext:
        """Return the way to the key's state that outlives windows: ``global_state().get_state(descriptor)``."""
        return self._runtime

    def window_state(self) -> WindowState:
        """Return the way to the state of the key and window: ``window_state().get_state(descriptor)``.

        It is forgotten with the window, after the function's ``clear``. The global window, of which count windows are
        parts, is never forgotten.

        Raises:
            StateAccessError: If windows merge.
        """
        if self._merges:
            message = "windows that merge have no state of their own"
            raise StateAccessError(message, hint="Use global_state().")
        return self._state

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit to a side output."""
        self._sides.add(tag, value, self._timestamp)

    def move_to(self, window: Window, timestamp: int | None) -> None:
        """Turn to another window, whose results have this event time."""
        self._window = window
        self._timestamp = timestamp


class WindowResults:
    """Results of fired windows, on their way to the output.

    Args:
        contents: How contents become results.
        function: The window function (``process`` or ``apply``), or None: then the result itself is the record.
        result_row: Makes the record of (key, window, result) where there is no window function.
        context: The operator's.
        current_watermark: How far event time is.
        merges: Whether windows merge.

    The backend's current key and namespace are set before each call of the function and left as they are then.
    """

    def __init__(
        self,
        contents: WindowContents,
        function: UserFunction | None,
        result_row: Callable[[Any, Any, Any], Any] | None,
        context: OperatorContext,
        current_watermark: Callable[[], int],
        merges: bool,
    ) -> None:
        self._contents = contents
        self._function = None if function is None else function.bind()
        self._takes_window = function is not None and function.method == "apply"
        # The function's `clear`, if it has one of its own.
        self._clear: Callable[[WindowContext], None] | None = None
        if function is not None and function.method == "process":
            kind = type(function.function)
            if getattr(kind, "clear", ProcessWindowFunction.clear) is not ProcessWindowFunction.clear:
                self._clear = function.function.clear
        # What a window holds, others may, too: windows that overlap, and this one if it fires again.
        self._own = None if context.reuses_objects else copied_rows
        # What is given may be in state, or be an accumulator: each result is that of its moment.
        self._give = None if context.reuses_objects else copied
        self._result_row = result_row
        self._state = context.keyed_state
        self._sides = SideOutputs(self._give)
        self._window_state = WindowState(context.keyed_state, "window")
        self._window_context = WindowContext(context, current_watermark, self._sides, self._window_state, merges)
        self._rows: list[Any] = []
        # Event time and number of rows, per fired window; together they cover `_rows`.
        self._runs: list[tuple[int | None, int]] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to emit."""
        return len(self._rows) >= MAX_BATCH_ROWS

    def fire(self, window: Window, contents: Iterable[tuple[Any, Any]], timestamp: int | None) -> None:
        """Add a window's results.

        Args:
            window: The window.
            contents: Keys and their contents.
            timestamp: The results' event time; None for none.
        """
        rows = self._rows
        before = len(rows)
        try:
            if self._function is not None:
                self._call_function(window, contents, timestamp)
            else:
                self._give_results(window, contents)
        except BaseException as error:
            note_in_hand(error, window=Bounds(window))
            raise
        self._runs.append((timestamp, len(rows) - before))

    def _give_results(self, window: Window, contents: Iterable[tuple[Any, Any]]) -> None:
        add, result, result_row, key = self._rows.append, self._result, self._result_row, None
        try:
            for key, content in contents:
                add(result(content) if result_row is None else result_row(key, window, result(content)))
        except BaseException as error:
            note_in_hand(error, key=key)
            raise

    def _result(self, content: Any) -> Any:
        result, give = self._contents.result(content), self._give
        return result if give is None else give(result)

    def _call_function(self, window: Window, contents: Iterable[tuple[Any, Any]], timestamp: int | None) -> None:
        function, state, elements, take = self._function, self._state, self._contents.elements, self._sides.take
        own = self._own
        assert function is not None
        argument = window if self._takes_window else self._window_context
        self._window_context.move_to(window, timestamp)
        state.current_namespace = (window.start, window.end)
        key = None
        try:
            for key, content in contents:
                state.current_key = key
                held = elements(content)
                take(function(key, argument, held if own is None else own(held)), self._rows, timestamp)
        except BaseException as error:
            note_in_hand(error, key=key)
            raise

    def clear(self, window: Window, keys: Iterable[Any]) -> None:
        """Let the window function clear what it keeps for a window that is about to be deleted, if it wants to."""
        clear, window_state, state = self._clear, self._window_state, self._state
        if clear is None and not window_state.is_used:
            return
        self._window_context.move_to(window, window.max_timestamp())
        state.current_namespace = (window.start, window.end)
        for key in keys:
            state.current_key = key
            if clear is not None:
                try:
                    clear(self._window_context)
                except BaseException as error:
                    note_in_hand(error, key=key, window=Bounds(window))
                    raise
            window_state.forget()

    def emit(self, output: Output) -> None:
        """Emit all results as one batch, and the side outputs."""
        if self._rows:
            rows, runs = self._rows, self._runs
            self._rows, self._runs = [], []
            timestamps = None
            if any(time is not None for time, _ in runs):
                times = np.array([MIN_TIMESTAMP if time is None else time for time, _ in runs], dtype=np.int64)
                timestamps = np.repeat(times, [count for _, count in runs])
            output.emit(Batch.of_rows(rows, timestamps))
        else:
            self._runs.clear()
        self._sides.emit(output)
