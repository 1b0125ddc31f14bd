"""What SQL and PySpark have words for: columns renamed and dropped, sets, windows, samples, kept results.

All of it is recorded as nodes of the plan, as the methods in `headrace.dataset.dataset` are, of which these are a part.

Source: SQL:2016; Flink's Table API for names (``minus``, ``intersect``), PySpark for what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.arguments import text
from headrace.dataset.types import field_type, group_key, order_of, schema_with_kind
from headrace.engine.aggregates import Aggregate
from headrace.engine.dataset.plan import (
    BROADCAST,
    FORWARD,
    GATHER,
    Cache,
    ConditionJoin,
    GroupKey,
    Node,
    OverGroups,
    SemiJoin,
    Ship,
    ShipKind,
    row_kind,
)
from headrace.engine.dataset.ranking import Neighbour, Place, output_type
from headrace.engine.dataset.shipping import key_hashes
from headrace.engine.dataset.wire import frozen
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.expressions import Expression, col
from headrace.engine.keys import KeySelector
from headrace.engine.records import Batch

if TYPE_CHECKING:
    from headrace.dataset.dataset import DataSet
    from headrace.dataset.environment import ExecutionEnvironment

__all__ = ["RelationalVerbs", "SemiJoinBuilder"]


def _fields_of(method: str, data: DataSet) -> pa.Schema:
    """The type of records that are dicts.

    Raises:
        ProgramError: If they are not.
    """
    if data.schema is None or row_kind(data.schema) != "dict":
        message = f"{method} is for records that are dicts of a known type"
        raise ProgramError(message, hint="declare the type before: as_type(...) or output_type=...")
    return data.schema


class RelationalVerbs:
    """The part of a data set that is about columns and sets."""

    if TYPE_CHECKING:
        _environment: ExecutionEnvironment

        @property
        def schema(self) -> pa.Schema | None: ...

        def take_node(self) -> Node: ...

    # ---------------------------------------------------------------------------------------------------------- columns

    def rename(self: Any, names: Mapping[str, str] | None = None, /, **more: str) -> DataSet:
        """Give fields other names: ``rename(old="new")`` or ``rename({"old": "new"})``."""
        given = {**(names or {}), **more}
        if not given:
            message = "rename needs a field"
            raise ProgramError(message)
        for old, new in given.items():
            field_type("rename", old, self.schema)
            text("a field's new name", new)
        if self.schema is None:
            return self.map(_Renaming(given))
        target = [given.get(name, name) for name in _fields_of("rename", self).names]
        doubled = sorted({name for name in target if target.count(name) > 1})
        if doubled:
            message = f"rename would give several fields called {', '.join(map(repr, doubled))}"
            raise ProgramError(message)
        return self.select(**{new: col(old) for new, old in zip(target, self.schema.names, strict=True)})

    def drop(self: Any, *fields: str) -> DataSet:
        """Leave fields out."""
        for field in fields:
            field_type("drop", text("a field", field), self.schema)
        if not fields:
            message = "drop needs a field"
            raise ProgramError(message)
        if self.schema is None:
            return self.map(_Dropping(frozenset(fields)))
        kept = [name for name in _fields_of("drop", self).names if name not in fields]
        if not kept:
            message = "drop would leave no field"
            raise ProgramError(message)
        return self.project(*kept)

    def explode(self: Any, field: str, *, outer: bool = False) -> DataSet:
        """A record for each element of a list, in place of the list.

        Args:
            field: The field with the lists.
            outer: Whether a record whose list is null or empty stays, with null; else there is none.
        """
        schema = _fields_of("explode", self)
        kind = field_type("explode", field, schema)
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            message = f"explode: field {field!r} of type {kind} is no list"
            raise TypeMismatchError(message)
        fields = [pa.field(f.name, kind.value_type if f.name == field else f.type) for f in schema]  # type: ignore[union-attr]
        exploded = schema_with_kind(fields, "dict")
        return self.map_batches(_Exploding(field, exploded, outer=outer), output_type=exploded).name(f"explode {field}")

    # ------------------------------------------------------------------------------------------------------------- sets

    def minus(self: Any, other: DataSet) -> DataSet:
        """The different records that are not in ``other``; null is a value like any other."""
        return _sets(self, other, "minus", _Minus(is_all=False))

    def minus_all(self: Any, other: DataSet) -> DataSet:
        """The records without as many of each as ``other`` has."""
        return _sets(self, other, "minus_all", _Minus(is_all=True))

    def intersect(self: Any, other: DataSet) -> DataSet:
        """The different records that are in ``other`` too; null is a value like any other."""
        return _sets(self, other, "intersect", _Intersect(is_all=False))

    def intersect_all(self: Any, other: DataSet) -> DataSet:
        """Of each record as many as both have."""
        return _sets(self, other, "intersect_all", _Intersect(is_all=True))

    def sample(self: Any, fraction: float, seed: int = 0) -> DataSet:
        """About so large a part of the records, chosen by chance.

        A record's chance is drawn from the record itself and the seed. So the choice is the same in every run and on
        every executor, and equal records are all chosen or all left.

        Args:
            fraction: From 0 to 1.
            seed: Another seed chooses other records.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            message = f"a fraction is between 0 and 1; got {fraction!r}"
            raise ProgramError(message)
        if isinstance(seed, bool) or not isinstance(seed, int):
            message = f"a seed is an integer; got {seed!r}"
            raise ProgramError(message)
        chosen = _Chosen(float(fraction), seed)
        if self.schema is None or any(pa.types.is_nested(field.type) for field in self.schema):
            return self.filter(chosen.is_chosen).name(f"sample {fraction}")
        return self.map_batches(chosen.of_batch, output_type=self.schema).name(f"sample {fraction}")

    # ------------------------------------------------------------------------------------------------------------ joins

    def semi_join(self: Any, other: DataSet) -> SemiJoinBuilder:
        """The records that have a partner in ``other``, each once: ``a.semi_join(b).where("id").equal_to("a_id")``."""
        return SemiJoinBuilder(self, other, is_anti=False)

    def anti_join(self: Any, other: DataSet) -> SemiJoinBuilder:
        """The records that have no partner in ``other``, also those whose key is null; else as `semi_join`."""
        return SemiJoinBuilder(self, other, is_anti=True)

    def join_where(
        self: Any, other: DataSet, condition: Expression, *, how: str = "inner", suffix: str | None = None
    ) -> DataSet:
        """Pairs of records by any condition, as dicts of the fields of both; ``other`` is sent everywhere.

        Every pair is looked at, so `join` is better where keys must be equal; further conditions are a ``filter``.

        Args:
            other: The second input.
            condition: Over the fields of the result. Null is not fulfilled.
            how: ``inner``, ``left`` (records without a partner stay), ``semi`` or ``anti`` (records of this data set
                that have a partner, or none).
            suffix: What is appended to the names of fields of ``other`` that both have; None to refuse them.
        """
        if how not in ("inner", "left", "semi", "anti"):
            message = f"how must be one of inner, left, semi, anti; got {how!r}"
            raise ProgramError(message, hint="for a right join change the sides")
        given: Any = condition
        if not isinstance(given, Expression):
            message = f"join_where takes an expression over the fields of both; got {condition!r}"
            raise ProgramError(message)
        self._environment.require_same(self, other)
        left, right = _fields_of("join_where", self), _fields_of("join_where", other)
        projection = [(0, name, name) for name in left.names]
        fields = list(left)
        for field in right:
            name = f"{field.name}{suffix or ''}" if field.name in left.names else field.name
            if name in (known.name for known in fields):
                message = f"both inputs have a field {name!r}"
                raise ProgramError(message, hint='pass suffix="_right", or rename it before')
            projection.append((1, field.name, name))
            fields.append(pa.field(name, field.type))
        both = schema_with_kind(fields, "dict")
        kind = condition.output_type(both)
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            message = f"a join needs a condition that is true or false; {condition!r} is {kind}"
            raise TypeMismatchError(message)
        node = ConditionJoin(
            id=self._environment.new_id(), name=f"{how} join where {condition!r}",
            inputs=(self.take_node(), other.take_node()), schema=both if how in ("inner", "left") else left,
            ships=(FORWARD, BROADCAST), condition=condition, projection=tuple(projection), how=how,
        )  # fmt: skip
        return _made(self._environment, node)

    # ---------------------------------------------------------------------------------------------------------- windows

    def over(
        self: Any,
        partition_by: Any = None,
        order_by: Any = None,
        *,
        ascending: bool | Sequence[bool] = True,
        rows_between: tuple[int | None, int | None] | None = None,
        **columns: Any,
    ) -> DataSet:
        """Add columns that tell each record's place in a group, or what the group comes to up to it.

        ``over("user", "time", number=f.row_number(), before=f.lag("price"), total=f.sum("price"))``

        Args:
            partition_by: The fields that make groups, a name or several; None for one group of all records.
            order_by: The order in a group, a name or several, nulls first.
            ascending: For all fields of the order, or for each.
            rows_between: Which records an aggregate sees: how many places from each record the first and the last of
                them are, negative before it, None for all, as ``(-6, 0)``. Without it as in SQL: all up to the record
                and those that are equal to it in the order, or without an order the whole group.
            **columns: ``f.row_number()``, ``f.rank()``, ``f.dense_rank()``, ``f.lag(...)``, ``f.lead(...)`` or
                aggregates, by the name of the new field.
        """
        schema = _fields_of("over", self)
        key: GroupKey | None = None if partition_by is None else group_key("over", _several(partition_by), schema)
        order_fields = [] if order_by is None else _several(order_by)
        each = [ascending] * len(order_fields) if isinstance(ascending, bool) else list(ascending)
        if len(each) != len(order_fields):
            message = f"over: one direction for all or each field of the order; got {len(each)}, {len(order_fields)}"
            raise ProgramError(message)
        orders = tuple(order_of("over", field, up, schema) for field, up in zip(order_fields, each, strict=True))
        if (key is not None and key.names is None) or any(order.column is None for order in orders):
            message = "over takes fields, not functions"
            raise ProgramError(message, hint="compute a field before: with_columns(...)")
        rows = _checked_rows(rows_between)
        if not columns:
            message = "over needs a column, such as number=f.row_number()"
            raise ProgramError(message)
        fields = list(schema)
        for name, spec in columns.items():
            if not isinstance(spec, (Place, Neighbour, Aggregate)):
                message = f"{name!r} must be a place, a neighbour or an aggregate; got {spec!r}"
                raise ProgramError(message, hint="use f.row_number(), f.rank(), f.lag(), f.sum() ...")
            if name in schema.names:
                message = f"over: there is a field {name!r} already"
                raise ProgramError(message)
            if not orders and (not isinstance(spec, Aggregate) or rows is not None):
                message = f"over: {name}={spec!r} goes by an order"
                raise ProgramError(message, hint="pass order_by")
            fields.append(pa.field(name, output_type(spec, schema)))
        return self.then(
            OverGroups, f"over {', '.join(columns)}", schema_with_kind(fields, "dict"),
            GATHER if key is None else Ship(ShipKind.HASH, key), key=key, orders=orders, columns=columns, rows=rows,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------------------- results

    def cache(self: Any) -> DataSet:
        """The same records, computed once and kept for further jobs of this environment.

        What is kept goes when the program holds nothing that reads it, and with the environment's ``close``. If it is
        lost with a machine, it is computed again.
        """
        return self.then(Cache, "cache", self.schema, token=CacheToken())


class CacheToken:
    """Stands for a data set that is kept; executors hold it weakly."""


def _made(environment: ExecutionEnvironment, node: Node) -> DataSet:
    from headrace.dataset.dataset import DataSet

    return DataSet(environment, node)


def _several(fields: Any) -> list[Any]:
    return list(fields) if isinstance(fields, (list, tuple)) else [fields]


def _checked_rows(rows: Any) -> tuple[int | None, int | None] | None:
    if rows is None:
        return None
    is_pair = isinstance(rows, tuple) and len(rows) == 2
    if not is_pair or any(isinstance(b, bool) or not (b is None or isinstance(b, int)) for b in rows):
        message = f"rows_between is a pair of integers or None; got {rows!r}"
        raise ProgramError(message)
    low, high = rows
    if low is not None and high is not None and low > high:
        message = f"rows_between: the first row cannot be behind the last one; got {rows!r}"
        raise ProgramError(message)
    return low, high


# ------------------------------------------------------------------------------------------------------------ functions


class _Renaming:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    def __call__(self, row: Any) -> dict[str, Any]:
        return {self._names.get(name, name): value for name, value in row.items()}


class _Dropping:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def __call__(self, row: Any) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in self._names}


