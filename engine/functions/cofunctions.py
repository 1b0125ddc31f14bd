"""User functions of two streams: what a program may hand to connected, broadcast and joined streams.

Names and signatures are Flink's in snake_case, PyFlink's where it has the function. A function of two inputs is one
object with a method per input, so that both share its fields and, on keyed streams, its state. Where no object is
needed, a pair of plain callables does: ``connected.map((from_first, from_second))``. Functions that join get both
records in one call, so a plain callable takes the place of the object there.

`TwoInputFunction` is such a function in the hands of an operator, as `UserFunction` is for one input.

Source: Flink's ``CoMapFunction``, ``CoFlatMapFunction``, ``CoProcessFunction``, ``KeyedCoProcessFunction``,
``BroadcastProcessFunction``, ``KeyedBroadcastProcessFunction``, ``JoinFunction``, ``FlatJoinFunction``,
``CoGroupFunction``, ``ProcessJoinFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol

from headrace.state.keyed.contract import BroadcastState
from headrace.state.keyed.descriptors import MapStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.type_variables import IN1, IN2, KEY, OUT, UK, UV, T

from ..errors import ProgramError, StateAccessError
from .contract import Function, KeyedProcessFunction, ProcessFunction
from .life import refuse_life
from .side_outputs import OutputTag, Tagged
from .user_function import UserFunction, refuse_hidden

__all__ = [
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FlatJoinFunction",
    "JoinFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "ProcessJoinFunction",
    "ReadOnlyBroadcastState",
    "TwoInputFunction",
]


# ---------------------------------------------------------------------------------------------------- connected streams


class CoMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """One record in, of either stream, one record out."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """Return the record that takes the place of ``value``, a record of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """Return the record that takes the place of ``value``, a record of the second stream."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """One record in, of either stream, any number out."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT] | None:
        """Yield or return the records that take the place of ``value``, a record of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT] | None:
        """Yield or return the records that take the place of ``value``, a record of the second stream."""


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Records of two streams, without keys: any number out, to the main output and to side outputs."""

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Take a record of the first stream. Yield or return records; ``yield tag, record`` goes to a side output."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Take a record of the second stream."""


class KeyedCoProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """Records of two streams, one key at a time; both methods and the timers share the key's state."""

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Take a record of the first stream: yield or return records, use state, register timers."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedProcessFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Take a record of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key that has come due. Yield or return records.

        Args:
            timestamp: The time it was registered for, epoch milliseconds.
            ctx: The timer's context.
        """


# ------------------------------------------------------------------------------------------------------ broadcast state


class ReadOnlyBroadcastState(Generic[UK, UV]):
    """Broadcast state as it is seen where it must not be changed."""

    __slots__ = ("_name", "_state", "contains", "get", "is_empty", "items", "keys", "values")

    def __init__(self, state: BroadcastState[UK, UV], name: str) -> None:
        self._state = state
        self._name = name
        # The reading half of `headrace.state.keyed.contract.BroadcastState`, bound once: it is asked for every record.
        self.get: Callable[[UK], UV | None] = state.get
        self.contains: Callable[[UK], bool] = state.contains
        self.keys: Callable[[], Iterator[UK]] = state.keys
        self.values: Callable[[], Iterator[UV]] = state.values
        self.items: Callable[[], Iterator[tuple[UK, UV]]] = state.items
        self.is_empty: Callable[[], bool] = state.is_empty

    def __contains__(self, key: UK) -> bool:
        return self.contains(key)

    def put(self, _key: Any, _value: Any) -> None:
        """Refuse, as all that writes does.

        Raises:
            StateAccessError: Always.
        """
        self._refuse()

    def put_all(self, _entries: Any) -> None:
        """Refuse, as `put`."""
        self._refuse()

    def remove(self, _key: Any) -> None:
        """Refuse, as `put`."""
        self._refuse()

    def clear(self) -> None:
        """Refuse, as `put`."""
        self._refuse()

    def _refuse(self) -> None:
        message = f"broadcast state {self._name!r} can be changed in process_broadcast_element only"
        raise StateAccessError(message, hint="other records are seen by one subtask only, so copies would drift apart")


class BroadcastProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Records of a stream without keys, in the light of what has been broadcast so far."""

    class ReadOnlyContext(ProcessFunction.Context, Protocol):
        """What may be known of a record; valid during the call only."""

        def current_watermark(self) -> int:
            """Return how far event time is, epoch milliseconds."""
            ...

        def get_broadcast_state(self, descriptor: MapStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
            """Return the broadcast state, to read."""
            ...

    class Context(ProcessFunction.Context, Protocol):
        """What may be known of a broadcast record; valid during the call only."""

        def current_watermark(self) -> int:
            """Return how far event time is, epoch milliseconds."""
            ...

        def get_broadcast_state(self, descriptor: MapStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
            """Return the broadcast state, to read and write."""
            ...

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: BroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[OUT | Tagged] | None:
        """Take a record of the stream that is not broadcast. Yield or return records."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: BroadcastProcessFunction.Context
    ) -> Iterable[OUT | Tagged] | None:
        """Take a broadcast record, which every subtask gets. Yield or return records.

        What is done to the broadcast state must depend on the record and that state alone, so that it stays equal in
        all subtasks.
        """


class KeyedBroadcastProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """Records of a keyed stream, in the light of what has been broadcast so far, with the key's state and timers."""

    class ReadOnlyContext(KeyedProcessFunction.Context, Protocol):
        """What may be known of a record; valid during the call only."""

        def current_processing_time(self) -> int:
            """Return the clock's reading, epoch milliseconds."""
            ...

        def current_watermark(self) -> int:
            """Return how far event time is, epoch milliseconds."""
            ...

        def get_broadcast_state(self, descriptor: MapStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
            """Return the broadcast state, to read."""
            ...

    class OnTimerContext(ReadOnlyContext, Protocol):
        """What may be known of a timer; valid during the call only."""

        def time_domain(self) -> str | None:
            """Return the timer's kind: ``event-time`` or ``processing-time``."""
            ...

    class Context(BroadcastProcessFunction.Context, Protocol):
        """What may be known of a broadcast record, which belongs to no key; valid during the call only."""

        def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
            """Call ``function`` with each key of this subtask that has the state, and the state's handle."""
            ...

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[OUT | Tagged] | None:
        """Take a record of the keyed stream: yield or return records, use the key's state, register timers."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[OUT | Tagged] | None:
        """Take a broadcast record; as in `BroadcastProcessFunction`. There is no current key."""

    def on_timer(
        self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext
    ) -> Iterable[OUT | Tagged] | None:
        """Handle a timer of the current key that has come due. Yield or return records.

        Args:
            timestamp: The time it was registered for, epoch milliseconds.
            ctx: The timer's context.
        """


# ---------------------------------------------------------------------------------------------------------------- joins


class JoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Makes one record of two."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """Return the record of a pair; in an outer join one of the two may be None."""


class FlatJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Makes any number of records of two."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> Iterable[OUT] | None:
        """Yield or return the records of a pair; in an outer join one of the two may be None."""


class CoGroupFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Gives the results of one key and window from the records of both streams."""

    @abstractmethod
    def co_group(self, first: list[IN1], second: list[IN2]) -> Iterable[OUT] | None:
        """Yield or return results.

        Args:
            first: The first stream's records in order of arrival; may be empty, but not both.
            second: The second stream's.
        """


class ProcessJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Gives the results of a pair of records that are near enough to each other in event time."""

    class Context(Protocol):
        """What may be known of the pair; valid during the call only."""

        def get_left_timestamp(self) -> int:
            """Return the left record's event time, epoch milliseconds."""
            ...

        def get_right_timestamp(self) -> int:
            """Return the right record's event time, epoch milliseconds."""
            ...

        def get_timestamp(self) -> int:
            """Return the results' event time: the later of both, epoch milliseconds."""
            ...

        def get_current_key(self) -> Any:
            """Return the key of both."""
            ...

        def output(self, tag: OutputTag[T], value: T) -> None:
            """Emit to a side output, with the results' event time."""
            ...

    @abstractmethod
    def process_element(self, left: IN1, right: IN2, ctx: ProcessJoinFunction.Context) -> Iterable[OUT | Tagged] | None:
        """Yield or return the results of a pair; ``yield tag, record`` goes to a side output."""


# -------------------------------------------------------------------------------------------------- the operators' side


class TwoInputFunction(UserFunction):
    """A function of two inputs in the hands of an operator.

    Args:
        function: An object that has both methods, or a pair of callables.
        first: The name of the method for records of input 0.
        second: The name of the method for records of input 1.

    Raises:
        ProgramError: If it is neither, or a class where an instance is meant.
    """

    __slots__ = ("_methods",)

    def __init__(self, function: Any, first: str, second: str) -> None:
        self._methods = (first, second)
        if isinstance(function, (tuple, list)):
            if len(function) != 2 or not all(map(callable, function)):
                message = f"a function of two inputs may be a pair of callables, one for each; got {function!r}"
                raise ProgramError(message)
            for one in function:
                refuse_hidden(one)
                refuse_life(one, "each of a pair of callables", "pass one object that has both methods")
            self.function = tuple(function)
            self.method = None
            self.name = " and ".join(map(_name_of, function))
            self._is_open = False
            return
        if isinstance(function, type):
            message = f"a function object is needed, not its class {function.__name__}"
            raise ProgramError(message, hint=f"Pass {function.__name__}().")
        missing = [name for name in self._methods if not callable(getattr(function, name, None))]
        if missing:
            message = f"a function of two inputs needs the methods {first} and {second}; {function!r} lacks "
            message += " and ".join(missing)
            raise ProgramError(message, hint="a pair of callables, one for each input, does too")
        super().__init__(function, first)

    def calls(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return what to call per record of each input."""
        if self.method is None:
            first, second = self.function
        else:
            first, second = (getattr(self.function, name) for name in self._methods)
        return first, second

    def names(self) -> tuple[str, str]:
        """Return what to call the two in errors."""
        first, second = map(_name_of, self.calls())
        return first, second


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
