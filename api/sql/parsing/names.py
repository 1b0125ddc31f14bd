"""Names of several parts, as texts: ``catalog.database.table``; a part that is not plain stands in back-ticks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import SqlError

__all__ = ["COUNT_WINDOW", "parts_of", "path_of", "quoted"]

COUNT_WINDOW = "$ROWS"
"""What the Table API writes in GROUP BY for windows of so many rows, which SQL has not: of a time, size and slide."""

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def path_of(parts: Iterable[str]) -> str:
    """Return a name as a text; `parts_of` gives the parts back."""
    return ".".join(part if part and not {".", "`"} & set(part) else quoted(part) for part in parts)


def quoted(part: str) -> str:
    """Return a part in back-ticks."""
    return "`" + part.replace("`", "``") + "`"


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a name.

    Raises:
        SqlError: If it is none.
    """
    parts, place = [], 0
    while True:
        found = _PART.match(path, place)
        if found is None:
            message = f"{path!r} is no name"
            raise SqlError(message, hint="a part that has a dot in it goes into back-ticks")
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        place = found.end()
        if place == len(path):
            return tuple(parts)
        if path[place] != ".":
            message = f"{path!r} is no name"
            raise SqlError(message, hint="a part that has a dot in it goes into back-ticks")
        place += 1
