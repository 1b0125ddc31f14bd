"""Tables on their way into a snapshot: their columns as stored values, checked against what is declared.

Everything that is wrong with a table is found here, before anything is written, and named by operator, state, column
and row. Numbers may be narrower than declared, never wider or of another kind; nulls only where the declared type
admits None.

Source: Flink's State Processor API; the rules are those of Avro's schema resolution, without its conversions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import TypeMismatchError
from ..keyed.contract import Namespace
from ..keyed.layouts import ELEMENTS, ENTRIES, Layout
from ..keys.hashing import with_one_nan
from ..values.sharing import shown
from ..values.type_sources import schema_text
from ..values.types import Schema
from .column_types import fields_of, schema_of_field, values_of
from .values import Opaque

__all__ = ["InputColumns", "fits"]


class InputColumns:
    """A table on its way into a state.

    Args:
        table: The table.
        operator: The operator's uid, for errors.
        state: The state's name, for errors.
    """

    def __init__(self, table: pa.Table, operator: str, state: str) -> None:
        self._table = table
        self._context = {"operator": operator, "state": state}
        self.num_rows: int = table.num_rows

    def has(self, name: str) -> bool:
        """Return whether there is a column of that name."""
        return name in self._table.column_names

    def error(self, message: str, **context: Any) -> TypeMismatchError:
        """Return an error that names operator, state and whatever else is known; to be raised."""
        return TypeMismatchError(message, **self._context, **context)

    def values(self, name: str) -> tuple[list[Any], Schema]:
        """Return a column's values and its schema."""
        if self._table.column_names.count(name) != 1:
            known = ", ".join(self._table.column_names)
            found = "is missing" if not self.has(name) else "is there more than once"
            message = f"column {name!r} {found}; the table has: {known}"
            raise self.error(message, column=name)
        column = self._table.column(name)
        schema = schema_of_field(self._table.schema.field(name))
        try:
            return values_of(column, schema, name), schema
        except TypeMismatchError as error:
            error.context = {**self._context, **error.context}
            raise

    def gathered(self, what: str, given: Any, declared: Schema) -> tuple[list[Any], Schema, list[str]]:
        """Return the values that one or several columns make up, their schema, and the columns.

        Args:
            what: ``key`` or ``value``: the column's name if none is given, and the prefix of the columns of its fields.
            given: The columns, as the user names them: one, several, or None.
            declared: The declared type; decides whether several columns are a tuple or a record.
        """
        if isinstance(given, str) or (given is None and (self.has(what) or not self._prefixed(what))):
            name = what if given is None else given
            values, schema = self.values(name)
            return values, schema, [name]
        names = self._prefixed(what) if given is None else list(given)
        fields = [name.removeprefix(f"{what}.") for name in names]
        columns = [self.values(name) for name in names]
        inner = [schema for _, schema in columns]
        rows = zip(*(values for values, _ in columns), strict=True)
        core = declared.get("optional", declared) if isinstance(declared, dict) else declared
        is_tuple = fields == [f"f{i}" for i in range(len(fields))] if declared is None else "tuple" in (core or {})
        if what == "key" or is_tuple:
            return list(rows), {"tuple": inner}, names
        schema = {"record": [list(pair) for pair in zip(fields, inner, strict=True)], "of": "dict", "class": None}
        return [dict(zip(fields, row, strict=True)) for row in rows], schema, names

    def _prefixed(self, what: str) -> list[str]:
        return [name for name in self._table.column_names if name.startswith(f"{what}.")]

    def epoch_ms(self, name: str) -> list[int | None]:
        """Return a column of times or of integers as epoch milliseconds."""
        if not self.has(name):
            self.values(name)
        column = self._table.column(name)
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = pc.cast(column, pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
        elif not pa.types.is_integer(kind):
            message = f"column {name!r} must hold times or epoch milliseconds; it is of type {kind}"
            raise self.error(message, column=name)
        values: list[int | None] = column.to_pylist()
        return values

    def check(self, values: Sequence[Any], given: Schema, declared: Schema, columns: list[str], what: str) -> None:
        """See that values are of a declared type.

        Raises:
            TypeMismatchError: If not.
        """
        column = columns[0] if len(columns) == 1 else ", ".join(columns)
        if not fits(declared, given):
            message = f"the {what} is declared as {schema_text(declared)}; the table has {schema_text(given)}"
            raise self.error(message, column=column)
        if declared is None or not _cannot_be_none(declared):
            return
        for row, value in enumerate(values):
            place = _null_in(value, declared)
            if place is not None:
                message = f"the {what} declared as {schema_text(declared)} has a null{place}"
                raise self.error(message, column=column, row=row)

    def checked_keys(self, keys: list[Any], columns: list[str]) -> list[Any]:
        """Return the values as keys: none is null, each can be hashed, and hashed as the program hashes it, all NaN are
        one.

        Raises:
            TypeMismatchError: If not.
        """
        column = ", ".join(columns)
        for row, key in enumerate(keys):
            if key is None:
                message = "a key is null"
                raise self.error(message, column=column, row=row)
            if isinstance(key, Opaque):
                message = "a key is a pickled object; its place among the key groups cannot be told"
                raise self.error(message, column=column, row=row)
        try:
            set(keys)
        except TypeError as error:
            message = f"keys must be hashable: {error}"
            raise self.error(message, column=column) from error
        return with_one_nan(keys)

    def map_keys(self, name: str, declared: Schema) -> list[Any]:
        """Return a column of map keys.

        Raises:
            TypeMismatchError: If they are of another type than declared, or cannot be hashed.
        """
        keys, given = self.values(name)
        self.check(keys, given, declared, [name], "map key")
        for row, key in enumerate(keys):
            if isinstance(key, (Opaque, list, dict)):
                message = f"a map key must be a plain hashable value; got {shown(key, 120)}"
                raise self.error(message, column=name, row=row)
        return with_one_nan(keys)

    def windows(self) -> list[Namespace]:
        """Return the window of each row, of ``window_start`` and ``window_end``; None where both are null."""
        starts, ends = self.epoch_ms("window_start"), self.epoch_ms("window_end")
        namespaces: list[Namespace] = []
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if (start is None) != (end is None):
                message = "a window has only one of its bounds"
                raise self.error(message, column="window_end" if end is None else "window_start", row=row)
            namespaces.append(None if start is None or end is None else (start, end))
        return namespaces

    def places(self, layout: Layout, map_key_column: str, map_key_schema: Schema) -> list[Any]:
        """Return where each row belongs in what its key holds: its map key, or its turn by the column ``index``.

        Args:
            layout: Of what a key holds.
            map_key_column: Of entries.
            map_key_schema: The declared type of that column.

        Raises:
            TypeMismatchError: If the column of places is missing or of another type.
        """
        if layout is ENTRIES:
            return self.map_keys(map_key_column, map_key_schema)
        if layout is ELEMENTS:
            return self._turns()
        return [None] * self.num_rows

    def _turns(self) -> list[Any]:
        """The turn of each row in the order of the column ``index``, as they come if there is none."""
        if not self.has("index"):
            return list(range(self.num_rows))
        indices, _ = self.values("index")
        for row, index in enumerate(indices):
            if type(index) is not int:
                message = f"an element's index must be an integer; got {index!r}"
                raise self.error(message, column="index", row=row)
        turns = [0] * self.num_rows
        for turn, row in enumerate(sorted(range(self.num_rows), key=indices.__getitem__)):
            turns[row] = turn
        return turns


_INTEGERS = {f"{sign}int{bits}": (sign == "", bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float16": 16, "float32": 32, "float64": 64}


def fits(declared: Schema, given: Schema) -> bool:
    """Return whether values of one schema are values of another; nulls apart."""
    if isinstance(given, dict) and "optional" in given:
        given = given["optional"]
    if isinstance(declared, dict) and "optional" in declared:
        declared = declared["optional"]
    if declared is None or given == "null" or (isinstance(declared, dict) and "opaque" in declared):
        return True
    if isinstance(declared, str):
        if declared == given:
            return True
        if not isinstance(given, str):
            return False
        if declared in _INTEGERS and given in _INTEGERS:
            (signed, bits), (has_sign, given_bits) = _INTEGERS[declared], _INTEGERS[given]
            return given_bits < bits if signed != has_sign else given_bits <= bits and signed == has_sign
        if declared in _FLOATS and given in _FLOATS:
            return _FLOATS[given] <= _FLOATS[declared]
        if declared.startswith("decimal") and given.startswith("decimal"):
            return True
        return declared.startswith("timestamp[") and given.startswith("timestamp[")
    if not isinstance(given, dict):
        return False
    if "list" in declared:
        return "list" in given and fits(declared["list"], given["list"])
    if "map" in declared:
        return "map" in given and all(map(fits, declared["map"], given["map"]))
    mine, theirs = fields_of(declared), dict(fields_of(given))
    if ("tuple" in declared) != ("tuple" in given) or {name for name, _ in mine} != set(theirs):
        return False
    return all(fits(part, theirs[name]) for name, part in mine)


def _cannot_be_none(schema: Schema) -> bool:
    return not (schema is None or (isinstance(schema, dict) and ("opaque" in schema)))


def _null_in(value: Any, schema: Schema) -> str | None:
    """Where a value has a None that its schema does not admit: an empty text for itself; None for nowhere."""
    if schema is None or isinstance(value, Opaque):
        return None
    if isinstance(schema, dict):
        if "optional" in schema:
            return None if value is None else _null_in(value, schema["optional"])
        if "opaque" in schema:
            return None
    if value is None:
        return None if schema == "null" else ""
    if isinstance(schema, str):
        return None
    parts: Iterator[tuple[str, Any, Schema]]
    if "list" in schema:
        parts = ((f"[{i}]", item, schema["list"]) for i, item in enumerate(value))
    elif "map" in schema:
        parts = ((f"[{key!r}]", item, schema["map"][1]) for key, item in value.items())
    elif "tuple" in schema:
        parts = ((f"f{i}", item, part) for i, (item, part) in enumerate(zip(value, schema["tuple"], strict=True)))
    else:
        parts = ((name, value.get(name), part) for name, part in fields_of(schema))
    for name, item, part in parts:
        place = _null_in(item, part)
        if place is not None:
            return f" in {name}{place}"
    return None
