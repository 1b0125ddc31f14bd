"""Records on the wire and in Python: one meaning of schemas, keys and order for every executor.

Between nodes records are Arrow batches (`headrace.engine.plan.plan`); inside of a node they are `Batch` objects,
which have rows and columns as asked for. `decode` and `encode` are the border. Keys of records are made *canonical*
before they are compared as Python values, so that all NaN are one key and unhashable content can be a key.

Invariant: two canonical keys are equal iff the plan's rules call the keys equal, and equal canonical keys have equal
``hash_keys``. Times of nanoseconds, which Python cuts to microseconds, are compared in full by keys and by order.

Source: the record conventions of `headrace.engine.columns.records`; order of SQL with nulls first, as Spark's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pickle
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from types import FunctionType, MemberDescriptorType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.reading.program_pickles import dump_program, load_program
from headrace.state.values.serde import are_as_they_come_back, columns_as
from headrace.state.values.sharing import shown

from ..columns.records import Batch
from ..errors import HeadraceError, TypeMismatchError
from ..plan.plan import PICKLED, GroupKey, Order, wire_schema

__all__ = [
    "beyond_microseconds",
    "canonical",
    "canonical_keys",
    "comparable",
    "comparable_keys",
    "conform",
    "decode",
    "empty_batch",
    "encode",
    "encoded",
    "frozen",
    "gathered",
    "is_null_key",
    "ordered",
    "rows_of_table",
    "table_of_rows",
]

_NAN = float("nan")
"""The one NaN of canonical keys: a container finds it by identity."""


# ------------------------------------------------------------------------------------------------------------ the wire


def decode(batch: pa.RecordBatch, schema: pa.Schema | None) -> Batch:
    """Take a wire batch in.

    Args:
        batch: Of ``wire_schema(schema)``; types that another system has widened (large_string, dictionary) are cast.
        schema: The node's schema.
    """
    if schema is None:
        return Batch.of_rows([load_program(value) for value in batch.column(0).to_pylist()])
    return Batch.of_columns(columns_as(batch, schema))


def encode(batch: Batch, schema: pa.Schema | None) -> pa.RecordBatch:
    """Give a batch out, as a wire batch of ``wire_schema(schema)``.

    Raises:
        TypeMismatchError: If a record does not fit the schema, or cannot be pickled.
    """
    if schema is not None:
        return columns_as(batch.columns_as(schema), schema)
    return pa.RecordBatch.from_arrays([pa.array(list(map(_pickled, batch.rows)), pa.binary())], schema=PICKLED)


def encoded(batches: Iterable[Batch], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Give batches out one after the other, leaving out empty ones."""
    for batch in batches:
        if batch.num_rows:
            yield encode(batch, schema)


def conform(batch: Batch, schema: pa.Schema | None) -> Batch:
    """Return what a function gave as records of a declared type, or as it is if there is none.

    Records of a type go through columns, so that it does not matter which operators run together; those that would come
    back as they are stay what they are.
    """
    if schema is None or batch.is_of(schema):
        return batch
    if not batch.has_columns and are_as_they_come_back(batch.rows, schema):
        return Batch.of_rows(batch.rows, schema=schema)
    return Batch.of_columns(columns_as(batch.columns_as(schema), schema))


def _pickled(record: Any) -> bytes:
    try:
        return pickle.dumps(record, protocol=5)
    except Exception:
        # Objects of classes and functions that a module cannot be asked for.
        try:
            return dump_program(record, protocol=5)
        except Exception as error:
            message = f"a record cannot be pickled: {error!r}; it is {shown(record)}"
            raise TypeMismatchError(message) from error


def empty_batch(schema: pa.Schema | None) -> pa.RecordBatch:
    """Return a wire batch without records."""
    wire = wire_schema(schema)
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in wire], schema=wire)


