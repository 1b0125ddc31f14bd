"""Headrace: stateful stream and batch processing in Python, in Flink's model, on Ray actors.

Everything a program needs is here by name; connectors are in ``headrace.connectors``, aggregates that share a name with
Python's own in ``headrace.functions``. Names are loaded when they are first used: importing the package costs next to
nothing, and never loads Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import JobClient, JobExecutionResult, JobStatus
    from headrace.datastream import DataStream, DataStreamSink, KeyedStream
    from headrace.datatypes import TypeInformation, Types
    from headrace.engine.aggregates import avg, count, count_distinct, first, last
    from headrace.engine.config import CheckpointingMode, RestartStrategy
    from headrace.engine.connector import Sink, SinkWriter, Source, SourceReader, Split, SplitEnumerator
    from headrace.engine.errors import (
        CheckpointCorruptError,
        CheckpointError,
        CheckpointMismatchError,
        CheckpointNotFoundError,
        ClusterUnavailableError,
        ConfigurationError,
        ExternalError,
        HeadraceError,
        InternalError,
        JobCanceledError,
        JobError,
        JobFailedError,
        JobNotFoundError,
        MalformedRecordError,
        NoResourceAvailableError,
        ProgramError,
        SinkError,
        SourceError,
        StateAccessError,
        StorageError,
        TypeMismatchError,
        UserError,
        UserFunctionError,
    )
    from headrace.engine.eventtime import WatermarkGenerator, WatermarkStrategy
    from headrace.engine.expressions import Expression, coalesce, col, concat, if_else, lit, when
    from headrace.engine.functions import (
        AggregateFunction,
        FilterFunction,
        FlatMapFunction,
        KeyedProcessFunction,
        MapFunction,
        OutputTag,
        ProcessFunction,
        ProcessWindowFunction,
        ReduceFunction,
        RuntimeContext,
        WindowFunction,
    )
    from headrace.engine.windows import (
        EventTimeSessionWindows,
        ProcessingTimeSessionWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
    )
    from headrace.environment import (
        CheckpointConfig,
        ExternalizedCheckpointRetention,
        RestartStrategies,
        RuntimeExecutionMode,
        StreamExecutionEnvironment,
    )
    from headrace.state.descriptors import ValueState, ValueStateDescriptor
    from headrace.windowed_stream import WindowedStream

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "headrace.client": "JobClient JobExecutionResult JobStatus",
    "headrace.datastream": "DataStream DataStreamSink KeyedStream",
    "headrace.datatypes": "TypeInformation Types",
    "headrace.engine.aggregates": "avg count count_distinct first last",
    "headrace.engine.config": "CheckpointingMode RestartStrategy",
    "headrace.engine.connector": "Sink SinkWriter Source SourceReader Split SplitEnumerator",
    "headrace.engine.errors": (
        "CheckpointCorruptError CheckpointError CheckpointMismatchError CheckpointNotFoundError"
        " ClusterUnavailableError ConfigurationError ExternalError HeadraceError InternalError JobCanceledError"
        " JobError JobFailedError JobNotFoundError MalformedRecordError NoResourceAvailableError ProgramError"
        " SinkError SourceError StateAccessError StorageError TypeMismatchError UserError UserFunctionError"
    ),
    "headrace.engine.eventtime": "WatermarkGenerator WatermarkStrategy",
    "headrace.engine.expressions": "Expression coalesce col concat if_else lit when",
    "headrace.engine.functions": (
        "AggregateFunction FilterFunction FlatMapFunction KeyedProcessFunction MapFunction OutputTag"
        " ProcessFunction ProcessWindowFunction ReduceFunction RuntimeContext WindowFunction"
    ),
    "headrace.engine.windows": (
        "EventTimeSessionWindows ProcessingTimeSessionWindows SlidingEventTimeWindows SlidingProcessingTimeWindows"
        " TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows"
    ),
    "headrace.environment": (
        "CheckpointConfig ExternalizedCheckpointRetention RestartStrategies RuntimeExecutionMode"
        " StreamExecutionEnvironment"
    ),
    "headrace.state.descriptors": "ValueState ValueStateDescriptor",
    "headrace.windowed_stream": "WindowedStream",
}

_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "AggregateFunction",
    "CheckpointConfig",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointingMode",
    "ClusterUnavailableError",
    "ConfigurationError",
    "DataStream",
    "DataStreamSink",
    "EventTimeSessionWindows",
    "Expression",
    "ExternalError",
    "ExternalizedCheckpointRetention",
    "FilterFunction",
    "FlatMapFunction",
    "HeadraceError",
    "InternalError",
    "JobCanceledError",
    "JobClient",
    "JobError",
    "JobExecutionResult",
    "JobFailedError",
    "JobNotFoundError",
    "JobStatus",
    "KeyedProcessFunction",
    "KeyedStream",
    "MalformedRecordError",
    "MapFunction",
    "NoResourceAvailableError",
    "OutputTag",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProgramError",
    "ReduceFunction",
    "RestartStrategies",
    "RestartStrategy",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "Sink",
    "SinkError",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Source",
    "SourceError",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "StateAccessError",
    "StorageError",
    "StreamExecutionEnvironment",
    "TimeWindow",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TypeInformation",
    "TypeMismatchError",
    "Types",
    "UserError",
    "UserFunctionError",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WindowFunction",
    "WindowedStream",
    "__version__",
    "avg",
    "coalesce",
    "col",
    "concat",
    "count",
    "count_distinct",
    "first",
    "if_else",
    "last",
    "lit",
    "when",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        message = f"module 'headrace' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value  # the next look-up finds it without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
