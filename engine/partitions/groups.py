"""What nodes with groups do to a partition that has all records of its keys: reduce, aggregate, first, distinct.

Groups are found by canonical keys in a dict, or, for built-in aggregates over columns, by the codes of
`headrace.engine.columns.grouping`. The same functions run before the ship (on parts of the groups) and after it, except
for aggregates, whose partial results are rows of their own: key columns and part columns if the records have columns,
else pairs of key and accumulators.

Source: Flink's ``ReduceCombineDriver``, ``GroupReduceDriver``, ``ReduceDriver``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..columns.grouping import Groups
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..errors import TypeMismatchError
from ..functions.aggregates.by_row import RowAggregates
from ..functions.aggregates.contract import ColumnarAggregates
from ..functions.keys import KeySelector
from ..functions.row_calls import RowCalls
from ..functions.user_function import raise_in_function
from ..plan.plan import (
    Aggregation,
    CombineGroup,
    Distinct,
    ExtremeBy,
    First,
    GroupKey,
    Node,
    Order,
    Reduce,
    ReduceGroup,
)
from .context import TaskContext
from .function_life import opened
from .wire_records import beyond_microseconds, canonical, canonical_keys, comparable, gathered, ordered

__all__ = [
    "aggregate",
    "aggregate_combined",
    "aggregate_partially",
    "combine_groups",
    "combined_key",
    "combined_schema",
    "distinct",
    "extreme_by",
    "first",
    "keys_in",
    "reduce",
    "reduce_groups",
]

Batches = Iterator[Batch]

_ALL: Any = ()
"""The key of the only group where there is no key."""


def keys_in(key: GroupKey | None, batch: Batch, context: TaskContext) -> list[Any]:
    """Return the canonical keys of a batch, with a failing key function told from others."""
    try:
        return canonical_keys(key, batch)
    except BaseException as error:
        raise_in_function(error, repr(key), context)


def _group_keys(key: GroupKey | None, batch: Batch, context: TaskContext) -> list[Any]:
    return [_ALL] * batch.num_rows if key is None else keys_in(key, batch, context)


def _in_order(batches: Batches, orders: Sequence[Order], schema: pa.Schema | None) -> Batches:
    """The batches, or one sorted batch if an order is asked for."""
    if not orders:
        yield from batches
        return
    batch = gathered(batches, schema)
    if batch.num_rows:
        yield batch.take(ordered(batch, orders))


def _groups(
    node: Reduce | ReduceGroup | CombineGroup, context: TaskContext, batches: Batches, orders: Sequence[Order]
) -> Iterator[tuple[Any, list[Any]]]:
    if node.is_sorted:
        yield from _adjacent_groups(node.key, context, batches)
        return
    groups: dict[Any, list[Any]] = {}
    for batch in _in_order(batches, orders, node.inputs[0].schema):
        for key, row in zip(_group_keys(node.key, batch, context), batch.rows, strict=True):
            group = groups.get(key)
            if group is None:
                groups[key] = [row]
            else:
                group.append(row)
    while groups:
        # Handed out one by one, so that a group that was dealt with can go.
        key = next(iter(groups))
        yield key, groups.pop(key)


def _adjacent_groups(key: GroupKey | None, context: TaskContext, batches: Batches) -> Iterator[tuple[Any, list[Any]]]:
    current: Any = None
    rows: list[Any] = []
    for batch in batches:
        for found, row in zip(_group_keys(key, batch, context), batch.rows, strict=True):
            if rows and found != current and found is not current:
                yield current, rows
                rows = []
            current = found
            rows.append(row)
    if rows:
        yield current, rows


# ------------------------------------------------------------------------------------------------------------ functions


def reduce(node: Reduce, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return one record per group, in the order in which groups came."""
    reduced: dict[Any, Any] = {}
    with opened(node.function, context, "reduce") as function:
        for batch in inputs[0]:
            function.reduce(reduced, _group_keys(node.key, batch, context), batch.rows)
    yield from _in_batches(reduced.values())


def _in_batches(rows: Any) -> Batches:
    every = list(rows)
    for offset in range(0, len(every), MAX_BATCH_ROWS):
        yield Batch.of_rows(every[offset : offset + MAX_BATCH_ROWS])


