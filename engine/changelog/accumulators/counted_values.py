"""Which values a query counts: one table for all aggregates that read the same column, with a count for each filter.

``COUNT(DISTINCT x)``, ``COUNT(DISTINCT x) FILTER (WHERE a)`` and ``MAX(x)`` of changes are of one table: a pair of key
and value is looked up once for all of them. A filter is known by its form: an argument that is a column where a
condition is true, and else null.

Source: Flink's ``DistinctInfo``, whose filters are flags of one map's entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ...columns.conditions import where_true
from ...columns.expressions import Expression
from ...columns.kernels import compute
from ...functions.aggregates.contract import Aggregate
from ...tables.columns import Integers, Truths, plain, validity
from ...tables.key_index import KeyIndex
from ...tables.key_times import KeyTimes
from ...tables.value_counts import Filter, ValueCounts
from .contract import Touched
from .value_arguments import EXTREMES, filtered_argument, is_of_values, name_of_counts, name_of_values

__all__ = ["AskedValues", "CountedValues"]

_Structure = tuple[object, ...]


@dataclass
class _Counted:
    """One argument, and how it is counted: by the structure of the filter, the condition and the extremes asked for."""

    argument: Expression
    filters: dict[_Structure, tuple[Expression | None, set[str]]] = field(default_factory=dict)


class AskedValues:
    """Which values aggregates ask for, and what a batch has of them.

    Args:
        aggregates: Those of the query.
        takes_back: Whether records are taken back: then extremes are made of counts, too.
        schema: Of the records.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], schema: pa.Schema, *, takes_back: bool) -> None:
        self._schema = schema
        self._counted: dict[_Structure, _Counted] = {}
        for aggregate in aggregates.values():
            if is_of_values(aggregate, takes_back=takes_back):
                self._ask(aggregate, {aggregate.name} if aggregate.name in EXTREMES else set())

    def _ask(self, aggregate: Aggregate, extremes: set[str]) -> None:
        argument, condition = filtered_argument(aggregate, self._schema)
        counted = self._counted.setdefault(argument.structure, _Counted(argument))
        counted.filters.setdefault(_structure(condition), (condition, set()))[1].update(extremes)

    def number_of(self, aggregate: Aggregate) -> tuple[_Structure, int]:
        """Return which argument an aggregate reads, and the number of its filter there."""
        argument, condition = filtered_argument(aggregate, self._schema)
        return argument.structure, list(self._counted[argument.structure].filters).index(_structure(condition))

    @property
    def parts(self) -> list[pa.Field]:
        """The columns that a batch is folded to: for each argument a list of values, each with its counts."""
        fields = []
        for number, counted in enumerate(self._counted.values()):
            counts = [pa.field(f"count{i}", pa.int64()) for i in range(len(counted.filters))]
            pairs = pa.struct([pa.field("value", counted.argument.output_type(self._schema)), *counts])
            fields.append(pa.field(f"$values{number}", pa.list_(pairs)))
        return fields

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        """Return how often each value comes in a batch, less how often it is taken back, by ``parts``: a list for each
        group.

        Values that come to nothing are left out.
        """
        return [
            _folded(touched, counted.argument.evaluate(batch), self._chosen(counted, batch), part.type)
            for counted, part in zip(self._counted.values(), self.parts, strict=True)
        ]

    @staticmethod
    def _chosen(counted: _Counted, batch: pa.RecordBatch) -> list[Truths | None]:
        """The rows that each filter lets through; None for all."""
        return [None if one is None else where_true(one, batch) for one, _ in counted.filters.values()]


class CountedValues(AskedValues):
    """The tables of values that aggregates read.

    Args:
        aggregates: Those of the query.
        takes_back: Whether records are taken back: then extremes are made of counts, too.
        schema: Of the records.
        backend: The operator's keyed state.
        keys: Names and types of the key's columns.
        index: Gives keys their codes.
        times: When keys were written, if they have a time to live.
    """

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema,
        backend: KeyedStateBackend,
        keys: Sequence[pa.Field],
        index: KeyIndex,
        *,
        takes_back: bool,
        times: KeyTimes | None = None,
    ) -> None:
        super().__init__(aggregates, schema, takes_back=takes_back)
        self._tables: dict[_Structure, ValueCounts] = {}
        for structure, counted in self._counted.items():
            filters = [
                Filter(name_of_counts(condition), frozenset(extremes))
                for condition, extremes in counted.filters.values()
            ]
            kind = counted.argument.output_type(schema)
            name = name_of_values(counted.argument)
            self._tables[structure] = ValueCounts(
                backend, name, keys, index, kind, filters, is_attached=True, times=times
            )

    @property
    def tables(self) -> list[ValueCounts]:
        """All tables."""
        return list(self._tables.values())

    def of(self, aggregate: Aggregate) -> tuple[ValueCounts, int]:
        """Return the table that an aggregate reads, and the number of its filter there."""
        structure, number = self.number_of(aggregate)
        return self._tables[structure], number

    def add(self, batch: pa.RecordBatch, codes: Integers, signs: Integers) -> bool:
        """Count the values of records; returns whether all that is taken away was there."""
        is_sound = True
        for structure, counted in self._counted.items():
            values, chosen = counted.argument.evaluate(batch), self._chosen(counted, batch)
            is_sound &= self._tables[structure].add(codes, values, [signs] * len(chosen), chosen)
        return is_sound

    def merge(self, parts: Sequence[pa.Array], codes: Integers) -> bool:
        """Count what batches were folded to, by ``parts``; returns whether all that is taken away was there."""
        is_sound = True
        for table, part in zip(self._tables.values(), parts, strict=True):
            lengths = compute().list_value_length(part).to_numpy()
            value, *counts = part.flatten().flatten()
            numbers = [count.to_numpy() for count in counts]
            is_sound &= table.add(np.repeat(codes, lengths), value, numbers, [None] * len(numbers))
        return is_sound

    def forget(self, codes: Integers) -> None:
        """Forget the values of keys, which have a time to live."""
        for table in self._tables.values():
            table.forget(codes)

    def compact(self) -> None:
        """Forget what is gone, of tables that are sparse."""
        for table in self._tables.values():
            if table.is_sparse:
                table.compact()


def _structure(condition: Expression | None) -> _Structure:
    return () if condition is None else condition.structure


def _folded(touched: Touched, values: pa.Array, chosen: Sequence[Truths | None], kind: pa.DataType) -> pa.Array:
    local, signs, valid = touched.local, touched.all_signs, validity(values)
    if valid is not None:
        local, values, signs = local[valid], values.filter(pa.array(valid)), signs[valid]
        chosen = [None if rows is None else rows[valid] for rows in chosen]
    index = KeyIndex([pa.int64(), values.type])
    pairs = index.codes_of([local, plain(values)], len(local))[0]
    nets = np.zeros((len(chosen), len(index)), np.int64)
    for net, rows in zip(nets, chosen, strict=True):
        np.add.at(net, pairs if rows is None else pairs[rows], signs if rows is None else signs[rows])
    left = np.flatnonzero(nets.any(axis=0))
    keys, value = index.take(left)
    owners = keys.to_numpy()
    order = np.argsort(owners, kind="stable")
    lengths = np.bincount(owners, minlength=len(touched.groups))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    columns = [value.take(pa.array(order)), *(pa.array(net[left[order]]) for net in nets)]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(columns, fields=list(kind.value_type)))
