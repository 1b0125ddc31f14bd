"""Records as entries of a sink that writes by key: what is written, under which key, and how new it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, TypeMismatchError, nearest
from headrace.state.values.sharing import shown

from .order import OrderKey

__all__ = ["Entry", "KeyedColumns", "KeyedRecords", "newest_of"]

Entry = tuple[Any, "int | None", Any]
"""A key, None for a record without one; the number of its order, None without one; what is written, None to delete."""


class KeyedRecords(ABC):
    """Makes entries of records, which are mappings from field to value. Subclasses say what keys and values are.

    Args:
        key: The columns of the key; none for records that are only added.
        delete_column: A boolean field that is not written: where it is true, the key is deleted. None for none.
        order: What says which record of a key is newer; None for their order of arrival.

    Raises:
        ConfigurationError: If these do not fit.
    """

    time_unit = timedelta(microseconds=1)
    """What times are counted in that are an order."""

    def __init__(
        self, key: str | Sequence[str], delete_column: str | None = None, order: str | OrderKey | None = None
    ) -> None:
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.delete_column = delete_column
        self.order = OrderKey.of(order)
        if len(set(self.key)) < len(self.key) or not all(isinstance(name, str) and name for name in self.key):
            message = f"a key is made of columns, each once; got {key!r}"
            raise ConfigurationError(message)
        if not self.key and (delete_column is not None or self.order is not None):
            message = "delete_column and order are about the key of a record: they need one"
            raise ConfigurationError(message, hint="key='id'")
        if delete_column is not None and delete_column in (*self.key, *(self.order.columns if self.order else ())):
            message = f"delete_column {delete_column!r} cannot be a column of the key or of the order"
            raise ConfigurationError(message)

    @abstractmethod
    def key_of(self, values: tuple[Any, ...]) -> Any:
        """Return the key that is made of the values of the key's columns; hashable."""

    @abstractmethod
    def value_of(self, row: dict[str, Any]) -> Any:
        """Return what is written of a record, which has no ``delete_column`` any more; not None."""

    def deletion_of(self, row: dict[str, Any], number: int | None) -> Any:
        """Return what is written where a key is deleted; None to delete it."""
        return None

    def __call__(self, row: Any) -> Entry:
        """Make a record's entry.

        Raises:
            TypeMismatchError: If there is none.
        """
        if not isinstance(row, Mapping):
            message = f"a record must have named fields to be written by key; got {shown(row)}"
            raise TypeMismatchError(message, hint="map records to dicts")
        fields = dict(row)
        order = self.order
        try:
            is_gone = self.delete_column is not None and fields.pop(self.delete_column)
            key = self.key_of(tuple(fields[name] for name in self.key)) if self.key else None
            number = None if order is None else order.number_of(fields, self.time_unit)
        except KeyError as error:
            (name,) = error.args
            message = f"the record has no field {name!r}"
            hint = nearest(str(name), list(map(str, row))) or f"it has {', '.join(map(str, row))}"
            raise TypeMismatchError(message, hint=hint) from None
        return (key, number, self.deletion_of(fields, number) if is_gone else self.value_of(fields))

    def check_no_nulls(self, values: tuple[Any, ...]) -> None:
        """See that a key has all its parts.

        Raises:
            TypeMismatchError: If not.
        """
        if None in values:
            found = dict(zip(self.key, values, strict=True))
            message = f"a key is made of fields that are null: {shown(found)}"
            raise TypeMismatchError(message)


class KeyedColumns(KeyedRecords):
    """Records as values of declared columns, and keys as those of the key's.

    Args:
        schema: The columns, those of the key among them.
        key: As of `KeyedRecords`.
        delete_column: As of it.
        order: As of it.

    Raises:
        ConfigurationError: If these do not fit.
    """

    def __init__(
        self, schema: pa.Schema, key: str | Sequence[str], delete_column: str | None, order: str | OrderKey | None
    ) -> None:
        super().__init__(key, delete_column, order)
        self._names = tuple(schema.names)
        if not self.key:
            message = "rows are written by their key: key is missing"
            raise ConfigurationError(message)
        for name in self.key:
            if name not in self._names:
                message = f"the schema has no column {name!r} of the key"
                raise ConfigurationError(message, hint=nearest(name, self._names) or f"it has {', '.join(self._names)}")
        if delete_column in self._names:
            message = f"delete_column {delete_column!r} is not written: it is no column of the schema"
            raise ConfigurationError(message)

    def key_of(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        self.check_no_nulls(values)
        return values

    def value_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        try:
            return tuple(row[name] for name in self._names)
        except KeyError as error:
            message = f"the record has no field {error.args[0]!r}"
            raise TypeMismatchError(message, hint=f"it has {', '.join(map(str, row))}") from None


def newest_of(entries: Iterable[Entry]) -> list[Entry]:
    """Of the entries of each key the newest one, in the order of these.

    That is the one with the greatest number, of several the last one; without numbers the last one. Entries without a
    key are all there.
    """
    newest: dict[Any, Entry] = {}
    for place, entry in enumerate(entries):
        key, number, _ = entry
        if key is None:
            newest[(place,)] = entry  # none of a key, which is a pair here
            continue
        there = newest.get((key, None))
        if there is not None:
            if number is not None and there[1] is not None and number < there[1]:
                continue
            del newest[(key, None)]
        newest[(key, None)] = entry
    return list(newest.values())
