"""Two streams with one operator behind both: connected streams, and streams steered by a broadcast one.

Connecting keeps the streams apart, of whatever types they are: one function has a method for each. ``union`` is for
streams of one kind. There are state and timers only if both streams are keyed, which is checked where the function is
given.

Source: PyFlink's ``ConnectedStreams``, ``BroadcastStream``, ``BroadcastConnectedStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.engine.errors import ProgramError
from headrace.engine.functions.cofunctions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from headrace.engine.functions.contract import Function
from headrace.engine.functions.operator import Operator
from headrace.engine.functions.side_outputs import Tagged
from headrace.engine.operators.broadcast import BroadcastProcessOperator, KeyedBroadcastProcessOperator
from headrace.engine.operators.connected import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoFlatMapOperator,
    KeyedCoMapOperator,
    KeyedCoProcessOperator,
)
from headrace.state.keyed.descriptors import MapStateDescriptor
from headrace.state.type_variables import T1, T2

from ..arguments.checks import key_selector_of, require_instance
from ..arguments.data_types import TypeInformation, infer_output_type
from ..arguments.function_shapes import CoFlatMaps, CoMaps, KeyOf, ProcessesBroadcast, ProcessesTwo
from .data_stream import DataStream
from .keyed_stream import KeyedStream

__all__ = ["BroadcastConnectedStream", "BroadcastStream", "ConnectedStreams"]

_New = TypeVar("_New")
_Other = TypeVar("_Other")

_First = TypeVar("_First")
_Second = TypeVar("_Second")

_ProcessPair: TypeAlias = tuple[
    Callable[[_First, Any], Iterable[_New | Tagged] | None], Callable[[_Second, Any], Iterable[_Other | Tagged] | None]
]
"""Callables of value and context: what that for the first stream takes and gives, then that for the second."""


class ConnectedStreams(Generic[T1, T2]):
    """Two streams, to be given a function of both. Made by ``connect``."""

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def key_by(self, key_selector1: KeyOf[T1], key_selector2: KeyOf[T2]) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key, so that a key's records of both meet in one subtask and share state.

        Args:
            key_selector1: The first stream's key: a callable, a field's name or position, or a list of fields.
            key_selector2: The second stream's; its values must be of the same type.
        """
        first = KeyedStream(self._first, key_selector_of("key_by", [key_selector1]))
        second = KeyedStream(self._second, key_selector_of("key_by", [key_selector2]))
        return ConnectedStreams(first, second)

    def map(
        self,
        func: CoMaps[T1, T2, _New] | tuple[Callable[[T1], _New], Callable[[T2], _Other]],
        output_type: Any = None,
    ) -> DataStream[_New | _Other]:
        """Turn each record of either stream into another.

        Args:
            func: A CoMapFunction, which on keyed streams may have state, or a pair of callables, one for each stream.
            output_type: The new records' type: checked, and columns are made of them.
        """
        operator = self._keyed(KeyedCoMapOperator, func) or CoMapOperator(func)
        return _applied("co-map", self._first, self._second, func, ("map1", "map2"), operator, output_type)

    def flat_map(
        self,
        func: CoFlatMaps[T1, T2, _New]
        | tuple[Callable[[T1], Iterable[_New] | None], Callable[[T2], Iterable[_Other] | None]],
        output_type: Any = None,
    ) -> DataStream[_New | _Other]:
        """Turn each record of either stream into any number of others.

        Args:
            func: A CoFlatMapFunction, which on keyed streams may have state, or a pair of callables that yield or
                return an iterable, one for each stream.
            output_type: The new records' type: checked, and columns are made of them.
        """
        methods = ("flat_map1", "flat_map2")
        operator = self._keyed(KeyedCoFlatMapOperator, func) or CoFlatMapOperator(func)
        return _applied("co-flat_map", self._first, self._second, func, methods, operator, output_type)

    def process(
        self, func: ProcessesTwo[T1, T2, _New] | _ProcessPair[T1, _New, T2, _Other], output_type: Any = None
    ) -> DataStream[_New | _Other]:
        """Run a function over both streams; if both are keyed, with the key's state and timers, shared by both.

        Args:
            func: A CoProcessFunction, on keyed streams a KeyedCoProcessFunction, or a pair of callables of value and
                context, one for each stream.
            output_type: The new records' type: checked, and columns are made of them.

        Raises:
            ProgramError: If a KeyedCoProcessFunction is given and the streams are not keyed.
        """
        operator: Operator
        given: Any = func
        if isinstance(given, (BroadcastProcessFunction, KeyedBroadcastProcessFunction)):
            message = f"{type(func).__name__} needs a broadcast stream with its states"
            raise ProgramError(message, hint="call broadcast(descriptor, ...) with at least one MapStateDescriptor")
        if isinstance(self._first, KeyedStream) and isinstance(self._second, KeyedStream):
            operator = KeyedCoProcessOperator(self._first.key_selector, self._second.key_selector, func)
        elif isinstance(func, KeyedCoProcessFunction):
            message = f"{type(func).__name__} is a keyed function; both connected streams must be keyed"
            raise ProgramError(
                message, hint="call key_by(key of the first, key of the second) on the connected streams"
            )
        else:
            operator = CoProcessOperator(func)
        methods = ("process_element1", "process_element2")
        return _applied("co-process", self._first, self._second, func, methods, operator, output_type)

    def _keyed(self, kind: type[KeyedCoProcessOperator], func: Any) -> Operator | None:
        """The operator of a function that may have state, if both streams are keyed; a pair of callables has none."""
        if (
            isinstance(func, Function)
            and isinstance(self._first, KeyedStream)
            and isinstance(self._second, KeyedStream)
        ):
            return kind(self._first.key_selector, self._second.key_selector, func)
        return None


