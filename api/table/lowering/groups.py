"""Nodes of groups: aggregates, different rows, Top-N, OVER."""

from __future__ import annotations

from typing import Any

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.changelog.normalize import ChangelogNormalize
from headrace.engine.changelog.one_row import OneRow
from headrace.engine.changelog.over_changes import ChangingOver
from headrace.engine.changelog.rank import Rank
from headrace.engine.errors import ProgramError
from headrace.engine.kernel.config import CheckpointingMode
from headrace.engine.optimizer.growth import ttls_of
from headrace.engine.optimizer.stream_traits import is_timed, takes_back
from headrace.engine.plan.plan import Aggregation, Distinct, Node, OverGroups, walk
from headrace.engine.plan.table_nodes import LocalAggregation, Scan, TopN
from headrace.engine.timed.over_by_time import OverAggregate

from ...stream.data_stream import DataStream
from .builder import Lowerings, StreamBuilder, columns_of, names_of, orders_of, require_event_time

__all__ = ["LOWERINGS"]


def aggregation(streams: StreamBuilder, node: Aggregation) -> DataStream:
    return _grouped(streams, node, names_of(node.key), dict(node.aggregates))


def local_aggregation(streams: StreamBuilder, node: LocalAggregation) -> DataStream:
    operator = LocalGroupAggregate(
        node.keys, node.aggregates, input_schema=columns_of(node), takes_back=takes_back(node), adapts=node.adapts
    )
    return streams.right_behind(node, operator)


def distinct(streams: StreamBuilder, node: Distinct) -> DataStream:
    return _grouped(streams, node, tuple(columns_of(node).names), {})


def _grouped(streams: StreamBuilder, node: Node, keys: tuple[str, ...], aggregates: dict[str, Any]) -> DataStream:
    schema = columns_of(node.inputs[0])
    keys = streams.keys_of(node, 0, keys)
    (ttl_ms,) = ttls_of(node)
    operator = GroupAggregate(
        keys, aggregates, input_schema=schema, takes_back=takes_back(node.inputs[0]), ttl_ms=ttl_ms
    )
    return streams.in_order(node, streams.keyed(node, operator, streams.input_of(node), keys))


def top(streams: StreamBuilder, node: TopN) -> DataStream:
    schema = columns_of(node.inputs[0])
    keys = streams.keys_of(node, 0, names_of(node.key))
    (ttl_ms,) = ttls_of(node)
    if node.of_upserts:
        upserts = ChangelogNormalize(keys, input_schema=schema, ttl_ms=ttl_ms)
        return streams.keyed(node, upserts, streams.input_of(node), keys)
    if node.refuses_others:
        _require_cuts(streams, node)
        return streams.keyed(node, OneRow(keys, input_schema=schema, ttl_ms=ttl_ms), streams.input_of(node), keys)
    operator = Rank(
        keys, orders_of(node.orders), input_schema=schema, limit=node.limit - node.offset, offset=node.offset,
        number=node.number, takes_back=takes_back(node.inputs[0]), ties_keep_last=node.latest_first,
        ttl_ms=ttl_ms,
    )  # fmt: skip
    return streams.keyed(node, operator, streams.input_of(node), keys)


def _require_cuts(streams: StreamBuilder, node: Node) -> None:
    """See that there are moments at which all rows are known: aligned barriers, or the end.

    Raises:
        ProgramError: If there are none.
    """
    config, what = streams.env.get_checkpoint_config(), "ON CONFLICT DO ERROR looks for conflicts at checkpoints"
    if not config.is_checkpointing_enabled():
        if any(isinstance(one, Scan) and not one.table.is_bounded for one in walk(node)):
            message = f"{what}, and none are taken"
            raise ProgramError(message, hint="SET 'execution.checkpointing.interval' = '10 s'")
    elif config.is_unaligned_checkpoints_enabled():
        message = f"{what}, and unaligned ones leave rows out"
        raise ProgramError(message, hint="SET 'execution.checkpointing.unaligned.enabled' = 'false'")
    elif config.get_checkpointing_mode() is not CheckpointingMode.EXACTLY_ONCE:
        message = f"{what}, and those of 'at_least_once' have some rows of the next one"
        raise ProgramError(message, hint="SET 'execution.checkpointing.mode' = 'exactly_once'")


def over(streams: StreamBuilder, node: OverGroups) -> DataStream:
    schema = columns_of(node.inputs[0])
    keys = streams.keys_of(node, 0, names_of(node.key))
    operator: Any
    (ttl_ms,) = ttls_of(node)
    if is_timed(node):
        time = node.orders[0].column
        assert time is not None
        require_event_time(node.inputs[0], node)
        operator = OverAggregate(keys, time, node.columns, input_schema=schema, frame=node.frame, ttl_ms=ttl_ms)
    else:
        orders = orders_of(node.orders)
        operator = ChangingOver(keys, orders, node.columns, input_schema=schema, frame=node.frame, ttl_ms=ttl_ms)
    return streams.keyed(node, operator, streams.input_of(node), keys)


LOWERINGS: Lowerings = {
    LocalAggregation: local_aggregation,
    Aggregation: aggregation,
    Distinct: distinct,
    TopN: top,
    OverGroups: over,
}
"""How each kind of node becomes a stream."""
