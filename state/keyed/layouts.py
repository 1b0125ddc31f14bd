"""How what a key holds is made of parts: one value, elements in order, or entries by a key of their own.

A kind of state says which of the three its values have (`headrace.state.keyed.kinds.StateDescriptor.layout`), and
nothing else about where they are kept: dictionaries, rows of a database, files and tables know layouts and no kinds. A
*part* is a value, an element or an entry's value; with a time to live it is a unit ``(value, timestamp_ms)``. A part's
*place* is None, the element's index or the entry's key.

=============  =============================  ==========================  ==================
layout         on the heap and in its files   in a database               in tables
=============  =============================  ==========================  ==================
`ONE`          the value                      a row                       a row
`ELEMENTS`     a list                         a row per element           ``index``
`ENTRIES`      a dict                         a row per entry             ``map_key``
=============  =============================  ==========================  ==================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ..values.types import Change, Schema

__all__ = ["ELEMENTS", "ENTRIES", "NOTHING", "ONE", "Layout", "Merge"]

NOTHING: Any = object()
"""What `Layout.live` gives where nothing is left."""

Merge = Callable[[Any, Any], Any]
"""Makes one part of two that are at the same place: what is held, what is added."""


class Layout(ABC):
    """One way in which what a key holds is made of parts.

    Attributes:
        place_column: What tables call the column of places; None if a key holds a single part.
        has_rows_of_parts: Whether a database has a row per part.
    """

    place_column: ClassVar[str | None]

    @property
    def has_rows_of_parts(self) -> bool:
        return self.place_column is not None

    @abstractmethod
    def parts(self, stored: Any) -> Iterable[tuple[Any, Any]]:
        """Take apart what a key holds: places and parts."""

    @abstractmethod
    def whole(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        """Return what consists of these parts, given with their places in any order; the inverse of `parts`."""

    @abstractmethod
    def of_each(self, change: Change) -> Change:
        """Make a change of one part a change of all that a key holds."""

    @abstractmethod
    def live(self, stored: Any, cutoff_ms: int) -> Any:
        """Return what is left of all that a key holds once expired units are gone.

        Args:
            stored: Whose parts are units.
            cutoff_ms: Units with this timestamp or an earlier one have expired.

        Returns:
            ``stored`` itself if nothing has expired, else a new value; `NOTHING` if all of it has.
        """

    @abstractmethod
    def merged(self, held: Any, added: Any, merge: Merge) -> Any:
        """Return what a key holds that held one thing and gets another; ``held`` may be changed in place."""

    @abstractmethod
    def schema(self, part: Schema, place: Schema) -> Schema:
        """Return the schema of all that a key holds, where parts and places have these."""


class _One(Layout):
    place_column = None

    def parts(self, stored: Any) -> Iterable[tuple[Any, Any]]:
        return ((None, stored),)

    def whole(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        ((_, part),) = parts
        return part

    def of_each(self, change: Change) -> Change:
        return change

    def live(self, stored: Any, cutoff_ms: int) -> Any:
        return stored if stored[1] > cutoff_ms else NOTHING

    def merged(self, held: Any, added: Any, merge: Merge) -> Any:
        return merge(held, added)

    def schema(self, part: Schema, place: Schema) -> Schema:
        return part


class _Elements(Layout):
    place_column = "index"

    def parts(self, stored: Any) -> Iterable[tuple[Any, Any]]:
        return enumerate(stored)

    def whole(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        return [part for _, part in sorted(parts, key=lambda entry: entry[0])]

    def of_each(self, change: Change) -> Change:
        return lambda stored: [change(part) for part in stored]

    def live(self, stored: Any, cutoff_ms: int) -> Any:
        live = [unit for unit in stored if unit[1] > cutoff_ms]
        return stored if len(live) == len(stored) else live or NOTHING

    def merged(self, held: Any, added: Any, merge: Merge) -> Any:
        """Elements go behind those that are there: no two are at one place."""
        held.extend(added)
        return held

    def schema(self, part: Schema, place: Schema) -> Schema:
        return {"list": part}


class _Entries(Layout):
    place_column = "map_key"

    def parts(self, stored: Any) -> Iterable[tuple[Any, Any]]:
        entries: Iterable[tuple[Any, Any]] = stored.items()
        return entries

    def whole(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        return dict(parts)

    def of_each(self, change: Change) -> Change:
        return lambda stored: {key: change(part) for key, part in stored.items()}

    def live(self, stored: Any, cutoff_ms: int) -> Any:
        live = {key: unit for key, unit in stored.items() if unit[1] > cutoff_ms}
        return stored if len(live) == len(stored) else live or NOTHING

    def merged(self, held: Any, added: Any, merge: Merge) -> Any:
        for key, part in added.items():
            held[key] = merge(held[key], part) if key in held else part
        return held

    def schema(self, part: Schema, place: Schema) -> Schema:
        return {"map": [place, part]}


ONE: Layout = _One()
ELEMENTS: Layout = _Elements()
ENTRIES: Layout = _Entries()
