"""Windows of a stream without key, and the functions that can be given to them.

All records of a window come together in one subtask: such an operator does not scale. Built-in aggregates on columns
do most of their work before that, at the parallelism of the stream. Functions are those of keyed windows without the
key.

Source: PyFlink's ``AllWindowedStream``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.engine.functions.given import T1
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.transformations import OperatorTransformation, PartitionTransformation
from headrace.engine.operators.exchange import GlobalPartitioner
from headrace.engine.windows.all_windows import OneKey, without_key
from headrace.engine.windows.assigners import WindowAssigner

from ..arguments.data_types import TypeInformation
from .data_stream import DataStream
from .windowed_stream import WindowedStream

__all__ = ["AllWindowedStream"]


class AllWindowedStream(WindowedStream[T1]):
    """The windows of a stream without key, to be given a function. Made by ``window_all`` and ``count_window_all``.

    Where keyed windows take a ProcessWindowFunction or WindowFunction, these take a ProcessAllWindowFunction or
    AllWindowFunction; callables of `process` take context and records, those of `apply` window and records.
    """

    def __init__(self, stream: DataStream[T1], assigner: WindowAssigner) -> None:
        super().__init__(_in_one_place(stream), OneKey(), assigner, stream)

    def _transformed(
        self,
        name: str,
        operator: Operator,
        output_type: Any,
        description: str,
        hinted: TypeInformation | None,
        *,
        known_columns: pa.Schema | None = None,
        behind: DataStream[Any] | None = None,
    ) -> DataStream[Any]:
        stream = super()._transformed(
            name, operator, output_type, description, hinted, known_columns=known_columns, behind=behind
        )
        transformation = stream.transformation
        assert isinstance(transformation, OperatorTransformation)
        transformation.parallelism = 1
        transformation.is_parallel = False
        return stream

    def _partitioned(self, stream: DataStream[Any]) -> DataStream[Any]:
        return _in_one_place(stream)

    def _window_function(self, window_function: Any) -> Any:
        return None if window_function is None else without_key(window_function)

    def _applied(self, window_function: Any) -> Any:
        return without_key(window_function, is_apply=True)


def _in_one_place(stream: DataStream[T1]) -> DataStream[T1]:
    environment = stream.get_execution_environment()
    partition = PartitionTransformation(environment.new_id(), stream.transformation, GlobalPartitioner())
    return DataStream(environment, partition, stream.hinted_type, stream.known_columns)
