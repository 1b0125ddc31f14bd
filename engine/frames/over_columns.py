"""The new columns of rows in order, made piece by piece, so that they need not all be held at once.

Places and neighbours come by where rows are; aggregates that are folded on arrays by their frames
(`folds`), and all others row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..columns.expressions import Expression
from ..columns.records import MAX_BATCH_ROWS
from ..functions.aggregates.contract import Aggregate
from ..tables.columns import Truths
from ..tables.ordering import SortKey, sort_key
from .folds import finalised, folds, lifted, over_frames
from .frame_calls import Frame, Neighbour, Place, value_of
from .ordered_rows import OrderedRows

__all__ = ["OverColumns", "by_distance", "used_names"]


class OverColumns:
    """The new columns of rows in order, made piece by piece.

    Args:
        columns: What they are computed from, in order.
        is_first: Whether a row is the first of its group.
        is_new: Whether a row is the first of those that are equal to it in the order.
        frame: Which rows aggregates see.
        key: What they are ordered by, if the frame goes by distance.
    """

    def __init__(
        self, columns: pa.RecordBatch, is_first: Truths, is_new: Truths, frame: Frame | None, key: SortKey | None
    ) -> None:
        self._columns = columns
        self._frame = frame
        self._rows = OrderedRows(is_first, is_new, key)

    def pieces(self, spec: Any, kind: pa.DataType) -> Iterator[pa.Array]:
        """Yield a new column."""
        if isinstance(spec, Place):
            yield from (pa.array(self._rows.places(spec, piece), kind) for piece in self.slices())
        elif isinstance(spec, Neighbour):
            yield from (self._rows.neighbours(spec, self._columns, piece).cast(kind) for piece in self.slices())
        elif folds(spec):
            yield from self._folded(spec, kind)
        else:
            yield from self._row_by_row(spec, kind)

    def slices(self) -> Iterator[slice]:
        """Yield which rows each piece of a column is of."""
        for start in range(0, len(self._rows), MAX_BATCH_ROWS):
            yield slice(start, min(start + MAX_BATCH_ROWS, len(self._rows)))

    def _folded(self, spec: Aggregate, kind: pa.DataType) -> Iterator[pa.Array]:
        lows, highs = self._rows.bounds(self._frame)
        parts = [over_frames(part, lows, highs) for part in lifted(spec, self._columns)]
        for piece in self.slices():
            some = [part.slice(piece.start, piece.stop - piece.start) for part in parts]
            yield finalised(spec, some).cast(kind)

    def _row_by_row(self, spec: Aggregate, kind: pa.DataType) -> Iterator[pa.Array]:
        values = _Values(self._columns, spec.argument)
        accumulator: Any = None
        result: Any = None
        known = (-1, -1)
        all_lows, all_highs = self._rows.bounds(self._frame)
        for piece in self.slices():
            results: list[Any] = []
            for bounds in zip(all_lows[piece].tolist(), all_highs[piece].tolist(), strict=True):
                if bounds != known:
                    # Frames that only grow are added to.
                    first = known[1] if bounds[0] == known[0] and bounds[1] >= known[1] else bounds[0]
                    if first == bounds[0]:
                        accumulator = spec.create()
                    for some in values.between(first, bounds[1]):
                        for value in some:
                            accumulator = spec.add(accumulator, value)
                    result = spec.result(accumulator)
                    known = bounds
                results.append(result)
            yield pa.array(results, kind)


class _Values:
    """What an aggregate is given of each row, some of it at a time as Python's objects."""

    def __init__(self, columns: pa.RecordBatch, argument: Expression | None) -> None:
        self._columns = columns
        self._argument = argument
        # The values of the rows from `_first` to before `_end`.
        self._block: list[Any] = []
        self._first = self._end = 0

    def between(self, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the values of rows in order, in pieces."""
        while first < end:
            if not self._first <= first < self._end:
                self._load(first)
            stop = min(end, self._end)
            yield self._block[first - self._first : stop - self._first]
            first = stop

    def _load(self, first: int) -> None:
        part = self._columns.slice(first, MAX_BATCH_ROWS)
        if self._argument is None:
            self._block = [None] * part.num_rows
        else:
            self._block = self._argument.evaluate(part).to_pylist()
        self._first, self._end = first, first + part.num_rows


def by_distance(
    frame: Frame | None, values: pa.Array, *, ascending: bool, nulls_first: bool | None
) -> tuple[Frame | None, SortKey | None]:
    """Return the frame of aggregates in the units of what rows are ordered by; and that, if the frame goes by distance.

    Args:
        frame: The frame.
        values: The last column that rows are ordered by, in order.
        ascending: Whether its smallest value comes first.
        nulls_first: Whether null does; None for Flink's default.
    """
    if frame is None or not frame.is_range:
        return frame, None
    return frame.in_units_of(values.type), sort_key(values, ascending=ascending, nulls_first=nulls_first)


def used_names(columns: Mapping[str, Any], schema: pa.Schema) -> list[str]:
    """Return the columns that new ones are computed from; one at least.

    Args:
        columns: Places, neighbours and aggregates, by the names of the new columns.
        schema: Of the rows.
    """
    values = [value_of(spec) for spec in columns.values()]
    used = frozenset().union(*(value.columns_used() for value in values if value is not None))
    return [name for name in schema.names if name in used] or schema.names[:1]
