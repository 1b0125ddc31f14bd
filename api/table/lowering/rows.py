"""Nodes of single rows: tables that are read, conditions, projections, unions, event time, order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.columns.integer_comparisons import of_integers
from headrace.engine.errors import ProgramError
from headrace.engine.functions.timestamps import ComputedTimestamps
from headrace.engine.operators.arrival import StampRows
from headrace.engine.operators.column_operators import FilterColumns as FilterOperator
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.expanding import ExpandRows
from headrace.engine.optimizer.stream_traits import is_temporal_sort, takes_back
from headrace.engine.plan.plan import FilterColumns, Select, Sort, TableSource, Union
from headrace.engine.plan.table_nodes import EventTime, Expand, ProcessingTime, Scan
from headrace.engine.timed.sort import TemporalSort

from ...stream.data_stream import DataStream
from ..connectors.changelog import behind
from .builder import Lowerings, StreamBuilder, columns_of, orders_of

__all__ = ["LOWERINGS"]


def scan(streams: StreamBuilder, node: Scan) -> DataStream:
    schema = columns_of(node)
    columns = {name: col(name).cast(schema.field(name).type) for name in schema.names}
    stream = node.table.stream(streams.env, schema, _times_of(streams, node, columns))
    if takes_back(node):
        return behind(stream, SelectColumns(columns), node.name, schema)
    return streams.columnar(node, SelectColumns(columns), stream)


def _times_of(streams: StreamBuilder, node: Scan, columns: dict[str, Expression]) -> WatermarkStrategy | None:
    """How a source finds the times of its rows, which come as the connector has them."""
    if node.time is None:
        return None
    steps = node.time.steps or ({node.time.column: col(node.time.column)},)
    read = frozenset[str]().union(*(value.columns_used() for value in steps[0].values()))
    steps = ({name: columns[name] for name in sorted(read)}, *steps)
    return _watermarks(streams, node.time.delay_ms, ComputedTimestamps(steps, node.time.column))


def _watermarks(streams: StreamBuilder, delay_ms: int, times: Any) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay_ms).with_timestamp_assigner(times)
    return strategy.with_idleness(streams.idle_timeout_ms) if streams.idle_timeout_ms else strategy


def values(streams: StreamBuilder, node: TableSource) -> DataStream:
    return streams.env.from_collection(node.table)


def event_time(streams: StreamBuilder, node: EventTime) -> DataStream:
    if node.is_of_source:
        return streams.input_of(node)
    return streams.input_of(node).assign_timestamps_and_watermarks(_watermarks(streams, node.delay_ms, node.column))


def processing_time(streams: StreamBuilder, node: ProcessingTime) -> DataStream:
    if takes_back(node.inputs[0]):
        message = "PROCTIME() is of rows that only come; those below it are updated or taken back"
        raise ProgramError(message, hint="a row that is taken back would have another time than when it came")
    stream = streams.input_of(node)
    if node.sets_time:
        stream = stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_ingestion_time())
    return streams.columnar(node, StampRows(node.column, of_event_time=node.sets_time), stream)


def filter_rows(streams: StreamBuilder, node: FilterColumns) -> DataStream:
    condition = of_integers(node.condition, columns_of(node.inputs[0]))
    return streams.row_by_row(node, FilterOperator(condition))


def select(streams: StreamBuilder, node: Select) -> DataStream:
    return streams.row_by_row(node, SelectColumns(node.columns, keep=node.keep, event_time=_time_of_source(node)))


def expand(streams: StreamBuilder, node: Expand) -> DataStream:
    return streams.row_by_row(node, ExpandRows(node.expansion))


def union(streams: StreamBuilder, node: Union) -> DataStream:
    inputs = [streams.of(one) for one in node.inputs]
    if not takes_back(node):
        return inputs[0].union(*inputs[1:])
    # What takes a row back is equal to it: by their values both go to one subtask, in order.
    names = columns_of(node).names
    united = DataStream.union(*(stream.key_by(*names) for stream in inputs))
    return streams.columnar(node, SelectColumns({name: col(name) for name in names}), united)


def sort(streams: StreamBuilder, node: Sort) -> DataStream:
    """By event time rows go out in order; any other order is made when a result that has ended is given."""
    if not is_temporal_sort(node):
        return streams.input_of(node)
    operator = TemporalSort(orders_of(node.orders), input_schema=columns_of(node.inputs[0]))
    return streams.keyed(node, operator, streams.input_of(node), ())


def _time_of_source(node: Select) -> pa.Field | None:
    """The column that a projection right above a table would compute, and that its source has found: the event time."""
    below = node.inputs[0]
    if not isinstance(below, Scan) or below.time is None or len(below.time.steps) != 1 or node.schema is None:
        return None
    column = below.time.column
    value = node.columns.get(column)
    if value is None or not value.is_same_as(below.time.steps[0][column]):
        return None
    field = node.schema.field(column)
    return field if pa.types.is_timestamp(field.type) and field.type.unit == "ms" else None


LOWERINGS: Lowerings = {
    Scan: scan,
    TableSource: values,
    EventTime: event_time,
    ProcessingTime: processing_time,
    FilterColumns: filter_rows,
    Select: select,
    Expand: expand,
    Union: union,
    Sort: sort,
}
"""How each kind of node becomes a stream."""
