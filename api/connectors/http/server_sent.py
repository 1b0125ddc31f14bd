"""Bytes of a stream as lines, and lines as server-sent events.

Source: WHATWG, "HTML", 9.2 "Server-sent events".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.state.reading.read_limits import number_in

__all__ = ["Event", "EventParser", "LineSplitter"]

_ENDS = re.compile(rb"\r\n|\n|\r")


class LineSplitter:
    """Cuts bytes into lines, as they come.

    Args:
        max_bytes: How long a line may be.
        knows_returns: Whether a carriage return alone ends a line, too.
    """

    def __init__(self, max_bytes: int, *, knows_returns: bool) -> None:
        self._max_bytes = max_bytes
        self._knows_returns = knows_returns
        self._partial = b""
        self._skips_newline = False

    def lines(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this piece, without their ends.

        Raises:
            ValueError: If one is too long.
        """
        if self._skips_newline and piece:
            self._skips_newline = False
            piece = piece.removeprefix(b"\n")
        if not self._knows_returns:
            *found, self._partial = (self._partial + piece).split(b"\n")
            found = [line.removesuffix(b"\r") for line in found]
        else:
            *found, self._partial = _ENDS.split(self._partial + piece)
            self._skips_newline = piece.endswith(b"\r")
        if len(self._partial) > self._max_bytes or any(len(line) > self._max_bytes for line in found):
            message = f"a line has more than {self._max_bytes} bytes, which max_bytes allows"
            raise ValueError(message)
        return found

    @property
    def partial(self) -> bytes:
        """What has no end yet."""
        return self._partial


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        kind: What it is called; ``message`` unless it says so.
        data: Its lines, with newlines between.
        last_id: That of the last event that had one, this one included.
        has_id: Whether it had one itself.
    """

    kind: str
    data: bytes
    last_id: str | None
    has_id: bool


class EventParser:
    """Makes events of lines.

    Args:
        max_bytes: How much data an event may have.
        last_id: From which the stream goes on; None for its beginning.
    """

    def __init__(self, max_bytes: int, last_id: str | None) -> None:
        self._lines = LineSplitter(max_bytes, knows_returns=True)
        self._max_bytes = max_bytes
        self._is_first = True
        self.last_id = last_id
        # How long to wait before another connection, as the server says; None if it does not.
        self.retry_ms: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._kind = ""
        self._data: list[bytes] = []
        self._num_bytes = 0
        self._id: str | None = None

    def events(self, piece: bytes) -> list[Event]:
        """Return the events that end in this piece.

        Raises:
            ValueError: If a line, or an event, is too large.
        """
        found = []
        for line in self._lines.lines(piece):
            if self._is_first:
                self._is_first = False
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line:
                self._take(line)
                continue
            if self._id is not None:
                self.last_id = self._id or None
            if self._data:
                found.append(Event(self._kind or "message", b"\n".join(self._data), self.last_id, self._id is not None))
            self._begin()
        return found

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._num_bytes += len(value) + 1
            if self._num_bytes > self._max_bytes:
                message = f"an event has more than {self._max_bytes} bytes, which max_bytes allows"
                raise ValueError(message)
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry":
            self.retry_ms = number_in(value.decode(errors="replace")) or self.retry_ms
