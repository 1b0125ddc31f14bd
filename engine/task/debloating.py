"""Buffer debloating: how much may be in flight to a consumer, by how fast it is.

What waits in front of a slow consumer is latency for records and barriers alike, and is state in an unaligned
checkpoint. Windows of credit are therefore made such that the consumer needs about a target time for all that is on its
way to it: what has been sent, and what producers gather meanwhile.

* *How fast it is* is measured while it has something to do. Time in which nothing waits for it does not count, time in
  which it waits for its own consumers does.
* *At first* nothing is known, and what has been sent cannot be taken back. So windows begin with a record or two.
* *Afterwards* windows follow what was measured: up as soon as the consumer has used them faster than was thought, from
  one record to all in a few round trips; down by half of the way at each look.
* *A consumer that has nothing to do* for more than a tenth of its time keeps up, or waits for credit, which takes its
  time: either way less would wait in front of it than it may, so up to sixteen times the target is allowed. Large
  messages are what fast operators live on. Once it has always something to do, it is given less again.
* *Messages* are never so small that handling them is what costs: each is worth some milliseconds of the consumer's
  time, or one record. A consumer of very many channels has more than the target in flight for this.
* *One of many tasks of a slot* waits for its turn most of the time, and seems slow for that. Were it given less, each
  turn would bring less, and turns cost what they cost: all of the slot would come to a stand. So a message is also
  worth a millisecond of the consumer's own work, however long its turn does not come. Not if it is slow for another
  reason: time in which it waits for work outside counts as work, and where its own consumers want less at once than
  that, so much is enough.

It decides only, from the clock it is given; `headrace.engine.task.channels` carries it out.

Source: Flink's ``BufferDebloater`` and ``ThroughputCalculator``; FLIP-183.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .channels import MESSAGES_PER_WINDOW, InputChannel

__all__ = ["FIRST_WINDOW_BYTES", "BufferDebloater"]

LOOK_MS = 200
"""Time between two looks."""

MEASURED_MS = 20
"""So long a consumer must have worked before a look says how fast it is."""

FIRST_WINDOW_BYTES = 128
"""What a channel is allowed before anything is known: one record of any size, some if they are small."""

SURE_GROWTH = 2
"""While something waits, only a consumer so many times as fast as was thought is given more between two looks: some of
many short times are short by chance."""

MIN_MESSAGE_MS = 10
"""A message is worth so much of the consumer's time: to receive, unpack and grant one takes some of it."""

MIN_WORK_US = 1_000
"""And so much of its own work, without the time in which others have their turn."""

MEASURED_US = 20
"""So much work says how fast it is when it has its turn."""

MIN_WINDOW_BYTES = 64
"""A channel is always allowed this much, and so at least one record."""

MIN_CHANGE = 0.25
"""Windows that would change by less than this share are left as they are."""

IDLE_SHARE = 0.1
"""A consumer that has nothing to do for more than this share of its time is given more."""

MAX_HEADROOM = 16
"""So many times the target may be in flight to it."""

BUSY_LOOKS = 2
"""After so many looks at which it always had something to do, it is given half as much more."""


