"""How the watermarks of several inputs become one: channels, splits and inputs of an operator.

Three places join watermarks, each as Flink does it:

* The channels of one input of a task: `StatusWatermarkValve`. The lowest *aligned* channel counts. An idle channel is
  left out; one that is active again counts from when its watermark has caught up with what was passed on. No input
  waits for a channel whose records are all late anyway. If all are idle, the highest watermark is passed on: so it does
  not matter which of them fell idle first.
* The splits of a source's subtask, and the inputs of an operator: `CombinedWatermarkStatus`. The lowest that is not
  idle counts. If all are idle nothing changes: the next record is judged by the watermark that was there.
* A task: `TaskWatermark`, a valve for each input, and the inputs combined.

The end of event time (`MAX_TIMESTAMP`) is not one more watermark. An input that has come to it has ended and holds no
other back, but event time ends only once all have ended: an idle input may still bring records. Flink ends it when the
others are idle.

Invariant: a combined watermark never goes back.

Source: Flink's ``StatusWatermarkValve``, ``CombinedWatermarkStatus``, ``WatermarkOutputMultiplexer`` and
``IndexedCombinedWatermarkStatus``; ``docs/design/022-how-watermarks-are-joined.md``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from ..functions.timers import DueQueue

__all__ = ["CombinedWatermarkStatus", "StatusWatermarkValve", "TaskWatermark"]


@dataclass(slots=True)
class _Channel:
    # The highest watermark while it was active, the end apart.
    watermark_ms: int = MIN_TIMESTAMP
    is_idle: bool = False
    has_ended: bool = False
    # Whether it counts: it is active, and has caught up since it was idle last.
    is_aligned: bool = True

    @property
    def is_active(self) -> bool:
        return not self.is_idle and not self.has_ended


class StatusWatermarkValve:
    """The watermark of the channels of one input.

    Args:
        num_channels: How many there are, called 0, 1 ...
    """

    __slots__ = ("_channels", "is_idle", "watermark_ms")

    def __init__(self, num_channels: int) -> None:
        self._channels = [_Channel() for _ in range(num_channels)]
        # What was passed on last; `MIN_TIMESTAMP` before the first.
        self.watermark_ms = MIN_TIMESTAMP
        # Whether some channel has not ended, and all such are idle.
        self.is_idle = False

    def update(self, index: int, watermark_ms: int) -> int | None:
        """Take a channel's watermark; that of an idle one is ignored, but for the end.

        Returns:
            The watermark to pass on, None if there is none.
        """
        channel = self._channels[index]
        if watermark_ms >= MAX_TIMESTAMP:
            return None if channel.has_ended else self._leave_out(channel, has_ended=True)
        if not channel.is_active or watermark_ms <= channel.watermark_ms:
            return None
        channel.watermark_ms = watermark_ms
        channel.is_aligned = channel.is_aligned or watermark_ms >= self.watermark_ms
        return self._rise_to(self._lowest_aligned())

    def set_idle(self, index: int, is_idle: bool) -> int | None:
        """Take it that a channel has become idle or active.

        Returns:
            As `update`.
        """
        channel = self._channels[index]
        if is_idle == channel.is_idle:
            return None
        if is_idle:
            return self._leave_out(channel, has_ended=channel.has_ended)
        channel.is_idle = False
        channel.is_aligned = channel.is_active and channel.watermark_ms >= self.watermark_ms
        self._judge_idleness()
        # It may be the only one that counts, and ahead. Flink passes that on with its next watermark only.
        return self._rise_to(self._lowest_aligned())

    def _leave_out(self, channel: _Channel, *, has_ended: bool) -> int | None:
        """A channel holds no other back any more."""
        was_last_active = channel.is_active and sum(other.is_active for other in self._channels) == 1
        channel.is_aligned = False
        channel.has_ended, channel.is_idle = has_ended, not has_ended or channel.is_idle
        self._judge_idleness()
        if all(other.has_ended for other in self._channels):
            return self._rise_to(MAX_TIMESTAMP)
        if was_last_active and channel.watermark_ms == self.watermark_ms:
            return self._rise_to(max(other.watermark_ms for other in self._channels))
        return self._rise_to(self._lowest_aligned())

    def _judge_idleness(self) -> None:
        live = [channel for channel in self._channels if not channel.has_ended]
        self.is_idle = bool(live) and all(channel.is_idle for channel in live)

    def _lowest_aligned(self) -> int:
        times = (channel.watermark_ms for channel in self._channels if channel.is_aligned)
        return min(times, default=MIN_TIMESTAMP)

    def _rise_to(self, watermark_ms: int) -> int | None:
        if watermark_ms <= self.watermark_ms:
            return None
        self.watermark_ms = watermark_ms
        return watermark_ms


@dataclass(slots=True)
class _Part:
    number: int
    watermark_ms: int = MIN_TIMESTAMP
    is_idle: bool = False


class CombinedWatermarkStatus:
    """The watermark of several parts: the splits of a source, or the inputs of an operator.

    Parts are told of by `update`, `set_idle`, `add` and `remove`; `combine` says the result. What happens at one
    time, such as several splits that fall idle, is combined once: no order among them matters. A source may have
    thousands of splits, so none of this looks at all of them.
    """

    __slots__ = ("_active", "_num_added", "_num_live", "_parts", "watermark_ms")

    def __init__(self) -> None:
        self._parts: dict[Hashable, _Part] = {}
        self._num_added = 0
        # Parts that have not ended; the numbers of those among them that are not idle, by their watermarks.
        self._num_live = 0
        self._active = DueQueue()
        # The combined watermark; `MIN_TIMESTAMP` before the first.
        self.watermark_ms = MIN_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        """Whether some part has not ended, and all such are idle."""
        return self._num_live > 0 and len(self._active) == 0

    def add(self, name: Hashable) -> None:
        """Add a part, such as a split just assigned; it is active, without a watermark."""
        if name not in self._parts:
            self._num_added += 1
            part = self._parts[name] = _Part(self._num_added)
            self._count(part)

    def remove(self, name: Hashable) -> None:
        """Forget a part that is gone."""
        part = self._parts.pop(name, None)
        if part is not None:
            self._discount(part)

    def update(self, name: Hashable, watermark_ms: int) -> None:
        """Take a part's watermark, if it is no lower than the last."""
        part = self._parts[name]
        if watermark_ms > part.watermark_ms:
            self._discount(part)
            part.watermark_ms = watermark_ms
            self._count(part)

    def set_idle(self, name: Hashable, is_idle: bool) -> None:
        """Note that a part is idle or active."""
        part = self._parts[name]
        if is_idle != part.is_idle:
            self._discount(part)
            part.is_idle = is_idle
            self._count(part)

    def _count(self, part: _Part) -> None:
        if part.watermark_ms < MAX_TIMESTAMP:
            self._num_live += 1
            if not part.is_idle:
                self._active.add(part.watermark_ms, part.number)

    def _discount(self, part: _Part) -> None:
        """It is about to change."""
        if part.watermark_ms < MAX_TIMESTAMP:
            self._num_live -= 1
            self._active.remove(part.number)

    def combine(self) -> int | None:
        """Take account of what the parts have said.

        Returns:
            The combined watermark if it has risen, else None.
        """
        lowest_ms = self._active.next_time()
        if lowest_ms is None:
            lowest_ms = MAX_TIMESTAMP if self._parts and not self._num_live else MIN_TIMESTAMP
        if lowest_ms <= self.watermark_ms:
            return None
        self.watermark_ms = lowest_ms
        return lowest_ms


