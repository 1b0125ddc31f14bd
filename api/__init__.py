"""Headrace: stateful stream and batch processing in Python, in Flink's model, on Ray actors.

Everything a program needs is here by name; connectors are in ``headrace.connectors``, aggregates that share a name with
Python's own in ``headrace.functions``. Names are loaded when they are first used: importing the package costs next to
nothing, and never loads Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.all_windowed_stream import AllWindowedStream
    from headrace.async_data_stream import AsyncDataStream
    from headrace.cached_stream import CachedDataStream
    from headrace.checkpoint_config import CheckpointConfig, ExternalizedCheckpointRetention
    from headrace.client import JobClient, JobExecutionResult, JobStatus
    from headrace.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from headrace.data_stream_sink import DataStreamSink
    from headrace.dataset.dataset import DataSet
    from headrace.dataset.environment import DataSetResult, ExecutionEnvironment
    from headrace.datastream import DataStream
    from headrace.datatypes import TypeInformation, Types
    from headrace.engine.accumulators import (
        Accumulator,
        AverageAccumulator,
        DoubleCounter,
        Histogram,
        IntCounter,
        ListAccumulator,
        LongCounter,
    )
    from headrace.engine.aggregates import avg, count, count_distinct, first, last
    from headrace.engine.all_windows import AllWindowFunction, ProcessAllWindowFunction
    from headrace.engine.async_functions import (
        AsyncFunction,
        AsyncRetryStrategies,
        AsyncRetryStrategy,
        ExponentialBackoffDelayRetryStrategy,
        FixedDelayRetryStrategy,
        NoRetryStrategy,
    )
    from headrace.engine.async_sinks import AsyncSink, AsyncSinkWriter
    from headrace.engine.checkpointed import (
        CheckpointedFunction,
        CheckpointListener,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        OperatorStateStore,
    )
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
        ReadOnlyBroadcastState,
    )
    from headrace.engine.conditionals import if_else, when
    from headrace.engine.config import (
        CheckpointingMode,
        DamagedCheckpointPolicy,
        HighAvailabilitySettings,
        RestartStrategy,
        RestoreMode,
    )
    from headrace.engine.connector import (
        CommitRetry,
        Committer,
        CommitterContext,
        Discovery,
        EnumeratorContext,
        Polled,
        ProvingCommitter,
        ReaderContext,
        Sink,
        SinkWriter,
        Source,
        SourceEvent,
        SourceReader,
        Split,
        SplitEnumerator,
        SplitFinished,
        SupportsCommitProof,
        SupportsCommitter,
        WriterContext,
    )
    from headrace.engine.dataset.context import DataSetRuntimeContext
    from headrace.engine.dataset.join_nodes import JoinHint
    from headrace.engine.dataset.user_functions import (
        ConvergenceCriterion,
        CrossFunction,
        GroupCombineFunction,
        GroupReduceFunction,
        MapPartitionFunction,
        Partitioner,
    )
    from headrace.engine.errors import (
        CheckpointCorruptError,
        CheckpointError,
        CheckpointFallbackError,
        CheckpointLostError,
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
        ManagedMemoryError,
        NewerOutputError,
        NoResourceAvailableError,
        PossibleLossError,
        ProgramError,
        SavepointError,
        SinkError,
        SinkFencedError,
        SourceError,
        StateAccessError,
        StateQueryError,
        StateUnavailableError,
        StorageError,
        TypeMismatchError,
        UserError,
        UserFunctionError,
    )
    from headrace.engine.eventtime import WatermarkGenerator, WatermarkStrategy
    from headrace.engine.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, TimestampedValue
    from headrace.engine.expressions import Expression, coalesce, col, concat, lit
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
    from headrace.engine.lookup import AsyncLookupFunction, LookupCache, LookupFunction
    from headrace.engine.rate_limiting import (
        AIMDScalingStrategy,
        CongestionControlRateLimitingStrategy,
        RateLimitingStrategy,
    )
    from headrace.engine.restore_check import OperatorReport, RestoreReport, RestoreVerdict, StateReport
    from headrace.engine.sink_protocols import (
        GlobalCommittable,
        GlobalCommitter,
        SupportsGlobalCommitter,
        SupportsPreCommitTopology,
        SupportsPreWriteTopology,
    )
    from headrace.engine.source_protocols import (
        EnumeratorProgress,
        ListeningEnumerator,
        ListeningReader,
        PausingReader,
        ProgressingEnumerator,
        SideBySideReader,
        SnapshottingReader,
    )
    from headrace.engine.timestamps import TimestampAssigner
    from headrace.engine.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        DeltaTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
        Trigger,
        TriggerResult,
    )
    from headrace.engine.windows import (
        CumulativeEventTimeWindows,
        DynamicEventTimeSessionWindows,
        DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows,
        GlobalWindow,
        GlobalWindows,
        MergingWindowAssigner,
        ProcessingTimeSessionWindows,
        SessionWindowTimeGapExtractor,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from headrace.environment import StreamExecutionEnvironment
    from headrace.environment_settings import RuntimeExecutionMode
    from headrace.iterations import IterativeStream
    from headrace.keyed_stream import KeyedStream
    from headrace.restart_strategies import RestartStrategies
    from headrace.snapshots import Snapshot, SnapshotWriter
    from headrace.state.backend import BroadcastState
    from headrace.state.backends import HashMapStateBackend, RocksDBStateBackend
    from headrace.state.descriptors import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from headrace.state.savepoints import dispose_savepoint
    from headrace.state.ttl import StateTtlConfig
    from headrace.windowed_stream import WindowedStream

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "headrace.async_data_stream": "AsyncDataStream",
    "headrace.all_windowed_stream": "AllWindowedStream",
    "headrace.cached_stream": "CachedDataStream",
    "headrace.client": "JobClient JobExecutionResult JobStatus",
    "headrace.connected_streams": "BroadcastConnectedStream BroadcastStream ConnectedStreams",
    "headrace.dataset.dataset": "DataSet",
    "headrace.dataset.environment": "DataSetResult ExecutionEnvironment",
    "headrace.data_stream_sink": "DataStreamSink",
    "headrace.datastream": "DataStream",
    "headrace.datatypes": "TypeInformation Types",
    "headrace.engine.accumulators": (
        "Accumulator AverageAccumulator DoubleCounter Histogram IntCounter ListAccumulator LongCounter"
    ),
    "headrace.engine.aggregates": "avg count count_distinct first last",
    "headrace.engine.async_functions": (
        "AsyncFunction AsyncRetryStrategies AsyncRetryStrategy"
        " ExponentialBackoffDelayRetryStrategy FixedDelayRetryStrategy NoRetryStrategy"
    ),
    "headrace.engine.cofunctions": (
        "BroadcastProcessFunction CoFlatMapFunction CoGroupFunction CoMapFunction CoProcessFunction FlatJoinFunction"
        " JoinFunction KeyedBroadcastProcessFunction KeyedCoProcessFunction ProcessJoinFunction ReadOnlyBroadcastState"
    ),
    "headrace.engine.async_sinks": "AsyncSink AsyncSinkWriter",
    "headrace.engine.rate_limiting": ("AIMDScalingStrategy CongestionControlRateLimitingStrategy RateLimitingStrategy"),
    "headrace.engine.checkpointed": (
        "CheckpointListener CheckpointedFunction FunctionInitializationContext FunctionSnapshotContext"
        " OperatorStateStore"
    ),
    "headrace.engine.all_windows": "AllWindowFunction ProcessAllWindowFunction",
    "headrace.engine.config": (
        "CheckpointingMode DamagedCheckpointPolicy HighAvailabilitySettings RestartStrategy RestoreMode"
    ),
    "headrace.engine.connector": (
        "CommitRetry Committer CommitterContext ProvingCommitter Sink SinkWriter Source SourceReader Split"
        " SplitEnumerator SupportsCommitProof SupportsCommitter WriterContext"
        " Discovery EnumeratorContext Polled ReaderContext SourceEvent SplitFinished"
    ),
    "headrace.engine.sink_protocols": (
        "GlobalCommittable GlobalCommitter SupportsGlobalCommitter SupportsPreCommitTopology SupportsPreWriteTopology"
    ),
    "headrace.engine.source_protocols": (
        "EnumeratorProgress ListeningEnumerator ListeningReader PausingReader ProgressingEnumerator"
        " SideBySideReader SnapshottingReader"
    ),
    "headrace.engine.dataset.context": "DataSetRuntimeContext",
    "headrace.engine.dataset.join_nodes": "JoinHint",
    "headrace.engine.dataset.user_functions": (
        "ConvergenceCriterion CrossFunction GroupCombineFunction GroupReduceFunction MapPartitionFunction Partitioner"
    ),
    "headrace.engine.conditionals": "if_else when",
    "headrace.engine.errors": (
        "CheckpointCorruptError CheckpointError CheckpointFallbackError CheckpointLostError CheckpointMismatchError"
        " CheckpointNotFoundError ClusterUnavailableError ConfigurationError ExternalError HeadraceError InternalError"
        " JobCanceledError JobError JobFailedError JobNotFoundError MalformedRecordError ManagedMemoryError"
        " NewerOutputError NoResourceAvailableError PossibleLossError ProgramError SavepointError SinkError"
        " SinkFencedError SourceError StateAccessError StateQueryError StateUnavailableError StorageError"
        " TypeMismatchError UserError"
        " UserFunctionError"
    ),
    "headrace.engine.eventtime": "WatermarkGenerator WatermarkStrategy",
    "headrace.engine.evictors": "CountEvictor DeltaEvictor Evictor TimeEvictor TimestampedValue",
    "headrace.engine.expressions": "Expression coalesce col concat lit",
    "headrace.engine.functions": (
        "AggregateFunction FilterFunction FlatMapFunction KeyedProcessFunction MapFunction OutputTag"
        " ProcessFunction ProcessWindowFunction ReduceFunction RuntimeContext WindowFunction"
    ),
    "headrace.engine.lookup": "AsyncLookupFunction LookupCache LookupFunction",
    "headrace.engine.timestamps": "TimestampAssigner",
    "headrace.engine.restore_check": "OperatorReport RestoreReport RestoreVerdict StateReport",
    "headrace.engine.triggers": (
        "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger CountTrigger DeltaTrigger EventTimeTrigger"
        " NeverTrigger ProcessingTimeTrigger PurgingTrigger Trigger TriggerResult"
    ),
    "headrace.engine.windows": (
        "CumulativeEventTimeWindows DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows"
        " EventTimeSessionWindows GlobalWindow GlobalWindows MergingWindowAssigner"
        " ProcessingTimeSessionWindows SessionWindowTimeGapExtractor SlidingEventTimeWindows"
        " SlidingProcessingTimeWindows TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows"
        " WindowAssigner"
    ),
    "headrace.checkpoint_config": "CheckpointConfig ExternalizedCheckpointRetention",
    "headrace.environment": "StreamExecutionEnvironment",
    "headrace.environment_settings": "RuntimeExecutionMode",
    "headrace.restart_strategies": "RestartStrategies",
    "headrace.state.backend": "BroadcastState",
    "headrace.state.backends": "HashMapStateBackend RocksDBStateBackend",
    "headrace.iterations": "IterativeStream",
    "headrace.keyed_stream": "KeyedStream",
    "headrace.state.descriptors": (
        "AggregatingState AggregatingStateDescriptor ListState ListStateDescriptor MapState MapStateDescriptor"
        " ReducingState ReducingStateDescriptor StateDescriptor ValueState ValueStateDescriptor"
    ),
    "headrace.state.savepoints": "dispose_savepoint",
    "headrace.snapshots": "Snapshot SnapshotWriter",
    "headrace.state.ttl": "StateTtlConfig",
    "headrace.windowed_stream": "WindowedStream",
}

_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "AIMDScalingStrategy",
    "Accumulator",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncLookupFunction",
    "AsyncRetryStrategies",
    "AsyncRetryStrategy",
    "AsyncSink",
    "AsyncSinkWriter",
    "AverageAccumulator",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CachedDataStream",
    "CheckpointConfig",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointFallbackError",
    "CheckpointListener",
    "CheckpointLostError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointedFunction",
    "CheckpointingMode",
    "ClusterUnavailableError",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CommitRetry",
    "Committer",
    "CommitterContext",
    "ConfigurationError",
    "CongestionControlRateLimitingStrategy",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "ConvergenceCriterion",
    "CountEvictor",
    "CountTrigger",
    "CrossFunction",
    "CumulativeEventTimeWindows",
    "DamagedCheckpointPolicy",
    "DataSet",
    "DataSetResult",
    "DataSetRuntimeContext",
    "DataStream",
    "DataStreamSink",
    "DeltaEvictor",
    "DeltaTrigger",
    "Discovery",
    "DoubleCounter",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EnumeratorContext",
    "EnumeratorProgress",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExecutionEnvironment",
    "ExponentialBackoffDelayRetryStrategy",
    "Expression",
    "ExternalError",
    "ExternalizedCheckpointRetention",
    "FilterFunction",
    "FixedDelayRetryStrategy",
    "FlatJoinFunction",
    "FlatMapFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalCommittable",
    "GlobalCommitter",
    "GlobalWindow",
    "GlobalWindows",
    "GroupCombineFunction",
    "GroupReduceFunction",
    "HashMapStateBackend",
    "HeadraceError",
    "HighAvailabilitySettings",
    "Histogram",
    "IntCounter",
    "InternalError",
    "IterativeStream",
    "JobCanceledError",
    "JobClient",
    "JobError",
    "JobExecutionResult",
    "JobFailedError",
    "JobNotFoundError",
    "JobStatus",
    "JoinFunction",
    "JoinHint",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListAccumulator",
    "ListState",
    "ListStateDescriptor",
    "ListeningEnumerator",
    "ListeningReader",
    "LongCounter",
    "LookupCache",
    "LookupFunction",
    "MalformedRecordError",
    "ManagedMemoryError",
    "MapFunction",
    "MapPartitionFunction",
    "MapState",
    "MapStateDescriptor",
    "MergingWindowAssigner",
    "NeverTrigger",
    "NewerOutputError",
    "NoResourceAvailableError",
    "NoRetryStrategy",
    "OperatorReport",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "PausingReader",
    "Polled",
    "PossibleLossError",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProgramError",
    "ProgressingEnumerator",
    "ProvingCommitter",
    "PurgingTrigger",
    "RateLimitingStrategy",
    "ReadOnlyBroadcastState",
    "ReaderContext",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "RestartStrategy",
    "RestoreMode",
    "RestoreReport",
    "RestoreVerdict",
    "RocksDBStateBackend",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SavepointError",
    "SessionWindowTimeGapExtractor",
    "SideBySideReader",
    "Sink",
    "SinkError",
    "SinkFencedError",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Snapshot",
    "SnapshotWriter",
    "SnapshottingReader",
    "Source",
    "SourceError",
    "SourceEvent",
    "SourceReader",
    "Split",
    "SplitEnumerator",
    "SplitFinished",
    "StateAccessError",
    "StateDescriptor",
    "StateQueryError",
    "StateReport",
    "StateTtlConfig",
    "StateUnavailableError",
    "StorageError",
    "StreamExecutionEnvironment",
    "SupportsCommitProof",
    "SupportsCommitter",
    "SupportsGlobalCommitter",
    "SupportsPreCommitTopology",
    "SupportsPreWriteTopology",
    "TimeEvictor",
    "TimeWindow",
    "TimestampAssigner",
    "TimestampedValue",
    "Trigger",
    "TriggerResult",
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
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "WriterContext",
    "__version__",
    "avg",
    "coalesce",
    "col",
    "concat",
    "count",
    "count_distinct",
    "dispose_savepoint",
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
