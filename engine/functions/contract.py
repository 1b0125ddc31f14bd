"""User functions: what a program may hand to a transformation, and how an operator holds and calls it.

Names and signatures are PyFlink's, so that a function written for it runs here unchanged. Wherever a function object is
accepted, a plain callable of the same arguments is too. Functions are pickled with the program and opened once per
subtask. What they give back may be a generator, any other iterable, or None for nothing.

A failing user function must be found at once: its exception becomes a `UserFunctionError` that names operator, subtask
and function and shows the function's own traceback, with the engine's frames on top cut off. Wrapping happens around
the loop over a batch, so it costs nothing per record. Errors of Headrace's own tree pass as they are.

Source: ``pyflink.datastream.functions``; Flink's ``RichFunction`` and ``RuntimeContext``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from headrace.state.keyed.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)

from ..columns.records import MIN_TIMESTAMP, Batch, Timestamps, times_or_none
from ..errors import (
    HeadraceError,
    ProgramError,
    StateAccessError,
    TypeMismatchError,
    UserFunctionError,
    raise_from_outside,
)
from ..kernel.metrics import MetricGroup
from .accumulators import Accumulator, DoubleCounter, Histogram, IntCounter, LongCounter
from .checkpointed import CheckpointedFunction, CheckpointListener, Wrapper, attach, hidden_owner, refuse_halves
from .isolation import ATOMS
from .keys import KeySelector
from .operator import OperatorContext, Output, add_place
from .tracebacks import users_traceback

if TYPE_CHECKING:
    from .timers import TimerService
    from .window_state import WindowState

__all__ = [
    "MAX_EMITTED_ROWS",
    "SCALARS",
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "FunctionPart",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SideOutputs",
    "UserFunction",
    "WindowFunction",
    "keys_of",
    "raise_in_function",
    "records_of",
    "refuse_hidden",
    "timed_batch",
]


MAX_EMITTED_ROWS = 65_536
"""Operators that give more than they get emit once they have gathered this many rows, so that batches move well."""


class OutputTag:
    """Names a side output. Two tags of one name are the same output.

    Args:
        tag_id: The name; not empty.
        type_info: The type of the records, kept for PyFlink programs; nothing depends on it.
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            message = f"the name of a side output must be a text that is not empty; got {tag_id!r}"
            raise ProgramError(message)
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"


ATOMS.add(OutputTag)


class RuntimeContext:
    """What a function may know of its place, and the way to its state; handed to ``open``."""

    __slots__ = ("_context", "_keyed")

    def __init__(self, context: OperatorContext, *, keyed: bool) -> None:
        self._context = context
        self._keyed = keyed

    def get_task_name(self) -> str:
        """Return the operator's name."""
        return self._context.name

    def get_task_name_with_subtasks(self) -> str:
        """Return the operator's name and which subtask of how many, counted from 1."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism})"

    def get_index_of_this_subtask(self) -> int:
        """Return which subtask this is, from 0."""
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Return how many subtasks the operator has."""
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return how many it could have at most: the number of key groups."""
        return self._context.max_parallelism

    def get_job_id(self) -> str:
        """Return the job's id."""
        return self._context.job

    def get_metrics_group(self) -> MetricGroup:
        """Return the operator's metrics, and the way to groups of one's own."""
        return self._context.metrics

    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        """Register an accumulator; call it in ``open``. The job's result has the total over all subtasks.

        Raises:
            ProgramError: If the operator has one of that name.
        """
        self._context.accumulators.add(name, accumulator)

    def get_accumulator(self, name: str) -> Any:
        """This subtask's accumulator of that name.

        Raises:
            ProgramError: If there is none.
        """
        return self._context.accumulators.get(name)

    def get_int_counter(self, name: str) -> IntCounter:
        """Return the accumulator of that name, an `IntCounter`; made if there is none. So for those below.

        Raises:
            ProgramError: If there is one of another kind.
        """
        return self._context.accumulators.get_or_add(name, IntCounter)

    def get_long_counter(self, name: str) -> LongCounter:
        """Return a `LongCounter`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, LongCounter)

    def get_double_counter(self, name: str) -> DoubleCounter:
        """Return a `DoubleCounter`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, DoubleCounter)

    def get_histogram(self, name: str) -> Histogram:
        """Return a `Histogram`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, Histogram)

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Return the handle of a keyed value, bound to the key of whatever record or timer is being processed.

        Raises:
            StateAccessError: If the stream is not keyed.
            ProgramError: If the descriptor is one of another kind of state.
        """
        self._require_key(descriptor, ValueStateDescriptor)
        return self._context.keyed_state.value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the handle of a keyed list; else as `get_state`."""
        self._require_key(descriptor, ListStateDescriptor)
        return self._context.keyed_state.list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Return the handle of a keyed map; else as `get_state`."""
        self._require_key(descriptor, MapStateDescriptor)
        return self._context.keyed_state.map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the handle of a keyed value that combines what is added to it; else as `get_state`."""
        self._require_key(descriptor, ReducingStateDescriptor)
        _refuse_life_in_state(descriptor.reduce_function)
        return self._context.keyed_state.reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return the handle of a keyed accumulator; else as `get_state`."""
        self._require_key(descriptor, AggregatingStateDescriptor)
        _refuse_life_in_state(descriptor.aggregate_function)
        return self._context.keyed_state.aggregating_state(descriptor)

    def _require_key(self, descriptor: Any, kind: type[StateDescriptor]) -> None:
        if not isinstance(descriptor, kind):
            message = f"this state is asked for by a {kind.__name__}; got {descriptor!r}"
            raise ProgramError(message, operator=self._context.name)
        if not self._keyed:
            message = f"keyed state {descriptor.name!r} exists only after key_by"
            raise StateAccessError(message, operator=self._context.name)