class TaskWatermark:
    """The watermark of a task: its inputs combined, each of them the channels of its valve.

    Args:
        inputs: For each channel, by number, the input it belongs to: channels of a union are of one input.
    """

    __slots__ = ("_combined", "_places", "_valves")

    def __init__(self, inputs: Sequence[int]) -> None:
        self._places = [(number, inputs[:index].count(number)) for index, number in enumerate(inputs)]
        self._valves = {number: StatusWatermarkValve(inputs.count(number)) for number in set(inputs)}
        self._combined = CombinedWatermarkStatus()
        for number in self._valves:
            self._combined.add(number)

    @property
    def watermark_ms(self) -> int:
        """The combined watermark; `MIN_TIMESTAMP` before the first."""
        return self._combined.watermark_ms

    @property
    def is_idle(self) -> bool:
        """Whether some channel has not ended, and all such are idle."""
        return self._combined.is_idle

    def update(self, channel: int, watermark_ms: int) -> int | None:
        """Take a channel's watermark.

        Returns:
            The combined watermark if that made it rise, else None.
        """
        number, index = self._places[channel]
        valve = self._valves[number]
        return self._take_over(number, valve, valve.update(index, watermark_ms))

    def set_idle(self, channel: int, is_idle: bool) -> int | None:
        """Take it that a channel has become idle or active.

        Returns:
            As `update`.
        """
        number, index = self._places[channel]
        valve = self._valves[number]
        return self._take_over(number, valve, valve.set_idle(index, is_idle))

    def _take_over(self, number: int, valve: StatusWatermarkValve, watermark_ms: int | None) -> int | None:
        """Progress of a valve first, then its idleness: a valve that falls idle may rise as it does."""
        risen_ms: int | None = None
        if watermark_ms is not None:
            self._combined.update(number, watermark_ms)
            risen_ms = self._combined.combine()
        self._combined.set_idle(number, valve.is_idle)
        later_ms = self._combined.combine()
        return risen_ms if later_ms is None else later_ms
