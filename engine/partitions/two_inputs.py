"""What nodes with two inputs do to a pair of partitions: join, co-group, cross.

A join gives every record a code, equal for equal keys, and finds the pairs of rows by sorting the codes of the second
input; over columns nothing is done row by row. Pairs are made in pieces, so a key that occurs often on both sides does
not have to fit into memory with all its pairs.

`probe` and `co_group_probe` are the same for an input that is the solution set of a delta iteration: its index is asked
for the keys that the other input has, and nothing else of it is looked at.

A join function may be given one record in several pairs, so it must not change it.

Source: Flink's ``JoinDriver``, ``JoinWithSolutionSetFirstDriver``, ``CoGroupDriver``, ``CrossDriver``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..columns.conditions import where_true
from ..columns.grouping import Groups
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..errors import TypeMismatchError
from ..functions.cofunctions import FlatJoinFunction
from ..functions.given import CONTAINERS, records_of
from ..plan.plan import CoGroup, ConditionJoin, Cross, GroupKey, Join, KeyMatch, Pairs, SemiJoin
from .context import TaskContext
from .function_life import opened
from .groups import keys_in
from .wire_records import gathered, is_null_key, ordered

__all__ = [
    "Lookup",
    "co_group",
    "co_group_probe",
    "condition_join",
    "cross",
    "join",
    "paired",
    "probe",
    "semi_join",
]

Batches = Iterator[Batch]
Indices = npt.NDArray[np.int64]

Lookup = Callable[[Sequence[Any]], list[Any]]
"""Takes canonical keys, gives the record of each; None where there is none."""


# ---------------------------------------------------------------------------------------------------------------- codes


def _plain_columns(key: GroupKey, batch: Batch) -> list[pa.Array] | None:
    columns = key.selector.key_columns(batch)
    if columns is None or any(pa.types.is_nested(column.type) for column in columns):
        return None
    return columns


def _codes(node: KeyMatch, context: TaskContext, left: Batch, right: Batch) -> tuple[Indices, Indices]:
    """A code per record of each input, equal for equal keys; -1 for keys that match nothing."""
    left_columns, right_columns = _plain_columns(node.left_key, left), _plain_columns(node.right_key, right)
    if (
        left_columns is not None
        and right_columns is not None
        and all(a.type == b.type for a, b in zip(left_columns, right_columns, strict=True))
    ):
        columns = [pa.concat_arrays([a, b]) for a, b in zip(left_columns, right_columns, strict=True)]
        codes = Groups.of(columns).codes.copy()
        for column in columns:
            if column.null_count:
                codes[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return codes[: left.num_rows], codes[left.num_rows :]
    numbers: dict[Any, int] = {}
    counter = count()
    found = []
    for key, batch in ((node.left_key, left), (node.right_key, right)):
        codes = np.empty(batch.num_rows, dtype=np.int64)
        for i, value in enumerate(keys_in(key, batch, context)):
            if is_null_key(value):
                codes[i] = -1
            else:
                code = numbers.get(value)
                if code is None:
                    code = numbers[value] = next(counter)
                codes[i] = code
        found.append(codes)
    return found[0], found[1]


def _pairs(how: str, left: Indices, right: Indices) -> Iterator[tuple[Indices, Indices]]:
    """The rows of both inputs that go together, -1 for none, in pieces of about MAX_BATCH_ROWS."""
    by_code = np.argsort(right, kind="stable")
    in_order = right[by_code]
    low = np.searchsorted(in_order, left, "left")
    counts = np.searchsorted(in_order, left, "right") - low
    counts[left < 0] = 0
    if how in ("left", "full"):
        unmatched = counts == 0
        counts = np.where(unmatched, 1, counts)
    else:
        unmatched = np.zeros(len(left), dtype=np.bool_)
    ends = np.cumsum(counts)
    start = 0
    while start < len(left):
        base = int(ends[start - 1]) if start else 0
        # As many rows of the first input as give a full piece; one at least.
        stop = max(int(np.searchsorted(ends, base + MAX_BATCH_ROWS, "right")), start + 1)
        part = counts[start:stop]
        rows = np.repeat(np.arange(start, stop), part)
        within = np.arange(len(rows)) - np.repeat(ends[start:stop] - part - base, part)
        if len(by_code):
            others = by_code[np.minimum(np.repeat(low[start:stop], part) + within, len(by_code) - 1)]
        else:
            others = np.zeros(len(rows), dtype=np.int64)
        others = np.where(np.repeat(unmatched[start:stop], part), -1, others)
        for offset in range(0, len(rows), MAX_BATCH_ROWS):
            piece = slice(offset, offset + MAX_BATCH_ROWS)
            yield rows[piece], others[piece]
        start = stop
    if how in ("right", "full"):
        alone = np.flatnonzero((right < 0) | ~np.isin(right, left))
        if len(alone):
            yield np.full(len(alone), -1, dtype=np.int64), alone


# ---------------------------------------------------------------------------------------------------------------- joins


class _Pairing:
    """Makes records of pairs, as the node says."""

    def __init__(self, node: Pairs, context: TaskContext, call: Callable[[Any, Any], Any] | None) -> None:
        self._node = node
        self._context = context
        self._call = call
        self._gives_many = isinstance(node.function, FlatJoinFunction)
        self.last: tuple[Any, Any] | None = None

    def of_rows(self, lefts: Sequence[Any], rights: Sequence[Any]) -> Batch:
        """Return the records of pairs of Python objects."""
        call = self._call
        projection = self._node.projection
        if call is not None:
            rows: list[Any] = []
            for left, right in zip(lefts, rights, strict=True):
                self.last = (left, right)
                given = call(left, right)
                if self._gives_many:
                    rows.extend(given if type(given) in CONTAINERS else records_of(given))
                else:
                    rows.append(given)
            return Batch.of_rows(rows)
        if projection is None:
            return Batch.of_rows(list(zip(lefts, rights, strict=True)))
        columns = [[_field(row, field) for row in (rights if side else lefts)] for side, field, _name in projection]
        if self._node.is_tuple:
            return Batch.of_rows(list(zip(*columns, strict=True)))
        names = [name for _side, _field, name in projection]
        return Batch.of_rows([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])

    def of_indices(self, left: Batch, right: Batch, left_rows: Indices, right_rows: Indices) -> Batch:
        """Return the records of pairs given by their places; -1 for none."""
        projection, schema = self._node.projection, self._node.schema
        if self._call is None and projection is not None and schema is not None:
            takes = (
                (left.columns, pa.array(left_rows, mask=left_rows < 0)),
                (right.columns, pa.array(right_rows, mask=right_rows < 0)),
            )
            arrays = []
            for (side, field, _name), target in zip(projection, schema, strict=True):
                columns, indices = takes[side]
                name = field if isinstance(field, str) else f"f{field}"
                arrays.append(columns.column(name).take(indices).cast(target.type))
            return Batch.of_columns(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return self.of_rows(_rows_at(left.rows, left_rows), _rows_at(right.rows, right_rows))


def _rows_at(rows: list[Any], indices: Indices) -> list[Any]:
    return [rows[i] if i >= 0 else None for i in indices.tolist()]


def _field(record: Any, field: Any) -> Any:
    if record is None:
        return None
    try:
        return record[field]
    except (KeyError, IndexError, TypeError) as error:
        # Records of one plain value have the field "value".
        if field == "value" and not isinstance(record, (dict, tuple)):
            return record
        message = f"field {field!r} is not in the record: {error!r}"
        raise TypeMismatchError(message) from error


def join(node: Join, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the records of all pairs, and of records without a partner where the kind of join asks for them."""
    left = gathered(inputs[0], node.inputs[0].schema)
    right = gathered(inputs[1], node.inputs[1].schema)
    if not left.num_rows and not right.num_rows:
        return
    left_codes, right_codes = _codes(node, context, left, right)
    pairs = _pairs(node.how, left_codes, right_codes)
    if node.function is None:
        pairing = _Pairing(node, context, None)
        for left_rows, right_rows in pairs:
            yield pairing.of_indices(left, right, left_rows, right_rows)
        return
    with opened(node.function, context, "join") as function:
        pairing = _Pairing(node, context, function.call)
        for left_rows, right_rows in pairs:
            try:
                batch = pairing.of_indices(left, right, left_rows, right_rows)
            except BaseException as error:
                function.fail(error, record=pairing.last)
            yield batch


