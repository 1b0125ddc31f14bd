"""Where event time is in an operator's subtask, and in each part of its input that can hold it back.

Operators say it (`headrace.engine.functions.operator.Operator.watermark_parts`, ``next_event_time``), tasks report it
with their metrics, and a client is told in words why a window does not fire.

Source: Flink's ``currentInputWatermark`` and ``watermarkAlignmentDrift`` metrics, its web dashboard's "Watermarks".
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOST_PARTS", "OperatorEventTime", "WatermarkPart"]

MOST_PARTS = 10
"""Of so many parts a subtask tells, those first that are furthest behind: a source may have thousands of splits."""


@dataclass(frozen=True, slots=True)
class WatermarkPart:
    """A part of a subtask's input that has a watermark of its own.

    Attributes:
        name: The id of a source's split; empty for all that comes to an operator.
        watermark_ms: Event time in it; None before the first record.
        risen_ms: When that rose last, or the part was taken up, by the clock of its subtask.
        is_idle: Whether it holds no other back, as nothing has come for so long.
        is_held: Whether it is not read, as it is ahead of its alignment group.
    """

    name: str
    watermark_ms: int | None
    risen_ms: int
    is_idle: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class OperatorEventTime:
    """Where event time is in one subtask of an operator.

    Attributes:
        watermark_ms: The last watermark that it has given on; None before the first.
        next_ms: The watermark that it waits for: the last millisecond of its first open window, its first timer. None
            if it waits for none.
        parts: What holds its watermark back, if it makes watermarks; at most `MOST_PARTS`.
        num_parts: How many there are.
        subtask: Which it is.
    """

    watermark_ms: int | None
    next_ms: int | None = None
    parts: tuple[WatermarkPart, ...] = ()
    num_parts: int = 0
    subtask: int = 0

    @classmethod
    def of(
        cls, watermark_ms: int | None, next_ms: int | None, parts: list[WatermarkPart], subtask: int = 0
    ) -> OperatorEventTime:
        """Return it with the parts that are furthest behind."""
        behind = sorted(parts, key=_by_place)
        return cls(watermark_ms, next_ms, tuple(behind[:MOST_PARTS]), len(parts), subtask)


def _by_place(part: WatermarkPart) -> tuple[bool, bool, int]:
    """Those that hold others back first, the lowest first."""
    return part.is_idle, part.watermark_ms is not None, part.watermark_ms or 0
