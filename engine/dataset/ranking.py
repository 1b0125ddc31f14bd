"""What can be said of a record by its place in a group: numbers, ranks, neighbours, aggregates up to it.

A group is sorted by its key and order once; then every column is computed over the whole partition. Ranks go by the
order: records that are equal in it have one rank, and which of them comes first is not promised.

Source: SQL:2016 window functions; Spark's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.aggregates import Aggregate
from headrace.engine.dataset.context import TaskContext
from headrace.engine.dataset.plan import OverGroups
from headrace.engine.dataset.wire import MAX_BATCH_ROWS, gathered, ordered
from headrace.engine.expressions import Expression, expression_of
from headrace.engine.grouping import Groups
from headrace.engine.records import Batch
from headrace.state.errors import ProgramError, TypeMismatchError

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
    """The number of a record in its group, from 1."""
    return Place("row_number")


def rank() -> Place:
    """One more than how many records are before it; of records that are equal in the order the same."""
    return Place("rank")


def dense_rank() -> Place:
    """One more than how many different places in the order are before it."""
    return Place("dense_rank")


def lag(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """The value of the record ``offset`` places before; ``default`` where there is none."""
    return _neighbour(value, -_checked(offset), default)


def lead(value: Expression | str, offset: int = 1, default: Any = None) -> Neighbour:
    """The value of the record ``offset`` places behind; ``default`` where there is none."""
    return _neighbour(value, _checked(offset), default)


def _checked(offset: int) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        message = f"the offset of a neighbour must be a whole number, 0 or more; got {offset!r}"
        raise ProgramError(message)
    return offset


def _neighbour(value: Expression | str, offset: int, default: Any) -> Neighbour:
    from headrace.engine.expressions import col

    return Neighbour(col(value) if isinstance(value, str) else expression_of(value), offset, default)


# ----------------------------------------------------------------------------------------------------------- evaluating


class _Frame:
    """A sorted partition.

    Attributes:
        columns: The records, groups one after the other, each in order.
        starts: For each record the first row of its group.
        ends: For each record the row behind the last one of its group.
        peers: For each record the first row of those that are equal to it in the order.
        peer_ends: For each record the row behind the last of them.
    """

    def __init__(self, columns: pa.RecordBatch, is_first: npt.NDArray[np.bool_], is_new: npt.NDArray[np.bool_]) -> None:
        self.columns = columns
        self.starts, self.ends = _runs(is_first)
        self.peers, self.peer_ends = _runs(is_new)
        self.is_new = is_new

    def places(self, name: str) -> Places:
        if name == "row_number":
            return np.arange(len(self.starts), dtype=np.int64) - self.starts + 1
        if name == "rank":
            return self.peers - self.starts + 1
        number: Places = np.cumsum(self.is_new)
        return number - number[self.starts] + 1

    def neighbour(self, spec: Neighbour) -> pa.Array:
        import pyarrow.compute as pc

        values = spec.value.evaluate(self.columns)
        at = np.arange(len(self.starts)) + spec.offset
        is_there = (at >= self.starts) & (at < self.ends)
        taken = values.take(pa.array(np.where(is_there, at, 0), mask=~is_there))
        if spec.default is None:
            return taken
        return pc.if_else(pa.array(is_there), taken, pa.scalar(spec.default, values.type))

    def aggregated(self, spec: Aggregate, rows: tuple[int | None, int | None] | None, kind: pa.DataType) -> pa.Array:
        number = len(self.starts)
        if spec.argument is None:
            values: list[Any] = [None] * number
        else:
            values = spec.argument.evaluate(self.columns).to_pylist()
        here = np.arange(number)
        if rows is None:
            lows, highs = self.starts, self.peer_ends
        else:
            low, high = rows
            lows = self.starts if low is None else np.clip(here + low, self.starts, self.ends)
            highs = self.ends if high is None else np.clip(here + high + 1, self.starts, self.ends)
        results: list[Any] = []
        accumulator: Any = None
        result: Any = None
        known = (-1, -1)
        for bounds in zip(lows.tolist(), highs.tolist(), strict=True):
            if bounds != known:
                first = known[1] if bounds[0] == known[0] and bounds[1] >= known[1] else bounds[0]
                if first == bounds[0]:
                    accumulator = spec.create()
                for value in values[first : bounds[1]]:
                    accumulator = spec.add(accumulator, value)
                result = spec.result(accumulator)
                known = bounds
            results.append(result)
        return pa.array(results, kind)


def _runs(is_first: npt.NDArray[np.bool_]) -> tuple[Places, Places]:
    """For each row where its run begins and where it ends."""
    begins = np.flatnonzero(is_first)
    sizes = np.diff([*begins, len(is_first)])
    return np.repeat(begins, sizes), np.repeat(begins + sizes, sizes)


def _changes(columns: Sequence[pa.Array], num_rows: int) -> npt.NDArray[np.bool_]:
    """Whether a row differs from the one before in some column."""
    if not columns:
        return np.arange(num_rows) == 0
    codes = Groups.of(columns).codes
    return np.concatenate([[True], codes[1:] != codes[:-1]])


def over_groups(node: OverGroups, context: TaskContext, inputs: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    """The records of a partition with the new columns."""
    assert node.schema is not None
    batch = gathered(inputs[0], node.inputs[0].schema)
    if not batch.num_rows:
        return
    columns = batch.columns
    if node.orders:
        columns = columns.take(pa.array(ordered(Batch.of_columns(columns), node.orders)))
    names = () if node.key is None else node.key.names or ()
    if names:
        codes = Groups.of([columns.column(name) for name in names]).codes
        columns = columns.take(pa.array(np.argsort(codes, kind="stable")))
    is_first = _changes([columns.column(name) for name in names], columns.num_rows)
    peers = [columns.column(str(order.column)) for order in node.orders]
    frame = _Frame(columns, is_first, is_first | _changes(peers, columns.num_rows) if peers else is_first)
    made = []
    for name, spec in node.columns.items():
        kind = node.schema.field(name).type
        if isinstance(spec, Place):
            made.append(pa.array(frame.places(spec.name), kind))
        elif isinstance(spec, Neighbour):
            made.append(frame.neighbour(spec).cast(kind))
        else:
            made.append(frame.aggregated(spec, node.rows, kind))
    whole = pa.RecordBatch.from_arrays([*columns.columns, *made], schema=node.schema)
    for offset in range(0, whole.num_rows, MAX_BATCH_ROWS):
        yield Batch.of_columns(whole.slice(offset, MAX_BATCH_ROWS))


def output_type(spec: Any, schema: pa.Schema) -> pa.DataType:
    """The type of a column of `OverGroups`.

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
