"""Windows of a stream without key, and the functions that can be given to them.

All records of a window come together in one subtask: such an operator does not scale. Its functions are those of keyed
windows without the key.

Source: PyFlink's ``AllWindowedStream``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.graph.transformations import OperatorTransformation, PartitionTransformation
from headrace.engine.operators.exchange import GlobalPartitioner
from headrace.engine.windows.all_windows import OneKey, without_key
from headrace.engine.windows.assigners import WindowAssigner
from headrace.engine.windows.operator import WindowOperator

from ..arguments.data_types import TypeInformation
from .data_stream import DataStream
from .windowed_stream import WindowedStream

__all__ = ["AllWindowedStream"]


class AllWindowedStream(WindowedStream):
    """The windows of a stream without key, to be given a function. Made by ``window_all`` and ``count_window_all``.

    Where keyed windows take a ProcessWindowFunction or WindowFunction, these take a ProcessAllWindowFunction or
    AllWindowFunction; callables of `process` take context and records, those of `apply` window and records.
    """

    def __init__(self, stream: DataStream, assigner: WindowAssigner) -> None:
        environment = stream.get_execution_environment()
        partition = PartitionTransformation(environment.new_id(), stream.transformation, GlobalPartitioner())
        super().__init__(
            DataStream(environment, partition, stream.hinted_type, stream.known_columns), OneKey(), assigner
        )

    def _transformed(
        self,
        name: str,
        operator: WindowOperator,
        output_type: Any,
        description: str,
        hinted: TypeInformation | None,
    ) -> DataStream:
        stream = super()._transformed(name, operator, output_type, description, hinted)
        transformation = stream.transformation
        assert isinstance(transformation, OperatorTransformation)
        transformation.parallelism = 1
        transformation.is_parallel = False
        return stream

    def _window_function(self, window_function: Any) -> Any:
        return None if window_function is None else without_key(window_function)

    def _applied(self, window_function: Any) -> Any:
        return without_key(window_function, is_apply=True)
