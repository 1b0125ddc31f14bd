"""State of user functions that belongs to a subtask and not to a key: `CheckpointedFunction`; and functions that hear
of checkpoints: `CheckpointListener`.

A function (also a source's reader or a sink's writer) that is one, by name or by having its methods, is asked twice:
``initialize_state`` before it is opened, where it declares its state and finds what a checkpoint held;
``snapshot_state`` at every checkpoint, where it puts what it has gathered into that state. The operator need not know:
what opens functions calls `attach`, which leaves word with the operator's context, and `Operator.take_snapshot` and
`Operator.checkpoint_ended` do the rest.

Names of lists are the function's own: operators keep state of theirs under other names. Broadcast state is shared with
the operator, as a broadcast process function reads what ``initialize_state`` has filled.

Source: Flink's ``CheckpointedFunction``, ``CheckpointListener``, ``FunctionInitializationContext``,
``StreamingFunctionUtils``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from headrace.state.keyed.contract import BroadcastState, ListStateHandle
from headrace.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from headrace.state.type_variables import UK, UV, T

from ..errors import ProgramError, StateAccessError
from .operator import OperatorContext

__all__ = [
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "OperatorStateStore",
    "Wrapper",
    "attach",
    "hidden_owner",
    "refuse_halves",
]

_PREFIX = "function."
"""Before the names of a function's lists, so that they never meet those of the operator."""

_HALVES = (
    ("initialize_state", "snapshot_state"),
    ("snapshot_state", "initialize_state"),
    ("notify_checkpoint_aborted", "notify_checkpoint_complete"),
)
"""Methods that mean nothing without another one."""

_GIVEN = re.compile(r"^_* |^_*c(tx)? |context|ctx|checkpoint")
"""What parameters of such methods are called."""


class Wrapper:
    """Ours around something of the user's, which is driven as if it stood there itself.

    Told by this type, and not by an attribute: users' objects may have one of any name.
    """

    wrapped_function: Any


