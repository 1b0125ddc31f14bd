"""Windows over a whole stream, which has no key: one key for all records, and functions that are not told of it.

The operator is the window operator; the one key is the empty tuple, which result records of built-in aggregates have no
field for. It runs in one subtask.

Source: Flink's ``AllWindowedStream``, ``ProcessAllWindowFunction``, ``AllWindowFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeAlias

from headrace.state.type_variables import IN, OUT, W

from ..columns.records import Batch
from ..functions.contract import Function, ProcessWindowFunction, WindowFunction
from ..functions.keys import KeySelector
from ..functions.side_outputs import Tagged
from ..functions.user_function import FunctionWrapper, UserFunction

__all__ = ["AllWindowFunction", "OneKey", "ProcessAllWindowFunction", "without_key"]


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Gives the results of a window of a stream without key."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield or return the results of ``window``."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Gives the results of a window of a stream without key, knowing the window's time and state."""

    Context: TypeAlias = ProcessWindowFunction.Context

    @abstractmethod
    def process(self, context: ProcessWindowFunction.Context, elements: Iterable[IN]) -> Iterable[OUT | Tagged] | None:
        """Yield or return results; ``yield tag, record`` goes to a side output.

        Args:
            context: The window's context, as in `ProcessWindowFunction`.
            elements: The window's records in order of arrival; after a reduce or aggregate, its one result.
        """

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear what the function keeps for a window, as its state is about to be deleted."""


class OneKey(KeySelector):
    """Gives every record the same key, ``()``."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((), _no_key)

    @property
    def field_names(self) -> tuple[str, ...]:
        """No fields."""
        return ()

    def keys(self, batch: Batch) -> list[Any]:
        return [()] * batch.num_rows


def _no_key(_record: Any) -> tuple[()]:
    return ()


class _Process(FunctionWrapper, ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Any:
        return self._call(context, elements)


class _ProcessAndClear(_Process):
    """The operator asks for ``clear`` only of functions that have one."""

    def clear(self, context: Any) -> None:
        self.wrapped_function.function.clear(context)


class _Apply(FunctionWrapper, WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Any:
        return self._call(window, inputs)


def without_key(function: Any, *, is_apply: bool = False) -> Function:
    """Return a function of a stream without key as one of a keyed stream.

    Args:
        function: ProcessAllWindowFunction, AllWindowFunction, or a callable.
        is_apply: Whether a callable takes the window and the records; else context and records.

    Raises:
        ProgramError: If it is neither.
    """
    found = UserFunction(function, *(("apply", "process") if is_apply else ("process", "apply")))
    if found.method == "apply" or (found.method is None and is_apply):
        return _Apply(found)
    own_clear = getattr(type(function), "clear", ProcessAllWindowFunction.clear)
    return (_Process if own_clear is ProcessAllWindowFunction.clear else _ProcessAndClear)(found)
