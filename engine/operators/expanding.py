"""One row in, any number of rows out: the row itself so often, with further columns that tell the copies apart.

What says how often, and what the further columns are, is an `Expansion`: sets of GROUP BY, counts of equal rows,
elements of arrays, functions of Python that give tables. It works on columns, and on changes as on rows: what is made
of a row that is taken back are the rows that were made of it when it came.

Invariant: the copies of a row follow each other, in the order of the rows; each has the row's event time and kind.

Source: Flink's ``ExpandFunction``, ``CorrelateRunner``, ``ReplicateRows``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keys.column_hashing import hash_columns

from ..columns.expressions import Expression
from ..columns.records import Batch
from ..functions.operator import Operator
from .column_operators import naming_operator

__all__ = ["Buckets", "ExpandBatch", "ExpandRows", "Expansion", "GroupingSets", "Repeat", "Unnest", "expand"]

Rows = npt.NDArray[np.int64]


class Expansion(ABC):
    """What rows are made of a row.

    Contract: immutable and picklable; equal rows give equal rows, at any time (*trusted*).

    Attributes:
        fields: The further columns.
        is_outer: Whether a row of which nothing is made comes once, with nulls in the further columns.
    """

    fields: pa.Schema
    is_outer: bool = False

    @property
    @abstractmethod
    def arguments(self) -> Sequence[Expression]:
        """What is computed of a row."""

    @abstractmethod
    def expand(self, batch: pa.RecordBatch) -> tuple[Rows, list[pa.Array]]:
        """Return which row each copy is made of, ascending, and the further columns of the copies."""


def expand(expansion: Expansion, batch: pa.RecordBatch) -> tuple[Rows, pa.RecordBatch]:
    """Return which row each copy is made of, and the copies: columns of the row, then the further ones.

    Args:
        expansion: What is made of a row.
        batch: The rows.
    """
    rows, columns = expansion.expand(batch)
    if expansion.is_outer:
        rows, columns = _with_lonely(rows, columns, batch.num_rows)
    copies = batch if np.array_equal(rows, np.arange(batch.num_rows)) else batch.take(pa.array(rows))
    made = [column.cast(field.type) for column, field in zip(columns, expansion.fields, strict=True)]
    fields = [*batch.schema, *expansion.fields]
    return rows, pa.RecordBatch.from_arrays([*copies.columns, *made], schema=pa.schema(fields))


def _with_lonely(rows: Rows, columns: list[pa.Array], num_rows: int) -> tuple[Rows, list[pa.Array]]:
    """The same with one copy of each row that has none."""
    lonely = np.flatnonzero(np.bincount(rows, minlength=num_rows) == 0)
    everything = np.concatenate([rows, lonely])
    order = np.argsort(everything, kind="stable")
    extended = [pa.concat_arrays([column, pa.nulls(len(lonely), column.type)]) for column in columns]
    return everything[order], [column.take(pa.array(order)) for column in extended]


class ExpandRows(Operator):
    """Makes rows of rows.

    Args:
        expansion: What is made of a row.
    """

    may_change_records = False
    face = "columns"
    takes_changes = True

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output."""
        return pa.schema([*input_schema, *self.expansion.fields])

    def process_batch(self, batch: Batch, input_index: int) -> None:
        with naming_operator(self.context):
            rows, copies = expand(self.expansion, batch.columns_as(None))
        if not len(rows):
            return
        times = None if batch.timestamps is None else batch.timestamps[rows]
        kinds = None if batch.row_kinds is None else batch.row_kinds[rows]
        self.context.output.emit(Batch.of_columns(copies, times, kinds))

    def __repr__(self) -> str:
        return f"ExpandRows({self.expansion!r})"


class Repeat(Expansion):
    """Each row so often as a column says; not at all where it is null or not above 0.

    Args:
        count: The column.
    """

    fields = pa.schema([])

    def __init__(self, count: Expression) -> None:
        self.count = count

    @property
    def arguments(self) -> Sequence[Expression]:
        return (self.count,)

    def expand(self, batch: pa.RecordBatch) -> tuple[Rows, list[pa.Array]]:
        counts = np.asarray(self.count.evaluate(batch).cast(pa.int64()).fill_null(0))
        return np.repeat(np.arange(batch.num_rows), np.maximum(counts, 0)), []

    def __repr__(self) -> str:
        return f"{self.count!r} times"