def _refuse_life_in_state(function: Any) -> None:
    from .life import refuse_life

    refuse_life(function, "the function of a state")


# -------------------------------------------------------------------------------------------------------- the contracts


class Function:
    """The root of all user functions.

    PyFlink's type parameters (``ProcessWindowFunction[IN, OUT, KEY, W]``) are accepted and mean nothing.
    """

    def __class_getitem__(cls, _types: Any) -> type[Function]:
        return cls

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get ready; called once per subtask before the first record. State handles are asked for here."""

    def close(self) -> None:
        """Let go of resources; called once, also after a failure."""


class MapFunction(Function, ABC):
    """One record in, one record out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the record that takes the place of ``value``."""


class FlatMapFunction(Function, ABC):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield or return the records that take the place of ``value``."""


class FilterFunction(Function, ABC):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return whether to keep ``value``."""


class ReduceFunction(Function, ABC):
    """Combines two records into one of the same kind; must be associative wherever windows merge."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """``value1`` (what is reduced so far) and ``value2`` (the newer one) in one.

        Neither may be changed in place.
        """


class AggregateFunction(Function, ABC):
    """Folds records into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return the accumulator of no records."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with ``value`` in it."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result; the accumulator goes on being used."""

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Both accumulators in one; needed only for session windows, which merge."""
        message = f"{type(self).__name__} has no merge(acc_a, acc_b), which windows that merge need"
        raise ProgramError(message)


class ProcessFunction(Function, ABC):
    """One record in, any number out, to the main output and to side outputs."""

    class Context(Protocol):
        """What may be known of the record; valid during the call only."""

        def timestamp(self) -> int | None:
            """Return the record's event time, epoch milliseconds; None if it has none."""
            ...

        def current_processing_time(self) -> int:
            """Return the clock's reading, epoch milliseconds."""
            ...

        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit to a side output, with the record's event time."""
            ...

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yield or return records; ``yield tag, record`` with an `OutputTag` goes to a side output."""


class KeyedProcessFunction(Function, ABC):
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

        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit to a side output."""
            ...

    class OnTimerContext(Context, Protocol):
        """What may be known of a timer; valid during the call only."""

        def time_domain(self) -> str | None:
            """Return the timer's kind: ``event-time`` or ``processing-time``."""
            ...

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """As in `ProcessFunction`; state of the key may be used and timers may be registered."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer of the current key that has come due. Yield or return records.

        Args:
            timestamp: The time it was registered for, epoch milliseconds.
            ctx: The timer's context.
        """


class WindowFunction(Function, ABC):
    """Gives the results of a window from its records."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Yield or return the results of ``window`` for ``key``."""


class ProcessWindowFunction(Function, ABC):
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

        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit to a side output, with the time of the window."""
            ...

    @abstractmethod
    def process(
        self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[Any] | None:
        """Yield or return results; ``yield tag, record`` goes to a side output.

        Args:
            key: The key.
            context: The window's context.
            elements: The window's records in order of arrival; after a reduce or aggregate, its one result.
        """

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear what the function keeps for a window, as its state of the current key is about to be deleted."""


