"""Groups of records with equal keys, with or without an order inside; without a key all records are one group.

Source: Flink's ``DataSet``, ``UnsortedGrouping``, ``SortedGrouping``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import ProgramError
from headrace.engine.functions.aggregates.built_in import avg, count
from headrace.engine.functions.aggregates.built_in import max as max_of
from headrace.engine.functions.aggregates.built_in import min as min_of
from headrace.engine.functions.aggregates.built_in import sum as sum_of
from headrace.engine.functions.aggregates.contract import Aggregate, aggregates_in
from headrace.engine.partitions.function_life import checked_function
from headrace.engine.plan.plan import (
    GATHER,
    Aggregation,
    CombineGroup,
    ExtremeBy,
    First,
    GroupKey,
    Order,
    Reduce,
    ReduceGroup,
    Ship,
    ShipKind,
    Sort,
)
from headrace.state.keyed.descriptors import Reduces
from headrace.state.type_variables import T1

from ..arguments.checks import described, field_of, whole
from ..arguments.function_shapes import CombineGroupOf, ReduceGroupOf
from ..arguments.known_columns import naming_step
from .record_types import check_fields, function_schema, order_of, schema_with_kind

if TYPE_CHECKING:
    from .dataset import DataSet

__all__ = ["GroupVerbs", "GroupedDataSet"]

_New = TypeVar("_New")


class GroupVerbs(ABC, Generic[T1]):
    """What can be done with groups, those of a key or the one that all records are.

    Attributes:
        _key: What makes the groups; None if all records are one.
        _orders: The order inside the groups.
    """

    _key: GroupKey | None = None
    _orders: tuple[Order, ...] = ()

    @property
    @abstractmethod
    def _data(self) -> DataSet[T1]:
        """The records."""

    @property
    def _ship(self) -> Ship:
        return GATHER if self._key is None else Ship(ShipKind.HASH, self._key)

    def reduce(self, func: Callable[[T1, T1], T1] | Reduces[T1]) -> DataSet[T1]:
        """Return one record per group, made by combining two at a time; of no records none.

        Args:
            func: An associative and commutative callable of two records or a ReduceFunction; must not change them.
        """
        self._refuse_order("reduce")
        checked_function(func, "reduce")
        data = self._data
        return data.then(Reduce, described("reduce", func), data.schema, self._ship, key=self._key, function=func)

    @overload
    def reduce_group(self, func: ReduceGroupOf[T1, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def reduce_group(self, func: ReduceGroupOf[T1, Any], output_type: Any) -> DataSet[Any]: ...

    def reduce_group(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Any number of records per group.

        Args:
            func: Takes an iterator over the records of a group, yields or returns records; or a GroupReduceFunction.
                If it is also a GroupCombineFunction, that runs before records are sent.
            output_type: The new records' type.
        """
        checked_function(func, "reduce", "reduce_group")
        schema = function_schema(func, "reduce", output_type, many=True)
        return self._data.then(
            ReduceGroup, described("reduce_group", func), schema, self._ship,
            key=self._key, function=func, orders=self._orders,
        )  # fmt: skip

    @overload
    def combine_group(self, func: CombineGroupOf[T1, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def combine_group(self, func: CombineGroupOf[T1, Any], output_type: Any) -> DataSet[Any]: ...

    def combine_group(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """As `reduce_group`, but of the groups within each partition: nothing is sent, a key may come several times."""
        checked_function(func, "combine", "reduce", "reduce_group")
        schema = function_schema(func, "combine", output_type, many=True)
        return self._data.then(
            CombineGroup, described("combine_group", func), schema, key=self._key, function=func, orders=self._orders
        )

    def first(self, n: int) -> DataSet[T1]:
        """At most ``n`` records of each group, any; the first ones in its order, if there is one.

        Right behind ``sort``, and without groups, the first ones in that order.
        """
        whole("the number of records", n, 1, None)
        data = self._data
        orders = self._orders
        if self._key is None and isinstance(data._node, Sort):
            orders = data._node.orders
        return data.then(First, f"first {n}", data.schema, self._ship, key=self._key, count=n, orders=orders)

    def aggregate(self, **aggregates: Aggregate | Expression) -> DataSet[dict[str, Any]]:
        """Aggregate each group: ``aggregate(n=count(), total=f.sum("price"))``.

        The records have the key's fields (``key`` for a function) and the aggregates, by name. Arithmetic with
        aggregates is one too: ``aggregate(mean=f.sum("price") / count())``. Without a key there is always one record:
        of no records one of nulls.
        """
        self._refuse_order("aggregate")
        return self._aggregated(aggregates)

    def sum(self, field: str | int) -> DataSet[Any]:
        """Return the sum of a field: records of the key and it, tuples if fields are given by position."""
        return self._aggregated_field("sum", sum_of, field)

    def min(self, field: str | int) -> DataSet[Any]:
        """Return the least value of a field; else as `sum`."""
        return self._aggregated_field("min", min_of, field)

    def max(self, field: str | int) -> DataSet[Any]:
        """Return the greatest value of a field; else as `sum`."""
        return self._aggregated_field("max", max_of, field)

    def avg(self, field: str | int) -> DataSet[Any]:
        """Return the mean of a field; else as `sum`."""
        return self._aggregated_field("avg", avg, field)

    def min_by(self, *fields: str | int) -> DataSet[T1]:
        """Return the record of each group with the least value of fields, the first field counting most."""
        return self._extreme_by("min_by", fields)

    def max_by(self, *fields: str | int) -> DataSet[T1]:
        """Return the record of each group with the greatest value of fields, the first field counting most."""
        return self._extreme_by("max_by", fields)

    def _refuse_order(self, method: str) -> None:
        if self._orders:
            message = f"{method} meets the records of a group in any order; sort_group would mean nothing"
            raise ProgramError(message, hint="use reduce_group, combine_group or first")

    def _aggregated(self, aggregates: Mapping[str, Any]) -> DataSet[Any]:
        names = () if self._key is None else self._key.names or ("key",)
        given: dict[str, Any] = dict(aggregates)
        if any(isinstance(spec, Expression) and aggregates_in(spec) for spec in given.values()):
            return self._computed(names, given)
        for name, spec in given.items():
            if not isinstance(spec, Aggregate):
                message = f"{name!r} must be an aggregate; got {spec!r}"
                raise ProgramError(message, hint="use count(), f.sum(), f.min(), f.max(), avg() ...")
            if name in names:
                message = f"aggregate {name!r} has the name of a key's field"
                raise ProgramError(message)
        if not aggregates:
            message = "aggregate needs at least one aggregate, such as n=count()"
            raise ProgramError(message)
        outputs = (*(("key", i) for i in range(len(names))), *(("aggregate", name) for name in aggregates))
        return self._aggregation(dict(aggregates), outputs, (*names, *aggregates), "dict")

    def _computed(self, names: tuple[str, ...], given: dict[str, Any]) -> DataSet[Any]:
        """Aggregates, and expressions over aggregates: those first, then what is computed of them."""
        parts: dict[str, Any] = {}
        columns: dict[str, Expression] = {name: col(name) for name in names}
        for name, spec in given.items():
            if name in names:
                message = f"aggregate {name!r} has the name of a key's field"
                raise ProgramError(message)
            value = spec.as_expression() if isinstance(spec, Aggregate) else spec
            found = aggregates_in(value) if isinstance(value, Expression) else {}
            if not found:
                message = f"{name!r} must be an aggregate, or an expression over aggregates; got {spec!r}"
                raise ProgramError(message, hint="use count(), f.sum(), f.sum() / count() ...")
            plain = value.columns_used() - set(found) - set(names)
            if plain:
                message = f"{name!r} reads {sorted(plain)} beside aggregates; a group has no single value of them"
                raise ProgramError(message, hint="aggregate it, or make it a field of the key")
            parts.update(found)
            columns[name] = value
        return self._aggregated(parts)._selected("aggregate", columns, keep=False)

    def _aggregated_field(
        self, method: str, make: Callable[[Expression | str], Aggregate], field: str | int
    ) -> DataSet[Any]:
        """Of tuples the result is a tuple of the key's fields and the aggregate, in their order."""
        self._refuse_order(method)
        field = field_of(method, field)
        check_fields(method, (field,), self._data.schema)
        fields = () if self._key is None else self._key.fields
        if isinstance(field, str) or (fields is not None and any(isinstance(one, str) for one in fields)):
            name = field if isinstance(field, str) else f"f{field}"
            return self._aggregated({name: make(name)})
        name = f"f{field}"
        spec = {"aggregate": make(name)}
        if fields is None:
            outputs: tuple[tuple[str, Any], ...] = (("key", 0), ("aggregate", "aggregate"))
        else:
            places = sorted(
                [(place, ("key", i)) for i, place in enumerate(fields)] + [(field, ("aggregate", "aggregate"))]
            )
            outputs = tuple(output for _place, output in places)
        return self._aggregation(spec, outputs, tuple(f"f{i}" for i in range(len(outputs))), "tuple")

    def _aggregation(
        self,
        aggregates: dict[str, Aggregate],
        outputs: tuple[tuple[str, Any], ...],
        names: tuple[str, ...],
        kind: str,
    ) -> DataSet[Any]:
        data, key = self._data, self._key
        schema = None
        if data.schema is not None and (key is None or key.names is not None):
            with naming_step("aggregate"):
                types = {name: spec.output_type(data.schema, name) for name, spec in aggregates.items()}
            key_names = () if key is None else key.names or ()
            fields = [
                pa.field(name, data.schema.field(key_names[which]).type if what == "key" else types[which])
                for name, (what, which) in zip(names, outputs, strict=True)
            ]
            schema = schema_with_kind(fields, kind)
        title = f"aggregate {', '.join(map(repr, aggregates.values()))}"
        return data.then(
            Aggregation, title, schema, self._ship,
            key=key, aggregates=aggregates, outputs=outputs, field_names=names, kind=kind,
        )  # fmt: skip

    def _extreme_by(self, method: str, fields: Sequence[str | int]) -> DataSet[T1]:
        self._refuse_order(method)
        if not fields:
            message = f"{method} needs a field"
            raise ProgramError(message)
        data = self._data
        chosen = tuple(field_of(method, field) for field in fields)
        for field in chosen:
            order_of(method, field, True, data.schema)
        name = f"{method} {', '.join(map(str, chosen))}"
        is_min = method == "min_by"
        return data.then(ExtremeBy, name, data.schema, self._ship, key=self._key, fields=chosen, is_min=is_min)


class GroupedDataSet(GroupVerbs[T1]):
    """A data set whose records are in groups of equal keys. Made by ``group_by``."""

    _key: GroupKey

    def __init__(self, data: DataSet[T1], key: GroupKey, orders: tuple[Order, ...] = ()) -> None:
        self._grouped = data
        self._key = key
        self._orders = orders

    @property
    def _data(self) -> DataSet[T1]:
        return self._grouped

    def sort_group(self, field: Any, ascending: bool = True) -> GroupedDataSet[T1]:
        """Put the records of each group in order, for ``reduce_group``, ``combine_group`` and ``first``.

        Called again, it sorts by a further field among those that are equal so far.
        """
        order = order_of("sort_group", field, ascending, self._data.schema)
        return GroupedDataSet(self._data, self._key, (*self._orders, order))

    def count(self, name: str = "count") -> DataSet[dict[str, Any]]:
        """Return how many records each group has: records of the key and ``name``."""
        return self.aggregate(**{name: count()})
