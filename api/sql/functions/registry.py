"""All functions by name: SQL's own, and those that a program gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import nearest

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from . import arrays, encodings, json_functions, maps, numbers, patterns, printf, texts, times
from .aggregates import AGGREGATES, AggregateFunction
from .catalogue import ABSENT, absent
from .contract import Function, TableFunction, Typed, literal_of
from .operators import case, coalesced, is_true

__all__ = ["SECTIONS", "FunctionRegistry", "SqlFunction"]

SqlFunction = Function | AggregateFunction | TableFunction


def _if(condition: Typed, value: Typed, other: Typed) -> Typed:
    return case([condition], [value, other])


def _type_of(value: Typed) -> Typed:
    return literal_of(sql_name(value.kind), pa.string())


_CONDITIONAL = (
    Function("COALESCE", "COALESCE(x, ...)", coalesced, 1, None, "The first value that is not null."),
    Function("IFNULL", "IFNULL(x, y)", coalesced, 2, 2, "The first value, or the second if that is null."),
    Function("NVL", "NVL(x, y)", coalesced, 2, 2, "The first value, or the second if that is null.", "Flink has none"),
    Function("IF", "IF(condition, x, y)", _if, 3, 3, "The first value if the condition is true, else the second."),
    Function("IS_TRUE", "IS_TRUE(condition)", is_true, 1, 1, "Whether it is true; never null.", "Flink has none"),
)

_TYPES = (
    Function("TYPEOF", "TYPEOF(x)", _type_of, 1, 1, "What the type is called.",
             "without NOT NULL, and STRING for CHAR(n)"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Function, ...]] = {
    "Arithmetic": numbers.FUNCTIONS,
    "Texts": (*texts.FUNCTIONS, *patterns.FUNCTIONS, *printf.FUNCTIONS),
    "Encodings and hashes": encodings.FUNCTIONS,
    "Times": times.FUNCTIONS,
    "Conditions": _CONDITIONAL,
    "Types": _TYPES,
    "Collections": (*arrays.FUNCTIONS, *maps.FUNCTIONS),
    "JSON": json_functions.FUNCTIONS,
}
"""All functions but aggregates, as Flink's documentation groups them."""

_BUILT_IN = {one.name: one for functions in SECTIONS.values() for one in functions}


class FunctionRegistry:
    """Finds functions; a program's own come first."""

    def __init__(self) -> None:
        self._own: dict[str, Function] = {}
        self._tables: dict[str, TableFunction] = {}
        self._aggregates: dict[str, AggregateFunction] = {}

    def add(self, function: Function) -> None:
        """Add a function of the program, in place of one of the same name."""
        self._forget(function.name)
        self._own[function.name.upper()] = function

    def beside(self, functions: Iterable[SqlFunction]) -> FunctionRegistry:
        """Return a registry that has further functions of the program."""
        registry = FunctionRegistry()
        registry._tables = dict(self._tables)
        registry._own = dict(self._own)
        registry._aggregates = dict(self._aggregates)
        for one in functions:
            if isinstance(one, AggregateFunction):
                registry.add_aggregate(one)
            elif isinstance(one, TableFunction):
                registry.add_table_function(one)
            else:
                registry.add(one)
        return registry

    def _forget(self, name: str) -> bool:
        kinds: tuple[dict[str, Any], ...] = (self._own, self._tables, self._aggregates)
        found = [kind.pop(name.upper(), None) for kind in kinds]
        return any(one is not None for one in found)

    def drop(self, name: str) -> bool:
        """Forget a function of the program; False if there is none."""
        return self._forget(name)

    def add_aggregate(self, function: AggregateFunction) -> None:
        """Add an aggregate function of the program."""
        self._forget(function.name)
        self._aggregates[function.name.upper()] = function

    def add_table_function(self, function: TableFunction) -> None:
        """Add a function of the program that gives rows."""
        self._forget(function.name)
        self._tables[function.name.upper()] = function

    def table_function(self, name: str) -> TableFunction | None:
        """Return a function that gives rows; None if there is none of that name."""
        return self._tables.get(name.upper())

    def table_functions(self) -> list[str]:
        """Return the names of all functions that give rows."""
        return sorted(one.name for one in self._tables.values())

    def names(self) -> list[str]:
        """Return the names of all, in order."""
        return sorted({*_BUILT_IN, *AGGREGATES, *self._own, *self._tables, *self._aggregates})

    def is_aggregate(self, name: str) -> bool:
        """Whether a name is that of an aggregate function."""
        upper = name.upper()
        return upper in self._aggregates or (upper in AGGREGATES and upper not in self._own)

    def aggregate(self, name: str) -> AggregateFunction:
        """Return an aggregate function of a name."""
        return self._aggregates.get(name.upper()) or AGGREGATES[name.upper()]

    def call(self, name: str, arguments: Sequence[Typed]) -> Typed:
        """Return what a call becomes.

        Raises:
            SqlError: If there is no such function, or the arguments do not fit.
        """
        function = self._own.get(name.upper()) or _BUILT_IN.get(name.upper())
        if function is None and name.upper() in self._tables:
            message = f"{name} gives rows, and stands in FROM"
            raise SqlError(message, hint=f"write FROM t, LATERAL TABLE({name}(...)) AS s(a, b)")
        if function is None and name.upper() in ABSENT:
            raise absent(name.upper())
        if function is None:
            message = f"there is no function {name}"
            raise SqlError(message, hint=nearest(name.upper(), self.names()))
        return function.call(arguments)
