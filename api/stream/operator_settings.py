"""What can be set on the operator that made a stream, or on a sink."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.graph.stream_graph import MAX_MAX_PARALLELISM
from headrace.engine.graph.transformations import ChainingStrategy, OperatorTransformation, Transformation
from headrace.engine.kernel.config import parse_duration_ms

from ..arguments.checks import text, whole

__all__ = ["OperatorSettings"]

_Settable = TypeVar("_Settable", bound="OperatorSettings")


class OperatorSettings:
    """What can be set on the operator that made a stream, or on a sink."""

    transformation: Transformation

    def _operator(self, what: str) -> OperatorTransformation:
        if not isinstance(self.transformation, OperatorTransformation):
            message = f"{what} belongs to operators; this stream is a union, a partitioning or a side output"
            raise ProgramError(message, hint="set it on the operator before or after it")
        return self.transformation

    def name(self: _Settable, name: str) -> _Settable:
        """Name the operator, for people."""
        self._operator("name").name = text("name", name)
        return self

    def get_name(self) -> str:
        """Return the operator's name."""
        return self._operator("name").name

    def uid(self: _Settable, uid: str) -> _Settable:
        """Give the operator the id by which its state is found again after a restart or a change of the program."""
        self._operator("uid").uid = text("uid", uid)
        return self

    def set_description(self: _Settable, description: str) -> _Settable:
        """Describe the operator in plans."""
        self._operator("description").description = text("description", description)
        return self

    def set_parallelism(self: _Settable, parallelism: int) -> _Settable:
        """Set the number of the operator's subtasks.

        Raises:
            ConfigurationError: If it is below 1, above the largest possible, or not 1 where it must be.
        """
        operator = self._operator("parallelism")
        whole("parallelism", parallelism, 1, operator.max_parallelism or MAX_MAX_PARALLELISM)
        if not operator.is_parallel and parallelism != 1:
            message = f"parallelism must be 1, this operator cannot be split; got {parallelism}"
            raise ConfigurationError(message, operator=operator.name)
        operator.parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return the number of the operator's subtasks."""
        return self._operator("parallelism").parallelism

    def force_non_parallel(self: _Settable) -> _Settable:
        """Run the operator as one subtask, for good: another parallelism is refused."""
        operator = self._operator("parallelism")
        operator.parallelism, operator.is_parallel = 1, False
        return self

    def set_max_parallelism(self: _Settable, max_parallelism: int) -> _Settable:
        """Set the number of the operator's key groups; cannot be changed with its state kept."""
        whole("max_parallelism", max_parallelism, 1, MAX_MAX_PARALLELISM)
        self._operator("max_parallelism").max_parallelism = max_parallelism
        return self

    def slot_sharing_group(self: _Settable, group: str) -> _Settable:
        """Put the operator, and all behind it that say nothing else, in a slot sharing group."""
        self._operator("slot sharing group").slot_sharing_group = text("slot sharing group", group)
        return self

    def disable_chaining(self: _Settable) -> _Settable:
        """Run the operator as a task of its own."""
        self._operator("chaining").chaining = ChainingStrategy.NEVER
        return self

    def set_buffer_timeout(self: _Settable, timeout: Any) -> _Settable:
        """Send the operator's half-full output buffers after this long at the latest.

        The whole job's buffer timeout is lowered to it.
        """
        timeout_ms = parse_duration_ms(timeout)
        if timeout_ms < 0:
            message = f"buffer timeout must be at least 0 ms; got {timeout!r}"
            raise ConfigurationError(message)
        self._operator("buffer timeout").buffer_timeout_ms = timeout_ms
        return self
