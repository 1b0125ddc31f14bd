"""Columnar state whose columns have changed: what it has lost is left out, what it has gained is null in older rows.

Columns are matched by name. What a program no longer asks for goes with the next run that is written; that it comes
back under its old name with old values is for the program to avoid, by giving a column that begins anew a new name.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["can_become", "fitted"]


def can_become(there: pa.Schema, wanted: pa.Schema, key_columns: tuple[str, ...]) -> bool:
    """Return whether rows of a schema can be read as those of another one: keys and common columns have the
    same types.
    """
    common = [name for name in wanted.names if name in there.names]
    return all(name in common for name in key_columns) and all(
        there.field(name).type == wanted.field(name).type for name in common
    )


def fitted(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema that they can become."""
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
