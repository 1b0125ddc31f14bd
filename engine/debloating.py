"""Buffer debloating: how much may be in flight to a consumer, by how fast it is.

What waits in front of a slow consumer is latency for records and barriers alike, and is state in an unaligned
checkpoint. Windows of credit are therefore made such that the consumer needs about a target time for all that may be in
flight to it. They begin small: what was sent before anything is known could take a slow consumer for ever. They shrink
only while it is the bottleneck, that is, while its channels have never been empty since the last look; once they have
been, they double, up to what is configured. So a consumer that keeps up has the full windows,
and one that has become slow is measured by what it really takes.

It decides only, from the clock it is given; `headrace.engine.channels` carries it out.

Source: Flink's ``BufferDebloater`` and ``ThroughputCalculator``; FLIP-183.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.channels import InputChannel

__all__ = ["BufferDebloater"]

LOOK_MS = 200
"""Time between two looks."""

FIRST_WINDOW_BYTES = 64 << 10
"""What a channel is allowed before it is known how fast its consumer is."""

MIN_WINDOW_BYTES = 1 << 10
"""A channel is always allowed this much: one small batch."""

MIN_CHANGE = 0.25
"""Windows that would change by less than this share are left as they are."""


class BufferDebloater:
    """Sizes the windows of one consumer's channels.

    Args:
        channels: Its channels.
        target_ms: So long it is to need for what is in flight.
        now_ms: When it begins.
    """

    def __init__(self, channels: Sequence[InputChannel], target_ms: int, now_ms: int) -> None:
        self._channels = channels
        self._target_ms = target_ms
        self._looked_ms = now_ms
        # Bytes consumed since then; and whether no record has waited at some time since.
        self._num_bytes = 0
        self._was_starved = False
        # Bytes per millisecond that the consumer takes while it never waits, smoothed; None before it is known.
        self._bytes_per_ms: float | None = None
        # Bytes consumed since windows last grew.
        self._since_growth = 0
        for channel in channels:
            channel.resize(FIRST_WINDOW_BYTES)

    def took(self, num_bytes: int, now_ms: int) -> bool:
        """Records have been processed.

        Args:
            num_bytes: Their size.
            now_ms: The time now.

        Returns:
            Whether windows have grown, so that credit should be given at once.
        """
        self._num_bytes += num_bytes
        self._since_growth += num_bytes
        is_starved = all(channel.is_empty for channel in self._channels)
        self._was_starved |= is_starved
        elapsed_ms = now_ms - self._looked_ms
        if elapsed_ms >= LOOK_MS:
            return self._look(elapsed_ms, now_ms)
        # Nothing is left of much that was allowed: what it takes is more, how much more will be seen.
        if is_starved and 2 * self._since_growth >= sum(channel.window_bytes for channel in self._channels):
            return self._double()
        return False

    def _double(self) -> bool:
        self._bytes_per_ms, self._since_growth = None, 0
        return self._resize([2 * channel.window_bytes for channel in self._channels])

    def _look(self, elapsed_ms: int, now_ms: int) -> bool:
        rate, was_starved = self._num_bytes / elapsed_ms, self._was_starved
        self._looked_ms, self._num_bytes = now_ms, 0
        self._was_starved = all(channel.is_empty for channel in self._channels)
        if was_starved:
            return self._double()
        known = self._bytes_per_ms
        self._bytes_per_ms = rate if known is None else (rate + known) / 2
        share = int(self._bytes_per_ms * self._target_ms / len(self._channels))
        return self._resize([max(share, MIN_WINDOW_BYTES)] * len(self._channels))

    def _resize(self, windows: Sequence[int]) -> bool:
        """Change what changes by enough; gives whether any window has grown."""
        has_grown = False
        for channel, window in zip(self._channels, windows, strict=True):
            if abs(window - channel.window_bytes) >= MIN_CHANGE * channel.window_bytes:
                has_grown |= channel.resize(window)
        return has_grown
