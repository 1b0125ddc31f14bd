"""The broadcast state pattern: a stream of which every subtask gets every record steers what is done with another.

Input 0 is the stream that is worked on, input 1 the broadcast one. Broadcast state is a map that every subtask holds a
full copy of. Only a broadcast record may change it: all subtasks see those, while another record is seen by one, whose
copy would drift from the others'. So what records and timers are given is a view that refuses to write. Nobody but the
program can see to it that broadcast records of several senders, which come in any order, leave equal copies.

Broadcast records belong to no key. ``ctx.apply_to_keyed_state`` is their only way to keyed state: key by key, over what
this subtask holds.

Source: Flink's ``CoBroadcastWithNonKeyedOperator``, ``CoBroadcastWithKeyedOperator``; "The Broadcast State Pattern".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.state.keyed.contract import BroadcastState
from headrace.state.keyed.descriptors import MapStateDescriptor
from headrace.state.keyed.kinds import NO_KEY, StateDescriptor

from ..columns.records import Batch, Watermark
from ..errors import StateAccessError
from ..functions.cofunctions import ReadOnlyBroadcastState, TwoInputFunction
from ..functions.keys import KeySelector
from ..functions.operator import ArrivalOrder, BatchOrder, OperatorContext
from ..functions.side_outputs import SideOutputs
from ..functions.timers import TimerService
from ..functions.user_function import keys_of
from .connected import TwoInputOperator
from .event_time import OperatorWatermark
from .process import KeyedFunctionOperator, KeyedProcessContext
from .row_operators import ProcessContext, ProcessOperator

__all__ = ["BroadcastProcessOperator", "KeyedBroadcastProcessOperator"]

_State = TypeVar("_State")

METHODS = ("process_element", "process_broadcast_element")


class _BroadcastStates:
    """The broadcast states that a stream was declared with, in one subtask.

    Args:
        descriptors: The states.
        context: The operator's.
    """

    def __init__(self, descriptors: Sequence[MapStateDescriptor], context: OperatorContext) -> None:
        states = {each.name: context.operator_state.broadcast_state(each) for each in descriptors}
        self._writable = states
        self._readable = {name: ReadOnlyBroadcastState(state, name) for name, state in states.items()}

    def writable(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """Return what a broadcast record is given."""
        return self._find(self._writable, descriptor)

    def readable(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return what every other record is given."""
        return self._find(self._readable, descriptor)

    @staticmethod
    def _find(states: dict[str, _State], descriptor: MapStateDescriptor) -> _State:
        name = getattr(descriptor, "name", descriptor)
        if name not in states:
            message = f"broadcast state {name!r} was not declared; declared are {', '.join(map(repr, states))}"
            raise StateAccessError(message, hint="pass its descriptor to broadcast(...)")
        return states[name]


class _InputContext(ProcessContext):
    """What a `BroadcastProcessFunction` may know of a record of one input; valid during the call only.

    Args:
        context: The operator's.
        sides: Its side outputs.
        watermark: How far it is.
        get_broadcast_state: Gives a broadcast state in the form that the input may have.
    """

    __slots__ = ("_watermark", "get_broadcast_state")

    def __init__(
        self,
        context: OperatorContext,
        sides: SideOutputs,
        watermark: OperatorWatermark,
        get_broadcast_state: Callable[[MapStateDescriptor], Any],
    ) -> None:
        super().__init__(context, sides)
        self._watermark = watermark
        self.get_broadcast_state = get_broadcast_state

    def current_watermark(self) -> int:
        """Return how far event time is."""
        return self._watermark.current_ms


class _Input(ProcessOperator):
    """Works off one input; told what its contexts need before it is opened."""

    watermark: OperatorWatermark
    get_broadcast_state: Callable[[MapStateDescriptor], Any]

    def make_context(self, context: OperatorContext, sides: SideOutputs) -> ProcessContext:
        return _InputContext(context, sides, self.watermark, self.get_broadcast_state)


