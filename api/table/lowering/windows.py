"""Windows: rows that are put into them, and groups in them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import ProgramError
from headrace.engine.functions.aggregates.built_in import first
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.plan.table_nodes import WindowAggregation, WindowKind, WindowRows, WindowSpec
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

from ...stream.data_stream import DataStream
from .builder import Lowerings, StreamBuilder, columns_of, named, names_of, refuse_changes, require_event_time

__all__ = ["LOWERINGS"]

_BELOW = "put the windows below GROUP BY, Top-N or outer joins"


def window_rows(streams: StreamBuilder, node: WindowRows) -> DataStream:
    if node.window.kind is WindowKind.SESSION:
        message = "rows of SESSION windows are known on a stream only where they are grouped by them"
        raise ProgramError(message, hint="GROUP BY window_start, window_end and the columns of PARTITION BY")
    from headrace.engine.optimizer.window_rows import PutIntoWindows, WindowsOfBatch

    refuse_changes(node, node.inputs[0], _BELOW)
    windows = WindowsOfBatch(node.window, node.names, columns_of(node))
    return streams.columnar(node, PutIntoWindows(windows, node.names[2]), streams.input_of(node))


def window_aggregation(streams: StreamBuilder, node: WindowAggregation) -> DataStream:
    refuse_changes(node, node.inputs[0], _BELOW)
    require_event_time(node.inputs[0], node, node.window.time_column)
    keys = names_of(node.key)
    aggregates = dict(node.aggregates) or {"$one": first(col(keys[0]))}
    stream, assigner = streams.input_of(node), _assigner(node.window)
    schema = columns_of(node.inputs[0])
    stored = _names_of_window(streams, node)
    if stored and keys:
        keys = streams.keys_of(node, 0, keys)
        added = {stored[name]: col(name) for name in keys}
        schema = pa.schema([*schema, *(pa.field(stored[name], schema.field(name).type) for name in keys)])
        stream = streams.columnar(node, SelectColumns(added, keep=True), stream, schema)
        keys = tuple(added)
    named = {stored.get(name, name): one for name, one in aggregates.items()}
    aggregates = {name: named[name] for name in sorted(named)}
    start = "window_start"
    if node.window.kind is WindowKind.CUMULATE:
        stream, schema, start = _in_steps(streams, node, stream)
        keys = (*keys, start)
    windows: Any = stream.key_by(*keys).window(assigner) if keys else stream.window_all(assigner)
    border = pa.timestamp("ms")
    fields = [*((name, schema.field(name).type) for name in keys), ("window_start", border), ("window_end", border)]
    fields += [(name, one.output_type(schema)) for name, one in aggregates.items()]
    made = windows.aggregate(**aggregates, output_type=pa.schema([pa.field(*one) for one in fields]))
    columns: dict[str, Expression] = {}
    borders = dict(zip(node.names, (start, "window_end", "window_time"), strict=True))
    for field in columns_of(node):
        columns[field.name] = col(stored.get(field.name, field.name))
        if field.name in borders:
            name = borders[field.name]
            value = col("window_end").to_epoch_ms() - 1 if name == "window_time" else col(name).to_epoch_ms()
            columns[field.name] = _time_of(value, field.type)
    return streams.columnar(node, SelectColumns(columns), made)


def _names_of_window(streams: StreamBuilder, node: WindowAggregation) -> dict[str, str]:
    """What keys and results are called in the state of windows."""
    planned = streams.planned(node)
    if planned is None or planned.keeps is None or streams.upgrade is None:
        return {}
    columns = streams.upgrade.identities[node].columns
    known = [*planned.keeps.keys[0], *node.aggregates]
    return {name: f"{i}~{columns[name][:8]}" for i, name in enumerate(sorted(known, key=lambda one: columns[one]))}


def _in_steps(streams: StreamBuilder, node: WindowAggregation, stream: DataStream) -> tuple[DataStream, pa.Schema, str]:
    """Rows once for each cumulating window, at its end: apart by its start, they tumble by its step.

    Returns:
        The rows, their columns, and the column that is the start of the window.
    """
    from headrace.engine.optimizer.window_rows import PutIntoWindows, WindowsOfBatch

    schema = stream.known_columns or columns_of(node.inputs[0])
    names = ("$start", "$end", "$time")
    time = pa.timestamp("ms")  # Whole seconds would put the time of a window into a step before its own.
    schema = pa.schema([*schema, *(pa.field(name, time) for name in (names[0], names[2]))])
    operator = PutIntoWindows(WindowsOfBatch(node.window, names, schema), names[2])
    made = stream.transform("cumulate", operator, None, node.name, known_columns=schema)
    return named(made, node), schema, names[0]


def _assigner(window: WindowSpec) -> WindowAssigner:
    if window.kind is WindowKind.TUMBLE:
        return TumblingEventTimeWindows.of(window.size_ms, window.offset_ms)
    if window.kind is WindowKind.CUMULATE:
        return TumblingEventTimeWindows.of(window.step_ms, window.offset_ms % window.step_ms)
    if window.kind is WindowKind.HOP:
        return SlidingEventTimeWindows.of(window.size_ms, window.step_ms, window.offset_ms)
    return EventTimeSessionWindows.with_gap(window.size_ms)


def _time_of(milliseconds: Expression, kind: pa.DataType) -> Expression:
    """Milliseconds since 1970 as a time of a type; whole seconds are rounded towards the past."""
    return (milliseconds // 1_000 if kind.unit == "s" else milliseconds.to_timestamp()).cast(kind)


LOWERINGS: Lowerings = {
    WindowRows: window_rows,
    WindowAggregation: window_aggregation,
}
"""How each kind of node becomes a stream."""
