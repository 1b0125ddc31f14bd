"""User functions: what a program may hand to a transformation.

Names and signatures are PyFlink's, so that a function written for it runs here unchanged. Wherever a function object is
accepted, a plain callable of the same arguments is too. Functions are pickled with the program and opened once per
subtask. What they give back may be a generator, any other iterable, or None for nothing.

How an operator holds a function is in `headrace.engine.functions.user_function`, how it calls it for every record of a
batch in `headrace.engine.functions.row_calls`.

Source: ``pyflink.datastream.functions``; Flink's ``RichFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol

from headrace.state.type_variables import ACC, IN, KEY, OUT, T, W

from ..errors import ProgramError
from .side_outputs import OutputTag, Tagged

if TYPE_CHECKING:
    from .runtime_context import RuntimeContext
    from .timers import TimerService
    from .window_state import WindowState

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeyedProcessFunction",
    "MapFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "WindowFunction",
]


class Function:
    """The root of all user functions.

    Type parameters (``ProcessWindowFunction[IN, OUT, KEY, W]``) are for type checkers; when a program runs they mean
    nothing.
    """

    def __class_getitem__(cls, _types: Any) -> type[Function]:
        return cls

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get ready; called once per subtask before the first record. State handles are asked for here."""

    def close(self) -> None:
        """Let go of resources; called once, also after a failure."""


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, one record out."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Return the record that takes the place of ``value``."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT] | None:
        """Yield or return the records that take the place of ``value``."""


class FilterFunction(Function, ABC, Generic[IN]):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: IN) -> bool:
        """Return whether to keep ``value``."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Combines two records into one of the same kind; must be associative wherever windows merge."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """``value1`` (what is reduced so far) and ``value2`` (the newer one) in one.

        Neither may be changed in place.
        """


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """Folds records into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return the accumulator of no records."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with ``value`` in it."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result; the accumulator goes on being used."""

    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Return both accumulators in one: a new one, or either of them.

        Needed for session windows, which merge, and for windows that are ``combinable``.
        """
        message = f"{type(self).__name__} has no merge(acc_a, acc_b), which windows that merge need"
        raise ProgramError(message)


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, any number out, to the main output and to side outputs."""

    class Context(Protocol):
        """What may be known of the record; valid during the call only."""

        def timestamp(self) -> int | None:
            """Return the record's event time, epoch milliseconds; None if it has none."""
            ...

        def current_processing_time(self) -> int:
            """Return the clock's reading, epoch milliseconds."""
            ...

        def output(self, tag: OutputTag[T], value: T) -> None:
            """Emit to a side output, with the record's event time."""
            ...

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Yield or return records; ``yield tag, record`` with an `OutputTag` goes to a side output."""


class KeyedProcessFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """Records of one key at a time, with the key's state and timers."""

    class Context(Protocol):
        """What may be known of the record or timer; valid during the call only."""

        def timestamp(self) -> int | None:
            """Return the record's event time (None if it has none), or the time of the timer; epoch milliseconds."""
            ...

        def get_current_key(self) -> Any:
            """Return the key."""
            ...

        def timer_service(self) -> TimerService:
            """Return the key's timers and the two clocks."""
            ...

        def output(self, tag: OutputTag[T], value: T) -> None:
            """Emit to a side output."""
            ...

    class OnTimerContext(Context, Protocol):
        """What may be known of a timer; valid during the call only."""

        def time_domain(self) -> str | None:
            """Return the timer's kind: ``event-time`` or ``processing-time``."""
            ...

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """As in `ProcessFunction`; state of the key may be used and timers may be registered."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key that has come due. Yield or return records.

        Args:
            timestamp: The time it was registered for, epoch milliseconds.
            ctx: The timer's context.
        """


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Gives the results of a window from its records."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield or return the results of ``window`` for ``key``."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Gives the results of a window from its records, knowing the window's time and the key's state."""

    class Context(Protocol):
        """What may be known of the window; valid during the call only."""

        def __class_getitem__(cls, _types: Any) -> Any:
            return cls

        def window(self) -> Any:
            """Return the window: ``start``, ``end``, ``max_timestamp()``."""
            ...

        def current_watermark(self) -> int:
            """Return how far event time is, epoch milliseconds."""
            ...

        def current_processing_time(self) -> int:
            """Return the clock's reading, epoch milliseconds."""
            ...

        def global_state(self) -> RuntimeContext:
            """Return the way to the key's state that outlives windows."""
            ...

        def window_state(self) -> WindowState:
            """Return the way to the state of the key in this window, for windows that do not merge."""
            ...

        def output(self, tag: OutputTag[T], value: T) -> None:
            """Emit to a side output, with the time of the window."""
            ...

    @abstractmethod
    def process(
        self, key: KEY, context: ProcessWindowFunction.Context, elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged] | None:
        """Yield or return results; ``yield tag, record`` goes to a side output.

        Args:
            key: The key.
            context: The window's context.
            elements: The window's records in order of arrival; after a reduce or aggregate, its one result.
        """

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear what the function keeps for a window, as its state of the current key is about to be deleted."""
