"""What has happened in a run: its last events as text, and a checksum of all of them."""

from __future__ import annotations

import zlib
from collections import deque

__all__ = ["Story"]

STORY_LENGTH = 400


class Story:
    """That of one run."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, str, str]] = deque(maxlen=STORY_LENGTH)
        self._checksum = 0

    def tell(self, now_us: int, host: str, what: str) -> None:
        """Note an event: when (virtual microseconds), of which host."""
        self._last.append((now_us, host, what))
        self._checksum = zlib.crc32(f"{now_us} {host} {what}".encode(), self._checksum)

    @property
    def digest(self) -> str:
        """The checksum: runs with the same one went the same way."""
        return f"{self._checksum:08x}"

    def text(self) -> str:
        """Return the last events: virtual milliseconds, host, event."""
        return "\n".join(f"{time_us / 1_000:>12.3f}  {host:<24} {what}" for time_us, host, what in self._last)
