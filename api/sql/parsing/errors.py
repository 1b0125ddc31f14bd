"""Errors of SQL say where in the text they are: line, column, the line itself and a caret under the place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlglot import exp

from headrace.engine.errors import HeadraceError, ProgramError

__all__ = ["SqlError", "SqlText", "place_of"]

_MOST_SHOWN = 100
"""Characters of a line on either side of a place."""
Place = tuple[int, int]
"""Line and column, both from 1."""


class SqlError(ProgramError):
    """A statement that cannot be run.

    Attributes:
        line: Where in the text it is, from 1; None if that is not known.
        column: Likewise.
    """

    def __init__(self, message: str, place: Place | None = None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line: int | None = None if place is None else place[0]
        self.column: int | None = None if place is None else place[1]


def place_of(node: Any) -> Place | None:
    """Return where a node of a parsed statement begins, as far as the parser has kept that."""
    if not isinstance(node, exp.Expression):
        return None
    places = [
        (one.meta["line"], one.meta["col"] - (one.meta["end"] - one.meta["start"]))
        for one in node.walk()
        if "line" in one.meta and "start" in one.meta
    ]
    return min(places) if places else None


class SqlText:
    """The text of a statement, to show places of."""

    def __init__(self, text: str) -> None:
        self.text = text

    def shown(self, place: Place) -> str:
        """Return the line of a place, with a caret under it."""
        lines = self.text.splitlines()
        line, column = place
        if not 1 <= line <= len(lines):
            return ""
        shown = lines[line - 1].expandtabs(1)
        first = max(0, column - _MOST_SHOWN)
        cut = shown[first : first + 2 * _MOST_SHOWN]
        before = "... " * (first > 0)
        behind = " ..." * (len(shown) > first + len(cut))
        return f"\n  {before}{cut}{behind}\n  {' ' * (len(before) + column - 1 - first)}^"

    @contextmanager
    def at(self, node: Any) -> Iterator[None]:
        """Give errors that are raised inside the place of a node, unless they have one."""
        try:
            yield
        except SqlError as error:
            if error.line is not None:
                raise
            raise self.error(error.message, node, hint=error.hint) from error.__cause__
        except HeadraceError as error:
            raise self.error(error.message, node, hint=error.hint) from error

    @contextmanager
    def not_too_deep(self) -> Iterator[None]:
        """Say of what is nested more deeply than Python goes that it is."""
        try:
            yield
        except RecursionError:
            message = "the statement is nested too deeply"
            hint = "split it by views or WITH; put long sums into parts"
            raise self.error(message, self._deepest(), hint=hint) from None

    def _deepest(self) -> Place:
        """Where the most brackets are open; without any, the begin."""
        depth = most = place = 0
        for found in re.finditer(r"[(\[<]|[)\]>]", self.text):
            depth += 1 if found[0] in "([<" else -1
            if depth > most:
                most, place = depth, found.start()
        return self.place_at(place)

    def place_at(self, at: int) -> Place:
        """Return the place of a character, by its number."""
        before = self.text[:at].split("\n")
        return len(before), len(before[-1]) + 1

    def error(self, message: str, node: Any, *, hint: str | None = None) -> SqlError:
        """Return an error at the place of a node."""
        place = node if isinstance(node, tuple) else place_of(node)
        if place is None:
            return SqlError(message, hint=hint)
        text = f"line {place[0]}, column {place[1]}: {message}{self.shown(place)}"
        return SqlError(text, place, hint=hint)
