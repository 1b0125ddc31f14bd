"""DataSet: bounded data and what can be done with it, by Flink's names in snake_case.

Every method records one node of the plan and returns at once; ``collect``, ``count``, ``print`` and the like run what
they depend on, writes wait for ``ExecutionEnvironment.execute``. Wrong arguments are refused where they are written.
``name``, ``set_parallelism`` and ``with_broadcast_set`` change the operator that made the data set and return it; they
come before it is used.

Records are what they are on a DataStream: dicts, tuples or single values, with a type (then they are columns) or
without (then they are any Python objects). Keys are field names, positions in tuples, or a function.

Source: Flink's ``DataSet``, ``UnsortedGrouping``, ``DataSetUtils``.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.arguments import described, field_of, text, whole
from headrace.dataset.relational import RelationalVerbs
from headrace.dataset.types import (
    check_fields,
    declared_schema,
    field_type,
    function_schema,
    group_key,
    is_same_type,
    order_of,
    schema_with_kind,
)
from headrace.datatypes import TypeInformation, resolve_type
from headrace.engine.aggregates import Aggregate, aggregates_in, avg
from headrace.engine.aggregates import max as max_of
from headrace.engine.aggregates import min as min_of
from headrace.engine.aggregates import sum as sum_of
from headrace.engine.columnar import SelectColumns
from headrace.engine.dataset.calls import checked_function
from headrace.engine.dataset.plan import (
    BROADCAST,
    FORWARD,
    GATHER,
    REBALANCE,
    Aggregation,
    Collect,
    CombineGroup,
    Count,
    Distinct,
    ExtremeBy,
    FilterColumns,
    FilterRows,
    First,
    FlatMap,
    GroupKey,
    JoinHint,
    Map,
    MapBatches,
    MapPartition,
    Node,
    Order,
    Project,
    Reduce,
    ReduceGroup,
    Repartition,
    Select,
    Ship,
    ShipKind,
    Sort,
    SortPartition,
    Union,
    WriteFiles,
    row_kind,
)
from headrace.engine.dataset.wire import rows_of_table
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.expressions import Expression, col, expression_of
from headrace.engine.write_mode import WriteMode, check_write_mode
from headrace.places import lasting_place
from headrace.state.serde import columns_from_rows

if TYPE_CHECKING:
    from headrace.dataset.environment import ExecutionEnvironment
    from headrace.dataset.grouped import GroupedDataSet
    from headrace.dataset.iterations import DeltaIterationBuilder, IterativeDataSet
    from headrace.dataset.two_inputs import CoGroupBuilder, CrossDataSet, JoinBuilder
    from headrace.datastream import DataStream
    from headrace.environment import StreamExecutionEnvironment

__all__ = ["DataSet"]

Self = TypeVar("Self", bound="DataSet")


def _as_it_is(record: Any) -> Any:
    return record


class DataSet(RelationalVerbs):
    """A bounded set of records. Made by an environment's sources and by other data sets' methods."""

    def __init__(self, environment: ExecutionEnvironment, node: Node) -> None:
        self._environment = environment
        self._node = node
        self._is_used = False

    # ------------------------------------------------------------------------------------------------- for this package

    def take_node(self) -> Node:
        """The node that makes the data set; it cannot be changed afterwards."""
        self._is_used = True
        return self._node

    @property
    def schema(self) -> pa.Schema | None:
        """The type of the records as an Arrow schema; None for arbitrary Python objects."""
        return self._node.schema

    def then(
        self, kind: type[Node], name: str, schema: pa.Schema | None, ship: Ship = FORWARD, /, **more: Any
    ) -> DataSet:
        """A data set that a node of one input makes of this one."""
        node = kind(
            id=self._environment.new_id(), name=name, inputs=(self.take_node(),), schema=schema, ships=(ship,), **more
        )
        return DataSet(self._environment, node)

    # ------------------------------------------------------------------------------------------------------ information

    def get_execution_environment(self) -> ExecutionEnvironment:
        """The environment that the data set belongs to."""
        return self._environment

    def get_type(self) -> TypeInformation | None:
        """The type of the records; None for arbitrary Python objects."""
        return None if self.schema is None else resolve_type(self.schema)

    def explain(self, *, optimized: bool = True, as_json: bool = False) -> str:
        """The plan that makes this data set.

        Args:
            optimized: Whether as it will run, else as it was written.
            as_json: Whether for tools.
        """
        from headrace.engine.dataset.explain import explain_json, explain_text
        from headrace.engine.dataset.optimizer import optimize

        sink = Collect(id=self._environment.new_id(), name="collect", inputs=(self._node,), schema=self.schema,
                       ships=(FORWARD,))  # fmt: skip
        roots = optimize((sink,), self._environment.get_parallelism()) if optimized else (sink,)
        return explain_json(roots) if as_json else explain_text(roots)

    # ---------------------------------------------------------------------------------------- settings of the operator

    def name(self: Self, name: str) -> Self:
        """Name the operator, for errors and plans."""
        self._change(name=text("an operator's name", name))
        return self

    def set_parallelism(self: Self, parallelism: int) -> Self:
        """Set the number of partitions of the operator's result."""
        whole("parallelism", parallelism, 1, None)
        node = self._node
        is_moved = all(ship.kind is ShipKind.FORWARD for ship in node.ships) and bool(node.ships)
        if is_moved and len(node.inputs) == 1:
            moved = Repartition(
                id=self._environment.new_id(), name="rebalance", inputs=node.inputs, schema=node.inputs[0].schema,
                ships=(REBALANCE,), parallelism=parallelism,
            )  # fmt: skip
            self._change(inputs=(moved,), parallelism=parallelism)
        else:
            self._change(parallelism=parallelism)
        return self

    def with_broadcast_set(self: Self, data: DataSet, name: str) -> Self:
        """Give the operator's function all of another data set.

        Functions with ``open(runtime_context)`` get it by ``runtime_context.get_broadcast_variable(name)``.
        """
        text("a broadcast variable's name", name)
        if not hasattr(self._node, "function"):
            message = f"operator {self._node.name!r} has no function that could ask for broadcast variable {name!r}"
            raise ProgramError(message)
        if any(known == name for known, _node in self._node.broadcasts):
            message = f"operator {self._node.name!r} has a broadcast variable {name!r} already"
            raise ProgramError(message)
        self._environment.require_same(self, data)
        self._change(broadcasts=(*self._node.broadcasts, (name, data.take_node())))
        return self

    def _change(self, **changes: Any) -> None:
        if self._is_used:
            message = f"operator {self._node.name!r} cannot be changed any more: its result has been used"
            raise ProgramError(message, hint="call name, set_parallelism and with_broadcast_set right behind it")
        self._node = replace(self._node, **changes)

    # ------------------------------------------------------------------------------------------------ record by record

    def map(self, func: Any, output_type: Any = None) -> DataSet:
        """Turn each record into another.

        Args:
            func: A callable or a MapFunction.
            output_type: The new records' type; without it the function's hints are asked.
        """
        checked_function(func, "map")
        return self.then(Map, described("map", func), function_schema(func, "map", output_type), function=func)

    def flat_map(self, func: Any, output_type: Any = None) -> DataSet:
        """Turn each record into any number of others: ``func`` yields or returns an iterable."""
        checked_function(func, "flat_map")
        schema = function_schema(func, "flat_map", output_type, many=True)
        return self.then(FlatMap, described("flat_map", func), schema, function=func)

    def filter(self, func: Any) -> DataSet:
        """Keep the records for which ``func`` is true: a callable, a FilterFunction, or an expression over columns."""
        if isinstance(func, Expression):
            if self.schema is not None:
                kind = func.output_type(self.schema)
                if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                    message = f"a filter needs a condition that is true or false; {func!r} is {kind}"
                    raise TypeMismatchError(message)
            return self.then(FilterColumns, f"filter {func!r}", self.schema, condition=func)
        checked_function(func, "filter")
        return self.then(FilterRows, described("filter", func), self.schema, function=func)

    def map_partition(self, func: Any, output_type: Any = None) -> DataSet:
        """Turn each partition into any number of records: ``func`` takes an iterator, yields or gives an iterable."""
        checked_function(func, "map_partition")
        schema = function_schema(func, "map_partition", output_type, many=True)
        return self.then(MapPartition, described("map_partition", func), schema, function=func)

    def map_batches(self, func: Any, output_type: Any = None) -> DataSet:
        """Turn record batches into record batches, tables or dicts of columns.

        Args:
            func: Takes a ``pyarrow.RecordBatch``; how records are cut into batches is open.
            output_type: The new records' type; without it they become Python objects again.
        """
        checked_function(func, "map_batches")
        return self.then(MapBatches, described("map_batches", func), declared_schema(output_type), function=func)

    def project(self, *fields: Any) -> DataSet:
        """Keep some fields: names give dicts, positions give tuples."""
        if len(fields) == 1 and isinstance(fields[0], (list, tuple)):
            fields = tuple(fields[0])
        if not fields:
            message = "project needs a field"
            raise ProgramError(message)
        chosen = tuple(field_of("project", field) for field in fields)
        if len({type(field) for field in chosen}) > 1:
            message = f"project takes names or positions, not both; got {list(chosen)}"
            raise ProgramError(message)
        if isinstance(chosen[0], str) and len(set(chosen)) < len(chosen):
            message = f"project names a field twice: {list(chosen)}"
            raise ProgramError(message)
        schema = None
        if self.schema is not None:
            types = [field_type("project", field, self.schema) for field in chosen]
            kind = "tuple" if isinstance(chosen[0], int) else "dict"
            names = [f"f{i}" if isinstance(field, int) else field for i, field in enumerate(chosen)]
            schema = schema_with_kind([pa.field(n, t) for n, t in zip(names, types, strict=True)], kind)
        return self.then(Project, f"project {', '.join(map(str, chosen))}", schema, fields=chosen)

    def select(self, *columns: str | Expression, **named: Any) -> DataSet:
        """Compute records' fields: names and expressions, and ``name=expression``."""
        chosen: dict[str, Expression] = {}
        for column in columns:
            expression = col(column) if isinstance(column, str) else column
            if not isinstance(expression, Expression) or expression.output_name is None:
                message = f"select takes names of columns, or expressions that have a name; got {column!r}"
                raise ProgramError(message, hint="give a computed column a name: select(name=expression)")
            chosen[expression.output_name] = expression
        chosen.update({name: expression_of(value) for name, value in named.items()})
        if not chosen:
            message = "select needs a column"
            raise ProgramError(message)
        return self._selected("select", chosen, keep=False)

    def with_columns(self, **named: Any) -> DataSet:
        """Add fields to the records, or replace those of the same name."""
        if not named:
            message = "with_columns needs a column"
            raise ProgramError(message)
        return self._selected("with_columns", {name: expression_of(value) for name, value in named.items()}, keep=True)

    def _selected(self, method: str, columns: dict[str, Expression], *, keep: bool) -> DataSet:
        schema = None
        if self.schema is not None:
            schema = SelectColumns(columns, keep=keep).output_schema(self.schema)
        return self.then(Select, f"{method} {', '.join(columns)}", schema, columns=columns, keep=keep)

    def as_type(self, output_type: Any) -> DataSet:
        """The same records, held to a type; ``Types.PICKLED_BYTE_ARRAY()`` takes the type away."""
        schema = declared_schema(output_type)
        return self if is_same_type(schema, self.schema) else self.with_schema(schema)

    def with_schema(self, schema: pa.Schema | None) -> DataSet:
        """As `as_type`, by an Arrow schema; None takes the type away."""
        return self.then(Map, "as objects" if schema is None else "as columns", schema, function=_as_it_is)

    # ----------------------------------------------------------------------------------------------------------- groups

    def group_by(self, *key: Any) -> GroupedDataSet:
        """Group records by fields (names, or positions in tuples) or by a function.

        Null is a key like any other, and so is NaN.
        """
        from headrace.dataset.grouped import GroupedDataSet

        found = group_key("group_by", key, self.schema)
        for name in found.names or ():
            if (found.names or ()).count(name) > 1:
                message = f"group_by: field {name!r} is named twice"
                raise ProgramError(message)
        return GroupedDataSet(self, found)

    def reduce(self, func: Any) -> DataSet:
        """Combine all records into one, two at a time; ``func`` is associative and commutative. Of none: none."""
        return self.reduced(None, func)

    def reduce_group(self, func: Any, output_type: Any = None) -> DataSet:
        """Give all records to one call of ``func``, which yields or returns any number of records."""
        return self.group_reduced(None, func, output_type, ())

    def combine_group(self, func: Any, output_type: Any = None) -> DataSet:
        """Give the records of each partition to one call of ``func``."""
        return self.group_combined(None, func, output_type, ())

    def aggregate(self, **aggregates: Aggregate | Expression) -> DataSet:
        """Aggregate all records into one: ``aggregate(n=count(), total=f.sum("price"))``. Of none: one of nulls.

        Arithmetic with aggregates is one too: ``aggregate(mean=f.sum("price") / count())``.
        """
        return self.aggregated(None, aggregates)

    def sum(self, field: str | int) -> DataSet:
        """The sum of a field over all records."""
        return self.aggregated_field(None, sum_of, field)

    def min(self, field: str | int) -> DataSet:
        """The least value of a field."""
        return self.aggregated_field(None, min_of, field)

    def max(self, field: str | int) -> DataSet:
        """The greatest value of a field."""
        return self.aggregated_field(None, max_of, field)

    def avg(self, field: str | int) -> DataSet:
        """The mean of a field."""
        return self.aggregated_field(None, avg, field)

    def min_by(self, *fields: str | int) -> DataSet:
        """The record with the least value of fields, the first field counting most."""
        return self.extreme_by(None, fields, is_min=True)

    def max_by(self, *fields: str | int) -> DataSet:
        """The record with the greatest value of fields, the first field counting most."""
        return self.extreme_by(None, fields, is_min=False)

    def first(self, n: int) -> DataSet:
        """At most ``n`` records, any; right behind ``sort`` the first ones in that order."""
        return self.first_of(None, n, ())

    def distinct(self, *key: Any) -> DataSet:
        """One record of each key; without a key, of equal records one."""
        if not key:
            return self.then(Distinct, "distinct", self.schema, Ship(ShipKind.HASH), key=None)
        found = group_key("distinct", key, self.schema)
        return self.then(Distinct, f"distinct by {found!r}", self.schema, Ship(ShipKind.HASH, found), key=found)

    # The forms that grouped data sets share.

    def reduced(self, key: GroupKey | None, func: Any) -> DataSet:
        """See `reduce` here and of grouped data sets."""
        checked_function(func, "reduce")
        return self.then(Reduce, described("reduce", func), self.schema, _by(key), key=key, function=func)

    def group_reduced(self, key: GroupKey | None, func: Any, output_type: Any, orders: tuple[Order, ...]) -> DataSet:
        """See `reduce_group`."""
        checked_function(func, "reduce", "reduce_group")
        schema = function_schema(func, "reduce", output_type, many=True)
        return self.then(
            ReduceGroup, described("reduce_group", func), schema, _by(key), key=key, function=func, orders=orders
        )

    def group_combined(self, key: GroupKey | None, func: Any, output_type: Any, orders: tuple[Order, ...]) -> DataSet:
        """See `combine_group`."""
        checked_function(func, "combine", "reduce", "reduce_group")
        schema = function_schema(func, "combine", output_type, many=True)
        return self.then(CombineGroup, described("combine_group", func), schema, key=key, function=func, orders=orders)

    def aggregated(self, key: GroupKey | None, aggregates: Mapping[str, Any]) -> DataSet:
        """See `aggregate`."""
        names = () if key is None else key.names or ("key",)
        given: dict[str, Any] = dict(aggregates)
        if any(isinstance(spec, Expression) and aggregates_in(spec) for spec in given.values()):
            return self._computed(key, names, given)
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
        return self._aggregation(key, dict(aggregates), outputs, (*names, *aggregates), "dict")

    def _computed(self, key: GroupKey | None, names: tuple[str, ...], given: dict[str, Any]) -> DataSet:
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
        return self.aggregated(key, parts)._selected("aggregate", columns, keep=False)

    def aggregated_field(
        self, key: GroupKey | None, make: Callable[[Expression | str], Aggregate], field: str | int
    ) -> DataSet:
        """See `sum`: of tuples the result is a tuple of the key's fields and the aggregate, in their order."""
        field = field_of("an aggregate", field)
        check_fields("an aggregate", (field,), self.schema)
        fields = () if key is None else key.fields
        if isinstance(field, str) or (fields is not None and any(isinstance(one, str) for one in fields)):
            name = field if isinstance(field, str) else f"f{field}"
            return self.aggregated(key, {name: make(name)})
        name = f"f{field}"
        spec = {"aggregate": make(name)}
        if fields is None:
            outputs: tuple[tuple[str, Any], ...] = (("key", 0), ("aggregate", "aggregate"))
        else:
            places = sorted(
                [(place, ("key", i)) for i, place in enumerate(fields)] + [(field, ("aggregate", "aggregate"))]
            )
            outputs = tuple(output for _place, output in places)
        return self._aggregation(key, spec, outputs, tuple(f"f{i}" for i in range(len(outputs))), "tuple")

    def _aggregation(
        self,
        key: GroupKey | None,
        aggregates: dict[str, Aggregate],
        outputs: tuple[tuple[str, Any], ...],
        names: tuple[str, ...],
        kind: str,
    ) -> DataSet:
        schema = None
        if self.schema is not None and (key is None or key.names is not None):
            types = {name: spec.output_type(self.schema) for name, spec in aggregates.items()}
            key_names = () if key is None else key.names or ()
            fields = [
                pa.field(name, self.schema.field(key_names[which]).type if what == "key" else types[which])
                for name, (what, which) in zip(names, outputs, strict=True)
            ]
            schema = schema_with_kind(fields, kind)
        title = f"aggregate {', '.join(map(repr, aggregates.values()))}"
        return self.then(
            Aggregation, title, schema, _by(key),
            key=key, aggregates=aggregates, outputs=outputs, field_names=names, kind=kind,
        )  # fmt: skip

    def extreme_by(self, key: GroupKey | None, fields: Sequence[str | int], *, is_min: bool) -> DataSet:
        """See `min_by`, `max_by`."""
        method = "min_by" if is_min else "max_by"
        if not fields:
            message = f"{method} needs a field"
            raise ProgramError(message)
        chosen = tuple(field_of(method, field) for field in fields)
        for field in chosen:
            order_of(method, field, True, self.schema)
        name = f"{method} {', '.join(map(str, chosen))}"
        return self.then(ExtremeBy, name, self.schema, _by(key), key=key, fields=chosen, is_min=is_min)

    def first_of(self, key: GroupKey | None, n: int, orders: tuple[Order, ...]) -> DataSet:
        """See `first`."""
        whole("the number of records", n, 1, None)
        if key is None and isinstance(self._node, Sort):
            orders = self._node.orders  # of sorted records the first ones
        return self.then(First, f"first {n}", self.schema, _by(key), key=key, count=n, orders=orders)

    # ------------------------------------------------------------------------------------------------------- two inputs

    def join(self, other: DataSet, *, how: str = "inner", hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES) -> JoinBuilder:
        """Pair records with equal keys: ``a.join(b).where("id").equal_to("a_id")``.

        Args:
            other: The second input.
            how: ``inner``, ``left``, ``right`` or ``full``: whose records without a partner are kept.
            hint: What is known of the sizes.
        """
        from headrace.dataset.two_inputs import JoinBuilder

        return JoinBuilder(self, other, how, hint)

    def join_with_tiny(self, other: DataSet) -> JoinBuilder:
        """A join whose second input is small enough to be sent everywhere."""
        return self.join(other, hint=JoinHint.BROADCAST_HASH_SECOND)

    def join_with_huge(self, other: DataSet) -> JoinBuilder:
        """A join whose first input is small enough to be sent everywhere."""
        return self.join(other, hint=JoinHint.BROADCAST_HASH_FIRST)

    def left_outer_join(self, other: DataSet, hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES) -> JoinBuilder:
        """A join that keeps records of this data set without a partner."""
        return self.join(other, how="left", hint=hint)

    def right_outer_join(self, other: DataSet, hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES) -> JoinBuilder:
        """A join that keeps records of the other data set without a partner."""
        return self.join(other, how="right", hint=hint)

    def full_outer_join(self, other: DataSet, hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES) -> JoinBuilder:
        """A join that keeps all records without a partner."""
        return self.join(other, how="full", hint=hint)

    def co_group(self, other: DataSet) -> CoGroupBuilder:
        """Give both groups of each key to one call: ``a.co_group(b).where("id").equal_to("a_id").with_(func)``."""
        from headrace.dataset.two_inputs import CoGroupBuilder

        return CoGroupBuilder(self, other)

    def cross(self, other: DataSet) -> CrossDataSet:
        """All pairs of records; ``other`` is sent everywhere."""
        from headrace.dataset.two_inputs import cross_of

        return cross_of(self, other, ships=(FORWARD, BROADCAST))

    def cross_with_tiny(self, other: DataSet) -> CrossDataSet:
        """As `cross`."""
        return self.cross(other)

    def cross_with_huge(self, other: DataSet) -> CrossDataSet:
        """All pairs of records; this data set is sent everywhere."""
        from headrace.dataset.two_inputs import cross_of

        return cross_of(self, other, ships=(BROADCAST, FORWARD))

    def union(self, *others: DataSet) -> DataSet:
        """The records of all data sets, duplicates too; of one type, or all without one."""
        for other in others:
            self._environment.require_same(self, other)
        members = (self, *others)
        if any(member.schema is None for member in members):
            members = tuple(m if m.schema is None else m.with_schema(None) for m in members)
        for member in members[1:]:
            if not is_same_type(members[0].schema, member.schema):
                message = (
                    f"a union is of data sets of one type; got {members[0].get_type()!r} and {member.get_type()!r}"
                )
                raise TypeMismatchError(message, hint="project or select the same fields, cast to the same types")
        first = members[0].schema
        nodes = tuple(
            (m if m.schema is None or first is None or m.schema.equals(first) else m.with_schema(first)).take_node()
            for m in members
        )
        node = Union(
            id=self._environment.new_id(), name="union", inputs=nodes, schema=first, ships=(FORWARD,) * len(nodes)
        )
        return DataSet(self._environment, node)

    # ------------------------------------------------------------------------------------------- partitions and order

    def rebalance(self) -> DataSet:
        """Deal the records out evenly."""
        return self.then(Repartition, "rebalance", self.schema, REBALANCE)

    def partition_by_hash(self, *key: Any) -> DataSet:
        """Bring equal keys to one partition."""
        found = group_key("partition_by_hash", key, self.schema)
        return self.then(Repartition, f"partition by hash of {found!r}", self.schema, Ship(ShipKind.HASH, found))

    def partition_by_range(self, *fields: Any, ascending: bool = True) -> DataSet:
        """Bring records to partitions in order of fields: nothing in a partition is greater than in the next."""
        orders = tuple(order_of("partition_by_range", field, ascending, self.schema) for field in fields)
        if not orders:
            message = "partition_by_range needs a field"
            raise ProgramError(message)
        ship = Ship(ShipKind.RANGE, orders=orders)
        return self.then(Repartition, f"partition by range of {', '.join(map(repr, orders))}", self.schema, ship)

    def partition_custom(self, partitioner: Any, *key: Any) -> DataSet:
        """Bring each record to the partition that ``partitioner(key, num_partitions)`` names."""
        function = getattr(partitioner, "partition", partitioner)
        if not callable(function):
            message = f"a partitioner is a Partitioner or a callable of key and number; got {partitioner!r}"
            raise ProgramError(message)
        found = group_key("partition_custom", key, self.schema)
        ship = Ship(ShipKind.CUSTOM, found, function=function)
        return self.then(Repartition, f"partition by {found!r}", self.schema, ship)

    def sort_partition(self, field: Any, ascending: bool = True) -> DataSet:
        """Sort each partition; called again behind itself, by further fields."""
        order = order_of("sort_partition", field, ascending, self.schema)
        node = self._node
        if isinstance(node, SortPartition) and not self._is_used:
            orders = (*node.orders, order)
            name = _sort_name("sort_partition", orders)
            return DataSet(self._environment, replace(node, id=self._environment.new_id(), orders=orders, name=name))
        return self.then(SortPartition, _sort_name("sort_partition", (order,)), self.schema, orders=(order,))

    def sort(self, *fields: Any, ascending: bool | Sequence[bool] = True) -> DataSet:
        """Sort all records: ``collect`` gives them in this order.

        Nulls come first and NaN last; descending is exactly the reverse.

        Args:
            *fields: Names, positions or functions, the first counting most.
            ascending: For all, or for each.
        """
        is_each = isinstance(ascending, Sequence) and not isinstance(ascending, str)
        directions = list(ascending) if is_each else [ascending] * len(fields)  # type: ignore[arg-type]
        if not fields or len(directions) != len(fields):
            message = f"sort needs fields, and one direction for all or each; got {len(fields)} and {len(directions)}"
            raise ProgramError(message)
        orders = tuple(order_of("sort", f, up, self.schema) for f, up in zip(fields, directions, strict=True))
        ship = Ship(ShipKind.RANGE, orders=orders)
        return self.then(Sort, _sort_name("sort", orders), self.schema, ship, orders=orders)

    # ------------------------------------------------------------------------------------------------------- iterations

    def iterate(
        self,
        max_iterations: int,
        step: Callable[..., Any] | None = None,
        *,
        aggregators: dict[str, Any] | None = None,
        convergence: tuple[str, Any] | None = None,
    ) -> Any:
        """Put the data set through a step again and again.

        Args:
            max_iterations: How often, at most.
            step: Takes a data set (the last result) and gives the next; or a pair of that and a data set that ends the
                iteration when it is empty. None gives an `IterativeDataSet`, which is closed by ``close_with``.
            aggregators: Accumulators by name, merged at the end of each superstep.
            convergence: Name of an aggregator and a function of superstep and its value that is true to stop.
        """
        from headrace.dataset.iterations import IterativeDataSet, bulk_iteration

        if step is not None:
            return bulk_iteration(self, max_iterations, step, aggregators or {}, convergence)
        loop: IterativeDataSet = IterativeDataSet.begin(self, max_iterations, aggregators or {}, convergence)
        return loop

    def iterate_delta(
        self,
        workset: DataSet,
        max_iterations: int,
        *key: Any,
        step: Callable[[DataSet, DataSet], tuple[DataSet, DataSet]] | None = None,
        aggregators: dict[str, Any] | None = None,
        convergence: tuple[str, Any] | None = None,
    ) -> Any:
        """Change this data set, the solution set, by way of a workset until that is empty.

        Args:
            workset: The first workset.
            max_iterations: Most supersteps.
            *key: The key of the solution set, which holds one record of each.
            step: Takes solution set and workset, gives the changes of the solution set and the next workset. None gives
                a builder, which is closed by ``close_with``.
            aggregators: As of `iterate`.
            convergence: As of `iterate`.
        """
        from headrace.dataset.iterations import DeltaIterationBuilder, delta_iteration

        found = group_key("iterate_delta", key, self.schema)
        if step is not None:
            return delta_iteration(self, workset, max_iterations, found, step, aggregators or {}, convergence)
        loop: DeltaIterationBuilder = DeltaIterationBuilder.begin(
            self, workset, max_iterations, found, aggregators or {}, convergence
        )
        return loop

    # ---------------------------------------------------------------------------------------------------------- results

    def collect(self) -> list[Any]:
        """Run the plan and give all records, in order of the partitions."""
        return rows_of_table(self._collected(), self.schema)

    def to_arrow(self) -> pa.Table:
        """Run the plan and give all records as an Arrow table.

        Raises:
            TypeMismatchError: If records without a type are not of one form.
        """
        table = self._collected()
        if self.schema is not None:
            return table
        return pa.Table.from_batches([columns_from_rows(rows_of_table(table, None))])

    def to_pandas(self) -> Any:
        """Run the plan and give all records as a pandas data frame."""
        return self.to_arrow().replace_schema_metadata(None).to_pandas()

    def count(self) -> int:
        """Run the plan and give the number of records."""
        node = self._sink(Count, "count", None)
        number: int = self._environment.run((node,)).values[node.id]
        return number

    def print(self, limit: int | None = None) -> None:
        """Run the plan and write the records to standard output, one per line.

        Args:
            limit: How many at most; None for all.
        """
        shown = self if limit is None else self.first(limit)
        sys.stdout.write("".join(f"{row}\n" for row in shown.collect()))
        sys.stdout.flush()

    def to_stream(self, env: StreamExecutionEnvironment) -> DataStream:
        """Run the plan and make a bounded stream of the result."""
        if self.schema is None:
            return env.from_collection(self.collect())
        return env.from_collection(self.to_arrow(), type_info=resolve_type(self.schema))

    def _collected(self) -> pa.Table:
        node = self._sink(Collect, "collect", self.schema)
        table: pa.Table = self._environment.run((node,)).values[node.id]
        return table

    def _sink(self, kind: type[Node], name: str, schema: pa.Schema | None, /, **more: Any) -> Node:
        return self.then(kind, name, schema, FORWARD, **more).take_node()

    # ------------------------------------------------------------------------------------------------------------ sinks

    def write_as_text(self, path: str, *, mode: WriteMode = "error") -> None:
        """Write ``str(record)`` per line when the environment executes; a file per partition in the folder ``path``."""
        self._write("text", path, mode, {})

    def write_as_csv(
        self,
        path: str,
        *,
        delimiter: str = ",",
        header: bool | None = None,
        mode: WriteMode = "error",
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Write CSV files when the environment executes.

        Null is an empty field; in a file of one column it is one in quotes, as readers skip empty lines. Records
        without a type have the columns of the first one, and all partitions must have the same.

        Args:
            path: The folder.
            delimiter: One character.
            header: Whether files begin with the names; None for dicts only.
            mode: What becomes of what is there: ``error`` refuses a folder that is not empty, ``append`` leaves it,
                ``overwrite`` replaces it when all is written.
            partition_by: Fields (integers, texts, dates) that become folders ``name=value``, one in the other, which
                the files then leave out. Reading finds them again; a text that looks like a number is one there, if
                its type is not declared.
        """
        if len(delimiter) != 1:
            message = f"delimiter must be one character; got {delimiter!r}"
            raise ProgramError(message)
        options: dict[str, Any] = {"delimiter": delimiter}
        if header is not None:
            options["header"] = header
        self._write("csv", path, mode, options, partition_by)

    def write_as_json(self, path: str, *, mode: WriteMode = "error", partition_by: str | Sequence[str] = ()) -> None:
        """Write a JSON value per line when the environment executes; ``partition_by`` as of `write_as_csv`.

        Dates and times are ISO 8601 text, decimals text, bytes base64 text, sets arrays. JSON knows no ``NaN`` and no
        infinity: they are null.
        """
        self._write("json", path, mode, {}, partition_by)

    def write_as_parquet(
        self,
        path: str,
        *,
        compression: str = "snappy",
        mode: WriteMode = "error",
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Write Parquet files when the environment executes; ``partition_by`` as of `write_as_csv`.

        Records without a type get one that fits those of all partitions; if there is none, the job fails.
        """
        self._write("parquet", path, mode, {"compression": compression}, partition_by)

    def _write(
        self,
        form: str,
        path: str,
        mode: WriteMode,
        options: dict[str, Any],
        partition_by: str | Sequence[str] = (),
    ) -> None:
        check_write_mode(mode)
        if self.schema is not None and form == "csv":
            for field in self.schema:
                if pa.types.is_nested(field.type):
                    message = f"field {field.name!r} of type {field.type} cannot be written as csv"
                    raise TypeMismatchError(message, hint="write json or parquet")
        place = lasting_place(path, "where a data set is written")
        self._environment.add_sink(
            self._sink(
                WriteFiles, f"write {form}", None,
                format=form, path=place, mode=mode, run=uuid.uuid4().hex[:12], options=options,
                partition_by=self._folders(partition_by),
            )
        )  # fmt: skip

    def _folders(self, partition_by: str | Sequence[str]) -> tuple[str, ...]:
        """The fields that become folders, checked."""
        names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if not names:
            return ()
        if self.schema is None or row_kind(self.schema) != "dict":
            message = "partition_by is for records that are dicts of a known type"
            raise ProgramError(message, hint="declare the type before: as_type(...) or output_type=...")
        check_fields("partition_by", names, self.schema)
        if len(set(names)) < len(names) or len(names) == len(self.schema):
            message = f"partition_by names a field twice, or leaves none for the files: {list(names)}"
            raise ProgramError(message)
        for name in names:
            kind = self.schema.field(name).type
            is_plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
            if not is_plain or name.startswith(("_", ".")):
                message = f"partition_by: field {name!r} of type {kind} cannot be a folder"
                hint = "folders are of integers, texts and dates, and those that begin with _ or . are hidden"
                raise TypeMismatchError(message, hint=hint)
        return names

    def __repr__(self) -> str:
        kind = row_kind(self.schema)
        return f"DataSet({self._node.name}, {'objects' if kind == 'object' else self.get_type()!r})"


def _by(key: GroupKey | None) -> Ship:
    return GATHER if key is None else Ship(ShipKind.HASH, key)


def _sort_name(method: str, orders: Sequence[Order]) -> str:
    return f"{method} {', '.join(map(repr, orders))}"
