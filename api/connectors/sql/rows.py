"""Records on their way into a table: which columns they go to, whether they fit, and their values as parameters.

A `RowPlan` is made once for each Arrow schema that comes along and each table; what does not fit is refused by it, with
the column's name, before a single record is written. Values are turned column by column: what Arrow gives as Python
values is taken as it is, and only types that a database has no value for are mapped, one function per column.

Times with a zone fit only columns with a zone, and those without only columns without: nothing is ever shifted by the
zone of a session. SQLite has no types for times, decimals and booleans: they are ISO 8601 text, text and 0 or 1.

Source: Flink's ``JdbcRowConverter``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.values.serde import columns_as

from .checks import ColumnCheck, blanks_at_the_end, other_spellings
from .dialects import Column, Convert, Dialect, Table

__all__ = ["RowLayout", "RowPlan", "check_table", "converter_of"]


@dataclass(frozen=True)
class RowLayout:
    """What the user says of the table's columns.

    Attributes:
        table: Its name, maybe behind a schema's.
        columns: Those that are written, in the order of the records' fields; None for the fields' own names.
        schema: The records' types; None takes them as they come.
        key: The columns by which a row is found again; empty for rows that are only added.
        delete_column: A field of the records, no column of the table: where it is true the row of the key is deleted.
    """

    table: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = field(default=None)
    key: tuple[str, ...] = ()
    delete_column: str | None = None

    @property
    def name(self) -> str:
        """The table, for messages."""
        return ".".join(self.table)

    def columns_of(self, batch: Batch) -> pa.RecordBatch:
        """Return the records as columns with the names of the table's.

        Raises:
            TypeMismatchError: If the records do not have them.
        """
        found = batch.columns_as(self.schema)
        if self.schema is not None:
            found = columns_as(found, self.schema, drop_others=True)
        if self.columns is None:
            return found
        wanted = [*self.columns, *([] if self.delete_column is None else [self.delete_column])]
        if set(wanted) <= set(found.schema.names):
            return found.select(wanted)
        if found.schema.names == [f"f{i}" for i in range(len(wanted))]:  # tuples: by position
            return found.rename_columns(wanted)
        if found.schema.names == ["value"] and len(wanted) == 1:
            return found.rename_columns(wanted)
        missing = [name for name in wanted if name not in found.schema.names]
        message = f"the records have no field {missing[0]!r} for the column; they have {found.schema.names}"
        raise TypeMismatchError(message, table=self.name)


def check_table(layout: RowLayout, table: Table | None, dialect: Dialect) -> Table:
    """Hold the layout against what the database says of the table; gives the table.

    Raises:
        ConfigurationError: If there is no such table, or it has no such columns or no such key.
        TypeMismatchError: If a column takes no values of the declared type.
    """
    if table is None:
        message = f"there is no table {layout.name!r}"
        raise ConfigurationError(message)
    names = layout.columns
    if names is None and layout.schema is not None:
        names = tuple(name for name in layout.schema.names if name != layout.delete_column)
    for name in (*(names or ()), *layout.key):
        if name not in table.columns:
            message = f"table {layout.name!r} has no column {name!r}; it has {sorted(table.columns)}"
            raise ConfigurationError(message)
    if names is not None:
        _check_names(layout, table, names)
        fields = [item for item in layout.schema or () if item.name != layout.delete_column]
        by_name = {item.name: item for item in fields}
        for index, name in enumerate(names):
            found = by_name.get(name) or (fields[index] if len(fields) == len(names) else None)
            if found is not None:
                converter_of(table.columns[name], found.type, dialect)
    if not table.is_transactional:
        message = f"table {layout.name!r} has no transactions: what fails could not be taken back"
        raise ConfigurationError(message, hint="ALTER TABLE ... ENGINE = InnoDB")
    if layout.key and frozenset(layout.key) not in table.keys:
        message = f"table {layout.name!r} has no primary key or unique index on {sorted(layout.key)}"
        hint = "rows are found again by the key, so the database must know that it is one"
        raise ConfigurationError(message, hint=hint)
    for column in [table.columns[name] for name in layout.key]:
        if column.equates:
            message = f"key column {column.name!r} of table {layout.name!r} has {column.equates}"
            message += ": it takes texts for equal that differ, and rows of several keys would be one"
            raise ConfigurationError(message, hint=column.remedy)
    if layout.key and table.num_unique > 1:
        message = f"table {layout.name!r} has unique keys beside {sorted(layout.key)}: rows are found by any of them"
        raise ConfigurationError(message, hint="drop the others, or write without a key")
    return table


def _check_names(layout: RowLayout, table: Table, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        message = f"columns must differ; got {list(names)}"
        raise ConfigurationError(message)
    for column in table.columns.values():
        if column.is_required and column.name not in names:
            message = f"column {column.name!r} of table {layout.name!r} must have a value, and the sink writes none"
            raise ConfigurationError(message)
        if column.is_generated and column.name in names:
            message = f"column {column.name!r} of table {layout.name!r} is generated: it cannot be written"
            raise ConfigurationError(message)
    missing = [name for name in layout.key if name not in names]
    if missing:
        message = f"key column {missing[0]!r} is none of those that are written: {list(names)}"
        raise ConfigurationError(message)


class RowPlan:
    """How records of one Arrow schema become rows of one table.

    Args:
        layout: The user's.
        table: The database's.
        schema: The records'.
        dialect: Of the database.

    Attributes:
        names: The columns that are written.

    Raises:
        TypeMismatchError: If a field does not fit its column, or there is none.
        ConfigurationError: If the table cannot take rows of these columns.
    """

    def __init__(self, layout: RowLayout, table: Table, schema: pa.Schema, dialect: Dialect) -> None:
        self._layout = layout
        self.names = [name for name in schema.names if name != layout.delete_column]
        missing = [name for name in self.names if name not in table.columns]
        if missing:
            message = f"the records have a field {missing[0]!r}, and table {layout.name!r} no such column"
            raise TypeMismatchError(message, columns=sorted(table.columns))
        _check_names(layout, table, self.names)
        if layout.delete_column is not None:
            deletes = schema.field(layout.delete_column) if layout.delete_column in schema.names else None
            if deletes is None or not (kinds.is_boolean(deletes.type) or kinds.is_null(deletes.type)):
                message = f"the records have no boolean field {layout.delete_column!r} that says which are deletions"
                raise TypeMismatchError(message, fields=schema.names)
        self._converters = [converter_of(table.columns[name], schema.field(name).type, dialect) for name in self.names]
        self._checks = list(self._found_checks(table, schema, dialect))
        self._without_null = [name for name in self.names if table.columns[name].replaces_null]
        self._key = [self.names.index(name) for name in layout.key]
        exact = [at for at, name in enumerate(layout.key) if table.columns[name].family not in ("json", "any")]
        self._identity_order = exact
        target = dialect.quoted(*layout.table)
        mark = dialect.placeholder
        quoted = [dialect.quoted(name) for name in self.names]
        keys = [dialect.quoted(name) for name in layout.key]
        self._target = target
        self._quoted = quoted
        self._dialect = dialect
        self._quoted_keys = keys
        self._delete = f"DELETE FROM {target} WHERE {' AND '.join(f'{name} = {mark}' for name in keys)}"

    def check(self, records: pa.RecordBatch, first: int, place: Mapping[str, Any]) -> None:
        """See that the database will change no value of records without a word; before they are written.

        Args:
            records: The records.
            first: The number of the first one, for errors.
            place: Where they are, for errors.

        Raises:
            TypeMismatchError: If it would change one, or a key is null.
        """
        gone = None if self._layout.delete_column is None else records.column(self._layout.delete_column)
        if gone is not None:
            gone = pc.fill_null(gone.cast(pa.bool_()), fill_value=False)
        for name in (*self._layout.key, *self._without_null):
            lacks = _decoded(records.column(name)).is_null()
            is_key = name in self._layout.key
            if gone is not None and not is_key:
                lacks = pc.and_not(lacks, gone)
            if lacks.true_count:
                message = f"column {name!r} takes no null: the database would write a time of its own"
                if is_key:
                    message = f"a key must not be null, its row would never be found again; key column {name!r} is"
                record = first + lacks.index(pa.scalar(value=True)).as_py()
                raise TypeMismatchError(message, table=self._layout.name, record=record, **place)
        for column, check in self._checks:
            values = _decoded(records.column(column.name))
            if gone is not None and column.name not in self._layout.key:  # these are not written
                values = pc.if_else(gone, pa.scalar(None, values.type), values)
            found = check.first_in(values)
            if found is not None:
                message = f"column {column.name!r} of type {column.type} {found[1]}"
                record = first + found[0]
                raise TypeMismatchError(message, hint=check.hint, table=self._layout.name, record=record, **place)

    def write(self, cursor: Any, records: Sequence[pa.RecordBatch]) -> None:
        """Write records, in their order, in the transaction of a cursor.

        With a key only the last record of each counts, as if all had been written one after another.

        Raises:
            TypeMismatchError: If a value does not fit its column.
        """
        if not self._key:
            rows = (row for batch in records for row in self._rows(batch))
            self._dialect.insert_many(cursor, self._target, self._quoted, rows)
            return
        last: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        key = self._key
        for batch in records:
            deletes = self._deletes(batch)
            for index, row in enumerate(self._rows(batch)):
                identity = tuple([row[i] for i in key])
                last.pop(identity, None)  # so that the order is that in which the last records came
                last[identity] = None if deletes is not None and deletes[index] else row
        changes = list(last.items())
        if self._dialect.name != "sqlite":  # which has one writer at a time
            # In one order everywhere, so that two writers of the same keys wait for each other and never crosswise.
            # Parts that may be one for the database in two spellings, as texts for an INET, say nothing of the order:
            # such rows stay in that in which they came.
            changes.sort(key=lambda item: repr([item[0][at] for at in self._identity_order]))
        for is_removed, run in groupby(changes, lambda item: item[1] is None):
            if is_removed:
                cursor.executemany(self._delete, [identity for identity, _row in run])
            else:
                written = [row for _identity, row in run if row is not None]
                self._dialect.write_by_key(cursor, self._target, self._quoted, self._quoted_keys, written)

    def _found_checks(self, table: Table, schema: pa.Schema, dialect: Dialect) -> Iterator[tuple[Column, ColumnCheck]]:
        for name in self.names:
            column = table.columns[name]
            check = _check_of(column, schema.field(name).type, dialect)
            if check is not None:
                yield column, check
            if name in self._layout.key and column.overlooks_blanks and _is_text(schema.field(name).type):
                yield column, blanks_at_the_end(column.remedy)
            if name in self._layout.key and column.family == "uuid" and _is_text(schema.field(name).type):
                yield column, other_spellings()

    def _deletes(self, batch: pa.RecordBatch) -> list[Any] | None:
        name = self._layout.delete_column
        return None if name is None else batch.column(name).to_pylist()

    def _rows(self, batch: pa.RecordBatch) -> Any:
        columns = []
        for name, convert in zip(self.names, self._converters, strict=True):
            values = _plain(batch.column(name), name).to_pylist()
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            columns.append(values)
        return zip(*columns, strict=True)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if kinds.is_dictionary(column.type) else column


def _plain(column: pa.Array, name: str) -> pa.Array:
    """The column in a type whose Python values every driver knows."""
    column = _decoded(column)
    try:
        whole = _without_nanoseconds(column.type)
        return column if whole.equals(column.type) else column.cast(whole)
    except pa.ArrowInvalid as error:
        message = f"column {name!r} has nanoseconds, and a database microseconds: {error}"
        raise TypeMismatchError(message, hint="cut them in the program, where it is seen") from error


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """A type with microseconds, which databases have, for nanoseconds; in lists, too."""
    if kinds.is_list(kind):
        return pa.list_(_without_nanoseconds(kind.value_type))
    if kinds.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kinds.is_time64(kind):
        return pa.time64("us")
    return pa.duration("us") if kinds.is_duration(kind) and kind.unit == "ns" else kind


_ACCEPTS: tuple[tuple[Callable[[pa.DataType], bool], frozenset[str]], ...] = (
    (kinds.is_boolean, frozenset({"bool"})),
    (kinds.is_integer, frozenset({"int", "decimal", "float", "float4"})),
    (kinds.is_floating, frozenset({"float", "float4", "decimal"})),
    (kinds.is_decimal, frozenset({"decimal", "text"})),
    (kinds.is_date, frozenset({"date", "text"})),
    (kinds.is_time, frozenset({"time", "text"})),
    (kinds.is_duration, frozenset({"interval"})),
)


def _families_of(kind: pa.DataType) -> frozenset[str]:
    """The families of columns that take values of a type."""
    for is_kind, families in _ACCEPTS:
        if is_kind(kind):
            return families
    if kinds.is_timestamp(kind):
        return frozenset({"timestamptz" if kind.tz else "timestamp", "text"})
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return frozenset({"text", "json", "uuid"})
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return frozenset({"bytes"})
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return frozenset({"json", "array", "text"})
    if kinds.is_struct(kind) or kinds.is_map(kind):
        return frozenset({"json", "text"})
    return frozenset()


def converter_of(column: Column, kind: pa.DataType, dialect: Dialect, *, is_stored: bool = True) -> Convert | None:
    """Return how values of a field become those of a column, or are compared with it; None for as they are.

    Args:
        column: The column.
        kind: The field's type.
        dialect: Of the database.
        is_stored: Whether the column is to keep the values. Else they are read, or compared with it.

    Raises:
        TypeMismatchError: If they do not fit, or the column would change them.
    """
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_null(kind):
        return None
    families = _families_of(kind)
    fits = column.family in families or (column.family == "any" and bool(families))
    hint = dialect.misfit(kind, column, fits=fits, is_stored=is_stored)
    if hint is not None:
        message = f"values of type {kind} do not fit column {column.name!r} of type {column.type or 'none'}"
        raise TypeMismatchError(message, hint=hint)
    if is_stored and column.family == "array":
        element = _element_of(column, kind)
        convert = converter_of(element, kind.value_type, dialect)
        return None if convert is None else functools.partial(_each, convert)
    return dialect.parameter_of(kind, column)


def _element_of(column: Column, kind: pa.DataType) -> Column:
    """What the elements of a list are in an array; an array's own type does not say how many dimensions it has."""
    is_deeper = kinds.is_nested(kind.value_type) and not kinds.is_struct(kind.value_type)
    return column if is_deeper or column.element is None else column.element


def _each(convert: Convert, values: list[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _check_of(column: Column, kind: pa.DataType, dialect: Dialect) -> ColumnCheck | None:
    """What finds values, or elements of them, that the column would change."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_null(kind):
        return None
    if column.family == "array":
        return _check_of(_element_of(column, kind), kind.value_type, dialect)
    return dialect.check_of(kind, column)