class BroadcastStream(Generic[T1]):
    """A stream that every subtask gets in full, with the states that it may change.

    Made by ``broadcast(descriptor, ...)``, to be connected to another stream.
    """

    def __init__(self, stream: DataStream[T1], descriptors: Sequence[MapStateDescriptor]) -> None:
        for descriptor in descriptors:
            require_instance("broadcast state is declared by a MapStateDescriptor", MapStateDescriptor, descriptor)
        names = [descriptor.name for descriptor in descriptors]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            message = f"broadcast states must have different names; {', '.join(map(repr, doubled))} is declared twice"
            raise ProgramError(message)
        # What it is made of, partitioned so that every subtask gets every record.
        self.stream = stream
        self.descriptors = tuple(descriptors)


class BroadcastConnectedStream(Generic[T1, T2]):
    """A stream and a broadcast one, to be given a function of both. Made by ``connect``."""

    def __init__(self, stream: DataStream[T1], broadcast: BroadcastStream[T2]) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, func: ProcessesBroadcast[T1, T2, _New] | _ProcessPair[T1, _New, T2, _Other], output_type: Any = None
    ) -> DataStream[_New | _Other]:
        """Run a function over both streams: broadcast records change the broadcast state, all others read it.

        Args:
            func: A KeyedBroadcastProcessFunction if the stream is keyed, a BroadcastProcessFunction if it is not, or a
                pair of callables of value and context, for the stream's records and for broadcast ones.
            output_type: The new records' type: checked, and columns are made of them.

        Raises:
            ProgramError: If a keyed function is given for a stream without keys, or the other way round.
        """
        stream, descriptors = self._stream, self._broadcast.descriptors
        is_keyed = isinstance(stream, KeyedStream)
        if isinstance(func, KeyedBroadcastProcessFunction) and not is_keyed:
            message = (
                f"{type(func).__name__} is a keyed function; the stream connected to the broadcast one is not keyed"
            )
            raise ProgramError(message, hint="call key_by on it, or use a BroadcastProcessFunction")
        if isinstance(func, BroadcastProcessFunction) and is_keyed:
            message = (
                f"{type(func).__name__} is a function without keys; the stream connected to the broadcast one is keyed"
            )
            raise ProgramError(message, hint="use a KeyedBroadcastProcessFunction")
        operator: Operator
        if isinstance(stream, KeyedStream):
            operator = KeyedBroadcastProcessOperator(stream.key_selector, descriptors, func)
        else:
            operator = BroadcastProcessOperator(descriptors, func)
        methods = ("process_element", "process_broadcast_element")
        return _applied("broadcast process", stream, self._broadcast.stream, func, methods, operator, output_type)


def _applied(
    name: str,
    first: DataStream,
    second: DataStream,
    func: Any,
    methods: tuple[str, str],
    operator: Operator,
    output_type: Any,
) -> DataStream[Any]:
    """Put an operator behind both streams whose function has a method, or is a callable, for each of them."""
    hinted = _hinted(func, methods, many=name != "co-map")
    return first.transform(name, operator, output_type, f"{name} by {_name_of(func)}", hinted, others=(second,))


def _hinted(func: Any, methods: tuple[str, str], *, many: bool) -> TypeInformation | None:
    """The type of what both halves of a function are said to give; None if they differ or say nothing."""
    functions = func if isinstance(func, (tuple, list)) else (func, func)
    hints = [infer_output_type(each, name, many=many) for each, name in zip(functions, methods, strict=True)]
    return hints[0] if hints[0] == hints[1] else None


def _name_of(func: Any) -> str:
    if isinstance(func, (tuple, list)):
        return " and ".join(map(_name_of, func))
    return getattr(func, "__qualname__", None) or type(func).__name__
