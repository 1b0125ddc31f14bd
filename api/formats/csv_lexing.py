"""Where the records, lines and fields of comma-separated values end, by the rules of Arrow's parser.

A quote opens a quoted field only where a field begins; anywhere else outside of one it is a character like others. In
a quoted field two quotes mean one, and one ends the quoting: what follows up to the delimiter belongs to the field as
it is. A record ends with LF, CR or CR LF outside of quoted fields, and blank lines are no records.

Quotes are looked at in runs of neighbours, all at once. A run of even length changes nothing. One of odd length where
a field may begin opens or closes; one of odd length elsewhere can only close. So whether a field is open behind a run
is the number of runs of the former kind since the last one of the latter, odd or even.

Invariant: blocks are parsed by Arrow, so records must end here where they end there. Python's ``csv`` agrees.

Source: Arrow's ``cpp/src/arrow/csv/lexing_internal.h`` and ``parser.cc``; RFC 4180.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.engine.errors import ConfigurationError

__all__ = [
    "csv_fields",
    "csv_record_ends",
    "csv_records",
    "cut_at_line_end",
    "cut_csv",
    "first_csv_record",
    "line_end",
    "num_line_ends",
    "require_delimiter",
]

_LF, _CR, _QUOTE = b'\n\r"'

_PIECE_BYTES = 64 << 10
"""How much is looked at together: little enough for arrays that stay in the processor's cache, and that the allocator
does not give back and fetch anew each time (a megabyte at once takes several times as long)."""


def require_delimiter(delimiter: str) -> None:
    """See that fields can be told apart by a delimiter.

    Raises:
        ConfigurationError: If they cannot.
    """
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        message = f"delimiter must be one ASCII character, and no quote or line end; got {delimiter!r}"
        raise ConfigurationError(message)


def cut_csv(data: bytes, delimiter: str) -> int:
    """Return how many bytes of ``data``, which begins where a record does, are whole records; 0 if not one is."""
    if b'"' not in data:
        return cut_at_line_end(data)
    for piece in reversed(_pieces(data, delimiter)):
        ends = piece.record_ends()
        if len(ends):
            return int(ends[-1])
    return 0


def csv_record_ends(data: bytes, delimiter: str) -> NDArray[np.int64]:
    """Return where lines end that no quoted field goes on behind; ``data`` begins where a record does."""
    return np.concatenate([_NONE, *(piece.record_ends() for piece in _pieces(data, delimiter))])


def csv_records(block: bytes, delimiter: str) -> list[bytes]:
    """Return the records of a block, line ends and blank lines included; their concatenation is the block."""
    bounds = [0, *csv_record_ends(block, delimiter).tolist()]
    if bounds[-1] < len(block):
        bounds.append(len(block))
    return [block[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


def first_csv_record(data: bytes, delimiter: str) -> int:
    """Return length of the first record, with its line end and the blank lines before it; 0 if it has no end."""
    first = len(data) - len(data.lstrip(b"\r\n"))
    ends = csv_record_ends(data, delimiter)
    index = int(np.searchsorted(ends, first, side="right"))
    return int(ends[index]) if index < len(ends) else 0


def csv_fields(record: bytes, delimiter: str) -> list[str]:
    """Return the fields of one record, as text; none of blank lines.

    Raises:
        UnicodeDecodeError: If they are no text.
    """
    text = record.decode("utf-8").lstrip("\r\n")
    if not text:
        return []
    field = re.compile(rf'(?:"([^"]*(?:""[^"]*)*)(?:"|\Z))?([^{re.escape(delimiter)}\r\n]*)')
    fields = []
    position = 0
    while True:
        match = field.match(text, position)
        assert match is not None  # it matches nothing, too
        quoted, rest = match.groups(default="")
        fields.append(quoted.replace('""', '"') + rest)
        position = match.end() + 1
        if text[match.end() : position] != delimiter:
            return fields


# --------------------------------------------------------------------------------------------------------------- lines


def cut_at_line_end(data: bytes) -> int:
    """Return how many bytes are whole lines. A CR at the very end is no line end yet: LF may follow."""
    end = len(data) - 1 if data.endswith(b"\r") else len(data)
    newline = data.rfind(b"\n", 0, end)
    return max(newline, data.rfind(b"\r", newline + 1, end)) + 1


def line_end(data: bytes, start: int) -> int:
    """Return where the line ends that holds byte ``start``; 0 if it has no end yet."""
    newline = data.find(b"\n", start)
    carriage_return = data.find(b"\r", start, newline if newline >= 0 else len(data))
    if carriage_return < 0 or carriage_return + 1 == newline:
        return newline + 1
    return carriage_return + 1 if carriage_return + 1 < len(data) else 0


def num_line_ends(data: bytes) -> int:
    """Return how many lines end in ``data``."""
    number = data.count(b"\n")
    return number + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else number


# -------------------------------------------------------------------------------------------------------------- quotes

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the bytes, no run of quotes broken, and whether they begin in a quoted field."""

    data: bytes
    start: int
    end: int
    is_open: bool
    delimiter: str

    def record_ends(self) -> NDArray[np.int64]:
        """Where lines end here that no quoted field goes on behind."""
        # One byte more tells whether LF follows CR; behind the last byte it still may.
        found = np.frombuffer(self.data, np.uint8, min(self.end + 1, len(self.data)) - self.start, self.start)
        here = found[: self.end - self.start]
        if self.data.find(b"\r", self.start, self.end) < 0:
            ends = np.flatnonzero(here == _LF)
        else:
            ends = np.flatnonzero((here == _LF) | (here == _CR))
            if len(ends) and ends[-1] + 1 == len(found) and found[-1] == _CR:
                ends = ends[:-1]
            is_end = found[ends] == _LF
            is_end[~is_end] = found[ends[~is_end] + 1] != _LF
            ends = ends[is_end]
        runs, is_closed = self._quotes()
        return ends[is_closed[np.searchsorted(runs, ends)]] + (self.start + 1)

    def goes_on_open(self) -> bool:
        """Whether a quoted field goes on behind the piece."""
        found, quotes = self._found()
        # Where every other quote is at a field's beginning or behind another quote, as in files that are well made,
        # counting is enough.
        if self._follow(found, quotes[int(self.is_open) :: 2], _QUOTE).all():
            return self.is_open ^ bool(len(quotes) & 1)
        _runs, is_closed = self._quotes()
        return not is_closed[-1]

    def _found(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes, and where quotes are."""
        found = np.frombuffer(self.data, np.uint8, self.end - self.start, self.start)
        return found, np.flatnonzero(found == _QUOTE)

    def _follow(self, found: NDArray[np.uint8], quotes: NDArray[np.int64], *others: int) -> NDArray[np.bool_]:
        """Whether quotes are where fields begin, or behind one of other bytes."""
        before = found[quotes - 1]
        if len(quotes) and quotes[0] == 0:
            before[0] = _LF if self.start == 0 else self.data[self.start - 1]
        found_there = before == ord(self.delimiter)
        for byte in (_LF, _CR, *others):
            found_there |= before == byte
        return found_there

    def _quotes(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where runs of quotes of odd length begin, and whether no quoted field is open before them and behind each."""
        found, quotes = self._found()
        is_first = np.ones(len(quotes), bool)
        np.not_equal(quotes[1:], quotes[:-1] + 1, out=is_first[1:])
        if is_first.all():
            runs = quotes
        else:
            first = np.flatnonzero(is_first)
            runs = quotes[first[np.diff(first, append=len(quotes)) & 1 == 1]]
        is_closed = np.full(len(runs) + 1, not self.is_open)
        if not len(runs):
            return runs, is_closed
        may_open = self._follow(found, runs)
        turns = np.cumsum(may_open) + self.is_open
        if not may_open.all():
            turns = turns - np.maximum.accumulate(np.where(may_open, 0, turns))
        np.equal(turns & 1, 0, out=is_closed[1:])
        return runs, is_closed


def _pieces(data: bytes, delimiter: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    start, is_open = 0, False
    while start < len(data):
        end = min(start + _PIECE_BYTES, len(data))
        while end < len(data) and data[end] == _QUOTE == data[end - 1]:
            end += 1
        piece = _Piece(data, start, end, is_open, delimiter)
        pieces.append(piece)
        start, is_open = end, piece.goes_on_open()
    return pieces