def gathered(batches: Iterable[Batch], schema: pa.Schema | None) -> Batch:
    """Return all records in one batch; of columns if there is a schema: Python objects take several times the
    memory.
    """
    parts = [batch if schema is None else Batch.of_columns(batch.columns) for batch in batches if batch.num_rows]
    if parts:
        return Batch.concat(parts)
    return Batch.of_rows([]) if schema is None else Batch.of_columns(empty_batch(schema))


def rows_of_table(table: pa.Table, schema: pa.Schema | None) -> list[Any]:
    """Return the records of a wire table as Python objects."""
    return [row for batch in table.to_batches() for row in decode(batch, schema).rows]


def table_of_rows(rows: list[Any], schema: pa.Schema | None) -> pa.Table:
    """Return records as a wire table.

    Raises:
        TypeMismatchError: If a record does not fit the schema.
    """
    return pa.Table.from_batches([encode(Batch.of_rows(rows), schema)], wire_schema(schema))


# ---------------------------------------------------------------------------------------------------------------- keys


def frozen(value: Any) -> Any:
    """Return a hashable stand-in of a record or of any part of it, equal for equal content.

    Raises:
        TypeMismatchError: If it has a part that is neither hashable nor a list, dict or set.
    """
    if isinstance(value, tuple):
        return tuple(map(frozen, value))
    if isinstance(value, list):
        return ("list", *map(frozen, value))
    if isinstance(value, dict):
        return ("dict", frozenset((frozen(key), frozen(part)) for key, part in value.items()))
    if isinstance(value, (set, frozenset)):
        return ("set", frozenset(map(frozen, value)))
    return canonical(value)


_PLAIN = frozenset((int, str, bytes, bool, type(None)))


def canonical(key: Any) -> Any:
    """Return the key as it is compared.

    Raises:
        TypeMismatchError: If it is not hashable.
    """
    if type(key) in _PLAIN:
        return key
    if type(key) is tuple:
        return tuple(map(canonical, key))
    if isinstance(key, float) and key != key:
        return _NAN
    try:
        hash(key)
    except TypeError as error:
        message = f"a key must be hashable; got a {type(key).__qualname__}: {shown(key)}"
        raise TypeMismatchError(message, hint="use a tuple, or a field of the record") from error
    kind: Any = type(key)
    if isinstance(key, tuple):
        return _tuple_of_canonical_parts(key) if _is_compared_as_tuple(kind) else key
    if _is_compared_by_fields(kind):
        return _with_canonical_fields(key)
    return comparable(key)


@functools.lru_cache(maxsize=1024)
def _is_compared_as_tuple(kind: Any) -> bool:
    """Whether objects of a class of tuples are equal if their parts are, and can be made of others."""
    if kind.__eq__ is not tuple.__eq__ or kind.__hash__ is not tuple.__hash__:
        return False
    try:
        tuple.__new__(kind)
    except TypeError:  # one that C makes, as time.struct_time
        return False
    return True


