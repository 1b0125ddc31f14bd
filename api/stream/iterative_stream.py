"""Streams that go round: `DataStream.iterate` opens a loop, `IterativeStream.close_with` closes it.

    steps = numbers.iterate()
    minus_one = steps.map(lambda n: n - 1)
    steps.close_with(minus_one.filter(lambda n: n > 0))
    minus_one.filter(lambda n: n <= 0).print()

The stream that ``iterate`` gives holds the records of the original stream and, in no order between them, those that
come back. Whatever is not closed with goes on downstream. The feedback may be filtered, keyed, a union, of any
parallelism; several loops may follow each other, none may be nested. What is in a loop belongs to checkpoints: after a
failure it is in the loop again, each record once.

Event time goes on behind a loop once nothing earlier is left in it, so windows there see no record late because it went
round for long. Inside of the loop a window's result is behind the watermark that fired it. A bounded program ends when
its input has ended and the loop is empty.

Source: Flink's ``DataStream.iterate`` and ``IterativeStream.closeWith``; exactly-once and the detection of the end are
Headrace's own, see ``headrace.engine.task.loop_head``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.graph.transformations import IterationTransformation, OperatorKind, is_behind
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.task.loop_head import IterationHead
from headrace.state.type_variables import T1

from ..arguments.checks import require_instance
from .data_stream import DataStream

__all__ = ["IterativeStream"]


class IterativeStream(DataStream[T1]):
    """The beginning of a loop's body; made by `DataStream.iterate`.

    Args:
        stream: What enters the loop.
        max_wait_time: As in `DataStream.iterate`.
    """

    def __init__(self, stream: DataStream[T1], max_wait_time: Any = None) -> None:
        max_wait_ms = None if max_wait_time is None else parse_duration_ms(max_wait_time)
        if max_wait_ms is not None and max_wait_ms < 1:
            message = f"max_wait_time must be at least 1 ms; got {max_wait_time!r}"
            raise ConfigurationError(message)
        environment = stream.get_execution_environment()
        head = IterationTransformation(
            environment.new_id(),
            "iteration",
            OperatorKind.OPERATOR,
            IterationHead(max_wait_ms),
            (stream.transformation,),
            environment.get_parallelism(),
        )
        environment.add_operator(head)
        super().__init__(environment, head, stream.hinted_type)
        self._head = head

    def close_with(self, feedback_stream: DataStream[T1]) -> DataStream[T1]:
        """Send a stream back to the beginning of the loop; may be called several times, then all of them come back.

        Args:
            feedback_stream: Made of this stream, of records of its type. Its partitioning says to which subtask of the
                iteration each record comes back; if the body begins with ``key_by`` any will do.

        Returns:
            The feedback stream.

        Raises:
            ProgramError: If it is not made of this stream, or is this stream.
        """
        require_instance("close_with takes a stream", DataStream, feedback_stream)
        if feedback_stream.get_execution_environment() is not self._environment:
            message = "streams of different environments cannot be combined"
            raise ProgramError(message)
        if feedback_stream.transformation is self._head or not is_behind(feedback_stream.transformation, self._head):
            message = "an iteration must be closed with a stream that is made of it by at least one operation"
            raise ProgramError(message, hint="close it with what map, filter ... of the iteration's stream give")
        self._head.feedbacks.append(feedback_stream.transformation)
        return feedback_stream
