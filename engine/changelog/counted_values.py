"""Which values a query counts: one table for all aggregates that read the same column, with a count for each filter.

``COUNT(DISTINCT x)``, ``COUNT(DISTINCT x) FILTER (WHERE a)`` and ``MAX(x)`` of changes are of one table: a pair of key
and value is looked up once for all of them. A filter is known by its form: an argument that is a column where a
condition is true, and else null.

Source: Flink's ``DistinctInfo``, whose filters are flags of one map's entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from ..columns.conditions import where_true
from ..columns.expressions import Expression
from ..functions.aggregates.contract import Aggregate
from ..tables.columns import Integers, Truths
from ..tables.key_index import KeyIndex
from ..tables.value_counts import Filter, ValueCounts
from .value_arguments import EXTREMES, filtered_argument, is_of_values, name_of_counts, name_of_values

__all__ = ["CountedValues"]

_Structure = tuple[object, ...]


@dataclass
class _Counted:
    """One argument, and how it is counted: by the structure of the filter, the condition and the extremes asked for."""

    argument: Expression
    filters: dict[_Structure, tuple[Expression | None, set[str]]] = field(default_factory=dict)


class CountedValues:
    """The tables of values that aggregates read.

    Args:
        aggregates: Those of the query.
        takes_back: Whether records are taken back: then extremes are made of counts, too.
        schema: Of the records.
        backend: The operator's keyed state.
        keys: Names and types of the key's columns.
        index: Gives keys their codes.
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
    ) -> None:
        self._schema = schema
        self._counted: dict[_Structure, _Counted] = {}
        for aggregate in aggregates.values():
            if is_of_values(aggregate, takes_back=takes_back):
                self._ask(aggregate, {aggregate.name} if aggregate.name in EXTREMES else set())
        self._tables: dict[_Structure, ValueCounts] = {}
        for structure, counted in self._counted.items():
            filters = [
                Filter(name_of_counts(condition), frozenset(extremes))
                for condition, extremes in counted.filters.values()
            ]
            kind = counted.argument.output_type(schema)
            name = name_of_values(counted.argument)
            self._tables[structure] = ValueCounts(backend, name, keys, index, kind, filters, is_attached=True)

    @property
    def tables(self) -> list[ValueCounts]:
        """All tables."""
        return list(self._tables.values())

    def _ask(self, aggregate: Aggregate, extremes: set[str]) -> None:
        argument, condition = filtered_argument(aggregate, self._schema)
        counted = self._counted.setdefault(argument.structure, _Counted(argument))
        counted.filters.setdefault(_structure(condition), (condition, set()))[1].update(extremes)

    def of(self, aggregate: Aggregate) -> tuple[ValueCounts, int]:
        """The table that an aggregate reads, and the number of its filter there."""
        argument, condition = filtered_argument(aggregate, self._schema)
        filters = list(self._counted[argument.structure].filters)
        return self._tables[argument.structure], filters.index(_structure(condition))

    def add(self, batch: pa.RecordBatch, codes: Integers, signs: Integers) -> bool:
        """Count the values of records; returns whether all that is taken away was there."""
        is_sound = True
        for structure, counted in self._counted.items():
            chosen: list[Truths | None] = [
                None if condition is None else where_true(condition, batch) for condition, _ in counted.filters.values()
            ]
            values = counted.argument.evaluate(batch)
            is_sound &= self._tables[structure].add(codes, values, signs, chosen)
        return is_sound

    def compact(self) -> None:
        """Forget what is gone, of tables that are sparse."""
        for table in self._tables.values():
            if table.is_sparse:
                table.compact()


def _structure(condition: Expression | None) -> _Structure:
    return () if condition is None else condition.structure
