"""Aggregates of different values in two levels: first by group and bucket of values, then by group.

A group that has most of the values has them in one subtask. Here each value goes to one of some buckets, by its hash,
and a bucket of a group is a group of its own, in any subtask. What the buckets come to is merged by the group alone.
Rows come once for each argument of DISTINCT; other aggregates read the copies of the first.

The levels keep another state than one does: such a query does not go on from the other plan's.

Source: Flink's ``SplitAggregateRule``, ``table.optimizer.distinct-agg.split.enabled``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.state.errors import TypeMismatchError
from headrace.state.keys.column_hashing import hash_columns

from ...changelog.accumulators.value_arguments import filtered_argument
from ...columns.conditionals import Case
from ...columns.expressions import Expression, coalesce, col, lit
from ...functions.aggregates import built_in
from ...functions.aggregates.contract import Aggregate
from ...functions.aggregates.distinct import OfDistinct
from ...functions.keys import KeySelector
from ...operators.expanding import Buckets
from ...plan.plan import Aggregation, GroupKey, Node, Select
from ...plan.table_nodes import Expand
from ..growth import ttls_of
from ..optimizer import Roots, Rule
from ..rewriting import noted, rewritten

__all__ = ["split_distinct"]

BUCKET = "$bucket"
"""The column with the number of a bucket."""


def split_distinct(num_buckets: int | None, new_id: Callable[[], int]) -> Rule:
    """Return the rule that splits groups with aggregates of different values.

    Args:
        num_buckets: Of each argument; None to leave groups as they are.
        new_id: Numbers the nodes that are added.
    """

    def visit(node: Node) -> Node:
        if num_buckets is None or not isinstance(node, Aggregation):
            return node
        if not any(_is_of_distinct(one) for one in node.aggregates.values()):
            return node
        if any(ttls_of(node)):
            return noted(node, "not split by buckets: with a time to live they would be forgotten one by one")
        split = _Split(node, num_buckets, new_id)
        why = split.why_not()
        return split.made() if why is None else noted(node, f"not split by buckets: {why}")

    def apply(roots: Roots, _parallelism: int | None) -> Roots:
        return rewritten(roots, visit)

    return Rule("different values by buckets", apply)


def _is_of_distinct(aggregate: Aggregate) -> bool:
    return aggregate.name == "count_distinct" or isinstance(aggregate, OfDistinct)


@dataclass(frozen=True)
class _Levels:
    """An aggregate in two levels.

    Attributes:
        first: What is computed of a bucket, by its part of the name; as names of aggregates.
        second: What merges that, in the same order.
        result: Makes the result of what is merged.
    """

    first: Mapping[str, str]
    second: tuple[str, ...]
    result: Callable[..., Expression] = lambda value: value


_COUNT = _Levels({"": "count"}, ("sum",), lambda number: coalesce(number, lit(0, pa.int64())))
_LEVELS = {
    "count": _COUNT,
    "count_distinct": replace(_COUNT, first={"": "count_distinct"}),
    "sum": _Levels({"": "sum"}, ("sum",)),
    "min": _Levels({"": "min"}, ("min",)),
    "max": _Levels({"": "max"}, ("max",)),
    "avg": _Levels({"$sum": "sum", "$count": "count"}, ("sum", "sum"), lambda total, number: total / number),
}


class _Split:
    """Splits one group."""

    def __init__(self, node: Aggregation, num_buckets: int, new_id: Callable[[], int]) -> None:
        self._node = node
        self._rows = node.inputs[0]
        schema = self._rows.schema
        assert schema is not None
        self._schema: pa.Schema = schema
        self._num_buckets = num_buckets
        self._new_id = new_id
        self._keys = () if node.key is None else node.key.names or ()
        # The arguments of DISTINCT, without their filters.
        self._values: dict[Any, Expression] = {}
        for aggregate in node.aggregates.values():
            if _is_of_distinct(aggregate):
                value = filtered_argument(aggregate, schema)[0]
                self._values.setdefault(value.structure, value)

    def why_not(self) -> str | None:
        """Say what cannot be split; None if all can."""
        if BUCKET in self._schema.names:
            return f"column {BUCKET!r} is that of buckets"
        for aggregate in self._node.aggregates.values():
            inner = aggregate.inner if isinstance(aggregate, OfDistinct) else aggregate
            if inner.name not in _LEVELS:
                return f"{aggregate!r} is not merged of what buckets come to"
        for value in self._values.values():
            try:
                hash_columns([pa.nulls(0, value.output_type(self._schema))])
            except TypeMismatchError:
                return f"values of {value!r} have no hash"
        return None

    def made(self) -> Node:
        """Return both levels, and the results."""
        expansion = Buckets(tuple(self._values.values()), self._num_buckets, BUCKET)
        shown = ", ".join(map(repr, self._values.values()))
        schema = pa.schema([*self._schema, *expansion.fields])
        rows = Expand(
            id=self._new_id(), name=f"{self._num_buckets} buckets of {shown}", inputs=(self._rows,), schema=schema,
            expansion=expansion,
        )  # fmt: skip
        first: dict[str, Aggregate] = {}
        second: dict[str, Aggregate] = {}
        results: dict[str, Expression] = {}
        for name, aggregate in self._node.aggregates.items():
            inner = aggregate.inner if isinstance(aggregate, OfDistinct) else aggregate
            levels = _LEVELS[inner.name]
            parts = {f"{name}{part}": kind for part, kind in levels.first.items()}
            first |= {part: self._of_bucket(aggregate, kind, inner.name) for part, kind in parts.items()}
            second |= {part: getattr(built_in, merge)(part) for part, merge in zip(parts, levels.second, strict=True)}
            results[name] = levels.result(*map(col, parts))
        buckets = self._grouped(rows, (*self._keys, BUCKET), first)
        merged = self._grouped(buckets, self._keys, second)
        return self._selected(noted(merged, f"in two levels: merges {self._num_buckets} buckets of {shown}"), results)

    def _of_bucket(self, aggregate: Aggregate, kind: str, name: str) -> Aggregate:
        """What an aggregate is in the first level: of the copies that are meant for it."""
        make = getattr(built_in, kind)
        widen = name == "avg" and kind == "sum"
        if isinstance(aggregate, OfDistinct):
            inner = aggregate.inner.argument
            assert inner is not None
            assert aggregate.argument is not None
            argument, condition = filtered_argument(aggregate, self._schema)
            chosen = self._chosen(argument, condition, self._number_of(argument), aggregate.kind)
            return OfDistinct(make(inner.cast(pa.float64()) if widen else inner), chosen, aggregate.kind)
        if aggregate.argument is None:
            one = lit(1, pa.int64())
            return make(None) if len(self._values) == 1 else make(self._chosen(one, None, 0, pa.int64()))
        number, argument, condition = 0, aggregate.argument, None
        if name == "count_distinct":
            argument, condition = filtered_argument(aggregate, self._schema)
            number = self._number_of(argument)
        chosen = self._chosen(argument, condition, number, argument.output_type(self._schema))
        return make(chosen.cast(pa.float64()) if widen else chosen)

    def _number_of(self, argument: Expression) -> int:
        return list(self._values).index(argument.structure)

    def _chosen(self, value: Expression, condition: Expression | None, number: int, kind: pa.DataType) -> Expression:
        """A value of the copies of one argument of DISTINCT, where a condition is true; else null."""
        conditions = [] if condition is None else [condition]
        if len(self._values) > 1:
            conditions.append(col(BUCKET) // self._num_buckets == number)
        if not conditions:
            return value
        together = conditions[0] if len(conditions) == 1 else conditions[1] & conditions[0]
        return Case((together, value, lit(None, kind)))

    def _grouped(self, rows: Node, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Aggregation:
        schema = rows.schema
        assert schema is not None
        fields = [schema.field(key) for key in keys]
        fields += [pa.field(name, one.output_type(schema)) for name, one in aggregates.items()]
        calls = ", ".join(map(repr, aggregates.values()))
        names = tuple(keys)
        return replace(
            self._node, id=self._new_id(), name=f"group by {', '.join(keys)}: {calls}" if keys else calls,
            inputs=(rows,), schema=pa.schema(fields), aggregates=aggregates, notes=(),
            key=GroupKey(KeySelector.of_field(*names), names, names) if names else None,
            outputs=(*(("key", i) for i in range(len(keys))), *(("aggregate", name) for name in aggregates)),
            field_names=(*names, *aggregates),
        )  # fmt: skip

    def _selected(self, merged: Node, results: Mapping[str, Expression]) -> Node:
        schema = self._node.schema
        assert schema is not None
        assert merged.schema is not None
        columns: dict[str, Expression] = {}
        for field in schema:
            value = results.get(field.name, col(field.name))
            columns[field.name] = value if value.output_type(merged.schema) == field.type else value.cast(field.type)
        return Select(
            id=self._node.id, name=f"results of {self._node.name}", inputs=(merged,), schema=schema, columns=columns
        )
