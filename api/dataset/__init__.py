"""The DataSet API: bounded data, on Spark inside the Ray cluster or in process.

``from headrace import ExecutionEnvironment`` is where programs begin; the names here are what they may want besides.

`environment` is where programs begin and are run, `sources` what they begin with; `dataset`, `grouped`,
`joins_and_crosses`, `two_inputs`, `columns` and `iterations` write nodes of `headrace.engine.plan`. The
sub-room `files` reads and writes files.

May import: `headrace.stream` (types only), `headrace.jobs`, `headrace.rest`, `headrace.connectors.files`,
`headrace.formats`, `headrace.arguments`, `headrace.engine`, `headrace.state`; actors in `environment` and
`reported_runs`, inside functions. Start reading at `environment`, then `dataset`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.engine.partitions.context import DataSetRuntimeContext, DistributedCache
    from headrace.engine.plan.join_nodes import JoinHint
    from headrace.engine.plan.user_functions import (
        ConvergenceCriterion,
        CrossFunction,
        GroupCombineFunction,
        GroupReduceFunction,
        MapPartitionFunction,
        Partitioner,
    )

    from .dataset import DataSet
    from .environment import DataSetResult, ExecutionEnvironment
    from .grouped import GroupedDataSet
    from .hadoop import Combiner, HadoopJob, Mapper, Reducer
    from .iterations import DeltaIterationBuilder, IterativeDataSet
    from .joins_and_crosses import CoGroupBuilder, CrossDataSet, JoinBuilder, JoinedDataSet, SemiJoinBuilder

_NAMES_BY_MODULE = {
    "headrace.dataset.dataset": "DataSet",
    "headrace.dataset.environment": "DataSetResult ExecutionEnvironment",
    "headrace.dataset.grouped": "GroupedDataSet",
    "headrace.dataset.hadoop": "Combiner HadoopJob Mapper Reducer",
    "headrace.dataset.iterations": "DeltaIterationBuilder IterativeDataSet",
    "headrace.dataset.joins_and_crosses": "CoGroupBuilder CrossDataSet JoinBuilder JoinedDataSet SemiJoinBuilder",
    "headrace.engine.partitions.context": "DataSetRuntimeContext DistributedCache",
    "headrace.engine.plan.join_nodes": "JoinHint",
    "headrace.engine.plan.user_functions": (
        "ConvergenceCriterion CrossFunction GroupCombineFunction GroupReduceFunction MapPartitionFunction Partitioner"
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "CoGroupBuilder",
    "Combiner",
    "ConvergenceCriterion",
    "CrossDataSet",
    "CrossFunction",
    "DataSet",
    "DataSetResult",
    "DataSetRuntimeContext",
    "DeltaIterationBuilder",
    "DistributedCache",
    "ExecutionEnvironment",
    "GroupCombineFunction",
    "GroupReduceFunction",
    "GroupedDataSet",
    "HadoopJob",
    "IterativeDataSet",
    "JoinBuilder",
    "JoinHint",
    "JoinedDataSet",
    "MapPartitionFunction",
    "Mapper",
    "Partitioner",
    "Reducer",
    "SemiJoinBuilder",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        message = f"module 'headrace.dataset' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(module), name)