class GroupingSets(Expansion):
    """Each row once for every set of keys: its number, and the keys, null where they are not in the set.

    Args:
        keys: What the keys are, by the names of their columns here.
        kinds: Their types.
        sets: For each set which keys are in it, by their places.
        number: The column of the set's number.
    """

    def __init__(
        self, keys: dict[str, Expression], kinds: Sequence[pa.DataType], sets: Sequence[frozenset[int]], number: str
    ) -> None:
        self.keys = keys
        self.sets = tuple(sets)
        self.fields = pa.schema([*zip(keys, kinds, strict=True), (number, pa.int64())])

    @property
    def arguments(self) -> Sequence[Expression]:
        return tuple(self.keys.values())

    def expand(self, batch: pa.RecordBatch) -> tuple[Rows, list[pa.Array]]:
        num_sets = len(self.sets)
        rows = np.repeat(np.arange(batch.num_rows), num_sets)
        numbers = np.tile(np.arange(num_sets), batch.num_rows)
        columns: list[pa.Array] = []
        for i, key in enumerate(self.keys.values()):
            is_in = np.array([i in one for one in self.sets])[numbers]
            columns.append(key.evaluate(batch).take(pa.array(rows, mask=~is_in)))
        return rows, [*columns, pa.array(numbers)]

    def __repr__(self) -> str:
        names = list(self.keys)
        return ", ".join(f"({', '.join(names[i] for i in sorted(one))})" for one in self.sets)


class Buckets(Expansion):
    """Each row once for every one of some values, with the number of the bucket that the value's hash says.

    Args:
        values: Each has buckets of its own: those of the first have the lowest numbers.
        num_buckets: How many that are.
        name: The column of the number.
    """

    def __init__(self, values: Sequence[Expression], num_buckets: int, name: str) -> None:
        self.values = tuple(values)
        self.num_buckets = num_buckets
        self.fields = pa.schema([(name, pa.int64())])

    @property
    def arguments(self) -> Sequence[Expression]:
        return self.values

    def expand(self, batch: pa.RecordBatch) -> tuple[Rows, list[pa.Array]]:
        of_values = [hash_columns([value.evaluate(batch)]) % np.uint64(self.num_buckets) for value in self.values]
        buckets = np.stack(of_values, axis=1).astype(np.int64) + self.num_buckets * np.arange(len(of_values))
        return np.repeat(np.arange(batch.num_rows), len(of_values)), [pa.array(buckets.ravel())]

    def __repr__(self) -> str:
        return f"{self.num_buckets} buckets of {', '.join(map(repr, self.values))}"


class Unnest(Expansion):
    """A row for every element of an array, or entry of a map; none for null. Rows in arrays give a column per field.

    Args:
        value: The array or map.
        kind: Its type.
        names: Of the columns.
        is_numbered: Whether the last column is the element's place, from 1.
    """

    def __init__(self, value: Expression, kind: pa.DataType, names: Sequence[str], *, is_numbered: bool) -> None:
        kinds = self.kinds_of(kind)
        assert kinds is not None
        self.value = value
        self.is_numbered = is_numbered
        self.fields = pa.schema(list(zip(names, [*kinds.values(), *([pa.int64()] * is_numbered)], strict=True)))

    @staticmethod
    def kinds_of(kind: pa.DataType) -> dict[str, pa.DataType] | None:
        """Return names and types of the columns that an array or map gives; None for other types."""
        if pa.types.is_map(kind):
            return {"KEY": kind.key_type, "VALUE": kind.item_type}
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            return None
        element = kind.value_type
        return {one.name: one.type for one in element} if pa.types.is_struct(element) else {"f0": element}

    @property
    def arguments(self) -> Sequence[Expression]:
        return (self.value,)

    def expand(self, batch: pa.RecordBatch) -> tuple[Rows, list[pa.Array]]:
        values = self.value.evaluate(batch)
        if pa.types.is_fixed_size_list(values.type):
            values = values.cast(pa.list_(values.type.value_type))
        offsets = np.asarray(values.offsets).astype(np.int64)
        counts = np.where(np.asarray(values.is_valid()), np.diff(offsets), 0)
        rows = np.repeat(np.arange(batch.num_rows), counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = pa.array(np.repeat(offsets[:-1], counts) + places)
        parts = [values.keys, values.items] if pa.types.is_map(values.type) else _fields_of(values.values)
        numbers = [pa.array(places + 1)] if self.is_numbered else []
        return rows, [*(part.take(taken) for part in parts), *numbers]

    def __repr__(self) -> str:
        return f"elements of {self.value!r}"


def _fields_of(values: pa.Array) -> list[pa.Array]:
    """The columns of rows; of other values themselves."""
    import pyarrow.compute as pc

    if not pa.types.is_struct(values.type):
        return [values]
    return [pc.struct_field(values, [i]) for i in range(values.type.num_fields)]


class ExpandBatch:
    """The same as a function of a batch, for bounded data.

    Args:
        expansion: What is made of a row.
    """

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion

    def __call__(self, batch: pa.RecordBatch) -> Any:
        return expand(self._expansion, batch)[1]
