"""How what is in a table and what its log says fit together without a gap and without an overlap.

The table is read in chunks, ranges of its key, each page of a chunk in a transaction of its own while others write. The
database says which transactions such a page sees (`Visibility`). So of a change in the log it is known whether it is in
the page that has its key: if it is, it is passed over, and if it is not, it comes. That is exact, whatever the order in
which pages were read and transactions committed.

Source: Netflix's "DBLog: A Watermark Based Change-Data-Capture Framework"; Flink CDC's incremental snapshots; here
PostgreSQL's ``pg_current_snapshot`` stands for the two watermarks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace.engine.errors import ConfigurationError, SourceError

from .settings import quoted

__all__ = ["Key", "PagesSeen", "TableKey", "Visibility"]

Key = list[str]
"""The values of a row's key, as the texts that the database writes."""


@dataclass(frozen=True)
class Visibility:
    """Which transactions somebody sees.

    Attributes:
        xmin: All before it have ended.
        xmax: All from it on have not begun.
        running: Those between that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Make it of what ``pg_current_snapshot`` gives."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        """Return whether a committed transaction is seen; its number has 32 bits, ours have 64."""
        full = self.xmax & ~0xFFFFFFFF | xid
        if full - self.xmax > 1 << 31:  # of the round before
            full -= 1 << 32
        elif self.xmax - full > 1 << 31:  # of the next one
            full += 1 << 32
        return full < self.xmin or (full < self.xmax and full not in self.running)


_NUMBERS = ("smallint", "integer", "bigint", "numeric")
_TEXTS = ("text", "character varying")
_TIMES = ("date", "timestamp without time zone", "timestamp with time zone")
_OF_ONE_FORM = ("uuid", "bytea")
"""Types whose texts are in the order of their values."""

_CUT = (*_NUMBERS, *_TEXTS, *_TIMES, *_OF_ONE_FORM)
_ENCODINGS = ("UTF8", "LATIN1", "SQL_ASCII")
"""Those whose bytes are in the order of ours."""


def _number(text: str) -> tuple[bool, Decimal]:
    """What numbers are compared by: NaN is behind all others."""
    return (True, Decimal(0)) if text == "NaN" else (False, Decimal(text))


def _time(text: str) -> tuple[float, str]:
    """What dates and times are compared by: the year, which may be before Christ or have five digits, and the rest."""
    if text.endswith("infinity"):
        return float(text), ""
    year, _, rest = text.partition("-")
    return float(-int(year) if text.endswith(" BC") else int(year)), rest


@dataclass(frozen=True)
class TableKey:
    """The columns of a primary key, and their order, which is the same in the database and here.

    Attributes:
        columns: Their names and types.
    """

    columns: tuple[tuple[str, str], ...]

    def require_order(self, table: str, encoding: str) -> None:
        """See that the key has an order by which the table can be cut.

        Args:
            table: Its name, for errors.
            encoding: The database's.

        Raises:
            ConfigurationError: If a column of it is of a type whose order only the database knows.
        """
        for name, kind in self.columns:
            if kind not in _CUT:
                message = f"table {table!r} cannot be cut into chunks by column {name!r} of its key, which is {kind}"
                raise ConfigurationError(message, hint=f"keys may be {', '.join(_CUT)}")
            if kind in _TEXTS and encoding not in _ENCODINGS:
                message = (
                    f"table {table!r} cannot be cut into chunks by column {name!r} of its key, which is {kind}:"
                    f" texts have another order in the database, whose encoding is {encoding}"
                )
                raise ConfigurationError(message, hint=f"encodings may be {', '.join(_ENCODINGS)}")

    def require_same(self, names: Sequence[str], table: str, place: Mapping[str, Any]) -> None:
        """See that rows still have this key: it is how changes find their rows.

        Args:
            names: Columns of the key that the table has now.
            table: Its name, for errors.
            place: Where that was said, for errors.

        Raises:
            SourceError: If it is another one.
        """
        if set(names) != set(self.names):
            was, now = ", ".join(self.names), ", ".join(names) or "none"
            message = f"the primary key of table {table!r} is ({now}) now, and the table is followed by ({was})"
            hint = "give it its key again, or begin anew, without the checkpoint and with a fresh slot"
            raise SourceError(message, hint=hint, **place)

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [name for name, _ in self.columns]

    def in_statements(self) -> str:
        """Return the columns as a row, in this order."""
        return ", ".join(
            f'{quoted(name)} COLLATE "C"' if kind in _TEXTS else quoted(name) for name, kind in self.columns
        )

    def place(self, key: Sequence[str]) -> tuple[Any, ...]:
        """Return what keys are compared by."""
        return tuple(_maker(kind)(text) for text, (_, kind) in zip(key, self.columns, strict=True))


def _maker(kind: str) -> Callable[[str], Any]:
    if kind in _NUMBERS:
        return _number
    return _time if kind in _TIMES else str.encode


class PagesSeen:
    """All pages of a table that were read, and what each of them saw.

    Args:
        key: Of the table.
        pages: Of each, in any order: ``upto`` (the last key of its range, None at the end of the table), ``sees`` (what
            ``pg_current_snapshot`` gave) and ``lsn`` (a place in the log behind all that it sees). Pages cover
            everything.
    """

    def __init__(self, key: TableKey, pages: Sequence[Mapping[str, Any]]) -> None:
        self._key = key
        last = [one for one in pages if one["upto"] is None]
        ordered = sorted((one for one in pages if one["upto"] is not None), key=lambda one: key.place(one["upto"]))
        self._ends = [key.place(one["upto"]) for one in ordered]
        self._visibilities = [Visibility.parse(one["sees"]) for one in [*ordered, *last]]
        self.last_lsn: int = max((one["lsn"] for one in pages), default=0)

    def all_see(self, xid: int) -> bool:
        """Return whether what a transaction did to the whole table is in every page."""
        return all(one.sees(xid) for one in self._visibilities)

    def has(self, key: Sequence[str], xid: int) -> bool:
        """Return whether what a transaction did to the row of a key is in the page that has the key."""
        index = bisect_left(self._ends, self._key.place(key))
        return self._visibilities[index].sees(xid)
