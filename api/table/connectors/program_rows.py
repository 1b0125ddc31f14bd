"""Rows that a program has at hand, as a table: Arrow, pandas, a data set of Ray or of its own, a stream."""

from __future__ import annotations

import hashlib
import io
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ProgramError, nearest
from headrace.engine.graph.transformations import OperatorTransformation, Transformation, inputs_of
from headrace.engine.plan.plan import walk

from ...dataset.dataset import DataSet
from ...stream.data_stream import DataStream
from .changelog import ChangesOfColumn, behind
from .contract import TableConnector

if TYPE_CHECKING:
    from headrace.engine.operators.event_time import WatermarkStrategy

    from ...dataset import ExecutionEnvironment
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["GivenTable"]


class GivenTable(TableConnector):
    """Rows at hand.

    Args:
        rows: An Arrow table, a data set, or a stream of columns.
        schema: Their columns, without that of kinds.
        kind_column: The column of a stream that says what each change is; None if its rows only come.
    """

    name = "given"

    def __init__(
        self, rows: pa.Table | DataSet | DataStream, schema: pa.Schema, kind_column: str | None = None
    ) -> None:
        self._rows = rows
        self._kind_column = kind_column
        self.schema = schema
        self.gives_changes = kind_column is not None
        # All of the program that have no name and are not at hand, this one among them.
        self.unnamed: list[GivenTable] = []

    @classmethod
    def of(cls, rows: Any) -> GivenTable:
        """Return rows as a table.

        Raises:
            ProgramError: If they are none.
        """
        if isinstance(rows, DataStream):
            return cls(rows, _columns_of(rows))
        if isinstance(rows, DataSet):
            if rows.schema is None:
                message = "the columns of the data set are not known"
                raise ProgramError(message, hint="declare the type of its records: map(..., output_type=...)")
            return cls(rows, rows.schema.remove_metadata())
        table = _table_of(rows)
        return cls(table, table.schema.remove_metadata())

    @classmethod
    def of_changes(cls, stream: DataStream, kind_column: str) -> GivenTable:
        """Return a stream of changes as a table; a column says what each is.

        Raises:
            ProgramError: If there is no such column of texts.
        """
        schema = _columns_of(stream)
        index = schema.get_field_index(kind_column)
        if index < 0 or not pa.types.is_string(schema.field(index).type):
            message = f"the stream has no column {kind_column!r} of texts that says what each change is"
            raise ProgramError(message, hint=nearest(kind_column, schema.names))
        return cls(stream, schema.remove(index), kind_column)

    @property
    def is_at_hand(self) -> bool:
        """Whether its rows are there, and not only what makes them."""
        return isinstance(self._rows, pa.Table)

    def identity_in_program(self) -> str:
        """Return the path under which the program has it; of rows without a name what they are, or are made by.

        What is made in the same way is told apart by the order in which the program has made it.
        """
        if self.path is not None:
            return super().identity_in_program()
        alike = sorted({one.number for one in self.unnamed if one.made_by == self.made_by})
        return self.made_by if self.is_at_hand else f"{self.made_by} {alike.index(self.number)}"

    @cached_property
    def made_by(self) -> str:
        """What the rows are if they are at hand, else what makes them: the same whenever the program is run."""
        if isinstance(self._rows, pa.Table):
            return _digest_of(self._rows)
        if isinstance(self._rows, DataSet):
            return repr([(type(node).__name__, node.name) for node in walk(self._rows.take_node())])
        return repr((list(map(_name_of, _made_of(self._rows.transformation))), self._kind_column))

    @property
    def number(self) -> int:
        """Of what makes its rows, by the order of the program; 0 for rows at hand."""
        if isinstance(self._rows, pa.Table):
            return 0
        return (
            self._rows.take_node().id
            if isinstance(self._rows, DataSet)
            else self._rows.transformation.transformation_id
        )

    def sources(self) -> list[OperatorTransformation]:
        """Return what the program reads for the rows; nothing for what is no stream."""
        if not isinstance(self._rows, DataStream):
            return []
        ends = [one for one in _made_of(self._rows.transformation) if not inputs_of(one)]
        return [one for one in ends if isinstance(one, OperatorTransformation)]

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Return the rows as a stream."""
        if isinstance(self._rows, pa.Table):
            return env.from_collection(self._rows.select(schema.names))
        if isinstance(self._rows, DataSet):
            return self._rows.to_stream(env)
        if self._rows.get_execution_environment() is not env:
            message = "the stream is of another environment than stream_environment"
            raise ProgramError(message)
        if self._kind_column is None:
            return self._rows
        changes = ChangesOfColumn(self._kind_column, _columns_of(self._rows))
        return behind(self._rows, changes, "changes", self.schema)

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Return the rows as a data set."""
        if isinstance(self._rows, DataStream):
            msg = "be read in batch mode: it is a stream"
            raise self._cannot(msg)
        if isinstance(self._rows, DataSet):
            env.require_same(self._rows, self._rows)
            return self._rows.select(*schema.names)
        return env.from_arrow(self._rows.select(schema.names))


def _columns_of(stream: DataStream) -> pa.Schema:
    if stream.known_columns is None:
        message = "the columns of the stream are not known"
        raise ProgramError(message, hint="declare the type of its records: map(..., output_type=...)")
    return stream.known_columns.remove_metadata()


def _made_of(end: Transformation) -> list[Transformation]:
    """What a stream is made of, the stream itself first."""
    found: dict[int, Transformation] = {}
    stack = [end]
    while stack:
        one = stack.pop()
        if one.transformation_id not in found:
            found[one.transformation_id] = one
            stack += inputs_of(one)
    return list(found.values())


def _name_of(one: Transformation) -> str:
    """The id that the program has given an operator, or what it is called."""
    return (one.uid or one.name) if isinstance(one, OperatorTransformation) else type(one).__name__


class _Hashed(io.RawIOBase):
    """A file that only knows a digest of what is written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


def _digest_of(table: pa.Table) -> str:
    """A digest of all values of a table, however it is cut into chunks."""
    hashed = _Hashed()
    with pa.ipc.new_stream(hashed, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None).combine_chunks())
    return hashed.digest.hexdigest()


def _table_of(rows: Any) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if hasattr(rows, "iter_batches"):  # a data set of Ray
        return pa.concat_tables(rows.iter_batches(batch_format="pyarrow", batch_size=None))
    if hasattr(rows, "to_records") and not isinstance(rows, pa.Table):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if not isinstance(rows, pa.Table):
        message = f"rows are an Arrow table, a data frame, a data set or a stream; got {type(rows).__name__}"
        raise ProgramError(message)
    return rows
