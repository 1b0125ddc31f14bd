"""The loops of frames: plain ones, compiled.

Rows are in order, partition by partition. The frame of a row is the rows from ``lows[row]`` to before ``highs[row]``;
both never go back from row to row, so that every loop goes over the rows once. A loop that folds values keeps what it
has in two stacks: what is behind the middle folded into one value, what is before it folded backwards, so that nothing
ever has to be taken out of a sum.

Source: Tangwongsan, Hirzel and Schneider, "General incremental sliding-window aggregation" (PVLDB 2015): two stacks.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ..tables.compiling import compiled

__all__ = ["best_places", "count_different", "range_ends", "sum_floats"]

_INTS = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C", readonly=True)
_TRUTH = types.Array(types.uint8, 1, "C", readonly=True)
_NEW_INTS = types.int64[::1]
_NEW_FLOATS = types.float64[::1]
_SMALLEST, _LARGEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@compiled(types.void(_INTS, _INTS, _INTS, types.int64, types.boolean, _NEW_INTS))
def range_ends(keys, starts, ends, distance, is_high, found):  # type: ignore[no-untyped-def]
    """Find where frames begin or end that go by distance in the order.

    Args:
        keys: The order, as integers; ascending in a partition.
        starts: Of each row the first one of its partition.
        ends: Of each row the one behind the last.
        distance: What is added to a row's key; the sum stops at the ends of what integers can be.
        is_high: Whether the first row behind the frame is asked for, else the first row in it.
        found: Where it is written.
    """
    at = 0
    for row in range(len(keys)):
        key = keys[row]
        if distance < 0:
            wanted = key + distance if key >= _SMALLEST - distance else _SMALLEST
        else:
            wanted = key + distance if key <= _LARGEST - distance else _LARGEST
        at = max(at, starts[row])
        if is_high:
            while at < ends[row] and keys[at] <= wanted:
                at += 1
        else:
            while at < ends[row] and keys[at] < wanted:
                at += 1
        found[row] = at


@compiled(types.void(_INTS, _TRUTH, _INTS, _INTS, _NEW_INTS, _NEW_INTS))
def best_places(keys, valid, lows, highs, queue, found):  # type: ignore[no-untyped-def]
    """Find the row with the smallest key in each frame, the first of several; -1 if no row there is valid.

    Args:
        keys: One per row.
        valid: 0 for rows that are passed over.
        lows: The first row of each frame.
        highs: The one behind the last.
        queue: As long as keys; for rows that may yet be the best, in order.
        found: Where it is written.
    """
    front, back, seen = 0, 0, 0
    for row in range(len(found)):
        seen = max(seen, lows[row])
        while seen < highs[row]:
            if valid[seen]:
                while back > front and keys[queue[back - 1]] > keys[seen]:
                    back -= 1
                queue[back] = seen
                back += 1
            seen += 1
        while front < back and queue[front] < lows[row]:
            front += 1
        found[row] = queue[front] if front < back else -1


@compiled(types.void(_FLOATS, _TRUTH, _INTS, _INTS, _NEW_FLOATS, _NEW_FLOATS))
def sum_floats(values, valid, lows, highs, before, sums):  # type: ignore[no-untyped-def]
    """Add up the valid floats of each frame.

    Args:
        values: One per row.
        valid: 0 for rows that are passed over.
        lows: The first row of each frame.
        highs: The one behind the last.
        before: As long as values; for the sums from a row up to the middle.
        sums: Where they are written.
    """
    middle, seen, behind = 0, 0, 0.0
    for row in range(len(sums)):
        low, high = lows[row], max(highs[row], lows[row])
        if low >= seen:
            middle, seen, behind = low, low, 0.0
        if low > middle:
            total = 0.0
            for place in range(seen - 1, low - 1, -1):
                if valid[place]:
                    total += values[place]
                before[place] = total
            middle, behind = seen, 0.0
        while seen < high:
            if valid[seen]:
                behind += values[seen]
            seen += 1
        if low >= high:
            sums[row] = 0.0
        elif low < middle:
            sums[row] = before[low] + behind
        else:
            sums[row] = behind


@compiled(types.void(_INTS, _INTS, _INTS, _NEW_INTS, _NEW_INTS))
def count_different(codes, lows, highs, counts, found):  # type: ignore[no-untyped-def]
    """Count the different codes in each frame; -1 is none.

    Args:
        codes: One per row.
        lows: The first row of each frame.
        highs: The one behind the last.
        counts: Zeros, one for each code.
        found: Where the numbers are written.
    """
    first, seen, different = 0, 0, 0
    for row in range(len(found)):
        while seen < highs[row]:
            code = codes[seen]
            if code >= 0:
                if counts[code] == 0:
                    different += 1
                counts[code] += 1
            seen += 1
        while first < min(lows[row], seen):
            code = codes[first]
            if code >= 0:
                counts[code] -= 1
                if counts[code] == 0:
                    different -= 1
            first += 1
        found[row] = different