class BroadcastProcessOperator(TwoInputOperator):
    """A stream without keys and a broadcast one.

    Args:
        descriptors: The broadcast states.
        function: BroadcastProcessFunction, or pair of callables of (record, context).
    """

    inputs: tuple[_Input, _Input]

    def __init__(self, descriptors: Sequence[MapStateDescriptor], function: Any) -> None:
        super().__init__(TwoInputFunction(function, *METHODS), _Input)
        self._descriptors = tuple(descriptors)

    @property
    def batch_orders(self) -> tuple[BatchOrder | None, ...]:
        # Not sorted, but behind the broadcast stream.
        return ArrivalOrder.AS_THEY_CAME, None

    def open(self, context: OperatorContext) -> None:
        states = _BroadcastStates(self._descriptors, context)
        self._watermark = OperatorWatermark.of(context)
        for operator, get_state in zip(self.inputs, (states.readable, states.writable), strict=True):
            operator.watermark, operator.get_broadcast_state = self._watermark, get_state
        super().open(context)

    def process_watermark(self, watermark: Watermark) -> None:
        if self._watermark.advance(watermark.timestamp_ms):
            self.context.output.emit_watermark(watermark)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._watermark.snapshot()


# ---------------------------------------------------------------------------------------------------------------- keyed


class _KeyedRecordContext(KeyedProcessContext):
    """What a `KeyedBroadcastProcessFunction` may know of a record of the keyed stream, or of a timer."""

    __slots__ = ("_now_ms", "_watermark", "get_broadcast_state")

    def __init__(self, operator: KeyedBroadcastProcessOperator, context: OperatorContext) -> None:
        super().__init__(context.keyed_state, operator.timers, operator.sides)
        self._now_ms = context.now_ms
        self._watermark = operator.watermark
        self.get_broadcast_state: Callable[[MapStateDescriptor], Any] = operator.states.readable

    def current_processing_time(self) -> int:
        """Return the clock's reading."""
        return self._now_ms()

    def current_watermark(self) -> int:
        """Return how far event time is."""
        return self._watermark.current_ms


class _KeyedBroadcastContext(_KeyedRecordContext):
    """What a `KeyedBroadcastProcessFunction` may know of a broadcast record."""

    __slots__ = ("_keyed_state",)

    def __init__(self, operator: KeyedBroadcastProcessOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.get_broadcast_state = operator.states.writable
        self._keyed_state = context.keyed_state

    def get_current_key(self) -> Any:
        """Refused.

        Raises:
            StateAccessError: Always.
        """
        message = "a broadcast record belongs to no key"
        raise StateAccessError(message, hint="apply_to_keyed_state goes over the state of all keys")

    def timer_service(self) -> TimerService:
        """Refused.

        Raises:
            StateAccessError: Always.
        """
        message = "a broadcast record belongs to no key, so it has no timers"
        raise StateAccessError(message, hint="the clocks are current_watermark() and current_processing_time()")

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], Any]) -> None:
        """Call ``function`` with each key of this subtask that has the state, and the state's handle.

        The key is the current one during the call, so the handle reads and writes its state.

        Args:
            descriptor: The keyed state.
            function: Callable of key and handle, or object with a method ``process`` of these (``KeyedStateFunction``);
                what it gives is ignored.
        """
        backend = self._keyed_state
        handle = backend.handle(descriptor)
        call = getattr(function, "process", function)
        try:
            for key in list(backend.table(descriptor).namespace(None)):  # a copy: the function may clear state
                backend.current_key = key
                call(key, handle)
        finally:
            backend.current_key = NO_KEY


class KeyedBroadcastProcessOperator(KeyedFunctionOperator):
    """A keyed stream and a broadcast one.

    Args:
        key_selector: Finds the keys of input 0.
        descriptors: The broadcast states.
        function: KeyedBroadcastProcessFunction, or pair of callables of (record, context), which have no timers to
            fire.
    """

    function: TwoInputFunction

    def __init__(self, key_selector: KeySelector, descriptors: Sequence[MapStateDescriptor], function: Any) -> None:
        super().__init__(TwoInputFunction(function, *METHODS))
        self._key_selector = key_selector
        self._descriptors = tuple(descriptors)

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return self._key_selector, None

    def open(self, context: OperatorContext) -> None:
        self.states = _BroadcastStates(self._descriptors, context)
        super().open(context)
        self._broadcast_context = _KeyedBroadcastContext(self, context)
        calls = zip(self.function.calls(), self.function.names(), strict=True)
        self._calls = [self.calls_of(call, name) for call, name in calls]

    def make_context(self, context: OperatorContext) -> KeyedProcessContext:
        return _KeyedRecordContext(self, context)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if input_index == 0:
            keys = keys_of(self._key_selector, batch, self.context)
            self.process_rows(keys, batch, self._calls[0], self.timer_context)
        else:
            self.process_rows([NO_KEY] * batch.num_rows, batch, self._calls[1], self._broadcast_context)