def reduce_groups(node: ReduceGroup | CombineGroup, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return what the function gives for each group."""
    with opened(node.function, context, "reduce", "reduce_group", "combine") as function:
        yield from _each_group(node, function, context, inputs[0])


def combine_groups(node: ReduceGroup, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return what the function's combiner gives for each group of a partition, of the input's type."""
    with opened(node.function, context, "combine") as function:
        yield from _each_group(node, function, context, inputs[0])


def _each_group(
    node: ReduceGroup | CombineGroup, function: RowCalls, context: TaskContext, batches: Batches
) -> Batches:
    pending: list[Any] = []
    for key, rows in _groups(node, context, batches, node.orders):
        about = {} if key is _ALL else {"key": key}
        try:
            given = function.call(iter(rows))
        except BaseException as error:
            function.fail(error, **about)
        for batch in function.produced(given, **about):
            pending += batch.rows
            if len(pending) >= MAX_BATCH_ROWS:
                yield Batch.of_rows(pending)
                pending = []
    yield Batch.of_rows(pending)


def first(node: First, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the first records of each group."""
    counts: dict[Any, int] = {}
    limit = node.count
    schema = node.inputs[0].schema
    batches = _in_order(inputs[0], () if node.is_sorted else node.orders, schema)
    names = None if node.key is None else plain_columns(node)
    if names is not None:
        yield from _first_of_columns(names, batches, limit)
        return
    for batch in batches:
        if node.key is None:
            left = limit - counts.get(_ALL, 0)
            yield batch.slice(0, min(left, batch.num_rows))
            counts[_ALL] = limit - left + min(left, batch.num_rows)
            if counts[_ALL] >= limit:
                return
            continue
        mask = np.zeros(batch.num_rows, dtype=np.bool_)
        for i, key in enumerate(keys_in(node.key, batch, context)):
            count = counts.get(key, 0)
            if count < limit:
                mask[i] = True
                counts[key] = count + 1
        yield batch.filter(mask)


def distinct(node: Distinct, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the first record of each key."""
    names = plain_columns(node)
    if names is not None:
        yield from _first_of_columns(names, inputs[0], 1)
        return
    seen: set[Any] = set()
    for batch in inputs[0]:
        mask = np.zeros(batch.num_rows, dtype=np.bool_)
        for i, key in enumerate(keys_in(node.key, batch, context)):
            if key not in seen:
                seen.add(key)
                mask[i] = True
        yield batch.filter(mask)


def plain_columns(node: Distinct | First) -> list[str] | None:
    """Return the columns that make a key, if it is made of columns of plain types."""
    schema = node.inputs[0].schema
    if schema is None or (node.key is not None and node.key.names is None):
        return None
    names = list(schema.names if node.key is None else node.key.names or ())
    if (
        not names
        or len(set(schema.names)) < len(schema)
        or not all(map(_is_plain, (schema.field(n).type for n in names)))
    ):
        return None
    return names


def _is_plain(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


_MANY_ROWS = 1 << 17
"""So many records are looked at together, and as many as are known to be different, if those are more."""


def _first_of_columns(names: list[str], batches: Batches, count: int) -> Batches:
    known: pa.RecordBatch | None = None
    pending: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in batches:
        pending.append(batch.columns)
        num_rows += batch.num_rows
        if num_rows >= max(_MANY_ROWS, 0 if known is None else known.num_rows):
            known = _first_of_each(names, pending if known is None else [known, *pending], count)
            pending, num_rows = [], 0
    if pending:
        known = _first_of_each(names, pending if known is None else [known, *pending], count)
    for offset in range(0, 0 if known is None else known.num_rows, MAX_BATCH_ROWS):
        assert known is not None
        yield Batch.of_columns(known.slice(offset, MAX_BATCH_ROWS))


def _first_of_each(names: list[str], batches: list[pa.RecordBatch], count: int) -> pa.RecordBatch:
    """The first records of each key, in the order in which they came."""
    columns = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    groups = Groups.of([columns.column(name) for name in names])
    if len(groups) == columns.num_rows:
        return columns
    if count == 1:
        return columns.take(pa.array(np.sort(groups.first_rows)))
    by_key = np.argsort(groups.codes, kind="stable")
    codes = groups.codes[by_key]
    begins = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    places = np.arange(len(codes)) - np.repeat(begins, np.diff([*begins, len(codes)]))
    return columns.take(pa.array(np.sort(by_key[places < count])))


def extreme_by(node: ExtremeBy, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return the record of each group with the least or greatest fields."""
    value_of = KeySelector.of_field(*node.fields)
    is_single, is_min = len(node.fields) == 1, node.is_min
    best: dict[Any, tuple[Any, Any]] = {}
    for batch in inputs[0]:
        values = value_of.keys(batch)
        _check_comparable(node, value_of.key_columns(batch) or ())
        for key, value, row in zip(_group_keys(node.key, batch, context), values, batch.rows, strict=True):
            rank = tuple(_rank(part, is_min) for part in ((value,) if is_single else value))
            known = best.get(key)
            try:
                if known is None or (rank < known[0] if is_min else known[0] < rank):
                    best[key] = (rank, row)
            except TypeError as error:
                message = f"values of {', '.join(map(repr, node.fields))} cannot be compared: {error}"
                raise TypeMismatchError(message) from error
    yield from _in_batches(row for _rank, row in best.values())


def _check_comparable(node: ExtremeBy, columns: Sequence[pa.Array]) -> None:
    """Records are handed on as Python objects, so what these cut cannot be told apart by the next step."""
    for name, column in zip(node.fields, columns, strict=False):
        for _row, (_unit, nanoseconds) in beyond_microseconds(column):
            message = f"field {name!r} has nanoseconds, and records are compared by microseconds: {nanoseconds} ns"
            hint = 'cut them in the program: with_columns(name=col(name).cast(pa.timestamp("us")))'
            raise TypeMismatchError(message, hint=hint, field=str(name))


def _rank(value: Any, is_min: bool) -> tuple[Any, ...]:
    """Compares as the value does, but null and NaN lose."""
    is_missing = value is None or (isinstance(value, float) and value != value)
    if is_missing:
        return (1,) if is_min else (0,)
    return (0 if is_min else 1, comparable(value))


# ----------------------------------------------------------------------------------------------------------- aggregates


def _is_columnar(node: Aggregation) -> bool:
    """Whether records have columns and the key is made of them."""
    return node.inputs[0].schema is not None and (node.key is None or node.key.names is not None)


def combined_key(node: Aggregation) -> GroupKey | None:
    """Return the key of partial results."""
    if node.key is None or _is_columnar(node):
        return node.key
    return GroupKey(KeySelector.of_field(0), ("f0",), (0,))


def combined_schema(node: Node) -> pa.Schema | None:
    """Return the schema of what is shipped to a node whose groups are combined."""
    if not isinstance(node, Aggregation):
        return node.inputs[0].schema
    schema = node.inputs[0].schema
    if not _is_columnar(node) or schema is None:
        return None
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    return _partial(node, _specifications(node), empty, 0).schema


def _specifications(node: Aggregation) -> ColumnarAggregates:
    """With parts that cannot overflow on the way: the result alone has to fit its type."""
    return ColumnarAggregates({name: spec.with_wide_parts() for name, spec in node.aggregates.items()})


def _key_groups(node: Aggregation, columns: pa.RecordBatch) -> Groups:
    names = () if node.key is None else node.key.names or ()
    if not names:
        return Groups(np.zeros(columns.num_rows, dtype=np.int64), 1)
    return Groups.of([columns.column(name) for name in names])


def _partial(node: Aggregation, specs: ColumnarAggregates, columns: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """Key columns and parts, a row per group of the batch."""
    groups = _key_groups(node, columns)
    names = () if node.key is None else node.key.names or ()
    arrays = [groups.take_keys(columns.column(name)) for name in names]
    arrays += specs.from_records(groups, columns, offset)
    return pa.RecordBatch.from_arrays(arrays, names=[*names, *specs.part_names])


def _merged(node: Aggregation, specs: ColumnarAggregates, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    columns = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    groups = _key_groups(node, columns)
    names = () if node.key is None else node.key.names or ()
    arrays = [groups.take_keys(columns.column(name)) for name in names]
    arrays += specs.merge(groups, columns)
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


_MANY_PARTS = 1 << 18
"""Partial results are merged when this many rows of them have gathered."""


def _gathered_parts(
    node: Aggregation, specs: ColumnarAggregates, batches: Batches, *, from_records: bool
) -> pa.RecordBatch | None:
    parts: list[pa.RecordBatch] = []
    num_rows = offset = 0
    limit = _MANY_PARTS
    for batch in batches:
        columns = batch.columns
        parts.append(_partial(node, specs, columns, offset) if from_records else columns)
        offset += batch.num_rows
        num_rows += parts[-1].num_rows
        if num_rows > limit:
            parts = [_merged(node, specs, parts)]
            num_rows = parts[0].num_rows
            limit = max(_MANY_PARTS, 2 * num_rows)
    return _merged(node, specs, parts) if parts else None


def _results(node: Aggregation, specs: ColumnarAggregates, merged: pa.RecordBatch) -> Batch:
    assert node.schema is not None
    names = () if node.key is None else node.key.names or ()
    finals = dict(zip(node.aggregates, specs.finalise([merged.column(name) for name in specs.part_names]), strict=True))
    arrays = [merged.column(names[which]) if kind == "key" else finals[which] for kind, which in node.outputs]
    arrays = [array.cast(field.type) for array, field in zip(arrays, node.schema, strict=True)]
    return Batch.of_columns(pa.RecordBatch.from_arrays(arrays, schema=node.schema))


def aggregate_partially(node: Aggregation, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return partial results of the groups of a partition."""
    if _is_columnar(node):
        merged = _gathered_parts(node, _specifications(node), inputs[0], from_records=True)
        if merged is not None:
            yield Batch.of_columns(merged)
        return
    yield from _in_batches(_accumulated(node, context, inputs[0]).items())


def aggregate(node: Aggregation, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return results of whole groups."""
    if _is_columnar(node):
        specs = _specifications(node)
        merged = _gathered_parts(node, specs, inputs[0], from_records=True)
        yield from _final_columns(node, specs, merged)
        return
    yield from _final_rows(node, _accumulated(node, context, inputs[0]))


def aggregate_combined(node: Aggregation, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    """Return results of partial results of whole groups."""
    if _is_columnar(node):
        specs = _specifications(node)
        merged = _gathered_parts(node, specs, inputs[0], from_records=False)
        yield from _final_columns(node, specs, merged)
        return
    functions = RowAggregates(node.aggregates)
    totals: dict[Any, Any] = {}
    for batch in inputs[0]:
        for pair in batch.rows:
            key, accumulator = canonical(pair[0]), pair[1]
            totals[key] = functions.merge(totals[key], accumulator) if key in totals else accumulator
    yield from _final_rows(node, totals)


def _final_columns(node: Aggregation, specs: ColumnarAggregates, merged: pa.RecordBatch | None) -> Batches:
    if merged is None:
        if node.key is not None:
            return
        # No record at all: the one result of no records, which the row form knows.
        yield from _final_rows(node, {})
        return
    yield _results(node, specs, merged)


def _accumulated(node: Aggregation, context: TaskContext, batches: Batches) -> dict[Any, Any]:
    functions = RowAggregates(node.aggregates)
    totals: dict[Any, Any] = {}
    for batch in batches:
        for key, row in zip(_group_keys(node.key, batch, context), batch.rows, strict=True):
            known = totals.get(key)
            totals[key] = functions.add(row, functions.create_accumulator() if known is None else known)
    return totals


def _final_rows(node: Aggregation, totals: dict[Any, Any]) -> Batches:
    functions = RowAggregates(node.aggregates)
    if node.key is None and not totals:
        totals = {_ALL: functions.create_accumulator()}
    num_parts = 1 if node.key is None or node.key.names is None else len(node.key.names)
    rows: list[Any] = []
    for key, accumulator in totals.items():
        parts = key if num_parts > 1 else (key,)
        results = functions.get_result(accumulator)
        values = [parts[which] if kind == "key" else results[which] for kind, which in node.outputs]
        rows.append(tuple(values) if node.kind == "tuple" else dict(zip(node.field_names, values, strict=True)))
    yield from _in_batches(rows)
