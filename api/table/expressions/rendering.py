"""A query of the Table API that is being written: what expressions leave open until then, and the names it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.engine.errors import ProgramError

from ...sql.functions.registry import SqlFunction

__all__ = ["CalledFunction", "Rendering", "RowsOfTable", "WindowPart", "quoted"]


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


@dataclass
class Rendering:
    """A query that is being written.

    Attributes:
        windows: The texts of windows' parts.
        functions: Functions of Python that it calls, by the names that they have got.
        tables: Tables that expressions have brought along, the same.
    """

    windows: Mapping[WindowPart, str] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

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
