"""Where streams of a program begin: what an environment reads.

Source: PyFlink's ``StreamExecutionEnvironment``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.engine.connectors.contract import Source
from headrace.engine.connectors.source_protocols import check_source
from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import ProgramError
from headrace.engine.functions.life import refuse_life
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.transformations import OperatorKind, OperatorTransformation
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.state.type_variables import T

from ..arguments.data_types import Types, resolve_type, schema_of
from ..arguments.known_columns import columns_of_source
from .environment_settings import EnvironmentSettings

if TYPE_CHECKING:
    from .data_stream import DataStream
    from .environment import StreamExecutionEnvironment

__all__ = ["EnvironmentSources"]

_Record = TypeVar("_Record")


class EnvironmentSources(EnvironmentSettings, ABC):
    """An environment as far as it makes streams of what is outside."""

    @abstractmethod
    def new_id(self) -> int:
        """Return an id for the next transformation."""

    @abstractmethod
    def _as_environment(self) -> StreamExecutionEnvironment:
        """The environment itself, which streams know."""

    def from_source(
        self,
        source: Source[T],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        type_info: Any = None,
    ) -> DataStream[T]:
        """Read a source.

        Args:
            source: Where the records come from.
            watermark_strategy: How event time is found and progresses; None for no watermarks.
            source_name: For people.
            type_info: The declared type of its records, if it does not know better itself.
        """
        strategy = WatermarkStrategy.no_watermarks() if watermark_strategy is None else watermark_strategy
        for name, value, kind in (
            ("source", source, "create_enumerator"),
            ("watermark_strategy", strategy, "with_timestamp_assigner"),
        ):
            if not hasattr(value, kind):
                message = f"{name} must be a {'Source' if name == 'source' else 'WatermarkStrategy'}; got {value!r}"
                raise ProgramError(message)
        refuse_life(source, "a source", "its reader may have state and hear of checkpoints")
        check_source(source, source_name)
        return self._add_source(SourceOperator(source, strategy), source_name, type_info)

    @overload
    def from_collection(self, collection: Iterable[_Record], type_info: None = None) -> DataStream[_Record]: ...

    @overload
    def from_collection(self, collection: Any, type_info: Any) -> DataStream[Any]: ...

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream[Any]:
        """Read the elements of a collection, in order, in one subtask.

        Args:
            collection: Finite; read to its end at once. A ``pyarrow`` table or record batch is read as columns.
            type_info: The elements' type; None leaves them as Python objects.
        """
        from ..connectors.collection import CollectionSource

        schema = None if type_info is None else schema_of(resolve_type(type_info))
        operator = SourceOperator(CollectionSource(collection, schema), WatermarkStrategy.no_watermarks())
        return self._add_source(operator, "collection", None, is_parallel=False)

    @overload
    def from_elements(self, *elements: _Record, type_info: None = None) -> DataStream[_Record]: ...

    @overload
    def from_elements(self, *elements: Any, type_info: Any) -> DataStream[Any]: ...

    def from_elements(self, *elements: Any, type_info: Any = None) -> DataStream[Any]:
        """Read the given elements, in order, in one subtask."""
        return self.from_collection(elements, type_info)

    def from_sequence(self, from_: int, to: int) -> DataStream[int]:
        """Read the whole numbers from one to another, both included, in parallel.

        Each subtask gets numbers in ascending order; between subtasks there is none.

        Args:
            from_: The first number; of 64 bits.
            to: The last one.

        Raises:
            ConfigurationError: If there is none, or one has more than 64 bits.
        """
        from ..connectors.datagen import number_sequence

        source = number_sequence(from_, to, self.get_parallelism())
        operator = SourceOperator(source, WatermarkStrategy.no_watermarks())
        return self._add_source(operator, f"sequence {from_} to {to}", Types.LONG())

    def read_text_file(self, file_path: str | os.PathLike[str], charset_name: str = "UTF-8") -> DataStream[str]:
        """Read text files, exactly once; every line is a record, without its line end.

        For more than one file, for compressed or followed ones and bad bytes there is `FileSource.text`, which this is.

        Args:
            file_path: A file, a directory or a glob; a local path or a URI.
            charset_name: The encoding, as Python knows it.

        Raises:
            ConfigurationError: If lines cannot be told apart in the encoding, or there is none of the name.
        """
        from ..connectors.files.source import FileSource

        operator = SourceOperator(FileSource.text(file_path, charset_name), WatermarkStrategy.no_watermarks())
        return self._add_source(operator, f"text of {os.fspath(file_path)}", Types.STRING())

    def socket_text_stream(self, host: str, port: int) -> DataStream[str]:
        """Read lines of text from a socket, in one subtask.

        A socket cannot be rewound: lines in flight at a failure are lost.
        """
        from ..connectors.socket import SocketTextSource

        operator = SourceOperator(SocketTextSource(host, port), WatermarkStrategy.no_watermarks())
        return self._add_source(operator, f"socket {host}:{port}", None, is_parallel=False)

    def _add_source(
        self, operator: Operator, name: str, type_info: Any, *, is_parallel: bool = True
    ) -> DataStream[Any]:
        from .data_stream import DataStream

        transformation = OperatorTransformation(
            self.new_id(),
            name,
            OperatorKind.SOURCE,
            operator,
            (),
            self.get_parallelism() if is_parallel else 1,
            is_parallel=is_parallel,
            output_schema=None if type_info is None else schema_of(resolve_type(type_info)),
        )
        known = transformation.output_schema or columns_of_source(getattr(operator, "source", None))
        return DataStream(self._as_environment(), transformation, None, known)
