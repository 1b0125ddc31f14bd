"""What OVER keeps of rows that are out: what later ones ask for.

Source: Flink's ``StreamExecOverAggregate``, which chooses between operators by the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.state.errors import ProgramError

from ..frames.frame_calls import Frame, Neighbour, Place, Share
from ..functions.aggregates.contract import Aggregate

__all__ = ["Kept", "kept_for"]

_WAY_ROUND = "batch mode runs it; on streams frames begin before a row and end with it"


@dataclass(frozen=True)
class Kept:
    """What is kept of rows that are out. Of the three one is not None, or True.

    Attributes:
        num_rows: So many of each partition.
        distance: Those that are so far behind the watermark at most, in units of the time column.
        is_folded: None of them, but what the aggregates have come to.
    """

    num_rows: int | None = None
    distance: int | None = None
    is_folded: bool = False


def kept_for(columns: Mapping[str, Any], frame: Frame | None) -> Kept:
    """Return what is kept for columns, whose aggregates see the rows of a frame.

    Raises:
        ProgramError: If a row would have to wait for later ones, or columns are of several kinds.
    """
    specs = list(columns.values())
    shares = [one for one in specs if isinstance(one, Share)]
    if shares:
        message = f"{shares[0]!r} waits for all rows of its group, and is not supported by event time"
        raise ProgramError(message, hint="the operator over changes updates it, and batch mode runs it")
    if specs and all(isinstance(one, Place) for one in specs):
        return Kept(is_folded=True)
    if specs and all(isinstance(one, Neighbour) for one in specs):
        if any(one.offset > 0 for one in specs):
            message = "LEAD waits for rows that have not come, and is not supported on streams"
            raise ProgramError(message, hint="batch mode runs it; LAG works on streams")
        return Kept(num_rows=max(-one.offset for one in specs))
    if not specs or not all(isinstance(one, Aggregate) for one in specs):
        message = "places, neighbours and aggregates are computed by operators of their own"
        raise ProgramError(message)
    from ..frames.folds import folds

    unknown = [one for one in specs if not folds(one)]
    if unknown:
        message = f"{unknown[0]!r} OVER is not supported on streams"
        raise ProgramError(message, hint="batch mode runs it")
    if frame is None or (frame.low is None and frame.high == 0):
        return Kept(is_folded=True)
    if frame.low is None or frame.high is None or frame.high > 0:
        message = f"a frame of {frame!r} is not supported on streams"
        raise ProgramError(message, hint=_WAY_ROUND)
    return Kept(distance=-frame.low) if frame.is_range else Kept(num_rows=-frame.low)
