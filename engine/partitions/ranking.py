"""What can be said of a record by its place in a group: numbers, ranks, neighbours, aggregates up to it.

A partition is put in order once, and only as places of its rows; records and new columns are then made piece by piece.
So memory holds the partition as it came, the columns that are computed with, and some 50 bytes a record, however large
a group is. Ranks go by the order: records that are equal in it have one rank, and which of them comes first is not
promised.

Source: SQL:2016 window functions; Spark's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ProgramError, TypeMismatchError

from ..columns.expressions import Expression, expression_of
from ..columns.grouping import Groups
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..functions.aggregates.contract import Aggregate
from ..plan.plan import OverGroups
from .context import TaskContext
from .wire import gathered, ordered

__all__ = ["Neighbour", "Place", "dense_rank", "lag", "lead", "output_type", "over_groups", "rank", "row_number"]

Places = npt.NDArray[np.int64]


class Place:
    """Where a record is in its group.

    Attributes:
        name: ``row_number``, ``rank`` or ``dense_rank``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}()"


class Neighbour:
    """A value of the record that is some places before or behind in the group.

    Attributes:
        value: What is taken of it.
        offset: How many places behind; negative for before.
        default: What stands for it if there is no such record.
    """

    def __init__(self, value: Expression, offset: int, default: Any) -> None:
        self.value = value
        self.offset = offset
        self.default = default

    def __repr__(self) -> str:
        return f"{'lag' if self.offset < 0 else 'lead'}({self.value!r}, {abs(self.offset)})"


def row_number() -> Place:
    """Return the number of a record in its group, from 1."""
    return Place("row_number")


def rank() -> Place:
    """One more than how many records are before it; of records that are equal in the order the same."""
    return Place("rank")


def dense_rank() -> Place:
    """One more than how many different places in the order are before it."""
    return Place("dense_rank")