class OperatorStateStore:
    """Where a function declares state that belongs to its subtask.

    Args:
        context: Of the operator.
        prefix: Before the names of all that is declared here.
    """

    __slots__ = ("_context", "_prefix")

    def __init__(self, context: OperatorContext, prefix: str = "") -> None:
        self._context = context
        self._prefix = prefix

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListStateHandle[T]:
        """Return a list whose elements are dealt out over the subtasks when their number changes.

        Raises:
            ProgramError: If the name was declared as another kind of state, or the state has a time to live.
            CheckpointMismatchError: If the checkpoint has another kind or type of state under the name.
        """
        name = self._checked(descriptor)
        return self._context.operator_state.list_state(name, descriptor.value_type)

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListStateHandle[T]:
        """Return a list that every subtask receives in full on restore; else as `get_list_state`.

        Each subtask must keep what is its own only, else the list grows with every restore.
        """
        name = self._checked(descriptor)
        return self._context.operator_state.union_list_state(name, descriptor.value_type)

    def get_broadcast_state(self, map_descriptor: MapStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """Return a map of which every subtask holds an equal copy; else as `get_list_state`."""
        if self._prefix:
            map_descriptor = copy.copy(map_descriptor)
            object.__setattr__(map_descriptor, "name", self._prefix + map_descriptor.name)
        return self._context.operator_state.broadcast_state(map_descriptor)

    def _checked(self, descriptor: Any) -> str:
        if not isinstance(descriptor, ListStateDescriptor):
            message = f"operator state is a list, described by a ListStateDescriptor; got {descriptor!r}"
            raise ProgramError(message, operator=self._context.name)
        if descriptor.ttl is not None:
            message = f"operator state {descriptor.name!r} cannot have a time to live"
            raise ProgramError(message, operator=self._context.name)
        return _PREFIX + self._prefix + descriptor.name


class FunctionInitializationContext:
    """What ``initialize_state`` is given.

    Args:
        context: Of the operator.
        keyed_state_store: The way to keyed state; None in sources and sinks.
        prefix: Before the names of operator state that is declared through it.
    """

    __slots__ = ("_context", "_keyed_state_store", "_prefix")

    def __init__(self, context: OperatorContext, keyed_state_store: Any, prefix: str = "") -> None:
        self._context = context
        self._keyed_state_store = keyed_state_store
        self._prefix = prefix

    def for_part(self, prefix: str) -> FunctionInitializationContext:
        """Return the same for one of several functions within one, whose operator state has names of its own.

        Args:
            prefix: Before their names.
        """
        return FunctionInitializationContext(self._context, self._keyed_state_store, self._prefix + prefix)

    def is_restored(self) -> bool:
        """Return whether the job was started from a checkpoint, also if that holds nothing of this function."""
        return self._context.is_restored

    def get_operator_state_store(self) -> OperatorStateStore:
        """Return where state of the subtask is declared."""
        return OperatorStateStore(self._context, self._prefix)

    def get_keyed_state_store(self) -> Any:
        """Return where keyed state is declared, as by the runtime context: ``get_state``, ``get_list_state`` ...

        Raises:
            StateAccessError: In a source or sink; elsewhere its methods raise it where the stream is not keyed.
        """
        if self._keyed_state_store is None:
            message = "sources and sinks have no keyed state"
            raise StateAccessError(message, operator=self._context.name)
        return self._keyed_state_store


class FunctionSnapshotContext:
    """What ``snapshot_state`` is given.

    Args:
        checkpoint_id: The checkpoint.
        timestamp_ms: When the operator's snapshot is taken, epoch milliseconds.
    """

    __slots__ = ("_checkpoint_id", "_timestamp_ms")

    def __init__(self, checkpoint_id: int, timestamp_ms: int) -> None:
        self._checkpoint_id = checkpoint_id
        self._timestamp_ms = timestamp_ms

    def get_checkpoint_id(self) -> int:
        """Return the checkpoint's id; larger than those before."""
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return when the snapshot is taken, by the subtask's clock, epoch milliseconds."""
        return self._timestamp_ms


class CheckpointedFunction(ABC):
    """A user function, source reader or sink writer with state of its subtask."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return _has_all(cls, CheckpointedFunction, other, "initialize_state", "snapshot_state")

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Declare state and take up what a checkpoint holds; called once, before ``open``."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Put what must survive into the declared state; called at every checkpoint, between records."""


class CheckpointListener(ABC):
    """A user function, source reader or sink writer that is told what has become of checkpoints.

    Called on the task's thread, between records, some time after the fact: each call may be skipped for one of a later
    checkpoint. What must not be lost belongs in state.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return _has_all(cls, CheckpointListener, other, "notify_checkpoint_complete")

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Take note that this checkpoint, and with it every earlier one, is durable. May be called twice."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027 - may be left out
        """Take note that this checkpoint will never complete. What it held is part of the next one."""


def _has_all(asked: type, contract: type, other: type, *methods: str) -> Any:
    """Whether a class has a contract's methods, named as one or not: an object that has them wants them called."""
    if asked is not contract:
        return NotImplemented
    return all(_has(other, method) for method in methods) or NotImplemented


def _is_ours(kind: type) -> bool:
    """Whether a class builds on one of ours."""
    return any(base.__module__.partition(".")[0] == "headrace" for base in kind.__mro__)


def _has(kind: type, method: str) -> bool:
    """Whether a class has a method of a contract.

    A model that ``map(model.predict)`` asks may have an ``initialize_state`` of its own. So where a class builds on
    none of ours, only what can be called as those of the contracts are is one. Methods that are no plain functions
    (static, of the class, partial) count, whatever they take.
    """
    found = inspect.getattr_static(kind, method, None)
    if _is_ours(kind) or not inspect.isfunction(found):
        return found is not None
    try:
        inspect.signature(found).bind(None, None)
    except (TypeError, ValueError):  # it is not there, is no method, or takes something else
        return False
    return True


def _has_half(kind: type, half: str, other: str) -> bool:
    """Whether a class has a method that means nothing without another one, and not that one."""
    if not _has(kind, half) or not callable(getattr(kind, half)) or callable(getattr(kind, other, None)):
        return False
    if _is_ours(kind):
        return True
    try:
        parameters = list(inspect.signature(getattr(kind, half)).parameters.values())[:2]
    except ValueError:  # compiled, of some other system
        return False
    if not parameters:
        return False
    parameter = parameters[-1]
    return _GIVEN.search(f"{parameter.name} {parameter.annotation}".lower()) is not None


def refuse_halves(thing: Any, **place: Any) -> None:
    """See that an object of the user's has either all methods of a contract or none: half of one is never called.

    Every place that takes such an object comes here, mostly by `headrace.engine.functions.user_function.UserFunction`,
    `attach` or `headrace.engine.functions.life.refuse_life`. What the object is wrapped around is looked at as well.

    Args:
        thing: The user's, or ours around one of the user's.
        **place: What is known of where it stands, for the error.

    Raises:
        ProgramError: If it could save its state and not take it up, or the other way round, or would hear of
            checkpoints that are aborted and not of those that are complete.
    """
    for inner in _with_wrapped(thing):
        kind = inner if isinstance(inner, type) else type(inner)
        for half, other in _HALVES:
            if _has_half(kind, half, other):
                message = f"{kind.__name__} has {half} but no {other}, so {half} would never be called"
                raise ProgramError(message, hint=f"add {other}, or leave {half} out", **place)


def _with_wrapped(thing: Any) -> Iterator[Any]:
    """An object and what it is wrapped around."""
    yield thing
    while isinstance(thing, Wrapper):
        thing = thing.wrapped_function
        yield thing


def hidden_owner(function: Any) -> Any:
    """Return the object behind a bound method or partial that would want more than to be called; None if there is none.

    Raises:
        ProgramError: If the object has half of what it takes to want that.
    """
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, ModuleType):  # a built-in function's
        refuse_halves(owner)
    return owner if isinstance(owner, (CheckpointedFunction, CheckpointListener)) else None