class BufferDebloater:
    """Sizes the windows of one consumer's channels.

    Used as follows: `wakes` when something has come or is about to be taken; `took` when it has been processed.

    Args:
        channels: Its channels, one or more.
        target_ms: So long it is to need for what is on its way to it.
        now_ms: When it begins.

    Attributes:
        is_idle: Whether there was nothing to do when it was last told.
    """

    def __init__(self, channels: Sequence[InputChannel], target_ms: int, now_ms: int) -> None:
        self._channels = channels
        self._target_ms = target_ms
        self._looked_ms = now_ms
        # Since when there has been something to do, or nothing.
        self._since_ms = now_ms
        self.is_idle = True
        # Since the last look: bytes consumed; milliseconds with something to do, and without.
        self._num_bytes = self._busy_ms = self._idle_ms = 0
        # Bytes per millisecond with something to do; None before it is known.
        self._bytes_per_ms: float | None = None
        # Bytes consumed and microseconds of work since that was looked at last; bytes per microsecond, 0 if not known.
        self._worked_bytes = self._work_us = 0
        self._bytes_per_work_us = 0.0
        # Bytes that make what its own consumers want at once, by the last piece.
        self._wanted_bytes = math.inf
        # Since when it has waited for work outside; None while it does not.
        self._blocked_since_ms: int | None = None
        # Bytes consumed and milliseconds with something to do since half of the windows was used last.
        self._bytes_since = self._busy_since = 0
        # How many times the target is in flight; at how many looks in a row there was always something to do.
        self._headroom = 1
        self._busy_looks = 0
        for channel in channels:
            channel.resize(FIRST_WINDOW_BYTES)

    def wakes(self, now_ms: int) -> None:
        """Note that there is something to do."""
        if self.is_idle:
            self._idle_ms += now_ms - self._since_ms
            self.is_idle, self._since_ms = False, now_ms

    def note_blocked(self, now_ms: int, *, is_blocked: bool) -> None:
        """Note whether it can take no records because of work outside; told as often as that may have changed."""
        if self._blocked_since_ms is not None:
            self._work_us += 1_000 * (now_ms - self._blocked_since_ms)
        self._blocked_since_ms = now_ms if is_blocked and not self.is_idle else None

    def took(self, num_bytes: int, now_ms: int, work_us: int = 0, wanted_share: float = math.inf) -> bool:
        """Note that records have been processed.

        Args:
            num_bytes: Their size.
            now_ms: The time now.
            work_us: How long that took; 0 if it is not known.
            wanted_share: So many times these records are what its own consumers want at once.

        Returns:
            Whether windows have grown, so that credit should be given at once.
        """
        busy_ms = now_ms - self._since_ms
        self._since_ms = now_ms
        if work_us:
            self._worked_bytes, self._work_us = self._worked_bytes + num_bytes, self._work_us + work_us
            self._wanted_bytes = num_bytes * wanted_share
        self._num_bytes, self._busy_ms = self._num_bytes + num_bytes, self._busy_ms + busy_ms
        self._bytes_since, self._busy_since = self._bytes_since + num_bytes, self._busy_since + busy_ms
        self.is_idle = not any(channel.has_element for channel in self._channels)
        if now_ms - self._looked_ms >= LOOK_MS and self._bytes_per_ms is not None:
            return self._look(now_ms)
        is_much = 2 * self._bytes_since >= sum(channel.window_bytes for channel in self._channels)
        return (is_much or self._bytes_per_ms is None) and self._look_early()

    def _look_early(self) -> bool:
        """Half of what was allowed has been taken, or it is the first that is known."""
        rate, known = self._bytes_since / max(self._busy_since, 1), self._bytes_per_ms or 0
        self._bytes_since = self._busy_since = 0
        is_faster = rate > (known if self.is_idle else SURE_GROWTH * known)
        if is_faster:
            self._bytes_per_ms = rate
        # Along a chain of many tasks consumers want more one after another: none waits for its next look.
        window_bytes = self._window_for_turns()
        wants_more = any(channel.window_bytes * SURE_GROWTH < window_bytes for channel in self._channels)
        return (is_faster or wants_more) and self._resize()

    def _look(self, now_ms: int) -> bool:
        self._note_idleness(self._idle_ms > IDLE_SHARE * (now_ms - self._looked_ms))
        self._looked_ms, self._idle_ms = now_ms, 0
        if self._busy_ms >= MEASURED_MS:  # else it has hardly worked, and what it has goes on counting
            rate, known = self._num_bytes / self._busy_ms, self._bytes_per_ms or 0
            self._bytes_per_ms = max(rate, (rate + known) / 2)
            self._num_bytes = self._busy_ms = 0
        if self._work_us >= MEASURED_US:
            self._bytes_per_work_us = self._worked_bytes / self._work_us
            self._worked_bytes = self._work_us = 0
        return self._resize()

    def _note_idleness(self, had_nothing_to_do: bool) -> None:
        if had_nothing_to_do:
            self._headroom, self._busy_looks = min(2 * self._headroom, MAX_HEADROOM), 0
        elif self._headroom > 1:
            self._busy_looks += 1
            if self._busy_looks == BUSY_LOOKS:
                self._headroom, self._busy_looks = self._headroom // 2, 0

    def _resize(self) -> bool:
        """Change what changes by enough; gives whether any window has grown."""
        assert self._bytes_per_ms is not None
        # Of each channel there are a window's messages on their way, and one that the producer gathers.
        share_ms = self._target_ms * self._headroom / self._num_channels / (MESSAGES_PER_WINDOW + 1)
        message_bytes = self._bytes_per_ms * max(share_ms, MIN_MESSAGE_MS)
        window_bytes = max(int(MESSAGES_PER_WINDOW * message_bytes), self._window_for_turns(), MIN_WINDOW_BYTES)
        has_grown = False
        for channel in self._channels:
            if abs(window_bytes - channel.window_bytes) >= MIN_CHANGE * channel.window_bytes:
                has_grown |= channel.resize(window_bytes)
        return has_grown

    def _window_for_turns(self) -> int:
        """What is always allowed, so that no turn brings too little."""
        message_bytes = min(self._bytes_per_work_us * MIN_WORK_US, self._wanted_bytes / self._num_channels)
        return int(MESSAGES_PER_WINDOW * message_bytes)

    @property
    def _num_channels(self) -> int:
        """Those that have not ended, at least one."""
        return max(1, sum(not channel.is_ended for channel in self._channels))
