"""All functions by name: SQL's own, and those that a program gives."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.errors import nearest

from ..parsing.errors import SqlError
from . import numbers, texts, times
from .aggregates import AGGREGATES
from .contract import Function, Typed
from .operators import case, coalesced, is_true

__all__ = ["FunctionRegistry"]


def _if(condition: Typed, value: Typed, other: Typed) -> Typed:
    return case([condition], [value, other])


_CONDITIONAL = (
    Function("COALESCE", "COALESCE(x, ...)", coalesced, 1, None),
    Function("IFNULL", "IFNULL(x, y)", coalesced, 2, 2),
    Function("NVL", "NVL(x, y)", coalesced, 2, 2),
    Function("IF", "IF(condition, x, y)", _if, 3, 3),
    Function("IS_TRUE", "IS_TRUE(condition)", is_true, 1, 1),
)

_BUILT_IN = {one.name: one for one in (*_CONDITIONAL, *texts.FUNCTIONS, *numbers.FUNCTIONS, *times.FUNCTIONS)}


class FunctionRegistry:
    """Finds functions; a program's own come first."""

    def __init__(self) -> None:
        self._own: dict[str, Function] = {}

    def add(self, function: Function) -> None:
        """Add a function of the program, in place of one of the same name."""
        self._own[function.name.upper()] = function

    def drop(self, name: str) -> bool:
        """Forget a function of the program; False if there is none."""
        return self._own.pop(name.upper(), None) is not None

    def names(self) -> list[str]:
        """Return the names of all, in order."""
        return sorted({*_BUILT_IN, *AGGREGATES, *self._own})

    def is_aggregate(self, name: str) -> bool:
        """Whether a name is that of an aggregate function."""
        return name.upper() in AGGREGATES and name.upper() not in self._own

    def call(self, name: str, arguments: Sequence[Typed]) -> Typed:
        """Return what a call becomes.

        Raises:
            SqlError: If there is no such function, or the arguments do not fit.
        """
        function = self._own.get(name.upper()) or _BUILT_IN.get(name.upper())
        if function is None:
            message = f"there is no function {name}"
            raise SqlError(message, hint=nearest(name.upper(), self.names()))
        return function.call(arguments)
