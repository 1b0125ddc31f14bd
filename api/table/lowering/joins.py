"""Joins: of changes, of many inputs, by event time, and with a table that is asked by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.lookups.async_table_join import AsyncLookupJoinOfTables, missing_keys_again
from headrace.engine.lookups.batch_questions import LookupTerms
from headrace.engine.lookups.table_join import LookupJoinOfTables
from headrace.engine.multi_joins.join_step import JoinChain, result_tag
from headrace.engine.multi_joins.multi_join import MultiJoin as MultiJoinOperator
from headrace.engine.operators.column_operators import FilterColumns as FilterOperator
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.optimizer.growth import ttls_of
from headrace.engine.optimizer.stream_traits import renamed_below
from headrace.engine.plan.plan import FilterColumns, Select, walk
from headrace.engine.plan.table_nodes import (
    EventTime,
    IntervalJoin,
    JoinResult,
    LookupJoin,
    LookupWay,
    MultiJoin,
    ProjectedJoin,
    Scan,
    SharedJoins,
    TableJoin,
    TemporalJoin,
    TopN,
)
from headrace.engine.timed.interval_join import IntervalJoinOfTables
from headrace.engine.timed.temporal_join import TemporalJoinOfTables

from ...stream.data_stream import DataStream
from ..connectors.contract import TableConnector
from .builder import Lowerings, StreamBuilder, columns_of, names_of, refuse_changes, require_event_time

__all__ = ["LOWERINGS"]

_QUESTIONS_AT_ONCE = 10
_TIMEOUT_MS = 180_000


def join(streams: StreamBuilder, node: TableJoin) -> DataStream:
    left_schema, right_schema = map(columns_of, node.inputs)
    left_ttl_ms, right_ttl_ms = ttls_of(node)
    operator = ChangelogJoin(
        *_keys_of_join(streams, node), node.how, left_schema=left_schema, right_schema=right_schema,
        projection=node.projection, condition=node.condition, ttls_ms=(left_ttl_ms, right_ttl_ms),
    )  # fmt: skip
    return _joined(streams, node, operator)


def multi_join(streams: StreamBuilder, node: MultiJoin) -> DataStream:
    return _joined_at_once(streams, node, (JoinChain.of_all(node.steps, node.projection),))


def shared_joins(streams: StreamBuilder, node: SharedJoins) -> DataStream:
    return _joined_at_once(streams, node, node.chains)


def _joined_at_once(streams: StreamBuilder, node: MultiJoin | SharedJoins, chains: Sequence[JoinChain]) -> DataStream:
    keys = [streams.keys_of(node, at, names_of(key)) for at, key in enumerate(node.keys)]
    schemas = [columns_of(one) for one in node.inputs]
    operator = MultiJoinOperator(keys, chains, schemas=schemas)
    columns = operator.output_schema()
    return streams.keyed_inputs(node, streams.prepared(node, operator), keys, columns)


def join_result(streams: StreamBuilder, node: JoinResult) -> DataStream:
    """The rows of the first join are the output of what makes all of them, those of others its side outputs."""
    joins = streams.input_of(node)
    if node.number == 0:
        return joins
    result = joins.get_side_output(result_tag(node.number))
    result.known_columns = node.schema
    return result


def temporal_join(streams: StreamBuilder, node: TemporalJoin) -> DataStream:
    for one in node.inputs:
        hint = "put it below GROUP BY, Top-N or outer joins"
        if any(isinstance(below, TopN) and below.of_upserts for below in walk(one)):
            hint = "a table of 'kafka' with PRIMARY KEY and WATERMARK reads the same topic as versions"
        refuse_changes(node, one, hint)
        require_event_time(one, node, node.times[0] if one is node.inputs[0] else None)
    schemas = (columns_of(node.inputs[0]), columns_of(node.inputs[1]))
    operator = TemporalJoinOfTables(
        _keys_of_join(streams, node),
        node.times,
        schemas=schemas,
        is_left=node.how == "left",
        projection=node.projection,
        condition=node.condition,
        ttl_ms=max(ttls_of(node)),
    )
    return _joined(streams, node, operator)


def interval_join(streams: StreamBuilder, node: IntervalJoin) -> DataStream:
    schemas = (columns_of(node.inputs[0]), columns_of(node.inputs[1]))
    operator = IntervalJoinOfTables(
        node.how, _keys_of_join(streams, node), node.times,
        (node.low_ms, node.high_ms), schemas=schemas, projection=node.projection,
        condition=node.condition,
    )  # fmt: skip
    return _joined(streams, node, operator)


def _keys_of_join(streams: StreamBuilder, node: ProjectedJoin) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return streams.keys_of(node, 0, names_of(node.left_key)), streams.keys_of(node, 1, names_of(node.right_key))


def _joined(streams: StreamBuilder, node: ProjectedJoin, operator: Any) -> DataStream:
    return streams.keyed_inputs(node, streams.prepared(node, operator), _keys_of_join(streams, node))


def lookup_join(streams: StreamBuilder, node: LookupJoin) -> DataStream:
    hint = (
        "a row that is taken back may find others than when it came: join without FOR SYSTEM_TIME AS OF, or put the "
        "lookup below"
    )
    refuse_changes(node, node.inputs[0], hint)
    steps: list[Any] = []
    table, below = node.inputs[1], names_of(node.right_key)
    while not isinstance(table, Scan):
        if isinstance(table, Select):
            steps.insert(0, SelectColumns(table.columns, keep=table.keep).select)
            below = tuple(str(renamed_below(table, name)) for name in below)
        elif isinstance(table, FilterColumns):
            steps.insert(0, FilterOperator(table.condition).passed)
        else:
            assert isinstance(table, EventTime)
        table = table.inputs[0]
    connector: TableConnector = table.table
    schemas = (columns_of(node.inputs[0]), columns_of(node.inputs[1]))
    terms = LookupTerms(
        (names_of(node.left_key), names_of(node.right_key)), below, steps=steps,
        schemas=schemas, is_left=node.how == "left", projection=node.projection,
        condition=node.condition,
    )  # fmt: skip
    lookup, cache = connector.lookup(below, columns_of(table)), connector.lookup_cache
    operator: Any = LookupJoinOfTables(lookup, terms, cache)
    if node.way is not None:
        operator = streams.prepared(node, _asynchronous(streams, node.way, lookup, terms, cache))
    return streams.columnar(node, operator, streams.input_of(node))


def _asynchronous(
    streams: StreamBuilder, way: LookupWay, lookup: Any, terms: LookupTerms, cache: Any
) -> AsyncLookupJoinOfTables:
    """What the hint of a table does not say the settings do."""
    is_ordered, capacity, timeout_ms = way.is_ordered, way.capacity, way.timeout_ms
    if is_ordered is None:
        is_ordered = streams.settings.value("table.exec.async-lookup.output-mode", "ordered") == "ordered"
    if capacity is None:
        capacity = streams.settings.value("table.exec.async-lookup.buffer-capacity", _QUESTIONS_AT_ONCE)
    if timeout_ms is None:
        timeout_ms = streams.settings.value("table.exec.async-lookup.timeout", _TIMEOUT_MS)
    return AsyncLookupJoinOfTables(
        lookup, terms, cache, ordered=is_ordered or not way.is_async, capacity=capacity if way.is_async else 1,
        timeout_ms=timeout_ms, retry=None if way.retry is None else missing_keys_again(*way.retry),
    )  # fmt: skip


LOWERINGS: Lowerings = {
    TableJoin: join,
    MultiJoin: multi_join,
    SharedJoins: shared_joins,
    JoinResult: join_result,
    TemporalJoin: temporal_join,
    IntervalJoin: interval_join,
    LookupJoin: lookup_join,
}
"""How each kind of node becomes a stream."""
