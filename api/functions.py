"""User functions and built-in aggregates, under one name for programs: ``from headrace import functions as f``.

``f.sum``, ``f.min`` and ``f.max`` are aggregates for ``aggregate(total=f.sum("price"))``; they are not exported by
``headrace`` itself because they would hide Python's own. ``f.row_number``, ``f.rank``, ``f.lag`` and their like are for
``DataSet.over``.
"""

from __future__ import annotations

from headrace.engine.frames.frame_calls import (
    cume_dist,
    dense_rank,
    lag,
    lead,
    ntile,
    percent_rank,
    rank,
    row_number,
)
from headrace.engine.functions.aggregates.built_in import avg, count, count_distinct, first, last, max, min, sum  # noqa: A004
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.aggregates.statistics import (
    collect_list,
    collect_set,
    median,
    percentile,
    stddev,
    stddev_pop,
    variance,
    variance_pop,
)
from headrace.engine.functions.cofunctions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FlatJoinFunction,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
)
from headrace.engine.functions.contract import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from headrace.engine.functions.runtime_context import RuntimeContext
from headrace.engine.functions.side_outputs import OutputTag

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "JoinFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "WindowFunction",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "cume_dist",
    "dense_rank",
    "first",
    "lag",
    "last",
    "lead",
    "max",
    "median",
    "min",
    "ntile",
    "percent_rank",
    "percentile",
    "rank",
    "row_number",
    "stddev",
    "stddev_pop",
    "sum",
    "variance",
    "variance_pop",
]
