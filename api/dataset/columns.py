"""Verbs that are about the fields of records: chosen, computed, renamed, exploded, and added by their place in a group.

Source: Flink's ``DataSet.project`` and Table API; SQL:2016 for windows; PySpark for ``explode`` and ``sample``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.expressions import Expression, col, expression_of
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.frames.frame_calls import Frame, Neighbour, Place, output_type
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.keys import KeySelector
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.partitions.shipping import key_hashes
from headrace.engine.partitions.wire_records import frozen
from headrace.engine.plan.plan import (
    GATHER,
    GroupKey,
    Map,
    OverGroups,
    Project,
    Select,
    Ship,
    ShipKind,
)
from headrace.state.type_variables import T1

from ..arguments.checks import field_of, text
from ..arguments.known_columns import naming_step
from .record_types import (
    declared_schema,
    field_type,
    group_key,
    is_same_type,
    order_of,
    schema_with_kind,
)
from .recorded import Recorded

if TYPE_CHECKING:
    from .dataset import DataSet

__all__ = ["ColumnVerbs"]


class ColumnVerbs(Recorded[T1]):
    """The part of a data set that is about fields."""

    def project(self, *fields: Any) -> DataSet[Any]:
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

    def select(self, *columns: str | Expression, **named: Any) -> DataSet[dict[str, Any]]:
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

    def with_columns(self, **named: Any) -> DataSet[dict[str, Any]]:
        """Add fields to the records, or replace those of the same name."""
        if not named:
            message = "with_columns needs a column"
            raise ProgramError(message)
        return self._selected("with_columns", {name: expression_of(value) for name, value in named.items()}, keep=True)

    def _selected(self, method: str, columns: dict[str, Expression], *, keep: bool) -> DataSet[dict[str, Any]]:
        schema = None
        if self.schema is not None:
            with naming_step(method):
                schema = SelectColumns(columns, keep=keep).output_schema(self.schema)
        return self.then(Select, f"{method} {', '.join(columns)}", schema, columns=columns, keep=keep)

    def as_type(self, output_type: Any) -> DataSet[Any]:
        """Return the same records, held to a type; ``Types.PICKLED_BYTE_ARRAY()`` takes the type away."""
        schema = declared_schema(output_type)
        return self._data if is_same_type(schema, self.schema) else self.with_schema(schema)

    def with_schema(self, schema: pa.Schema | None) -> DataSet[Any]:
        """As `as_type`, by an Arrow schema; None takes the type away."""
        return self.then(Map, "as objects" if schema is None else "as columns", schema, function=_as_it_is)

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> DataSet[dict[str, Any]]:
        """Give fields other names: ``rename(old="new")`` or ``rename({"old": "new"})``."""
        given = {**(names or {}), **more}
        if not given:
            message = "rename needs a field"
            raise ProgramError(message)
        for old, new in given.items():
            field_type("rename", old, self.schema)
            text("a field's new name", new)
        if self.schema is None:
            return self._data.map(_Renaming(given))
        target = [given.get(name, name) for name in self._fields_for("rename").names]
        doubled = sorted({name for name in target if target.count(name) > 1})
        if doubled:
            message = f"rename would give several fields called {', '.join(map(repr, doubled))}"
            raise ProgramError(message)
        return self.select(**{new: col(old) for new, old in zip(target, self.schema.names, strict=True)})

    def drop(self, *fields: str) -> DataSet[dict[str, Any]]:
        """Leave fields out."""
        for field in fields:
            field_type("drop", text("a field", field), self.schema)
        if not fields:
            message = "drop needs a field"
            raise ProgramError(message)
        if self.schema is None:
            return self._data.map(_Dropping(frozenset(fields)))
        kept = [name for name in self._fields_for("drop").names if name not in fields]
        if not kept:
            message = "drop would leave no field"
            raise ProgramError(message)
        return self.project(*kept)

    def explode(self, field: str, *, outer: bool = False) -> DataSet[dict[str, Any]]:
        """Return a record for each element of a list, in place of the list.

        Args:
            field: The field with the lists.
            outer: Whether a record whose list is null or empty stays, with null; else there is none.
        """
        schema = self._fields_for("explode")
        kind = field_type("explode", field, schema)
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            message = f"explode: field {field!r} of type {kind} is no list"
            raise TypeMismatchError(message)
        fields = [pa.field(f.name, kind.value_type if f.name == field else f.type) for f in schema]  # type: ignore[union-attr]
        exploded = schema_with_kind(fields, "dict")
        return self._data.map_batches(_Exploding(field, exploded, outer=outer), output_type=exploded).name(
            f"explode {field}"
        )

    def sample(self, fraction: float, seed: int = 0) -> DataSet[T1]:
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
            return self._data.filter(chosen.is_chosen).name(f"sample {fraction}")
        return self._data.map_batches(chosen.of_batch, output_type=self.schema).name(f"sample {fraction}")

    def over(
        self,
        partition_by: Any = None,
        order_by: Any = None,
        *,
        ascending: bool | Sequence[bool] = True,
        rows_between: tuple[int | None, int | None] | None = None,
        **columns: Any,
    ) -> DataSet[dict[str, Any]]:
        """Add columns that tell each record's place in a group, or what the group comes to up to it.

        ``over("user", "time", number=f.row_number(), before=f.lag("price"), total=f.sum("price"))``

        Args:
            partition_by: The fields that make groups, a name or several; None for one group of all records.
            order_by: The order in a group, a name or several, nulls first.
            ascending: For all fields of the order, or for each.
            rows_between: Which records an aggregate sees: how many places from each record the first and the last of
                them are, negative before it, None for all, as ``(-6, 0)``. Without it as in SQL: all up to the record
                and those that are equal to it in the order, or without an order the whole group.
            **columns: ``f.row_number()``, ``f.rank()``, ``f.dense_rank()``, ``f.ntile(4)``, ``f.percent_rank()``,
                ``f.cume_dist()``, ``f.lag(...)``, ``f.lead(...)`` or aggregates, by the name of the new field.
        """
        schema = self._fields_for("over")
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
            with naming_step("over"):
                fields.append(pa.field(name, output_type(spec, schema)))
        return self.then(
            OverGroups, f"over {', '.join(columns)}", schema_with_kind(fields, "dict"),
            GATHER if key is None else Ship(ShipKind.HASH, key), key=key, orders=orders, columns=columns,
            frame=None if rows is None else Frame(*rows),
        )  # fmt: skip


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
        """Return the chosen records of a batch."""
        return batch.filter(pa.array(self._mask(Batch.of_columns(batch), None)))

    def is_chosen(self, row: Any) -> bool:
        """Return whether a record is chosen."""
        return bool(self._mask(Batch.of_rows([row]), _WHOLE)[0])


_WHOLE = GroupKey(KeySelector.of_function(frozen), None, None, frozen)


def _as_it_is(record: Any) -> Any:
    return record
