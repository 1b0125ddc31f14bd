"""Key selectors: how a keyed stream finds the key of a record, on either face of a batch.

A selector is given by field names (or positions of tuples), or by a function. With fields, keys can be read from
columns without making rows; that is what lets the columnar path stay columnar. Both ways give the same keys and the
same hashes.

Source: Flink's ``KeySelector``; hashing is in `headrace.state.keys.hashing`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.hashing import hash_integers, hash_keys, integers_of, with_one_nan
from headrace.state.values.serde import pylist_from_array
from headrace.state.values.sharing import types_of

from ..columns.records import Batch
from ..errors import ProgramError, TypeMismatchError, nearest
from .tracebacks import note_in_hand, taken_last

__all__ = ["KeySelector"]


_NUMBERS = itertools.count()
"""Of selectors that are functions: all of a program are made in one process."""


class KeySelector:
    """Finds the keys of a batch's records. Picklable; made by `of_field` or `of_function`."""

    __slots__ = ("_fields", "_function", "identity")

    def __init__(self, fields: tuple[str | int, ...], function: Callable[[Any], Any] | None) -> None:
        self._fields = fields
        self._function = function
        # Tells a program's selectors apart, also those that have been sent to other processes.
        self.identity: Hashable = fields if function is None else next(_NUMBERS)

    @classmethod
    def of_field(cls, *fields: str | int) -> KeySelector:
        """Key by one field (the key is its value) or by several (the key is a tuple).

        Args:
            *fields: Names of a dict record's fields, or positions in a tuple record.
        """
        if not fields:
            message = "key_by needs at least one field"
            raise ProgramError(message)
        return cls(fields, None)

    @classmethod
    def of_function(cls, function: Callable[[Any], Any]) -> KeySelector:
        """Key by what ``function`` gives for a record; it must be deterministic, its values hashable."""
        return cls((), function)

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The fields' names, if the selector goes by fields: position ``n`` of a tuple is called ``fn``."""
        if self._function is not None:
            return None
        return tuple(field if isinstance(field, str) else f"f{field}" for field in self._fields)

    def key_columns(self, batch: Batch) -> list[pa.Array] | None:
        """Return the key as columns, if the selector goes by fields and the batch has columns; else None."""
        names = self.field_names
        if names is None or not batch.has_columns:
            return None
        columns = batch.columns
        found = [columns.schema.get_field_index(name) for name in names]
        if -1 in found:
            name, there = names[found.index(-1)], columns.schema.names
            message = f"key field {name!r} is not in the record; its fields are {there}"
            raise TypeMismatchError(message, hint=nearest(name, there))
        return [columns.column(index) for index in found]

    def keys(self, batch: Batch) -> list[Any]:
        """Return the keys, one per record, as Python values; every NaN in them is the same object.

        They are found once: the exchange in front of an operator that asks again has noted them in the batch.
        """
        known = batch.keys_by(self.identity)
        return with_one_nan(self._find(batch)) if known is None else known

    def _find(self, batch: Batch) -> list[Any]:
        function = self._function
        if function is not None:
            rows = batch.rows
            pending = iter(rows)
            try:
                return [function(row) for row in pending]
            except BaseException as error:
                note_in_hand(error, record=rows[taken_last(rows, pending)])
                raise
        columns = self.key_columns(batch)
        if columns is not None:
            values = [
                pylist_from_array(column, name) for column, name in zip(columns, self.field_names or (), strict=True)
            ]
            return values[0] if len(values) == 1 else list(zip(*values, strict=True))
        fields = self._fields
        rows = batch.rows
        # Of one field its value, of several a tuple.
        find: Any = itemgetter(*fields)
        if rows and dataclasses.is_dataclass(rows[0]) and all(isinstance(field, str) for field in fields):
            find = attrgetter(*map(str, fields))
        try:
            return list(map(find, rows))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            message = f"key field {fields if len(fields) > 1 else fields[0]!r} is not in the record: {error!r}"
            hint = nearest(fields[0], rows[0]) if len(fields) == 1 and isinstance(rows[0], dict) else None
            raise TypeMismatchError(message, hint=hint) from error

    def hashes(self, batch: Batch) -> npt.NDArray[np.uint64]:
        """Return the stable 64-bit hashes of the keys, one per record."""
        columns = self.key_columns(batch)
        if columns is not None:
            return hash_columns(columns)
        known = batch.keys_by(self.identity)
        if known is not None:
            return hash_keys(known)
        found = self._find(batch)
        kinds = types_of(found)  # looked at once for all
        integers = integers_of(found, kinds)
        if integers is not None:
            batch.note_keys(self.identity, integers)
            return hash_integers(integers)
        keys = with_one_nan(found, kinds)
        batch.note_keys(self.identity, keys)
        return hash_keys(keys, kinds if keys is found else None)

    def __repr__(self) -> str:
        if self._function is not None:
            return f"KeySelector({getattr(self._function, '__name__', repr(self._function))})"
        return f"KeySelector({', '.join(map(repr, self._fields))})"
