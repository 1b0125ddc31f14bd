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

from ..columns.grouping import Groups
from ..columns.records import Batch
from ..frames.frame_calls import Frame
from ..plan.plan import OverGroups
from .context import TaskContext
from .wire_records import gathered, ordered

__all__ = ["over_groups"]

Places = npt.NDArray[np.int64]


def _is_change(codes: Places, order: Places) -> npt.NDArray[np.bool_]:
    """Whether a row, in order, has another code than the one before."""
    in_order = codes[order]
    return np.concatenate([[True], in_order[1:] != in_order[:-1]])


def over_groups(node: OverGroups, context: TaskContext, inputs: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    """Yield the records of a partition with the new columns; made in pieces, of which one is held at a time."""
    from ..frames.over_columns import OverColumns, used_names

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
    used = columns.select(used_names(node.columns, columns.schema)).take(pa.array(order))
    frames = OverColumns(used, is_first, is_new, *_by_distance(node, columns, order))
    made = [frames.pieces(spec, node.schema.field(name).type) for name, spec in node.columns.items()]
    for piece, new in zip(frames.slices(), zip(*made, strict=True), strict=True):
        old = columns.take(pa.array(order[piece]))
        yield Batch.of_columns(pa.RecordBatch.from_arrays([*old.columns, *new], schema=node.schema))


def _by_distance(node: OverGroups, columns: pa.RecordBatch, order: Places) -> tuple[Frame | None, Any]:
    """The frame of aggregates; and, if it goes by distance, what rows are ordered by."""
    if node.frame is None or not node.frame.is_range or not node.orders:
        return node.frame, None
    from ..frames.over_columns import by_distance

    # An order before it says that nulls are at its other end.
    by = node.orders[-1]
    nulls_first = None if len(node.orders) == 1 else not by.ascending
    values = columns.column(str(by.column)).take(pa.array(order))
    return by_distance(node.frame, values, ascending=by.ascending, nulls_first=nulls_first)
