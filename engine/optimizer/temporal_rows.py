"""Rows and versions in one set of columns, so that the versions of a row can be found among the rows before it.

Both become a struct of the columns that a temporal join gives, beside the key and the time; a row has no version in it,
and a version no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..plan.table_nodes import TemporalJoin

__all__ = ["FOUND", "ROW", "TIME", "VERSION", "BesideEachOther", "field_of", "keys_of"]

TIME, ROW, VERSION, FOUND = "$time", "$row", "$version", "$found"
_KEY = "$key"


def keys_of(num_keys: int) -> tuple[str, ...]:
    """Return the names of the key's columns."""
    return tuple(f"{_KEY}{i}" for i in range(num_keys))


def field_of(column: str) -> str:
    """Return what a column is called in the struct of its side."""
    return f"f.{column}"


class BesideEachOther:
    """Makes that of a batch of one side. Versions without a key are none, and rows without a time.

    Args:
        node: The join.
        side: Of which input.
    """

    def __init__(self, node: TemporalJoin, side: int) -> None:
        left, right = (one.schema for one in node.inputs)
        assert left is not None
        assert right is not None
        self._side = side
        self._keys = (node.left_key.names, node.right_key.names)[side] or ()
        self._time = node.times[side]
        self._structs = [_struct_of(node, place, schema) for place, schema in enumerate((left, right))]
        kinds = [left.field(key).type for key in node.left_key.names or ()]
        time = pa.timestamp("ns", left.field(node.times[0]).type.tz)
        self.schema = pa.schema([
            *zip(keys_of(len(kinds)), kinds, strict=True), (TIME, time), (ROW, self._structs[0]),
            (VERSION, self._structs[1]),
        ])  # fmt: skip

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same rows as structs."""
        names = [self._time] if self._side == 0 else [self._time, *self._keys]
        is_whole = np.ones(batch.num_rows, np.bool_)
        for name in names:
            is_whole &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        batch = batch if is_whole.all() else batch.filter(pa.array(is_whole))
        own = self._structs[self._side]
        made = pa.StructArray.from_arrays(
            [batch.column(field.name.partition(".")[2]) for field in own], fields=list(own)
        )
        other = pa.nulls(batch.num_rows, self._structs[1 - self._side])
        arrays = [batch.column(key) for key in self._keys]
        arrays.append(batch.column(self._time).cast(self.schema.field(TIME).type))
        arrays += [made, other] if self._side == 0 else [other, made]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _struct_of(node: TemporalJoin, side: int, schema: pa.Schema) -> pa.DataType:
    """The columns that the join gives of one side; one at least."""
    names: Sequence[str] = sorted({column for at, column, _ in node.projection if at == side}) or [node.times[side]]
    return pa.struct([pa.field(field_of(name), schema.field(name).type) for name in names])
