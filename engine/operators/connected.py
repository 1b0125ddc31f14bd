"""Operators over two connected streams: one function, a method per input.

Records of the two inputs come in any order between them; what decides is when they arrive. Watermarks and idleness are
the task's business: an operator gets the lowest watermark of both inputs. Without keys each input is worked off by the
one-input operator of the same kind, so that a record costs no more here than there. With keys both inputs share one
set of timers and state handles, and a key's records of both streams meet in one subtask because both are partitioned
by the same hash.

Source: Flink's ``CoStreamMap``, ``CoStreamFlatMap``, ``CoProcessOperator``, ``KeyedCoProcessOperator``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..columns.records import Batch
from ..functions.cofunctions import TwoInputFunction
from ..functions.keys import KeySelector
from ..functions.operator import Operator, OperatorContext
from ..functions.user_function import FunctionPart, keys_of
from .process import KeyedFunctionOperator
from .row_operators import FlatMapOperator, MapOperator, ProcessOperator

__all__ = [
    "CoFlatMapOperator",
    "CoMapOperator",
    "CoProcessOperator",
    "KeyedCoFlatMapOperator",
    "KeyedCoMapOperator",
    "KeyedCoProcessOperator",
    "TwoInputOperator",
]


class TwoInputOperator(Operator):
    """One function over two inputs, each worked off by an operator of its own.

    Args:
        function: The function; opened and closed here.
        make: Makes the operator of one input from what is to be called per record.
    """

    def __init__(self, function: TwoInputFunction, make: Callable[[Any], Operator]) -> None:
        self.function = function
        first, second = function.calls()
        self.inputs = (make(FunctionPart(first)), make(FunctionPart(second)))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.function.open(context)
        for operator in self.inputs:
            operator.open(context)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        self.inputs[input_index].process_batch(batch, 0)

    def close(self) -> None:
        self.function.close(self.context)


class CoMapOperator(TwoInputOperator):
    """One record in, of either input, one out.

    Args:
        function: CoMapFunction or pair of callables of a record.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(TwoInputFunction(function, "map1", "map2"), MapOperator)


class CoFlatMapOperator(TwoInputOperator):
    """One record in, of either input, any number out.

    Args:
        function: CoFlatMapFunction or pair of callables of a record.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(TwoInputFunction(function, "flat_map1", "flat_map2"), FlatMapOperator)


class CoProcessOperator(TwoInputOperator):
    """One record in, of either input, any number out, to the main output and to side outputs.

    Args:
        function: CoProcessFunction or pair of callables of (record, context).
    """

    def __init__(self, function: Any) -> None:
        super().__init__(TwoInputFunction(function, "process_element1", "process_element2"), ProcessOperator)


class KeyedCoProcessOperator(KeyedFunctionOperator):
    """A process function over two keyed streams, with state and timers that both share.

    Args:
        first_keys: Finds the keys of input 0.
        second_keys: Finds the keys of input 1; keys of both must be of one type to be equal.
        function: KeyedCoProcessFunction, or pair of callables of (record, context), which have no timers to fire.
    """

    function: TwoInputFunction
    methods = ("process_element1", "process_element2")

    def __init__(self, first_keys: KeySelector, second_keys: KeySelector, function: Any) -> None:
        super().__init__(TwoInputFunction(function, *self.methods))
        self._key_selectors = (first_keys, second_keys)

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return self._key_selectors

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        calls = zip(self.function.calls(), self.function.names(), strict=True)
        self._calls = [self.calls_of(self.of_record(call), name) for call, name in calls]

    def of_record(self, call: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """Return what is called with a record and its context, and gives any number of records."""
        return call

    def process_batch(self, batch: Batch, input_index: int) -> None:
        keys = keys_of(self._key_selectors[input_index], batch, self.context)
        self.process_rows(keys, batch, self._calls[input_index], self.timer_context)


class KeyedCoMapOperator(KeyedCoProcessOperator):
    """One record in, of either keyed stream, one out; with the key's state.

    Args:
        first_keys: See `KeyedCoProcessOperator`.
        second_keys: See there.
        function: CoMapFunction or pair of callables of a record.
    """

    methods = ("map1", "map2")

    def of_record(self, call: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda record, _context: [call(record)]


class KeyedCoFlatMapOperator(KeyedCoProcessOperator):
    """One record in, of either keyed stream, any number out; with the key's state.

    Args:
        first_keys: See `KeyedCoProcessOperator`.
        second_keys: See there.
        function: CoFlatMapFunction or pair of callables of a record.
    """

    methods = ("flat_map1", "flat_map2")

    def of_record(self, call: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        return lambda record, _context: call(record)
