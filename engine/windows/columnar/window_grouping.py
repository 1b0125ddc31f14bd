"""What windows on columns have in common, of whatever kind: names, checks, keys, and the way from parts to results.

A partial result is a row of *parts* (`headrace.engine.functions.aggregates`) for one key and one stretch of time. How
records are put into stretches is the matter of `headrace.engine.windows.columnar.slice_grouping` and
`headrace.engine.windows.columnar.session_grouping`. No state here and no progress of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ProgramError, nearest
from headrace.state.values.serde import fields_from_rows

from ...columns.grouping import Groups, normalised_floats
from ...columns.records import MIN_TIMESTAMP, Batch, Timestamps
from ...functions.aggregates.contract import Aggregate, ColumnarAggregates
from ...functions.keys import KeySelector

__all__ = ["WindowGrouping", "event_times"]

_NUM_RECORDS = "$records"
_NO_KEY = "$all"


class WindowGrouping:
    """Names and checks of windowed aggregates.

    Args:
        keys: Names of the key columns, or a selector by fields; a selector by no field
            (`headrace.engine.windows.all_windows.OneKey`) for windows of a whole stream.
        aggregates: By the name of their result column.
        input_schema: Declared type of the records; None to go by what comes.

    Attributes:
        key_columns: What partial results are told apart by. Without a key that is one column of zeros, as state needs
            a place among the key groups.
        key_selector: Finds the key of a record.
        own_columns: What else partial results have, between key columns and parts.
        records_column: The part that counts records.

    Raises:
        ProgramError: If the key is made by a function, or names collide.
    """

    own_columns: tuple[str, ...] = ()

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema | None,
    ) -> None:
        names = keys.field_names if isinstance(keys, KeySelector) else tuple([keys] if isinstance(keys, str) else keys)
        if names is None:
            message = "windows on columns need key columns; the key selector is a function"
            raise ProgramError(message, hint="key by field names, or compute the key as a column first")
        self.key_columns = names or (_NO_KEY,)
        self.key_selector = keys if isinstance(keys, KeySelector) else KeySelector.of_field(*self.key_columns)
        self.aggregates = ColumnarAggregates(aggregates)
        self.input_schema = input_schema
        self.result_names = [*names, "window_start", "window_end", *aggregates]
        _refuse_doubled("the result", self.result_names)
        self._names = names
        arguments = [spec.argument for spec in aggregates.values() if spec.argument is not None]
        self._needed = sorted({*names, *(name for argument in arguments for name in argument.columns_used())})
        # The part that counts records: the one of count(), else a column of its own.
        counting = [f"{name}${spec.parts[0].suffix}" for name, spec in aggregates.items() if spec.argument is None]
        self.records_column = counting[0] if counting else _NUM_RECORDS
        self._has_own_count = not counting
        self.part_names = [*self.aggregates.part_names, *([] if counting else [_NUM_RECORDS])]
        _refuse_doubled("state", [*self.key_columns, *self.own_columns, *self.part_names])

    def require_mergeable(self, hint: str) -> None:
        """See that all aggregates can be made of partial results.

        Raises:
            ProgramError: If one cannot; with the hint.
        """
        if not self.aggregates.is_mergeable:
            message = "aggregates that are not mergeable need all records of a key in one place"
            raise ProgramError(message, hint=hint)

    @property
    def keys_text(self) -> str:
        """The names of the key columns, for people."""
        return ", ".join(self._names)

    def columns_of(self, batch: Batch) -> pa.RecordBatch:
        """Return the records as columns of the declared type, or of the one that they show.

        Of rows without a declared type only the fields that are needed are looked at: others may hold what no column
        can.
        """
        if self.input_schema is None and not batch.has_columns:
            return fields_from_rows(batch.rows, self._needed)
        return batch.columns_as(self.input_schema)

    def keys_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns, such that equal keys are equal bits.

        Raises:
            ProgramError: If one does not exist.
        """
        if not self._names:
            return [pa.array(np.zeros(batch.num_rows, dtype=np.int8))]
        result = []
        for name in self._names:
            index = batch.schema.get_field_index(name)
            if index < 0:
                names = batch.schema.names
                message = f"key column {name!r} does not exist; the columns are {', '.join(map(repr, names))}"
                raise ProgramError(message, hint=nearest(name, names))
            column = batch.column(index)
            result.append(
                column.dictionary_decode()
                if pa.types.is_dictionary(column.type)
                else _as_tuples(normalised_floats(column))
            )
        return result

    def parts_of(self, groups: Groups, batch: pa.RecordBatch, first_order: int = 0) -> list[pa.Array]:
        """Make the part columns from records, in the order of ``part_names``, a row per group.

        Args:
            groups: Of the records.
            batch: The records.
            first_order: See `Aggregate.lift`.
        """
        columns = self.aggregates.from_records(groups, batch, first_order)
        return [*columns, groups.reduce("count_all", None)] if self._has_own_count else columns

    def merged_parts(self, groups: Groups, batch: pa.RecordBatch) -> list[pa.Array]:
        """Merge partial results that have the part columns; as `parts_of`."""
        columns = self.aggregates.merge(groups, batch)
        return [*columns, groups.reduce("sum", batch.column(_NUM_RECORDS))] if self._has_own_count else columns

    def empty_columns(self, schema: pa.Schema) -> tuple[list[pa.Array], list[pa.Array]]:
        """Key columns and part columns of no records of a schema: they tell types.

        Raises:
            ProgramError, TypeMismatchError: If keys or aggregates do not fit the schema.
        """
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        groups = Groups(np.zeros(0, dtype=np.int64), 1)
        return self.keys_of(batch), self.parts_of(groups, batch)

    def results(self, merged: pa.RecordBatch, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Batch:
        """Return the result records of windows.

        Args:
            merged: Key and part columns, a row per result.
            starts: Where the window of each begins, epoch milliseconds.
            ends: Where it ends; a result's event time is the millisecond before.
        """
        parts = [merged.column(name) for name in self.aggregates.part_names]
        columns = [
            *(merged.column(name) for name in self._names),
            pa.array(starts).cast(pa.timestamp("ms")),
            pa.array(ends).cast(pa.timestamp("ms")),
            *self.aggregates.finalise(parts),
        ]
        return Batch.of_columns(pa.RecordBatch.from_arrays(columns, names=self.result_names), ends - 1)


def _refuse_doubled(what: str, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        message = f"{what} would have several columns called {', '.join(map(repr, doubled))}"
        raise ProgramError(message, hint="rename the aggregate or the key column")


def event_times(batch: Batch) -> Timestamps:
    """Return the records' event times.

    Raises:
        ProgramError: If they have none.
    """
    timestamps = batch.timestamps
    if timestamps is None or int(timestamps.min()) == MIN_TIMESTAMP:
        message = "records have no event time"
        raise ProgramError(message, hint="assign timestamps and watermarks before event-time windows")
    return timestamps


def _as_tuples(column: pa.Array) -> pa.Array:
    """Lists of one length as structs of ``f0``, ``f1`` ...: what a tuple within a record is, and can be a key."""
    import pyarrow.compute as pc

    if not pa.types.is_list(column.type) or column.null_count == len(column):
        return column
    lengths = pc.unique(pc.list_value_length(column.drop_null()))
    if len(lengths) != 1 or lengths[0].as_py() == 0:
        return column
    parts = [_as_tuples(normalised_floats(pc.list_element(column, i))) for i in range(lengths[0].as_py())]
    return pa.StructArray.from_arrays(parts, names=[f"f{i}" for i in range(len(parts))], mask=column.is_null())
