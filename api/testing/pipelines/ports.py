"""The ends of a program under test: inputs that the test feeds, outputs that it reads.

An input is a source of the program like any other, whose task is handed elements instead of splits: what is fed goes
through the very channels, barriers and tasks that records of a real source go through. An output is an operator at the
end that reports whatever comes to it.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch, StreamStatus, Watermark
from headrace.engine.connectors.sources import PollResult, SourceOperator
from headrace.engine.errors import ProgramError
from headrace.engine.functions.operator import Operator, OperatorContext
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.transformations import OperatorKind, OperatorTransformation
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.state.identifiers import VertexId

from ...stream.data_stream import DataStream
from ...stream.environment import StreamExecutionEnvironment
from ..operators.harness import WatermarkGuard

__all__ = ["ENVIRONMENT_NAMES", "OUTPUT_REPORT", "Fed", "Input", "declare_inputs", "declare_outputs", "vertex_of"]

ENVIRONMENT_NAMES = ("env", "environment")
"""Parameters of a program that are given its environment."""

OUTPUT_REPORT = "test-output"
"""Name of the reports of outputs: pairs of (output's name, element)."""


@dataclass
class Input:
    """One input of the program."""

    name: str
    stream: DataStream
    watermark: WatermarkGuard
    has_ended: bool = False


class _Unbounded:
    """What an input's operator says of its source."""

    is_bounded = False


@dataclass(frozen=True)
class Fed:
    """Elements for an input, in place of a split."""

    elements: tuple[Any, ...]


class _InputOperator(SourceOperator):
    """A source that emits what it is handed as its splits."""

    requests_split = False
    wants_split = False
    is_waiting_for_split = True

    def __init__(self) -> None:
        source: Any = _Unbounded()
        super().__init__(source, WatermarkStrategy.no_watermarks())
        self._fed: deque[Any] = deque()
        self._is_over = False

    def open(self, context: OperatorContext) -> None:
        Operator.open(self, context)

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Store nothing: everything fed has been emitted."""

    def add_splits(self, splits: Any) -> None:
        for fed in splits:
            self._fed.extend(fed.elements)

    def no_more_splits(self) -> None:
        self._is_over = True

    def poll_next(self, max_records: int) -> PollResult:
        output = self.context.output
        while self._fed:
            element = self._fed.popleft()
            if isinstance(element, Batch):
                output.emit(element)
            elif isinstance(element, Watermark):
                output.emit_watermark(element)
            else:
                output.emit_status(element)
        return PollResult.ENDED if self._is_over else PollResult.NOTHING

    def next_poll_ms(self) -> int | None:
        return None


class _OutputOperator(Operator):
    """Reports everything that comes to it."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def process_batch(self, batch: Batch, input_index: int) -> None:
        self._report(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        self._report(watermark)

    def process_status(self, status: StreamStatus) -> None:
        self._report(status)

    def _report(self, element: Any) -> None:
        self.context.report(OUTPUT_REPORT, (self._name, element))


def declare_inputs(env: StreamExecutionEnvironment, program: Any) -> dict[str, Input]:
    if not callable(program):
        message = f"the program must be a function of its input streams; got {program!r}"
        raise ProgramError(message)
    inputs: dict[str, Input] = {}
    for name, parameter in inspect.signature(program).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            message = f"each parameter of the program names an input; {parameter} does not"
            raise ProgramError(message)
        if name in ENVIRONMENT_NAMES or parameter.default is not parameter.empty:
            continue
        transformation = OperatorTransformation(
            env.new_id(), name, OperatorKind.SOURCE, _InputOperator(), (), 1, is_parallel=False
        )
        inputs[name] = Input(name, DataStream(env, transformation), WatermarkGuard(f"input {name!r}"))
    return inputs


def declare_outputs(returned: Any) -> list[str | None]:
    """Put an operator that reports behind each stream that the program returned; gives the outputs' names."""
    if returned is None:
        return []
    outputs: Mapping[str | None, Any] = returned if isinstance(returned, Mapping) else {None: returned}
    for name, stream in outputs.items():
        if not isinstance(stream, DataStream):
            message = f"the program must return a stream, a dict of streams by name, or None; got {stream!r}"
            raise ProgramError(message)
        stream.transform("test output", _OutputOperator(name)).set_parallelism(1)
    return list(outputs)


def vertex_of(graph: JobGraph, stream: DataStream) -> VertexId:
    transformation = stream.transformation
    assert isinstance(transformation, OperatorTransformation)
    for vertex in graph.vertices.values():
        if vertex.chain[0].operator is transformation.operator:
            return vertex.vertex_id
    message = f"the program does not use its input {transformation.name!r}"
    raise ProgramError(message)
