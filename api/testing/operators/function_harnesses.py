"""Harnesses by what they test: functions with one input, keyed ones, with two inputs, with a broadcast one.

A function is made an operator by the very methods of streams (``map``, ``process``, ``connect(...).process`` ...), so
that what is tested is what a program gets. An operator, or the operator that made a stream, is taken as it is.

Source: Flink's ``OneInputStreamOperatorTestHarness``, ``KeyedOneInputStreamOperatorTestHarness``,
``TwoInputStreamOperatorTestHarness``, ``BroadcastOperatorTestHarness`` and their keyed twins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.engine.errors import ProgramError
from headrace.engine.functions.operator import Operator

from ...arguments.checks import key_selector_of
from ...stream.data_stream import DataStream
from ...stream.environment import StreamExecutionEnvironment
from .operator_harness import OperatorTestHarness

__all__ = ["BroadcastTestHarness", "KeyedOneInputTestHarness", "OneInputTestHarness", "TwoInputTestHarness"]

_STREAM_METHODS = ("map", "flat_map", "filter", "process_element", "reduce")
"""Methods of functions, in the order in which they are looked for; the stream's method has the same name, except for
``process_element``.
"""


def _empty_stream(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([])


def _new_environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(actor_system="local", parallelism=1)


def _applied(stream: DataStream, function: Any) -> DataStream:
    """A function put on a stream by the method that is meant for it; a plain callable by ``map``, or after ``key_by``
    by ``process``.
    """
    is_keyed = hasattr(stream, "key_selector")
    for name in _STREAM_METHODS:
        if callable(getattr(function, name, None)):
            verb = "process" if name == "process_element" else name
            if not hasattr(stream, verb):
                message = f"{verb} needs a keyed stream"
                raise ProgramError(message, hint="Use KeyedOneInputTestHarness.")
            applied: DataStream = getattr(stream, verb)(function)
            return applied
    return stream.process(function) if is_keyed else stream.map(function)


class OneInputTestHarness(OperatorTestHarness):
    """One subtask of an operator with one input.

    Args:
        tested: A function object (MapFunction, FlatMapFunction, FilterFunction, ProcessFunction), a plain callable (as
            for ``map``), an operator, or a stream: then the operator that made it.
        **options: As for `OperatorTestHarness`: ``parallelism``, ``subtask``, ``now_ms``, ``name`` ...

    Examples:
        >>> from headrace.testing import OneInputTestHarness
        >>> with OneInputTestHarness(lambda word: word.upper()) as harness:
        ...     harness.process_element("a", 10)
        ...     harness.process_elements(["b", "c"], [11, 12])
        ...     print(harness.extract_output_values(), harness.extract_output_records()[0])
        ['A', 'B', 'C'] StreamRecord(value='A', timestamp=10)
    """

    def __init__(self, tested: Any, **options: Any) -> None:
        if not isinstance(tested, (Operator, DataStream)):
            tested = _applied(_empty_stream(_new_environment()), tested)
        super().__init__(tested, **options)

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Feed one record.

        Args:
            value: The record.
            timestamp: Its event time, epoch milliseconds; None for none.
        """
        self._process(0, [value], None if timestamp is None else [timestamp])

    def process_elements(self, values: Iterable[Any], timestamps: Sequence[int] | None = None) -> None:
        """Feed several records, in one batch.

        Args:
            values: The records; a ``pyarrow.RecordBatch`` for operators that work on columns.
            timestamps: Their event times, one each; None for none.
        """
        self._process(0, values, timestamps)

    def process_watermark(self, timestamp: int) -> None:
        """Let event time go on to ``timestamp``, epoch milliseconds."""
        self._process_watermark(0, timestamp)

    def process_idleness(self, idle: bool) -> None:
        """Let the input become idle, or active again."""
        self._set_idle(0, idle)


class KeyedOneInputTestHarness(OneInputTestHarness):
    """One subtask of an operator over a keyed stream.

    Args:
        tested: A KeyedProcessFunction, a ReduceFunction, a callable of record and context, an operator, or a stream.
        key: As for ``key_by``: a callable, a field's name, several. Not needed for an operator or stream.
        **options: As for `OperatorTestHarness`.

    Examples:
        >>> from headrace import KeyedProcessFunction, ValueStateDescriptor
        >>> from headrace.testing import KeyedOneInputTestHarness
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", int))
        ...     def process_element(self, value, ctx):
        ...         self.count.update((self.count.value() or 0) + 1)
        ...         yield ctx.get_current_key(), self.count.value()
        >>> with KeyedOneInputTestHarness(Count(), key=lambda word: word) as harness:
        ...     harness.process_elements(["a", "b", "a"])
        ...     print(harness.extract_output_values(), harness.num_keyed_state_entries("count"))
        [('a', 1), ('b', 1), ('a', 2)] 2
    """

    def __init__(self, tested: Any, key: Any = None, **options: Any) -> None:
        selector = None if key is None else key_selector_of("key", (key,))
        if not isinstance(tested, (Operator, DataStream)):
            if selector is None:
                message = "a function over a keyed stream is tested with a key"
                raise ProgramError(message, hint='Write KeyedOneInputTestHarness(function, key="user").')
            tested = _applied(_empty_stream(_new_environment()).key_by(selector), tested)
        super().__init__(tested, key_selectors=[selector], **options)


