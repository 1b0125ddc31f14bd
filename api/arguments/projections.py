"""Which columns or fields of its records a stream keeps: what ``select`` and ``project`` are given, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import ProgramError

from .checks import whole
from .data_types import TypeInformation, project_type, schema_of
from .known_columns import check_fields

__all__ = ["TakeFields", "projection", "selected_columns"]


def selected_columns(columns: Sequence[str | Expression], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return expressions or constants by the names of their columns.

    Raises:
        ProgramError: If there is none, one has no name, or two have the same.
    """
    chosen: dict[str, Any] = {}
    for column in columns:
        name = column if isinstance(column, str) else getattr(column, "output_name", None)
        if not isinstance(name, str):
            message = f"a selected column needs a name; {column!r} has none"
            raise ProgramError(message, hint="write name=expression, or expression.alias('name')")
        _choose(chosen, name, col(column) if isinstance(column, str) else column)
    for name, value in named.items():
        _choose(chosen, name, value)
    if not chosen:
        message = "select needs at least one column"
        raise ProgramError(message)
    return chosen


def _choose(chosen: dict[str, Any], name: str, value: Any) -> None:
    if name in chosen:
        message = f"column {name!r} is selected twice"
        raise ProgramError(message)
    chosen[name] = value


def projection(positions: Sequence[int], known: TypeInformation) -> tuple[TakeFields, Any]:
    """Return what takes some fields of tuples, and the type of what it gives; None if that is not known.

    Args:
        positions: Of the fields, from 0.
        known: The type of the tuples, as far as it is known.

    Raises:
        ProgramError: If there is none, or the records are known to be no tuples or to have fewer fields.
    """
    if not positions:
        message = "project needs at least one position"
        raise ProgramError(message)
    for position in positions:
        whole("a position of project", position, 0, None)
    if known.is_pickled:
        return TakeFields(positions), None
    if known.shape != "tuple":
        message = f"project takes records that are tuples; these are {known}"
        raise ProgramError(message, hint="select(...) takes fields by name")
    check_fields("project", positions, schema_of(known))
    return TakeFields(positions), project_type(known, positions)


class TakeFields:
    """Gives a tuple of some fields of a tuple."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = tuple(positions)
        self.__qualname__ = ", ".join(map(str, positions))

    def __call__(self, record: Any) -> tuple[Any, ...]:
        return tuple([record[position] for position in self._positions])