def lag(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """Return the value of the record ``offset`` places before; ``default`` where there is none."""
    return _neighbour(value, -_checked(offset), default)


def lead(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """Return the value of the record ``offset`` places behind; ``default`` where there is none."""
    return _neighbour(value, _checked(offset), default)


def _checked(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        message = f"the offset of a neighbour must be a whole number, 0 or more; got {offset!r}"
        raise ProgramError(message)
    return offset


def _neighbour(value: Expression | str, offset: int, default: Any) -> Neighbour:
    from ..columns.expressions import col

    return Neighbour(col(value) if isinstance(value, str) else expression_of(value), offset, default)


# ----------------------------------------------------------------------------------------------------------- evaluating


class _Frame:
    """The rows of a partition in order, groups one after the other; asked for in pieces, from the first row on.

    Attributes:
        columns: What the new columns are computed from, in order.
        starts: For each row the first one of its group.
        ends: For each row the one behind the last of its group.
        peers: For each row the first of those that are equal to it in the order.
        peer_ends: For each row the one behind the last of them.
        is_new: Whether a row is the first of those that are equal to it.
    """

    def __init__(self, columns: pa.RecordBatch, is_first: npt.NDArray[np.bool_], is_new: npt.NDArray[np.bool_]) -> None:
        self.columns = columns
        self.starts, self.ends = _runs(is_first)
        self.peers, self.peer_ends = _runs(is_new)
        self.is_new = is_new

    def __len__(self) -> int:
        return len(self.starts)

    def pieces(self, spec: Any, rows: tuple[int | None, int | None] | None, kind: pa.DataType) -> Iterator[pa.Array]:
        """Yield a new column."""
        if isinstance(spec, Place):
            yield from (pa.array(self._places(spec.name, piece), kind) for piece in self._slices())
        elif isinstance(spec, Neighbour):
            yield from (self._neighbours(spec, piece).cast(kind) for piece in self._slices())
        else:
            yield from self._aggregated(spec, rows, kind)

    def _slices(self) -> Iterator[slice]:
        for start in range(0, len(self), MAX_BATCH_ROWS):
            yield slice(start, min(start + MAX_BATCH_ROWS, len(self)))

    def _places(self, name: str, piece: slice) -> Places:
        starts = self.starts[piece]
        if name == "row_number":
            return np.arange(piece.start, piece.stop, dtype=np.int64) - starts + 1
        if name == "rank":
            return self.peers[piece] - starts + 1
        return self._numbers[piece] - self._numbers[starts] + 1

    @cached_property
    def _numbers(self) -> Places:
        """The number of each row's place among all places of the partition that differ."""
        return np.cumsum(self.is_new)

    def _neighbours(self, spec: Neighbour, piece: slice) -> pa.Array:
        import pyarrow.compute as pc

        at = np.arange(piece.start, piece.stop) + spec.offset
        is_there = (at >= self.starts[piece]) & (at < self.ends[piece])
        first = min(max(piece.start + spec.offset, 0), len(self) - 1)
        end = max(min(piece.stop + spec.offset, len(self)), first + 1)
        values = spec.value.evaluate(self.columns.slice(first, end - first))
        taken = values.take(pa.array(np.where(is_there, at - first, 0), mask=~is_there))
        if spec.default is None:
            return taken
        return pc.if_else(pa.array(is_there), taken, pa.scalar(spec.default, values.type))

    def _bounds(self, rows: tuple[int | None, int | None] | None, piece: slice) -> tuple[Places, Places]:
        """Of each row the first one that its aggregate sees, and the one behind the last."""
        starts, ends = self.starts[piece], self.ends[piece]
        if rows is None:
            return starts, self.peer_ends[piece]
        low, high = rows
        here = np.arange(piece.start, piece.stop)
        return (
            starts if low is None else np.clip(here + low, starts, ends),
            ends if high is None else np.clip(here + high + 1, starts, ends),
        )

    def _aggregated(
        self, spec: Aggregate, rows: tuple[int | None, int | None] | None, kind: pa.DataType
    ) -> Iterator[pa.Array]:
        values = _Values(self.columns, spec.argument)
        accumulator: Any = None
        result: Any = None
        known = (-1, -1)
        for piece in self._slices():
            results: list[Any] = []
            lows, highs = self._bounds(rows, piece)
            for bounds in zip(lows.tolist(), highs.tolist(), strict=True):
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


def _runs(is_first: npt.NDArray[np.bool_]) -> tuple[Places, Places]:
    """For each row where its run begins and where it ends."""
    begins = np.flatnonzero(is_first)
    sizes = np.diff([*begins, len(is_first)])
    return np.repeat(begins, sizes), np.repeat(begins + sizes, sizes)


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
    frame = _Frame(_used(node, columns).take(pa.array(order)), is_first, is_new)
    made = [
        frame.pieces(spec, node.rows, node.schema.field(name).type) for name, spec in node.columns.items()
    ]  # fmt: skip
    for start, new in zip(range(0, batch.num_rows, MAX_BATCH_ROWS), zip(*made, strict=True), strict=True):
        old = columns.take(pa.array(order[start : start + MAX_BATCH_ROWS]))
        yield Batch.of_columns(pa.RecordBatch.from_arrays([*old.columns, *new], schema=node.schema))


def _used(node: OverGroups, columns: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the new ones are computed from; one at least."""
    values = [
        spec.value if isinstance(spec, Neighbour) else getattr(spec, "argument", None) for spec in node.columns.values()
    ]
    used = frozenset().union(*(value.columns_used() for value in values if value is not None))
    return columns.select([name for name in columns.schema.names if name in used] or columns.schema.names[:1])


def output_type(spec: Any, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column of `OverGroups`.

    Raises:
        ProgramError: If a column is not there.
        TypeMismatchError: If it does not exist for the types.
    """
    if isinstance(spec, Place):
        return pa.int64()
    if isinstance(spec, Aggregate):
        return spec.output_type(schema)
    kind = spec.value.output_type(schema)
    if spec.default is not None:
        try:
            pa.scalar(spec.default, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{spec!r} has a default that is no {kind}: {spec.default!r}"
            raise TypeMismatchError(message) from error
    return kind