# -------------------------------------------------------------------------------------------------- the operators' side


class FunctionPart:
    """One method of a function object that another `UserFunction` drives, for an operator that only calls it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


class UserFunction:
    """One user function in the hands of an operator: checked when the plan is made, opened and called in the subtask.

    Args:
        function: A function object that has one of ``methods``, or a plain callable.
        *methods: Names of the methods to look for, in this order.

    Raises:
        ProgramError: If it is neither, or a class where an instance is meant, or a method of an object that has state,
            or has half of what it takes to have state.
    """

    __slots__ = ("_is_open", "function", "method", "name")

    def __init__(self, function: Any, *methods: str) -> None:
        if isinstance(function, FunctionPart):
            function = function.call
        else:
            refuse_hidden(function)
            refuse_halves(function)
        if isinstance(function, type) and any(hasattr(function, name) for name in methods):
            message = f"a function object is needed, not its class {function.__name__}"
            raise ProgramError(message, hint=f"Pass {function.__name__}().")
        found = next((name for name in methods if callable(getattr(function, name, None))), None)
        if found is None and not callable(function):
            message = f"a function must be callable or have a method {' or '.join(methods)}; got {function!r}"
            raise ProgramError(message)
        self.function = function
        # The method that is called; None for a plain callable.
        self.method = found
        self.name: str = getattr(function, "__qualname__", None) or type(function).__name__
        self._is_open = False

    @property
    def has_life(self) -> bool:
        """Whether ``open`` and ``close`` are meant for us; a plain callable's are only if it is one of ours."""
        kinds = (Function, CheckpointedFunction, CheckpointListener)
        return self.method is not None or isinstance(self.function, kinds)

    def open(self, context: OperatorContext, *, keyed: bool = False) -> None:
        """Open the function, if it wants that; one with state of its subtask takes that up first."""
        runtime_context = self.attach(context, keyed=keyed)
        self._is_open = True
        wrapped = self._wrapped
        if wrapped is not None:
            wrapped.open(context, keyed=keyed)
        self._call_if_there("open", context, runtime_context)

    def attach(self, context: OperatorContext, *, keyed: bool = False) -> RuntimeContext:
        """Have the function take up its state, and be told of checkpoints; gives what ``open`` is to be called with."""
        runtime_context = RuntimeContext(context, keyed=keyed)
        if self._wrapped is None:  # else that one is attached when it is opened
            attach(
                self.function,
                context,
                runtime_context,
                lambda error, method: raise_in_function(error, f"{self.name}.{method}", context),
            )
        return runtime_context

    @property
    def _wrapped(self) -> UserFunction | None:
        """The user's function, if this is one of ours around it: `headrace.engine.functions.life.FunctionWrapper`."""
        return self.function.wrapped_function if isinstance(self.function, Wrapper) else None

    def bind(self) -> Callable[..., Any]:
        """Return what to call per record."""
        bound: Callable[..., Any] = self.function if self.method is None else getattr(self.function, self.method)
        return bound

    def close(self, context: OperatorContext) -> None:
        """Close the function, if it was opened; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            try:
                self._call_if_there("close", context)
            finally:
                wrapped = self._wrapped
                if wrapped is not None:
                    wrapped.close(context)

    def _call_if_there(self, name: str, context: OperatorContext, *arguments: Any) -> None:
        method = getattr(self.function, name, None) if self.has_life else None
        if not callable(method):
            return
        try:
            method(*arguments)
        except BaseException as error:
            raise_in_function(error, f"{self.name}.{name}", context)


def refuse_hidden(function: Any) -> None:
    """See that a bound method or partial does not hide an object that wants more than to be called.

    Raises:
        ProgramError: If it has state of its subtask, or half of what that takes, or hears of checkpoints.
    """
    owner = hidden_owner(function)
    if owner is not None:
        message = f"of {type(owner).__name__} only a method is passed, so its state would never be asked for"
        raise ProgramError(message, hint="pass the object itself")


def raise_in_function(error: BaseException, name: str, context: OperatorContext | None = None) -> NoReturn:
    """Raise a user function's failure again, with its place.

    Args:
        error: What it raised.
        name: The function's name.
        context: Of the operator it belongs to; None where that is not known, then the operator chain adds it.

    Raises:
        UserFunctionError: For everything but Headrace's own errors, which are raised as they are.
    """
    raise_from_outside(error)
    place: dict[str, Any] = {}
    if context is not None:
        place = {"operator": context.name, "subtask": f"{context.subtask + 1}/{context.parallelism}"}
    place["function"] = name
    if isinstance(error, HeadraceError):
        add_place(error, place, None if context is None else context.operator)
        raise error
    message = f"user function raised {type(error).__name__}: {error}"
    raise UserFunctionError(message, **place, traceback=users_traceback(error)) from error


def keys_of(selector: KeySelector, batch: Batch, context: OperatorContext | None = None) -> list[Any]:
    """Return the keys of a batch, with a failing key function told from others."""
    try:
        return selector.keys(batch)
    except BaseException as error:
        raise_in_function(error, repr(selector), context)


SCALARS = frozenset((type(None), str, bytes, dict, bool, int, float))
"""Types that `records_of` must look at; what a function gives of any other type is iterated as it is."""


def records_of(produced: Any) -> Iterable[Any]:
    """Return what a function gave back as an iterable of records; None is none.

    Raises:
        TypeMismatchError: If it is not iterable, or a text or dict, whose letters or keys are never what was meant.
    """
    if produced is None:
        return ()
    if type(produced) in SCALARS or not hasattr(produced, "__iter__"):
        message = f"the function must yield records or return an iterable of them; got {type(produced).__name__}"
        raise TypeMismatchError(message, hint="Return a list, also for one record.")
    records: Iterable[Any] = produced
    return records


class SideOutputs:
    """Side output records of one call of an operator, kept until the main output has been emitted."""

    __slots__ = ("_own", "_records")

    def __init__(self, own: Callable[[Any], Any] | None = None) -> None:
        # Makes records one's own as they are given; None for leaving them as they are.
        self._own = own
        # Tag -> records with their event times (None for none), in order.
        self._records: dict[str, list[tuple[Any, int | None]]] = {}

    def add(self, tag: Any, value: Any, timestamp: int | None) -> None:
        """Take one record.

        Raises:
            TypeMismatchError: If ``tag`` is neither a tag nor a name.
        """
        name = tag.tag_id if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            message = f"a side output is named by an OutputTag; got {tag!r}"
            raise TypeMismatchError(message)
        if self._own is not None:
            value = self._own(value)
        self._records.setdefault(name, []).append((value, timestamp))

    def __bool__(self) -> bool:
        return bool(self._records)

    def take(self, produced: Any, rows: list[Any], timestamp: int | None) -> None:
        """Sort what a function gave back: ``(tag, record)`` comes here, every other record is appended to ``rows``.

        Raises:
            TypeMismatchError: As `records_of`.
        """
        for record in records_of(produced):
            if type(record) is tuple and len(record) == 2 and type(record[0]) is OutputTag:
                self.add(record[0], record[1], timestamp)
            else:
                rows.append(record if self._own is None else self._own(record))

    def take_tagged(self, rows: list[Any], timestamps: Timestamps | None) -> tuple[list[Any], Timestamps | None]:
        """As `take`, for many records at once.

        Returns:
            The records for the main output and their event times; ``rows`` itself if no record is tagged.
        """
        tagged = [i for i, row in enumerate(rows) if type(row) is tuple and len(row) == 2 and type(row[0]) is OutputTag]
        if not tagged:
            return rows, timestamps
        times = times_or_none(timestamps, len(rows))
        for i in tagged:
            tag, value = rows[i]
            self.add(tag, value, times[i])
        is_main = np.ones(len(rows), dtype=np.bool_)
        is_main[tagged] = False
        main = [rows[i] for i in np.flatnonzero(is_main).tolist()]
        return main, None if timestamps is None else timestamps[is_main]

    def emit(self, output: Output) -> None:
        """Emit all records, one batch per tag."""
        if not self._records:
            return
        records, self._records = self._records, {}
        for tag, pairs in records.items():
            output.emit_side(tag, timed_batch([value for value, _ in pairs], [time for _, time in pairs]).tangled())


def timed_batch(rows: list[Any], times: list[int | None]) -> Batch:
    """Return a batch of rows and their event times, if one of them has one."""
    if None in times:
        if all(time is None for time in times):
            return Batch.of_rows(rows)
        times = [MIN_TIMESTAMP if time is None else time for time in times]
    return Batch.of_rows(rows, np.array(times, dtype=np.int64))
