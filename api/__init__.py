"""Headrace: stateful stream and batch processing in Python, in Flink's model, on Ray actors.

Everything a program needs is here by name; connectors are in ``headrace.connectors``, aggregates that share a name with
Python's own in ``headrace.functions``. Names are loaded when they are first used: importing the package costs next to
nothing, and never loads Ray.

The rooms are `stream`, `storm`, `dataset`, `table` and `sql`, `jobs` (a job that was submitted), `rest`, `connectors`,
`formats`, `testing`, `cli`, `data` and `arguments` (what all of them check what they are given by).

May import: its rooms but `cli`, `headrace.engine`, `headrace.state`. Start reading at `stream.environment`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.checkpoint.restore_check import OperatorReport, RestoreReport, RestoreVerdict, StateReport
    from headrace.engine.columns.conditionals import if_else, when
    from headrace.engine.columns.expressions import Expression, coalesce, col, concat, lit
    from headrace.engine.connectors.async_sinks import AsyncSink, AsyncSinkWriter
    from headrace.engine.connectors.contract import (
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
    from headrace.engine.connectors.rate_limiting import (
        AIMDScalingStrategy,
        CongestionControlRateLimitingStrategy,
        RateLimitingStrategy,
    )
    from headrace.engine.connectors.sink_protocols import (
        GlobalCommittable,
        GlobalCommitter,
        SupportsGlobalCommitter,
        SupportsPreCommitTopology,
        SupportsPreWriteTopology,
    )
    from headrace.engine.connectors.source_protocols import (
        EnumeratorProgress,
        KeepingReader,
        ListeningEnumerator,
        ListeningReader,
        PausingReader,
        ProgressingEnumerator,
        SideBySideReader,
        SnapshottingReader,
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
    from headrace.engine.functions.accumulators import (
        Accumulator,
        AverageAccumulator,
        DoubleCounter,
        Histogram,
        IntCounter,
        ListAccumulator,
        LongCounter,
    )
    from headrace.engine.functions.aggregates.built_in import avg, count, count_distinct, first, last
    from headrace.engine.functions.async_functions import (
        AsyncFunction,
        AsyncRetryStrategies,
        AsyncRetryStrategy,
        ExponentialBackoffDelayRetryStrategy,
        FixedDelayRetryStrategy,
        NoRetryStrategy,
    )
    from headrace.engine.functions.checkpointed import (
        CheckpointedFunction,
        CheckpointListener,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        OperatorStateStore,
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
        ReadOnlyBroadcastState,
    )
    from headrace.engine.functions.contract import (
        AggregateFunction,
        FilterFunction,
        FlatMapFunction,
        KeyedProcessFunction,
        MapFunction,
        ProcessFunction,
        ProcessWindowFunction,
        ReduceFunction,
        WindowFunction,
    )
    from headrace.engine.functions.runtime_context import RuntimeContext
    from headrace.engine.functions.side_outputs import OutputTag
    from headrace.engine.functions.timestamps import TimestampAssigner
    from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
    from headrace.engine.kernel.config import (
        CheckpointingMode,
        DamagedCheckpointPolicy,
        HighAvailabilitySettings,
        RestartStrategy,
        RestoreMode,
    )
    from headrace.engine.kernel.reporter_settings import ReporterSettings
    from headrace.engine.kernel.rest_settings import RestSettings
    from headrace.engine.lookups.enrichment import AsyncLookupFunction, LookupCache, LookupFunction
    from headrace.engine.operators.event_time import WatermarkGenerator, WatermarkStrategy
    from headrace.engine.partitions.context import DataSetRuntimeContext
    from headrace.engine.plan.join_nodes import JoinHint
    from headrace.engine.plan.user_functions import (
        ConvergenceCriterion,
        CrossFunction,
        GroupCombineFunction,
        GroupReduceFunction,
        MapPartitionFunction,
        Partitioner,
    )
    from headrace.engine.windows.all_windows import AllWindowFunction, ProcessAllWindowFunction
    from headrace.engine.windows.assigners import (
        CumulativeEventTimeWindows,
        DynamicEventTimeSessionWindows,
        DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows,
        GlobalWindows,
        MergingWindowAssigner,
        ProcessingTimeSessionWindows,
        SessionWindowTimeGapExtractor,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from headrace.engine.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, TimestampedValue
    from headrace.engine.windows.triggers import (
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
    from headrace.engine.windows.windows import GlobalWindow, TimeWindow
    from headrace.state.backends.choice import HashMapStateBackend, RocksDBStateBackend
    from headrace.state.checkpoints.savepoints import dispose_savepoint
    from headrace.state.keyed.contract import BroadcastState
    from headrace.state.keyed.descriptors import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from headrace.state.keyed.kinds import StateDescriptor
    from headrace.state.keyed.ttl import StateTtlConfig

    from .arguments.data_types import TypeInformation, Types
    from .dataset.dataset import DataSet
    from .dataset.environment import DataSetResult, ExecutionEnvironment
    from .jobs.client import JobClient, JobStatus
    from .jobs.execution_result import JobExecutionResult
    from .jobs.snapshots import Snapshot, SnapshotWriter
    from .stream.async_data_stream import AsyncDataStream
    from .stream.cached_stream import CachedDataStream
    from .stream.checkpoint_config import CheckpointConfig, ExternalizedCheckpointRetention
    from .stream.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from .stream.data_stream import DataStream
    from .stream.data_stream_sink import DataStreamSink
    from .stream.environment import StreamExecutionEnvironment
    from .stream.environment_settings import RuntimeExecutionMode
    from .stream.iterative_stream import IterativeStream
    from .stream.keyed_stream import KeyedStream
    from .stream.restart_strategies import RestartStrategies
    from .stream.windowed_stream import AllWindowedStream, WindowedStream

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "headrace.stream.async_data_stream": "AsyncDataStream",
    "headrace.stream.cached_stream": "CachedDataStream",
    "headrace.jobs.client": "JobClient JobStatus",
    "headrace.jobs.execution_result": "JobExecutionResult",
    "headrace.stream.connected_streams": "BroadcastConnectedStream BroadcastStream ConnectedStreams",
    "headrace.dataset.dataset": "DataSet",
    "headrace.dataset.environment": "DataSetResult ExecutionEnvironment",
    "headrace.stream.data_stream_sink": "DataStreamSink",
    "headrace.stream.data_stream": "DataStream",
    "headrace.arguments.data_types": "TypeInformation Types",
    "headrace.engine.functions.accumulators": (
        "Accumulator AverageAccumulator DoubleCounter Histogram IntCounter ListAccumulator LongCounter"
    ),
    "headrace.engine.functions.aggregates.built_in": "avg count count_distinct first last",
    "headrace.engine.functions.async_functions": (
        "AsyncFunction AsyncRetryStrategies AsyncRetryStrategy"
        " ExponentialBackoffDelayRetryStrategy FixedDelayRetryStrategy NoRetryStrategy"
    ),
    "headrace.engine.functions.cofunctions": (
        "BroadcastProcessFunction CoFlatMapFunction CoGroupFunction CoMapFunction CoProcessFunction FlatJoinFunction"
        " JoinFunction KeyedBroadcastProcessFunction KeyedCoProcessFunction ProcessJoinFunction ReadOnlyBroadcastState"
    ),
    "headrace.engine.connectors.async_sinks": "AsyncSink AsyncSinkWriter",
    "headrace.engine.connectors.rate_limiting": (
        "AIMDScalingStrategy CongestionControlRateLimitingStrategy RateLimitingStrategy"
    ),
    "headrace.engine.functions.checkpointed": (
        "CheckpointListener CheckpointedFunction FunctionInitializationContext FunctionSnapshotContext"
        " OperatorStateStore"
    ),
    "headrace.engine.windows.all_windows": "AllWindowFunction ProcessAllWindowFunction",
    "headrace.engine.kernel.config": (
        "CheckpointingMode DamagedCheckpointPolicy HighAvailabilitySettings RestartStrategy RestoreMode"
    ),
    "headrace.engine.kernel.reporter_settings": "ReporterSettings",
    "headrace.engine.kernel.autoscaler_settings": "AutoscalerSettings",
    "headrace.engine.kernel.rest_settings": "RestSettings",
    "headrace.engine.connectors.contract": (
        "CommitRetry Committer CommitterContext ProvingCommitter Sink SinkWriter Source SourceReader Split"
        " SplitEnumerator SupportsCommitProof SupportsCommitter WriterContext"
        " Discovery EnumeratorContext Polled ReaderContext SourceEvent SplitFinished"
    ),
    "headrace.engine.connectors.sink_protocols": (
        "GlobalCommittable GlobalCommitter SupportsGlobalCommitter SupportsPreCommitTopology SupportsPreWriteTopology"
    ),
    "headrace.engine.connectors.source_protocols": (
        "EnumeratorProgress KeepingReader ListeningEnumerator ListeningReader PausingReader ProgressingEnumerator"
        " SideBySideReader SnapshottingReader"
    ),
    "headrace.engine.partitions.context": "DataSetRuntimeContext",
    "headrace.engine.plan.join_nodes": "JoinHint",
    "headrace.engine.plan.user_functions": (
        "ConvergenceCriterion CrossFunction GroupCombineFunction GroupReduceFunction MapPartitionFunction Partitioner"
    ),
    "headrace.engine.columns.conditionals": "if_else when",
    "headrace.engine.errors": (
        "CheckpointCorruptError CheckpointError CheckpointFallbackError CheckpointLostError CheckpointMismatchError"
        " CheckpointNotFoundError ClusterUnavailableError ConfigurationError ExternalError HeadraceError InternalError"
        " JobCanceledError JobError JobFailedError JobNotFoundError MalformedRecordError ManagedMemoryError"
        " NewerOutputError NoResourceAvailableError PossibleLossError ProgramError SavepointError SinkError"
        " SinkFencedError SourceError StateAccessError StateQueryError StateUnavailableError StorageError"
        " TypeMismatchError UserError"
        " UserFunctionError"
    ),
    "headrace.engine.operators.event_time": "WatermarkGenerator WatermarkStrategy",
    "headrace.engine.windows.evictors": "CountEvictor DeltaEvictor Evictor TimeEvictor TimestampedValue",
    "headrace.engine.columns.expressions": "Expression coalesce col concat lit",
    "headrace.engine.functions.contract": (
        "AggregateFunction FilterFunction FlatMapFunction KeyedProcessFunction MapFunction"
        " ProcessFunction ProcessWindowFunction ReduceFunction WindowFunction"
    ),
    "headrace.engine.functions.runtime_context": "RuntimeContext",
    "headrace.engine.functions.side_outputs": "OutputTag",
    "headrace.engine.lookups.enrichment": "AsyncLookupFunction LookupCache LookupFunction",
    "headrace.engine.functions.timestamps": "TimestampAssigner",
    "headrace.engine.checkpoint.restore_check": "OperatorReport RestoreReport RestoreVerdict StateReport",
    "headrace.engine.windows.triggers": (
        "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger CountTrigger DeltaTrigger EventTimeTrigger"
        " NeverTrigger ProcessingTimeTrigger PurgingTrigger Trigger TriggerResult"
    ),
    "headrace.engine.windows.assigners": (
        "CumulativeEventTimeWindows DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows"
        " EventTimeSessionWindows GlobalWindows MergingWindowAssigner"
        " ProcessingTimeSessionWindows SessionWindowTimeGapExtractor SlidingEventTimeWindows"
        " SlidingProcessingTimeWindows TumblingEventTimeWindows TumblingProcessingTimeWindows"
        " WindowAssigner"
    ),
    "headrace.engine.windows.windows": "GlobalWindow TimeWindow",
    "headrace.stream.checkpoint_config": "CheckpointConfig ExternalizedCheckpointRetention",
    "headrace.stream.environment": "StreamExecutionEnvironment",
    "headrace.stream.environment_settings": "RuntimeExecutionMode",
    "headrace.stream.restart_strategies": "RestartStrategies",
    "headrace.state.keyed.contract": "BroadcastState",
    "headrace.state.backends.choice": "HashMapStateBackend RocksDBStateBackend",
    "headrace.stream.iterative_stream": "IterativeStream",
    "headrace.stream.keyed_stream": "KeyedStream",
    "headrace.state.keyed.descriptors": (
        "AggregatingState AggregatingStateDescriptor ListState ListStateDescriptor MapState MapStateDescriptor"
        " ReducingState ReducingStateDescriptor ValueState ValueStateDescriptor"
    ),
    "headrace.state.checkpoints.savepoints": "dispose_savepoint",
    "headrace.jobs.snapshots": "Snapshot SnapshotWriter",
    "headrace.state.keyed.kinds": "StateDescriptor",
    "headrace.state.keyed.ttl": "StateTtlConfig",
    "headrace.stream.windowed_stream": "AllWindowedStream WindowedStream",
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
    "AutoscalerSettings",
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
    "KeepingReader",
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
    "ReporterSettings",
    "RestSettings",
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


if not TYPE_CHECKING:  # who checks types says himself that there is no such name

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