def semi_join(node: SemiJoin, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the records of the first input that have a partner in the second, or those that have none."""
    left = gathered(inputs[0], node.inputs[0].schema)
    right = gathered(inputs[1], node.inputs[1].schema)
    if not left.num_rows:
        return
    left_codes, right_codes = _codes(node, context, left, right)
    has_partner = np.isin(left_codes, right_codes) & (left_codes >= 0)
    yield left.filter(~has_partner if node.is_anti else has_partner)


def condition_join(node: ConditionJoin, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the records of pairs for which the condition is true, and those without a partner where they are asked
    for.
    """
    right = gathered(inputs[1], node.inputs[1].schema).columns
    for batch in inputs[0]:
        left = batch.columns
        has_partner = np.zeros(left.num_rows, dtype=np.bool_)
        for left_rows, right_rows in _fulfilled(node, left, right):
            has_partner[left_rows] = True
            if node.how in ("inner", "left"):
                yield _projected(node, (left, right), (left_rows, right_rows))
        if node.how == "left":
            alone = np.flatnonzero(~has_partner)
            yield _projected(node, (left, right), (alone, np.full(len(alone), -1)))
        elif node.how != "inner":
            yield batch.filter(has_partner if node.how == "semi" else ~has_partner)


def _fulfilled(node: ConditionJoin, left: pa.RecordBatch, right: pa.RecordBatch) -> Iterator[tuple[Indices, Indices]]:
    """The rows of both inputs for which the condition is true, looked at in pieces."""
    used = node.condition.columns_used()
    parts = [part for part in node.projection if part[2] in used]
    width = max(min(right.num_rows, MAX_BATCH_ROWS), 1)
    height = max(MAX_BATCH_ROWS // width, 1)
    for top in range(0, left.num_rows, height):
        rows = np.arange(top, min(top + height, left.num_rows))
        for start in range(0, right.num_rows, width):
            others = np.arange(start, min(start + width, right.num_rows))
            places = (np.repeat(rows, len(others)), np.tile(others, len(rows)))
            arrays = [(left, right)[side].column(field).take(pa.array(places[side])) for side, field, _name in parts]
            names = [name for _side, _field, name in parts]
            if not arrays:  # a constant
                arrays, names = [pa.nulls(len(places[0]))], [""]
            chosen = where_true(node.condition, pa.RecordBatch.from_arrays(arrays, names=names), "join")
            yield places[0][chosen], places[1][chosen]


def _projected(
    node: ConditionJoin, sides: tuple[pa.RecordBatch, pa.RecordBatch], rows: tuple[Indices, Indices]
) -> Batch:
    assert node.schema is not None
    takes = [pa.array(places, mask=places < 0) for places in rows]
    arrays = [sides[side].column(field).take(takes[side]) for side, field, _name in node.projection]
    return Batch.of_columns(pa.RecordBatch.from_arrays(arrays, schema=node.schema))


def cross(node: Cross, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the records of all pairs."""
    right = gathered(inputs[1], node.inputs[1].schema)
    if not right.num_rows:
        return
    step = max(MAX_BATCH_ROWS // right.num_rows, 1)

    def batches(pairing: _Pairing) -> Batches:
        every = np.arange(right.num_rows)
        for batch in inputs[0]:
            for offset in range(0, batch.num_rows, step):
                rows = np.arange(offset, min(offset + step, batch.num_rows))
                yield pairing.of_indices(batch, right, np.repeat(rows, len(every)), np.tile(every, len(rows)))

    if node.function is None:
        yield from batches(_Pairing(node, context, None))
        return
    with opened(node.function, context, "cross") as function:
        pairing = _Pairing(node, context, function.call)
        made = batches(pairing)
        while True:
            try:
                batch = next(made, None)
            except BaseException as error:
                function.fail(error, record=pairing.last)
            if batch is None:
                return
            yield batch


def paired(node: Pairs, context: TaskContext, pairs: Iterator[tuple[list[Any], list[Any]]]) -> Batches:
    """Return the records of pairs that an executor has found itself.

    Args:
        node: The node.
        context: Of the subtask.
        pairs: The records of both inputs that go together, in pieces; None for a side that is missing.
    """
    if node.function is None:
        pairing = _Pairing(node, context, None)
        for lefts, rights in pairs:
            yield pairing.of_rows(lefts, rights)
        return
    with opened(node.function, context, "join", "cross") as function:
        pairing = _Pairing(node, context, function.call)
        for lefts, rights in pairs:
            try:
                batch = pairing.of_rows(lefts, rights)
            except BaseException as error:
                function.fail(error, record=pairing.last)
            yield batch


def probe(node: Join, context: TaskContext, batches: Batches, solution_side: int, lookup: Lookup) -> Batches:
    """Return a join with a solution set, which has at most one record per key.

    Args:
        node: Inner, or outer on the side that is not the solution set.
        context: Of the subtask.
        batches: The other input's records.
        solution_side: Which input the solution set is, 0 or 1.
        lookup: Asks its index.
    """
    key = node.right_key if solution_side == 0 else node.left_key
    keeps_unmatched = node.how != "inner"

    def made(pairing: _Pairing) -> Batches:
        for batch in batches:
            keys = keys_in(key, batch, context)
            found = lookup(keys)
            rows, others = [], []
            for value, row, other in zip(keys, batch.rows, found, strict=True):
                matched = None if is_null_key(value) else other
                if matched is not None or keeps_unmatched:
                    rows.append(row)
                    others.append(matched)
            yield pairing.of_rows(others, rows) if solution_side == 0 else pairing.of_rows(rows, others)

    if node.function is None:
        yield from made(_Pairing(node, context, None))
        return
    with opened(node.function, context, "join") as function:
        pairing = _Pairing(node, context, function.call)
        records = made(pairing)
        while True:
            try:
                batch = next(records, None)
            except BaseException as error:
                function.fail(error, record=pairing.last)
            if batch is None:
                return
            yield batch


# ------------------------------------------------------------------------------------------------------------ co-groups


def co_group(node: CoGroup, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return what the function gives for both groups of each key."""
    sides: list[dict[Any, list[Any]]] = []
    for index, (key, orders) in enumerate(((node.left_key, node.left_orders), (node.right_key, node.right_orders))):
        batch = gathered(inputs[index], node.inputs[index].schema)
        if orders and batch.num_rows:
            batch = batch.take(ordered(batch, orders))
        groups: dict[Any, list[Any]] = {}
        for value, row in zip(keys_in(key, batch, context), batch.rows, strict=True):
            groups.setdefault(value, []).append(row)
        sides.append(groups)
    first, second = sides
    with opened(node.function, context, "co_group") as function:
        for key in [*first, *(key for key in second if key not in first)]:
            try:
                given = function.call(first.get(key, []), second.get(key, []))
            except BaseException as error:
                function.fail(error, key=key)
            yield from function.produced(given, key=key)


def co_group_probe(
    node: CoGroup, context: TaskContext, batches: Batches, solution_side: int, lookup: Lookup
) -> Batches:
    """Return a co-group with a solution set: for the keys of the other input only.

    Args:
        node: The node.
        context: Of the subtask.
        batches: The other input's records.
        solution_side: Which input the solution set is, 0 or 1.
        lookup: Asks its index.
    """
    key = node.right_key if solution_side == 0 else node.left_key
    orders = node.right_orders if solution_side == 0 else node.left_orders
    batch = gathered(batches, node.inputs[1 - solution_side].schema)
    if orders and batch.num_rows:
        batch = batch.take(ordered(batch, orders))
    groups: dict[Any, list[Any]] = {}
    for value, row in zip(keys_in(key, batch, context), batch.rows, strict=True):
        groups.setdefault(value, []).append(row)
    found = lookup(list(groups))
    with opened(node.function, context, "co_group") as function:
        for (value, rows), other in zip(groups.items(), found, strict=True):
            others = [] if other is None else [other]
            try:
                given = function.call(others, rows) if solution_side == 0 else function.call(rows, others)
            except BaseException as error:
                function.fail(error, key=value)
            yield from function.produced(given, key=value)
