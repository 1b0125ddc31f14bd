"""OVER on bounded data: what can be said of a record by its place in a group (`headrace.engine.frames`).

A partition is put in order once, and only as places of its rows; records and new columns are then made piece by piece.
So memory holds the partition as it came, the columns that are computed with, and some 50 bytes a record, however large
a group is. Ranks go by the order: records that are equal in it have one rank, and which of them comes first is not
promised. Aggregates that are not folded on arrays are computed row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..columns.expressions import Expression
from ..columns.grouping import Groups
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..frames.calls import Frame, Neighbour, Place, value_of
from ..functions.aggregates.contract import Aggregate
from ..plan.plan import OverGroups
from .context import TaskContext
from .wire import gathered, ordered

__all__ = ["over_groups"]

Places = npt.NDArray[np.int64]


class _Frames:
    """The new columns of rows in order, made piece by piece.

    Args:
        columns: What they are computed from, in order.
        is_first: Whether a row is the first of its group.
        is_new: Whether a row is the first of those that are equal to it in the order.
        frame: Which rows aggregates see.
        key: What they are ordered by, if the frame goes by distance.
    """

    def __init__(self, columns: pa.RecordBatch, is_first: Any, is_new: Any, frame: Frame | None, key: Any) -> None:
        from ..frames.ordered_rows import OrderedRows

        self._columns = columns
        self._frame = frame
        self._rows = OrderedRows(is_first, is_new, key)

    def pieces(self, spec: Any, kind: pa.DataType) -> Iterator[pa.Array]:
        """Yield a new column."""
        from ..frames.frame_values import folds

        if isinstance(spec, Place):
            yield from (pa.array(self._rows.places(spec.name, piece), kind) for piece in self._slices())
        elif isinstance(spec, Neighbour):
            yield from (self._rows.neighbours(spec, self._columns, piece).cast(kind) for piece in self._slices())
        elif folds(spec):
            yield from self._folded(spec, kind)
        else:
            yield from self._row_by_row(spec, kind)

    def _slices(self) -> Iterator[slice]:
        for start in range(0, len(self._rows), MAX_BATCH_ROWS):
            yield slice(start, min(start + MAX_BATCH_ROWS, len(self._rows)))

    def _folded(self, spec: Aggregate, kind: pa.DataType) -> Iterator[pa.Array]:
        from ..frames.frame_values import finalised, lifted, over_frames

        lows, highs = self._rows.bounds(self._frame)
        parts = [over_frames(part, lows, highs) for part in lifted(spec, self._columns)]
        for piece in self._slices():
            some = [part.slice(piece.start, piece.stop - piece.start) for part in parts]
            yield finalised(spec, some).cast(kind)

    def _row_by_row(self, spec: Aggregate, kind: pa.DataType) -> Iterator[pa.Array]:
        values = _Values(self._columns, spec.argument)
        accumulator: Any = None
        result: Any = None
        known = (-1, -1)
        all_lows, all_highs = self._rows.bounds(self._frame)
        for piece in self._slices():
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


def _is_change(codes: Places, order: Places) -> npt.NDArray[np.bool_]:
    """Whether a row, in order, has another code than the one before."""
    in_order = codes[order]
    return np.concatenate([[True], in_order[1:] != in_order[:-1]])


def over_groups(node: OverGroups, context: TaskContext, inputs: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    """Yield the records of a partition with the new columns; made in pieces, of which one is held at a time."""
    assert node.schema is not None
    batch = gathered(inputs[0], node.inputs[0].schema)
    if not batch.num_rows:
        return
    columns = batch.columns
    order = ordered(batch, node.orders) if node.orders else np.arange(batch.num_rows)
    is_first = np.arange(batch.num_rows) == 0
    names = () if node.key is None else node.key.names or ()
    if names:
        codes = Groups.of([columns.column(name) for name in names]).codes
        order = order[np.argsort(codes[order], kind="stable")]
        is_first = _is_change(codes, order)
    is_new = is_first
    if node.orders:
        is_new = is_first | _is_change(Groups.of([columns.column(str(o.column)) for o in node.orders]).codes, order)
    frames = _Frames(_used(node, columns).take(pa.array(order)), is_first, is_new, *_by_distance(node, columns, order))
    made = [frames.pieces(spec, node.schema.field(name).type) for name, spec in node.columns.items()]
    for start, new in zip(range(0, batch.num_rows, MAX_BATCH_ROWS), zip(*made, strict=True), strict=True):
        old = columns.take(pa.array(order[start : start + MAX_BATCH_ROWS]))
        yield Batch.of_columns(pa.RecordBatch.from_arrays([*old.columns, *new], schema=node.schema))


def _by_distance(node: OverGroups, columns: pa.RecordBatch, order: Places) -> tuple[Frame | None, Any]:
    """The frame of aggregates; and, if it goes by distance, what rows are ordered by."""
    from ..tables.ordering import sort_key

    frame = node.frame
    if frame is None or not frame.is_range or not node.orders:
        return frame, None
    # An order before it says that nulls are at its other end.
    by = node.orders[-1]
    nulls_first = None if len(node.orders) == 1 else not by.ascending
    values = columns.column(str(by.column))
    key = sort_key(values.take(pa.array(order)), ascending=by.ascending, nulls_first=nulls_first)
    return frame.in_units_of(values.type), key


def _used(node: OverGroups, columns: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the new ones are computed from; one at least."""
    values = [value_of(spec) for spec in node.columns.values()]
    used = frozenset().union(*(value.columns_used() for value in values if value is not None))
    return columns.select([name for name in columns.schema.names if name in used] or columns.schema.names[:1])
