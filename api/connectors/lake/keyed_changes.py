"""Changes by key on their way into a table: of each key the last one counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.errors import ConfigurationError, TypeMismatchError, nearest

from .contract import DELETED

__all__ = ["as_changes", "last_changes", "require_key"]


def require_key(keys: Sequence[str], schema: pa.Schema) -> None:
    """See that a table has the columns of the key.

    Raises:
        ConfigurationError: If not.
    """
    for name in keys:
        if name not in schema.names:
            message = f"key: the table has no column {name!r}"
            raise ConfigurationError(message, hint=nearest(name, schema.names) or f"it has {schema.names}")


def as_changes(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Return rows that each have a key, and say whether they are to go: a null in `DELETED` says that they are not.

    Neither format finds a null or a NaN again by its value: such a row would be added at every change.

    Raises:
        TypeMismatchError: If a row has no key.
    """
    for name in keys:
        column = rows.column(name)
        is_missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
        row = pc.index(is_missing, True).as_py()
        if row >= 0:
            value = column[row].as_py()
            message = f"column {name!r} is a part of the key, and {'null' if value is None else 'NaN'} in a record"
            raise TypeMismatchError(message, field=name, row=row)
    place = rows.schema.get_field_index(DELETED)
    return rows.set_column(place, rows.schema.field(place), pc.fill_null(rows.column(place), False))


def last_changes(pieces: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key, of pieces in the order in which they were written.

    Args:
        pieces: Of one schema, but for columns that came or went with the table's: at least one.
        keys: The columns of the key.
    """
    whole = pa.concat_tables(pieces, promote_options="default").combine_chunks()
    place = "$place"
    numbered = whole.select(list(keys)).append_column(place, pa.array(np.arange(whole.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([(place, "max")]).column(f"{place}_max")
    return whole.take(pa.array(np.sort(last.to_numpy())))