class TwoInputTestHarness(OperatorTestHarness):
    """One subtask of an operator with two inputs, as behind ``connect``.

    Args:
        tested: A CoMapFunction, CoFlatMapFunction, CoProcessFunction or KeyedCoProcessFunction; an operator; a stream.
        key1: As for ``key_by``, of the first input; None if the inputs have no keys.
        key2: Of the second input.
        **options: As for `OperatorTestHarness`.
    """

    def __init__(self, tested: Any, key1: Any = None, key2: Any = None, **options: Any) -> None:
        if (key1 is None) != (key2 is None):
            message = "either both inputs have keys or none has"
            raise ProgramError(message)
        selectors = [None if key is None else key_selector_of("key", (key,)) for key in (key1, key2)]
        if not isinstance(tested, (Operator, DataStream)):
            env = _new_environment()
            first, second = (
                _empty_stream(env) if selector is None else _empty_stream(env).key_by(selector)
                for selector in selectors
            )
            connected: Any = first.connect(second)
            methods = {"map1": "map", "flat_map1": "flat_map"}
            verb = next((verb for name, verb in methods.items() if callable(getattr(tested, name, None))), "process")
            tested = getattr(connected, verb)(tested)
        super().__init__(tested, num_inputs=2, key_selectors=selectors, **options)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Feed one record to the first input, with its event time."""
        self._process(0, [value], None if timestamp is None else [timestamp])

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Feed one record to the second input, with its event time."""
        self._process(1, [value], None if timestamp is None else [timestamp])

    def process_watermark1(self, timestamp: int) -> None:
        """Let event time of the first input go on; the operator's is the lower of both."""
        self._process_watermark(0, timestamp)

    def process_watermark2(self, timestamp: int) -> None:
        """Let event time of the second input go on."""
        self._process_watermark(1, timestamp)

    def process_both_watermarks(self, timestamp: int) -> None:
        """Let event time of both inputs go on."""
        self._process_watermark(0, timestamp)
        self._process_watermark(1, timestamp)

    def process_idleness1(self, idle: bool) -> None:
        """Let the first input become idle, or active again: event time is then the second one's."""
        self._set_idle(0, idle)

    def process_idleness2(self, idle: bool) -> None:
        """Let the second input become idle, or active again."""
        self._set_idle(1, idle)

    def end_input1(self) -> None:
        """End the first input."""
        self._end_input(0)

    def end_input2(self) -> None:
        """End the second input."""
        self._end_input(1)


class BroadcastTestHarness(OperatorTestHarness):
    """One subtask of a function over a stream and a broadcast one.

    Args:
        tested: A BroadcastProcessFunction, or a KeyedBroadcastProcessFunction together with ``key``.
        *descriptors: Of the broadcast state, as given to ``broadcast``.
        key: As for ``key_by``, of the stream that is not broadcast; None if it has no keys.
        **options: As for `OperatorTestHarness`.
    """

    def __init__(self, tested: Any, *descriptors: Any, key: Any = None, **options: Any) -> None:
        selector = None if key is None else key_selector_of("key", (key,))
        if not isinstance(tested, (Operator, DataStream)):
            env = _new_environment()
            stream = _empty_stream(env) if selector is None else _empty_stream(env).key_by(selector)
            rules: Any = _empty_stream(env).broadcast(*descriptors)
            connected: Any = stream.connect(rules)
            tested = connected.process(tested)
        super().__init__(tested, num_inputs=2, key_selectors=[selector], **options)

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Feed one record of the stream, with its event time."""
        self._process(0, [value], None if timestamp is None else [timestamp])

    def process_broadcast_element(self, value: Any, timestamp: int | None = None) -> None:
        """Feed one record of the broadcast stream, with its event time."""
        self._process(1, [value], None if timestamp is None else [timestamp])

    def process_watermark(self, timestamp: int) -> None:
        """Let event time of the stream go on; the operator's is the lower of both inputs'."""
        self._process_watermark(0, timestamp)

    def process_broadcast_watermark(self, timestamp: int) -> None:
        """Let event time of the broadcast stream go on."""
        self._process_watermark(1, timestamp)
