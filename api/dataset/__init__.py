"""The DataSet API: bounded data, on Spark inside the Ray cluster or in process.

``from headrace import ExecutionEnvironment`` is where programs begin; the names here are what they may want besides.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.dataset.dataset import DataSet
    from headrace.dataset.environment import DataSetResult, ExecutionEnvironment
    from headrace.dataset.grouped import GroupedDataSet
    from headrace.dataset.hadoop import Combiner, HadoopJob, Mapper, Reducer
    from headrace.dataset.iterations import DeltaIterationBuilder, IterativeDataSet
    from headrace.dataset.pairs import CoGroupBuilder, CrossDataSet, JoinBuilder, JoinedDataSet, SemiJoinBuilder
    from headrace.engine.dataset.context import DataSetRuntimeContext, DistributedCache
    from headrace.engine.dataset.join_nodes import JoinHint
    from headrace.engine.dataset.user_functions import (
        ConvergenceCriterion,
        CrossFunction,
        GroupCombineFunction,
        GroupReduceFunction,
        MapPartitionFunction,
        Partitioner,
    )

_NAMES_BY_MODULE = {
    "headrace.dataset.dataset": "DataSet",
    "headrace.dataset.environment": "DataSetResult ExecutionEnvironment",
    "headrace.dataset.grouped": "GroupedDataSet",
    "headrace.dataset.hadoop": "Combiner HadoopJob Mapper Reducer",
    "headrace.dataset.iterations": "DeltaIterationBuilder IterativeDataSet",
    "headrace.dataset.pairs": "CoGroupBuilder CrossDataSet JoinBuilder JoinedDataSet SemiJoinBuilder",
    "headrace.engine.dataset.context": "DataSetRuntimeContext DistributedCache",
    "headrace.engine.dataset.join_nodes": "JoinHint",
    "headrace.engine.dataset.user_functions": (
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
