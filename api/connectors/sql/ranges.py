"""A table of a database in parts: ranges of a column of integers, which are read at the same time.

Source: Flink's ``scan.partition.column`` of its JDBC connector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ConfigurationError

from .reading import TableRows

__all__ = ["KeyRanges", "in_range"]

_MAX_RANGES = 10_000


@dataclass(frozen=True)
class KeyRanges:
    """How a table is cut into parts that are read at the same time.

    Attributes:
        column: Of integers; its values need not be unique.
        number: How many ranges there are; fewer, if there are fewer integers.
        bounds: The least and the greatest value that is read, both included: rows beyond them, and rows without a
            value, are left out. None: the database is asked, and all rows are read.

    Raises:
        ConfigurationError: If a number makes no sense.
    """

    column: str
    number: int
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.number <= _MAX_RANGES:
            message = f"a table is cut into 1 to {_MAX_RANGES:,} ranges; got {self.number}"
            raise ConfigurationError(message)
        if self.bounds is not None and self.bounds[0] > self.bounds[1]:
            message = f"the lower bound of a table's ranges must not be above the upper one; got {self.bounds}"
            raise ConfigurationError(message)

    def cut(self, rows: TableRows) -> list[dict[str, Any]]:
        """Return the ranges, as splits carry them: the first value, and the first one behind.

        Where the database is asked, the first range begins and the last one ends with whatever there is.
        """
        found = self.bounds or rows.bounds(self.column)
        if found is None:
            return [{"column": self.column, "from": None, "to": None}]
        least, behind = found[0], found[1] + 1
        number = min(self.number, behind - least)
        edges: list[int | None] = [least + (behind - least) * i // number for i in range(number + 1)]
        if self.bounds is None:
            edges[0] = edges[-1] = None
        return [{"column": self.column, "from": edges[i], "to": edges[i + 1]} for i in range(number)]

    def whole(self) -> dict[str, Any]:
        """Return all that is read, as one range."""
        first, behind = (None, None) if self.bounds is None else (self.bounds[0], self.bounds[1] + 1)
        return {"column": self.column, "from": first, "to": behind}


def in_range(rows: TableRows, part: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the condition of a range, and its values; a range that begins with what there is has rows without one."""
    if not part or (part["from"] is None and part["to"] is None):
        return "", []
    column, mark = rows.quoted(part["column"]), rows.mark
    if part["from"] is None:
        return f"({column} < {mark} OR {column} IS NULL)", [part["to"]]
    if part["to"] is None:
        return f"{column} >= {mark}", [part["from"]]
    return f"{column} >= {mark} AND {column} <= {mark}", [part["from"], part["to"] - 1]
