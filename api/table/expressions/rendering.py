"""A query of the Table API that is being written: what expressions leave open until then, and the names it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engine.errors import ProgramError, nearest

from ...sql.functions.registry import SqlFunction
from ...sql.parsing.sql_types import sql_name

__all__ = [
    "CalledFunction",
    "ChosenColumns",
    "ColumnRange",
    "FieldAt",
    "FieldsOf",
    "Rendering",
    "RowsOfTable",
    "WindowPart",
    "quoted",
]


class WindowPart(NamedTuple):
    """A place in an expression that a window fills in.

    Attributes:
        window: The window's alias.
        part: ``START``, ``END``, ``ROWTIME``; ``OVER`` for the whole window.
    """

    window: str
    part: str


class CalledFunction(NamedTuple):
    """A call of a function of Python that has no name in SQL: it is given one when the query is written."""

    name: str
    function: Any


class RowsOfTable(NamedTuple):
    """Another table, in an expression: it is given a name when the query is written."""

    table: Any


class ColumnRange(NamedTuple):
    """The columns of a table from one to another, both included: by their names, or by their places from 1."""

    first: str | int
    last: str | int


class ChosenColumns(NamedTuple):
    """Some columns of the table, or all but those, as a list.

    Attributes:
        choices: Names, ``*`` for all, places from 1, ranges, and further lists.
        is_without: Whether it is all others.
    """

    choices: tuple[Any, ...]
    is_without: bool

    def among(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns of a table they are, in the order in which they are named.

        Raises:
            ProgramError: If one is not there, or none is left.
        """
        found = [name for one in self.choices for name in _chosen(one, names)]
        found = [name for name in names if name not in found] if self.is_without else found
        if not found:
            message = f"without those columns none is left of {', '.join(names)}"
            raise ProgramError(message)
        return found


def _chosen(choice: Any, names: Sequence[str]) -> Sequence[str]:
    if isinstance(choice, ChosenColumns):
        return choice.among(names)
    if choice == "*":
        return names
    first, last = choice if isinstance(choice, ColumnRange) else (choice, choice)
    begin, end = _place(first, names), _place(last, names)
    if begin > end:
        message = f"column {first!r} is behind column {last!r}"
        raise ProgramError(message, hint="a range goes from the left to the right")
    return names[begin : end + 1]


def _place(choice: str | int, names: Sequence[str]) -> int:
    if isinstance(choice, str):
        if choice not in names:
            message = f"the table has no column {choice!r}"
            raise ProgramError(message, hint=nearest(choice, names))
        return names.index(choice)
    if not 1 <= choice <= len(names):
        message = f"the table has columns 1 to {len(names)}; got {choice}"
        raise ProgramError(message)
    return choice - 1


class FieldAt(NamedTuple):
    """A field of a ROW by its place, from 0."""

    row: Any
    place: int


class FieldsOf(NamedTuple):
    """All fields of a ROW, as a list; they are called by the name of the row and their own."""

    row: Any


@dataclass
class Rendering:
    """A query that is being written.

    Attributes:
        columns: The names of the columns of the table, or of both tables.
        kind_of: The type of what a text of SQL over these comes to, in this query.
        windows: The texts of windows' parts.
        functions: Functions of Python that it calls, by the names that they have got.
        tables: Tables that expressions have brought along, the same.
    """

    columns: Sequence[str] = ()
    kind_of: Callable[[str, Rendering], pa.DataType] | None = None
    windows: Mapping[WindowPart, str] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

    def of_columns(self, chosen: ChosenColumns) -> str:
        """Return the list of chosen columns."""
        return ", ".join(map(quoted, chosen.among(self.columns)))

    def of_field(self, field: FieldAt) -> str:
        """Return a field by its name.

        Raises:
            ProgramError: If the row has fewer fields, or is none.
        """
        text = field.row.sql(self)
        names = self._fields_of(text)
        if not 0 <= field.place < len(names):
            message = f"{field.row!r} has fields 0 to {len(names) - 1}; got {field.place}"
            raise ProgramError(message, hint=f"their names are {', '.join(names)}")
        return f"{text}.{quoted(names[field.place])}"

    def of_fields(self, fields: FieldsOf) -> str:
        """Return the list of all fields of a row."""
        text, name = fields.row.sql(self), fields.row.column
        prefix = "" if name is None else f"{name}$"
        return ", ".join(f"{text}.{quoted(one)} AS {quoted(prefix + one)}" for one in self._fields_of(text))

    def _fields_of(self, text: str) -> list[str]:
        if self.kind_of is None:
            message = f"the fields of {text} are not known here"
            raise ProgramError(message, hint="name them: get('a')")
        kind = self.kind_of(text, self)
        if not pa.types.is_struct(kind):
            message = f"{text} is no ROW; it is {sql_name(kind)}"
            raise ProgramError(message, hint="at(1) is an element of an array, at(key) a value of a map")
        return [one.name for one in kind]

    def of_table(self, rows: RowsOfTable) -> str:
        """Return the name of another table in this query."""
        name = f"$rows_{len(self.tables)}"
        self.tables[name] = rows.table
        return quoted(name)

    def of_part(self, part: WindowPart) -> str:
        """Return the text of a window's part.

        Raises:
            ProgramError: If there is no such window here, or it has no such part.
        """
        if part not in self.windows:
            what = "be used in over(...)" if part.part == "OVER" else f"give its {part.part.lower()}"
            known = sorted({one.window for one in self.windows})
            message = f"{part.window!r} is no window that can {what} here"
            raise ProgramError(message, hint=f"windows here: {', '.join(known) or 'none'}")
        return self.windows[part]

    def name_of(self, called: CalledFunction) -> str:
        """Return the name of a function of Python in this query."""
        for name, function in self.functions.items():
            if function is called.function:
                return name
        plain = "".join(letter if letter.isalnum() else "_" for letter in called.name)
        name = f"{plain}_{len(self.functions)}"
        self.functions[name] = called.function
        return name

    def named_functions(self) -> list[SqlFunction]:
        """Return the functions of Python that have been called, as functions of SQL."""
        return [function.named(name) for name, function in self.functions.items()]


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    if "`" in name:
        message = f"a name cannot have a back-tick; got {name!r}"
        raise ProgramError(message)
    return f"`{name}`"
