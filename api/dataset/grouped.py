"""Data sets grouped by a key, with or without an order inside the groups.

Source: Flink's ``UnsortedGrouping`` and ``SortedGrouping``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.dataset.types import order_of
from headrace.engine.aggregates import Aggregate, avg, count
from headrace.engine.aggregates import max as max_of
from headrace.engine.aggregates import min as min_of
from headrace.engine.aggregates import sum as sum_of
from headrace.engine.dataset.plan import GroupKey, Order
from headrace.engine.errors import ProgramError
from headrace.engine.expressions import Expression

if TYPE_CHECKING:
    from headrace.dataset.dataset import DataSet

__all__ = ["GroupedDataSet"]


class GroupedDataSet:
    """A data set whose records are in groups of equal keys. Made by ``group_by``."""

    def __init__(self, data: DataSet, key: GroupKey, orders: tuple[Order, ...] = ()) -> None:
        self._data = data
        self._key = key
        self._orders = orders

    def sort_group(self, field: Any, ascending: bool = True) -> GroupedDataSet:
        """Put the records of each group in order, for ``reduce_group``, ``combine_group`` and ``first``.

        Called again, it sorts by a further field among those that are equal so far.
        """
        order = order_of("sort_group", field, ascending, self._data.schema)
        return GroupedDataSet(self._data, self._key, (*self._orders, order))

    def reduce(self, func: Any) -> DataSet:
        """One record per group, made by combining two at a time; ``func`` is associative and commutative.

        Args:
            func: A callable of two records or a ReduceFunction; must not change them.
        """
        self._refuse_order("reduce")
        return self._data.reduced(self._key, func)

    def reduce_group(self, func: Any, output_type: Any = None) -> DataSet:
        """Any number of records per group.

        Args:
            func: Takes an iterator over the records of a group, yields or returns records; or a GroupReduceFunction.
                If it is also a GroupCombineFunction, that runs before records are sent.
            output_type: The new records' type.
        """
        return self._data.group_reduced(self._key, func, output_type, self._orders)

    def combine_group(self, func: Any, output_type: Any = None) -> DataSet:
        """As `reduce_group`, but of the groups within each partition: nothing is sent, a key may come several times."""
        return self._data.group_combined(self._key, func, output_type, self._orders)

    def first(self, n: int) -> DataSet:
        """At most ``n`` records of each group; the first ones in the order of the groups, if there is one."""
        return self._data.first_of(self._key, n, self._orders)

    def aggregate(self, **aggregates: Aggregate | Expression) -> DataSet:
        """Aggregate each group: ``aggregate(n=count(), total=f.sum("price"))``.

        The records have the key's fields (``key`` for a function) and the aggregates, by name. Arithmetic with
        aggregates is one too: ``aggregate(mean=f.sum("price") / count())``.
        """
        self._refuse_order("aggregate")
        return self._data.aggregated(self._key, aggregates)

    def sum(self, field: str | int) -> DataSet:
        """The sum of a field: records of the key and it, tuples if fields are given by position."""
        return self._data.aggregated_field(self._key, sum_of, field)

    def min(self, field: str | int) -> DataSet:
        """The least value of a field; else as `sum`."""
        return self._data.aggregated_field(self._key, min_of, field)

    def max(self, field: str | int) -> DataSet:
        """The greatest value of a field; else as `sum`."""
        return self._data.aggregated_field(self._key, max_of, field)

    def avg(self, field: str | int) -> DataSet:
        """The mean of a field; else as `sum`."""
        return self._data.aggregated_field(self._key, avg, field)

    def count(self, name: str = "count") -> DataSet:
        """How many records each group has: records of the key and ``name``."""
        return self.aggregate(**{name: count()})

    def min_by(self, *fields: str | int) -> DataSet:
        """The record of each group with the least value of fields, the first field counting most."""
        return self._data.extreme_by(self._key, fields, is_min=True)

    def max_by(self, *fields: str | int) -> DataSet:
        """The record of each group with the greatest value of fields, the first field counting most."""
        return self._data.extreme_by(self._key, fields, is_min=False)

    def _refuse_order(self, method: str) -> None:
        if self._orders:
            message = f"{method} meets the records of a group in any order; sort_group would mean nothing"
            raise ProgramError(message, hint="use reduce_group, combine_group or first")