def _tuple_of_canonical_parts(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A named tuple with canonical parts, which stays of its class."""
    present = list(tuple.__iter__(key))
    parts = list(map(_canonical_part, present))
    if all(part is other for part, other in zip(parts, present, strict=True)):
        return key
    own = tuple.__new__(type(key), parts)
    if hasattr(key, "__dict__"):
        vars(own).update(vars(key))
    return own


@functools.lru_cache(maxsize=1024)
def _is_compared_by_fields(kind: Any) -> bool:
    """Whether it is a dataclass whose equality and hash are those that `dataclass` makes of its fields, and these are
    all that its objects hold apart from their ``__dict__``.

    What `dataclass` makes is known by its code alone: it is made anew and compared. A class that tells objects apart in
    its own way is left alone, since a time in another zone may be another key to it.
    """
    if not dataclasses.is_dataclass(kind):
        return False
    fields = dataclasses.fields(kind)
    like_it: Any = dataclasses.make_dataclass(
        "LikeIt",
        [(field.name, object, dataclasses.field(compare=field.compare, hash=field.hash)) for field in fields],
        unsafe_hash=True,
    )
    if not (_is_same_code(kind.__eq__, like_it.__eq__) and _is_same_code(kind.__hash__, like_it.__hash__)):
        return False
    if kind.__new__ is not object.__new__ or kind.__getattribute__ is not object.__getattribute__:
        return False
    names = {field.name for field in fields}
    members = {name: inspect.getattr_static(kind, name, None) for name in names}
    if any(hasattr(type(it), "__set__") and not isinstance(it, MemberDescriptorType) for it in members.values()):
        return False  # a property, say
    slots = {name for base in kind.__mro__ for name, it in vars(base).items() if isinstance(it, MemberDescriptorType)}
    return slots <= names


def _is_same_code(function: Any, other: Any) -> bool:
    def meaning(function: Any) -> tuple[Any, ...]:
        code = function.__code__
        names = code.co_names, code.co_varnames, code.co_freevars
        return code.co_code, code.co_consts, names, code.co_argcount, code.co_flags

    return isinstance(function, FunctionType) and meaning(function) == meaning(other)


def _with_canonical_fields(key: Any) -> Any:
    """A dataclass with canonical fields, as far as they are compared; it stays of its class."""
    present = {field: getattr(key, field.name) for field in dataclasses.fields(key) if hasattr(key, field.name)}
    parts = {field: _canonical_part(value) if field.compare else value for field, value in present.items()}
    if all(parts[field] is value for field, value in present.items()):
        return key
    own = object.__new__(type(key))
    if hasattr(key, "__dict__"):
        vars(own).update(vars(key))
    for field, part in parts.items():
        object.__setattr__(own, field.name, part)  # it may be frozen
    return own


def _canonical_part(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:  # the class does not hash by it
        return value
    return canonical(value)


def canonical_keys(key: GroupKey | None, batch: Batch) -> list[Any]:
    """Return the canonical keys of a batch's records; with None the whole records.

    Raises:
        TypeMismatchError: If a field is not there or a key cannot be one.
    """
    if key is None:
        return list(map(frozen, _exact_rows(batch)))
    keys = key.selector.keys(batch)
    columns = key.selector.key_columns(batch) or ()
    for place, column in enumerate(columns):
        for row, exact in beyond_microseconds(column):
            found = keys[row]
            keys[row] = exact if len(columns) == 1 else (*found[:place], exact, *found[place + 1 :])
    return list(map(canonical, keys))


def _has_nanoseconds(kind: pa.DataType) -> bool:
    is_ = pa.types
    return (is_.is_timestamp(kind) or is_.is_time64(kind) or is_.is_duration(kind)) and kind.unit == "ns"


def beyond_microseconds(column: pa.Array) -> list[tuple[int, tuple[str, int]]]:
    """Return the values that Python would cut: the row of each, and what stands for it as a key, equal to no Python
    time.
    """
    if not _has_nanoseconds(column.type):
        return []
    integers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return [(int(row), ("ns", int(integers[row]))) for row in np.flatnonzero(integers % 1000)]


def _exact_rows(batch: Batch) -> list[Any]:
    """The records; times that Python would cut are replaced by what stands for them."""
    rows = batch.rows
    if not batch.has_columns:
        return rows
    for place, (name, column) in enumerate(zip(batch.columns.schema.names, batch.columns.columns, strict=True)):
        for index, exact in beyond_microseconds(column):
            if rows is batch.rows:
                rows = list(rows)
            row = rows[index]
            if isinstance(row, dict):
                rows[index] = {**row, name: exact}
            else:
                rows[index] = (*row[:place], exact, *row[place + 1 :]) if isinstance(row, tuple) else exact
    return rows


def is_null_key(key: Any) -> bool:
    """Return whether a join matches nothing with it: the key is null, or a part of it is."""
    return key is None or (type(key) is tuple and None in key)


# --------------------------------------------------------------------------------------------------------------- order


class _Descending:
    """Turns the order of a value round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Descending, (self.value,)


def comparable(value: Any) -> Any:
    """Return a time with a zone as one in UTC: Python compares two of one zone by the clock there, which may be put
    back.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return value
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:  # within a day of the first or the last instant there is
        return value


def _rank(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (2,)
    if isinstance(value, tuple):
        return (1, tuple(map(_rank, value)))
    return (1, comparable(value))


def _field_of(order: Order, batch: Batch) -> list[Any]:
    if callable(order.field):
        function = order.field
        return [function(row) for row in batch.rows]
    if batch.has_columns:
        index = batch.columns.schema.get_field_index(order.column or "")
        if index < 0:
            message = f"sort field {order.field!r} is not in the record; its fields are {batch.columns.schema.names}"
            raise TypeMismatchError(message)
        column = batch.columns.column(index)
        return (column.cast(pa.int64()) if _has_nanoseconds(column.type) else column).to_pylist()
    field: Any = order.field
    try:
        return [row[field] for row in batch.rows]
    except (KeyError, IndexError, TypeError) as error:
        message = f"sort field {field!r} is not in the record: {error!r}"
        raise TypeMismatchError(message) from error


def comparable_keys(batch: Batch, orders: Sequence[Order]) -> list[tuple[Any, ...]]:
    """Return a tuple for each record that Python sorts in the order asked for; picklable.

    Raises:
        TypeMismatchError: If a field is not there.
    """
    columns = []
    for order in orders:
        ranks = map(_rank, _field_of(order, batch))
        columns.append(list(ranks) if order.ascending else list(map(_Descending, ranks)))
    return list(zip(*columns, strict=True))


def ordered(batch: Batch, orders: Sequence[Order]) -> npt.NDArray[np.int64]:
    """Return the indices of the records in the order asked for; stable.

    Raises:
        TypeMismatchError: If a field is not there, or its values have no order among each other.
    """
    if batch.has_columns and all(order.column is not None for order in orders):
        return _ordered_columns(batch.columns, orders)
    keys = comparable_keys(batch, orders)
    try:
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    except HeadraceError:
        raise
    except TypeError as error:
        message = f"records cannot be sorted by {', '.join(map(repr, orders))}: {error}"
        raise TypeMismatchError(message, hint="values of one sort key must be of one type") from error


def _ordered_columns(columns: pa.RecordBatch, orders: Sequence[Order]) -> npt.NDArray[np.int64]:
    import pyarrow.compute as pc

    names: list[str] = []
    arrays: list[pa.Array] = []
    sort_keys: list[tuple[str, str]] = []

    def add(array: pa.Array, *, ascending: bool) -> None:
        names.append(f"k{len(names)}")
        arrays.append(array)
        sort_keys.append((names[-1], "ascending" if ascending else "descending"))

    for order in orders:
        index = columns.schema.get_field_index(order.column or "")
        if index < 0:
            message = f"sort field {order.field!r} is not in the record; its fields are {columns.schema.names}"
            raise TypeMismatchError(message)
        column = columns.column(index)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_null(column.type):
            continue
        if column.null_count:
            # Before the values: 0 for null, 1 for everything else.
            add(column.is_valid().cast(pa.int8()), ascending=order.ascending)
        if pa.types.is_floating(column.type):
            is_nan = pc.fill_null(pc.is_nan(column), False)
            add(is_nan.cast(pa.int8()), ascending=order.ascending)
            column = pc.if_else(is_nan, pa.scalar(0.0, column.type), column)
            column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 is 0.0
        add(column, ascending=order.ascending)
    if not sort_keys:
        return np.arange(columns.num_rows)
    try:
        indices = pc.sort_indices(pa.table(arrays, names=names), sort_keys=sort_keys)
    except (pa.ArrowException, TypeError) as error:
        message = f"records cannot be sorted by {', '.join(map(repr, orders))}: {error}"
        raise TypeMismatchError(message) from error
    return indices.to_numpy().astype(np.int64)
