"""What can be asked for of a row by its place in a group, and which rows an aggregate sees.

A frame says where the rows begin and end that an aggregate sees: so many rows before and behind (``rows``), or those
whose order is not further away than so much (``range``, which counts rows that are equal in the order together). SQL's
own frame, when nothing is said, is all rows up to this one and those equal to it; without an order the whole group.

Source: SQL:2016 window functions; Spark's names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.state.errors import ProgramError, TypeMismatchError

from ..columns.expressions import Expression, col, expression_of
from ..functions.aggregates.contract import Aggregate

__all__ = [
    "Frame",
    "Neighbour",
    "Place",
    "Share",
    "cume_dist",
    "dense_rank",
    "lag",
    "lead",
    "ntile",
    "output_type",
    "percent_rank",
    "rank",
    "row_number",
    "value_of",
]


@dataclass(frozen=True)
class Frame:
    """Which rows of its group an aggregate sees, seen from a row.

    Attributes:
        low: Where it begins: negative before the row, None for the first row of the group.
        high: Where it ends, inclusive; None for the last row of the group.
        is_range: Whether both are distances in the order, which then goes by one column: milliseconds of times, else
            units of the numbers; 0 is the first or last row that is equal in the order. Else they are numbers of rows.
    """

    low: int | None
    high: int | None
    is_range: bool = False

    def in_units_of(self, kind: pa.DataType) -> Frame:
        """Return the same frame with distances in the units of a type, whose values rows are ordered by.

        Raises:
            TypeMismatchError: If values of the type have no distance.
        """
        if not self.is_range or not (self.low or self.high):
            return self
        if pa.types.is_integer(kind):
            return self
        if pa.types.is_timestamp(kind):
            num, per_ms = _UNITS[kind.unit]
        elif pa.types.is_date32(kind):
            num, per_ms = 86_400_000, 1
        else:
            message = f"a frame of some distance goes by times or whole numbers; got {kind}"
            raise TypeMismatchError(message, hint="ROWS BETWEEN counts rows")
        low, high = (None if end is None else _in_units(end, num, per_ms) for end in (self.low, self.high))
        return Frame(low, high, is_range=True)

    def __repr__(self) -> str:
        unit = "range" if self.is_range else "rows"
        ends = ["unbounded" if end is None else str(end) for end in (self.low, self.high)]
        return f"{unit} {ends[0]} to {ends[1]}"


_UNITS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
"""Of each unit of times: how many milliseconds it is, or how many of it one is."""


def _in_units(distance: int, num: int, per_ms: int) -> int:
    size = abs(distance) * per_ms // num
    return size if distance >= 0 else -size


class Place:
    """Where a record is in its group.

    Attributes:
        name: ``row_number``, ``rank`` or ``dense_rank``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}()"


class Share(Place):
    """Where a record is in its group, by how many records the group has.

    Attributes:
        name: ``ntile``, ``percent_rank`` or ``cume_dist``.
        num_tiles: Into how many parts ``ntile`` cuts the group; 0 for the others.
    """

    def __init__(self, name: str, num_tiles: int = 0) -> None:
        super().__init__(name)
        self.num_tiles = num_tiles

    def __repr__(self) -> str:
        return f"{self.name}({self.num_tiles or ''})"


class Neighbour:
    """A value of the record that is some places before or behind in the group.

    Attributes:
        value: What is taken of it.
        offset: How many places behind; negative for before.
        default: What stands for it if there is no such record.
    """

    def __init__(self, value: Expression, offset: int, default: Any) -> None:
        self.value = value
        self.offset = offset
        self.default = default

    def __repr__(self) -> str:
        return f"{'lag' if self.offset < 0 else 'lead'}({self.value!r}, {abs(self.offset)})"


def row_number() -> Place:
    """Return the number of a record in its group, from 1."""
    return Place("row_number")


def rank() -> Place:
    """Return one more than how many records are before it; of records that are equal in the order the same."""
    return Place("rank")


def dense_rank() -> Place:
    """Return one more than how many different places in the order are before it."""
    return Place("dense_rank")


def ntile(num_tiles: int) -> Share:
    """Return in which of so many parts of its group a record is, from 1: the first ones have one more, if any has.

    Raises:
        ProgramError: If it is no number of parts.
    """
    if isinstance(num_tiles, bool) or not isinstance(num_tiles, int) or num_tiles < 1:
        message = f"a group is cut into a whole number of parts, 1 or more; got {num_tiles!r}"
        raise ProgramError(message)
    return Share("ntile", num_tiles)


def percent_rank() -> Share:
    """Return which share of the other records of its group is before a record, of 0 to 1; 0 if there is no other."""
    return Share("percent_rank")


def cume_dist() -> Share:
    """Return which share of its group is not behind a record: those before it, those equal in the order, and itself."""
    return Share("cume_dist")


def lag(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """Return the value of the record ``offset`` places before; ``default`` where there is none."""
    return _neighbour(value, -_checked(offset), default)


def lead(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """Return the value of the record ``offset`` places behind; ``default`` where there is none."""
    return _neighbour(value, _checked(offset), default)


def _checked(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        message = f"the offset of a neighbour must be a whole number, 0 or more; got {offset!r}"
        raise ProgramError(message)
    return offset


def _neighbour(value: Expression | str, offset: int, default: Any) -> Neighbour:
    return Neighbour(col(value) if isinstance(value, str) else expression_of(value), offset, default)


def value_of(spec: Any) -> Expression | None:
    """Return what is taken of rows; None for places, and for a count of rows."""
    if isinstance(spec, Place):
        return None
    return spec.value if isinstance(spec, Neighbour) else getattr(spec, "argument", None)


def output_type(spec: Any, schema: pa.Schema) -> pa.DataType:
    """Return the type of the column that a place, neighbour or aggregate gives.

    Raises:
        ProgramError: If a column is not there.
        TypeMismatchError: If it does not exist for the types.
    """
    if isinstance(spec, Place):
        return pa.float64() if spec.name in ("percent_rank", "cume_dist") else pa.int64()
    if isinstance(spec, Aggregate):
        return spec.output_type(schema)
    kind = spec.value.output_type(schema)
    if spec.default is not None:
        try:
            pa.scalar(spec.default, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{spec!r} has a default that is no {kind}: {spec.default!r}"
            raise TypeMismatchError(message) from error
    return kind