def attach(
    function: Any,
    context: OperatorContext,
    keyed_state_store: Any,
    on_error: Callable[[BaseException, str], None] | None = None,
) -> None:
    """Have a function declare its state, and see to it that it is asked at, and told of, every checkpoint.

    What a `Wrapper` of ours is around is attached as well.

    Args:
        function: The user's; nothing happens if it wants none of that.
        context: Of the operator that holds it.
        keyed_state_store: As of `FunctionInitializationContext`.
        on_error: Raises what the function raised with its place; called with the exception and the method's name.

    Raises:
        ProgramError: If it has half of what it takes to be asked or told.
    """
    refuse_halves(function, operator=context.name)

    def call(method: Callable[[Any], None], argument: Any) -> None:
        try:
            method(argument)
        except BaseException as error:
            if on_error is not None:
                on_error(error, method.__name__)
            raise

    for part in _with_wrapped(function):
        if isinstance(part, CheckpointedFunction):
            call(part.initialize_state, FunctionInitializationContext(context, keyed_state_store))
            context.snapshot_hooks.append(functools.partial(_snapshot, part, context, call))
        if isinstance(part, CheckpointListener):
            aborted = getattr(part, "notify_checkpoint_aborted", None)
            context.listeners.append(
                (
                    functools.partial(call, part.notify_checkpoint_complete),
                    _ignore if aborted is None else functools.partial(call, aborted),
                )
            )


def _ignore(_checkpoint_id: int) -> None:
    """Ignore it."""


def _snapshot(
    function: CheckpointedFunction, context: OperatorContext, call: Callable[[Any, Any], None], checkpoint_id: int
) -> None:
    call(function.snapshot_state, FunctionSnapshotContext(checkpoint_id, context.now_ms()))