class _Exploding:
    def __init__(self, field: str, schema: pa.Schema, *, outer: bool) -> None:
        self._field = field
        self._schema = schema
        self._outer = outer

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow.compute as pc

        lists = batch.column(self._field)
        sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = pc.list_flatten(lists)
        counts = np.maximum(sizes, 1) if self._outer else sizes
        rows = np.repeat(np.arange(len(sizes)), counts)
        is_there = np.repeat(sizes > 0, counts)
        places = np.cumsum(is_there) - 1
        elements = values.take(pa.array(np.where(is_there, places, 0), mask=~is_there))
        taken = pa.array(rows)
        arrays = [elements if f.name == self._field else batch.column(f.name).take(taken) for f in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Minus:
    def __init__(self, *, is_all: bool) -> None:
        self._is_all = is_all

    def __call__(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        if self._is_all:
            return left[len(right) :]
        return [] if right else left[:1]


class _Intersect:
    def __init__(self, *, is_all: bool) -> None:
        self._is_all = is_all

    def __call__(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        return left[: len(right)] if self._is_all else left[: min(len(right), 1)]


def _sets(data: Any, other: DataSet, method: str, function: Any) -> DataSet:
    """Records of two data sets of one type, group by group of equal records."""
    from headrace.dataset.types import is_same_type

    data._environment.require_same(data, other)
    if data.schema is None or other.schema is None:
        one, two = data.with_schema(None), other.with_schema(None)
    elif is_same_type(data.schema, other.schema):
        one, two = data, other
    else:
        message = f"{method} is of data sets of one type; got {data.get_type()!r} and {other.get_type()!r}"
        raise TypeMismatchError(message, hint="project or select the same fields, cast to the same types")
    schema = one.schema
    keys: list[Any] = [[frozen], [frozen]]
    if schema is not None and not any(pa.types.is_nested(field.type) for field in schema):
        is_tuple = row_kind(schema) == "tuple"
        keys = [list(range(len(schema))) if is_tuple else list(schema.names)] * 2
    elif schema is not None:
        # Columns may come in another order on the other side.
        one, two = one.with_schema(None), two.with_schema(None)
    pairs = one.co_group(two).where(*keys[0]).equal_to(*keys[1])
    return pairs.with_(function, output_type=schema).name(method)


class _Chosen:
    """Draws a record's chance from its hash."""

    def __init__(self, fraction: float, seed: int) -> None:
        # Odd numbers, so that multiplying by them loses nothing.
        self._salt = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
        self._below = round(fraction * 2**53)

    def _mask(self, batch: Batch, key: GroupKey | None) -> np.ndarray:
        with np.errstate(over="ignore"):
            drawn = key_hashes(key, batch) ^ np.uint64(self._salt)
            for by, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                drawn = (drawn ^ (drawn >> np.uint64(by))) * np.uint64(multiplier)
            drawn ^= drawn >> np.uint64(31)
        chosen: np.ndarray = (drawn >> np.uint64(11)) < np.uint64(self._below)
        return chosen

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The chosen records of a batch."""
        return batch.filter(pa.array(self._mask(Batch.of_columns(batch), None)))

    def is_chosen(self, row: Any) -> bool:
        """Whether a record is chosen."""
        return bool(self._mask(Batch.of_rows([row]), _WHOLE)[0])


_WHOLE = GroupKey(KeySelector.of_function(frozen), None, None, frozen)


class SemiJoinBuilder:
    """A semi or anti join that waits for its keys. Made by ``semi_join`` and ``anti_join``."""

    def __init__(self, left: DataSet, right: DataSet, *, is_anti: bool) -> None:
        left.get_execution_environment().require_same(left, right)
        self._left = left
        self._right = right
        self._is_anti = is_anti
        self._left_key: GroupKey | None = None

    def where(self, *key: Any) -> SemiJoinBuilder:
        """Say the key of the first input: names, positions, or a function."""
        self._left_key = group_key("where", key, self._left.schema)
        return self

    def on(self, *key: Any) -> DataSet:
        """Say the key of both inputs."""
        return self.where(*key).equal_to(*key)

    def equal_to(self, *key: Any) -> DataSet:
        """Say the key of the second input. A record whose key is null, or has a part that is, has no partner."""
        from headrace.dataset.two_inputs import require_one_kind

        if self._left_key is None:
            message = "equal_to comes behind where"
            raise ProgramError(message)
        right_key = group_key("equal_to", key, self._right.schema)
        require_one_kind("join", self._left, self._left_key, self._right, right_key)
        environment = self._left.get_execution_environment()
        node = SemiJoin(
            id=environment.new_id(),
            name="anti join" if self._is_anti else "semi join",
            inputs=(self._left.take_node(), self._right.take_node()),
            schema=self._left.schema,
            ships=(Ship(ShipKind.HASH, self._left_key), Ship(ShipKind.HASH, right_key)),
            left_key=self._left_key,
            right_key=right_key,
            is_anti=self._is_anti,
        )
        return _made(environment, node)
