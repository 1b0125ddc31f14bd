"""User functions and built-in aggregates, under one name for programs: ``from headrace import functions as f``.

``f.sum``, ``f.min`` and ``f.max`` are aggregates for ``aggregate(total=f.sum("price"))``; they are not exported by
``headrace`` itself because they would hide Python's own.
"""

from __future__ import annotations

from headrace.engine.aggregates import Aggregate, avg, count, count_distinct, first, last, max, min, sum  # noqa: A004
from headrace.engine.cofunctions import (
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
from headrace.engine.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)

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
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "sum",
]
