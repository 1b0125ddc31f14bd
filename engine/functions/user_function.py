"""How an operator holds a user function: checked when the plan is made, opened and closed in the subtask.

A failing user function must be found at once: its exception becomes a `UserFunctionError` that names operator, subtask
and function and shows the function's own traceback, with the engine's frames on top cut off. Errors of Headrace's own
tree pass as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from headrace.state.credentials import masked
from headrace.state.values.sharing import shown

from ..columns.records import Batch
from ..errors import HeadraceError, ProgramError, UserFunctionError, raise_from_outside
from .checkpointed import CheckpointedFunction, CheckpointListener, Wrapper, attach, hidden_owner, refuse_halves
from .contract import Function
from .keys import KeySelector
from .operator import OperatorContext, add_place, place_of
from .runtime_context import FunctionPlace, RuntimeContext
from .tracebacks import users_traceback, what_was_in_hand

__all__ = [
    "FunctionPart",
    "FunctionWrapper",
    "UserFunction",
    "keys_of",
    "raise_in_function",
    "refuse_hidden",
    "texts_of",
]


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

    def open_stateless(self, place: FunctionPlace, runtime_context: RuntimeContext) -> None:
        """Open a function that can have no state, where no checkpoints are taken."""
        self._is_open = True
        self._call_if_there("open", place, runtime_context)

    def attach(self, context: OperatorContext, *, keyed: bool = False) -> RuntimeContext:
        """Have the function take up its state, and be told of checkpoints; gives what ``open`` is to be called with."""
        runtime_context = RuntimeContext(context, context.keyed_state if keyed else None)
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
        """The user's function, if this is one of ours around it: `FunctionWrapper`."""
        return self.function.wrapped_function if isinstance(self.function, Wrapper) else None

    def bind(self) -> Callable[..., Any]:
        """Return what to call per record."""
        bound: Callable[..., Any] = self.function if self.method is None else getattr(self.function, self.method)
        return bound

    def close(self, context: FunctionPlace) -> None:
        """Close the function, if it was opened; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            try:
                self._call_if_there("close", context)
            finally:
                wrapped = self._wrapped
                if wrapped is not None:
                    wrapped.close(context)

    def _call_if_there(self, name: str, context: FunctionPlace, *arguments: Any) -> None:
        method = getattr(self.function, name, None) if self.has_life else None
        if not callable(method):
            return
        try:
            method(*arguments)
        except BaseException as error:
            raise_in_function(error, f"{self.name}.{name}", context)


class FunctionWrapper(Function, Wrapper):
    """A function of ours around a user's.

    What drives it drives the user's as well, and opens that first. It has that one's name.

    Args:
        function: The user's.
    """

    def __init__(self, function: UserFunction) -> None:
        self.wrapped_function = function
        self.__qualname__ = function.name
        self._call = function.bind()


def refuse_hidden(function: Any) -> None:
    """See that a bound method or partial does not hide an object that wants more than to be called.

    Raises:
        ProgramError: If it has state of its subtask, or half of what that takes, or hears of checkpoints.
    """
    owner = hidden_owner(function)
    if owner is not None:
        message = f"of {type(owner).__name__} only a method is passed, so its state would never be asked for"
        raise ProgramError(message, hint="pass the object itself")


def raise_in_function(error: BaseException, name: str, place: FunctionPlace | None = None, **about: Any) -> NoReturn:
    """Raise a user function's failure again, with its place.

    Args:
        error: What it raised.
        name: The function's name.
        place: Where it was called; None where that is not known, then the operator chain adds it.
        **about: ``record``, ``key`` and ``event_time`` of what it was called with, beside what `note_in_hand` has
            noted: shown, shortened.

    Raises:
        UserFunctionError: For everything but Headrace's own errors, which are raised as they are.
    """
    raise_from_outside(error)
    context: dict[str, Any] = {}
    if place is not None:
        context = place_of(place.name, place.subtask, place.parallelism)
    context["function"] = name
    context.update((what, masked(shown(value))) for what, value in what_was_in_hand(error, about).items())
    if isinstance(error, HeadraceError):
        add_place(error, context, None if place is None else place.operator)
        error.context = {**context, **error.context}  # the place first
        raise error
    message = f"user function raised {type(error).__name__}: {error}"
    raise UserFunctionError(message, **context, traceback=users_traceback(error)) from error


def texts_of(rows: Iterable[Any], prefix: str = "") -> list[str]:
    """Return records as text, as ``print`` shows them.

    Raises:
        UserFunctionError: If their class has no text for them: what its ``__str__`` or ``__repr__`` raises is the
            program's doing, as what functions raise.
    """
    texts: list[str] = []
    row: Any = None
    try:
        for row in rows:
            texts.append(f"{prefix}{row}")
    except BaseException as error:
        raise_in_function(error, f"text of {type(row).__qualname__}")
    return texts


def keys_of(selector: KeySelector, batch: Batch, place: FunctionPlace | None = None) -> list[Any]:
    """Return the keys of a batch, with a failing key function told from others."""
    try:
        return selector.keys(batch)
    except BaseException as error:
        raise_in_function(error, repr(selector), place)
