"""What a change in the log comes to as rows of a table: rows that come, are taken back, replace others, or go.

Source: Debezium's ``PostgresChangeRecordEmitter``; Flink's ``RowDataDebeziumDeserializeSchema``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import SourceError, TypeMismatchError, nearest

from .chunks import Key, TableKey
from .pgoutput import UNCHANGED, Change, Relation
from .settings import CdcSettings, quoted
from .values import require_type

__all__ = ["RowChanges", "batch_of"]

_KINDS = pa.array(["+I", "-U", "+U", "-D"])
"""Names by number."""


def batch_of(rows: pa.RecordBatch, kinds: Sequence[int], kind_column: str | None) -> Batch:
    """Return rows with their kinds: as changes, or as plain rows with a column that says what each is."""
    if kind_column is None:
        return Batch.of_columns(rows, row_kinds=np.array(kinds, np.int8))
    return Batch.of_columns(rows.append_column(kind_column, _KINDS.take(pa.array(kinds, pa.int8()))))


class RowChanges:
    """Makes rows of the changes of a table, as long as it is like that.

    Args:
        relation: What the table is like.
        settings: What is read of it.
        key: Its key.
        place: Where the log says so, for errors.

    Raises:
        SourceError: If it has no such columns, another key, or old rows are not in the log any more.
        TypeMismatchError: If a column has another type now.
    """

    def __init__(self, relation: Relation, settings: CdcSettings, key: TableKey, place: dict[str, Any]) -> None:
        self.relation = relation.relation
        self._settings = settings
        self._place = place
        for name in dict.fromkeys((*settings.schema.names, *key.names)):
            if name not in relation.columns:
                message = f"the schema of table {settings.name!r} has changed: it has no column {name!r} any more"
                raise SourceError(message, hint=nearest(name, list(relation.columns)), **place)
        if relation.identity != "f" and not (settings.is_upsert and relation.identity == "d"):
            message = (
                f"the REPLICA IDENTITY of table {settings.name!r} has changed: old rows are not in its log any more"
            )
            hint = f"ALTER TABLE {quoted(*settings.table)} REPLICA IDENTITY FULL, and begin anew without the checkpoint"
            raise SourceError(message, hint=hint, **place)
        if relation.identity == "d":
            identifying = [name for name, is_one in zip(relation.columns, relation.identifies, strict=True) if is_one]
            key.require_same(identifying, settings.name, place)
        self._key_names = key.names
        self._places = [relation.columns.index(name) for name in settings.schema.names]
        self._key_places = [relation.columns.index(name) for name in key.names]
        self._key_columns = [name in key.names for name in settings.schema.names]
        self.types = [relation.types[index] for index in self._places]
        try:
            for item, number in zip(settings.schema, self.types, strict=True):
                require_type(item.name, number, item.type)
        except TypeMismatchError as error:
            error.context.update(place)
            raise

    def rows_of(self, change: Change, position: str) -> Iterator[tuple[Key, list[Any], RowKind]]:
        """Give the key, the values by column, and the kind of each row that a change comes to."""
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            yield self._key_of(old, position), self._wanted(old, change.old_is_key, position), RowKind.DELETE
            return
        if old is not None:
            # Of an old row that is only a key the other columns are null.
            new = [
                before if one is UNCHANGED and (not change.old_is_key or index in self._key_places) else one
                for index, (one, before) in enumerate(zip(new, old, strict=True))
            ]
        key = self._key_of(new, position)
        if change.kind == "I":
            yield key, self._wanted(new, False, position), RowKind.INSERT
            return
        if old is not None and (old_key := self._key_of(old, position)) != key:
            yield old_key, self._wanted(old, change.old_is_key, position), RowKind.DELETE
            yield key, self._wanted(new, False, position), RowKind.INSERT
            return
        if not self._settings.is_upsert:
            assert old is not None
            yield key, self._wanted(old, False, position), RowKind.UPDATE_BEFORE
        yield key, self._wanted(new, False, position), RowKind.UPDATE_AFTER

    def _key_of(self, values: list[Any], position: str) -> Key:
        key = []
        for name, index in zip(self._key_names, self._key_places, strict=True):
            value = values[index]
            if value is None or value is UNCHANGED:
                message = f"a row of table {self._settings.name!r} has no value of column {name!r} in the log"
                hint = "it is part of the primary key by which the table is followed: begin anew if it is so no more"
                raise SourceError(message, hint=hint, **{**self._place, "position": position})
            key.append(value.decode())
        return key

    def _wanted(self, values: list[Any], only_key: bool, position: str) -> list[Any]:
        """The columns that are read; of a row of which only the key is known the others are null."""
        if only_key:
            pairs = zip(self._places, self._key_columns, strict=True)
            return [values[index] if is_key else None for index, is_key in pairs]
        wanted = [values[index] for index in self._places]
        for item, value in zip(self._settings.schema, wanted, strict=True):
            if value is UNCHANGED:
                message = (
                    f"an update left the large value of column {item.name!r} of table {self._settings.name!r},"
                    " as it was, so the log does not have it"
                )
                hint = f"ALTER TABLE {quoted(*self._settings.table)} REPLICA IDENTITY FULL; begin anew, or leave it out"
                raise SourceError(message, hint=hint, **{**self._place, "position": position})
        return wanted
