"""Operators that compute columns from columns: filter, select, add columns.

They ask batches for their columns, evaluate expressions over all records at once and keep each record's event time.
They hold no state and know nothing of keys. Records that came as Python objects are turned into columns by the declared
schema, if there is one, else by looking at each batch.

Invariant: order and event times of records are kept; a filter passes exactly the records whose condition is true (null
is not true).

Source: Flink's ``Calc`` of the Table API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

import pyarrow as pa

from headrace.state.errors import HeadraceError, ProgramError
from headrace.state.values.types import RECORD_SHAPE

from ..columns.conditions import require_condition, where_true
from ..columns.expressions import Expression, expression_of
from ..columns.filtering import rows_where
from ..columns.records import Batch, Timestamps
from ..functions.operator import KeyFields, Operator, OperatorContext, add_place, place_of

__all__ = ["FilterColumns", "SelectColumns", "naming_operator", "records_schema"]


@contextmanager
def naming_operator(context: OperatorContext) -> Iterator[None]:
    """Add the operator and subtask to errors raised inside."""
    try:
        yield
    except HeadraceError as error:
        add_place(error, place_of(context.name, context.subtask, context.parallelism), None)
        raise


def records_schema(fields: list[pa.Field], metadata: dict[bytes, bytes] | None = None) -> pa.Schema:
    """Return a schema whose records are dicts: other metadata is kept, the mark of tuples and plain values is not."""
    kept = {key: value for key, value in (metadata or {}).items() if key != RECORD_SHAPE}
    return pa.schema(fields, metadata=kept or None)


class FilterColumns(Operator):
    """Pass the records for which a condition is true.

    Args:
        condition: A boolean expression.
        input_schema: Declared type of the records; None to go by what comes.
    """

    may_change_records = False
    face = "columns"
    takes_changes = True

    def __init__(self, condition: Expression, input_schema: pa.Schema | None = None) -> None:
        self.condition = condition
        self.input_schema = input_schema

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output: the input's.

        Raises:
            TypeMismatchError: If the condition is not boolean.
        """
        require_condition(self.condition, self.condition.output_type(input_schema))
        return input_schema

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        return frozenset(keys)

    def passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a record batch that pass."""
        return rows_where(batch, where_true(self.condition, batch))

    def process_batch(self, batch: Batch, input_index: int) -> None:
        with naming_operator(self.context):
            columns = batch.columns_as(self.input_schema)
            chosen = where_true(self.condition, columns)
        if chosen.all():
            self.context.output.emit(batch)
        elif chosen.any():
            self.context.output.emit(batch.filter(chosen))

    def __repr__(self) -> str:
        return f"FilterColumns({self.condition!r})"


class SelectColumns(Operator):
    """Compute the columns of new records.

    Args:
        columns: Expressions (or constants) by the name of the new column, in order.
        keep: Whether the other columns of the input stay, in front; those of the same name are replaced in place.
        input_schema: Declared type of the records; None to go by what comes.
        event_time: Name and type of the column that gives the event times which the records have, in milliseconds: it
            is made of those, if there are some, and not computed again.

    Raises:
        ProgramError: If there is no column.
    """

    may_change_records = False
    face = "columns"
    takes_changes = True

    def __init__(
        self,
        columns: Mapping[str, Expression],
        *,
        keep: bool = False,
        input_schema: pa.Schema | None = None,
        event_time: pa.Field | None = None,
    ) -> None:
        if not columns:
            message = "at least one column must be selected"
            raise ProgramError(message)
        self.columns = {name: expression_of(value) for name, value in columns.items()}
        self.keep = keep
        self.input_schema = input_schema
        self.event_time = event_time

    @classmethod
    def with_columns(cls, columns: Mapping[str, Expression], input_schema: pa.Schema | None = None) -> SelectColumns:
        """Add columns to the input's, or replace those of the same name."""
        return cls(columns, keep=True, input_schema=input_schema)

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output.

        Raises:
            ProgramError: If an expression reads a column that is not there.
            TypeMismatchError: If an expression does not fit the types.
        """
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in input_schema], schema=input_schema)
        return self.select(empty).schema

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        read = {name: one.structure for name, one in self.columns.items()}
        if self.event_time is not None:
            read.pop(self.event_time.name, None)

        def names_of(field: str) -> list[str]:
            stays = [field] if self.keep and field not in self.columns else []
            return [*stays, *(name for name, structure in read.items() if structure == ("col", field))]

        return frozenset(names for key in keys for names in product(*map(names_of, key)))

    def select(self, batch: pa.RecordBatch, times: Timestamps | None = None) -> pa.RecordBatch:
        """Compute the new columns of a record batch, of records with or without event times."""
        known: dict[str, pa.Array] = {}
        if self.event_time is not None and times is not None:
            known[self.event_time.name] = pa.array(times).view(self.event_time.type)
        computed = {name: known[name] if name in known else one.evaluate(batch) for name, one in self.columns.items()}
        fields: list[pa.Field] = []
        arrays: list[pa.Array] = []
        if self.keep:
            for field, array in zip(batch.schema, batch.columns, strict=True):
                replacement = computed.pop(field.name, None)
                arrays.append(array if replacement is None else replacement)
                fields.append(field if replacement is None else pa.field(field.name, replacement.type))
        for name, array in computed.items():
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        return pa.RecordBatch.from_arrays(arrays, schema=records_schema(fields, batch.schema.metadata))

    def process_batch(self, batch: Batch, input_index: int) -> None:
        with naming_operator(self.context):
            selected = self.select(batch.columns_as(self.input_schema), batch.timestamps)
        self.context.output.emit(Batch.of_columns(selected, batch.timestamps, batch.row_kinds))

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}={expression!r}" for name, expression in self.columns.items())
        return f"{'WithColumns' if self.keep else 'SelectColumns'}({columns})"
