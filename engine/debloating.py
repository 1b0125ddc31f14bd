"""Buffer debloating: how much may be in flight to a consumer, by how fast it is.

What waits in front of a slow consumer is latency for records and barriers alike, and is state in an unaligned
checkpoint. Windows of credit are therefore made such that the consumer needs about a target time for all that may be in
flight to it. They shrink only while it is the bottleneck, that is, while its channels have never been empty since the
last look; once they have been, they double, up to what is configured. So a consumer that keeps up has the full windows,
and one that has become slow is measured by what it really takes.

A consumer of many small records takes a whole batch in one step, and nothing else gets its turn meanwhile. So batches
are cut into steps of about `STEP_MS` as well; the first ones before anything is known are small.

It decides only, from the clock it is given; `headrace.engine.channels` carries it out.

Source: Flink's ``BufferDebloater`` and ``ThroughputCalculator``; FLIP-183.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.channels import InputChannel

__all__ = ["BufferDebloater"]

LOOK_MS = 200
"""Time between two looks."""

MIN_WINDOW_BYTES = 4 << 10
"""A channel is always allowed this much: one small batch."""

MIN_CHANGE = 0.25
"""Windows that would change by less than this share are left as they are."""

FIRST_STEP_ROWS = 1_024
"""Records of the first steps, before it is known how long they take."""

STEP_MS = 50
"""A step is to take about this long, at most."""


class BufferDebloater:
    """Sizes the windows of one consumer's channels.

    Args:
        channels: Its channels.
        target_ms: So long it is to need for what is in flight.
        max_rows: The most records of a batch; steps of so many are not cut.
        now_ms: When it begins.
    """

    def __init__(self, channels: Sequence[InputChannel], target_ms: int, max_rows: int, now_ms: int) -> None:
        self._channels = channels
        self._target_ms = target_ms
        self._max_rows = max_rows
        self._looked_ms = now_ms
        # Bytes consumed since then; and whether no record has waited at some time since.
        self._num_bytes = 0
        self._was_starved = True
        # Bytes per millisecond that the consumer takes while it never waits, smoothed; None before it is known.
        self._bytes_per_ms: float | None = None
        self._step_rows = min(FIRST_STEP_ROWS, max_rows)
        self._set_step_rows(self._step_rows)

    def took(self, num_rows: int, num_bytes: int, took_ms: int, now_ms: int) -> bool:
        """Records have been processed.

        Args:
            num_rows: How many, in one step.
            num_bytes: Their size.
            took_ms: How long it took.
            now_ms: The time now.

        Returns:
            Whether windows have grown, so that credit should be given at once.
        """
        self._num_bytes += num_bytes
        self._fit_step(num_rows, took_ms)
        if not self._was_starved:
            self._was_starved = all(channel.is_empty for channel in self._channels)
        elapsed_ms = now_ms - self._looked_ms
        return elapsed_ms >= LOOK_MS and self._look(elapsed_ms, now_ms)

    def _look(self, elapsed_ms: int, now_ms: int) -> bool:
        rate, was_starved = self._num_bytes / elapsed_ms, self._was_starved
        self._looked_ms, self._num_bytes = now_ms, 0
        self._was_starved = all(channel.is_empty for channel in self._channels)
        if was_starved:
            self._bytes_per_ms = None
            return self._resize([2 * channel.window_bytes for channel in self._channels])
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

    def _fit_step(self, num_rows: int, took_ms: int) -> None:
        """Cut batches so that a step takes about `STEP_MS`."""
        if took_ms > 2 * STEP_MS and num_rows > 1:
            self._set_step_rows(max(1, num_rows * STEP_MS // took_ms))
        elif 2 * took_ms < STEP_MS and num_rows >= self._step_rows < self._max_rows:
            self._set_step_rows(min(2 * self._step_rows, self._max_rows))

    def _set_step_rows(self, num_rows: int) -> None:
        self._step_rows = num_rows
        for channel in self._channels:
            channel.max_rows = num_rows if num_rows < self._max_rows else 0
